"""The kernels of the bundled optimizers under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

The optimizers below are lowered for a GPU. Every kernel of theirs is compiled for the CPU with each sanitizer, and
kaon-plan-runner (test/cuda/fake/PlanRunner.cpp), which is built with the same one, steps the programs through the
launcher on the imitated driver, every phase in several orders of threads. It says nothing about a GPU.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_cuda
import kaon
import kaon.language as kl
import numpy as np
import pytest
from kaon import _C, driver, knobs, nvrtc
from kaon.cuda_target import CudaTarget
from kaon.interpreter import Interpreter, round_to
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon
from kaon.optim.bindings import ROW_SCALES
from kaon.optim.parameters import PARAMETER_DTYPES
from optim_tools import entries_of
from step_arguments import flat_arguments
from test_differential import EPSILON, amplification, error, loaded, padded, stored

Array = np.ndarray[Any, Any]

SANITIZERS = {"asan": "AddressSanitizer", "tsan": "ThreadSanitizer"}

# Wide, tall, a row, a column, and two of one shape, which share launches.
SHAPES = ((3, 5), (17, 9), (1, 4), (4, 1), (3, 5))
# Rows for every size of blocks, and rows that do not stay on the chip.
LONG_ROWS = ((2, 600), (1, 3000), (1, 9000), (1, 78000), (1, 90000))
# Long enough for the iteration on the Gram matrix.
LONG = ((256, 384),)
DTYPES = ("f32", "bf16", "f16")
HALVES = ("bf16", "f16")
"""Operands of products."""


@kaon.update
def columnwise(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):  # type: ignore[no-untyped-def]
    m = 0.5 * m + g
    return w - lr * kl.normalize(m, along="column", epsilon=0.01), m


@dataclass(frozen=True)
class Case:
    """Matrices that an optimizer steps in one program."""

    make: Any
    shapes: Sequence[tuple[int, int]] = SHAPES
    dtype: str = "f32"
    half: str = "bf16"
    main_loop: str = "mma"
    counts: Sequence[int] = (1,)
    """The steps: one of every phase that is of interest."""
    padding: int = 0
    """Elements between the rows of parameters and gradients."""


# Two steps of the iteration have every kernel that five have; on the Gram matrix it takes three.
_muon = functools.partial(Muon, ns_steps=2)
_rows = functools.partial(PeriodicRowwiseMuon, period=2, ns_steps=2)
_gram = functools.partial(Muon, ns_steps=3)
CASES: dict[str, Case] = {
    **{f"muon {dtype} {half}": Case(_muon, dtype=dtype, half=half) for dtype in DTYPES for half in HALVES},
    **{f"muon wgmma {dtype}": Case(_muon, dtype=dtype, main_loop="wgmma", padding=3) for dtype in DTYPES},
    "cautious heavy ball": Case(functools.partial(_muon, decay_mode="cautious", momentum_form="heavy_ball"), padding=1),
    **{f"gram {half}": Case(_gram, LONG, half=half) for half in HALVES},
    **{
        f"rows {scale} {dtype}": Case(functools.partial(_rows, row_scale=scale), dtype=dtype, counts=(1, 2), padding=3)
        for scale in ROW_SCALES
        for dtype in DTYPES
    },
    # No bundled optimizer goes along columns.
    "columns": Case(functools.partial(kaon.optimizer(columnwise), lr=0.1), ((5, 3), (40, 70)), dtype="bf16"),
    "long rows": Case(functools.partial(_rows, phase=1), LONG_ROWS, dtype="bf16"),
    **{f"adamw {dtype}": Case(AdamW, dtype=dtype, padding=1) for dtype in DTYPES},
    **{f"adamw amsgrad {dtype}": Case(functools.partial(AdamW, amsgrad=True), dtype=dtype) for dtype in DTYPES},
}


# ---- programs


@functools.cache
def lowered(name: str) -> tuple[list[driver.MatrixEntry], driver.Lowered]:
    """The matrices of a case, and its plan and kernels for a GPU."""
    case = CASES[name]
    (dtype,) = (key for key, value in PARAMETER_DTYPES.items() if value == case.dtype)
    entries = entries_of(case.make, case.shapes, dtype)
    with knobs.scope():
        knobs.cuda.main_loop = case.main_loop
        target = CudaTarget.of_arch("sm_90a", case.half)
    return entries, driver.lower(driver.emit(entries).text, target)


@functools.cache
def plan_of(name: str) -> Any:
    """The plan of a case, as JSON."""
    return json.loads(lowered(name)[1].plan_json)


def launches(name: str, step: int) -> Iterator[tuple[list[int], list[str]]]:
    """For each bucket of matrices of a step: the matrices, and the kernels that step them."""
    plan = plan_of(name)
    for group in plan["phases"][step % len(plan["phases"])]:
        for bucket in group["buckets"]:
            sequence = plan["sequences"][bucket["sequence"]]["launches"]
            yield bucket["members"], [plan["kernels"][launch["kernel"]]["name"] for launch in sequence]


def names_of(name: str) -> list[str]:
    """The kernels of a case's plan, and those that check its gradients."""
    return [kernel.name for kernel in lowered(name)[1].kernels]


