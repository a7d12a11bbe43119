"""The parts of a section: one that raises loses itself only."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .device import Device

Progress = Callable[[str], bool]
"""Told what comes next; false where there is no time for it."""
Save = Callable[[dict[str, Any]], None]
"""Keeps what a section has so far."""
OUT_OF_TIME = "not run: out of time"
Result = TypeVar("Result")


@dataclass
class Parts:
    """Runs parts as long as there is time and the device answers."""

    device: Device
    progress: Progress
    lost_after: str | None = None
    """The part after which the device answered no more: an error of CUDA stays until the process ends."""

    def attempt(self, name: str, part: Callable[[], Result]) -> tuple[Result | None, dict[str, str]]:
        """What `part` returns, or None and why there is nothing: under "skipped" or, if it raised, under "error"."""
        if self.lost_after is not None:
            return None, {"skipped": f"not run: the device answers no more since {self.lost_after}"}
        if not self.progress(name):
            return None, {"skipped": OUT_OF_TIME}
        try:
            return part(), {}
        except Exception:  # the next part may still work, and a card is rare
            if not self.device.answers():
                self.lost_after = name
            return None, {"error": traceback.format_exc()}
