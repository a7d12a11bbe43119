"""Architectures: what packages are compiled for, what this machine has, and which of the one run on the other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CPU_FEATURES = {
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
"""Levels of x86-64 and what they add to the one before, as Linux names it; code for one runs on all that have it."""

GPU_EXAMPLES = ("sm_80", "sm_90a", "sm_100a", "compute_80")
"""A100; H100 and H200; B200; PTX for whatever is newer than A100."""

HOST = "host"
"""Asks for the best level of the machine that compiles."""

_CPU_INFORMATION = Path("/proc/cpuinfo")
_GPU = re.compile(r"(sm|compute)_(\d+)(\d)(a?)")


def cpu_levels(information: Path = _CPU_INFORMATION) -> tuple[str, ...]:
    """The levels that this processor has, the best first; none where it is of another kind."""
    try:
        found = re.search(r"^flags\s*:(.*)$", information.read_text(), re.MULTILINE)
    except OSError:
        return ()
    flags = set(found[1].split()) if found else set()
    levels: list[str] = []
    for level, features in CPU_FEATURES.items():
        if not flags.issuperset(features):
            break
        levels.insert(0, level)
    return tuple(levels)


@dataclass(frozen=True)
class GpuArchitecture:
    """`sm_90`: machine code for compute capability 9.0 and later ones of its generation; `compute_80`: PTX, which the
    driver compiles for any capability from 8.0 on. With an `a` both are for that capability alone."""

    kind: str
    major: int
    minor: int
    exact: bool

    @staticmethod
    def parse(text: str) -> GpuArchitecture | None:
        """The architecture that `text` names, or None."""
        found = _GPU.fullmatch(text)
        return GpuArchitecture(found[1], int(found[2]), int(found[3]), bool(found[4])) if found else None

    def runs_on(self, device: GpuArchitecture) -> bool:
        """Whether code for this runs on a device of that architecture."""
        here, there = (self.major, self.minor), (device.major, device.minor)
        if self.exact:
            return here == there
        return here <= there and (self.kind == "compute" or self.major == device.major)


def choose_gpu(architectures: Iterable[str], device: str) -> str | None:
    """The best of `architectures` for a device of architecture `device`: machine code before PTX, the nearest first."""
    there = GpuArchitecture.parse(device)
    candidates = [(GpuArchitecture.parse(name), name) for name in architectures]
    fitting = [
        ((found.kind == "sm", found.exact, found.major, found.minor), name)
        for found, name in candidates
        if found is not None and there is not None and found.runs_on(there)
    ]
    return max(fitting)[1] if fitting else None
