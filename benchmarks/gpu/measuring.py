"""Interleaved repetitions on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from timing import Timing, in_turns

from .device import Device

REPETITIONS = 7
"""Rounds behind every median."""
LEAST_SECONDS = 0.02
"""What the calls of one repetition take together, so that the clock's grain and the first launch do not count."""
BOUND = 0.8
"""At which share of a time the host's, or the device's, part of it may be what was measured."""


@dataclass(frozen=True)
class Measured:
    """Times of candidates that took turns, by name."""

    seconds: dict[str, Timing]
    host_seconds: dict[str, float]
    """What the host alone spends, so that a candidate whose own time this is can be told."""
    under_load: dict[str, dict[str, str]]
    """Clocks and power while the first and the last candidate run."""

    def median(self, name: str) -> float:
        """Seconds of one piece of work."""
        return self.seconds[name].median

    @property
    def bounded_by_host(self) -> list[str]:
        """The candidates of which events may have timed the host."""
        return [name for name, spent in self.host_seconds.items() if spent > BOUND * self.median(name)]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "seconds": as_json(self.seconds),
            "host_seconds": self.host_seconds,
            "bounded_by_host": self.bounded_by_host,
            "under_load": self.under_load,
        }


def as_json(timings: Mapping[str, Timing]) -> dict[str, dict[str, float]]:
    """Seconds of every candidate."""
    return {name: asdict(timing) for name, timing in timings.items()}


def interleave(
    device: Device,
    candidates: Mapping[str, Callable[[], object]],
    works: Mapping[str, int] | None = None,
    rounds: int = REPETITIONS,
) -> Measured:
    """Seconds of one piece of work of each of the candidates, which take turns.

    Each is first called twice, for what happens at first calls only, and then once more to see how long it takes.

    Args:
        works: pieces of work that one call of a candidate is, 1 if not given.
    """
    works = {name: (works or {}).get(name, 1) for name in candidates}
    calls, host = {}, {}
    for name, call in candidates.items():
        call()
        call()
        host[name] = device.host_seconds(call, 1) / works[name]
        once = device.seconds(call, 1)
        calls[name] = 1 if device.is_fake else max(1, min(200, round(LEAST_SECONDS / max(once, 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _, name in in_turns(list(candidates), rounds):
        seconds[name].append(device.seconds(candidates[name], calls[name]) / works[name])
    first, *_, last = candidates
    loads = {name: device.state_under(several(candidates[name], calls[name])) for name in (first, last)}
    return Measured({name: Timing.of(values) for name, values in seconds.items()}, host, loads)


def several(call: Callable[[], object], calls: int) -> Callable[[], None]:
    """Some calls in a row."""

    def run() -> None:
        for _ in range(calls):
            call()

    return run
