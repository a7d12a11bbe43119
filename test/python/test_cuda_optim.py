"""Whole optimizers on a fake GPU: generated CUDA kernels, the launcher and kaon.optim, against the CPU and the
interpreter.

Device memory, streams and kernels are imitated on the CPU (test/cuda/fake, test/cuda/shim). It shows that texts, plans,
tables and launches are right; it shows nothing about a GPU.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_cuda
import kaon
import kaon.language as kl
import pytest
import torch
from cuda_tools import fake_gpu, take_ran, train, unavailable
from hypothesis import given, note, settings
from hypothesis import strategies as st
from kaon import _C, doctor, driver, explain, knobs
from kaon.cuda import Placement
from kaon.cuda_target import CudaTarget
from kaon.language import coefficients
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon
from kaon.optim.bindings import ROW_SCALES
from kaon.optim.parameters import PARAMETER_DTYPES
from optim_tools import (
    assert_bitwise,
    compiled_programs,
    entries_of,
    parameters,
    relative_error,
    set_gradients,
    snapshot,
)
from package_tools import packaged_rowwise
from random_updates import SHAPES as SMALL_SHAPES
from random_updates import RandomUpdate, random_updates
from test_differential import OPTIONS, step_against_interpreter
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Odd sizes, a vector, one element, more than one chunk, and rows for every size of blocks.
SHAPES = [(3, 5), (17, 33), (11,), (1, 1), (40, 260), (7, 1500), (5, 5000), (2, 20000)]
MATRICES = [(24, 40), (40, 24), (130, 130), (33, 257), (24, 40)]


def test_the_driver_is_a_fake_and_everything_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    params = parameters([(3, 5)])
    with fake_gpu():
        optimizer = AdamW(params)
        set_gradients(params, 0)
        optimizer.step()
        text = str(optimizer.plan(show=False))
        found = {finding.name: finding for finding in doctor.findings()}
    (line,) = (line for line in text.splitlines() if line.startswith("target: "))
    assert line.startswith("target: cuda:0 (") and "sm_90a" in line and "FAKE driver" in line
    (program,) = compiled_programs(optimizer)
    assert program.is_fake and program.executor.is_fake
    assert found["cuda driver"].status == "works" and "FAKE" in found["cuda driver"].detail


# ---- what is computed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "maximize": True}], ids=["plain", "amsgrad"])
def test_elementwise_steps_have_the_bits_of_the_cpu(dtype: torch.dtype, options: dict[str, Any]) -> None:
    make = functools.partial(AdamW, lr=0.1, **options)
    expected = train(make, parameters(SHAPES, dtype), 4)
    with fake_gpu():
        actual = train(make, parameters(SHAPES, dtype), 4)
    assert_bitwise(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", ROW_SCALES)
def test_row_steps_have_the_bits_of_the_cpu(dtype: torch.dtype, scale: str) -> None:
    """Two steps before the first refresh."""
    make = functools.partial(PeriodicRowwiseMuon, lr=0.1, row_scale=scale, phase=2)
    shapes = [shape for shape in SHAPES if len(shape) == 2]
    expected = train(make, parameters(shapes, dtype), 2)
    with fake_gpu():
        actual = train(make, parameters(shapes, dtype), 2)
    assert_bitwise(actual, expected)


def test_long_rows_have_the_bits_of_the_cpu() -> None:
    """Of every class: those that 128, 256 and 512 threads keep on the chip, then 384, and those that stream."""
    make = functools.partial(PeriodicRowwiseMuon, lr=0.1, phase=2)
    shapes = [(2, 300), (2, 2050), (2, 20001), (2, 80000), (2, 90000)]
    expected = train(make, parameters(shapes), 2)
    with fake_gpu():
        actual = train(make, parameters(shapes), 2)
    assert_bitwise(actual, expected)


def first_direction(gradient: Tensor, form: str = "lerp", momentum: float = 0.95) -> Tensor:
    """What Muon orthogonalizes at its first step, when the momentum is zero, with the bits that it has."""
    gained = gradient.float() if form == "heavy_ball" else (1 - momentum) * gradient.float()
    return gained + momentum * gained


def newton_schulz(u: Tensor, rows: Any, norm_scale: float, storage: torch.dtype) -> Tensor:
    """The iteration on ``u``, products in f64, with every result rounded to ``storage``; ``u`` is rounded before it is
    divided by its norm, but for float16, which would not hold it.

    What roundings do to small singular values is up to their bits.
    """

    def stored(value: Tensor) -> Tensor:
        return value.to(storage).double()

    norm = norm_scale * u.double().norm()
    x = stored(u.double() / norm) if storage == torch.float16 else stored(u) / norm
    x = x if u.shape[0] <= u.shape[1] else x.t()
    for a, b, c in rows:
        gram = stored(x @ x.t())
        x = stored(a * x + stored(b * gram + c * (gram @ gram)) @ x)
    return x if u.shape[0] <= u.shape[1] else x.t()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("table", "options"),
    [
        (coefficients.KELLER_JORDAN, {"momentum_form": "heavy_ball", "decay_mode": "cautious"}),
        (coefficients.POLAR_EXPRESS, {"ns_coefficients": "polar_express", "ns_norm_scale": 1.05}),
    ],
    ids=["keller jordan", "polar express"],
)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_refreshes_are_as_near_as_products_of_a_type_can_be(
    half: torch.dtype, dtype: torch.dtype, table: Any, options: dict[str, Any]
) -> None:
    """The error against exact products is at most twice that of the same iteration with every result rounded to the
    type of products.

    At the first step the momentum is a multiple of the gradient.
    """
    options = {"lr": 1.0, "weight_decay": 0.0, "adjust_lr_fn": "none", **options}
    make = functools.partial(Muon, **options, product_dtype=half)
    params = parameters(MATRICES, dtype)
    start = [parameter.detach().double() for parameter in params]
    with fake_gpu():
        after = train(make, params, 1)
    on_the_cpu = train(functools.partial(Muon, **options), parameters(MATRICES, dtype), 1)
    assert_bitwise(after[1::2], on_the_cpu[1::2])  # momenta, which are no products
    rows, norm_scale = table.table(5), options.get("ns_norm_scale", 1.0)
    for parameter, before in zip(params, start, strict=True):
        gradient = parameter.grad
        assert gradient is not None
        direction = first_direction(gradient, options.get("momentum_form", "lerp"))
        exact = newton_schulz(direction, rows, norm_scale, torch.float64)
        rounded = newton_schulz(direction, rows, norm_scale, half)
        storing = float(torch.finfo(dtype).eps) * float(before.norm() / exact.norm())
        error = relative_error(before - parameter.detach().double(), exact)
        assert error <= 2 * relative_error(rounded, exact) + storing


def test_products_of_float16_round_eight_times_as_finely() -> None:
    """The error of a whole refresh is a fourth of that with bfloat16 at most, and below 1 % for Gaussian matrices: half
    of the table for products of float16 of matrices whose singular values span two decades, or little more."""
    errors = {}
    for half in ("bfloat16", "float16"):
        params = parameters(MATRICES)
        before = [parameter.detach().double() for parameter in params]
        make = functools.partial(Muon, lr=1.0, weight_decay=0.0, adjust_lr_fn="none", product_dtype=half)
        with fake_gpu():
            train(make, params, 1)
        exact = [newton_schulz(p.grad, coefficients.KELLER_JORDAN.table(5), 1.0, torch.float64) for p in params]  # type: ignore[arg-type]
        errors[half] = [
            relative_error(old - new.detach().double(), wish)
            for old, new, wish in zip(before, params, exact, strict=True)
        ]
    for coarse, fine in zip(errors["bfloat16"], errors["float16"], strict=True):
        assert fine < coarse / 4 and fine < 0.01 < coarse


@pytest.mark.parametrize(("half", "whole", "margin"), [(torch.bfloat16, 6, 2), (torch.float16, 4, 4)], ids=str)
def test_long_matrices_iterate_on_the_gram_matrix(half: torch.dtype, whole: int, margin: float) -> None:
    """Six products with the whole matrix, or four where they are of float16 and one restart is enough, where the
    standard form has ten; and an error of the standard form's size."""
    make = functools.partial(Muon, lr=1.0, weight_decay=0.0, adjust_lr_fn="none")
    target = CudaTarget.of_arch("sm_90a", PARAMETER_DTYPES[half])
    plan = json.loads(driver.lower(driver.emit(entries_of(make, [(256, 640)])).text, target).plan_json)
    launches = [launch["sizes"] for sequence in plan["sequences"] for launch in sequence["launches"]]
    assert sum(len(sizes) == 3 and 640 in sizes for sizes in launches) == whole

    params = parameters([(256, 640)])
    before = params[0].detach().double()
    with fake_gpu():
        train(functools.partial(make, product_dtype=half), params, 1)
    gradient, rows = params[0].grad, coefficients.KELLER_JORDAN.table(5)
    assert gradient is not None
    direction = first_direction(gradient)
    exact = newton_schulz(direction, rows, 1.0, torch.float64)
    rounded = newton_schulz(direction, rows, 1.0, half)
    assert relative_error(before - params[0].detach().double(), exact) <= margin * relative_error(rounded, exact)


