"""The reference interpreter: what an update means, in NumPy.

It runs any tensor-level stage of a module - as the front end emitted it, expanded, split by phase, oriented, folded,
bucketed, fused, outlined - and is the definition of correct for every pass and every code generator::

    interpreter = Interpreter(module.to_python())
    new_param, new_momentum = interpreter.call("muon_4x6_f32", param, grad, momentum, lr, step)

Two precisions:

* ``"float64"`` (default), the oracle: every tensor is float64 whatever its element type says, and conversions between
  element types change nothing. Two stages of one module agree to about 1e-12.
* ``"native"``: computed in float64 and rounded to the element type of each result, operation by operation. For f32
  that is the correctly rounded f32 result of + - * / and sqrt; sums and products are rounded once, at their end.

Norms divide by the largest magnitude first, so they neither overflow nor vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Precision: TypeAlias = Literal["float64", "native"]
Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = Any
"""A tensor is a rank-2 array, f64 is numpy.float64, i64 and index are int, i1 is bool."""


class BlockLike(Protocol):
    """A block of ``_C.Module.to_python()``."""

    @property
    def arguments(self) -> Sequence[int]: ...
    @property
    def argument_types(self) -> Sequence[tuple[Any, ...]]: ...
    @property
    def operations(self) -> Sequence[OperationLike]: ...


class RegionLike(Protocol):
    """A region of ``_C.Module.to_python()``."""

    @property
    def blocks(self) -> Sequence[BlockLike]: ...


class OperationLike(Protocol):
    """An operation of ``_C.Module.to_python()``."""

    @property
    def name(self) -> str: ...
    @property
    def operands(self) -> Sequence[int]: ...
    @property
    def results(self) -> Sequence[int]: ...
    @property
    def result_types(self) -> Sequence[tuple[Any, ...]]: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    @property
    def regions(self) -> Sequence[RegionLike]: ...
    @property
    def location(self) -> str: ...


class InterpreterError(RuntimeError):
    """An operation that has no meaning here, or whose values contradict its types."""


@dataclass(frozen=True)
class Argument:
    """One argument of an update function."""

    role: str
    """``param``, ``grad``, ``state``, ``scalar`` or ``step``."""
    name: str
    type: tuple[Any, ...]
    init: float = 0.0
    """First value of a state."""


@dataclass(frozen=True)
class Parameter:
    """One ``kaon.parameter`` of the program: a matrix of the model and the functions that update it."""

    symbols: tuple[str, ...]
    """One function, or one per residue of ``step - phase`` modulo the period."""
    name: str
    scalar_set: int
    phase: int


@dataclass(frozen=True)
class Packed:
    """A matrix operand in the packed layout of the register tile. Which matrix it is says all there is to know here."""

    operand: Array
    """The operand as the product uses it: M x K on the left, K x N on the right."""


def round_to(value: Array, element: str) -> Array:
    """``value`` rounded to the element type ``element``, to nearest even, as float64."""
    if element == "f64":
        return value
    if element == "f32":
        return value.astype(np.float32).astype(np.float64)
    if element == "f16":
        return value.astype(np.float16).astype(np.float64)
    if element == "bf16":
        return widen_bf16(narrow_to_bf16(value))
    raise InterpreterError(f"expects element type f64, f32, bf16 or f16, but got {element}")


def narrow_to_bf16(value: Array) -> npt.NDArray[np.uint16]:
    """The bits of ``value`` rounded to bf16, to nearest even."""
    bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(value), quiet_nan, rounded).astype(np.uint16)


def widen_bf16(bits: npt.NDArray[np.uint16]) -> Array:
    """float64 values of bf16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


_AXES: dict[str, int | None] = {"row": 1, "column": 0, "all": None}
"""The NumPy axis along which a value per row, per column, or a single one is computed."""


def norm(x: Array, along: str) -> Array:
    """Euclidean norm of each row (M x 1), each column (1 x N) or all of ``x`` (1 x 1)."""
    length, largest = _scaled_norm(x, along)
    return length * largest


def _scaled_norm(x: Array, along: str) -> tuple[Array, Array]:
    """Norms as ``(length, largest)`` with norm = length * largest, neither of which overflows or vanishes."""
    axis = _AXES[along]
    largest = np.abs(x).max(axis=axis, keepdims=True, initial=0.0)
    scaled = x / np.where(largest > 0, largest, 1.0)
    return np.sqrt(np.square(scaled).sum(axis=axis, keepdims=True)), largest


