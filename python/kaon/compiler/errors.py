"""Source locations and the closed family of front-end errors.

Every error a user can cause in an update carries where it happened: file, line, column, the source line with a caret
run under the offending text, and the chain of helper calls that led there. Compiler frames never show.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

_TAB_WIDTH = 4


def character_width(character: str) -> int:
    """Columns a terminal uses for one character: 2 for East Asian wide, 0 for combining marks, else 1."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def render_excerpt(text: str, column: int, end_column: int) -> tuple[str, str]:
    """Return the line with tabs expanded and the caret line under ``[column, end_column)`` (1-based characters)."""
    line: list[str] = []
    starts: list[int] = []
    width = 0
    for character in text:
        starts.append(width)
        if character == "\t":
            step = _TAB_WIDTH - width % _TAB_WIDTH
            line.append(" " * step)
        else:
            step = character_width(character)
            line.append(character)
        width += step
    starts.append(width)
    begin = starts[min(max(column - 1, 0), len(text))]
    end = starts[min(max(end_column - 1, 0), len(text))]
    return "".join(line), " " * begin + "^" * max(end - begin, 1)


@dataclass(frozen=True)
class SourceLocation:
    """A range of characters on one line of one file, and the call that led into its function.

    ``line`` and ``column`` count from 1 (characters, not bytes); ``end_column`` is one past the last character.
    """

    filename: str
    line: int
    column: int
    end_column: int
    text: str = field(default="", repr=False, compare=False)
    function: str = ""
    caller: SourceLocation | None = None

    def chain(self) -> list[SourceLocation]:
        """This location, then the helper calls around it, innermost first."""
        locations: list[SourceLocation] = []
        location: SourceLocation | None = self
        while location is not None:
            locations.append(location)
            location = location.caller
        return locations

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}:{self.column}"

    def render(self) -> str:
        """The call chain with source lines and carets."""
        parts: list[str] = []
        for index, location in enumerate(self.chain()):
            arrow = "  -->" if index == 0 else "  called at"
            where = f", in `{location.function}`" if location.function else ""
            parts.append(f"{arrow} {location}{where}")
            if location.text:
                line, carets = render_excerpt(location.text, location.column, location.end_column)
                parts.append(f"{location.line:5d} | {line}")
                parts.append(f"      | {carets}")
        return "\n".join(parts)


class KaonError(Exception):
    """Base class of every error that Kaon raises on purpose."""


class LanguageError(KaonError):
    """A mistake in an update or a helper.

    Attributes:
        message: one line, lower case, that names the thing, the wish and the finding.
        hint: one line that says what to write instead, or None.
        location: where it happened, or None when no source position applies.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        location: SourceLocation | None = None,
        argument: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.location = location
        # The parameter of the call at fault: lets the visitor narrow the caret from the call to one argument.
        self.argument = argument

    @property
    def filename(self) -> str | None:
        return self.location.filename if self.location else None

    @property
    def line(self) -> int | None:
        return self.location.line if self.location else None

    @property
    def column(self) -> int | None:
        return self.location.column if self.location else None

    @property
    def call_chain(self) -> list[SourceLocation]:
        """The location and the helper calls around it, innermost first; empty without a location."""
        return self.location.chain() if self.location else []

    def __str__(self) -> str:
        parts = [self.message]
        if self.location is not None:
            parts.append(self.location.render())
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.location))


def _rebuild(
    kind: type[LanguageError], message: str, hint: str | None, location: SourceLocation | None
) -> LanguageError:
    return kind(message, hint=hint, location=location)


class SourceError(LanguageError, OSError):
    """The source text of a function cannot be read, or is not the text of the running function."""

    # OSError formats itself from errno and strerror; the language message is the one to show.
    __str__ = LanguageError.__str__


class UpdateSyntaxError(LanguageError):
    """A construct outside the language's subset of Python, or a malformed signature."""


class UpdateNameError(LanguageError, NameError):
    """A name that is not defined, or defined on one way through the function only."""


class UpdateTypeError(LanguageError, TypeError):
    """An operand or argument of the wrong kind, or a call with wrong arguments."""


class UpdateValueError(LanguageError, ValueError):
    """A compile-time value outside its range."""


class ShapeError(UpdateValueError):
    """Matrix shapes that do not fit together."""


class RoleError(LanguageError):
    """An argument used against its role: a gradient written, a state not returned, two states exchanged."""


class UnsupportedError(LanguageError, NotImplementedError):
    """Valid Python whose meaning Kaon cannot keep: truth value of a matrix, NumPy on a symbolic value, ..."""


class StaticAssertionError(LanguageError, AssertionError):
    """A ``kl.static_assert`` that does not hold."""


class InternalError(LanguageError):
    """A bug in the front end, found while compiling the line that ``location`` names."""


class CallError(LanguageError, TypeError):
    """A ``kaon.language`` function, an update or a helper called from plain Python."""


# Users meet, catch and pickle them under their public name.
for _error in (KaonError, LanguageError, *LanguageError.__subclasses__(), *UpdateValueError.__subclasses__()):
    _error.__module__ = "kaon.errors"
SourceLocation.__module__ = "kaon.errors"
