"""One small step under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import processes
from .environment import TOOLKIT, tool

if TYPE_CHECKING:
    from .device import Device
    from .parts import Progress, Save

# Calls of the driver that fail are none of memcheck's business: torch tries some, and a failed launch raises.
OPTIONS = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 0 hazards"}
"""How the line begins in which a tool says that it found nothing."""
FINITE = "two steps, finite"
"""What gpu.small_step prints when all is well."""
SECONDS = 70.0
"""Of a tool at most."""
FAKE_SECONDS = 600.0
"""Of the imitated step, which takes no time on a card."""
ERROR_STATUS = 9
KEPT = 16000
"""Characters of the output, the last ones."""


def _run(command: Sequence[str], seconds: float, clean: str = "") -> dict[str, Any]:
    """Passed if the program said that all is well, and the tool that it found nothing: one that watched nothing
    ends with status 0, too."""
    # One allocation per tensor: what lies beyond one is nobody's then, and seen.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    ended = processes.run(command, seconds, environment)
    summary = re.findall(r"\w+ SUMMARY:.*", ended.output)
    said = FINITE in ended.output.splitlines()
    found_nothing = not clean or any(line.startswith(clean) for line in summary)
    result = {
        "passed": ended.status == 0 and said and found_nothing,
        "status": ended.status,
        "program_said_finite": said,
        "summary": summary,
        "output": ended.output[-KEPT:],
    }
    return {**result, "error": f"not done after {seconds:.0f} s"} if ended.status is None else result


def run(directory: Path, device: Device, progress: Progress, save: Save) -> dict[str, Any]:
    """Run the small step under every tool for which there is time; on the fakes, without any, which is said."""
    program = [sys.executable, "-m", "gpu.small_step", str(directory)]
    if device.is_fake:
        progress("no tool")
        return {**_run([*program, "--fake"], FAKE_SECONDS), "tools": "none: there is no compute-sanitizer for a fake"}
    found = tool("compute-sanitizer")
    if found is None:
        return {"passed": False, "output": f"expects compute-sanitizer in PATH or in {TOOLKIT}"}
    results: dict[str, dict[str, Any]] = {}
    for name, more in OPTIONS.items():
        if progress(name):
            options = ["--tool", name, *more, "--error-exitcode", str(ERROR_STATUS)]
            results[name] = _run([found, *options, *program], SECONDS, CLEAN[name])
            save(dict(results))
    return {"passed": len(results) == len(OPTIONS) and all(result["passed"] for result in results.values()), **results}
