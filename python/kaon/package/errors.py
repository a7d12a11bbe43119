"""The one exception of packages."""

from __future__ import annotations

from pathlib import Path

from kaon.compiler.errors import KaonError


class PackageError(KaonError, ValueError):
    """A package cannot be made, read, or used here; the message names it, what it has, and what was found."""

    def __init__(self, directory: Path | str, problem: str):
        super().__init__(f"package {directory}: {problem}")
