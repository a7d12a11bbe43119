"""The promises of the project about a GPU, held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .timings import NOT_BEGUN, was_measured
from .workloads import Workload, elementwise, newton_schulz, products, rows

MICROSECOND = 1e-6
FOUR_WAVES = 4 * 2 * 132
"""Tiles of 128x128 of one triangle: two blocks on each of 132 multiprocessors, four times over."""


def _unmeasured(target: dict[str, Any], why: str) -> dict[str, Any]:
    return {**target, "met": None, "why": why}


def _why_not(entry: Mapping[str, Any]) -> str:
    """Why nothing was measured."""
    found: str = entry.get("skipped", "raised: see its entry")
    return found


def _judged(
    timings: dict[str, Any], kind: str, workload: Workload, what: str, number: tuple[str, ...], bound: float
) -> dict[str, Any]:
    """The verdict on what an entry has at `number`; `"met": None` and why, if it was not measured."""
    target: dict[str, Any] = {"target": f"{workload.name}: {what}", "at_least": bound}
    entry: Mapping[str, Any] = next(
        (item for item in timings.get(kind, ()) if item["workload"] == workload.name), NOT_BEGUN
    )
    if not was_measured(entry):
        return _unmeasured(target, _why_not(entry))
    value: Any = entry
    for key in number:
        if key not in value:
            return _unmeasured(target, f"{key} failed: {entry.get('peers_that_failed', {}).get(key, 'absent')}")
        value = value[key]
    return {**target, "value": value, "met": value >= bound}


def _orthogonalization_bound(workload: Workload) -> float | None:
    """How many times as fast as torch.compile it is to be; None where there is no target."""
    short, long = sorted(workload.shapes[0])
    return {1: 1.35, 4: 1.9}.get(long // short) if short >= 2048 and long % short == 0 else None


def verdicts(timings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One verdict for each target and workload that it is about, measured or not."""
    for workload in (*rows(tiny=False), elementwise(tiny=False)):
        yield _judged(timings, "bandwidth", workload, "share of copy bandwidth", ("achieved_over_ceiling",), 0.9)
    for workload in products(tiny=False):
        tiles = workload.shapes[0][0] // 128
        if tiles * (tiles + 1) // 2 * len(workload.shapes) >= FOUR_WAVES:
            number = ("speedup_of_kaon_over", "cublas")
            yield _judged(timings, "symmetric_product", workload, "over cuBLAS", number, 1.7)
    for workload in newton_schulz(tiny=False):
        bound = _orthogonalization_bound(workload)
        if bound is not None:
            number = ("speedup_of_kaon_over", "torch.compile")
            yield _judged(timings, "newton_schulz", workload, "over torch.compile", number, bound)
    yield from _of_host(timings.get("host", NOT_BEGUN))


def _of_host(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """On the time that a step costs the host."""
    for what in ("optimizer.step", "executor.step"):
        target = {"target": f"host time of {what}", "at_most": 50 * MICROSECOND}
        if was_measured(entry):
            seconds = entry["host_seconds_per_step"][what]["median"]
            yield {**target, "value": seconds, "met": seconds <= target["at_most"]}
        else:
            yield _unmeasured(target, _why_not(entry))
