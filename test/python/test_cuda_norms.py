"""Gradients of any size on a fake GPU, whose products divide by the norm themselves (kaon-fold-norms).

The kernels run on the CPU, in the shim: see test_cuda_optim.py for what that shows.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kaon
import kaon.language as kl
import language_examples as examples
import norm_updates
import numpy as np
import pytest
import torch
from cuda_tools import fake_gpu, unavailable
from hypothesis import given, note, settings
from hypothesis import strategies as st
from kaon import _C, driver, knobs
from kaon.cpu_target import CpuTarget
from kaon.cuda import Placement
from kaon.cuda_target import CudaTarget
from kaon.interpreter import Interpreter, round_to
from kaon.language import coefficients
from kaon.optim import Muon, PeriodicRowwiseMuon
from norm_updates import unfolded
from optim_tools import assert_bitwise, parameters, relative_error, set_gradients, snapshot
from random_updates import SHAPES, RandomUpdate, normalized_updates, random_updates
from test_cuda_optim import first_direction, newton_schulz
from test_differential import OPTIONS, matrices
from torch import Tensor

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

SCALES = (1e-40, 1e-30, 1e-18, 1.0, 1e18, 1e30, None)
"""None: the largest element is the largest number of f32, which bf16 would round to infinity."""


def scaled(gradient: Tensor, scale: float | None) -> Tensor:
    largest = torch.finfo(torch.float32).max
    return gradient * scale if scale is not None else gradient * (largest / float(gradient.abs().max()))


def updates(make: Any, params: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    """What the first step subtracts from each parameter, on a fake GPU."""
    before = [parameter.detach().double() for parameter in params]
    with fake_gpu():
        optimizer = make(list(params))
        for parameter, gradient in zip(params, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [old - new.detach().double() for old, new in zip(before, params, strict=True)]


def is_near(update: Tensor, gradient: Tensor, before: Tensor) -> bool:
    """The bound of test_cuda_optim.py: twice the error of the same iteration with every result rounded to bf16."""
    rows = coefficients.KELLER_JORDAN.table(5)
    # A subnormal direction would be another matrix in bf16; the largest one has no norm in f32.
    direction = first_direction(gradient / gradient.abs().max())
    exact = newton_schulz(direction, rows, 1.0, torch.float64)
    rounded = newton_schulz(direction, rows, 1.0, torch.bfloat16)
    storing = float(torch.finfo(torch.float32).eps) * float(before.norm() / exact.norm())
    return relative_error(update, exact) <= 2 * relative_error(rounded, exact) + storing


PLAIN = functools.partial(Muon, lr=1.0, weight_decay=0.0, adjust_lr_fn="none")


@pytest.mark.parametrize(
    ("shape", "scales", "seed"),
    [
        *((shape, SCALES, 3) for shape in [(24, 40), (40, 24), (33, 17)]),
        ((256, 640), (1e-30, 1.0, 1e30), 0),  # the Gram form, which applies the norm twice as well
    ],
)
def test_a_bucket_of_all_scales(shape: tuple[int, int], scales: Sequence[float | None], seed: int) -> None:
    """The power of two that saves a matrix is its own: those beside it have others."""
    params = parameters([shape] * len(scales))
    set_gradients(params, seed)
    gradients = [scaled(parameter.grad, scale) for parameter, scale in zip(params, scales, strict=True)]  # type: ignore[arg-type]
    before = [parameter.detach().double() for parameter in params]
    for update, gradient, old, scale in zip(updates(PLAIN, params, gradients), gradients, before, scales, strict=True):
        if scale == 1e-40:
            continue  # few bits are left of it, and the reference knows fewer
        assert is_near(update, gradient, old), scale


def test_powers_of_two_change_no_bit() -> None:
    """A matrix that is saved has the products of one that need not be, but for their exponents."""
    exponents = (-100, -60, -20, 0, 20, 60, 120)
    (parameter,) = parameters([(24, 40)])
    set_gradients([parameter], 1)
    gradient = parameter.grad
    assert gradient is not None
    params = [torch.nn.Parameter(torch.zeros(24, 40)) for _ in exponents]
    first, *others = updates(PLAIN, params, [gradient * 2.0**exponent for exponent in exponents])
    assert float(first.norm()) > 1
    assert_bitwise(others, [first] * len(others))


@pytest.mark.parametrize("optimizer", ["muon", "periodic", "calibrated"])
def test_awkward_matrices(optimizer: str) -> None:
    """Zeros stay zeros, and nothing finite becomes a number that is not, in a bucket with what is huge and tiny."""
    make = {
        "muon": PLAIN,
        "periodic": functools.partial(PeriodicRowwiseMuon, lr=1.0, weight_decay=0.0, period=1),
        "calibrated": functools.partial(
            PeriodicRowwiseMuon, lr=1.0, weight_decay=0.0, period=2, row_scale="calibrated"
        ),
    }[optimizer]
    torch.manual_seed(0)
    normal = torch.randn(24, 40)
    zero_rows, spike, tiny_spike = normal.clone(), normal.clone(), torch.zeros(24, 40)
    zero_rows[3:9] = 0
    spike[5, 7] = 1e30
    tiny_spike[5, 7] = 1e-30
    gradients = [torch.zeros(24, 40), zero_rows, spike, tiny_spike, normal * 1e30, normal * 1e-30, normal]
    params = [torch.nn.Parameter(torch.zeros(24, 40)) for _ in gradients]
    found = updates(make, params, gradients)
    assert all(torch.isfinite(update).all() for update in found)
    zero, rows, single, tiny, *alike = found
    assert not zero.any()
    assert not rows[3:9].any() and rows[9:].any(dim=1).all()
    assert relative_error(tiny, single) < 0.01  # both have one singular value
    for update in alike[:2]:
        assert relative_error(update, alike[2]) < 0.02


@kaon.update
def shampoo_like(w: kl.param, g: kl.grad, lr: kl.scalar):
    """A user's own: divided by the largest element, one product with each side."""
    x = g / kl.max(kl.abs(g))
    return w - lr * ((x @ x.T) @ x)


