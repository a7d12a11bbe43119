"""Every kernel of every package against torch in float64, step by step from the same states.

Gradients lie at new addresses in every step, and what is left at the old ones is NaN. Every run is made twice, which
must give the same bits. What a step does beside computing is in `conduct`.

Products are of half precision. Their tolerance is measured, not guessed: a few times the error of the same step with
every product rounded to that type, which is an eighth as much for float16 as for bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import accounting, conduct, references
from .device import Device
from .packages import Loaded, load, packed
from .parts import OUT_OF_TIME, Parts, Progress, Save
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


def _check_step(loaded: Loaded, step: int, spent: list[Tensor]) -> Iterator[dict[str, Any]]:
    """Make step number `step` on fresh gradients, and compare every parameter and state."""
    spent += conduct.renew_gradients(loaded, step)
    gradients = [parameter.grad.double() for parameter in loaded.parameters if parameter.grad is not None]
    before = _snapshot(loaded)
    conduct.step_and_spoil(loaded)
    after = _snapshot(loaded)
    for index, gradient in enumerate(gradients):
        yield from _compare(loaded, index, step, gradient, before[index], after[index])


def _compare(
    loaded: Loaded,
    index: int,
    step: int,
    gradient: Tensor,
    before: tuple[Tensor, dict[str, Tensor]],
    after: tuple[Tensor, dict[str, Tensor]],
) -> Iterator[dict[str, Any]]:
    """One parameter and its states against a reference step from what they were before."""
    parameter = loaded.parameters[index]
    reference = _reference(loaded, index)
    weight, new_weight = _as_matrix(before[0]), _as_matrix(after[0])
    states = {name: _as_matrix(value) for name, value in before[1].items()}
    arguments = (weight, _as_matrix(gradient), states, reference.options, step)
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


def _intact_gaps(loaded: Loaded) -> bool:
    """Whether what lies between the elements of parameters is what it was, and nothing of it came in."""
    for parameter in loaded.parameters:
        size = parameter.untyped_storage().nbytes() // parameter.element_size()
        memory = parameter.detach().as_strided((size,), (1,), 0)
        if int(memory.isnan().sum()) != size - parameter.numel() or bool(parameter.isnan().any()):
            return False
    return True


def _repeated(directory: Path, loaded: Loaded, device: Device) -> bool:
    """Whether all steps made again, by another optimizer on other memory, give the same bits."""
    again, spent = load(directory, loaded.workload, device), []
    for step in range(1, STEPS + 1):
        spent += conduct.renew_gradients(again, step)
        conduct.step_and_spoil(again)
    return conduct.same_bits(again.bits(), loaded.bits())


@dataclass(frozen=True)
class Checked:
    """The verdicts on a workload: on results, on memory, and on what was launched."""

    results: list[dict[str, Any]]
    memory: list[dict[str, Any]]
    launches: list[dict[str, Any]]
    kernels: dict[str, int]
    """On how many matrices each kernel was launched."""


def check(directory: Path, workload: Workload, device: Device) -> Checked:
    """Make some steps of a workload and check each; then make them again."""
    loaded = load(directory, workload, device)
    spent: list[Tensor] = []
    results = [verdict for step in range(1, STEPS + 1) for verdict in _check_step(loaded, step, spent)]
    launches = [{"workload": workload.name, **verdict} for verdict in accounting.verdicts(loaded, STEPS)]
    memory = [
        {"workload": workload.name, "what": "gaps stay as they were", "passed": _intact_gaps(loaded)},
        {"workload": workload.name, "what": "bits of a second run", "passed": _repeated(directory, loaded, device)},
    ]
    return Checked(results, memory, launches, loaded.matrix_counts())


def run(directory: Path, device: Device, tiny: bool, progress: Progress, save: Save) -> dict[str, Any]:
    """Check all workloads for which `progress` says that there is time, and before those of the new main loop the
    conduct of steps. One that is left out is a failure, and so is one that raises, and a kernel of a package that was
    never launched."""
    workloads = packed(directory, correctness(tiny))
    parts = Parts(device, progress)
    summary = _Summary(workloads)

    def check_all(main_loop: str) -> None:
        for workload in (item for item in workloads if item.main_loop == main_loop):
            summary.add(workload.name, *parts.attempt(workload.name, partial(check, directory, workload, device)))
            save(summary.as_json())

    check_all("mma")
    for name, checked in conduct.CHECKS.items():
        found, why = parts.attempt(name, partial(checked, directory, workloads[0], device))
        summary.conduct[name] = {"passed": False, **why} if found is None else found
        save(summary.as_json())
    check_all("wgmma")
    return summary.as_json()


@dataclass
class _Summary:
    """What is known so far."""

    workloads: list[Workload]
    checked: dict[str, Checked] = field(default_factory=dict)
    unchecked: dict[str, dict[str, str]] = field(default_factory=dict)
    conduct: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, found: Checked | None, why: dict[str, str]) -> None:
        """The verdicts on a workload, or why there are none."""
        if found is None:
            self.unchecked[name] = why
        else:
            self.checked[name] = found

    def as_json(self) -> dict[str, Any]:
        """Passed if everything was checked and nothing failed."""
        every = self.checked.values()
        results, memory, launches = (
            [verdict for found in every for verdict in getattr(found, kind)]
            for kind in ("results", "memory", "launches")
        )
        idle = [
            f"{name}: {kernel}" for name, found in self.checked.items() for kernel, n in found.kernels.items() if not n
        ]
        failed = [verdict for verdict in (*results, *memory, *launches) if not verdict["passed"]]
        well = len(self.conduct) == len(conduct.CHECKS) and all(found["passed"] for found in self.conduct.values())
        worst: dict[str, float] = {}
        for verdict in results:
            key = f"{verdict['workload']} step {verdict['step']} {verdict['what']}"
            ratio = verdict["error"] / verdict["allowed"]
            worst[key] = max(worst.get(key, 0.0), math.inf if math.isnan(ratio) else ratio)
        return {
            "passed": not failed and not idle and well and len(self.checked) == len(self.workloads),
            "checks": len(results),
            "checks_of_memory": len(memory),
            "checks_of_launches": len(launches),
            "conduct": dict(self.conduct),
            "workloads": list(self.checked),
            "kernels": len({kernel for found in every for kernel in found.kernels}),
            "shapes": len({shape for item in self.workloads if item.name in self.checked for shape in item.shapes}),
            "failed": failed[:50],
            "unchecked": dict(self.unchecked),
            "kernels_never_launched": idle,
            "worst_error_over_allowed": worst,
        }


def distrust_of_warpgroups(result: Mapping[str, Any]) -> str:
    """Why nothing that runs on warpgroups should be run again, by what this section left; empty if there is no reason:
    wrong numbers are none, but a crash, a hang and what the section did not come to for either are."""
    late = {name: why for name, why in result.get("unchecked", {}).items() if name.endswith("-wgmma")}
    lost = [name for name, why in late.items() if why.get("skipped") != OUT_OF_TIME]
    if lost:
        return f"not run: {lost[0]} did not end in correctness"
    return "" if result.get("complete") else "not run: correctness did not end"
