"""The host's C and C++ compilers, for tests that build something. What the project installs brings clang alone."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable


def _first(names: Iterable[str]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)


@functools.cache
def cxx() -> str | None:
    """A C++20 compiler, preferably the one that Kaon is built with; None if there is none."""
    return _first(("clang++-22", "clang++", "g++", "c++"))


@functools.cache
def another_cxx() -> str | None:
    """A C++20 compiler, preferably another one than Kaon is built with; None if there is none."""
    return _first(("g++", "c++", "clang++-22", "clang++"))


@functools.cache
def c() -> str:
    """A C compiler; `cc` if there is none, for an error that says so."""
    return _first(("cc", "gcc", "clang-22", "clang")) or "cc"
