"""Step plans with one thing wrong: every field of a plan (as JSON), changed, left out or swapped, one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

KEYWORDS: dict[str, tuple[str, ...]] = {
    "target": ("cpu", "cuda"),
    "schedule": ("elementwise", "rows", "columns", "transpose", "pack", "matmul"),
    "kind": ("param", "grad", "state", "workspace"),
    **dict.fromkeys(("type", "paramType", "gradType"), ("f16", "bf16", "f32", "f64")),
}
"""Fields with a keyword; scalar operations are swapped for others that take as many operands."""

OPERATIONS = (
    ("add", "sub", "mul", "div", "pow", "copysign", "min", "max", "lt", "le", "eq", "ne", "unordered", "and", "or"),
    ("neg", "sqrt", "exp", "log", "abs", "floor", "ceil", "not"),
    ("fma", "select"),
    ("const",),
    ("arg",),
    ("step",),
)

FEW = 6
"""Positions of a list that an index is set to, besides its neighbors."""


@dataclass(frozen=True)
class Mutant:
    """A plan with one change."""

    place: str
    """Where, without positions: ``sequences[].launches[].items``."""
    change: str
    """What was done: ``to 2**31``, ``left out``."""
    pieces: tuple[str, str, str]
    """The plan's text: what was changed, between what was not."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def _replacements(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value that is no list and no object may be changed to, with words for it."""
    if isinstance(value, bool):
        yield "to the other", not value
    elif isinstance(value, int | float):
        words = {"to 0": 0, "to -1": -1, "less 1": value - 1, "plus 1": value + 1, "twice": 2 * value}
        yield from words.items()
        yield from (("to 2**31", 2**31), ("to 2**63 - 1", 2**63 - 1))
        yield from ((f"to position {position}", position) for position in range(1, FEW))
    elif name == "op":
        alike = next(family for family in OPERATIONS if value in family)
        yield from ((f"to {other}", other) for other in (*alike, "step", "neg"))
    elif name in KEYWORDS:
        yield from ((f"to {other}", other) for other in KEYWORDS[name])
    else:
        yield from (("to nothing", ""), ("to another name", value + "_"))


def mutants(plan: Mapping[str, Any]) -> Iterator[Mutant]:
    """Every mutant of ``plan``, in a fixed order."""
    yield from _inside("", "", plan, "", "")


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _inside(name: str, place: str, value: Any, before: str, after: str) -> Iterator[Mutant]:
    """Mutants of ``value``, which stands between two pieces of the text."""
    if isinstance(value, Mapping):
        texts = [f"{_dump(key)}:{_dump(child)}" for key, child in value.items()]
        for index, (key, child) in enumerate(value.items()):
            inner = f"{place}.{key}" if place else key
            first, last = _around(texts, index)
            yield Mutant(inner, "left out", (before, "{" + ",".join([*first, *last]) + "}", after))
            opening, closing = _joined("{", first, last, "}")
            yield from _inside(key, inner, child, before + opening + _dump(key) + ":", closing + after)
    elif isinstance(value, list):
        texts = [_dump(child) for child in value]
        inner = place + "[]"
        for index, child in enumerate(value):
            first, last = _around(texts, index)
            yield Mutant(inner, "left out", (before, "[" + ",".join([*first, *last]) + "]", after))
            if index > 0 and texts[index] != texts[index - 1]:
                swapped = [*first[:-1], texts[index], texts[index - 1], *last]
                yield Mutant(inner, "swapped with the one before", (before, "[" + ",".join(swapped) + "]", after))
            opening, closing = _joined("[", first, last, "]")
            yield from _inside(_element_name(name), inner, child, before + opening, closing + after)
    else:
        for change, other in _replacements(name, value):
            if other != value:
                yield Mutant(place, change, (before, _dump(other), after))


def _around(texts: list[str], index: int) -> tuple[list[str], list[str]]:
    return texts[:index], texts[index + 1 :]


def _joined(opening: str, first: list[str], last: list[str], closing: str) -> tuple[str, str]:
    """What stands before and after one element of a list or an object."""
    return opening + "".join(text + "," for text in first), "".join("," + text for text in last) + closing


def _element_name(name: str) -> str:
    """What the elements of a list are, where its name tells: a kernel's operands are types."""
    return "type" if name == "operands" else name
