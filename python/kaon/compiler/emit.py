"""Builds and prints the MLIR text of an update.

Operations are kept as a list until the function is complete, so that a value can still take the name of the variable it
is assigned to, and so that operations nobody reads are not printed. All operations of the update language are pure.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kaon.compiler.errors import SourceLocation

if TYPE_CHECKING:
    from kaon.compiler.update import SpecializedUpdate

_INDENT = "  "


def tensor_type(rows: int, cols: int, dtype: str) -> str:
    return f"tensor<{rows}x{cols}x{dtype}>"


def float_literal(value: float) -> str:
    """A float64 literal MLIR reads back to the same bits (its grammar demands a decimal point)."""
    if math.isnan(value) or math.isinf(value):
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    text = repr(float(value))
    if "." not in text:
        mantissa, _, exponent = text.partition("e")
        text = f"{mantissa}.0e{exponent}" if exponent else f"{mantissa}.0"
    return text


def string_literal(text: str) -> str:
    """A quoted MLIR string; anything but printable ASCII becomes hexadecimal escapes of its UTF-8 bytes."""
    escaped = []
    for byte in text.encode("utf-8", "surrogateescape"):
        character = chr(byte)
        plain = 0x20 <= byte < 0x7F and character not in '"\\'
        escaped.append(character if plain else f"\\{byte:02X}")
    return '"' + "".join(escaped) + '"'


def symbol_name(name: str) -> str:
    """``@name``, quoted when the name is not a bare MLIR identifier."""
    return f"@{name}" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$.]*", name) else f"@{string_literal(name)}"


def location_text(location: SourceLocation | None, name: str | None = None) -> str:
    """``loc(...)``: file, line and column; helper calls as call sites; wrapped in the variable's name if it has one."""
    if location is None:
        return "loc(unknown)"
    *inner, outermost = [_position(item) for item in location.chain()]
    body = outermost
    for position in reversed(inner):
        body = f"callsite({position} at {body})"
    return f"loc({string_literal(name)}({body}))" if name else f"loc({body})"


def _position(location: SourceLocation) -> str:
    return f"{string_literal(location.filename)}:{location.line}:{location.column}"


@dataclass(eq=False)
class SsaValue:
    """A result or argument. ``hint`` is the user's variable, used for its printed name."""

    type: str
    hint: str | None = None


@dataclass(eq=False)
class Operation:
    """One operation: ``text`` holds a ``{}`` for each operand, in order."""

    text: str
    operands: list[SsaValue]
    results: list[SsaValue]
    location: SourceLocation | None


@dataclass(eq=False)
class Block:
    """A list of operations and the values its terminator hands on."""

    operations: list[Operation] = field(default_factory=list)
    terminator: list[SsaValue] = field(default_factory=list)
    # (text, operands) -> result of operations worth sharing: constants, conversions and splats of host scalars.
    shared: dict[tuple[object, ...], SsaValue] = field(default_factory=dict)


@dataclass(eq=False)
class EveryOperation(Operation):
    """``kaon.every``: operand is the step; one terminator value per result in each block."""

    then: Block = field(default_factory=Block)
    otherwise: Block = field(default_factory=Block)


class Builder:
    """Appends operations to the innermost open block, at the current source location."""

    def __init__(self) -> None:
        self.location: SourceLocation | None = None
        self._blocks = [Block()]

    @property
    def block(self) -> Block:
        return self._blocks[-1]

    @contextmanager
    def open_block(self, block: Block | None = None) -> Iterator[Block]:
        """Append to ``block``, a new one by default, within the ``with`` statement."""
        block = block or Block()
        self._blocks.append(block)
        try:
            yield block
        finally:
            self._blocks.pop()

    def append(self, text: str, operands: Sequence[SsaValue], result_types: Sequence[str]) -> list[SsaValue]:
        results = [SsaValue(type_) for type_ in result_types]
        self.block.operations.append(Operation(text, list(operands), results, self.location))
        return results

    def emit(self, text: str, operands: Sequence[SsaValue], result_type: str) -> SsaValue:
        """Append an operation with one result."""
        return self.append(text, operands, [result_type])[0]

    def emit_shared(self, text: str, operands: Sequence[SsaValue], result_type: str) -> SsaValue:
        """Like :meth:`emit`, but reuse the result of an equal operation that is visible from here."""
        key = (text, result_type, *(id(operand) for operand in operands))
        for block in reversed(self._blocks):
            if key in block.shared:
                return block.shared[key]
        result = self.emit(text, operands, result_type)
        self.block.shared[key] = result
        return result

    def emit_every(
        self, step: SsaValue, period: int, phase: int, then: Block, otherwise: Block, result_types: Sequence[str]
    ) -> list[SsaValue]:
        results = [SsaValue(type_) for type_ in result_types]
        text = f"kaon.every {{}} period {period} phase {phase}"
        self.block.operations.append(
            EveryOperation(text, [step], results, self.location, then=then, otherwise=otherwise)
        )
        return results


def remove_dead(block: Block, used: set[SsaValue]) -> None:
    """Drop operations, and results of ``kaon.every``, that nobody reads. ``used`` holds the values read further on."""
    used.update(block.terminator)
    kept: list[Operation] = []
    for operation in reversed(block.operations):
        if not any(result in used for result in operation.results):
            continue
        if isinstance(operation, EveryOperation):
            live = [index for index, result in enumerate(operation.results) if result in used]
            operation.results = [operation.results[index] for index in live]
            for region in (operation.then, operation.otherwise):
                region.terminator = [region.terminator[index] for index in live]
                remove_dead(region, used)
        used.update(operation.operands)
        kept.append(operation)
    block.operations = kept[::-1]


