"""The launches and bytes that plans predict, and `kaon explain` prints, are those that kernels make when they run.

Every load and store of the kernels is counted while they run on the CPU (`shim_traffic`): what is shown is which bytes
a kernel asks memory for, not what the caches of a GPU make of it.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_cuda
import kaon
import kaon.language as kl
import norm_updates
import numpy as np
import pytest
import shim_traffic
import torch
from cuda_tools import CountingCompiler, fake_gpu, unavailable
from hypothesis import given, note, settings
from hypothesis import strategies as st
from kaon import driver
from kaon import explain as explanation
from kaon.cuda import Placement
from kaon.cuda_target import CudaTarget
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon
from kaon.optim.bindings import ROW_SCALES
from language_examples import lion, normuon, own_muon
from optim_tools import entries_of, parameters
from random_updates import SHAPES as RANDOM_SHAPES
from random_updates import RandomUpdate, random_updates
from test_differential import OPTIONS, matrices

_missing = unavailable() or fake_cuda.counting_unavailable()
pytestmark = pytest.mark.skipif(_missing is not None, reason=str(_missing))

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Aligned, odd, tall, wide, a row, a column, one element, and some of one bucket.
SHAPES = [(64, 256), (33, 17), (300, 5), (5, 300), (1, 1000), (1000, 1), (1, 1), (33, 17)]

BUNDLED: dict[str, Any] = {
    "adamw": AdamW,
    "adamw, amsgrad": functools.partial(AdamW, amsgrad=True),
    "muon": functools.partial(Muon, decay_mode="cautious"),
    **{f"row steps, {scale}": functools.partial(PeriodicRowwiseMuon, row_scale=scale) for scale in ROW_SCALES},
}


@kaon.update
def columnwise(w: kl.param, g: kl.grad, v: kl.column_state, lr: kl.scalar = 0.1):
    """A state per column, two reductions over columns, and a factor per row."""
    v = kl.lerp(v, kl.mean(g * g, along="column"), 0.1)
    u = g / (kl.sqrt(v) + kl.max(kl.abs(g), along="column"))
    return w - lr * u * kl.sqrt(kl.mean(w * w, along="row")), v


@kaon.update
def rowwise(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar = 0.1):
    """A row step and nothing else."""
    m = kl.lerp(m, g, 0.1)
    return w - lr * kl.row_normalize(m), m


@kaon.update
def turned(w: kl.param, g: kl.grad, lr: kl.scalar = 0.1):
    """A product with a transpose that is no product's operand alone."""
    t = (g * 0.5).T
    return w - lr * ((t @ g) @ t + t * 2.0).T


@kaon.update
def added(w: kl.param, g: kl.grad, lr: kl.scalar = 0.1):
    """A symmetric product with an addend of its own."""
    x = g @ g.T
    y = w @ w.T
    return w - lr * ((0.5 * y + x @ x.T) @ w)


USERS = {update.name: update for update in (lion, normuon, columnwise, turned, added)}


class Memory:
    """Memory for everything that a plan steps, in rows that are ``gap`` elements apart where they may be."""

    def __init__(self, plan: dict[str, Any], gap: int = 0):
        generator = np.random.default_rng(0)
        self._arrays: list[np.ndarray] = []
        self.addresses: list[int] = []
        for parameter in plan["parameters"]:
            rows, cols = parameter["rows"], parameter["cols"]
            own = [(rows, cols, parameter["paramType"], gap), (rows, cols, parameter["gradType"], gap)]
            for state in parameter["states"]:
                own.append((state["rows"], state["cols"], state["type"], 0))
            for height, width, dtype, apart in own:
                # Small numbers in every type: exponents are those of ones.
                words = {"f16": (np.uint16, 0x3800), "bf16": (np.uint16, 0x3F00), "f32": (np.uint32, 0x3F000000)}
                word, base = words[dtype]
                noise = generator.integers(0, 64, (height, width + apart))
                self._arrays.append((noise + base).astype(word))
                self.addresses += [self._arrays[-1].ctypes.data, width + apart]
        self.scalars = [[0.1] * len(scalars["names"]) for scalars in plan["scalarSets"]]


@functools.cache
def recorder() -> shim_traffic.Recorder:
    return shim_traffic.Recorder()


