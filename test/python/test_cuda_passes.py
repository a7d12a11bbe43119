"""Updates mean the same after each pass of the schedule for a GPU, up to the 16-bit roundings that passes promise.

In float64 the interpreter takes conversions for the identity, so that everything but the roundings is held to the
bounds of ``test_differential.py``; in native precision it rounds where the module says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import kaon
import kaon.language as kl
import language_examples as examples
import numpy as np
import pytest
from cuda_pipeline import PER_PASS
from cuda_plan_tools import Replay
from hypothesis import given, note, settings
from hypothesis import strategies as st
from kaon import _C, driver
from kaon.interpreter import Interpreter, round_to
from random_updates import SHAPES, RandomUpdate, random_updates
from test_differential import (
    EPSILON,
    LR,
    MU,
    OPTIONS,
    amplification,
    check_each_pass,
    error,
    inputs,
    matrices,
    steps_of,
)

MUONS = [examples.muon, examples.own_muon, examples.periodic_rowwise_muon, examples.calibrated_rowwise_muon]


def plan_of(module: _C.Module) -> dict[str, Any]:
    """The step plan that the module becomes, which building it has validated."""
    plan: dict[str, Any] = json.loads(_C.build_plan(module).to_json())
    return plan


@settings(max_examples=120, **OPTIONS)
@given(
    update=random_updates(),
    shape=SHAPES,
    dtype=st.sampled_from(["f32", "f32", "bf16", "f16"]),
    half=st.sampled_from(["bf16", "f16"]),
    phase=st.integers(0, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_pass_keeps_the_meaning(
    update: RandomUpdate, shape: tuple[int, int], dtype: str, half: str, phase: int, seed: int
) -> None:
    note(update.source)
    (matrix,) = matrices(update, shape, dtype, (phase,))
    module = _C.parse(driver.emit([matrix]).text)
    module.set_cuda_target({"half": half})
    check_each_pass(module, PER_PASS, matrix, steps_of(update, shape, seed), "f32")
    assert plan_of(module)["target"] == "cuda"


@settings(max_examples=120, **OPTIONS)
@given(
    update=random_updates(),
    shape=SHAPES,
    dtype=st.sampled_from(["f32", "bf16", "f16"]),
    half=st.sampled_from(["bf16", "f16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_plan_means_what_the_module_means(
    update: RandomUpdate, shape: tuple[int, int], dtype: str, half: str, seed: int
) -> None:
    """A replay in bytes of memory gives the very bits of the module, rounding included."""
    note(update.source)
    module = _C.parse(driver.emit(matrices(update, shape, dtype)).text)
    module.set_cuda_target({"half": half})
    module.run_pipeline("kaon-cuda-pipeline")
    plan = plan_of(module)
    interpreter = Interpreter(module.to_python(), "native")
    types = [dtype, dtype, *["f32"] * len(update.states)]
    values = [round_to(v, t) for v, t in zip(inputs(update, shape, seed), types, strict=True)]
    for step in range(1, update.period + 1):
        ((symbol, _),) = interpreter.schedule(step)
        expected = interpreter.call(symbol, *values, LR, MU, step)
        ((group,),) = [plan["phases"][step % len(plan["phases"])]]
        (bucket,) = group["buckets"]
        replayed = Replay(plan, interpreter, bucket["sequence"], values).run([LR, MU], step)
        for index, (actual, result) in enumerate(zip(replayed, expected, strict=True)):
            assert np.array_equal(actual, result, equal_nan=True), f"result {index} of step {step}"


def replay(plan: dict[str, Any], module: _C.Module, arguments: list[Any]) -> list[Any]:
    """What the plan's only sequence makes of an update's arguments."""
    interpreter = Interpreter(module.to_python(), "native")
    matrices = [value for value in arguments if isinstance(value, np.ndarray)]
    scalars = [value for value in arguments[:-1] if not isinstance(value, np.ndarray)]
    return Replay(plan, interpreter, 0, matrices).run(scalars, arguments[-1])


@pytest.mark.parametrize("shape", [(17, 41), (41, 17)])
def test_a_wrong_plan_gives_a_wrong_step(shape: tuple[int, int]) -> None:
    """The replay sees offsets, pitches, operands and scalars that are not the right ones."""
    module = lowered(examples.muon, shape, "f32", "bf16", PER_PASS)
    arguments = [
        round_to(value, "f32") if isinstance(value, np.ndarray) else value for value in arguments_of(module, shape, 1)
    ]
    plan = plan_of(module)
    expected = results_of(module, arguments)
    assert all(np.array_equal(a, e) for a, e in zip(replay(plan, module, arguments), expected, strict=True))

    def damaged(damage: Callable[[dict[str, Any]], None]) -> Any:
        wrong = plan_of(module)
        damage(wrong["sequences"][0]["launches"][-1])
        return replay(wrong, module, arguments)[0]

    def shift(launch: dict[str, Any]) -> None:
        launch["operands"][0]["offset"] += 256

    def swap(launch: dict[str, Any]) -> None:
        launch["scalars"][-2:] = reversed(launch["scalars"][-2:])

    for damage in (shift, swap):
        assert not np.array_equal(damaged(damage), expected[0], equal_nan=True)


def lowered(update: Any, shape: tuple[int, int], dtype: str, half: str, passes: tuple[str, ...]) -> _C.Module:
    """The module of one matrix after ``passes``."""
    module = _C.parse(driver.emit([driver.MatrixEntry(update, *shape, dtype, dtype)]).text)
    module.set_cuda_target({"half": half})
    for name in passes:
        module.run_pipeline(name)
    return module


def results_of(module: _C.Module, arguments: list[Any], precision: Any = "native") -> list[Any]:
    interpreter = Interpreter(module.to_python(), precision)
    ((symbol, _),) = interpreter.schedule(arguments[-1])
    return interpreter.call(symbol, *arguments)


def arguments_of(module: _C.Module, shape: tuple[int, int], step: int) -> list[Any]:
    """Random matrices and the usual scalars for the update that ``step`` runs."""
    interpreter = Interpreter(module.to_python())
    ((symbol, _),) = interpreter.schedule(step)
    generator = np.random.default_rng(7)
    usual = {"lr": 0.25, "momentum": 0.9, "weight_decay": 0.125, "c": 1.0}
    return [
        step
        if argument.role == "step"
        else usual[argument.name]
        if argument.role == "scalar"
        else generator.standard_normal(argument.type[1])
        for argument in interpreter.arguments(symbol)
    ]


@pytest.mark.parametrize("update", MUONS, ids=lambda update: update.__name__)
@pytest.mark.parametrize("shape", [(16, 40), (40, 16), (24, 24), (1, 8), (33, 17)])
@pytest.mark.parametrize(("dtype", "half"), [("f32", "bf16"), ("bf16", "bf16"), ("f32", "f16")])
def test_products_round_as_promised(update: Any, shape: tuple[int, int], dtype: str, half: str) -> None:
    """Native results after each pass are those before narrowing, up to what the update makes of a 16-bit rounding."""
    simplified = lowered(update, shape, dtype, half, PER_PASS[:1])
    step = 1  # refreshes what is periodic
    arguments = arguments_of(simplified, shape, step)
    expected = results_of(simplified, arguments)
    ((symbol, _),) = Interpreter(simplified.to_python()).schedule(step)
    factors = amplification(simplified.to_python(), symbol, arguments, expected)
    moved = []
    for count in range(2, len(PER_PASS) + 1):
        module = lowered(update, shape, dtype, half, PER_PASS[:count])
        actual = results_of(module, arguments)
        errors = [error(a, e) for a, e in zip(actual, expected, strict=True)]
        for index, (found, factor) in enumerate(zip(errors, factors, strict=True)):
            bound = 8 * factor * EPSILON[half]
            assert found <= bound, f"result {index} after {PER_PASS[count - 1]}: {found:.2g} > {bound:.2g}"
        moved.append(errors[0])
    assert moved[0] > 0, "narrowing that changes nothing narrows nothing"


@pytest.mark.parametrize("shape", [(16, 40), (40, 16), (24, 24)])
def test_an_epilogue_skips_a_rounding(shape: tuple[int, int]) -> None:
    """Handed over unrounded, the last product is nearer to the exact result than when it is rounded to bf16."""
    update = examples.muon
    without_epilogue = tuple(name for name in PER_PASS if name != "kaon-fuse-product-epilogue")
    rounded = lowered(update, shape, "f32", "bf16", without_epilogue)
    fused = lowered(update, shape, "f32", "bf16", PER_PASS)
    assert "epilogue @kernel_" not in rounded.print()
    assert fused.print().count("epilogue @kernel_") == 1
    arguments = arguments_of(fused, shape, 1)
    # Everything but the last rounding is the same in both.
    (with_rounding, *_), (without, *_) = results_of(rounded, arguments), results_of(fused, arguments)
    assert 0 < error(with_rounding, without) < EPSILON["bf16"]
    # In float64 nothing is rounded at all.
    for one, other in zip(
        results_of(rounded, arguments, "float64"), results_of(fused, arguments, "float64"), strict=True
    ):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_muon_is_planned_for_a_gpu(dtype: str) -> None:
    module = lowered(examples.muon, (320, 200), dtype, "bf16", PER_PASS)
    plan = plan_of(module)
    assert plan["version"] == 4 and plan["target"] == "cuda"
    (sequence,) = plan["sequences"]
    kernels = plan["kernels"]
    names = [kernels[launch["kernel"]]["name"] for launch in sequence["launches"]]
    products = [name for name in names if name.startswith("matmul_bf16")]
    assert len(products) == 15, "three for each of the five steps"
    assert "_symmetric" not in products[-1] and products[-1].split("_")[-1] not in ("rhs", "lhs", "add")
    last = sequence["launches"][-1]
    assert last["operands"][-1]["kind"] == "param", "the last product changes the parameter"
    assert len(last["scalars"]) >= 2 + 1, "alpha, beta and what the epilogue needs"
    for launch in sequence["launches"]:
        kernel = kernels[launch["kernel"]]
        assert kernel["threads"] % 32 == 0
        for operand in launch["operands"]:
            if operand["kind"] == "workspace":
                unit = 8 if operand["type"] == "bf16" else 1
                assert operand["pitch"] == -(-operand["cols"] // unit) * unit
                assert operand["offset"] % 256 == 0
        if kernel["schedule"] == "matmul":
            m, n, _ = launch["sizes"]
            tiles = -(-m // 128), -(-n // 128)
            symmetric = "_symmetric" in kernel["name"]
            assert launch["items"] == (tiles[0] * (tiles[0] + 1) // 2 if symmetric else tiles[0] * tiles[1])
    # Momentum and row sums, the sum of those, and the scaled direction in bf16.
    assert len(names) - len(products) == 3


ANY_SHAPES = st.tuples(st.integers(1, 700), st.integers(1, 700))


@settings(max_examples=25, **OPTIONS)
@given(
    shapes=st.lists(ANY_SHAPES, min_size=1, max_size=6), limit=st.integers(0, 1 << 24), period=st.sampled_from([1, 3])
)
def test_grouping_keeps_every_launch_and_saves_some(shapes: list[tuple[int, int]], limit: int, period: int) -> None:
    """Buckets are the same with groups and without, launches are fewer by what is shared, workspaces keep to the
    limit; that each sequence's launches are there in order, and workspaces apart, is what reading a plan checks."""
    update = examples.muon if period == 1 else examples.periodic_rowwise_muon
    entries = [driver.MatrixEntry(update, rows, cols, "f32", "f32") for rows, cols in shapes]
    text = driver.emit(entries).text
    plans, schedules, launches = [], [], []
    for option in (0, limit):
        module = _C.parse(text)
        module.set_cuda_target({})
        module.run_pipeline(f"kaon-cuda-pipeline{{max-group-workspace-bytes={option}}}")
        plans.append(plan_of(module))
        interpreter = Interpreter(module.to_python())
        schedules.append([sorted(interpreter.schedule(step)) for step in range(1, interpreter.period + 1)])
        launches.append([cost["launches"] for cost in _C.build_plan(module).costs])
    assert schedules[0] == schedules[1]
    assert all(grouped <= apart for apart, grouped in zip(*launches, strict=True))
    for phase in plans[1]["phases"]:
        for group in phase:
            if len(group["buckets"]) > 1:
                sizes = [plans[1]["sequences"][bucket["sequence"]]["workspaceBytes"] for bucket in group["buckets"]]
                taken = sum(size * len(bucket["members"]) for size, bucket in zip(sizes, group["buckets"], strict=True))
                assert taken <= limit
    # One module gives one plan.
    again = _C.parse(text)
    again.set_cuda_target({})
    again.run_pipeline(f"kaon-cuda-pipeline{{max-group-workspace-bytes={limit}}}")
    assert plan_of(again) == plans[1]


