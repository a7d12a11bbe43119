"""Programs with a limit of time, which end with everything that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PATIENCE = 1.0
"""Seconds between the request to end and the end by force."""


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit status, None if it was ended for lack of time, and what it printed until then."""

    status: int | None
    output: str


def run(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None, keep_output: bool = True
) -> Ended:
    """Run `command` in a session of its own, and end all of that after `seconds`, or when this process is to end.

    Args:
        keep_output: whether standard output and error are caught, together; otherwise they are this process's.
    """
    pipe, both = (subprocess.PIPE, subprocess.STDOUT) if keep_output else (None, None)
    process = subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=both, text=True, errors="replace", start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Ended(None, _end(process))
    except BaseException:  # this process is to end; nothing else knows the other session
        _end(process)
        raise
    return Ended(process.returncode, output or "")


def _end(process: subprocess.Popen[str]) -> str:
    """End the session of a process; what it had printed."""
    output = ""
    # By force even if the first of them has ended: those that it started may not have.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):  # of pipes that are read to their end
            output = process.communicate(timeout=PATIENCE)[0] or output
    return output
