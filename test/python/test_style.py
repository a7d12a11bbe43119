"""Every tracked source file is formatted, linted and typed: `make lint` less clang-tidy, which takes minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_lint() -> None:
    result = subprocess.run([sys.executable, str(ROOT / "tools/lint.py")], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