def run(
    entries: Sequence[driver.MatrixEntry],
    gap: int = 0,
    compiler: type[CountingCompiler] = CountingCompiler,
    products: bool = True,
) -> Iterator[tuple[dict[str, int], list[shim_traffic.Launch], list[shim_traffic.Planned]]]:
    """Step every phase of a program, or those without products: its predicted cost, the launches that ran, and those of
    the plan."""
    with fake_gpu(compiler=compiler):
        target = CudaTarget.of_device(Placement(wait=True))
        program = driver.compile_program(entries, target=target)
        plan = json.loads(program.plan.to_json())
        memory = Memory(plan, gap)
        period = len(plan["phases"])
        for phase in range(period):
            planned = shim_traffic.planned_launches(plan, phase)
            if products or all(one.schedule != "matmul" for one in planned):
                recorder().clear()
                program.step(period + phase, memory.addresses, memory.scalars, False)
                yield program.plan.costs[phase], recorder().take(), planned


def check(
    entries: Sequence[driver.MatrixEntry],
    gap: int = 0,
    compiler: type[CountingCompiler] = CountingCompiler,
    products: bool = True,
) -> set[str]:
    """Compare every phase of a program with its plan; the schedules that occurred."""
    schedules = set()
    for cost, launches, planned in run(entries, gap, compiler, products):
        assert len(launches) == cost["launches"]
        shim_traffic.check_launches(launches, planned)
        assert sum(one.launch["bytes"] for one in planned) == cost["bytes"]
        schedules |= {one.schedule for one in planned}
    return schedules


def lowered_kernels(entries: Sequence[driver.MatrixEntry]) -> Sequence[driver.Kernel]:
    return driver.lower(driver.emit(entries).text, CudaTarget.of_arch("sm_90a")).kernels


def entries_for(update: Any, shapes: Sequence[tuple[int, int]], dtype: str = "f32") -> list[driver.MatrixEntry]:
    return [driver.MatrixEntry(update, rows, cols, dtype, dtype) for rows, cols in shapes]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elementwise_steps(dtype: torch.dtype) -> None:
    assert check(entries_of(BUNDLED["adamw"], SHAPES, dtype)) == {"elementwise"}


def test_elementwise_steps_of_rows_that_are_apart() -> None:
    assert check(entries_of(BUNDLED["adamw, amsgrad"], SHAPES, torch.bfloat16), gap=3) == {"elementwise"}


def test_row_steps() -> None:
    """Rows for blocks of every size."""
    entries = entries_of(BUNDLED["row steps, frobenius"], [*SHAPES, (3, 2100), (2, 9000)], torch.float32)
    assert check(entries, products=False) >= {"rows", "elementwise"}


def test_row_steps_of_rows_that_are_apart() -> None:
    assert "rows" in check(
        entries_of(BUNDLED["row steps, unit"], [(33, 17), (5, 300)], torch.float16), gap=1, products=False
    )


def test_refreshes_that_calibrate() -> None:
    entries = entries_of(BUNDLED["row steps, calibrated"], [(40, 24), (24, 40), (1, 70)], torch.bfloat16)
    assert check(entries) >= {"rows", "matmul"}


def test_products() -> None:
    """More than one tile along each side, and a part of one; both forms of the iteration; parameters of a column."""
    entries = entries_of(BUNDLED["muon"], [(130, 150), (24, 40), (40, 1), (256, 520)], torch.float32)
    assert "matmul" in check(entries)


@pytest.mark.parametrize("name", USERS)
def test_updates_of_users(name: str) -> None:
    """Odd shapes, a row, a column, and two tiles along a side."""
    wanted = {"columnwise": "columns", "turned": "transpose", "added": "matmul", "normuon": "rows"}
    schedules = check(entries_for(USERS[name], [(40, 24), (17, 33), (1, 70), (70, 1), (130, 7)]))
    assert wanted.get(name, "elementwise") in schedules


def test_columns_of_rows_that_are_apart() -> None:
    assert "columns" in check(entries_for(columnwise, SHAPES), gap=1)


@settings(max_examples=2, **OPTIONS)
@given(
    update=random_updates(max_statements=4),
    shape=RANDOM_SHAPES,
    dtype=st.sampled_from(["f32", "bf16", "f16"]),
    gap=st.integers(0, 3),
)
def test_random_updates(update: RandomUpdate, shape: tuple[int, int], dtype: str, gap: int) -> None:
    note(update.source)
    check(matrices(update, shape, dtype, (0, 1)), gap)


def test_updates_that_normalize() -> None:
    """Several matrices whose norms products apply: the launches that save them read one number each."""
    updates = (norm_updates.same_twice, norm_updates.two, norm_updates.crossed, norm_updates.beside)
    entries = [entry for update in updates for entry in entries_for(update, [(24, 40)])]
    assert check(entries) >= {"rows", "elementwise", "matmul"}