def test_everything_fits_in_one_round_by_default() -> None:
    entries = [driver.MatrixEntry(examples.muon, 1024, 1024, "f32", "f32") for _ in range(24)]
    module = _C.parse(driver.emit(entries).text)
    module.set_cuda_target({})
    module.run_pipeline("kaon-cuda-pipeline")
    ((group,),) = plan_of(module)["phases"]
    (bucket,) = group["buckets"]
    assert bucket["concurrent"] * 2 >= len(entries)


@kaon.update
def orthogonal(
    w: kl.param, g: kl.grad, *, coefficients: kl.constexpr = kl.KELLER_JORDAN, norm_scale: kl.constexpr = 1.0
):
    """What Newton-Schulz makes of the gradient, added to the parameter."""
    return w + kl.newton_schulz(g, coefficients=coefficients, norm_scale=norm_scale)


STEPS = ((2.0, -1.5, 0.5), (1.875, -1.25, 0.375), (1.5, -0.75, 0.25), (1.75, -1.0, 0.25))
"""Four steps, each with coefficients of its own."""


@kaon.update
def descend_by_product(w: kl.param, g: kl.grad, lr: kl.scalar):
    """A parameter plus a product, which are one op on the CPU."""
    return w - lr * (g @ g.T) @ w


@pytest.mark.parametrize("shape", [(1, 1), (9, 17), (24, 24)])
def test_a_parameter_keeps_its_bits(shape: tuple[int, int]) -> None:
    """What is rounded to bf16 is the change of the parameter, not the parameter."""
    module = lowered(descend_by_product, shape, "f32", "bf16", PER_PASS)
    arguments = arguments_of(module, shape, 1)
    arguments[0] = round_to(100 * arguments[0], "f32")
    arguments[1] = round_to(arguments[1] / 100, "f32")
    (exact,), (native,) = results_of(module, arguments, "float64"), results_of(module, arguments)
    change = np.linalg.norm(exact - arguments[0])
    assert np.linalg.norm(native - exact) <= 4 * EPSILON["bf16"] * change + EPSILON["f32"] * np.linalg.norm(exact)