# Tiles at edges, two on a side, long matrices that iterate on the Gram matrix, and equal shapes, which share launches.
PRODUCT_SHAPES = [(24, 40), (130, 130), (33, 257), (24, 40), (256, 520)]


@pytest.mark.parametrize(
    ("dtype", "half", "graphs"),
    [(torch.float32, "bfloat16", True), (torch.bfloat16, "float16", True), (torch.float16, "bfloat16", False)],
    ids=str,
)
def test_the_main_loop_of_sm_90a_has_the_bits_of_the_other(dtype: torch.dtype, half: str, graphs: bool) -> None:
    make = functools.partial(PeriodicRowwiseMuon, lr=0.1, period=2, product_dtype=half)
    results, launched, plans = [], [], []
    for loop in knobs.MAIN_LOOPS:
        with fake_gpu():
            knobs.cuda.main_loop = loop
            knobs.cuda.graphs = graphs
            params = parameters(PRODUCT_SHAPES, dtype)
            optimizer = make(params)
            results.append(train(lambda _, made=optimizer: made, params, 3))
            (program,) = compiled_programs(optimizer)
            launched.append({name for name, count in program.executor.matrix_counts.items() if count})
            plans.append(str(optimizer.plan(show=False)))
    assert_bitwise(*results)
    products = [{name for name in names if name.startswith("matmul_")} for names in launched]
    assert {name.replace("_wgmma", "") for name in products[1]} == products[0]
    assert all("_wgmma_" in name for name in products[1])
    assert ["kernels for sm_90a, products by wgmma" in plan for plan in plans] == [False, True]


