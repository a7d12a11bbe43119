"""The package built without the compiler, once for all tests that want it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import host_compiler
import kaon

ROOT = Path(__file__).resolve().parents[2]
COMPILER = host_compiler.another_cxx() or "c++"
ABSENT = ("MLIR", "LLVM", "GTest", "nlohmann_json")
"""Packages that CMake is told not to find."""


def run(*command: str | Path, **environment: str) -> str:
    """The output of a command that succeeds; no setting of Kaon and no path to another build reaches it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("KAON_") and key != "PYTHONPATH"}
    result = subprocess.run(
        [str(part) for part in command], env={**clean, **environment}, capture_output=True, text=True, timeout=900
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def build_directory() -> Path:
    """Where it is built: in the build tree that the package under test is of, so that later runs find it up to date."""
    return Path(kaon.__path__[0]).parents[1] / "test" / "runtime-only"


def build() -> Path:
    """Configures and builds as on a machine without LLVM. Processes take turns."""
    folder = build_directory()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        absent = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ABSENT]
        options = ["-DKAON_COMPILER=OFF", f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
        run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options, *absent)
        run("ninja", "-C", folder, "KaonExtension")
    return folder
