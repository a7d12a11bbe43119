"""What a result must say about where it was measured: commit, date, versions, and the state of the card."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKED = "packed.json"
"""What pack.sh writes about itself, in the pack."""

SMI_FIELDS = (
    "name",
    "driver_version",
    "pstate",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)
LOAD_FIELDS = (
    "pstate",
    "clocks.sm",
    "clocks.mem",
    "power.draw.instant",
    "temperature.gpu",
    "clocks_event_reasons.active",
)
"""What changes under load; the last one, a mask, says what holds clocks down."""
SECONDS = 15.0
"""Of a tool at most, ..."""
SECONDS_UNDER_LOAD = 3.0
"""... and where the card is kept busy for it."""
TOOLKIT = Path("/usr/local/cuda/bin")


def tool(name: str) -> str | None:
    """Where a program of the CUDA toolkit or the driver is: in PATH, or where toolkits are installed."""
    installed = TOOLKIT / name
    return shutil.which(name) or (str(installed) if installed.is_file() else None)


def _output(name: str, arguments: Sequence[str], seconds: float = SECONDS) -> tuple[str | None, str]:
    """What a tool prints, or None and why it does not."""
    path = tool(name)
    if path is None:
        return None, f"no {name} in PATH or {TOOLKIT}"
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode != 0:
        return None, f"{name} exits with {done.returncode}: {(done.stdout + done.stderr).strip()[-200:]}"
    return done.stdout, ""


def card_state(device: str, fields: Sequence[str] = SMI_FIELDS, seconds: float = SECONDS) -> dict[str, str]:
    """Clocks (MHz), power (W) and more of a card as nvidia-smi tells them now; one entry "absent" where it does not.

    Args:
        device: its UUID ("GPU-..."), or its index.
        fields: what is asked for.
        seconds: that nvidia-smi may take.
    """
    command = [f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", f"--id={device}"]
    text, reason = _output("nvidia-smi", command, seconds)
    if text is None:
        return {"absent": reason}
    rows = list(csv.reader(text.strip().splitlines(), skipinitialspace=True))
    if len(rows) != 1 or len(rows[0]) != len(fields):
        return {"absent": f"nvidia-smi printed {text.strip()[:200]!r}"}
    return dict(zip(fields, rows[0], strict=True))


def load_state(device: str) -> dict[str, str]:
    """The same of a card that works; what every nvidia-smi knows where this one does not know all LOAD_FIELDS."""
    state = card_state(device, LOAD_FIELDS, SECONDS_UNDER_LOAD)
    return card_state(device, seconds=SECONDS_UNDER_LOAD) if "absent" in state else state


def toolkit_version() -> str:
    """Of the CUDA toolkit, as nvcc tells it."""
    text, reason = _output("nvcc", ["--version"])
    if text is None:
        return f"absent: {reason}"
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    return found[1] if found else f"absent: nvcc printed {text.strip()[:200]!r}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent: not installed"


def software() -> dict[str, str]:
    """Versions beside those of Kaon, torch and the driver."""
    return {"python": platform.python_version(), "triton": _version("triton"), "cuda_toolkit": toolkit_version()}


def write_packed(directory: Path, commit: str) -> None:
    """Record what the packages were made of."""
    (directory / PACKED).write_text(json.dumps({"commit": commit, "packed": now()}) + "\n")


def provenance(directory: Path) -> dict[str, Any]:
    """The commit of the pack, when it was made, and when it is run."""
    try:
        packed = json.loads((directory / PACKED).read_text())
    except OSError as error:
        packed = {"commit": f"absent: cannot read {PACKED}: {error.strerror}"}
    return {**packed, "run": now()}


def now() -> str:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
