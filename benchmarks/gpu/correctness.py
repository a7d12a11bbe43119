"""Every kernel of every package against torch in float64, step by step from the same states.

Products are of half precision. Their tolerance is measured, not guessed: a few times the error of the same step with
every product rounded to that type, which is an eighth as much for float16 as for bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import accounting, references
from .device import Device
from .packages import Loaded, load, packed, random_like
from .parts import Parts, Progress, Save
from .workloads import Workload, correctness

STEPS = 3
"""With a period of 2: a refresh, a row step, a refresh."""

EXACT = 2e-6
"""Relative Frobenius error of steps in f32 arithmetic, beside the rounding of the stored parameter."""
MARGIN = 3.0
"""How many times the error of the same step with rounded products a step with products may have, ..."""
LAST_DIGITS = 2.0
"""... and how many last digits of that type on top, as the rounding of a small matrix may be none by luck."""
F32_PRODUCTS = 1e-4
"""The same where products are of f32."""
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
"""Twice the relative error of storing one element."""


def relative(found: Tensor, expected: Tensor, scale: Tensor) -> float:
    """`|found - expected| / |scale|`, and the absolute error where the scale is zero."""
    error, length = torch.linalg.norm(found - expected), torch.linalg.norm(scale)
    return float(error / length if length > 0 else error)


@dataclass(frozen=True)
class Reference:
    """What a parameter is held to: a formula, its options, and whether a step multiplies matrices."""

    formula: Callable[..., references.Step]
    options: Any
    multiplies: Callable[[int], bool]


def _never(step: int) -> bool:
    del step
    return False


def _reference(loaded: Loaded, index: int) -> Reference:
    """The reference of parameter `index`."""
    (group,) = loaded.optimizer.param_groups
    subject = loaded.workload.subject
    if subject == "row_step":
        return Reference(references.row_step, group, _never)
    if subject == "symmetric_product":
        return Reference(references.symmetric_product, group, lambda step: True)
    if subject == "AdamW" or loaded.parameters[index].dim() != 2:
        prefix = "" if subject == "AdamW" else "adamw_"
        options = {name: group[prefix + name] for name in ("betas", "eps", "weight_decay")}
        options["lr"] = group["lr"] * (1.0 if subject == "AdamW" else group["adamw_lr_ratio"])
        return Reference(references.adamw, options, _never)
    period = group.get("period", 1)
    return Reference(references.muon, group, lambda step: (step - 1) % period == 0)


def _tolerance(half: torch.dtype, rounded: Tensor, exact: Tensor, scale: Tensor) -> float:
    """Of a result of products of `half`, which is `rounded` where they are rounded, and otherwise `exact`."""
    last_digit = max(torch.finfo(half).eps, F32_PRODUCTS / LAST_DIGITS)
    return MARGIN * relative(rounded, exact, scale) + LAST_DIGITS * last_digit


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
    reference = _reference(loaded, index)
    weight, new_weight = _as_matrix(before[0]), _as_matrix(after[0])
    states = {name: _as_matrix(value) for name, value in before[1].items()}
    arguments = (weight, _as_matrix(parameter.grad.double()), states, reference.options, step)
    expected, expected_states = reference.formula(*arguments)
    change = expected - weight
    tolerances = dict.fromkeys(("parameter", *expected_states), EXACT)
    if reference.multiplies(step):
        half = loaded.product_dtype
        rounded, rounded_states = reference.formula(*arguments, half)
        tolerances["parameter"] = _tolerance(half, rounded, expected, change)
        if "row_length" in expected_states:
            exact = expected_states["row_length"]
            tolerances["row_length"] = _tolerance(half, rounded_states["row_length"], exact, exact)
    length = float(torch.linalg.norm(change))
    rounding = ROUNDING[parameter.dtype] * float(torch.linalg.norm(expected))
    allowed = tolerances["parameter"] + (rounding / length if length > 0 else 0.0)
    yield _verdict(loaded, index, step, "parameter", relative(new_weight, expected, change), allowed)
    for name, value in expected_states.items():
        error = relative(_as_matrix(after[1][name]), value, value)
        yield _verdict(loaded, index, step, name, error, tolerances[name])


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


@dataclass(frozen=True)
class Checked:
    """The verdicts on a workload: on results, and on what was launched."""

    results: list[dict[str, Any]]
    launches: list[dict[str, Any]]
    kernels: dict[str, int]
    """On how many matrices each kernel was launched."""


def check(directory: Path, workload: Workload, device: Device) -> Checked:
    """Make some steps of a workload and check each."""
    loaded = load(directory, workload, device)
    results = [verdict for step in range(1, STEPS + 1) for verdict in _check_step(loaded, step)]
    launches = [{"workload": workload.name, **verdict} for verdict in accounting.verdicts(loaded, STEPS)]
    return Checked(results, launches, loaded.launches())


def run(directory: Path, device: Device, tiny: bool, progress: Progress, save: Save) -> dict[str, Any]:
    """Check all workloads for which `progress` says that there is time. One that is left out is a failure, and so is
    one that raises, and a kernel of a package that was never launched."""
    workloads = packed(directory, correctness(tiny))
    parts = Parts(device, progress)
    checked: dict[str, Checked] = {}
    unchecked: dict[str, dict[str, str]] = {}
    for workload in workloads:
        found, why = parts.attempt(workload.name, partial(check, directory, workload, device))
        if found is None:
            unchecked[workload.name] = why
        else:
            checked[workload.name] = found
        save(_summary(workloads, checked, unchecked))
    return _summary(workloads, checked, unchecked)


def _summary(
    workloads: list[Workload], checked: dict[str, Checked], unchecked: dict[str, dict[str, str]]
) -> dict[str, Any]:
    verdicts = [verdict for found in checked.values() for verdict in found.results]
    launches = [verdict for found in checked.values() for verdict in found.launches]
    idle = [
        f"{name}: {kernel}" for name, found in checked.items() for kernel, count in found.kernels.items() if not count
    ]
    failed = [verdict for verdict in (*verdicts, *launches) if not verdict["passed"]]
    worst: dict[str, float] = {}
    for verdict in verdicts:
        key = f"{verdict['workload']} step {verdict['step']} {verdict['what']}"
        worst[key] = max(worst.get(key, 0.0), verdict["error"] / verdict["allowed"])
    return {
        "passed": not failed and not idle and len(checked) == len(workloads),
        "checks": len(verdicts),
        "checks_of_launches": len(launches),
        "workloads": list(checked),
        "kernels": len({kernel for found in checked.values() for kernel in found.kernels}),
        "shapes": len({shape for item in workloads if item.name in checked for shape in item.shapes}),
        "failed": failed[:50],
        "unchecked": unchecked,
        "kernels_never_launched": idle,
        "worst_error_over_allowed": worst,
    }
