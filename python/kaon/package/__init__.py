"""Compiled packages: an update or an optimizer, compiled ahead of time for a list of shapes and some architectures.

A package is a directory of plain files that `python -m kaon compile ... -o DIR` writes and :func:`load` turns into an
optimizer class, on a machine with neither LLVM nor NVRTC. docs/packages.md describes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kaon.package.errors import PackageError
from kaon.package.reading import Package

if TYPE_CHECKING:
    from kaon.optim.packaged import PackagedOptimizer

__all__ = ["Package", "PackageError", "load"]


def load(directory: str | Path) -> type[PackagedOptimizer]:
    """The optimizer class of a compiled package: a `torch.optim.Optimizer` that compiles nothing.

    Args:
        directory: what `python -m kaon compile ... -o DIR` wrote.

    Raises:
        kaon.package.PackageError: a file is missing or damaged, or the package is for another version of Kaon or
            another architecture; says what the package has and what is found here. Parameters of other shapes, dtypes
            or options than it was compiled for are refused in the same way, when the optimizer is made where that can
            be seen, at the latest before its first step changes anything.
    """
    from kaon.optim.packaged import optimizer_class

    return optimizer_class(Package.open(directory))