def normalize(x: Array, along: str, mode: str, epsilon: float, scale: float) -> Array:
    """``x / max(scale * |x|, epsilon)``, or with ``add`` ``x / (scale * |x| + epsilon)``; zero stays zero.

    Numerator and denominator are both divided by the largest magnitude.
    """
    if mode == "none":
        return x
    length, largest = _scaled_norm(x, along)
    positive = np.where(largest > 0, largest, 1.0)
    floor = epsilon / positive
    if mode == "max":
        divisor = np.maximum(scale * length, floor)
    elif mode == "add":
        divisor = scale * length + floor
    else:
        raise InterpreterError(f"expects normalization max, add or none, but got {mode}")
    return np.where(largest > 0, x / positive / np.where(largest > 0, divisor, 1.0), 0.0)


def newton_schulz(
    x: Array, coefficients: Sequence[float], mode: str = "none", epsilon: float = 0.0, scale: float = 1.0
) -> Array:
    """``X <- a X + (b X X^T + c (X X^T)^2) X`` for each ``(a, b, c)`` in the flat list, after normalization over all.

    A tall matrix is iterated as its transpose, which is the same polynomial with smaller products.
    """
    x = normalize(x, "all", mode, epsilon, scale)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for a, b, c in zip(coefficients[0::3], coefficients[1::3], coefficients[2::3], strict=True):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x


def momentum(g: Array, m: Array, mu: float, form: str, nesterov: bool) -> tuple[Array, Array]:
    """The direction and the new buffer. ``lerp``: m1 = mu m + (1 - mu) g; ``heavy_ball``: m1 = mu m + g."""
    if form not in ("lerp", "heavy_ball"):
        raise InterpreterError(f"expects momentum lerp or heavy_ball, but got {form}")
    weight = 1.0 - mu if form == "lerp" else 1.0
    buffer = mu * m + weight * g
    return (weight * g + mu * buffer if nesterov else buffer), buffer


def apply(w: Array, u: Array, form: str, step_size: float, decay: float) -> Array:
    """The new parameter. ``decoupled``: (1 - d) w - s u; ``after``: decay what the step left; ``cautious``: decay only
    where ``u`` and ``w`` agree in sign."""
    if form == "decoupled":
        return (1.0 - decay) * w - step_size * u
    if form == "after":
        moved = w - step_size * u
        return moved - decay * moved
    if form == "cautious":
        return w - step_size * u - np.where(u * w >= 0, decay * w, 0.0)
    raise InterpreterError(f"expects decay decoupled, after or cautious, but got {form}")


_FLOAT_PREDICATES = (
    *("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
    *("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true"),
)
"""``arith.cmpf`` predicates by their number in the IR."""


def _compare_floats(predicate: str, a: Array, b: Array) -> Array:
    unordered = np.isnan(a) | np.isnan(b)
    if predicate in ("true", "false"):
        return np.full(np.shape(a), predicate == "true")
    if predicate in ("ord", "uno"):
        return unordered if predicate == "uno" else ~unordered
    relation = {
        "eq": np.equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "lt": np.less,
        "le": np.less_equal,
        "ne": np.not_equal,
    }[predicate[1:]](a, b)
    return relation | unordered if predicate[0] == "u" else relation & ~unordered


_REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}

_INTEGER_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
)
"""Signed ``arith.cmpi`` predicates by their number in the IR."""

_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.extf": lambda x: x,
    "arith.truncf": lambda x: x,
    "arith.select": np.where,
    "arith.sitofp": np.float64,
    "arith.uitofp": np.float64,
    "arith.fptosi": int,
    "arith.index_cast": int,
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.remsi": lambda a, b: int(np.fmod(a, b)),
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: 1.0 / np.sqrt(x),
    "math.absf": np.abs,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.powf": np.power,
    "math.fma": lambda a, b, c: a * b + c,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.copysign": np.copysign,
    "math.tanh": np.tanh,
    "math.sin": np.sin,
    "math.cos": np.cos,
}

Handler: TypeAlias = "Callable[[_Frame, OperationLike, list[Value]], Sequence[Value]]"
_HANDLERS: dict[str, Handler] = {}


