"""One small step under NVIDIA's compute-sanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from .device import Device

TOOLS = ("memcheck", "racecheck")
SECONDS = 50
ERROR_STATUS = 9


def _run(command: list[str]) -> dict[str, Any]:
    # One allocation per tensor: what lies beyond one is nobody's then, and seen.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"passed": False, "output": f"not done after {SECONDS} s"}
    output = f"{result.stdout}{result.stderr}"[-4000:]
    return {"passed": result.returncode == 0, "status": result.returncode, "output": output}


def run(directory: Path, device: Device) -> dict[str, Any]:
    """Run the small step under every tool; on the fakes, without any, which is said."""
    program = [sys.executable, "-m", "gpu.small_step", str(directory)]
    if device.is_fake:
        return {**_run([*program, "--fake"]), "tools": "none: there is no compute-sanitizer for a fake"}
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(found).exists():
        return {"passed": False, "output": "expects compute-sanitizer in PATH or in /usr/local/cuda/bin"}
    results = {}
    for tool in TOOLS:
        options = ["--tool", tool, "--error-exitcode", str(ERROR_STATUS)]
        results[tool] = _run([found, *options, *program])
        results[tool]["summary"] = re.findall(r"(?:ERROR|RACECHECK) SUMMARY:.*", results[tool]["output"])
    return {"passed": all(result["passed"] for result in results.values()), **results}
