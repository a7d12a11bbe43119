"""Random updates mean the same at every stage: after each pass, and as machine code.

The bounds are those the design promises: float64 1e-12; float32 1e-6 for elementwise and row work, 1e-4 relative
Frobenius with matrix products; half precision one unit in the last place of what is stored. A program that amplifies
rounding by itself, say a difference of nearly equal values that is then normalised, is held to what it amplifies: the
interpreter measures that by putting random errors on every operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from kaon import _C, driver
from kaon.interpreter import Interpreter, narrow_to_bf16, round_to
from random_updates import SHAPES, RandomUpdate, random_updates

Array = np.ndarray[Any, Any]

LR, MU = 0.375, 0.9
EPSILON = {"f64": 2.0**-53, "f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
PER_PASS = (
    "kaon-verify-program",
    "kaon-split-phases",
    "func.func(kaon-expand-updates)",
    "canonicalize",
    "cse",
    "func.func(kaon-orient-products)",
    "cse",
    "func.func(kaon-mark-symmetric)",
    "func.func(kaon-fold-matmul-epilogue)",
    "canonicalize",
    "cse",
    "kaon-bucket",
    "func.func(kaon-fuse-kernels)",
    "func.func(kaon-pack-operands)",
    "kaon-outline-kernels",
    "kaon-plan-memory",
)
"""The passes of kaon-cpu-pipeline, one by one."""

OPTIONS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
"""Examples take as long as compiling takes; every run tries the same ones, so that a red run is never luck."""


def matrices(
    update: RandomUpdate, shape: tuple[int, int], dtype: str, phases: tuple[int, ...] = (0,)
) -> list[driver.MatrixEntry]:
    """One matrix for each phase offset."""
    compiled = update.compile()
    return [driver.MatrixEntry(compiled, *shape, dtype, dtype, phase=phase % update.period) for phase in phases]


def inputs(update: RandomUpdate, shape: tuple[int, int], seed: int) -> list[Array]:
    """Parameter, gradient and states; some rows, columns and single values are zero."""
    rows, cols = shape
    shapes = {"state": shape, "row_state": (rows, 1), "column_state": (1, cols), "scalar_state": (1, 1)}
    generator = np.random.default_rng(seed)
    values = [generator.standard_normal(size) for size in (shape, shape, *(shapes[role] for role in update.states))]
    for value in values:
        value[generator.random(value.shape[0]) < 0.1] = 0.0
    return values


def error(actual: Array, expected: Array) -> float:
    return float(np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), 1.0))


def amplification(program: Any, symbol: str, arguments: list[Any], results: list[Array], phase: int = 0) -> list[float]:
    """How much larger than ``noise`` an error of every operation makes the error of each result."""
    noise = 1e-9
    worst = [1.0] * len(results)
    for seed in range(2):
        moved = Interpreter(program, noise=noise, seed=seed).call(symbol, *arguments, phase=phase)
        worst = [max(w, error(m, r) / noise) for w, m, r in zip(worst, moved, results, strict=True)]
    return worst


def check_each_pass(
    module: Any, passes: Sequence[str], matrix: driver.MatrixEntry, arguments: list[list[Any]], dtype: str
) -> None:
    """Run ``passes`` one by one on the module of one matrix. After each one the update's results for ``arguments``, a
    list for every step, are what they were before the first, to what ``dtype`` promises.

    Passes may round constants to f32 where the program does, and nothing else.
    """
    promised = {"f64": 1e-12, "f32": 1e-6}[dtype]
    before = module.to_python()
    oracle = Interpreter(before)
    ((symbol, _),) = oracle.schedule(1)
    expected = [oracle.call(symbol, *values, phase=matrix.phase) for values in arguments]
    bounds = [
        [
            max(promised, 8 * factor * EPSILON[dtype])
            for factor in amplification(before, symbol, values, results, matrix.phase)
        ]
        for values, results in zip(arguments, expected, strict=True)
    ]
    for step_of_lowering in passes:
        module.run_pipeline(step_of_lowering)
        lowered = Interpreter(module.to_python())
        for values, results, tolerances in zip(arguments, expected, bounds, strict=True):
            ((symbol, members),) = lowered.schedule(values[-1])
            assert members == [0]
            for index, (actual, result, bound) in enumerate(
                zip(lowered.call(symbol, *values, phase=matrix.phase), results, tolerances, strict=True)
            ):
                found = error(actual, result)
                assert found <= bound, f"result {index} of step {values[-1]} after {step_of_lowering}: {found:.2g}"


def steps_of(update: RandomUpdate, shape: tuple[int, int], seed: int) -> list[list[Any]]:
    """Arguments of the update for every step of its period."""
    return [[*inputs(update, shape, seed), LR, MU, step] for step in range(1, update.period + 1)]


@settings(max_examples=150, **OPTIONS)
@given(
    update=random_updates(),
    shape=SHAPES,
    dtype=st.sampled_from(["f64", "f64", "f32", "bf16"]),
    phase=st.integers(0, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_pass_keeps_the_meaning(
    update: RandomUpdate, shape: tuple[int, int], dtype: str, phase: int, seed: int
) -> None:
    note(update.source)
    (matrix,) = matrices(update, shape, dtype, (phase,))
    module = _C.parse(driver.emit([matrix]).text)
    module.set_cpu_target(driver.host_target())
    computed = "f64" if dtype == "f64" else "f32"
    check_each_pass(module, PER_PASS, matrix, steps_of(update, shape, seed), computed)


STORAGE = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16}


def stored(values: Array, dtype: str) -> Array:
    return narrow_to_bf16(values) if dtype == "bf16" else values.astype(STORAGE[dtype])


def loaded(memory: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (memory.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return memory.astype(np.float64)


@settings(max_examples=60, **OPTIONS)
@given(
    update=random_updates(max_statements=6),
    shape=SHAPES,
    dtype=st.sampled_from(["f32", "f32", "f64", "bf16", "f16"]),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_machine_code_is_the_interpreter(
    update: RandomUpdate, shape: tuple[int, int], dtype: str, padding: int, seed: int
) -> None:
    note(update.source)
    step_against_interpreter(update, shape, dtype, padding, seed, driver.CpuTarget(threads=2))


def step_against_interpreter(
    update: RandomUpdate,
    shape: tuple[int, int],
    dtype: str,
    padding: int,
    seed: int,
    target: driver.Target,
    product: str = "f32",
) -> None:
    """Every step of a period on ``target``, whose products take operands of type ``product``."""
    bucket = matrices(update, shape, dtype, (0, 1, 0))  # more than the threads
    program = driver.compile_program(bucket, target=target)
    compute = "f64" if dtype == "f64" else "f32"
    precision_of_step = product if update.has_products and compute == "f32" else compute
    dtypes = [dtype, dtype, *[compute] * len(update.states)]
    before = _C.parse(program.module_text).to_python()
    precision = "float64" if dtype == "f64" else "native"
    oracle = Interpreter(before, precision)
    (symbol,) = {symbol for symbol, _ in oracle.schedule(1)}
    promised = 1e-12 if dtype == "f64" else 1e-4 if update.has_products else 1e-6
    for step in range(1, update.period + 1):
        values = [
            [round_to(v, t) for v, t in zip(inputs(update, shape, seed + i), dtypes, strict=True)] for i in range(3)
        ]
        # Parameters and gradients may be views of larger matrices; states are the optimizer's own.
        paddings = [padding, padding, *[0] * len(update.states)]
        memories = [
            [padded(stored(v, t), p) for v, t, p in zip(tensors, dtypes, paddings, strict=True)] for tensors in values
        ]
        addresses = [
            number for memory in memories for array in memory for number in (array.ctypes.data, array.shape[1])
        ]
        assert program.step(step, addresses, [[LR, MU]], True) == 0
        for matrix, tensors, memory in zip(bucket, values, memories, strict=True):
            arguments = [*tensors, LR, MU, step]
            expected = oracle.call(symbol, *arguments, phase=matrix.phase)
            factors = amplification(before, symbol, arguments, expected, matrix.phase)
            results = [memory[0], *memory[2:]]
            for index, (array, result, factor, kind) in enumerate(
                zip(results, expected, factors, [dtypes[0], *dtypes[2:]], strict=True)
            ):
                actual = loaded(array[:, : result.shape[1]], kind)
                stored_error = EPSILON[kind] if kind != compute else 0.0
                bound = max(promised, 8 * factor * EPSILON[precision_of_step], stored_error)
                found = error(actual, result)
                assert found <= bound, f"result {index} of step {step}: {found:.2g} > {bound:.2g}"
                assert (array[:, result.shape[1] :] == 7).all(), "wrote beyond the row"
            assert np.array_equal(memory[1][:, : shape[1]], stored(tensors[1], dtype)), "a gradient must never change"


def padded(values: Array, padding: int) -> Array:
    """``values`` in rows that are ``padding`` longer, as a view of a larger matrix has them."""
    memory = np.full((values.shape[0], values.shape[1] + padding), 7, values.dtype)
    memory[:, : values.shape[1]] = values
    return memory


def test_amplification_sees_cancellation() -> None:
    """The measure that relaxes the bounds is near 1 for a tame program and large for one that cancels."""
    source = "\n".join(
        [
            "import kaon",
            "import kaon.language as kl",
            "@kaon.update",
            "def update(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar):",
            "    v0 = kl.normalize((w + 1000.0) - (g + 1000.0) - w + g + 1e-6 * w)",
            "    return w - lr * g, v0",
            "",
        ]
    )
    update = RandomUpdate(source, ["state"], False, 1)
    program = _C.parse(driver.emit(matrices(update, (8, 8), "f64")).text).to_python()
    ((symbol, _),) = Interpreter(program).schedule(1)
    arguments = [*inputs(update, (8, 8), 0), LR, MU, 1]
    tame, cancelling = amplification(program, symbol, arguments, Interpreter(program).call(symbol, *arguments))
    assert tame < 10
    assert cancelling > 1e6