@kaon.update
def squared(w: kl.param, g: kl.grad, lr: kl.scalar):  # type: ignore[no-untyped-def]
    return w - lr * (g @ g.T) @ w


def test_products_of_the_model_s_own_memory_keep_the_main_loop_of_all() -> None:
    results = []
    for loop in knobs.MAIN_LOOPS:
        with fake_gpu():
            knobs.cuda.main_loop = loop
            params = parameters([(40, 40)], torch.bfloat16)
            results.append(train(lambda params: kaon.optimizer(squared)(params, lr=0.1), params, 2))
    assert_bitwise(*results)


def test_only_sm_90a_has_the_main_loop_of_warpgroups() -> None:
    with fake_gpu(capability=(8, 0)):
        knobs.cuda.main_loop = "wgmma"
        params = parameters([(24, 40)])
        set_gradients(params, 0)
        with pytest.raises(
            knobs.KnobError, match="KAON_MAIN_LOOP=wgmma expects the architecture sm_90a, but got sm_80"
        ):
            Muon(params).step()


@pytest.mark.parametrize(("half", "bound"), [("bfloat16", 0.02), ("float16", 0.0025)])
def test_any_scale_of_gradients_gives_the_same_update(half: str, bound: float) -> None:
    """Also in float16, which holds nothing above 65504 or below 6e-8."""
    updates = []
    with fake_gpu():
        for scale in (1e-30, 1.0, 1e30):
            params = parameters([(24, 40)])
            optimizer = Muon(params, lr=1.0, weight_decay=0.0, product_dtype=half)
            set_gradients(params, 3)
            params[0].grad.mul_(scale)  # type: ignore[union-attr]
            before = params[0].detach().clone()
            optimizer.step()
            updates.append(params[0].detach() - before)
    assert relative_error(updates[0], updates[1]) < bound and relative_error(updates[2], updates[1]) < bound
    assert torch.isfinite(updates[0]).all() and float(updates[0].norm()) > 1.0


def _awkward(layout: str) -> Tensor:
    """A parameter of 17x33 elements whose memory is not what kernels like best."""
    memory = torch.randn(4000, generator=torch.Generator().manual_seed(1))
    views = {
        "unaligned": memory[3 : 3 + 17 * 33].view(17, 33),
        "rows apart": memory[1 : 1 + 17 * 40].view(17, 40)[:, 2:35],
        "transposed": memory[: 33 * 17].view(33, 17).t(),
        "columns apart": memory[: 17 * 66].view(17, 66)[:, ::2],
    }
    return nn.Parameter(views[layout])


@pytest.mark.parametrize("layout", ["unaligned", "rows apart", "transposed", "columns apart"])
@pytest.mark.parametrize("make", [AdamW, functools.partial(PeriodicRowwiseMuon, phase=2)], ids=["elementwise", "rows"])
def test_parameters_and_gradients_may_lie_anywhere(layout: str, make: Any) -> None:
    def step(_: Any, number: int) -> None:
        # Turn the gradient's memory as well, at every other step.
        if number % 2 == 1:
            params[0].grad = params[0].grad.t().contiguous().t()  # type: ignore[union-attr]

    params = [_awkward(layout)]
    expected = train(make, params, 2, step)
    beyond = params[0].untyped_storage()
    with fake_gpu():
        params = [_awkward(layout)]
        actual = train(make, params, 2, step)
    assert_bitwise(actual, expected)
    assert bytes(params[0].untyped_storage()) == bytes(beyond), "wrote beyond the parameter"