def kernels_of(name: str) -> set[str]:
    """The kernels that the steps of a case launch, and those that check its gradients."""
    found = {f"check_finite_{parameter['gradType']}" for parameter in plan_of(name)["parameters"]}
    for step in CASES[name].counts:
        for _, kernels in launches(name, step):
            found.update(kernels)
    return found


def texts() -> dict[str, str]:
    """The kernels of all plans by name; equal names stand for texts that differ in the names of values at most."""
    return {kernel.name: nvrtc.without_lines(kernel.text) for name in CASES for kernel in lowered(name)[1].kernels}


# ---- inputs


@dataclass(frozen=True)
class Inputs:
    """What a step starts from: the elements of each matrix's parameter, gradient and states, and the scalars."""

    step: int
    scalars: list[list[float]]
    values: list[list[Array]]


@functools.cache
def inputs(name: str) -> list[Inputs]:
    """One for each step of a case."""
    plan = plan_of(name)
    generator = np.random.default_rng(0)

    def matrix(index: int) -> list[Array]:
        planned = plan["parameters"][index]
        size = (planned["rows"], planned["cols"])
        sizes = [size, size, *((state["rows"], state["cols"]) for state in planned["states"])]
        values = [generator.standard_normal(each) for each in sizes]
        # The first state is a momentum; the others are squares or norms.
        values[3:] = [np.abs(value) for value in values[3:]]
        if index == 1:  # below what half precision holds, and what can be squared
            values[1:3] = [1e-30 * value for value in values[1:3]]
        return [round_to(value, dtype) for value, dtype in zip(values, dtypes_of(name, index), strict=True)]

    return [
        Inputs(
            step,
            [list(generator.uniform(0.05, 0.9, len(each["names"]))) for each in plan["scalarSets"]],
            [matrix(index) for index in range(len(plan["parameters"]))],
        )
        for step in CASES[name].counts
    ]


def dtypes_of(name: str, matrix: int) -> list[str]:
    """Of a matrix's parameter, gradient and states."""
    planned = plan_of(name)["parameters"][matrix]
    return [planned["paramType"], planned["gradType"], *(state["type"] for state in planned["states"])]


def memory(name: str, given: Inputs) -> list[list[Array]]:
    """The memory of all matrices before a step."""
    padding = CASES[name].padding
    return [
        [
            padded(stored(value, dtype), padding if position < 2 else 0)
            for position, (value, dtype) in enumerate(zip(values, dtypes_of(name, index), strict=True))
        ]
        for index, values in enumerate(given.values)
    ]


def write_case(name: str, folder: Path) -> None:
    """The case for kaon-plan-runner."""
    folder.mkdir()
    (folder / "plan.json").write_text(lowered(name)[1].plan_json)
    steps = inputs(name)
    buffers = [array for arrays in memory(name, steps[0]) for array in arrays]
    parts = [struct.pack("=3q", len(buffers), len(steps[0].scalars), len(steps))]
    parts += [struct.pack("=2q", array.shape[1], array.nbytes) for array in buffers]
    parts += [struct.pack("=q", len(values)) for values in steps[0].scalars]
    for given in steps:
        parts.append(struct.pack("=q", given.step))
        parts += [struct.pack(f"={len(values)}d", *values) for values in given.scalars]
        parts += [array.tobytes() for arrays in memory(name, given) for array in arrays]
    (folder / "inputs").write_bytes(b"".join(parts))


def read_results(name: str, folder: Path) -> list[list[list[Array]]]:
    """The memory of all matrices after each step."""
    content, start, results = (folder / "results").read_bytes(), 0, []
    for given in inputs(name):
        after = memory(name, given)
        for arrays in after:
            for position, array in enumerate(arrays):
                flat = np.frombuffer(content, array.dtype, array.size, start)
                arrays[position] = flat.reshape(array.shape)
                start += array.nbytes
        results.append(after)
    assert start == len(content)
    return results


# ---- what is expected


@functools.cache
def on_the_cpu(name: str) -> list[list[list[Array]]]:
    """The memory of all matrices after each step, by the CPU target."""
    program = driver.compile_program(lowered(name)[0], target=driver.CpuTarget(threads=1))
    results = []
    for given in inputs(name):
        after = memory(name, given)
        assert program.step(given.step, flat_arguments(after), given.scalars, True) == 0
        results.append(after)
    return results