@kaon.update
def unguarded(w: kl.param, g: kl.grad, lr: kl.scalar):
    """The same with a kernel that no other test has, because a process never runs two of one name."""
    u = kl.abs(g)
    x = u / kl.max(u)
    return w - lr * ((x @ x.T) @ x)


Matrices = Sequence[np.ndarray[Any, Any]]
"""Parameter, gradient and states."""
SCALARS = {"lr": 0.25, "momentum": 0.9, "mu": 0.75}


class Oracle:
    """The interpreter in f64, for one update and shape."""

    def __init__(self, update: Any, shape: tuple[int, int]):
        text = driver.emit([driver.MatrixEntry(update, *shape, "f32", "f32")]).text
        self._program = _C.parse(text).to_python()
        self._interpreter = Interpreter(self._program, "float64")
        ((self._symbol, _),) = self._interpreter.schedule(1)
        arguments = self._interpreter.arguments(self._symbol)
        self.scalars = [SCALARS[argument.name] for argument in arguments if argument.role == "scalar"]
        self.num_states = sum(argument.role == "state" for argument in arguments)

    def step(self, matrices: Matrices) -> list[Any]:
        """The new parameter and states."""
        return list(self._interpreter.call(self._symbol, *matrices, *self.scalars, 1))

    def amplification(self, matrices: Matrices) -> list[float]:
        """How much larger than that of every operation the error of each result is."""
        noise, exact = 1e-9, self.step(matrices)
        moved = [Interpreter(self._program, noise=noise, seed=seed) for seed in range(3)]
        results = [one.call(self._symbol, *matrices, *self.scalars, 1) for one in moved]
        return [max(relative(one[at], exact[at]) for one in results) / noise for at in range(len(exact))]


def stepped(update: Any, matrices: Sequence[Matrices], target: driver.Target | None = None) -> list[Matrices]:
    """What a step makes of one bucket of f32 matrices, on a fake GPU if no target is given: parameter, gradient and
    states of each."""
    shape = matrices[0][0].shape
    with fake_gpu():
        entries = [driver.MatrixEntry(update, *shape, "f32", "f32") for _ in matrices]
        program = driver.compile_program(entries, target=target or CudaTarget.of_device(Placement(wait=True)))
        memories = [[tensor.astype(np.float32) for tensor in tensors] for tensors in matrices]
        addresses = [number for memory in memories for array in memory for number in (array.ctypes.data, shape[1])]
        assert program.step(1, addresses, [Oracle(update, shape).scalars], False) == 0
    return memories


def starts(update: Any, shape: tuple[int, int], scales: Sequence[float]) -> list[Matrices]:
    """Matrices of these scales, which parameters of zero are changed by: the smallest change shows."""
    generator = np.random.default_rng(5)
    base = [generator.standard_normal(shape) for _ in range(1 + Oracle(update, shape).num_states)]
    return [[np.zeros(shape), *(round_to(tensor * scale, "f32") for tensor in base)] for scale in scales]


