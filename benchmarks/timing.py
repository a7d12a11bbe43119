"""What all timings here share: medians, and candidates that take turns. Needs Python alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate: median, least, greatest and the number of repetitions behind them."""

    median: float
    minimum: float
    maximum: float
    repetitions: int

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        return Timing(statistics.median(seconds), min(seconds), max(seconds), len(seconds))


def in_turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Round and name: every name once per round, each round starting with another one."""
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            yield turn, name
