"""The public names of ``kaon.language``: roles, and the functions an update can call.

The functions here carry signatures and documentation only; calling one from plain Python is an error. Their rules live
in :mod:`kaon.language.semantic`, one method per function with the same parameters.

Kinds of values: a *matrix* has a static shape MxN (values per row are Mx1, per column 1xN, a single one 1x1); a
*run-time scalar* is a float64 number evaluated on the host once per step (hyperparameters, the step count, and
expressions of them); a *constant* is a Python value known while compiling.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from kaon.compiler.errors import CallError
from kaon.language.coefficients import KELLER_JORDAN, Coefficients

_F = TypeVar("_F", bound=Callable[..., Any])


class Role:
    """What an argument of an update is; used as its annotation."""

    def __init__(self, name: str, summary: str) -> None:
        self.name = name
        self.__doc__ = summary
        self.__module__ = __name__

    def __repr__(self) -> str:
        return f"kl.{self.name}"

    def __reduce__(self) -> str:
        return self.name


if TYPE_CHECKING:
    # For type checkers an annotated argument is whatever the expression needs.
    param: TypeAlias = Any
    grad: TypeAlias = Any
    state: TypeAlias = Any
    row_state: TypeAlias = Any
    column_state: TypeAlias = Any
    scalar_state: TypeAlias = Any
    scalar: TypeAlias = Any
    constexpr: TypeAlias = Any
else:
    param = Role("param", "The parameter, MxN; exactly one, first.")
    grad = Role("grad", "The gradient, MxN; exactly one; read-only.")
    state = Role("state", "A state of the parameter's shape; its default is the initial value (0.0).")
    row_state = Role("row_state", "A state with one value per row, Mx1.")
    column_state = Role("column_state", "A state with one value per column, 1xN.")
    scalar_state = Role("scalar_state", "A state that is a single value, 1x1.")
    scalar = Role("scalar", "A float64 hyperparameter that may change every step without recompiling.")
    constexpr = Role("constexpr", "A value known while compiling: any hashable Python value.")


class Builtin:
    """A function of the language. Calling it from plain Python raises :class:`kaon.errors.CallError`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        del self.__dict__["__wrapped__"]  # the stub has no body to find
        self.name = function.__name__
        self.__signature__ = inspect.signature(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CallError(
            f"`kl.{self.name}` must be called from inside an @kaon.update or @kaon.function function",
            hint="did you forget the decorator?",
        )

    def __repr__(self) -> str:
        return f"kl.{self.name}"

    def __reduce__(self) -> str:
        return self.name


def builtin(function: _F) -> _F:
    return Builtin(function)  # type: ignore[return-value]


# ---- step and phase -------------------------------------------------------------------------------------------------


@builtin
def step() -> Any:
    """The number of the current step as a run-time scalar, 1 at the first step."""


@builtin
def every(period: int, phase: int = 1) -> Any:
    """True on the steps ``t`` with ``(t - phase) % period == 0``; only as the condition of an ``if``.

    Args:
        period: constant, at least 1.
        phase: constant; the default 1 makes the first step one of them. A parameter's own phase offset is added to it.
    """


# ---- elementwise ----------------------------------------------------------------------------------------------------


@builtin
def sqrt(x: Any) -> Any:
    """Square root, elementwise; NaN for negative matrix or run-time values, an error for a negative constant."""


@builtin
def rsqrt(x: Any) -> Any:
    """``1 / sqrt(x)``, elementwise."""


@builtin
def abs(x: Any) -> Any:
    """Absolute value, elementwise."""


@builtin
def sign(x: Any) -> Any:
    """-1, 0 or 1, elementwise; the sign of 0 is 0, of NaN it is NaN."""


@builtin
def exp(x: Any) -> Any:
    """Exponential function, elementwise."""


@builtin
def log(x: Any) -> Any:
    """Natural logarithm, elementwise."""


@builtin
def floor(x: Any) -> Any:
    """Largest integer not above ``x``, elementwise."""


@builtin
def minimum(a: Any, b: Any) -> Any:
    """The smaller of two, elementwise with broadcasting; NaN if either is."""


@builtin
def maximum(a: Any, b: Any) -> Any:
    """The larger of two, elementwise with broadcasting; NaN if either is."""


@builtin
def where(condition: Any, a: Any, b: Any) -> Any:
    """``a`` where the comparison ``condition`` holds, ``b`` elsewhere; all three broadcast to one shape."""


@builtin
def lerp(a: Any, b: Any, weight: Any) -> Any:
    """``(1 - weight) * a + weight * b``."""


# ---- reductions -----------------------------------------------------------------------------------------------------


@builtin
def sum(x: Any, along: str = "all") -> Any:
    """Sum, accumulated in float64 in a fixed order.

    Args:
        along: ``"row"`` sums each row (Mx1), ``"column"`` each column (1xN), ``"all"`` everything (1x1).
    """


@builtin
def mean(x: Any, along: str = "all") -> Any:
    """Mean of each row, each column, or all (see :func:`sum`)."""


@builtin
def max(x: Any, along: str = "all") -> Any:
    """Largest value of each row, each column, or all (see :func:`sum`); :func:`maximum` compares two values."""


@builtin
def min(x: Any, along: str = "all") -> Any:
    """Smallest value of each row, each column, or all (see :func:`sum`); :func:`minimum` compares two values."""


@builtin
def norm(x: Any, along: str = "all") -> Any:
    """Euclidean norm of each row, each column, or all (see :func:`sum`); safe for any scale of finite input."""


@builtin
def dot(a: Any, b: Any, along: str = "all") -> Any:
    """``sum(a * b, along)``."""


# ---- matrices -------------------------------------------------------------------------------------------------------


@builtin
def transpose(x: Any) -> Any:
    """The transposed matrix, as ``x.T``."""


@builtin
def zeros_like(x: Any) -> Any:
    """A matrix of zeros in the shape of ``x``."""


@builtin
def full_like(x: Any, value: Any) -> Any:
    """A matrix in the shape of ``x`` filled with a constant or run-time scalar."""


@builtin
def normalize(x: Any, along: str = "all", epsilon: float = 0.0, form: str = "max", norm_scale: float = 1.0) -> Any:
    """``x`` divided by its norm, or each row or column by its own.

    With ``n = norm_scale * norm``: ``form="max"`` divides by ``max(n, epsilon)``, ``form="add"`` by ``n + epsilon``.
    Zero rows, columns and matrices stay zero. All but ``x`` are constants.
    """


@builtin
def row_normalize(x: Any, epsilon: float = 0.0, form: str = "max", norm_scale: float = 1.0) -> Any:
    """Each row divided by its norm (:func:`normalize` along ``"row"``)."""


@builtin
def column_normalize(x: Any, epsilon: float = 0.0, form: str = "max", norm_scale: float = 1.0) -> Any:
    """Each column divided by its norm (:func:`normalize` along ``"column"``)."""


@builtin
def newton_schulz(
    x: Any,
    steps: int | None = None,
    coefficients: Coefficients | str | tuple[Any, ...] = KELLER_JORDAN,
    epsilon: float = 0.0,
    normalize: str = "max",
    norm_scale: float = 1.0,
) -> Any:
    """Orthogonalize: the polar factor of ``x``, approximated by ``steps`` odd polynomials of degree 5 or 3.

    ``X <- a X + (b A + c A A) X`` with ``A = X X^T``, after dividing by the Frobenius norm ``n = norm_scale * |x|``:
    ``normalize="max"`` by ``max(n, epsilon)``, ``"add"`` by ``n + epsilon``, ``"none"`` not at all. A zero matrix stays
    zero.

    Args:
        steps: constant, at least 1; default: the table's own number (5 for Keller Jordan's).
        coefficients: a table of :mod:`kaon.language.coefficients`, its name, one ``(a, b, c)`` for all steps, or a
            tuple with one ``(a, b, c)`` per step.
    """


@builtin
def momentum(g: Any, m: Any, mu: Any, form: str = "lerp", nesterov: bool = True) -> Any:
    """Momentum step; returns ``(u, m)``: the direction to use and the new momentum.

    ``form="lerp"``: ``m = mu*m + (1-mu)*g`` and with Nesterov ``u = (1-mu)*g + mu*m``;
    ``form="heavy_ball"``: ``m = mu*m + g`` and ``u = g + mu*m``. Without Nesterov ``u = m``.

    Args:
        mu: constant or run-time scalar.
    """


@builtin
def apply(w: Any, u: Any, lr: Any, step_size: Any = None, weight_decay: Any = 0.0, mode: str = "decoupled") -> Any:
    """The new parameter, with the order of decay and update and their rounding explicit.

    With ``s = step_size`` (default ``lr``) and ``d = lr * weight_decay``: ``mode="decoupled"``: ``(1-d)*w - s*u``;
    ``"after"``: ``w = w - s*u`` then ``w - d*w``; ``"cautious"``: ``w - s*u - d*w`` with the decay only where
    ``u*w >= 0``.

    Args:
        lr, step_size, weight_decay: constants or run-time scalars. ``step_size`` is the whole factor of ``u``,
            for example ``lr * 0.2 * kl.sqrt(max(w.rows, w.cols))``; decay always uses ``lr``.
    """


# ---- while compiling ------------------------------------------------------------------------------------------------


@builtin
def static_range(start: int, stop: int | None = None, step: int = 1) -> Any:
    """As ``range``, with constants; a ``for`` over it is unrolled."""


@builtin
def static_assert(condition: Any, message: str = "") -> None:
    """Refuse to compile unless the constant ``condition`` holds; ``message`` may be an f-string of constants."""


@builtin
def static_print(*values: Any) -> None:
    """Print constants, and descriptions of symbolic values, each time the update is compiled for a shape."""
