"""An installed package, away from the build tree, finds its extension and the extension finds LLVM."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_installed_package_compiles_and_runs_an_update(tmp_path: Path) -> None:
    build = os.environ.get("KAON_BUILD_DIR")
    if build is None:
        pytest.skip("KAON_BUILD_DIR names no build to install from")
    subprocess.run(["cmake", "--install", build, "--prefix", str(tmp_path)], check=True, capture_output=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "python/kaon", tmp_path / "kaon", dirs_exist_ok=True, ignore=ignored)
    clean = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "KAON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "kaon", "doctor"]
    report = subprocess.run(command, env=clean, cwd=tmp_path, capture_output=True, text=True).stdout
    for part in ("extension", "compiler"):
        (line,) = (line for line in report.splitlines() if line.split()[1:2] == [part])
        assert line.startswith("works"), report