def test_refreshes_of_strided_parameters() -> None:
    with fake_gpu():
        plain = [nn.Parameter(_awkward("rows apart").detach().clone().contiguous())]
        expected = train(Muon, plain, 2)
        actual = train(Muon, [_awkward("rows apart")], 2)
    assert_bitwise(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_parameters_without_gradients_do_not_change(dtype: torch.dtype) -> None:
    shapes = [(24, 40), (24, 40), (7,), (24, 40), (3, 5)]

    def skip(optimizer: torch.optim.Optimizer, step: int) -> None:
        params = optimizer.param_groups[0]["params"]
        for index in ((1, 2), (0, 1, 2, 3, 4), (0, 4), ())[step]:
            params[index].grad = None
        kept.append(params[1].detach().clone())

    kept: list[Tensor] = []
    make = functools.partial(PeriodicRowwiseMuon, lr=0.1)
    with fake_gpu():
        actual = train(make, parameters(shapes, dtype), 4, skip)
    assert_bitwise([kept[1], kept[2]], [kept[0], kept[0]])
    # The elementwise ones are those of the CPU, bit by bit; of the others it is enough that they are near.
    expected = train(make, parameters(shapes, dtype), 4, skip)
    for ours, theirs in zip(actual, expected, strict=True):
        assert relative_error(ours, theirs) < 0.1


def test_a_gradient_that_is_not_finite_stops_the_step() -> None:
    params = parameters([(24, 40), (3, 5), (9,)])
    with fake_gpu():
        optimizer = PeriodicRowwiseMuon(params, nonfinite="skip")
        set_gradients(params, 1)
        optimizer.step()
        before = snapshot(optimizer)
        set_gradients(params, 2)
        params[1].grad[2, 4] = float("inf")  # type: ignore[index]
        with pytest.warns(UserWarning, match=r"parameter 1 of shape \(3, 5\)"):
            optimizer.step()
        assert_bitwise(snapshot(optimizer), before)
        assert (optimizer.nonfinite_steps, optimizer.param_groups[0]["step"]) == (1, 1)
        set_gradients(params, 2)
        optimizer.step()
    assert optimizer.param_groups[0]["step"] == 2


def test_the_check_of_gradients_is_what_plan_says() -> None:
    params = [*parameters([(24, 40), (9,)]), *parameters([(3, 5)], torch.bfloat16)]
    with fake_gpu() as fake:
        optimizer = AdamW(params)
        for step in range(2):
            set_gradients(params, step)
            fake.reset_calls()
            optimizer.step()
        checks = {check.name: check for check in optimizer.plan(show=False).checks}
        assert {name: (check.launches, check.bytes) for name, check in checks.items()} == {
            "check_finite_bf16": (1.0, 2 * 15),
            "check_finite_f32": (1.0, 4 * (960 + 9)),
        }
        # The step itself is a graph.
        assert (fake.calls("cuLaunchKernel"), fake.calls("cuMemcpyDtoHAsync")) == (2, 1)


# ---- programs over time


def test_schedules_compile_nothing() -> None:
    params = parameters([(24, 40), (9,)])
    with fake_gpu():
        optimizer = PeriodicRowwiseMuon(params, lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        set_gradients(params, 0)
        optimizer.step()
        before, programs = driver.totals(), compiled_programs(optimizer)
        for step in range(1, 7):
            scheduler.step()
            set_gradients(params, step)
            optimizer.step()
        assert driver.totals() == before
        assert all(a is b for a, b in zip(compiled_programs(optimizer), programs, strict=True))


def test_a_run_resumed_within_a_period_has_the_same_bits() -> None:
    make = functools.partial(PeriodicRowwiseMuon, lr=0.05, row_scale="calibrated")
    shapes = [(24, 40), (40, 24), (9,)]
    with fake_gpu():
        params = parameters(shapes)
        optimizer = make(params)
        for step in range(6):
            if step == 4:
                saved = copy.deepcopy(optimizer.state_dict())
                copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]
                deep = copy.deepcopy(optimizer)
            set_gradients(params, step)
            optimizer.step()
        resumed = make(copies)
        resumed.load_state_dict(saved)
        for other in (resumed, deep):
            for step in range(4, 6):
                set_gradients(other.param_groups[0]["params"], step)
                other.step()
            assert_bitwise(snapshot(other), snapshot(optimizer))


def test_a_state_of_the_cpu_goes_on_on_the_gpu_and_back() -> None:
    shapes = [(17, 33), (9,)]
    make = functools.partial(AdamW, lr=0.05)
    expected = train(make, parameters(shapes), 4)
    params = parameters(shapes)
    optimizer = make(params)
    for step in range(4):
        saved = optimizer.state_dict()
        optimizer = make(params)
        optimizer.load_state_dict(saved)
        set_gradients(params, 100 + step)
        if step % 2:
            with fake_gpu():
                optimizer.step()
        else:
            optimizer.step()
    assert_bitwise(snapshot(optimizer), expected)


def test_a_period_of_one_is_muon() -> None:
    with fake_gpu():
        periodic = train(functools.partial(PeriodicRowwiseMuon, period=1), parameters(MATRICES), 3)
        plain = train(Muon, parameters(MATRICES), 3)
    assert_bitwise(periodic, plain)


@pytest.mark.parametrize(("seed", "graphs"), [(0, True), (1, True), (2, False)])
def test_bits_depend_on_neither_delays_nor_graphs_nor_the_gpu(seed: int, graphs: bool) -> None:
    make = functools.partial(PeriodicRowwiseMuon, lr=0.1, row_scale="calibrated")
    shapes = [(24, 40), (40, 24), (5, 300), (9,)]
    with fake_gpu():
        expected = train(make, parameters(shapes), 4)
    with fake_gpu(capability=(8, 0) if seed else (10, 0), seed=seed, microseconds=200):
        knobs.cuda.graphs = graphs
        actual = train(make, parameters(shapes), 4)
    assert_bitwise(actual, expected)


def _loss_and_weights(make: Any, steps: int = 30) -> tuple[list[float], list[Tensor]]:
    """Train a small network on a task that it can learn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))
    data = torch.randn(256, 12)
    target = torch.tanh(data @ torch.randn(12, 4))
    optimizer = make(model)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def test_training_with_adamw_gives_the_weights_of_the_cpu() -> None:
    make = functools.partial(AdamW, lr=0.01)
    losses, weights = _loss_and_weights(make)
    with fake_gpu():
        ours, theirs = _loss_and_weights(make)
    assert ours == losses
    assert_bitwise(theirs, weights)


def test_training_with_row_steps_gives_nearly_the_weights_of_the_cpu() -> None:
    """Products of bf16 instead of f32 operands: weights agree within 5 %, and losses within 10 %, after 30 steps."""
    make = functools.partial(PeriodicRowwiseMuon, lr=0.02, row_scale="calibrated")
    losses, weights = _loss_and_weights(make)
    with fake_gpu(seed=1, microseconds=50):
        ours, theirs = _loss_and_weights(make)
    assert losses[-1] < losses[0] / 3 and ours[-1] < ours[0] / 3, "nothing was learnt"
    assert abs(ours[-1] - losses[-1]) < 0.1 * losses[-1]
    for actual, expected in zip(theirs, weights, strict=True):
        assert relative_error(actual, expected) < 0.05


def test_a_warm_start_compiles_nothing(tmp_path: Path) -> None:
    knobs.cache.directory = tmp_path / "cache"
    statistics, results = [], []
    with fake_gpu():
        for _ in range(2):
            optimizer = AdamW(parameters([(3, 5), (9,)]))
            set_gradients(optimizer.param_groups[0]["params"], 0)
            optimizer.step()
            (program,) = compiled_programs(optimizer)
            statistics.append(program.statistics)
            results.append(snapshot(optimizer))
    cold, warm = statistics
    assert cold.kernels_compiled == warm.kernels_loaded == len(program.kernel_names) > 1
    assert (cold.programs_lowered, warm.programs_lowered, warm.programs_loaded, warm.kernels_compiled) == (1, 0, 1, 0)
    assert_bitwise(*results)


# ---- what is launched


def test_launches_are_those_that_the_plan_predicts() -> None:
    params = parameters([(24, 40), (24, 40), (40, 24), (9,), (3, 5)])
    with fake_gpu() as fake:
        knobs.cuda.graphs = False
        optimizer = PeriodicRowwiseMuon(params, period=3, nonfinite="propagate")
        set_gradients(params, 0)
        optimizer.compile()
        plan = optimizer.plan(show=False)
        (program,) = compiled_programs(optimizer)
        fake.reset_calls()
        for step in range(6):
            set_gradients(params, step)
            optimizer.step()
        launched = fake.calls("cuLaunchKernelEx") + fake.calls("cuLaunchKernel")
        predicted = sum(cost["launches"] for cost in program.plan.costs)
    assert launched == 2 * predicted
    assert sum(kernel.launches for kernel in plan.kernels) == pytest.approx(predicted / 3)
    # The executor counts matrices: every kernel of the plan ran on each matrix it is for.
    counts = program.executor.matrix_counts
    assert set(counts) == {kernel.name for kernel in plan.kernels} and all(counts.values())


@dataclass(frozen=True)
class _Run:
    """What some steps of an optimizer on the fake did: its parameters and states, the launches of each step, and the
    plan."""

    contents: list[Tensor]
    launches: list[list[fake_cuda.Launch]]
    plan: dict[str, Any]
    kernels: float
    predicted: int


def _run(make: Any, shapes: list[tuple[int, ...]], missing: Sequence[Sequence[int]]) -> _Run:
    """One step for each list of parameters without gradients, which are those of :func:`train` otherwise."""
    params = parameters(shapes)
    with fake_gpu() as fake:
        knobs.cuda.graphs = False
        optimizer = make(params, nonfinite="propagate")
        set_gradients(params, 0)
        optimizer.compile()
        launches = []
        for step, skipped in enumerate(missing):
            set_gradients(params, 100 + step)
            for index in skipped:
                params[index].grad = None
            with fake.recording() as recorded:
                optimizer.step()
                launches.append(recorded())
        (program,) = compiled_programs(optimizer)
        return _Run(
            snapshot(optimizer),
            launches,
            json.loads(program.plan.to_json()),
            sum(kernel.launches for kernel in optimizer.plan(show=False).kernels),
            sum(cost["launches"] for cost in program.plan.costs),
        )


def _planned(plan: dict[str, Any], skipped: Sequence[int] = ()) -> Iterator[tuple[str, list[int]]]:
    """The launches that a plan of one phase tells: the kernel, and the blocks of each matrix with a gradient."""
    (phase,) = plan["phases"]
    for group in phase:
        for parts in group["launches"]:
            blocks: list[int] = []
            for part in parts:
                bucket = group["buckets"][part["bucket"]]
                launch = plan["sequences"][bucket["sequence"]]["launches"][part["launch"]]
                blocks += [launch["items"]] * sum(member not in skipped for member in bucket["members"])
                kernel = plan["kernels"][launch["kernel"]]["name"]
            if blocks:
                yield kernel, blocks


def _assert_as_planned(run: _Run, missing: Sequence[Sequence[int]]) -> None:
    """Every launch is the one of the plan: its kernel, its blocks, and the list that products find their shapes in."""
    for launches, skipped in zip(run.launches, missing, strict=True):
        planned = list(_planned(run.plan, skipped))
        assert [(launch.kernel, launch.blocks) for launch in launches] == [
            (name, sum(items)) for name, items in planned
        ]
        for launch, (name, items) in zip(launches, planned, strict=True):
            if name.startswith("matmul"):
                assert launch.products == (len(items), items[0] if len(set(items)) == 1 else 0)


# Tall, wide, square, small and ragged matrices, some of them alike; one that iterates on its Gram matrix among others.
UNEQUAL = [(24, 40), (40, 24), (24, 40), (24, 24), (7, 9), (130, 33), (33, 257)]
LONG = [(256, 640), (48, 48), (640, 256), (40, 24)]
# The pipeline without groups of buckets that need a workspace.
APART = f"{CudaTarget.schedule_pipeline}{{max-group-workspace-bytes=0}}"


@pytest.mark.parametrize(("shapes", "steps"), [(UNEQUAL, 2), (LONG, 1)], ids=["standard", "gram"])
def test_unequal_shapes_share_launches(
    shapes: list[tuple[int, ...]], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: list[tuple[int, ...]] = [()] * steps
    shared = _run(Muon, shapes, missing)
    _assert_as_planned(shared, missing)
    assert all(len(launches) == shared.predicted for launches in shared.launches)
    assert shared.kernels == pytest.approx(shared.predicted)
    text = "\n".join(explain.describe_plan(shared.plan))
    assert f"every step: {shared.predicted} launches" in text and "buckets in lock-step" in text
    # Products of unequal shapes are one launch, which finds out by itself what a tile belongs to.
    products = [launch for launch in shared.launches[0] if launch.kernel.startswith("matmul")]
    assert any(count > 1 and tiles == 0 for count, tiles in (launch.products for launch in products))

    monkeypatch.setattr(CudaTarget, "schedule_pipeline", APART)
    apart = _run(Muon, shapes, missing)
    _assert_as_planned(apart, missing)
    assert shared.predicted < apart.predicted == sum(len(sequence["launches"]) for sequence in apart.plan["sequences"])
    assert_bitwise(shared.contents, apart.contents)


def test_shared_launches_leave_out_what_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single matrices, all of a shape, all but one, and all."""
    missing: list[Sequence[int]] = [(0,), (1, 3), (0, 1, 2, 3, 4, 6), range(len(UNEQUAL)), ()]
    shared = _run(Muon, UNEQUAL, missing)
    _assert_as_planned(shared, missing)
    assert shared.launches[3] == [] and len(shared.launches[4]) == shared.predicted
    monkeypatch.setattr(CudaTarget, "schedule_pipeline", APART)
    assert_bitwise(shared.contents, _run(Muon, UNEQUAL, missing).contents)


def test_rows_that_share_a_launch_get_the_shared_memory_of_the_longest() -> None:
    shapes = [(2, 20000), (3, 30000)]
    make = functools.partial(PeriodicRowwiseMuon, lr=0.1, phase=2)
    run = _run(make, shapes, [()])
    _, (group,), _ = run.plan["phases"]
    needs = [sequence["launches"][0]["sharedBytes"] for sequence in run.plan["sequences"]]
    assert [len(parts) for parts in group["launches"]] == [2] and len(set(needs)) > 1
    assert_bitwise(run.contents, train(make, parameters(shapes), 1))


def test_shared_launches_have_the_same_bits_by_graphs_and_with_delays() -> None:
    with fake_gpu(seed=3, microseconds=200):
        by_graphs = train(Muon, parameters(UNEQUAL), 3)
    with fake_gpu():
        knobs.cuda.graphs = False
        one_by_one = train(Muon, parameters(UNEQUAL), 3)
    assert_bitwise(by_graphs, one_by_one)


def test_a_launch_covers_all_matrices_alike() -> None:
    """The number of launches does not grow with the number of matrices of one kind."""
    counts = []
    with fake_gpu():
        for layers in (1, 6):
            params = parameters([(24, 40), (9,)] * layers)
            optimizer = PeriodicRowwiseMuon(params, period=2)
            set_gradients(params, 0)
            optimizer.compile()
            (program,) = compiled_programs(optimizer)
            counts.append([cost["launches"] for cost in program.plan.costs])
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("dtype", "adamw", "row_step"), [(torch.float32, 28, 20), (torch.bfloat16, 22, 14)], ids=["f32", "bf16"]
)
def test_bytes_are_those_that_cannot_be_avoided(dtype: torch.dtype, adamw: int, row_step: int) -> None:
    """Per element: AdamW reads parameter, gradient and two states and writes all but the gradient; a row step has one
    state."""
    rows, cols = 64, 256
    with fake_gpu():
        for make, per_element in (
            (AdamW, adamw),
            (functools.partial(PeriodicRowwiseMuon, period=2, phase=1), row_step),
        ):
            params = parameters([(rows, cols)], dtype)
            optimizer: Any = make(params)  # type: ignore[operator]
            set_gradients(params, 0)
            optimizer.compile()
            (program,) = compiled_programs(optimizer)
            costs = program.plan.costs
            moved = min(cost["bytes"] for cost in costs)
            assert per_element * rows * cols <= moved <= per_element * rows * cols + 64 * rows


