"""One small step under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .device import Device
from .environment import TOOLKIT, tool

TOOLS = ("memcheck", "racecheck")
SECONDS = 50.0
"""Of a tool at most."""
FAKE_SECONDS = 600.0
"""Of the imitated step, which takes no time on a card."""
ERROR_STATUS = 9


def _run(command: list[str], seconds: float = SECONDS) -> dict[str, Any]:
    # One allocation per tensor: what lies beyond one is nobody's then, and seen.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"passed": False, "output": f"not done after {seconds:.0f} s"}
    output = f"{result.stdout}{result.stderr}"[-4000:]
    return {"passed": result.returncode == 0, "status": result.returncode, "output": output}


def run(directory: Path, device: Device, progress: Callable[[str], bool]) -> dict[str, Any]:
    """Run the small step under every tool for which there is time; on the fakes, without any, which is said."""
    program = [sys.executable, "-m", "gpu.small_step", str(directory)]
    if device.is_fake:
        progress("no tool")
        return {**_run([*program, "--fake"], FAKE_SECONDS), "tools": "none: there is no compute-sanitizer for a fake"}
    found = tool("compute-sanitizer")
    if found is None:
        return {"passed": False, "output": f"expects compute-sanitizer in PATH or in {TOOLKIT}"}
    results = {}
    for name in TOOLS:
        if progress(name):
            options = ["--tool", name, "--error-exitcode", str(ERROR_STATUS)]
            results[name] = _run([found, *options, *program])
            results[name]["summary"] = re.findall(r"(?:ERROR|RACECHECK) SUMMARY:.*", results[name]["output"])
    return {"passed": len(results) == len(TOOLS) and all(result["passed"] for result in results.values()), **results}
