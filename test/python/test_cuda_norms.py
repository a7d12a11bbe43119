"""Gradients of any size on a fake GPU, whose products divide by the norm themselves (kaon-fold-norms).

The kernels run on the CPU, in the shim: see test_cuda_optim.py for what that shows.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kaon
import kaon.language as kl
import language_examples as examples
import numpy as np
import pytest
import torch
from cuda_tools import fake_gpu, unavailable
from kaon import _C, driver, knobs
from kaon.cuda import Placement
from kaon.cuda_target import CudaTarget
from kaon.interpreter import Interpreter, round_to
from kaon.language import coefficients
from kaon.optim import Muon, PeriodicRowwiseMuon
from optim_tools import assert_bitwise, parameters, relative_error, set_gradients, snapshot
from test_cuda_optim import first_direction, newton_schulz
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


def errors(update: Any, shape: tuple[int, int], scales: Sequence[float]) -> list[float]:
    """Relative errors of steps from zero, where the smallest change shows, against the interpreter in f64. All matrices
    are in one bucket, whose gradients and momenta have these scales."""
    with fake_gpu():
        entries = [driver.MatrixEntry(update, *shape, "f32", "f32") for _ in scales]
        program = driver.compile_program(entries, target=CudaTarget.of_device(Placement(wait=True)))
        oracle = Interpreter(_C.parse(program.module_text).to_python(), "float64")
        (symbol,) = {symbol for symbol, _ in oracle.schedule(1)}
        arguments = oracle.arguments(symbol)
        scalars = [{"lr": 0.25, "momentum": 0.9}[argument.name] for argument in arguments if argument.role == "scalar"]
        generator = np.random.default_rng(5)
        base = [generator.standard_normal(shape) for argument in arguments if argument.role in ("grad", "state")]
        matrices = [[np.zeros(shape), *(round_to(tensor * scale, "f32") for tensor in base)] for scale in scales]
        memories = [[tensor.astype(np.float32) for tensor in tensors] for tensors in matrices]
        addresses = [number for memory in memories for array in memory for number in (array.ctypes.data, shape[1])]
        assert program.step(1, addresses, [scalars], True) == 0
    found = []
    for memory, tensors in zip(memories, matrices, strict=True):
        expected = oracle.call(symbol, *tensors, *scalars, 1)[0]
        found.append(float(np.linalg.norm(memory[0] - expected) / np.linalg.norm(expected)))
    return found


@pytest.mark.parametrize("update", [examples.own_muon, shampoo_like], ids=["own muon", "own product"])
@pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
def test_iterations_of_users(update: Any, shape: tuple[int, int]) -> None:
    assert max(errors(update, shape, (1e-30, 1e-18, 1.0, 1e18, 1e30))) <= 0.03


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


def plan_of(update: Any, shape: tuple[int, int], arch: str = "sm_90a") -> dict[str, Any]:
    entries = [driver.MatrixEntry(update, *shape, "f32", "f32")]
    plan: dict[str, Any] = json.loads(driver.lower(driver.emit(entries).text, CudaTarget.of_arch(arch)).plan_json)
    return plan


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
