"""Interleaved repetitions and their medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .device import Device

REPETITIONS = 7
"""Rounds behind every median."""
LEAST_SECONDS = 0.02
"""What the calls of one repetition take together, so that the clock's grain and the first launch do not count."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, least, greatest, and how many rounds are behind them."""

    median: float
    least: float
    greatest: float
    rounds: int

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        return Timing(statistics.median(seconds), min(seconds), max(seconds), len(seconds))

    def to_json(self) -> dict[str, Any]:
        return {"median_s": self.median, "least_s": self.least, "greatest_s": self.greatest, "rounds": self.rounds}


def interleave(
    device: Device, candidates: Mapping[str, Callable[[], object]], rounds: int = REPETITIONS
) -> dict[str, Timing]:
    """Time all candidates in turns, each round starting with another one.

    Each is first called twice, for what happens at first calls only, and then once more to see how long it takes.
    """
    names = list(candidates)
    calls = {}
    for name, call in candidates.items():
        call()
        call()
        device.synchronize()
        once = device.seconds(call, 1)
        calls[name] = 1 if device.is_fake else max(1, min(200, round(LEAST_SECONDS / max(once, 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(device.seconds(candidates[name], calls[name]))
    return {name: Timing.of(values) for name, values in seconds.items()}
