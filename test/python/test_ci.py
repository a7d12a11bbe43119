"""The script of continuous integration: its last line is the count, and its status that of the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("make", "status", "last"),
    [
        ("echo 5 passed, 0 failed", 0, "5 passed, 0 failed"),
        ("echo 5 passed, 2 failed; echo 'make: *** Error 1' >&2; exit 2", 2, "5 passed, 2 failed"),
        ("echo no compiler; exit 2", 2, "0 passed, 1 failed"),
    ],
)
def test_the_last_line_is_the_count(tmp_path: Path, make: str, status: int, last: str) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    stub = tmp_path / "make"
    stub.write_text(f"#!/bin/sh\n{make}\n")
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    result = subprocess.run(["bash", str(tmp_path / ".ci/run")], env=environment, capture_output=True, text=True)
    assert result.returncode == status
    lines = result.stdout.splitlines()
    assert lines[-1] == last
    assert lines.count(last) <= 2
