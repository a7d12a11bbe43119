"""Checks the style of every tracked source file: clang-format, ruff, mypy, and with ``--tidy`` also clang-tidy.

usage: python tools/lint.py [--build build/dev --tidy]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tracked(*patterns: str) -> list[str]:
    """Tracked files that match any of the patterns, relative to the root."""
    return subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()


def passes(name: str, command: list[str]) -> bool:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        print(f"{name}: {' '.join(command[:3])} ... failed\n{result.stdout}{result.stderr}", file=sys.stderr)
    return result.returncode == 0


def tidy(build: Path) -> bool:
    def check(source: str) -> bool:
        return passes("clang-tidy", ["clang-tidy-22", "-p", str(build), "--quiet", "--warnings-as-errors=*", source])

    sources = [source for source in tracked("*.cpp") if not source.startswith("test/")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return all(list(pool.map(check, sources)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, help="build directory with compile_commands.json, for --tidy")
    parser.add_argument("--tidy", action="store_true", help="run clang-tidy as well (minutes)")
    arguments = parser.parse_args()
    python = tracked("*.py", "*.pyi")
    checks = [
        ("clang-format", ["clang-format-22", "--dry-run", "--Werror", *tracked("*.cpp", "*.h", "*.cuh")]),
        ("ruff check", [sys.executable, "-m", "ruff", "check", *python]),
        ("ruff format", [sys.executable, "-m", "ruff", "format", "--check", *python]),
        ("mypy", [sys.executable, "-m", "mypy"]),
    ]
    results = [passes(name, command) for name, command in checks]
    if arguments.tidy:
        results.append(tidy(arguments.build))
    return int(not all(results))


if __name__ == "__main__":
    raise SystemExit(main())
