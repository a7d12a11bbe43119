"""The interpreter: the meaning of each operation, on its own and against the reference optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import reference_optimizers as reference
from kaon.interpreter import (
    Interpreter,
    InterpreterError,
    apply,
    momentum,
    narrow_to_bf16,
    newton_schulz,
    norm,
    normalize,
    round_to,
    widen_bf16,
)

QUINTIC = [3.4445, -4.7750, 2.0315] * 5
F32 = ("tensor", (4, 6), "f32")
F64 = ("tensor", (4, 6), "f64")


@dataclass
class Block:
    arguments: Sequence[int]
    argument_types: Sequence[tuple[Any, ...]]
    operations: Sequence[Op]


@dataclass
class Region:
    blocks: Sequence[Block]


@dataclass
class Op:
    """An operation written by hand, as ``_C.Module.to_python()`` would give it."""

    name: str
    operands: Sequence[int] = ()
    results: Sequence[int] = ()
    result_types: Sequence[tuple[Any, ...]] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: Sequence[Region] = ()
    location: str = "here"


def module(arguments: Sequence[tuple[Any, ...]], *operations: Op, returns: Sequence[int]) -> Op:
    """A module with one function ``f`` whose arguments are the values 0, 1, ..."""
    body = Block(list(range(len(arguments))), arguments, [*operations, Op("func.return", returns)])
    function = Op("func.func", attributes={"sym_name": "f"}, regions=[Region([body])])
    return Op("builtin.module", regions=[Region([Block([], [], [function])])])


def randn(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


# ---- library operations


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (1, 1), (1, 1000), (7, 5)])
def test_newton_schulz_of_rank_one_has_the_known_norm(shape: tuple[int, int]) -> None:
    x = randn(shape[0], 1) @ randn(1, shape[1], seed=1)
    y = newton_schulz(x, QUINTIC, "max", 1e-7)
    assert np.linalg.norm(y) == pytest.approx(0.696436, abs=1e-6)
    assert (x * y).sum() == pytest.approx(np.linalg.norm(x) * np.linalg.norm(y))


def test_newton_schulz_commutes_with_transposition() -> None:
    x = randn(48, 16)
    assert np.array_equal(newton_schulz(x.T, QUINTIC, "max").T, newton_schulz(x, QUINTIC, "max"))


@pytest.mark.parametrize("exponent", [-308, -160, -30, -1, 0, 30, 160, 306])
def test_any_scale_gives_the_same_direction(exponent: int) -> None:
    x = randn(16, 32)
    expected = newton_schulz(x, QUINTIC, "max", 0.0)
    assert np.allclose(newton_schulz(x * 10.0**exponent, QUINTIC, "max", 0.0), expected, rtol=1e-9, atol=1e-12)
    rows = normalize(x * 10.0**exponent, "row", "max", 0.0, 1.0)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0)


@pytest.mark.parametrize("mode", ["max", "add"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-7])
def test_zeros_stay_zero(mode: str, epsilon: float) -> None:
    zero = np.zeros((4, 6))
    assert np.array_equal(newton_schulz(zero, QUINTIC, mode, epsilon), zero)
    x = randn(4, 6)
    x[2] = 0
    y = normalize(x, "row", mode, epsilon, 1.0)
    assert np.array_equal(y[2], np.zeros(6))
    assert np.allclose(np.linalg.norm(y[[0, 1, 3]], axis=1), 1.0)


@pytest.mark.parametrize("along, axis", [("row", 1), ("column", 0), ("all", None)])
def test_norms(along: str, axis: int | None) -> None:
    x = randn(5, 7)
    expected = np.sqrt((x * x).sum(axis=axis, keepdims=True))
    assert np.allclose(norm(x, along), expected, rtol=1e-15)
    assert np.allclose(norm(x * 1e-200, along), expected * 1e-200, rtol=1e-15)
    assert np.allclose(normalize(x, along, "add", 0.5, 1.01), x / (1.01 * expected + 0.5), rtol=1e-14)
    assert np.allclose(normalize(x, along, "max", 9.0, 1.0), x / np.maximum(expected, 9.0), rtol=1e-14)


def test_decay_forms() -> None:
    w, u = randn(4, 6), randn(4, 6, seed=1)
    assert np.allclose(apply(w, u, "decoupled", 0.1, 0.01), w - 0.01 * w - 0.1 * u)
    assert np.allclose(apply(w, u, "after", 0.1, 0.01), (w - 0.1 * u) * 0.99)
    agreeing = np.sign(w) == np.sign(u)
    assert np.allclose(apply(w, u, "cautious", 0.1, 0.01), w - 0.1 * u - 0.01 * agreeing * w)


# ---- against the reference optimizers

TABLES = ["KELLER_JORDAN", "YOU", "POLAR_EXPRESS", "CANS", "TURBO_MUON", "CUBIC5", "DEEPSEEK_V4"]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (1, 5), (8, 8)])
@pytest.mark.parametrize(
    "mode, epsilon, scale", [("add", 1e-7, 1.0), ("add", 1e-7, 1.01), ("max", 1e-7, 1.0), ("none", 0.0, 1.0)]
)
def test_newton_schulz_is_the_reference(
    table: str, shape: tuple[int, int], mode: str, epsilon: float, scale: float
) -> None:
    coefficients = getattr(reference, table)
    x = randn(*shape) * 0.1
    expected = reference.newton_schulz(x, coefficients, epsilon, mode, scale)
    flat = [value for step in coefficients for value in step]
    assert np.allclose(newton_schulz(x, flat, mode, epsilon, scale), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("form", ["lerp", "heavy_ball"])
def test_momentum_is_the_reference(form: str, nesterov: bool) -> None:
    g, m = randn(4, 6), randn(4, 6, seed=1)
    for ours, theirs in zip(
        momentum(g, m, 0.9, form, nesterov), reference.momentum(g, m, 0.9, form, nesterov), strict=True
    ):
        assert np.allclose(ours, theirs, rtol=1e-15, atol=1e-16)


# ---- the machine


def test_float64_ignores_element_types_and_native_rounds_to_them() -> None:
    program = module([F32, F32], Op("arith.addf", [0, 1], [2], [F32]), returns=[2])
    a, b = randn(4, 6), randn(4, 6, seed=1)
    (exact,) = Interpreter(program).call("f", a, b)
    (rounded,) = Interpreter(program, "native").call("f", a, b)
    assert np.array_equal(exact, a + b)
    assert np.array_equal(rounded, (a.astype(np.float32) + b.astype(np.float32)).astype(np.float64))


@pytest.mark.parametrize("operation, function", [("addf", np.add), ("mulf", np.multiply), ("divf", np.divide)])
def test_native_precision_is_that_of_float32_hardware(operation: str, function: np.ufunc) -> None:
    wide = ("tensor", (200, 300), "f32")
    program = module([wide, wide], Op(f"arith.{operation}", [0, 1], [2], [wide]), returns=[2])
    a, b = (randn(200, 300, seed=seed).astype(np.float32) for seed in (0, 1))
    (rounded,) = Interpreter(program, "native").call("f", a, b)
    assert np.array_equal(rounded, function(a, b).astype(np.float64))


def test_bf16_rounds_to_nearest_even() -> None:
    bits = np.arange(0x3F00, 0x4200, dtype=np.uint16)
    values = widen_bf16(bits)
    assert np.array_equal(narrow_to_bf16(values), bits)
    halfway = (values[:-1] + values[1:]) / 2
    assert np.array_equal(narrow_to_bf16(halfway), np.where(bits[:-1] % 2 == 0, bits[:-1], bits[1:]))
    assert np.isnan(round_to(np.array([np.nan]), "bf16")).all()
    assert np.array_equal(round_to(np.array([np.inf, -0.0, 3.4e38]), "bf16"), [np.inf, -0.0, np.inf])


def every(phase: int) -> Op:
    def branch(factor: float, first: int) -> Region:
        return Region(
            [
                Block(
                    [],
                    [],
                    [
                        Op("arith.constant", [], [first], [F64], {"value": factor}),
                        Op("arith.mulf", [0, first], [first + 1], [F64]),
                        Op("kaon.yield", [first + 1]),
                    ],
                )
            ]
        )

    return Op("kaon.every", [1], [2], [F64], {"period": 3, "phase": phase}, [branch(2.0, 10), branch(5.0, 20)])


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_every_takes_its_branch_on_its_phase(phase: int) -> None:
    interpreter = Interpreter(module([F64, ("i64",)], every(phase), returns=[2]))
    x = randn(4, 6)
    factors = [interpreter.call("f", x, step)[0][0, 0] / x[0, 0] for step in range(1, 8)]
    assert np.allclose(factors, [2.0 if (step - phase) % 3 == 0 else 5.0 for step in range(1, 8)])


def test_a_symmetric_product_is_taken_at_its_word() -> None:
    square = ("tensor", (4, 4), "f64")
    attributes = {"symmetric": True, "transpose_b": True, "operandSegmentSizes": [1, 1, 0, 0, 0, 0, 0, 0]}
    program = module([F64, F64], Op("kaon.matmul", [0, 1], [2], [square], attributes), returns=[2])
    a, b = randn(4, 6), randn(4, 6, seed=1)
    (gram,) = Interpreter(program).call("f", a, a)
    assert np.allclose(gram, a @ a.T)
    (wrong,) = Interpreter(program).call("f", a, b)
    assert np.array_equal(wrong, wrong.T) and not np.allclose(wrong, a @ b.T)


def test_matmul_epilogue() -> None:
    wide, square = ("tensor", (4, 6), "f64"), ("tensor", (4, 4), "f64")
    attributes = {"operandSegmentSizes": [1, 1, 1, 1, 1, 0, 0, 0]}
    arguments = [square, wide, ("f64",), ("f64",), wide]
    program = module(arguments, Op("kaon.matmul", [0, 1, 2, 3, 4], [5], [wide], attributes), returns=[5])
    a, b, c = randn(4, 4), randn(4, 6, seed=1), randn(4, 6, seed=2)
    (result,) = Interpreter(program).call("f", a, b, 0.5, -2.0, c)
    assert np.allclose(result, 0.5 * (a @ b) - 2.0 * c)


def test_the_factor_of_a_product_scales_its_addend_too() -> None:
    wide, square, single = ("tensor", (4, 6), "f64"), ("tensor", (4, 4), "f64"), ("tensor", (1, 1), "f32")
    attributes = {"operandSegmentSizes": [1, 1, 0, 1, 1, 1, 0, 0]}
    arguments = [square, wide, ("f64",), wide, single]
    program = module(arguments, Op("kaon.matmul", [0, 1, 2, 3, 4], [5], [wide], attributes), returns=[5])
    a, b, c = randn(4, 4), randn(4, 6, seed=1), randn(4, 6, seed=2)
    (result,) = Interpreter(program).call("f", a, b, -2.0, c, np.full((1, 1), 0.25))
    assert np.allclose(result, 0.25 * (a @ b - 2.0 * c))


def test_host_scalars_follow_ieee() -> None:
    f64 = ("f64",)
    program = module(
        [f64, f64],
        Op("arith.divf", [0, 1], [2], [f64]),
        Op("math.powf", [0, 1], [3], [f64]),
        returns=[2, 3],
    )
    quotient, power = Interpreter(program).call("f", 1.0, 0.0)
    assert quotient == np.inf and power == 1.0


@pytest.mark.parametrize(
    "predicate, expected",
    [
        (1, [False, True, False, False]),
        (4, [True, False, False, False]),
        (3, [False, True, True, False]),
        (11, [True, False, False, True]),
        (13, [True, False, True, True]),
        (7, [True, True, True, False]),
        (14, [False, False, False, True]),
    ],
)
def test_float_comparisons(predicate: int, expected: list[bool]) -> None:
    row, flags = ("tensor", (1, 4), "f64"), ("tensor", (1, 4), "i1")
    program = module([row, row], Op("arith.cmpf", [0, 1], [2], [flags], {"predicate": predicate}), returns=[2])
    (result,) = Interpreter(program).call("f", [[1.0, 2.0, 3.0, np.nan]], [[2.0, 2.0, 2.0, 2.0]])
    assert result.tolist() == [expected]


def test_errors_name_the_operation_and_the_finding() -> None:
    unknown = module([F64], Op("test.unknown", [0], [1], [F64]), returns=[1])
    with pytest.raises(InterpreterError, match=r"no meaning for test\.unknown at here"):
        Interpreter(unknown).call("f", randn(4, 6))
    wrong_type = module([F64], Op("arith.negf", [0], [1], [("tensor", (6, 4), "f64")]), returns=[1])
    with pytest.raises(InterpreterError, match=r"expects a result of shape \(6, 4\), but got \(4, 6\)"):
        Interpreter(wrong_type).call("f", randn(4, 6))
    identity = Interpreter(module([F64], returns=[0]))
    with pytest.raises(InterpreterError, match=r"argument 0 of f expects shape \(4, 6\), but got \(3, 6\)"):
        identity.call("f", randn(3, 6))
    with pytest.raises(InterpreterError, match="f expects 1 arguments, but got 2"):
        identity.call("f", randn(4, 6), 1.0)
    with pytest.raises(InterpreterError, match="no function 'g'; it has f"):
        identity.call("g")
    with pytest.raises(InterpreterError, match=r"no kaon\.program"):
        identity.parameters()


def test_arguments_are_not_changed() -> None:
    x = randn(4, 6)
    before = x.copy()
    (result,) = Interpreter(module([F64], returns=[0])).call("f", x)
    result += 1.0
    assert np.array_equal(x, before)