def test_memory_comes_when_the_program_is_made_and_goes_with_it() -> None:
    params = parameters([(24, 40), (9,)])
    with fake_gpu() as fake:
        before = fake.allocated_bytes()
        optimizer = Muon(params)
        set_gradients(params, 0)
        optimizer.step()
        held = fake.allocated_bytes()
        assert held > before
        for step in range(1, 4):
            set_gradients(params, step)
            optimizer.step()
            assert fake.allocated_bytes() == held
        del optimizer
        assert fake.allocated_bytes() == before


# ---- looking inside, and failing


def test_an_edited_kernel_is_what_runs(tmp_path: Path) -> None:
    params = parameters([(3, 5)])
    knobs.debug.dump, knobs.debug.dump_directory = "cuda,ptx,log", tmp_path / "dump"
    with fake_gpu():
        expected = train(AdamW, parameters([(3, 5)]), 1)
        (directory,) = (tmp_path / "dump").iterdir()
        assert directory.name.endswith("-cuda")
        (source,) = (path for path in directory.glob("42-*.cu") if "check_finite" not in path.name)
        name = source.name.removeprefix("42-").removesuffix(".cu")
        assert f".entry {name}(" in (directory / f"44-{name}.ptx").read_text()
        assert "registers" in (directory / f"46-{name}.log").read_text()
        knobs.debug.dump = "0"
        override = tmp_path / "override"
        override.mkdir()
        knobs.compilation.override_directory = override
        (override / source.name).write_text(source.read_text())
        assert_bitwise(train(AdamW, parameters([(3, 5)]), 1), expected)
        (override / source.name).write_text(source.read_text().replace("runElementwise", "missing"))
        with pytest.raises(_C.CompileError, match=rf"cannot compile {override}/{source.name} for sm_90a") as caught:
            train(AdamW, params, 1)
        assert 'identifier "missing" is undefined' in str(caught.value)