class Printer:
    """Prints one function; names are unique within it and follow the user's variables where MLIR allows."""

    def __init__(self) -> None:
        self._names: dict[SsaValue, str] = {}
        self._taken: set[str] = set()
        self._next = 0

    def name(self, value: SsaValue) -> str:
        if value not in self._names:
            self._names[value] = "%" + self._fresh(value.hint)
        return self._names[value]

    def _fresh(self, hint: str | None) -> str:
        base = re.sub(r"[^A-Za-z0-9_$.]", "_", hint) if hint else ""
        if not base or base[0].isdigit():
            while str(self._next) in self._taken:
                self._next += 1
            name = str(self._next)
        else:
            name, suffix = base, 0
            while name in self._taken:
                name = f"{base}_{suffix}"
                suffix += 1
        self._taken.add(name)
        return name

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for operation in block.operations:
            yield from self.operation(operation, indent)

    def operation(self, operation: Operation, indent: str) -> Iterator[str]:
        text = operation.text.format(*(self.name(operand) for operand in operation.operands))
        hint = next((result.hint for result in operation.results if result.hint), None)
        where = location_text(operation.location, hint)
        if not isinstance(operation, EveryOperation):
            results = ", ".join(self.name(result) for result in operation.results)
            yield f"{indent}{results} = {text} {where}"
            return
        # Inner values are named first: the outer result then reads as a later version of the same variable.
        then = list(self._region(operation.then, indent, operation.location))
        otherwise = list(self._region(operation.otherwise, indent, operation.location))
        results = ", ".join(self.name(result) for result in operation.results)
        types = ", ".join(result.type for result in operation.results)
        yield f"{indent}{results} = {text} -> {types} {{"
        yield from then
        yield f"{indent}}} else {{"
        yield from otherwise
        yield f"{indent}}} {where}"

    def _region(self, block: Block, indent: str, location: SourceLocation | None) -> Iterator[str]:
        yield from self.block(block, indent + _INDENT)
        values = ", ".join(self.name(value) for value in block.terminator)
        types = ", ".join(value.type for value in block.terminator)
        yield f"{indent}{_INDENT}kaon.yield {values} : {types} {location_text(location)}"


@dataclass(frozen=True)
class FunctionArgument:
    """An argument of the emitted function."""

    value: SsaValue
    role: str
    name: str
    location: SourceLocation | None
    init: float | None = None

    def attributes(self) -> str:
        text = f"kaon.role = #kaon.role<{self.role}>, kaon.name = {string_literal(self.name)}"
        return text if self.init is None else f"{text}, kaon.init = {float_literal(self.init)} : f64"


def function_text(
    symbol: str,
    arguments: Sequence[FunctionArgument],
    body: Block,
    location: SourceLocation | None,
    return_location: SourceLocation | None,
) -> str:
    """The text of one update: ``func.func @symbol(...) -> (...) attributes {kaon.update} {...}``."""
    remove_dead(body, set())
    printer = Printer()
    signature = [
        f"{printer.name(argument.value)}: {argument.value.type} {{{argument.attributes()}}} "
        f"{location_text(argument.location, argument.name)}"
        for argument in arguments
    ]
    types = ", ".join(value.type for value in body.terminator)
    joint = ",\n" + _INDENT * 4
    lines = [f"func.func {symbol_name(symbol)}({joint.join(signature)})"]
    lines.append(f"{_INDENT * 2}-> ({types}) attributes {{kaon.update}} {{")
    lines.extend(printer.block(body, _INDENT))
    values = ", ".join(printer.name(value) for value in body.terminator)
    lines.append(f"{_INDENT}return {values} : {types} {location_text(return_location)}")
    lines.append(f"}} {location_text(location)}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class ParameterEntry:
    """One matrix of a program: its update's symbol, its name, its scalar set and its phase offset."""

    symbol: str
    name: str
    scalar_set: int = 0
    phase: int = 0


def program_text(entries: Iterable[ParameterEntry], updates: Iterable[SpecializedUpdate]) -> str:
    """The text of a module: the updates, each once, and one ``kaon.program`` that lists the matrices in order.

    Raises:
        ValueError: an entry names no update, or two different updates share a symbol.
    """
    functions: dict[str, str] = {}
    for update in updates:
        if functions.setdefault(update.symbol, update.text) != update.text:
            raise ValueError(f"expects one update per symbol, but got two different ones named {update.symbol!r}")
    lines = ["module {"]
    for text in functions.values():
        lines.extend(_INDENT + line for line in text.splitlines())
    lines.append(f"{_INDENT}kaon.program @step {{")
    for entry in entries:
        if entry.symbol not in functions:
            raise ValueError(f"parameter {entry.name!r} expects the update {entry.symbol!r}, but the program lacks it")
        lines.append(
            f"{_INDENT * 2}kaon.parameter {symbol_name(entry.symbol)} {string_literal(entry.name)} "
            f"scalars {entry.scalar_set} phase {entry.phase}"
        )
    lines.append(f"{_INDENT}}}")
    lines.append("}")
    return "\n".join(lines) + "\n"
