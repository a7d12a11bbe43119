"""Kaon: a kernel DSL and compiler for matrix optimizers.

Importing this package needs neither torch nor the compiled extension; ``kaon.optim``, ``kaon.optimizer`` and
``kaon.load`` load torch when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kaon import errors, language
from kaon.compiler.function import Function, function
from kaon.compiler.update import Update, update

if TYPE_CHECKING:
    from kaon import optim
    from kaon.optim import optimizer
    from kaon.package import load

__version__ = "0.1.0"

__all__ = [
    "Function",
    "Update",
    "__version__",
    "errors",
    "function",
    "language",
    "load",
    "optim",
    "optimizer",
    "update",
]


def __getattr__(name: str) -> Any:
    if name == "optim":
        return importlib.import_module("kaon.optim")
    if name == "optimizer":
        return importlib.import_module("kaon.optim").optimizer
    if name == "load":
        return importlib.import_module("kaon.package").load
    raise AttributeError(f"module 'kaon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
