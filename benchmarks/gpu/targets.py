"""The promises of the project about a GPU, held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MICROSECOND = 1e-6
FOUR_WAVES = 4 * 2 * 132
"""Tiles of 128x128 of one triangle: two blocks on each of 132 multiprocessors, four times over."""


def _at_least(name: str, value: float, bound: float) -> dict[str, Any]:
    return {"target": name, "value": value, "at_least": bound, "met": value >= bound}


def _measured(timings: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The entries of one kind for which there was time."""
    return [entry for entry in timings.get(kind, ()) if "skipped" not in entry]


def verdicts(timings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One verdict for each target and workload that it is about."""
    for entry in _measured(timings, "bandwidth"):
        if entry["elements"] >= 16e6:
            yield _at_least(f"{entry['workload']}: share of copy bandwidth", entry["achieved_over_ceiling"], 0.9)
    for entry in _measured(timings, "symmetric_product"):
        _, _, size, batch = entry["workload"].split("-")
        tiles = int(size) // 128
        if tiles * (tiles + 1) // 2 * int(batch) >= FOUR_WAVES:
            yield _at_least(f"{entry['workload']}: over cuBLAS", entry["speedup_of_kaon_over"]["cublas"], 1.7)
    for entry in _measured(timings, "newton_schulz"):
        rows, cols = map(int, entry["workload"].split("-")[2].split("x"))
        speedup = entry["speedup_of_kaon_over"]["torch.compile"]
        if min(rows, cols) >= 2048 and rows == cols:
            yield _at_least(f"{entry['workload']}: over torch.compile", speedup, 1.35)
        elif min(rows, cols) >= 2048 and max(rows, cols) == 4 * min(rows, cols):
            yield _at_least(f"{entry['workload']}: over torch.compile", speedup, 1.9)
    if "skipped" not in timings.get("host", {"skipped": ""}):
        bound = 50 * MICROSECOND
        for what, timing in timings["host"]["host_seconds_per_step"].items():
            seconds = timing["median"]
            yield {"target": f"host time of {what}", "value": seconds, "at_most": bound, "met": seconds <= bound}