@kaon.update
def gather_products(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, momentum: kl.scalar):
    """A state and a parameter that products change."""
    m = momentum * m + (g @ g.T) @ g
    return w - lr * (m @ (m.T @ m)), m


@pytest.mark.parametrize("shape", [(7, 12), (12, 7)])
def test_nothing_added_changes_nothing(shape: tuple[int, int]) -> None:
    """Bit by bit: an addend in f32 is not rounded on its way."""
    module = lowered(gather_products, shape, "f32", "bf16", PER_PASS)
    generator = np.random.default_rng(5)
    param, state = (round_to(generator.standard_normal(shape), "f32") for _ in range(2))
    new_param, new_state = results_of(module, [param, np.zeros(shape), state, 0.0, 1.0, 1])
    assert np.array_equal(new_param, param)
    assert np.array_equal(new_state, state)


GRAM = "func.func(kaon-gram-newton-schulz{min-size=1})"
WIDE_AND_TALL = [(16, 64), (64, 16), (3, 40), (33, 9)]


@pytest.mark.parametrize("shape", WIDE_AND_TALL)
@pytest.mark.parametrize("restarts", [[], [1], [2], [1, 3], [1, 2, 3]])
def test_the_gram_form_is_the_same_in_exact_arithmetic(shape: tuple[int, int], restarts: list[int]) -> None:
    text = driver.emit([driver.MatrixEntry(orthogonal, *shape, constexprs={"coefficients": STEPS})]).text
    line = next(line for line in text.splitlines() if "kaon.newton_schulz" in line)
    written = line.replace(" : tensor<", f" gram restarts {restarts} : tensor<", 1)
    original, changed = _C.parse(text), _C.parse(text.replace(line, written))
    for module in (original, changed):
        module.set_cuda_target({})
        module.run_pipeline("kaon-simplify-pipeline")
    # Started anew before every step, it is the standard form.
    is_standard = changed.print().count("kaon.matmul") == original.print().count("kaon.matmul")
    assert is_standard == (restarts == [1, 2, 3])
    arguments = arguments_of(original, shape, 1)
    for one, other in zip(
        results_of(original, arguments, "float64"), results_of(changed, arguments, "float64"), strict=True
    ):
        assert error(one, other) < 1e-12


