"""Every kernel of every package against torch in float64, step by step from the same states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import references
from .device import Device
from .packages import Loaded, load, random_like
from .workloads import Workload, correctness

STEPS = 3
"""With a period of 2: a refresh, a row step, a refresh."""

EXACT = 2e-6
"""Relative Frobenius error of steps in f32 arithmetic, beside the rounding of the stored parameter."""
HALF = 6e-2
"""The same of a refresh: five steps of Newton-Schulz with bf16 operands."""
PRODUCT = 8e-3
"""The same of one product of bf16 operands."""
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
"""Twice the relative error of storing one element."""


def relative(found: Tensor, expected: Tensor, scale: Tensor) -> float:
    """`|found - expected| / |scale|`, and the absolute error where the scale is zero."""
    error, length = torch.linalg.norm(found - expected), torch.linalg.norm(scale)
    return float(error / length if length > 0 else error)


def _reference(loaded: Loaded, index: int) -> tuple[Callable[..., Any], dict[str, Any], float, bool]:
    """What parameter `index` is held to: formula, options, tolerance of refreshes, whether it is AdamW's."""
    optimizer = loaded.optimizer
    (group,) = optimizer.param_groups
    subject = loaded.workload.subject
    if subject in ("row_step", "symmetric_product"):
        return getattr(references, subject), group, PRODUCT if subject == "symmetric_product" else EXACT, False
    prefix = "" if subject == "AdamW" else "adamw_"
    if subject == "AdamW" or loaded.parameters[index].dim() != 2:
        options = {name: group[prefix + name] for name in ("betas", "eps", "weight_decay")}
        options["lr"] = group["lr"] * (1.0 if subject == "AdamW" else group["adamw_lr_ratio"])
        return references.adamw, options, EXACT, True
    return references.muon, group, HALF, False


def _snapshot(loaded: Loaded) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Parameters and tensor states in float64."""
    taken = []
    for parameter in loaded.parameters:
        states = loaded.optimizer.state[parameter]
        tensors = {name: value.double() for name, value in states.items() if isinstance(value, Tensor)}
        taken.append((parameter.detach().double(), tensors))
    return taken


def _as_matrix(tensor: Tensor) -> Tensor:
    """What is not 2-d, as one row."""
    return tensor if tensor.dim() == 2 else tensor.reshape(1, -1)


def _check_step(loaded: Loaded, step: int) -> Iterator[dict[str, Any]]:
    """Make step number `step` on fresh gradients, and compare every parameter and state."""
    for index, parameter in enumerate(loaded.parameters):
        assert parameter.grad is not None
        seed = 100_000 * step + index
        parameter.grad.copy_(random_like(parameter.shape, parameter.grad.dtype, parameter.device, seed))
    before = _snapshot(loaded)
    loaded.optimizer.step()
    after = _snapshot(loaded)
    for index in range(len(loaded.parameters)):
        yield from _compare(loaded, index, step, before[index], after[index])


def _compare(
    loaded: Loaded,
    index: int,
    step: int,
    before: tuple[Tensor, dict[str, Tensor]],
    after: tuple[Tensor, dict[str, Tensor]],
) -> Iterator[dict[str, Any]]:
    """One parameter and its states against a reference step from what they were before."""
    parameter = loaded.parameters[index]
    assert parameter.grad is not None
    formula, options, of_refresh, is_adamw = _reference(loaded, index)
    weight, new_weight = _as_matrix(before[0]), _as_matrix(after[0])
    states = {name: _as_matrix(value) for name, value in before[1].items()}
    expected, expected_states = formula(weight, _as_matrix(parameter.grad.double()), states, options, step)
    period = loaded.optimizer.param_groups[0].get("period", 1)
    tolerance = of_refresh if is_adamw or (step - 1) % period == 0 else EXACT
    change = expected - weight
    length = float(torch.linalg.norm(change))
    rounding = ROUNDING[parameter.dtype] * float(torch.linalg.norm(expected))
    allowed = tolerance + (rounding / length if length > 0 else 0.0)
    yield _verdict(loaded, index, step, "parameter", relative(new_weight, expected, change), allowed)
    for name, value in expected_states.items():
        error = relative(_as_matrix(after[1][name]), value, value)
        yield _verdict(loaded, index, step, name, error, tolerance if name == "row_length" else EXACT)


def _verdict(loaded: Loaded, index: int, step: int, what: str, error: float, allowed: float) -> dict[str, Any]:
    return {
        "workload": loaded.workload.name,
        "shape": "x".join(map(str, loaded.workload.shapes[index])),
        "step": step,
        "what": what,
        "error": error,
        "allowed": allowed,
        "passed": bool(error <= allowed),  # NaN is not
    }


def check(directory: Path, workload: Workload, device: Device) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The verdicts on a workload, and the launches of its kernels."""
    loaded = load(directory, workload, device)
    verdicts = [verdict for step in range(1, STEPS + 1) for verdict in _check_step(loaded, step)]
    return verdicts, loaded.launches()


def run(directory: Path, device: Device, tiny: bool, progress: Callable[[str], object]) -> dict[str, Any]:
    """Check all workloads. A kernel of a package that was never launched is a failure, too."""
    workloads, verdicts, idle = correctness(tiny), [], []
    launched: dict[str, int] = {}
    for workload in workloads:
        progress(workload.name)
        found, launches = check(directory, workload, device)
        verdicts += found
        idle += [f"{workload.name}: {kernel}" for kernel, count in launches.items() if count == 0]
        launched.update(launches)
    failed = [verdict for verdict in verdicts if not verdict["passed"]]
    worst: dict[str, float] = {}
    for verdict in verdicts:
        key = f"{verdict['workload']} step {verdict['step']} {verdict['what']}"
        worst[key] = max(worst.get(key, 0.0), verdict["error"] / verdict["allowed"])
    shapes = {shape for workload in workloads for shape in workload.shapes}
    return {
        "passed": not failed and not idle,
        "checks": len(verdicts),
        "kernels": len(launched),
        "shapes": len(shapes),
        "failed": failed[:50],
        "kernels_never_launched": idle,
        "worst_error_over_allowed": worst,
    }