def test_rows_that_do_not_fit_on_the_chip_are_read_again() -> None:
    """Plan and explanation say so: gradient and momentum are read by both passes."""
    for rows, cols, per_element, kernel in (
        (2, 9000, 20, "_t512"),
        (2, 80000, 20, "_t384"),
        (1, 90000, 28, "_streaming"),
        (2, 90000, 28, "_streaming"),
    ):
        entries = entries_for(rowwise, [(rows, cols)])
        ((cost, launches, _),) = run(entries)
        assert check(entries) == {"rows"} and launches[0].kernel.endswith(kernel)
        assert cost["bytes"] == per_element * rows * cols
        text = explanation.explain(rowwise, (rows, cols), sections=("plan",), target=CudaTarget.of_arch("sm_90a"))
        assert f" {explanation.quantity(cost['bytes'], 'B')} read and written" in text


def test_checks_of_gradients_read_each_once() -> None:
    params = parameters([(33, 17), (64, 256), (33, 17)], torch.bfloat16)
    with fake_gpu(compiler=CountingCompiler):
        optimizer = AdamW(params, nonfinite="skip")
        for parameter in params:
            parameter.grad = torch.ones_like(parameter)
        optimizer.compile()
        recorder().clear()
        optimizer.step()
        (checked,) = (launch for launch in recorder().take() if launch.kernel == "check_finite_bf16")
    for parameter in params:
        gradient = parameter.grad
        assert gradient is not None
        size = gradient.numel() * gradient.element_size()
        region = shim_traffic.Region(gradient.data_ptr(), 1, size)
        assert checked.reads(region) == (size, size) and checked.writes(region) == (0, 0)


# ---- tests of the tests


def planted(folder: Path, header: str, text: str, replacement: str) -> type[CountingCompiler]:
    """A compiler with a device library that has one fault."""
    copy = Path(shutil.copytree(fake_cuda.LIBRARY, folder / "lib"))
    content = (copy / header).read_text()
    assert content.count(text) == 1
    (copy / header).write_text(content.replace(text, replacement))

    class Planted(CountingCompiler):
        library = copy

    return Planted


_GROUP = """                           ValueOf<T> (&values)[groupSize]) {
  if (count == groupSize && isAligned(pointer)) {
#pragma unroll
    for (int i = 0; i < groupSize; i += accessSize<T>) {
      loadAccess("""
_ROW = "    char *partials = shared;\n"
_USED = 'asm volatile("" : : "m"(extra) : "memory");'


@pytest.mark.parametrize(
    ("header", "text", "read", "message"),
    [
        ("Vector.cuh", _GROUP, "T extra = pointer[0];", r"expects 6000 bytes, but moved \d+"),
        ("Rows.cuh", _ROW, "float extra = static_cast<float *>(matrix.bases[0])[-1];", r"accesses 0x\w+ \(128 reads"),
    ],
    ids=["of an operand", "of something else"],
)
def test_an_extra_read_is_found(tmp_path: Path, header: str, text: str, read: str, message: str) -> None:
    """One more for each group of eight elements, and one before the matrix by each thread."""
    extra = f"{{ {read} {_USED} }}\n"
    replacement = text.replace("  if (count", extra + "  if (count") if header == "Vector.cuh" else extra + text
    compiler = planted(tmp_path, header, text, replacement)
    entries = entries_for(rowwise, [(1, 300)])
    check(entries)
    with pytest.raises(AssertionError, match=message):
        check(entries, compiler=compiler)


def test_a_strip_that_is_copied_twice_is_found(tmp_path: Path) -> None:
    copy = "        TileA::copy(stage, a, pitchA, tile.row * tileSize, m, step * stepDepth,\n                    k);\n"
    compiler = planted(tmp_path, "TileProduct.cuh", copy, copy * 2)
    entries = entries_for(own_muon, [(24, 40)])
    with pytest.raises(AssertionError, match="matmul"):
        check(entries, compiler=compiler)


def test_a_pass_that_reads_memory_again_is_found() -> None:
    """The text of a streaming kernel where the plan counts on rows that are kept."""
    (streaming,) = (
        kernel
        for kernel in lowered_kernels(entries_for(rowwise, [(2, 90000)]))
        if kernel.name.endswith("_t512_streaming")
    )

    class Streaming(CountingCompiler):
        def _build(self, name: str, text: str) -> None:
            if name == streaming.name.removesuffix("_streaming"):
                text = streaming.text.replace(streaming.name, name)
            super()._build(name, text)

    entries = entries_for(rowwise, [(2, 9000)])
    check(entries)
    with pytest.raises(AssertionError, match="expects 360000 bytes, but moved 504000"):
        check(entries, compiler=Streaming)
