"""What an expression of an update evaluates to while it is being compiled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

from kaon.compiler.emit import SsaValue
from kaon.compiler.errors import LanguageError, UpdateNameError


class Value(ABC):
    """Base class of compile-time and symbolic values."""

    @abstractmethod
    def describe(self) -> str:
        """What a message calls the value, with its article."""


@dataclass(frozen=True, eq=False)
class Const(Value):
    """A Python value known while compiling: numbers, strings, tuples, modules, functions."""

    value: Any

    def describe(self) -> str:
        if self.value is None or isinstance(self.value, (bool, int, float, str)):
            return f"the constant {self.value!r}"
        if isinstance(self.value, type):
            return f"the class `{self.value.__name__}`"
        if isinstance(self.value, (FunctionType, BuiltinFunctionType)):
            return f"the function `{self.value.__name__}`"
        return f"a constant of type {type(self.value).__name__}"


@dataclass(frozen=True, eq=False)
class HostScalar(Value):
    """A float64 number evaluated on the host once per step."""

    ssa: SsaValue

    def describe(self) -> str:
        return "a run-time scalar"


UNKNOWN_SIZE = 0
"""The number of rows or columns of a matrix before the update is compiled for a shape."""


@dataclass(frozen=True, eq=False)
class Tensor(Value):
    """A matrix of the update's compute type: MxN, one value per row Mx1, per column 1xN, or a single value 1x1."""

    ssa: SsaValue
    rows: int
    cols: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    def describe(self) -> str:
        return "a matrix" if UNKNOWN_SIZE in self.shape else f"a {self.rows}x{self.cols} matrix"


@dataclass(frozen=True, eq=False)
class Unknown(Value):
    """What only compiling for a shape tells: a constexpr, a size, a name defined later, what depends on them."""

    def describe(self) -> str:
        return "a value that is known only when the update is compiled for a shape"


@dataclass(frozen=True, eq=False)
class Comparison(Value):
    """A comparison with at least one symbolic side; emitted where ``kl.where`` uses it, in the shape needed there."""

    predicate: str
    lhs: Value
    rhs: Value

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.lhs, Tensor) or isinstance(self.rhs, Tensor)

    def describe(self) -> str:
        return "a comparison of matrices" if self.is_tensor else "a comparison of run-time scalars"


@dataclass(frozen=True, eq=False)
class Phase(Value):
    """The condition of ``kl.every``."""

    period: int
    phase: int
    negated: bool = False

    def describe(self) -> str:
        return "the condition `kl.every(...)`"


@dataclass(frozen=True, eq=False)
class TupleValue(Value):
    """A tuple with at least one symbolic item."""

    items: tuple[Value, ...]

    def describe(self) -> str:
        return f"a tuple of {len(self.items)} values"


@dataclass(frozen=True, eq=False)
class Undefined(Value):
    """A name that has no usable value here; reading it is the error that ``message`` describes."""

    message: str
    hint: str | None = None
    kind: type[LanguageError] = UpdateNameError

    def describe(self) -> str:
        return "an undefined value"


def pack(items: list[Value] | tuple[Value, ...]) -> Value:
    """A constant tuple when every item is constant, a :class:`TupleValue` otherwise."""
    constants = [item.value for item in items if isinstance(item, Const)]
    if len(constants) == len(items):
        return Const(tuple(constants))
    return TupleValue(tuple(items))


def is_unknown(value: Value) -> bool:
    """Is anything about ``value`` open until the update is compiled for a shape?"""
    return isinstance(value, Unknown) or (isinstance(value, TupleValue) and any(map(is_unknown, value.items)))


def unpack(value: Value) -> tuple[Value, ...] | None:
    """The items of a tuple value, or None if it is not a tuple."""
    if isinstance(value, TupleValue):
        return value.items
    if isinstance(value, Const) and isinstance(value.value, tuple):
        return tuple(Const(item) for item in value.value)
    return None