def _handles(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            _HANDLERS[name] = handler
        return handler

    return register


class _Frame:
    """The values of one function or kernel call."""

    def __init__(self, interpreter: Interpreter, dims: tuple[int, int] | None, phase: int):
        self.interpreter = interpreter
        self.dims = dims
        """In a shape-erased kernel: what ``?`` means as number of rows and as number of columns."""
        self.phase = phase
        """The matrix's own phase offset, which ``kaon.every`` adds to its phase."""
        self.values: dict[int, Value] = {}

    def shape(self, tensor_type: tuple[Any, ...], op: OperationLike) -> tuple[int, int]:
        sizes = tuple(tensor_type[1])
        if all(size is not None and size >= 0 for size in sizes):
            return sizes[0], sizes[1]
        if self.dims is None:
            raise InterpreterError(f"{op.name} at {op.location} has a dynamic shape outside a kernel")
        rows, columns = (dim if size is None or size < 0 else size for size, dim in zip(sizes, self.dims, strict=True))
        return rows, columns

    def run(self, block: BlockLike, arguments: Sequence[Value]) -> list[Value]:
        """Run ``block`` and return the operands of its terminator."""
        if len(arguments) != len(block.arguments):
            raise InterpreterError(f"a block expects {len(block.arguments)} arguments, but got {len(arguments)}")
        self.values.update(zip(block.arguments, arguments, strict=True))
        for op in block.operations:
            operands = [self.values[operand] for operand in op.operands]
            if op.name in ("func.return", "kaon.yield"):
                return operands
            self.values.update(zip(op.results, self.evaluate(op, operands), strict=True))
        raise InterpreterError("a block ends without a terminator")

    def evaluate(self, op: OperationLike, operands: list[Value]) -> list[Value]:
        """The results of ``op``, checked against their types and rounded to them in native precision."""
        function = _ELEMENTWISE.get(op.name)
        handler = _HANDLERS.get(op.name)
        if function is not None:
            results: Sequence[Value] = (function(*operands),)
        elif handler is not None:
            results = handler(self, op, operands)
        else:
            raise InterpreterError(f"the interpreter has no meaning for {op.name} at {op.location}")
        if len(results) != len(op.result_types):
            raise InterpreterError(f"{op.name} at {op.location} expects {len(op.result_types)} results")
        return [self._conform(value, wanted, op) for value, wanted in zip(results, op.result_types, strict=True)]

    def _conform(self, value: Value, wanted: tuple[Any, ...], op: OperationLike) -> Value:
        native = self.interpreter.precision == "native"
        kind = wanted[0]
        if kind == "tensor" and isinstance(value, Packed):
            return Packed(round_to(value.operand, wanted[2])) if native else value
        if kind == "tensor":
            value = np.asarray(value)
            shape = self.shape(wanted, op)
            if value.shape != shape:
                raise InterpreterError(
                    f"{op.name} at {op.location} expects a result of shape {shape}, but got {value.shape}"
                )
            if wanted[2] == "i1":
                return value
            if self.interpreter.noise:
                value = value * (1.0 + self.interpreter.noise * self.interpreter.random.uniform(-1, 1, shape))
            return round_to(value, wanted[2]) if native else value
        if kind in ("f64", "f32", "bf16", "f16"):
            return np.float64(round_to(np.asarray(value, np.float64), kind)[()]) if native else np.float64(value)
        return bool(value) if kind == "i1" else int(value)


@_handles("arith.constant")
def _constant(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    value = op.attributes["value"]
    (wanted,) = op.result_types
    if wanted[0] == "tensor":
        dtype = bool if wanted[2] == "i1" else np.float64
        return (np.broadcast_to(np.asarray(value, dtype=dtype), frame.shape(wanted, op)),)
    return (value,)


@_handles("arith.cmpf")
def _cmpf(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (_compare_floats(_FLOAT_PREDICATES[op.attributes["predicate"]], *operands),)


@_handles("arith.cmpi")
def _cmpi(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (_INTEGER_COMPARISONS[op.attributes["predicate"]](*operands),)


@_handles("tensor.splat")
def _splat(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (np.full(frame.shape(op.result_types[0], op), operands[0]),)


@_handles("tensor.dim")
def _dim(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    tensor, index = operands
    return (tensor.shape[index],)


@_handles("tensor.extract")
def _extract(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    tensor, row, column = operands
    return (tensor[row, column],)


@_handles("kaon.momentum")
def _momentum(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    g, m, mu = operands
    return momentum(g, m, mu, op.attributes["form"], bool(op.attributes.get("nesterov", False)))


@_handles("kaon.newton_schulz")
def _newton_schulz(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    attributes = op.attributes
    return (
        newton_schulz(
            operands[0],
            list(attributes["coefficients"]),
            attributes["mode"],
            float(attributes["epsilon"]),
            float(attributes["scale"]),
        ),
    )


@_handles("kaon.normalize")
def _normalize(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    attributes = op.attributes
    return (
        normalize(
            operands[0],
            attributes["along"],
            attributes["mode"],
            float(attributes["epsilon"]),
            float(attributes["scale"]),
        ),
    )


@_handles("kaon.norm")
def _norm(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (norm(operands[0], op.attributes["along"]),)


@_handles("kaon.reduce")
def _reduce(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (_REDUCTIONS[op.attributes["kind"]](operands[0], axis=_AXES[op.attributes["along"]], keepdims=True),)


@_handles("kaon.broadcast")
def _broadcast(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (np.broadcast_to(operands[0], frame.shape(op.result_types[0], op)),)


@_handles("kaon.materialize")
def _materialize(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (operands[0],)


@_handles("kaon.transpose")
def _transpose(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (operands[0].T,)


@_handles("kaon.pack")
def _pack(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return (Packed(operands[0].T if op.attributes.get("transpose", False) else operands[0]),)


@_handles("kaon.matmul")
def _matmul(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    a, b = (value.operand if isinstance(value, Packed) else value for value in operands[:2])
    if op.attributes.get("transpose_a", False):
        a = a.T
    if op.attributes.get("transpose_b", False):
        b = b.T
    rest = iter(operands[2:])
    has_alpha, has_beta, _, has_factor = op.attributes["operandSegmentSizes"][2:6]
    product = a @ b
    if has_alpha:
        product = next(rest) * product
    if has_beta:
        beta, addend = next(rest), next(rest)
        product = product + beta * addend
    if has_factor:
        product = next(rest) * product
    if op.attributes.get("symmetric", False):
        # Take the promise at its word, as the kernels do: a wrong one must show.
        lower = np.tril(product)
        product = lower + np.tril(product, -1).T
    epilogue = op.attributes.get("epilogue")
    if epilogue is None:
        return (product,)
    if frame.interpreter.precision == "native":
        product = round_to(product, "f32")  # the epilogue gets the accumulator, not the 16-bit result
    kernel = frame.interpreter.function(epilogue)
    return frame.interpreter.call_operation(kernel, [product, *rest], (product.shape[0], product.shape[1]))


@_handles("kaon.apply")
def _apply(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    w, u, step_size, decay = operands
    return (apply(w, u, op.attributes["form"], step_size, decay),)


@_handles("kaon.every")
def _every(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    taken = (operands[0] - op.attributes["phase"] - frame.phase) % op.attributes["period"] == 0
    return frame.run(op.regions[0 if taken else 1].blocks[0], [])


@_handles("kaon.kernel")
def _kernel(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    return _Frame(frame.interpreter, None, frame.phase).run(op.regions[0].blocks[0], operands)


@_handles("kaon.launch")
def _launch(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    shapes = [value.shape for value in operands if isinstance(value, np.ndarray)]
    shapes += [frame.shape(result, op) for result in op.result_types]
    dims = max(rows for rows, _ in shapes), max(columns for _, columns in shapes)
    return frame.interpreter.call_operation(frame.interpreter.function(op.attributes["kernel"]), operands, dims)


@_handles("func.call")
def _call(frame: _Frame, op: OperationLike, operands: list[Value]) -> Sequence[Value]:
    callee = frame.interpreter.function(op.attributes["callee"])
    return frame.interpreter.call_operation(callee, operands, phase=frame.phase)


class Interpreter:
    """Runs the functions of a module.

    Args:
        module: the ``builtin.module`` operation as ``_C.Module.to_python()`` gives it.
        precision: see the module's documentation.
        noise: relative size of a random error put on every element of every tensor result. How far it moves the
            results of a program says how strongly that program amplifies rounding.
        seed: of the random errors.
    """

    def __init__(self, module: OperationLike, precision: Precision = "float64", *, noise: float = 0.0, seed: int = 0):
        self.precision = precision
        self.noise = noise
        self.random = np.random.default_rng(seed)
        self._functions: dict[str, OperationLike] = {}
        self._program: OperationLike | None = None
        for op in _operations(module):
            if op.name == "func.func":
                self._functions[op.attributes["sym_name"]] = op
            elif op.name == "kaon.program":
                self._program = op

    def function(self, symbol: str) -> OperationLike:
        """The function called ``symbol``; raises :class:`InterpreterError` when there is none."""
        found = self._functions.get(symbol.removeprefix("@"))
        if found is None:
            known = ", ".join(self._functions) or "no function"
            raise InterpreterError(f"the module has no function {symbol!r}; it has {known}")
        return found

    def arguments(self, symbol: str) -> list[Argument]:
        """The arguments of an update function, with their roles."""
        op = self.function(symbol)
        described = op.attributes.get("arg_attrs") or []
        return [
            Argument(
                str(attributes.get("kaon.role", "")),
                str(attributes.get("kaon.name", "")),
                tuple(argument_type),
                float(attributes.get("kaon.init", 0.0)),
            )
            for attributes, argument_type in zip(described, op.regions[0].blocks[0].argument_types, strict=True)
        ]

    def call(self, symbol: str, *arguments: Any, phase: int = 0) -> list[Value]:
        """Call a function with arrays for tensors, floats for f64 and ints for i64. Arguments are not changed.

        Args:
            phase: the phase offset of the matrix that is updated; of no effect once phases are split.

        Returns:
            The function's results: for an update the new parameter and the new states.

        Raises:
            InterpreterError: an argument does not fit its type, or an operation has no meaning here.
        """
        op = self.function(symbol)
        types = op.regions[0].blocks[0].argument_types
        if len(arguments) != len(types):
            raise InterpreterError(f"{symbol} expects {len(types)} arguments, but got {len(arguments)}")
        values = [
            self._argument(symbol, position, value, wanted)
            for position, (value, wanted) in enumerate(zip(arguments, types, strict=True))
        ]
        return self.call_operation(op, values, phase=phase)

    def call_operation(
        self,
        function: OperationLike,
        arguments: Sequence[Value],
        dims: tuple[int, int] | None = None,
        phase: int = 0,
    ) -> list[Value]:
        """Run the body of a ``func.func``; ``dims`` gives ``?`` its meaning in a shape-erased kernel."""
        if not function.regions or not function.regions[0].blocks:
            raise InterpreterError(f"function {function.attributes['sym_name']} has no body")
        with np.errstate(all="ignore"):
            return _Frame(self, dims, phase).run(function.regions[0].blocks[0], arguments)

    def _argument(self, symbol: str, position: int, value: Any, wanted: tuple[Any, ...]) -> Value:
        if wanted[0] == "tensor":
            array = np.array(value, dtype=np.float64)
            if array.shape != tuple(wanted[1]):
                raise InterpreterError(
                    f"argument {position} of {symbol} expects shape {tuple(wanted[1])}, but got {array.shape}"
                )
            return round_to(array, wanted[2]) if self.precision == "native" else array
        return int(value) if wanted[0] in ("i64", "index") else np.float64(value)

    # ---- the program

    @property
    def period(self) -> int:
        """Steps after which the program repeats; 1 before phases are split."""
        return int(self._require_program().attributes.get("period", 1) or 1)

    def parameters(self) -> list[Parameter]:
        """The program's parameters in order."""
        found = []
        for op in _operations(self._require_program()):
            if op.name == "kaon.parameter":
                symbols = op.attributes["updates"]
                found.append(
                    Parameter(
                        (symbols,) if isinstance(symbols, str) else tuple(symbols),
                        op.attributes["name"],
                        int(op.attributes["scalars"]),
                        int(op.attributes["phase"]),
                    )
                )
        return found

    def schedule(self, step: int) -> list[tuple[str, list[int]]]:
        """What ``step`` (1-based) runs, in order: ``(function, indices of the parameters it updates)``.

        Follows the buckets where the program has them, else goes parameter by parameter.
        """
        program = self._require_program()
        phases = [op for op in _operations(program) if op.name == "kaon.phase"]
        for phase in phases:
            if step % self.period == int(phase.attributes["residue"]):
                return [(op.attributes["update"], list(op.attributes["parameters"])) for op in _buckets(phase)]
        if phases:
            raise InterpreterError(f"the program has no phase {step % self.period} of period {self.period}")
        return [
            (parameter.symbols[(step - parameter.phase) % len(parameter.symbols)], [index])
            for index, parameter in enumerate(self.parameters())
        ]

    def _require_program(self) -> OperationLike:
        if self._program is None:
            raise InterpreterError("the module has no kaon.program")
        return self._program


def _buckets(op: OperationLike) -> Iterator[OperationLike]:
    """The buckets inside ``op``, in order. That those of a group run in lock-step changes no result."""
    for inner in _operations(op):
        if inner.name == "kaon.bucket":
            yield inner
        elif inner.name == "kaon.group":
            yield from _buckets(inner)


def _operations(op: OperationLike) -> Iterator[OperationLike]:
    """The operations directly inside ``op``."""
    for region in op.regions:
        for block in region.blocks:
            yield from block.operations
