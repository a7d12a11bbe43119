"""The promises of the project about a GPU, held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .timings import NOT_BEGUN, was_measured
from .workloads import Workload, elementwise, newton_schulz, products, rows

MICROSECOND = 1e-6
WAVES = 4.0
"""From how many waves of blocks on there is a target for symmetric products."""


def _unmeasured(target: dict[str, Any], why: str) -> dict[str, Any]:
    return {**target, "met": None, "why": why}


def _why_not(entry: Mapping[str, Any]) -> str:
    """Why nothing was measured."""
    found: str = entry.get("skipped", "raised: see its entry")
    return found


def _entry(timings: Mapping[str, Any], kind: str, workload: Workload) -> Mapping[str, Any]:
    """What was measured of a workload."""
    found: Mapping[str, Any] = next(
        (item for item in timings.get(kind, ()) if item["workload"] == workload.name), NOT_BEGUN
    )
    return found


def _judged(
    entry: Mapping[str, Any], workload: Workload, what: str, number: tuple[str, ...], bound: float
) -> dict[str, Any]:
    """The verdict on what an entry has at `number`; `"met": None` and why, if it was not measured."""
    target: dict[str, Any] = {"target": f"{workload.name}: {what}", "at_least": bound}
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


def _of_product(entry: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """The verdict on a symmetric product, if there are enough waves of its blocks."""
    verdict = _judged(entry, workload, "over cuBLAS", ("speedup_of_kaon_over", "cublas"), 1.7)
    waves = entry.get("waves", {}).get("kaon", {})
    if verdict["met"] is None or waves.get("waves", 0.0) >= WAVES:
        return verdict
    few = f"has {waves['waves']:.1f} waves, and is to have {WAVES:.0f}" if "waves" in waves else waves.get("why", "")
    return _unmeasured(verdict, few or "waves are not known")


def verdicts(timings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One verdict for each target and workload that it is about, measured or not."""
    for workload in (*rows(tiny=False), elementwise(tiny=False)):
        entry = _entry(timings, "bandwidth", workload)
        yield _judged(entry, workload, "share of copy bandwidth", ("achieved_over_ceiling",), 0.9)
    for workload in products(tiny=False):
        yield _of_product(_entry(timings, "symmetric_product", workload), workload)
    for workload in newton_schulz(tiny=False):
        bound = _orthogonalization_bound(workload)
        if bound is not None:
            number = ("speedup_of_kaon_over", "torch.compile")
            yield _judged(_entry(timings, "newton_schulz", workload), workload, "over torch.compile", number, bound)
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
