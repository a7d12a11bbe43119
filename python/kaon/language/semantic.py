"""The rules of the language: what each operator and function of :mod:`kaon.language.core` accepts and emits.

Methods of :class:`Semantic` named like a function of ``core`` take that function's parameters as values. Constants are
computed in Python; expressions of run-time scalars become ``f64`` operations of the host; everything else becomes
operations on matrices of the update's compute type.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from kaon.compiler.emit import Block, Builder, SsaValue, float_literal, tensor_type
from kaon.compiler.errors import (
    LanguageError,
    ShapeError,
    StaticAssertionError,
    UnsupportedError,
    UpdateTypeError,
    UpdateValueError,
)
from kaon.compiler.values import Comparison, Const, HostScalar, Phase, Tensor, TupleValue, Value, pack
from kaon.language import coefficients as coefficient_tables
from kaon.language import core
from kaon.language.coefficients import Coefficients

_HOST = "f64"
# Sizes beyond which evaluating a constant expression is refused instead of attempted.
_MAX_INTEGER_BITS = 4096
_MAX_SEQUENCE = 1_000_000
_MAX_UNROLLED = 10_000
# Integer powers of matrices up to this one are written as products.
_MAX_PRODUCT_POWER = 8

_ARITHMETIC = {"+": "arith.addf", "-": "arith.subf", "*": "arith.mulf", "/": "arith.divf", "**": "math.powf"}
_CONSTANT_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
}
_CONSTANT_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
# Ordered predicates are false for NaN as in Python; `!=` is true for it, hence unordered.
_PREDICATES = {"==": "oeq", "!=": "une", "<": "olt", "<=": "ole", ">": "ogt", ">=": "oge"}

# What the in-place methods of torch and NumPy are in the language.
_IN_PLACE = {
    "add_": "x + y",
    "sub_": "x - y",
    "mul_": "x * y",
    "div_": "x / y",
    "copy_": "y",
    "fill": "kl.full_like(x, value)",
    "fill_": "kl.full_like(x, value)",
    "lerp_": "kl.lerp(x, y, weight)",
    "neg_": "-x",
    "sqrt_": "kl.sqrt(x)",
    "zero_": "kl.zeros_like(x)",
}

_NOT_NEGATIVE, _POSITIVE = "a constant of at least 0", "a constant above 0"

AXES = ("row", "column", "all")
MOMENTUM_FORMS = ("lerp", "heavy_ball")
NORMALIZE_FORMS = ("max", "add", "none")
APPLY_MODES = ("decoupled", "after", "cautious")


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real)


def plain_number(value: Any) -> Any:
    """A NumPy number as the Python number of the same value; anything else as it is."""
    return value.item() if type(value).__module__ == "numpy" and is_number(value) else value


def shape_text(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


class Semantic:
    """Type rules and emission for one update.

    Args:
        builder: receives the operations.
        dtype: the compute type, ``"f32"`` or ``"f64"``.
        step: the ``i64`` step argument.
    """

    def __init__(self, builder: Builder, dtype: str, step: SsaValue) -> None:
        self.builder = builder
        self.dtype = dtype
        self._step = step

    # ---- conversions -------------------------------------------------------------------------------------------------

    def host(self, value: Value, what: str, argument: str | None = None) -> SsaValue:
        """``value`` as an ``f64`` on the host."""
        if isinstance(value, HostScalar):
            return value.ssa
        if isinstance(value, Const) and is_number(value.value):
            number = self._float(value.value)
            return self.builder.emit_shared(f"arith.constant {float_literal(number)} : f64", [], _HOST)
        hint = None
        if isinstance(value, Tensor) and value.shape == (1, 1):
            hint = "it must be known before the step starts; multiply a matrix by this value instead"
        raise UpdateTypeError(
            f"{what} expects a constant or a run-time scalar, but got {value.describe()}", hint=hint, argument=argument
        )

    def _float(self, value: Any) -> float:
        try:
            return float(value)
        except OverflowError:
            raise UpdateValueError("this integer constant is too large for a float64") from None

    def tensor(self, value: Value, shape: tuple[int, int], what: str, argument: str | None = None) -> SsaValue:
        """``value`` as a matrix of ``shape``, broadcast or filled as needed."""
        type_ = tensor_type(*shape, self.dtype)
        if isinstance(value, Tensor):
            if value.shape == shape:
                return value.ssa
            return self.builder.emit_shared(f"kaon.broadcast {{}} : {value.ssa.type} to {type_}", [value.ssa], type_)
        if isinstance(value, HostScalar) or (isinstance(value, Const) and is_number(value.value)):
            scalar = self.host(value, what)
            if self.dtype == "f32":
                scalar = self.builder.emit_shared("arith.truncf {} : f64 to f32", [scalar], "f32")
            return self.builder.emit_shared(f"tensor.splat {{}} : {type_}", [scalar], type_)
        raise UpdateTypeError(f"{what} expects matrices and numbers, but got {value.describe()}", argument=argument)

    def _matrix(self, value: Value, what: str, argument: str | None = None) -> Tensor:
        if isinstance(value, Tensor):
            return value
        raise UpdateTypeError(f"{what} expects a matrix, but got {value.describe()}", argument=argument)

    def _emit_tensor(self, text: str, operands: Sequence[SsaValue], shape: tuple[int, int]) -> Tensor:
        """Append an operation whose text ends in the type of its result."""
        type_ = tensor_type(*shape, self.dtype)
        return Tensor(self.builder.emit(f"{text} : {type_}", operands, type_), *shape)

    def _emit_host(self, text: str, operands: Sequence[SsaValue]) -> HostScalar:
        return HostScalar(self.builder.emit(f"{text} : f64", operands, _HOST))

    def broadcast_shape(self, values: Sequence[Value], what: str) -> tuple[int, int]:
        """The common shape of the matrices among ``values``: sizes are equal or 1, as in NumPy."""
        shapes = [value.shape for value in values if isinstance(value, Tensor)]
        result = []
        for sizes in zip(*shapes, strict=True):
            wanted = {size for size in sizes if size != 1}
            if len(wanted) > 1:
                found = " and ".join(shape_text(shape) for shape in shapes)
                transposed = len(shapes) == 2 and shapes[0] == shapes[1][::-1]
                raise ShapeError(
                    f"{what} expects shapes that broadcast (equal, or 1), but got {found}",
                    hint="one of them looks transposed: use `.T`" if transposed else None,
                )
            result.append(wanted.pop() if wanted else 1)
        return result[0], result[1]

    # ---- operators ---------------------------------------------------------------------------------------------------

    def binary(self, symbol: str, a: Value, b: Value) -> Value:
        """``a symbol b``."""
        what = f"`{symbol}`"
        if isinstance(a, Const) and isinstance(b, Const):
            return Const(self._constant_binary(symbol, a.value, b.value))
        for value in (a, b):
            self._refuse_condition(value, what)
        if symbol == "@":
            return self.matmul(a, b)
        if symbol == "//":
            raise UnsupportedError(
                "`//` is for constants only",
                hint="write kl.floor(a / b), which rounds towards minus infinity as Python",
            )
        if symbol == "%":
            raise UnsupportedError(
                "`%` is for constants only",
                hint="write a - b * kl.floor(a / b); for conditions on the step use kl.every(period, phase=...)",
            )
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            shape = self.broadcast_shape([a, b], what)
            if symbol == "**":
                return self._tensor_power(a, b, shape)
            operands = [self.tensor(a, shape, what), self.tensor(b, shape, what)]
            return self._emit_tensor(f"{_ARITHMETIC[symbol]} {{}}, {{}}", operands, shape)
        return self._emit_host(f"{_ARITHMETIC[symbol]} {{}}, {{}}", [self.host(a, what), self.host(b, what)])

    def _constant_binary(self, symbol: str, a: Any, b: Any) -> Any:
        if symbol == "**" and isinstance(a, int) and isinstance(b, int) and a.bit_length() * b > _MAX_INTEGER_BITS:
            raise UpdateValueError(f"this integer power has more than {_MAX_INTEGER_BITS} bits")
        for sequence, count in ((a, b), (b, a)):
            repeated = symbol == "*" and isinstance(sequence, (str, tuple)) and isinstance(count, int)
            if repeated and len(sequence) * count > _MAX_SEQUENCE:
                raise UpdateValueError(f"this repetition has more than {_MAX_SEQUENCE} items")
        result = self.evaluate(lambda: _CONSTANT_OPERATORS[symbol](a, b), f"`{symbol}`")
        if isinstance(result, complex):
            raise UnsupportedError(
                f"a negative constant to a fractional power is complex: ({a!r}) ** {b!r}",
                hint="take the power of the absolute value, or use an integer exponent",
            )
        return result

    def evaluate(self, compute: Callable[[], Any], what: str) -> Any:
        """Run ``compute`` on constants; its exception becomes an error at the current place."""
        try:
            return compute()
        except LanguageError:
            raise
        except ZeroDivisionError:
            raise UpdateValueError(f"{what} on constants divides by zero") from None
        except (ValueError, OverflowError) as error:
            raise UpdateValueError(f"{what} on constants fails: {error}") from None
        except Exception as error:
            raise UpdateTypeError(f"{what} on constants fails: {error}") from None

    def _tensor_power(self, base: Value, exponent: Value, shape: tuple[int, int]) -> Value:
        """Small integer powers are products (exact for negative bases); 0.5 is a square root; others ``math.powf``."""
        what = "`**`"
        x = Tensor(self.tensor(base, shape, what), *shape)
        if isinstance(exponent, Const) and is_number(exponent.value):
            power = self._float(exponent.value)
            result: Value | None = None
            if abs(power) == 0.5:
                result = self.sqrt(x)
            elif power.is_integer() and abs(power) <= _MAX_PRODUCT_POWER:
                result = self._integer_power(x, int(abs(power)))
            if result is not None:
                return result if power >= 0 else self.binary("/", Const(1.0), result)
        return self._emit_tensor("math.powf {}, {}", [x.ssa, self.tensor(exponent, shape, what)], shape)

    def _integer_power(self, x: Tensor, count: int) -> Value:
        if count == 0:
            return self.full_like(x, Const(1.0))
        if count == 1:
            return x
        half = self._integer_power(x, count // 2)
        square = self.binary("*", half, half)
        return self.binary("*", square, x) if count % 2 else square

    def matmul(self, a: Value, b: Value) -> Value:
        left, right = self._matrix(a, "`@`"), self._matrix(b, "`@`")
        if left.cols != right.rows:
            raise ShapeError(
                f"`@` expects as many columns on the left as rows on the right, but got {shape_text(left.shape)} @ "
                f"{shape_text(right.shape)}",
                hint="use `.T` to transpose one of them"
                if left.cols == right.cols or left.rows == right.rows
                else None,
            )
        shape = (left.rows, right.cols)
        type_ = tensor_type(*shape, self.dtype)
        text = f"kaon.matmul {{}}, {{}} : ({left.ssa.type}, {right.ssa.type}) -> {type_}"
        return Tensor(self.builder.emit(text, [left.ssa, right.ssa], type_), *shape)

    def negate(self, x: Value) -> Value:
        if isinstance(x, Const):
            return Const(self.evaluate(lambda: -x.value, "unary `-`"))
        self._refuse_condition(x, "unary `-`")
        if isinstance(x, Tensor):
            return self._emit_tensor("arith.negf {}", [x.ssa], x.shape)
        return self._emit_host("arith.negf {}", [self.host(x, "unary `-`")])

    def positive(self, x: Value) -> Value:
        if isinstance(x, Const):
            return Const(self.evaluate(lambda: +x.value, "unary `+`"))
        self._refuse_condition(x, "unary `+`")
        return x if isinstance(x, Tensor) else HostScalar(self.host(x, "unary `+`"))

    def compare(self, symbol: str, a: Value, b: Value) -> Value:
        """One comparison; symbolic ones can be used in :func:`kaon.language.where` only."""
        if isinstance(a, Const) and isinstance(b, Const):
            compute = _CONSTANT_COMPARISONS[symbol]
            return Const(self.evaluate(lambda: compute(a.value, b.value), f"`{symbol}`"))
        if symbol in ("is", "is not") and (_is_none(a) or _is_none(b)):
            # A symbolic value is never None.
            return Const(symbol == "is not")
        if symbol not in _PREDICATES:
            raise UnsupportedError(f"`{symbol}` is for constants only, but got {_first_symbolic(a, b).describe()}")
        what = f"`{symbol}`"
        for value in (a, b):
            self._refuse_condition(value, what)
            if not (isinstance(value, (Tensor, HostScalar)) or (isinstance(value, Const) and is_number(value.value))):
                raise UpdateTypeError(f"{what} expects matrices and numbers, but got {value.describe()}")
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            self.broadcast_shape([a, b], what)
        return Comparison(_PREDICATES[symbol], a, b)

    def _refuse_condition(self, value: Value, what: str) -> None:
        if isinstance(value, Comparison):
            raise UnsupportedError(
                f"{what} expects numbers or matrices, but got {value.describe()}",
                hint="turn it into numbers with kl.where(condition, 1.0, 0.0)",
            )
        if isinstance(value, Phase):
            raise UnsupportedError(
                f"{what} expects numbers or matrices, but got {value.describe()}",
                hint="use kl.every only as the condition of an `if`",
            )

    def truth(self, value: Value, what: str) -> bool:
        """Python's truth value of a constant; everything else has none while compiling."""
        if isinstance(value, Const):
            return bool(self.evaluate(lambda: bool(value.value), what))
        if isinstance(value, TupleValue):
            return True
        hint = "choose between values with kl.where(condition, a, b); `if` takes constants and kl.every(...)"
        if isinstance(value, Phase):
            hint = "use it alone as the condition of an `if`, after any constants: `if flag and kl.every(3):`"
        raise UnsupportedError(
            f"{what} needs the truth value of {value.describe()}, which is not known while compiling", hint=hint
        )

    # ---- attributes --------------------------------------------------------------------------------------------------

    def attribute(self, x: Tensor, name: str) -> Value:
        """``x.name`` of a matrix."""
        if name == "T":
            return self.transpose(x)
        if name in ("rows", "cols", "shape"):
            return Const(getattr(x, name))
        hint = "a matrix has .T, .rows, .cols and .shape"
        if name in _IN_PLACE or name.endswith("_"):
            hint = f"values never change in place: assign the new one, as in `x = {_IN_PLACE.get(name, '...')}`"
        elif isinstance(getattr(core, name, None), core.Builtin):
            hint = f"write kl.{name}(x)"
        raise UpdateTypeError(f"a matrix has no attribute `{name}`", hint=hint)

    # ---- step and phase ----------------------------------------------------------------------------------------------

    def step(self) -> Value:
        return HostScalar(self.builder.emit_shared("arith.sitofp {} : i64 to f64", [self._step], _HOST))

    def every(self, period: Value, phase: Value) -> Value:
        return Phase(self._integer(period, "kl.every", "period", at_least=1), self._integer(phase, "kl.every", "phase"))

    def emit_every(self, phase: Phase, then: Block, otherwise: Block, types: Sequence[str]) -> list[SsaValue]:
        if phase.negated:
            then, otherwise = otherwise, then
        return self.builder.emit_every(self._step, phase.period, phase.phase % phase.period, then, otherwise, types)

    # ---- elementwise -------------------------------------------------------------------------------------------------

    def _map(
        self, name: str, x: Value, constant: Callable[[float], float], operation: str, domain: str | None = None
    ) -> Value:
        """``domain``: the constants that ``constant`` is defined for, where it isn't defined for all."""
        what = f"`kl.{name}`"
        if isinstance(x, Const):
            if not is_number(x.value):
                raise UpdateTypeError(f"{what} expects a matrix or a number, but got {x.describe()}", argument="x")
            if domain and x.value <= 0 and not (x.value == 0 and domain == _NOT_NEGATIVE):
                raise UpdateValueError(
                    f"{what} expects {domain}, but got {x.describe()}",
                    hint="where the sign depends on a shape or an option, bound it first: max(x, ...)",
                    argument="x",
                )
            return Const(self.evaluate(lambda: constant(x.value), what))
        self._refuse_condition(x, what)
        if isinstance(x, Tensor):
            return self._emit_tensor(f"{operation} {{}}", [x.ssa], x.shape)
        return self._emit_host(f"{operation} {{}}", [self.host(x, what, "x")])

    def sqrt(self, x: Value) -> Value:
        return self._map("sqrt", x, math.sqrt, "math.sqrt", _NOT_NEGATIVE)

    def rsqrt(self, x: Value) -> Value:
        if isinstance(x, HostScalar):
            return self.binary("/", Const(1.0), self.sqrt(x))
        return self._map("rsqrt", x, lambda value: 1.0 / math.sqrt(value), "math.rsqrt", _POSITIVE)

    def abs(self, x: Value) -> Value:
        return self._map("abs", x, abs, "math.absf")

    def exp(self, x: Value) -> Value:
        return self._map("exp", x, math.exp, "math.exp")

    def log(self, x: Value) -> Value:
        return self._map("log", x, math.log, "math.log", _POSITIVE)

    def floor(self, x: Value) -> Value:
        return self._map("floor", x, math.floor, "math.floor")

    def sign(self, x: Value) -> Value:
        if isinstance(x, Const):
            return self._map("sign", x, lambda value: (value > 0) - (value < 0), "")
        self._refuse_condition(x, "`kl.sign`")
        # Zero and NaN are neither above nor below 0 and stay what they are.
        negative = self.where(self.compare("<", x, Const(0.0)), Const(-1.0), x)
        return self.where(self.compare(">", x, Const(0.0)), Const(1.0), negative)

    def minimum(self, a: Value, b: Value) -> Value:
        return self._extremum("kl.minimum", [a, b], min, "arith.minimumf")

    def maximum(self, a: Value, b: Value) -> Value:
        return self._extremum("kl.maximum", [a, b], max, "arith.maximumf")

    def _extremum(self, name: str, values: Sequence[Value], constant: Callable[..., Any], operation: str) -> Value:
        what = f"`{name}`"
        if all(isinstance(value, Const) for value in values):
            return Const(self.evaluate(lambda: constant(*(value.value for value in values)), what))  # type: ignore[attr-defined]
        for value in values:
            self._refuse_condition(value, what)
        result = values[0]
        for value in values[1:]:
            if isinstance(result, Tensor) or isinstance(value, Tensor):
                shape = self.broadcast_shape([result, value], what)
                operands = [self.tensor(result, shape, what), self.tensor(value, shape, what)]
                result = self._emit_tensor(f"{operation} {{}}, {{}}", operands, shape)
            else:
                result = self._emit_host(f"{operation} {{}}, {{}}", [self.host(result, what), self.host(value, what)])
        return result

    def python_extremum(self, name: str, values: Sequence[Value]) -> Value:
        """The builtins ``min`` and ``max``: constants as in Python, run-time scalars on the host, no matrices."""
        if any(isinstance(value, Tensor) for value in values):
            raise UnsupportedError(
                f"`{name}` needs the truth value of a comparison of matrices",
                hint=f"use kl.{name}imum for the elementwise {name}imum, kl.{name} for the {name}imum of a matrix",
            )
        return self._extremum(name, values, {"min": min, "max": max}[name], f"arith.{name}imumf")

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        what = "`kl.where`"
        if isinstance(condition, Const):
            return a if self.truth(condition, what) else b
        if isinstance(condition, Phase):
            raise UnsupportedError(
                "`kl.where` expects a comparison, but got the condition `kl.every(...)`",
                hint="use `if kl.every(...):` with the values assigned in both branches",
                argument="condition",
            )
        if not isinstance(condition, Comparison):
            raise UpdateTypeError(
                f"{what} expects a comparison as its condition, but got {condition.describe()}",
                hint="write for example kl.where(x > 0, a, b)",
                argument="condition",
            )
        for name, value in (("a", a), ("b", b)):
            self._refuse_condition(value, what)
            if not isinstance(value, (Tensor, HostScalar)) and not (
                isinstance(value, Const) and is_number(value.value)
            ):
                raise UpdateTypeError(f"{what} expects matrices and numbers, but got {value.describe()}", argument=name)
        if not any(isinstance(value, Tensor) for value in (condition.lhs, condition.rhs, a, b)):
            flag = self._host_flag(condition)
            return self._emit_host("arith.select {}, {}, {}", [flag, self.host(a, what), self.host(b, what)])
        if not condition.is_tensor:
            # Compared on the host in float64; only the outcome enters the matrices.
            chosen = self._emit_host(
                "arith.select {}, {}, {}",
                [self._host_flag(condition), self.host(Const(1.0), what), self.host(Const(0.0), what)],
            )
            condition = Comparison("ogt", chosen, Const(0.5))
        shape = self.broadcast_shape([condition.lhs, condition.rhs, a, b], what)
        sides = [self.tensor(condition.lhs, shape, what), self.tensor(condition.rhs, shape, what)]
        mask = self.builder.emit(
            f"arith.cmpf {condition.predicate}, {{}}, {{}} : {tensor_type(*shape, self.dtype)}",
            sides,
            tensor_type(*shape, "i1"),
        )
        operands = [mask, self.tensor(a, shape, what), self.tensor(b, shape, what)]
        type_ = tensor_type(*shape, self.dtype)
        text = f"arith.select {{}}, {{}}, {{}} : {mask.type}, {type_}"
        return Tensor(self.builder.emit(text, operands, type_), *shape)

    def _host_flag(self, condition: Comparison) -> SsaValue:
        sides = [self.host(condition.lhs, "a comparison"), self.host(condition.rhs, "a comparison")]
        return self.builder.emit(f"arith.cmpf {condition.predicate}, {{}}, {{}} : f64", sides, "i1")

    def lerp(self, a: Value, b: Value, weight: Value) -> Value:
        for name, value in (("a", a), ("b", b), ("weight", weight)):
            if isinstance(value, Const) and not is_number(value.value):
                raise UpdateTypeError(
                    f"`kl.lerp` expects matrices and numbers, but got {value.describe()}", argument=name
                )
        kept = self.binary("*", self.binary("-", Const(1), weight), a)
        return self.binary("+", kept, self.binary("*", weight, b))

    # ---- reductions --------------------------------------------------------------------------------------------------

    def _reduced_shape(self, x: Tensor, along: str) -> tuple[int, int]:
        return {"row": (x.rows, 1), "column": (1, x.cols), "all": (1, 1)}[along]

    def _reduce(self, name: str, kind: str, x: Value, along: Value) -> Tensor:
        matrix = self._matrix(x, f"`kl.{name}`", "x")
        axis = self._choice(along, f"kl.{name}", "along", AXES)
        shape = self._reduced_shape(matrix, axis)
        type_ = tensor_type(*shape, self.dtype)
        operation = "kaon.norm" if kind == "norm" else f"kaon.reduce {kind}"
        text = f"{operation} {{}} along {axis} : {matrix.ssa.type} -> {type_}"
        return Tensor(self.builder.emit(text, [matrix.ssa], type_), *shape)

    def sum(self, x: Value, along: Value) -> Value:
        return self._reduce("sum", "sum", x, along)

    def mean(self, x: Value, along: Value) -> Value:
        total = self._reduce("mean", "sum", x, along)
        assert isinstance(x, Tensor)
        count = x.rows * x.cols // (total.rows * total.cols)
        return self.binary("/", total, Const(float(count)))

    def max(self, x: Value, along: Value) -> Value:
        return self._reduce_extremum("max", x, along)

    def min(self, x: Value, along: Value) -> Value:
        return self._reduce_extremum("min", x, along)

    def _reduce_extremum(self, name: str, x: Value, along: Value) -> Value:
        if not (isinstance(along, Const) and isinstance(along.value, str)):
            raise UpdateTypeError(
                f"`kl.{name}` reduces one matrix, but got a second value",
                hint=f"use kl.{name}imum(a, b) for the elementwise {name}imum",
                argument="along",
            )
        return self._reduce(name, name, x, along)

    def norm(self, x: Value, along: Value) -> Value:
        return self._reduce("norm", "norm", x, along)

    def dot(self, a: Value, b: Value, along: Value) -> Value:
        left, right = self._matrix(a, "`kl.dot`", "a"), self._matrix(b, "`kl.dot`", "b")
        if left.shape != right.shape:
            raise ShapeError(
                f"`kl.dot` expects two matrices of one shape, but got {shape_text(left.shape)} and "
                f"{shape_text(right.shape)}"
            )
        return self._reduce("dot", "sum", self.binary("*", left, right), along)

    # ---- matrices ----------------------------------------------------------------------------------------------------

    def transpose(self, x: Value) -> Value:
        matrix = self._matrix(x, "`kl.transpose`", "x")
        shape = (matrix.cols, matrix.rows)
        type_ = tensor_type(*shape, self.dtype)
        text = f"kaon.transpose {{}} : {matrix.ssa.type} -> {type_}"
        return Tensor(self.builder.emit(text, [matrix.ssa], type_), *shape)

    def zeros_like(self, x: Value) -> Value:
        matrix = self._matrix(x, "`kl.zeros_like`", "x")
        return Tensor(self.tensor(Const(0.0), matrix.shape, ""), *matrix.shape)

    def full_like(self, x: Value, value: Value) -> Value:
        matrix = self._matrix(x, "`kl.full_like`", "x")
        if isinstance(value, Tensor) and value.shape != (1, 1):
            raise ShapeError(f"`kl.full_like` expects a single value, but got {value.describe()}", argument="value")
        return Tensor(self.tensor(value, matrix.shape, "`kl.full_like`", "value"), *matrix.shape)

    def normalize(self, x: Value, along: Value, epsilon: Value, form: Value, norm_scale: Value) -> Value:
        axis = self._choice(along, "kl.normalize", "along", AXES)
        return self._normalize("kl.normalize", x, axis, epsilon, form, norm_scale)

    def row_normalize(self, x: Value, epsilon: Value, form: Value, norm_scale: Value) -> Value:
        return self._normalize("kl.row_normalize", x, "row", epsilon, form, norm_scale)

    def column_normalize(self, x: Value, epsilon: Value, form: Value, norm_scale: Value) -> Value:
        return self._normalize("kl.column_normalize", x, "column", epsilon, form, norm_scale)

    def _normalize(self, name: str, x: Value, axis: str, epsilon: Value, form: Value, norm_scale: Value) -> Value:
        matrix = self._matrix(x, f"`{name}`", "x")
        kind = self._choice(form, name, "form", ("max", "add"))
        floor = self._number(epsilon, name, "epsilon", at_least=0.0)
        scale = self._number(norm_scale, name, "norm_scale", above=0.0)
        text = f"kaon.normalize {{}} along {axis} {kind} epsilon {float_literal(floor)} scale {float_literal(scale)}"
        return self._emit_tensor(text, [matrix.ssa], matrix.shape)

    def newton_schulz(
        self, x: Value, steps: Value, coefficients: Value, epsilon: Value, normalize: Value, norm_scale: Value
    ) -> Value:
        name = "kl.newton_schulz"
        matrix = self._matrix(x, f"`{name}`", "x")
        count = None if _is_none(steps) else self._integer(steps, name, "steps", at_least=1, at_most=_MAX_UNROLLED)
        rows = self._coefficient_rows(coefficients, count)
        form = self._choice(normalize, name, "normalize", NORMALIZE_FORMS)
        floor = self._number(epsilon, name, "epsilon", at_least=0.0)
        scale = self._number(norm_scale, name, "norm_scale", above=0.0)
        flat = ", ".join(float_literal(number) for row in rows for number in row)
        text = (
            f"kaon.newton_schulz {{}} coefficients [{flat}] normalize {form} epsilon {float_literal(floor)} "
            f"scale {float_literal(scale)}"
        )
        return self._emit_tensor(text, [matrix.ssa], matrix.shape)

    def _coefficient_rows(self, value: Value, steps: int | None) -> tuple[tuple[float, float, float], ...]:
        if not isinstance(value, Const):
            self._refuse_argument("kl.newton_schulz", "coefficients", "a constant table", value)
        table = value.value
        argument = "coefficients"
        if isinstance(table, str):
            if table not in coefficient_tables.names():
                raise UpdateValueError(
                    f"`kl.newton_schulz` expects coefficients named one of {', '.join(coefficient_tables.names())}, "
                    f"but got {table!r}",
                    argument=argument,
                )
            table = coefficient_tables.named(table)
        elif isinstance(table, tuple):
            if len(table) == 3 and all(is_number(item) for item in table):
                table = Coefficients("the coefficients", (_row(table),))
            elif table and all(
                isinstance(row, tuple) and len(row) == 3 and all(is_number(item) for item in row) for row in table
            ):
                if steps is not None and steps > len(table):
                    raise UpdateValueError(
                        f"`kl.newton_schulz` expects one (a, b, c) per step, but got {len(table)} for {steps} steps",
                        argument=argument,
                    )
                table = Coefficients("the coefficients", tuple(_row(row) for row in table), default_steps=len(table))
        if not isinstance(table, Coefficients):
            raise UpdateTypeError(
                "`kl.newton_schulz` expects coefficients to be a table of kl.coefficients, its name, or tuples "
                f"(a, b, c), but got {value.describe()}",
                argument=argument,
            )
        try:
            rows = table.table(steps)
        except ValueError as error:
            raise UpdateValueError(f"`kl.newton_schulz`: {error}", argument=argument) from None
        if not all(math.isfinite(number) for row in rows for number in row):
            raise UpdateValueError("`kl.newton_schulz` expects finite coefficients", argument=argument)
        return rows

    def momentum(self, g: Value, m: Value, mu: Value, form: Value, nesterov: Value) -> Value:
        name = "kl.momentum"
        gradient, state = self._matrix(g, f"`{name}`", "g"), self._matrix(m, f"`{name}`", "m")
        if gradient.shape != state.shape:
            raise ShapeError(
                f"`{name}` expects g and m of one shape, but got {shape_text(gradient.shape)} and "
                f"{shape_text(state.shape)}",
                argument="m",
            )
        kind = self._choice(form, name, "form", MOMENTUM_FORMS)
        if not isinstance(nesterov, Const):
            self._refuse_argument(name, "nesterov", "a constant", nesterov)
        suffix = " nesterov" if self.truth(nesterov, f"`{name}`") else ""
        type_ = gradient.ssa.type
        operands = [gradient.ssa, state.ssa, self.host(mu, f"`{name}`", "mu")]
        results = self.builder.append(
            f"kaon.momentum {kind} {{}}, {{}}, {{}}{suffix} : {type_}", operands, [type_, type_]
        )
        return pack([Tensor(result, *gradient.shape) for result in results])

    def apply(self, w: Value, u: Value, lr: Value, step_size: Value, weight_decay: Value, mode: Value) -> Value:
        name = "kl.apply"
        parameter, update = self._matrix(w, f"`{name}`", "w"), self._matrix(u, f"`{name}`", "u")
        if parameter.shape != update.shape:
            raise ShapeError(
                f"`{name}` expects w and u of one shape, but got {shape_text(parameter.shape)} and "
                f"{shape_text(update.shape)}",
                argument="u",
            )
        kind = self._choice(mode, name, "mode", APPLY_MODES)
        for argument, value in (("lr", lr), ("weight_decay", weight_decay)):
            self.host(value, f"`{name}`", argument)
        size = self.host(lr if _is_none(step_size) else step_size, f"`{name}`", "step_size")
        decay = self.host(self.binary("*", lr, weight_decay), f"`{name}`", "weight_decay")
        text = f"kaon.apply {kind} {{}}, {{}} step_size {{}} decay {{}}"
        return self._emit_tensor(text, [parameter.ssa, update.ssa, size, decay], parameter.shape)

    # ---- while compiling ---------------------------------------------------------------------------------------------

    def static_range(self, start: Value, stop: Value, step: Value) -> Value:
        name = "kl.static_range"
        bounds = [self._integer(start, name, "start")]
        if not _is_none(stop):
            bounds.append(self._integer(stop, name, "stop"))
            bounds.append(self._integer(step, name, "step"))
        return Const(self.evaluate(lambda: range(*bounds), f"`{name}`"))

    def static_assert(self, condition: Value, message: Value) -> Value:
        if not isinstance(condition, Const):
            raise UnsupportedError(
                f"`kl.static_assert` expects a constant condition, but got {condition.describe()}",
                hint="values of matrices and run-time scalars are not known while compiling",
                argument="condition",
            )
        if not self.truth(condition, "`kl.static_assert`"):
            text = message.value if isinstance(message, Const) else message.describe()
            raise StaticAssertionError(f"static assertion failed: {text}" if text else "static assertion failed")
        return Const(None)

    def static_print(self, values: Sequence[Value]) -> Value:
        print(*(self.format(value) for value in values), flush=True)
        return Const(None)

    def format(self, value: Value) -> str:
        """How a value reads in messages: constants as Python prints them, symbolic values by their description."""
        return str(value.value) if isinstance(value, Const) else f"<{value.describe()}>"

    # ---- constant arguments ------------------------------------------------------------------------------------------

    def _refuse_argument(self, name: str, argument: str, wish: str, found: Value) -> NoReturn:
        hint = None
        if isinstance(found, HostScalar):
            hint = f"annotate the hyperparameter with kl.constexpr to use it as {argument}"
        raise UpdateTypeError(
            f"`{name}` expects {argument} to be {wish}, but got {found.describe()}", hint=hint, argument=argument
        )

    def _integer(
        self, value: Value, name: str, argument: str, at_least: int | None = None, at_most: int | None = None
    ) -> int:
        if not isinstance(value, Const) or isinstance(value.value, bool):
            self._refuse_argument(name, argument, "a constant integer", value)
        if not isinstance(value.value, numbers.Integral):
            self._refuse_argument(name, argument, "a constant integer", value)
        number = int(value.value)
        if at_least is not None and number < at_least:
            raise UpdateValueError(f"`{name}` expects {argument} >= {at_least}, but got {number}", argument=argument)
        if at_most is not None and number > at_most:
            raise UpdateValueError(f"`{name}` expects {argument} <= {at_most}, but got {number}", argument=argument)
        return number

    def _number(
        self, value: Value, name: str, argument: str, at_least: float | None = None, above: float | None = None
    ) -> float:
        if not isinstance(value, Const) or not is_number(value.value):
            self._refuse_argument(name, argument, "a constant number", value)
        number = self._float(value.value)
        if not math.isfinite(number):
            raise UpdateValueError(f"`{name}` expects a finite {argument}, but got {number}", argument=argument)
        if at_least is not None and number < at_least:
            raise UpdateValueError(f"`{name}` expects {argument} >= {at_least}, but got {number}", argument=argument)
        if above is not None and number <= above:
            raise UpdateValueError(f"`{name}` expects {argument} > {above}, but got {number}", argument=argument)
        return number

    def _choice(self, value: Value, name: str, argument: str, choices: tuple[str, ...]) -> str:
        if isinstance(value, Const) and isinstance(value.value, str) and value.value in choices:
            return value.value
        wish = " or ".join(repr(choice) for choice in choices)
        found = value.describe()
        hint = "numbers of axes are ambiguous here: name what gets one value" if argument == "along" else None
        raise UpdateValueError(
            f"`{name}` expects {argument} to be {wish}, but got {found}",
            hint=hint if isinstance(value, Const) and is_number(value.value) else None,
            argument=argument,
        )


def _row(row: tuple[Any, ...]) -> tuple[float, float, float]:
    return float(row[0]), float(row[1]), float(row[2])


def _is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


def _first_symbolic(*values: Value) -> Value:
    return next(value for value in values if not isinstance(value, Const))
