"""The step plan and the executor through ``kaon._C``, on kernels that the compiler made."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from kaon import _C, driver
from kaon.driver import CompiledProgram, MatrixEntry
from kaon.optim import updates
from step_arguments import flat_arguments

Array = np.ndarray


def muon_program(
    shapes: Sequence[tuple[int, int]], period: int = 1, threads: int = 2, scalar_sets: Sequence[int] | None = None
) -> CompiledProgram:
    """Periodic row-wise Muon on matrices of ``shapes``; plain Muon for a period of 1."""
    update = updates.periodic_rowwise_muon
    entries = [
        MatrixEntry(
            update=update,
            rows=rows,
            cols=cols,
            param_dtype="f32",
            grad_dtype="f32",
            constexprs={"period": period},
            name=f"w{index}",
            scalar_set=scalar_sets[index] if scalar_sets else 0,
            phase=0,
        )
        for index, (rows, cols) in enumerate(shapes)
    ]
    return driver.compile_program(entries, threads)


class Memory:
    """Parameters, gradients and states for the plan of a program, with the same numbers every time."""

    def __init__(self, program: CompiledProgram):
        self.parameters = json.loads(program.plan.to_json())["parameters"]
        generator = np.random.default_rng(1)
        self.arrays: list[list[Array]] = []
        for parameter in self.parameters:
            shape = (parameter["rows"], parameter["cols"])
            arrays = [generator.standard_normal(shape, np.float32) for _ in range(2)]
            arrays += [np.zeros((s["rows"], s["cols"]), np.float32) for s in parameter["states"]]
            self.arrays.append(arrays)

    def flat(self, skipped: Sequence[int] = ()) -> list[int]:
        return flat_arguments(self.arrays, skipped)

    def copy(self) -> list[list[Array]]:
        return [[array.copy() for array in arrays] for arrays in self.arrays]


def same(a: list[list[Array]], b: list[list[Array]]) -> bool:
    return all(x.tobytes() == y.tobytes() for xs, ys in zip(a, b, strict=True) for x, y in zip(xs, ys, strict=True))


def scalar_values(program: CompiledProgram) -> list[list[float]]:
    """One value for each scalar of each set: 0.01 for learning rates and decay, 0.9 for the rest."""
    sets = json.loads(program.plan.to_json())["scalarSets"]
    return [[0.01 if name in ("lr", "weight_decay") else 0.9 for name in s["names"]] for s in sets]


def test_plan_survives_json() -> None:
    plan = muon_program([(24, 40), (24, 40), (16, 8)], period=3).plan
    text = plan.to_json()
    assert json.loads(text)["version"] == 4
    assert _C.StepPlan.from_json(text) == plan
    assert _C.StepPlan.from_json(text).to_json() == text
    assert plan.period == 3
    assert len(plan.costs) == 3
    refresh = max(plan.costs, key=lambda cost: cost["flops"])
    row = min(plan.costs, key=lambda cost: cost["flops"])
    assert refresh["launches"] > row["launches"] > 0
    assert "phase 0" in str(plan) and '"w2"' in str(plan)


def test_a_broken_plan_is_refused_by_field() -> None:
    plan = json.loads(muon_program([(24, 40)]).plan.to_json())
    plan["parameters"][0]["rows"] = 25
    with pytest.raises(ValueError, match=r"parameters\[0\]\.states\[0\]: expects 1 or 25 rows"):
        _C.StepPlan.from_json(json.dumps(plan))
    with pytest.raises(ValueError, match="expects valid JSON"):
        _C.StepPlan.from_json("{")


def test_kernels_must_be_there() -> None:
    plan = muon_program([(24, 40)]).plan
    with pytest.raises(ValueError, match=r"expects code for the kernel '.*', but there is none; loaded: none"):
        _C.Executor(plan, _C.KernelTable(), 1)
    with pytest.raises(ValueError, match="threads: expects at least 0, but got -1"):
        _C.Executor(plan, _C.KernelTable(), -1)


def test_b11_newton_schulz_runs_for_every_matrix_on_refreshes_only() -> None:
    shapes = [(24, 40), (24, 40), (16, 8)]
    program = muon_program(shapes, period=3)
    memory, scalars = Memory(program), scalar_values(program)

    def products() -> int:
        return sum(count for name, count in program.executor.matrix_counts.items() if name.startswith("matmul"))

    refreshes = []
    for step in range(1, 10):
        before = products()
        assert program.step(step, memory.flat(), scalars) == 0
        if products() > before:
            refreshes.append(step)
            # Five iterations of three products each, for every matrix.
            assert products() - before == 15 * len(shapes)
    assert len(refreshes) == 3 and np.diff(refreshes).tolist() == [3, 3]

    before = products()
    program.step(refreshes[-1] + 3, memory.flat(skipped=[0]), scalars)
    assert products() - before == 15 * (len(shapes) - 1)


def test_bits_do_not_depend_on_threads_or_company() -> None:
    shapes = [(70, 130), (33, 260), (70, 130), (70, 130)]
    results = []
    for threads in (1, 2, 4):
        program = muon_program(shapes, period=2, threads=threads)
        memory = Memory(program)
        for step in range(1, 5):
            program.step(step, memory.flat(), scalar_values(program))
        results.append(memory.copy())
    assert same(results[0], results[1]) and same(results[0], results[2])

    # Alone and in a bucket of three.
    alone = muon_program([shapes[0]], period=2)
    memory = Memory(alone)
    for step in range(1, 5):
        alone.step(step, memory.flat(), scalar_values(alone))
    assert same(memory.copy(), results[0][:1])


def test_scalar_sets_are_apart() -> None:
    program = muon_program([(24, 40), (24, 40)], scalar_sets=[0, 1])
    memory = Memory(program)
    before, (first, second) = memory.copy(), scalar_values(program)
    names = json.loads(program.plan.to_json())["scalarSets"][1]["names"]
    second = [0.0 if name in ("lr", "weight_decay") else value for name, value in zip(names, second, strict=True)]
    program.step(1, memory.flat(), [first, second])
    assert not np.array_equal(memory.arrays[0][0], before[0][0])
    assert np.array_equal(memory.arrays[1][0], before[1][0])


def test_non_finite_gradients_change_nothing() -> None:
    program = muon_program([(24, 40), (16, 8)])
    memory, scalars = Memory(program), scalar_values(program)
    memory.arrays[0][1][3, 5] = np.nan
    memory.arrays[1][1][0, 0] = -np.inf
    before = memory.copy()
    assert program.step(1, memory.flat(), scalars) == 2
    assert program.step(1, memory.flat(skipped=[0]), scalars) == 1
    assert same(memory.copy(), before)
    assert program.step(1, memory.flat(skipped=[0, 1]), scalars) == 0
    assert same(memory.copy(), before)


def test_wrong_arguments_change_nothing() -> None:
    program = muon_program([(24, 40)])
    memory, scalars = Memory(program), scalar_values(program)
    before = memory.copy()
    good = memory.flat()
    short = [*good[:1], 39, *good[2:]]
    for parameters, values, message in [
        (good[:-1], scalars, "parameters: expects a pointer and a row stride each, but got 5 integers"),
        (good[:-2], scalars, "step: expects 3 buffers for 1 parameters, but got 2"),
        (short, scalars, "parameter 'w0': expects a row stride of at least the 40 columns, but got 39"),
        ([0, *good[1:]], scalars, "parameter 'w0': expects a pointer to 24x40 elements of f32, but got null"),
        (good, [], "step: expects values for 1 scalar sets, but got 0"),
        (good, [scalars[0][:-1]], "scalar set 0: expects"),
    ]:
        with pytest.raises(ValueError, match=message):
            program.step(1, parameters, values)
    with pytest.raises(ValueError, match="step: expects the step count, 1 at the first step, but got 0"):
        program.step(0, good, scalars)
    with pytest.raises(TypeError):
        program.step(1, ["pointer", *good[1:]], scalars)  # type: ignore[list-item]
    assert same(memory.copy(), before)


def test_two_threads_step_at_once() -> None:
    programs = [muon_program([(70, 130), (33, 260)], threads=2) for _ in range(2)]
    scalars = scalar_values(programs[0])
    memories = [Memory(programs[0]) for _ in range(4)]

    def run(index: int) -> None:
        for step in range(1, 6):
            programs[index % 2].step(step, memories[index].flat(), scalars)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for memory in memories[1:]:
        assert same(memory.copy(), memories[0].copy())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_steps_in_a_forked_child() -> None:
    program = muon_program([(70, 130)], threads=2)
    memory, scalars = Memory(program), scalar_values(program)
    program.step(1, memory.flat(), scalars)
    child = os.fork()
    program.step(2, memory.flat(), scalars)
    checksum = memory.arrays[0][0].tobytes()[5]
    if child == 0:
        os._exit(checksum)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == checksum


def test_pool_threads_can_be_limited() -> None:
    original = _C.pool_threads()
    try:
        _C.set_pool_threads(1)
        assert _C.pool_threads() == 1
        program = muon_program([(24, 40)], threads=4)
        assert program.step(1, Memory(program).flat(), scalar_values(program)) == 0
        with pytest.raises(ValueError, match="threads: expects at least 0, but got -2"):
            _C.set_pool_threads(-2)
    finally:
        _C.set_pool_threads(0)
    assert _C.pool_threads() == original


def test_workspace_is_within_three_buckets() -> None:
    program = muon_program([(96, 256)] * 5)
    assert 0 < program.executor.workspace_bytes <= 3 * 5 * 96 * 256 * 4
    assert program.executor.workspace_bytes == program.plan.workspace_bytes