def hard_gradients(shape: tuple[int, int]) -> dict[str, Any]:
    """What 16-bit Gram matrices find hard: singular values of zero, or far apart."""
    generator = np.random.default_rng(3)
    rows, cols = shape
    short = min(shape)
    left, _ = np.linalg.qr(generator.standard_normal((rows, rows)))
    right, _ = np.linalg.qr(generator.standard_normal((cols, cols)))
    spread = left[:, :short] * np.logspace(0, -6, short) @ right[:short]
    return {
        "normal": generator.standard_normal(shape),
        "rank one": np.outer(generator.standard_normal(rows), generator.standard_normal(cols)),
        "ones": np.ones(shape),
        "rank four and noise": generator.standard_normal((rows, 4)) @ generator.standard_normal((4, cols))
        + 1e-4 * generator.standard_normal(shape),
        "six decades": spread,
        "zero": np.zeros(shape),
    }


def largest_factor(entry: driver.MatrixEntry, half: str) -> float:
    """What the steps of a segment multiply the smallest singular values by."""
    module = _C.parse(driver.emit([entry]).text)
    module.set_cuda_target({"half": half})
    module.run_pipeline(GRAM)
    (op,) = [
        op
        for op in module.to_python().regions[0].blocks[0].operations[0].regions[0].blocks[0].operations
        if op.name == "kaon.newton_schulz"
    ]
    slopes = op.attributes["coefficients"][0::3]
    ends = [*op.attributes["restarts"], len(slopes)]
    return max(math.prod(slopes[begin:end]) for begin, end in zip([0, *ends[:-1]], ends, strict=True))


