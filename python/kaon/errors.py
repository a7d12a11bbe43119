"""The exceptions a user of Kaon can meet.

All derive from :class:`KaonError`; those about the text of an update derive from :class:`LanguageError` and carry
``message``, ``hint``, ``location`` (file, line, column, source line) and ``call_chain``.
"""

from __future__ import annotations

from kaon.compiler.errors import (
    CallError,
    InternalError,
    KaonError,
    LanguageError,
    RoleError,
    ShapeError,
    SourceError,
    SourceLocation,
    StaticAssertionError,
    UnsupportedError,
    UpdateNameError,
    UpdateSyntaxError,
    UpdateTypeError,
    UpdateValueError,
)

__all__ = [
    "CallError",
    "InternalError",
    "KaonError",
    "LanguageError",
    "RoleError",
    "ShapeError",
    "SourceError",
    "SourceLocation",
    "StaticAssertionError",
    "UnsupportedError",
    "UpdateNameError",
    "UpdateSyntaxError",
    "UpdateTypeError",
    "UpdateValueError",
]