@functools.cache
def interpreted(name: str, step: int, matrix: int) -> list[tuple[Array, float]]:
    """Parameter and states of a matrix after a step whose products have ``half`` as operands, by the interpreter, each
    with the error that is allowed: what errors of this size in every operation make of it, as in test_differential."""
    entries, _ = lowered(name)
    module = _C.parse(driver.emit(entries).text).to_python()
    oracle = Interpreter(module, "native")
    (symbol,) = (symbol for symbol, members in oracle.schedule(step) if matrix in members)
    (given,) = (given for given in inputs(name) if given.step == step)
    arguments = [*given.values[matrix], *given.scalars[entries[matrix].scalar_set], step]
    results = oracle.call(symbol, *arguments, phase=entries[matrix].phase)
    factors = amplification(module, symbol, arguments, results, entries[matrix].phase)
    dtypes = dtypes_of(name, matrix)
    unit = EPSILON[CASES[name].half]
    return [
        (result, max(1e-4, 8 * factor * unit, EPSILON[dtype]))
        for result, factor, dtype in zip(results, factors, [dtypes[0], *dtypes[2:]], strict=True)
    ]


def check_results(name: str, results: list[list[list[Array]]]) -> None:
    """Momenta, and whatever no product goes into, have the bits of the CPU; the rest is near the interpreter's."""
    for given, after, exact in zip(inputs(name), results, on_the_cpu(name), strict=True):
        for members, kernels in launches(name, given.step):
            has_products = any(kernel.startswith("matmul_") for kernel in kernels)
            for matrix in members:
                for position, (actual, wish) in enumerate(zip(after[matrix], exact[matrix], strict=True)):
                    what = f"{name}: matrix {matrix}, buffer {position}, step {given.step}"
                    if not has_products or position in (1, 2):
                        assert actual.tobytes() == wish.tobytes(), f"{what}: other bits than on the CPU"
                        continue
                    expected, bound = interpreted(name, given.step, matrix)[max(0, position - 1)]
                    columns = expected.shape[1]
                    found = error(loaded(actual[:, :columns], dtypes_of(name, matrix)[position]), expected)
                    assert found <= bound, f"{what}: {found:.2g} > {bound:.2g}"
                    assert actual[:, columns:].tobytes() == wish[:, columns:].tobytes(), f"{what}: wrote beyond the row"


# ---- tests


def run(sanitizer: fake_cuda.Sanitizer, kernels: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """kaon-plan-runner on a case."""
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
    command = [str(sanitizer.runner), str(kernels), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def find(name: str) -> fake_cuda.Sanitizer:
    sanitizer = fake_cuda.Sanitizer.find(name)
    if sanitizer is None:
        pytest.skip(f"no kaon-plan-runner-{name} in this build")
    if "clang" not in Path(sanitizer.compiler).name:
        pytest.skip(f"kernels for {SANITIZERS[name]} are compiled by clang")
    return sanitizer


@pytest.mark.parametrize("name", SANITIZERS)
def test_every_kernel_of_the_optimizers(name: str, tmp_path: Path, record_property: Any) -> None:
    sanitizer = find(name)
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    sanitizer.build_kernels(texts(), kernels)
    folders = {case: tmp_path / case.replace(" ", "-") for case in CASES}
    for case, folder in folders.items():
        write_case(case, folder)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(lambda folder: run(sanitizer, kernels, folder), folders.values()))
    ran = set()
    for case, done in zip(CASES, runs, strict=True):
        assert done.returncode == 0, f"{case}:\n{done.stderr}"
        assert set(done.stdout.split()) == kernels_of(case), case
        check_results(case, read_results(case, folders[case]))
        ran |= kernels_of(case)
    record_property(f"kaon-cuda-ran-{name}", len(ran))


def test_the_list_of_cases_is_worth_its_name() -> None:
    """All kinds of kernels occur: what no case launches would be run by nobody."""
    ran = set().union(*map(kernels_of, CASES))
    kinds = ("_t32", "_t128", "_t256", "_t512", "_streaming", "_in_place", "_wgmma_", "_transposed_lhs_symmetric")
    for kind in (*kinds, *(f"matmul_{half}_symmetric" for half in HALVES)):
        assert any(kind in name for name in ran), kind


@pytest.mark.parametrize(
    ("name", "case", "header", "text", "faulty", "report"),
    [
        (
            "tsan",
            "long rows",
            "Rows.cuh",
            "if constexpr (threads > warpSize) {\n    blockBarrier();\n  }",
            "",
            "ThreadSanitizer: data race",
        ),
        (
            "asan",
            "adamw f32",
            "Elementwise.cuh",
            "static_cast<int>(rest) : groupSize",
            "static_cast<int>(rest) + 1 : groupSize",
            "AddressSanitizer: heap-buffer-overflow",
        ),
    ],
    ids=["missing barrier", "element too many"],
)
def test_planted_faults_are_reported(
    name: str, case: str, header: str, text: str, faulty: str, report: str, tmp_path: Path
) -> None:
    sanitizer = find(name)
    library, kernels = tmp_path / "lib", tmp_path / "kernels"
    shutil.copytree(fake_cuda.LIBRARY, library)
    kernels.mkdir()
    original = (library / header).read_text()
    assert original.count(text) == 1
    (library / header).write_text(original.replace(text, faulty))
    sanitizer.build_kernels({kernel: texts()[kernel] for kernel in names_of(case)}, kernels, library)
    write_case(case, tmp_path / "case")
    done = run(sanitizer, kernels, tmp_path / "case")
    assert done.returncode != 0 and report in done.stderr, done.stderr