TABLES: dict[str, dict[str, Any]] = {
    "KELLER_JORDAN": {"coefficients": kl.KELLER_JORDAN},
    "POLAR_EXPRESS": {"coefficients": kl.POLAR_EXPRESS.safety(1.01), "norm_scale": 1.01},
    "YOU": {"coefficients": kl.YOU},
}
"""Tables, with what their authors use along with them."""


@pytest.mark.parametrize("half", ["bf16", "f16"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("shape", [(32, 128), (128, 32)])
def test_the_gram_form_rounds_like_the_standard_form(half: str, table: str, shape: tuple[int, int]) -> None:
    """On hard gradients, too, and it stays as bounded as Newton-Schulz is."""
    entry = driver.MatrixEntry(orthogonal, *shape, "f32", "f32", TABLES[table])
    growth = largest_factor(entry, half)
    modules = {}
    for form, passes in {"standard": PER_PASS, "gram": (GRAM, *PER_PASS)}.items():
        modules[form] = _C.parse(driver.emit([entry]).text)
        modules[form].set_cuda_target({"half": half})
        for name in passes:
            modules[form].run_pipeline(name)
    assert modules["gram"].print().count("kaon.matmul") > modules["standard"].print().count("kaon.matmul")
    for name, gradient in hard_gradients(shape).items():
        arguments = [np.zeros(shape), gradient, 1]
        (exact,) = results_of(modules["standard"], arguments, "float64")
        (standard,) = results_of(modules["standard"], arguments)
        (gram,) = results_of(modules["gram"], arguments)
        # The factor is rounded where it is largest, by half a last digit, and applied where it is about one.
        allowed = 3 * np.linalg.norm(standard - exact) + growth * EPSILON[half] * np.linalg.norm(exact)
        assert np.linalg.norm(gram - exact) <= allowed, name
        assert np.linalg.norm(gram, 2) <= 1.3, name