def errors(update: Any, shape: tuple[int, int], scales: Sequence[float]) -> list[float]:
    """Relative errors of steps with gradients and momenta of these scales, all in one bucket."""
    oracle, matrices = Oracle(update, shape), starts(update, shape, scales)
    found = stepped(update, matrices)
    return [relative(memory[0], oracle.step(tensors)[0]) for memory, tensors in zip(found, matrices, strict=True)]


def relative(actual: Any, wanted: Any) -> float:
    return float(np.linalg.norm(actual - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("update", [examples.own_muon, shampoo_like], ids=["own muon", "own product"])
@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_iterations_of_users(update: Any, shape: tuple[int, int]) -> None:
    assert max(errors(update, shape, (1e-30, 1e-18, 1.0, 1e18, 1e30))) <= 0.03


def check_random(
    update: RandomUpdate, shape: tuple[int, int], seed: int, target: driver.Target | None, promised: float, unit: float
) -> None:
    """Compare steps with gradients and momenta of all sizes with the interpreter's. ``promised``: the relative error of
    an iteration by itself; ``unit``: that of a rounding, of which results may have eight times what they amplify."""
    note(update.source)
    compiled = update.compile()
    oracle = Oracle(compiled, shape)
    generator = np.random.default_rng(seed)
    matrices = []
    for scales in itertools.product((1e-32, 1.0, 1e34), repeat=2):
        base = [generator.standard_normal(shape) * scale for scale in scales]
        matrices.append([np.zeros(shape), *(round_to(tensor, "f32") for tensor in base)])
    for before, after in zip(matrices, stepped(compiled, matrices, target), strict=True):
        exact, factors = oracle.step(before), oracle.amplification(before)
        for index, (found, wanted, factor) in enumerate(zip((after[0], *after[2:]), exact, factors, strict=True)):
            assert relative(found, wanted) <= max(promised, 8 * factor * unit), f"result {index}"


@settings(max_examples=25, **OPTIONS)
@given(update=normalized_updates(), shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_random_updates_of_any_size_on_the_cpu(update: RandomUpdate, shape: tuple[int, int], seed: int) -> None:
    check_random(update, shape, seed, CpuTarget(2), 1e-5, 2.0**-24)


@settings(max_examples=2, **OPTIONS)
@given(update=normalized_updates(), shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_random_updates_of_any_size(update: RandomUpdate, shape: tuple[int, int], seed: int) -> None:
    check_random(update, shape, seed, None, 0.03, 2.0**-9)


def unfolded_target() -> CudaTarget:
    with fake_gpu():
        return unfolded(CudaTarget.of_device(Placement(wait=True)))


@kaon.update
def of_size_one(w: kl.param, g: kl.grad, lr: kl.scalar):
    """Divided by the norm; zero stays zero."""
    x = kl.normalize(g)
    return w - lr * ((x @ x.T) @ x)


LIMIT = np.float32(1.0)


@pytest.mark.parametrize("update", [shampoo_like, of_size_one], ids=lambda update: update.name)
@pytest.mark.parametrize("shape", [(8, 12), (3, 1)])
@pytest.mark.parametrize(
    ("largest", "lowest"),
    [(LIMIT, -141), (np.nextafter(LIMIT, np.float32(0)), -125), (np.nextafter(LIMIT, np.float32(2)), -126)],
    ids=["one", "below", "above"],
)
def test_no_power_of_two_changes_a_bit(update: Any, shape: tuple[int, int], largest: Any, lowest: int) -> None:
    """A matrix times every power of two with which f32 holds it, subnormal ones among them. What `shampoo_like` divides
    by is then each bound of the rescue, 2^32, 2^-32, 2^96 and 2^-96, and its neighbours on either side."""
    base = np.random.default_rng(2).integers(-255, 256, shape) / 256
    base[0, 0] = largest
    exponents = [0, *range(lowest, 128)]
    matrices = [[np.zeros(shape), base * 2.0**exponent] for exponent in exponents]
    assert all(np.array_equal(np.float32(g), g) for _, g in matrices)
    first, *others = [memory[0] for memory in stepped(update, matrices)]
    assert relative(first, Oracle(update, shape).step(matrices[0])[0]) <= 0.03
    changed = [
        exponent for exponent, other in zip(exponents[1:], others, strict=True) if not np.array_equal(other, first)
    ]
    assert changed == []


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2)])
def test_a_single_subnormal_element(shape: tuple[int, int]) -> None:
    """The smallest number of f32 alone, whose inverse f32 does not hold, and the largest."""
    matrices = []
    for number in (2.0**-149, -(2.0**-149), 2.0**-32, 2.0**32, float(np.finfo(np.float32).max)):
        matrix = np.zeros(shape)
        matrix[-1, -1] = number
        matrices.append([np.zeros(shape), matrix])
    for memory, (_, gradient) in zip(stepped(of_size_one, matrices), matrices, strict=True):
        # bf16 rounds the largest number to infinity, if it is not divided first, and one over it times it to one.
        assert relative(memory[0], -SCALARS["lr"] * np.sign(gradient)) <= 0.01


def test_what_is_not_a_number() -> None:
    """Infinities and NaN leave the numbers that they leave without the pass, and zeros stay zeros."""
    shape = (8, 12)
    normal = np.random.default_rng(3).standard_normal(shape)
    matrices = []
    for number in (0.0, np.inf, -np.inf, np.nan):
        for gradient in (np.zeros(shape), normal.copy(), normal * 1e30, normal * 1e-30):
            gradient[2, 5] = number
            matrices.append([np.zeros(shape), gradient])
    folded, separate = stepped(of_size_one, matrices), stepped(of_size_one, matrices, unfolded_target())
    for (after, gradient), (wanted, _) in zip(folded, separate, strict=True):
        assert np.array_equal(np.isfinite(after), np.isfinite(wanted))
        assert np.isfinite(after).all() == np.isfinite(gradient).all()
    assert not folded[0][0].any()


@pytest.mark.parametrize("exponent", [-40, -37, -36, 0, 27, 28, 40])
@pytest.mark.parametrize("size", [1e-34, 1e-30, 1e30, 1e34])
def test_beside_a_matrix_of_any_size(exponent: int, size: float) -> None:
    """A product of a normalized matrix with one near the limits of f32 ends where the quotient's product ends, on both
    sides of the bounds of the number, which are met at a norm of 2^-32 and 2^32: that of the gradient is 2^5 here."""
    shape = (24, 40)
    ((parameter, gradient, momentum),) = starts(norm_updates.raw, shape, [1.0])
    assert 2**4.5 < np.linalg.norm(gradient) < 2**5
    matrices = [parameter, round_to(gradient * 2.0**exponent, "f32"), round_to(momentum * size, "f32")]
    wanted = Oracle(norm_updates.raw, shape).step(matrices)[0]
    for target in (None, unfolded_target()):
        ((found, *_),) = stepped(norm_updates.raw, [matrices], target)
        assert relative(found, wanted) <= 0.03


@pytest.mark.parametrize("name", ["same_twice", "two", "crossed", "clipped"])
def test_several_matrices_and_what_is_beside_them(name: str) -> None:
    # What is not divided, because it is small, has a cube that f32 does not hold.
    scales = (1.0, 1e18, 1e30) if name == "clipped" else (1e-30, 1e-18, 1.0, 1e18, 1e30)
    assert max(errors(norm_updates.UPDATES[name], (24, 40), scales)) <= 0.03


def test_without_the_guard_they_are_lost(tmp_path: Path) -> None:
    """These tests see a kernel that takes every matrix for one that need not be saved."""
    text = driver.emit([driver.MatrixEntry(unguarded, 16, 40, "f32", "f32")]).text
    kernels = driver.lower(text, CudaTarget.of_arch("sm_90a")).kernels
    (kernel,) = (kernel for kernel in kernels if kernel.name.endswith("_in_place"))
    edited, changes = re.subn(r"(bool keeps\(\) const \{\n(?:#line.*\n)?\s+return) \w+;", r"\1 true;", kernel.text)
    assert changes == 1
    (tmp_path / f"42-{kernel.name}.cu").write_text(edited)
    knobs.compilation.override_directory = tmp_path
    usual, tiny = errors(unguarded, (16, 40), (1.0, 1e-30))
    assert usual <= 0.03 and tiny > 0.5


def lowered(entries: Sequence[driver.MatrixEntry], target: CudaTarget) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(driver.lower(driver.emit(entries).text, target).plan_json)
    return plan


def plan_of(update: Any, shape: tuple[int, int], arch: str = "sm_90a") -> dict[str, Any]:
    return lowered([driver.MatrixEntry(update, *shape, "f32", "f32")], CudaTarget.of_arch(arch))


def moved_by(plan: dict[str, Any], schedules: Sequence[str] = ("elementwise", "rows", "columns")) -> list[int]:
    """The bytes of each launch of the only sequence that has one of these schedules."""
    (sequence,) = plan["sequences"]
    return [
        launch["bytes"] for launch in sequence["launches"] if plan["kernels"][launch["kernel"]]["schedule"] in schedules
    ]


def count_guards(plan: dict[str, Any]) -> list[int]:
    """How many launches of each sequence have work only for matrices of extreme size."""
    names = [kernel["name"] for kernel in plan["kernels"]]
    return [
        sum(names[launch["kernel"]].endswith("_in_place") for launch in sequence["launches"])
        for sequence in plan["sequences"]
    ]


@pytest.mark.parametrize(
    ("name", "guards", "folded", "separate"),
    [
        ("same_twice", 2, 20, 24),
        ("crossed", 1, 16, 20),
        ("two", 2, 28, 36),
        ("beside", 1, 14, 18),
        ("raw", 0, 16, 16),
    ],
)
def test_bytes_of_updates_that_normalize(name: str, guards: int, folded: int, separate: int) -> None:
    """Bytes per element outside of products, with and without the pass: a matrix that it folds is read once less."""
    rows, cols = 1024, 1536
    target = CudaTarget.of_arch("sm_90a")
    update = norm_updates.UPDATES[name]
    with_pass = plan_of(update, (rows, cols))
    without = lowered([driver.MatrixEntry(update, rows, cols, "f32", "f32")], unfolded(target))
    assert (count_guards(with_pass), count_guards(without)) == ([guards], [0])
    assert [round(sum(moved_by(plan)) / (rows * cols)) for plan in (with_pass, without)] == [folded, separate]


def check_moves_no_more(entries: Sequence[driver.MatrixEntry]) -> None:
    """No update moves more with the pass than without it, but for single numbers: the rescue, the factor, its square,
    and what each product reads of these."""
    target = CudaTarget.of_arch("sm_90a")
    plans = [lowered(entries, target), lowered(entries, unfolded(target))]
    for guards, *sequences in zip(count_guards(plans[0]), *(plan["sequences"] for plan in plans), strict=True):
        folded, separate = (sum(launch["bytes"] for launch in sequence["launches"]) for sequence in sequences)
        assert folded <= separate + 64 * guards


@pytest.mark.parametrize("name", norm_updates.UPDATES)
@pytest.mark.parametrize("shape", [(1024, 1536), (96, 48), (16, 16), (300, 1)])
def test_no_update_moves_more_than_without_the_pass(name: str, shape: tuple[int, int]) -> None:
    check_moves_no_more([driver.MatrixEntry(norm_updates.UPDATES[name], *shape, "f32", "f32")])


@settings(max_examples=60, **OPTIONS)
@given(update=st.one_of(random_updates(), normalized_updates()), shape=SHAPES)
def test_no_random_update_moves_more_than_without_the_pass(update: RandomUpdate, shape: tuple[int, int]) -> None:
    note(update.source)
    check_moves_no_more(matrices(update, shape, "f32"))


@pytest.mark.parametrize("shape", [(1024, 4096), (1024, 1024), (64, 48)])
def test_the_matrix_is_read_once_before_its_products(shape: tuple[int, int]) -> None:
    """14 bytes per element: gradient and momentum read, momentum and the rounded direction written."""
    from kaon.optim import updates as bundled

    plan = plan_of(bundled.muon, shape)
    schedules = [plan["kernels"][launch["kernel"]] for launch in plan["sequences"][0]["launches"]]
    first = next(index for index, kernel in enumerate(schedules) if kernel["schedule"] == "matmul")
    assert [kernel["schedule"] for kernel in schedules[:first]] == ["rows", "rows", "elementwise"]
    assert schedules[first - 1]["name"].endswith("_in_place")
    launches = plan["sequences"][0]["launches"]
    rows, cols = shape
    moved = sum(launch["bytes"] for launch in launches[:first])
    assert 14 * rows * cols <= moved <= 14 * rows * cols + 17 * rows + 100
    # The launch that saves a matrix is planned, and costs what it costs nearly always: one number.
    assert (launches[first - 1]["bytes"], launches[first - 1]["flops"]) == (8, 0)
    (result,) = launches[first - 1]["operands"][launches[first - 1]["inputs"] :]
    assert result in launches[first - 1]["operands"][:-1]


def test_resumed_runs_have_the_same_bits() -> None:
    """A step that needs saving has no memory of it."""
    params = parameters([(24, 40), (24, 40)])
    runs = []
    for _ in range(2):
        copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in params]
        with fake_gpu():
            optimizer = Muon(copies, lr=0.1)
            for step, scale in enumerate((1.0, 1e-30, 1e30, 1.0)):
                set_gradients(copies, step)
                copies[0].grad.mul_(scale)  # type: ignore[union-attr]
                optimizer.step()
        runs.append(snapshot(optimizer))
    assert_bitwise(*runs)