def test_a_failing_driver_is_reported_and_the_step_can_be_repeated() -> None:
    params = parameters([(3, 5)])
    expected = train(AdamW, parameters([(3, 5)]), 1)
    with fake_gpu() as fake:
        optimizer = AdamW(params)
        set_gradients(params, 100)
        before = snapshot(optimizer)
        fake.fail("cuModuleLoadDataEx", 209)  # no binary for GPU
        fake.fail("cuModuleLoadData", 209)
        with pytest.raises((_C.CudaError, ValueError), match="kernel"):
            optimizer.step()
        assert_bitwise(snapshot(optimizer), before)
        fake.fail("cuModuleLoadDataEx", 0)
        fake.fail("cuModuleLoadData", 0)
        optimizer.step()
    assert_bitwise(snapshot(optimizer), expected)


def test_other_architectures_get_ptx() -> None:
    """A GPU that this NVRTC does not know runs what the driver makes of PTX, if the fake can load that."""
    with fake_gpu(capability=(15, 0)):
        optimizer = AdamW(parameters([(3, 5)]))
        set_gradients(optimizer.param_groups[0]["params"], 100)
        optimizer.step()
        (program,) = compiled_programs(optimizer)
    assert "kernels for compute_80" in program.target
    assert_bitwise(snapshot(optimizer), train(AdamW, parameters([(3, 5)]), 1))


