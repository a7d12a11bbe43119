"""Interleaved repetitions on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from timing import Timing, in_turns

from .device import Device

REPETITIONS = 7
"""Rounds behind every median."""
LEAST_SECONDS = 0.02
"""What the calls of one repetition take together, so that the clock's grain and the first launch do not count."""


def interleave(
    device: Device, candidates: Mapping[str, Callable[[], object]], rounds: int = REPETITIONS
) -> dict[str, Timing]:
    """Seconds of one call of each of the candidates, which take turns.

    Each is first called twice, for what happens at first calls only, and then once more to see how long it takes.
    """
    calls = {}
    for name, call in candidates.items():
        call()
        call()
        device.synchronize()
        once = device.seconds(call, 1)
        calls[name] = 1 if device.is_fake else max(1, min(200, round(LEAST_SECONDS / max(once, 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _, name in in_turns(list(candidates), rounds):
        seconds[name].append(device.seconds(candidates[name], calls[name]))
    return {name: Timing.of(values) for name, values in seconds.items()}
