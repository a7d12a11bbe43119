"""An update means what Python means by its text: the function itself, run by Python on NumPy arrays, is the oracle."""

from __future__ import annotations

import itertools
import linecache
import math
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import kaon
import kaon.language as kl
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kaon import Update, errors
from kaon.compiler.emit import program_text
from kaon.interpreter import Interpreter

ROWS, COLS = 3, 4


@pytest.fixture(scope="session")
def extension() -> ModuleType:
    return pytest.importorskip("kaon._C", reason="the compiled extension is not built")


class Array(np.ndarray):  # type: ignore[type-arg]
    """A NumPy matrix with the attributes of the language's."""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def cols(self) -> int:
        return self.shape[1]


def array(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64).view(Array)


def numpy_language(step: int) -> SimpleNamespace:
    """The functions of the language on NumPy arrays, written from their documentation."""
    axes: dict[str, Any] = {"row": 1, "column": 0, "all": None}

    def reduced(function: Any) -> Any:
        return lambda x, along="all": array(function(x, axis=axes[along], keepdims=True))

    return SimpleNamespace(
        step=lambda: float(step),
        every=lambda period, phase=1: (step - phase) % period == 0,
        sqrt=np.sqrt,
        rsqrt=lambda x: 1 / np.sqrt(x),
        abs=np.abs,
        sign=np.sign,
        exp=np.exp,
        floor=np.floor,
        minimum=np.minimum,
        maximum=np.maximum,
        where=lambda condition, a, b: np.where(condition, a, b),
        lerp=lambda a, b, weight: (1 - weight) * a + weight * b,
        sum=reduced(np.sum),
        mean=reduced(np.mean),
        max=reduced(np.max),
        min=reduced(np.min),
        norm=reduced(np.linalg.norm),
        zeros_like=np.zeros_like,
        full_like=np.full_like,
        transpose=np.transpose,
        static_range=range,
    )