def test_parameters_on_the_cpu_and_a_gpu_in_one_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other parameter counts as of a GPU, which the fake is; each device has a program of its own."""
    from kaon.optim import base, devices, program

    gpu = torch.device("cuda", 0)
    params = parameters([(17, 33), (9,), (3, 5), (24, 40)])
    on_gpu = {id(parameter) for parameter in params[1::2]}
    expected = train(AdamW, parameters([(17, 33), (9,), (3, 5), (24, 40)]), 3)
    joining = base._Cohort.joining.__func__  # type: ignore[attr-defined]
    queue = [gpu if id(parameter) in on_gpu else torch.device("cpu") for parameter in params]

    def joined(cls: Any, cohorts: Any, device: torch.device, step: int, period: int) -> Any:
        return joining(cls, cohorts, queue.pop(0), step, period)

    def target(device: torch.device, threads: int | None, product_dtype: str | None) -> Any:
        knobs.runtime.target = "cuda" if device == gpu else "cpu"
        return devices.target_for(torch.device("cpu"), threads, product_dtype)

    monkeypatch.setattr(base._Cohort, "joining", classmethod(joined))
    monkeypatch.setattr(program, "target_for", target)
    with fake_gpu():
        optimizer = AdamW(params)
        for step in range(3):
            set_gradients(params, 100 + step)
            optimizer.step()
        targets = [compiled.target.split()[0] for compiled in compiled_programs(optimizer)]
        params[1].grad[0] = float("nan")  # type: ignore[index]
        before = snapshot(optimizer)
        with pytest.warns(UserWarning, match=r"parameter 1 of shape \(9,\)"):
            optimizer.step()
    assert targets == ["cpu", "cuda:0"]
    assert_bitwise(before, expected)
    assert_bitwise(snapshot(optimizer), expected)
    assert fake_cuda.fake().take_faults() == []


@settings(max_examples=5, **OPTIONS)
@given(
    update=random_updates(max_statements=4),
    shape=SMALL_SHAPES,
    dtype=st.sampled_from(["f32", "f32", "bf16", "f16"]),
    half=st.sampled_from(["bf16", "f16"]),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_updates_are_the_interpreter(
    update: RandomUpdate, shape: tuple[int, int], dtype: str, half: str, padding: int, seed: int
) -> None:
    note(update.source)
    with fake_gpu(seed=1):
        target = CudaTarget.of_device(Placement(wait=True), half)
        step_against_interpreter(update, shape, dtype, padding, seed, target, product=half)


@pytest.mark.parametrize("half", ["bf16", "f16"])
def test_newton_schulz_is_the_interpreter(half: str) -> None:
    """Refresh and row step of one program, three matrices, to what products of a type promise."""
    source = "\n".join(
        [
            "import kaon",
            "import kaon.language as kl",
            "@kaon.update",
            "def update(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar):",
            "    m = kl.lerp(m, g, 1 - mu)",
            "    if kl.every(2):",
            "        o = kl.newton_schulz(m)",
            "    else:",
            "        o = kl.row_normalize(m)",
            "    return w - lr * o, m",
            "",
        ]
    )
    with fake_gpu(seed=1):
        target = CudaTarget.of_device(Placement(wait=True), half)
        step_against_interpreter(RandomUpdate(source, ["state"], True, 2), (24, 40), "f32", 1, 7, target, product=half)


# ---- the option


def _on_the_fake(make: Any, shapes: Any = ((24, 40), (9,))) -> Any:
    optimizer = make(parameters(shapes))
    set_gradients(optimizer.param_groups[0]["params"], 0)
    return optimizer


@pytest.mark.parametrize(
    ("given", "name", "kernel"),
    [
        (None, "bfloat16", "matmul_bf16"),
        ("bfloat16", "bfloat16", "matmul_bf16"),
        (torch.bfloat16, "bfloat16", "matmul_bf16"),
        ("float16", "float16", "matmul_f16"),
        (torch.float16, "float16", "matmul_f16"),
    ],
)
def test_the_plan_says_what_products_are_of(given: Any, name: str, kernel: str) -> None:
    with fake_gpu():
        optimizer = _on_the_fake(functools.partial(Muon, product_dtype=given))
        plan = optimizer.plan(show=False)
    assert optimizer.product_dtype == (None if given is None else name)
    assert plan.targets[0].endswith(f", products of {name}") and f", products of {name}\n" in f"{plan}\n"
    products = [found.name for found in plan.kernels if found.schedule == "matmul"]
    assert products and all(found.startswith(kernel) for found in products)


@kaon.update
def signed(w: kl.param, g: kl.grad, lr: kl.scalar):
    return w - lr * kl.sign(g)


def test_updates_of_ones_own_have_the_option() -> None:
    cls = kaon.optimizer(packaged_rowwise)
    results = []
    with fake_gpu():
        for half in ("bfloat16", "float16"):
            make = functools.partial(cls, lr=0.1, product_dtype=half)
            assert _on_the_fake(make).plan(show=False).targets[0].endswith(f", products of {half}")
            results.append(train(make, parameters([(24, 40)]), 1)[0])
    assert 0 < relative_error(*results) < 0.02


def test_an_option_without_effect_is_told() -> None:
    with fake_gpu():
        plan = _on_the_fake(functools.partial(kaon.optimizer(signed), lr=0.1, product_dtype="float16")).plan(show=False)
        assert plan.notes[-1].startswith("product_dtype 'float16' changes nothing: no update of a parameter on a GPU")
        plan = _on_the_fake(functools.partial(kaon.optimizer(signed), lr=0.1)).plan(show=False)
        assert not any("product_dtype" in note for note in plan.notes) and "products of" not in str(plan)


def test_the_option_stays_with_copies_and_resumed_runs() -> None:
    """It is compiled in and no part of a checkpoint: states do not depend on it."""
    make = functools.partial(Muon, lr=0.1, product_dtype="float16")
    with fake_gpu():
        params = parameters([(24, 40)])
        optimizer = make(params)
        set_gradients(params, 0)
        optimizer.step()
        duplicate = copy.deepcopy(optimizer)
        assert duplicate.product_dtype == "float16"
        resumed = make([nn.Parameter(params[0].detach().clone())])
        resumed.load_state_dict(optimizer.state_dict())
        for each in (optimizer, duplicate, resumed):
            set_gradients(each.param_groups[0]["params"], 1)
            each.step()
        assert_bitwise(snapshot(duplicate), snapshot(optimizer))
        assert_bitwise(snapshot(resumed), snapshot(optimizer))


@kaon.update
def noted(w: kl.param, g: kl.grad, lr: kl.scalar):  # type: ignore[no-untyped-def]
    return w - lr * (g + 0.0625)


def test_kernels_that_ran_are_noted_once() -> None:
    """For the summary of tools/run_tests.py, which they are of whatever test ran them first."""
    take_ran()
    with fake_gpu():
        train(functools.partial(kaon.optimizer(noted), lr=0.1), parameters([(3, 5)]), 1)
        train(functools.partial(kaon.optimizer(noted), lr=0.1), parameters([(3, 5)]), 1)
    assert [name.split("_")[0] for name in take_ran()] == ["kernel"]
    assert take_ran() == []
