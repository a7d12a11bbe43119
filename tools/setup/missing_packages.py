"""Prints the pinned requirements that the running interpreter's environment lacks, separated by spaces.

In Kaon's own environment (.venv) another version than the pinned one counts as missing. In a user's environment
(``--existing``) any version in the range that pyproject.toml declares is accepted; one outside of it is an error, since
replacing it would change an environment that is not ours.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

SETUP = Path(__file__).resolve().parent


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: '2.13.0+cpu' -> (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def supported_ranges() -> dict[str, tuple[int, ...]]:
    """Lower bounds by package name, from the dependency lists of pyproject.toml (all of the form 'name>=version')."""
    project = tomllib.loads((SETUP.parent.parent / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    return {name: release(bound) for name, _, bound in (r.partition(">=") for r in requirements)}


def main() -> int:
    existing = "--existing" in sys.argv[1:]
    ranges = supported_ranges()
    missing = []
    for line in (SETUP / "requirements.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, pinned = line.partition("==")
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(line)
            continue
        if existing:
            if release(found) < ranges.get(name, ()):
                bound = ".".join(map(str, ranges[name]))
                print(f"setup: expects {name} {bound} or newer in {sys.prefix}, but found {found}", file=sys.stderr)
                return 1
        elif release(found) != release(pinned):
            missing.append(line)
    print(" ".join(missing))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