def run_python(update: Update, step: int, *arguments: Any, **constants: Any) -> Any:
    """Run the function's own code with ``kl`` replaced."""
    function = update.function
    with np.errstate(all="ignore"):
        replaced = FunctionType(
            function.__code__,
            {**function.__globals__, "kl": numpy_language(step)},
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        replaced.__kwdefaults__ = function.__kwdefaults__
        return replaced(*arguments, **constants)


def run_kaon(extension: ModuleType, update: Update, step: int, *arguments: Any, **constants: Any) -> Any:
    specialized = update.specialize(ROWS, COLS, "f64", "f64", constants, symbol="f")
    interpreter = Interpreter(extension.parse(program_text([], [specialized])).to_python())
    return interpreter.call("f", *arguments, step)


def matrices(seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    return [array(random.uniform(-2, 2, (ROWS, COLS))) for _ in range(3)]


def same(extension: ModuleType, update: Update, *, steps: Any = (1, 2, 3, 4), **constants: Any) -> None:
    for step in steps:
        arguments = [*matrices(step), 0.25, 0.5]
        expected = run_python(update, step, *arguments, **constants)
        found = run_kaon(extension, update, step, *arguments, **constants)
        for left, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-14)


# ---- case B69, entry by entry: what works means what Python means ---------------------------------------------------


@kaon.update
def constants(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar, *,
              a: kl.constexpr = -7, b: kl.constexpr = 2):  # fmt: skip
    x = a // b + a % b + a / b + b // a + b % a + a**b + 2**-b + (-a) ** 0.5 + a % -b + 7.5 // -b
    y = (a < b < 3) + (not a) + (a and b) + (a or b) + (0 or b) + (b and 0) + (a if a > b else b) + (1 == 1.0 == True)
    z = abs(a) + min(a, b) + max((a, b, 3)) + int(-2.7) + round(2.5) + round(3.5) + round(-1.25, 1) + float("1e3")
    for i, value in enumerate((1, 2.5)):
        z += i * value
    for i in range(5, 0, -2):
        z -= i
    return w * x + y, m * z


@pytest.mark.parametrize(("a", "b"), [(-7, 2), (7, -2), (-7.5, 2), (1, 3), (-1, -3), (6, 3)])
def test_b69_constants(extension: ModuleType, a: Any, b: Any) -> None:
    """``//``, ``%``, ``/``, ``**`` with negatives; chained comparison; ``and``, ``or``, ``not``; rounding."""
    if a > 0:
        with pytest.raises(errors.UnsupportedError, match="fractional power is complex"):
            run_kaon(extension, constants, 1, *matrices(0), 0.1, 0.2, a=a, b=b)
    else:
        same(extension, constants, a=a, b=b)


@kaon.update
def rebinding(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar):
    before = m
    m += g
    m *= 2
    m -= before
    w, m = m, w
    w, (m, lr) = m, (w, lr)
    w -= lr
    w /= 3
    w **= 2
    w @= g.T @ before
    return w, before + m


def test_b69_augmented_assignment_of_an_argument_binds_a_new_value(extension: ModuleType) -> None:
    """Values never change, so `+=` is Python's for immutable values: other names of the old value keep it."""
    w, g, m = matrices(7)
    expected_m = (m + g) * 2 - m
    expected_w = (((w - 0.25) / 3) ** 2) @ (g.T @ m)
    found = run_kaon(extension, rebinding, 1, w, g, m, 0.25, 0.5)
    np.testing.assert_allclose(found[0], expected_w, rtol=1e-12)
    np.testing.assert_allclose(found[1], m + expected_m, rtol=1e-12)


@kaon.update
def negative_bases(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar):
    return w**3 + w**2 + w**-1 + w**-3 + (-lr) ** 3 + (-lr) ** -2, w**9 + (-mu) ** 0


def test_b69_powers_of_negative_bases(extension: ModuleType) -> None:
    same(extension, negative_bases)


@kaon.update
def static_control(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar, *, mode: kl.constexpr = 0):
    for i in kl.static_range(4):
        if i == mode:
            return w + i, m
        elif i > mode:
            w = w - g
        w = w * 2
    if mode == 9:
        m = g
    else:
        pass
    return w, m


@pytest.mark.parametrize("mode", [0, 1, 3, 8, 9])
def test_b69_static_returns_are_pythons(extension: ModuleType, mode: int) -> None:
    """The way through `if` and `for` on constants is known, so returning early is what Python does."""
    same(extension, static_control, mode=mode)


@kaon.update
def phases(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar, *, flag: kl.constexpr = True):
    x = g
    refresh = kl.every(3)
    if refresh:
        x = w * 2
        if kl.every(2, phase=0):  # noqa: SIM108
            m = m + 1
        else:
            m = m - x
    if not kl.every(4, phase=3):
        w = w + x
        scale = lr
    else:
        scale = 2
    if flag and kl.every(5, -1):
        m = m * scale
    m = m * (lr if kl.every(2) else 3 if kl.every(3) else mu)
    return w * scale, (w - x if kl.every(3) else m) + kl.step()


def test_b69_every_as_a_condition(extension: ModuleType) -> None:
    same(extension, phases, steps=range(1, 13))
    same(extension, phases, steps=range(1, 6), flag=False)


@kaon.update
def comparisons(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar):
    a = kl.where(w > g, w, g) + kl.where(w >= 0, 1, lr) + kl.where(lr < w, m, 2) + kl.where(w != w, 1, 0)
    b = kl.where(lr < mu, w, g) + kl.where(lr > mu, 1, 2) + kl.where(lr == 0.25, m, kl.norm(w, "row"))
    c = kl.where(kl.norm(w, "row") <= kl.norm(g, "column"), 1.0, 0.0) + kl.where(w is None, 1, 2)
    return a + b, c + kl.sign(w) + kl.sign(kl.floor(w)) + kl.maximum(w, lr) + kl.minimum(kl.mean(w, "row"), g)


def test_b69_comparisons_and_where(extension: ModuleType) -> None:
    same(extension, comparisons)


def test_b69_comparison_of_run_time_scalars_is_not_rounded_to_the_compute_type(extension: ModuleType) -> None:
    """1 + 1e-12 > 1 holds in float64, where hyperparameters live, but not in float32."""

    @kaon.update
    def choose(w: kl.param, g: kl.grad, lr: kl.scalar):
        return kl.where(lr > 1, w, g)

    specialized = choose.specialize(2, 2, "f32", "f32", symbol="f")
    interpreter = Interpreter(extension.parse(program_text([], [specialized])).to_python(), "declared")
    w, g = np.ones((2, 2)), np.zeros((2, 2))
    assert np.all(interpreter.call("f", w, g, 1 + 1e-12, 1)[0] == 1)
    assert np.all(interpreter.call("f", w, g, 1 - 1e-12, 1)[0] == 0)


def test_b69_nan_and_signed_zero(extension: ModuleType) -> None:
    @kaon.update
    def signs(w: kl.param, g: kl.grad, m: kl.state):
        return kl.sign(w), kl.where(w != w, 1, kl.where(w == w, 2, 3))

    specialized = signs.specialize(1, 4, "f64", "f64", symbol="f")
    interpreter = Interpreter(extension.parse(program_text([], [specialized])).to_python())
    w = np.array([[math.nan, -0.0, 0.0, -math.inf]])
    sign, kind = interpreter.call("f", w, w, w, 1)
    np.testing.assert_array_equal(sign, [[math.nan, 0, 0, -1]])
    np.testing.assert_array_equal(kind, [[1, 2, 2, 2]])


# ---- what depends on the outside ------------------------------------------------------------------------------------

RATE = 1.0


@kaon.update
def reads_a_global(w: kl.param, g: kl.grad):
    return w - RATE * g


def test_globals_are_read_when_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "arith.constant 1.0 : f64" in reads_a_global.specialize(2, 2, symbol="f").text
    monkeypatch.setitem(globals(), "RATE", 3.5)
    assert "arith.constant 3.5 : f64" in reads_a_global.specialize(2, 2, symbol="f").text
    monkeypatch.setitem(globals(), "RATE", [1.0])
    with pytest.raises(errors.UpdateTypeError, match="`RATE` is a value of type list from outside"):
        reads_a_global.specialize(2, 2, symbol="f")


def test_a_local_name_never_falls_back_to_a_global() -> None:
    @kaon.update
    def shadows(w: kl.param, g: kl.grad, *, flag: kl.constexpr = False):
        if flag:
            RATE = 2.0
        return w - RATE * g

    assert "arith.constant 2.0" in shadows.specialize(2, 2, constexprs={"flag": True}, symbol="f").text
    with pytest.raises(errors.UpdateNameError, match="`RATE` has no value here: it is assigned only where"):
        shadows.specialize(2, 2, symbol="f")


def test_static_print_and_assert(capsys: pytest.CaptureFixture[str]) -> None:
    @kaon.update
    def prints(w: kl.param, g: kl.grad, lr: kl.scalar, *, steps: kl.constexpr = 5):
        kl.static_print("steps", steps, w, lr, f"{steps:>3}|{math.pi:.2f}|{'x'!r}|{w.T}")
        kl.static_assert(steps > 0 and w.rows == 2, "never shown")
        return w - g

    prints.specialize(2, 3, symbol="f")
    assert capsys.readouterr().out == "steps 5 <a 2x3 matrix> <a run-time scalar>   5|3.14|'x'|<a 3x2 matrix>\n"


# ---- random programs ------------------------------------------------------------------------------------------------

LEAVES = [
    "w",
    "g",
    "m",
    "lr",
    "mu",
    "2",
    "-0.5",
    "3",
    "kl.step()",
    "w.rows",
    "kl.norm(w, 'row')",
    "kl.sum(g, 'column')",
]
UNARY = ["-{0}", "abs({0})", "kl.abs({0})", "kl.sqrt(kl.abs({0}))", "kl.sign({0})", "{0} ** 2", "kl.floor({0})"]
BINARY = [
    "({0} + {1})",
    "({0} - {1})",
    "({0} * {1})",
    "({0} / (abs({1}) + 1))",
    "kl.maximum({0}, {1})",
    "kl.minimum({0}, {1})",
    "kl.where({0} > {1}, {0}, {1})",
    "kl.where({0} <= 0, 1, {1})",
    "kl.lerp({0}, {1}, mu)",
]

EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(lambda form, a: form.format(a), st.sampled_from(UNARY), inner),
        st.builds(lambda form, a, b: form.format(a, b), st.sampled_from(BINARY), inner, inner),
    ),
    max_leaves=8,
)
_counter = itertools.count()


def define(statements: list[str]) -> Update:
    """Make an update of these statements, as a notebook would: the text lives in linecache."""
    body = "".join(f"    {statement}\n" for statement in statements)
    text = f"@kaon.update\ndef f(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar):\n{body}"
    name = f"<random-update-{next(_counter)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"kaon": kaon, "kl": kl, "__name__": "random"}
    exec(compile(text, name, "exec"), namespace)
    update: Update = namespace["f"]
    return update


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(first=EXPRESSIONS, second=EXPRESSIONS, third=EXPRESSIONS, period=st.integers(1, 4), step=st.integers(1, 9))
def test_random_programs(extension: ModuleType, first: str, second: str, third: str, period: int, step: int) -> None:
    # Adding zeros of the full shape turns whatever the expression is into a matrix.
    update = define(
        [
            f"x = kl.zeros_like(w) + {first}",
            f"if kl.every({period}):",
            f"    m = kl.zeros_like(w) + {second}",
            "else:",
            "    x = x + w",
            f"return x, kl.zeros_like(w) + {third} + m",
        ]
    )
    arguments = [*matrices(step), 0.25, 0.5]
    expected = run_python(update, step, *arguments)
    found = run_kaon(extension, update, step, *arguments)
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)
