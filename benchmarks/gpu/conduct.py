"""What a step does beside computing: which memory it reads and when, on which stream, and when it does not take place.

On a stream that is kept busy, and with memory that is overwritten as soon as torch's allocator gives it out again, a
step that ran anywhere else would read or write what is not there. All is compared bit by bit with a plain run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .device import Device
from .packages import Loaded, gradient_of, load
from .workloads import Workload

STEPS = 3
BAD = (torch.nan, torch.inf, -torch.inf)


def renew_gradients(loaded: Loaded, step: int) -> list[Tensor]:
    """Give every parameter the gradient of step number `step`, in new memory. Returns the old ones, so that theirs is
    nobody else's as long as they are kept."""
    old = [parameter.grad for parameter in loaded.parameters if parameter.grad is not None]
    for index, parameter in enumerate(loaded.parameters):
        parameter.grad = gradient_of(loaded.workload, index, parameter.device, 100_000 * step + index)
    return old


def step_and_spoil(loaded: Loaded) -> None:
    """A step, and right behind it NaN in place of the gradients, which nothing may read any more."""
    loaded.optimizer.step()
    for parameter in loaded.parameters:
        assert parameter.grad is not None
        parameter.grad.fill_(torch.nan)


def same_bits(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether all tensors are equal. NaN equals nothing."""
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def _plain_run(directory: Path, workload: Workload, device: Device, steps: int) -> list[Tensor]:
    """Parameters and states after some steps with nothing special about them."""
    loaded = load(directory, workload, device)
    for step in range(1, steps + 1):
        renew_gradients(loaded, step)
        loaded.optimizer.step()
    return loaded.bits()


def skips_what_is_not_finite(directory: Path, workload: Workload, device: Device) -> dict[str, Any]:
    """One NaN or infinity in one gradient, in each in turn: nothing changes, which is counted, and the step after it is
    the one that it would have been."""
    loaded = load(directory, workload, device)
    renew_gradients(loaded, 1)
    loaded.optimizer.step()
    before, stepped = loaded.bits(), sum(loaded.matrix_counts().values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it says which gradient was not finite
        for index, parameter in enumerate(loaded.parameters):
            assert parameter.grad is not None
            elements = parameter.grad.view(-1)
            place = (0, elements.numel() - 1, elements.numel() // 2)[index % 3]
            good = elements[place].clone()
            elements[place] = BAD[index // 3 % 3]
            loaded.optimizer.step()
            elements[place] = good
    skipped, stepped = loaded.optimizer.nonfinite_steps, sum(loaded.matrix_counts().values()) - stepped
    unchanged = same_bits(loaded.bits(), before)
    renew_gradients(loaded, 2)
    loaded.optimizer.step()
    goes_on = same_bits(loaded.bits(), _plain_run(directory, workload, device, 2))
    return {
        "passed": unchanged and goes_on and skipped == len(loaded.parameters) and stepped == 0,
        "gradients": len(loaded.parameters),
        "skipped_steps": skipped,
        "matrices_stepped_by_them": stepped,
        "nothing_changed": unchanged,
        "next_step_as_without": goes_on,
    }


def follows_the_current_stream(directory: Path, workload: Workload, device: Device) -> dict[str, Any]:
    """Steps of all phases on another stream, each behind work that takes long and the copies of its gradients; their
    memory goes back to torch's allocator after each, which gives it out again, to be filled with NaN; and at last one
    on the first stream again, with no wait of the host's in between."""
    loaded = load(directory, workload, device, nonfinite="propagate")  # which never waits
    steps = STEPS + loaded.program.plan.period
    made = []
    for step in range(1, steps + 1):
        renew_gradients(loaded, step)
        made.append([parameter.grad for parameter in loaded.parameters])
    with device.other_stream():
        for step in range(steps - 1):
            device.delay()
            _step_on_copies(loaded, made[step])
    _step_on_copies(loaded, made[-1])
    same = same_bits(loaded.bits(), _plain_run(directory, workload, device, steps))
    phases = loaded.program.plan.period
    stream = "torch has none on a fake" if device.is_fake else "a side stream of torch's"
    return {"passed": same and phases > 1, "same_bits": same, "steps": steps, "phases": phases, "stream": stream}


def _step_on_copies(loaded: Loaded, gradients: Sequence[Tensor | None]) -> None:
    """A step on copies of gradients, whose memory is free after it and overwritten by who gets it."""
    for parameter, gradient in zip(loaded.parameters, gradients, strict=True):
        assert gradient is not None
        parameter.grad = gradient.clone()
    loaded.optimizer.step()
    for parameter in loaded.parameters:
        parameter.grad = None
    for gradient in gradients:
        assert gradient is not None
        torch.full_like(gradient, torch.nan)


CHECKS: dict[str, Callable[[Path, Workload, Device], dict[str, Any]]] = {
    "skips what is not finite": skips_what_is_not_finite,
    "follows torch's current stream": follows_the_current_stream,
}
"""By name; each takes the first workload, which has every update in its program."""
