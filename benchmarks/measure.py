"""Measuring shared by the benchmarks: interleaved repetitions, the machine's own ceilings, and its description.

Times are wall-clock seconds of `time.perf_counter`. Everything compared is measured in one process, in turns, so that
a neighbour's load or a change of clock frequency meets all candidates alike; ratios of medians are what counts.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import in_turns
from tqdm import tqdm

FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")


def timed(call: Callable[[], object]) -> float:
    """Seconds which one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleave(
    candidates: Mapping[str, Callable[[], object]], repetitions: int, *, warmup: int = 1, title: str = ""
) -> dict[str, list[float]]:
    """Calls every candidate once per round, each round starting with another one.

    Args:
        candidates: by name, what to time.
        repetitions: rounds which are recorded.
        warmup: rounds which are not.
        title: text of the progress bar.

    Returns:
        For each name the seconds of its recorded calls, in the order of the rounds.
    """
    clocks = {name: partial(timed, call) for name, call in candidates.items()}
    return interleave_clocks(clocks, repetitions, warmup=warmup, title=title)


def interleave_clocks(
    clocks: Mapping[str, Callable[[], float]], repetitions: int, *, warmup: int = 1, title: str = ""
) -> dict[str, list[float]]:
    """`interleave` for what takes its own time: each of `clocks` returns the seconds to record."""
    names = list(clocks)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with tqdm(total=(warmup + repetitions) * len(names), desc=title, leave=False) as progress:
        for turn, name in in_turns(names, warmup + repetitions):
            progress.set_postfix_str(name)
            elapsed = clocks[name]()
            if turn >= warmup:
                seconds[name].append(elapsed)
            progress.update()
    return seconds


def matmul_peak(size: int = 2048, repetitions: int = 7) -> float:
    """FLOP/s of a large square float32 `torch.mm`, best of several: what this machine's FMA units give in practice."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    torch.mm(a, b, out=out)
    return 2 * size**3 / min(timed(lambda: torch.mm(a, b, out=out)) for _ in range(repetitions))


def stream_candidates(elements: int) -> dict[str, tuple[int, Callable[[], object]]]:
    """In-place passes over float32 vectors in memory: name -> (words moved per element, the pass).

    torch's own vectorised, threaded kernels. Every pass reads its destination and writes it back, as an
    optimizer does.
    """
    a, b, c = (torch.full((elements,), 0.5) for _ in range(3))
    return {
        "stream a *= s": (2, lambda: a.mul_(1.0)),
        "stream a += s * b": (3, lambda: a.add_(b, alpha=1e-9)),
        "stream a += s * b * c": (4, lambda: a.addcmul_(b, c, value=1e-9)),
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())
    flags = set(info.get("flags", info.get("Features", "")).split())
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "family_model": "/".join(info.get(key, "?") for key in ("cpu family", "model")),
        "features": [name for name in FEATURES if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_average": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def peak_memory_bytes() -> int:
    """The largest resident size this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True)
class Target:
    """One promise: `value` must be at most (or at least) `bound`."""

    model: str
    name: str
    value: float
    bound: float
    at_most: bool
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def __str__(self) -> str:
        relation = "<=" if self.at_most else ">="
        verdict = "PASS" if self.met else "FAIL"
        unit = f" {self.unit}" if self.unit else ""
        return f"{verdict}  {self.model:<8} {self.name:<58} {self.value:7.3f} {relation} {self.bound:g}{unit}"


def write_report(path: Path, results: Mapping[str, Any], targets: Iterable[Target]) -> None:
    """Writes the results and the verdict on every target as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    verdicts = [{**asdict(target), "met": target.met} for target in targets]
    path.write_text(json.dumps({**results, "targets": verdicts}, indent=2) + "\n")
