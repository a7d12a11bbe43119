"""Runs all sections in turn, writes each one's JSON as soon as it is there, and ends in time.

usage: python -m gpu.main PACK --out DIR [--fake] [--seconds N] [--only SECTION,...]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .environment import provenance
from .sanitizer import SECONDS as SECONDS_OF_TOOL

if TYPE_CHECKING:
    from .device import Device

SECTIONS = ("correctness", "training", "sanitizer", "timings")
ENDS = {"correctness": 0.4, "training": 0.5, "sanitizer": 0.75, "timings": 1.0}
"""At which share of the time a section must have ended: what is left of it then is left out, and named."""
PART_SECONDS = {"correctness": 15.0, "training": 10.0, "sanitizer": SECONDS_OF_TOOL, "timings": 25.0}
"""What the slowest part of a section may take; a part is begun if there is as much time before the section's end."""


def open_device(pack: Path, fake: bool) -> Device:
    """The card, or the fakes that the pack carries."""
    from .device import Device

    return Device.fake(pack / "fake" / "libkaon_fake_cuda.so", pack / "fake" / "kernels") if fake else Device.card()


def _section(name: str, pack: Path, device: Device, progress: Callable[[str], bool]) -> dict[str, Any]:
    from . import correctness, sanitizer, targets, timings, training

    if name == "correctness":
        return correctness.run(pack, device, device.is_fake, progress)
    if name == "training":
        return training.run(pack, device) if progress("the run") else {"passed": False}
    if name == "sanitizer":
        return sanitizer.run(pack, device, progress)
    result = timings.run(pack, device, device.is_fake, progress)
    # On the fakes a target can be neither met nor missed.
    result["targets"] = [] if device.is_fake else list(targets.verdicts(result))
    return result


class Report:
    """Progress on standard error, results as files."""

    def __init__(self, out: Path, seconds: float) -> None:
        self._out = out
        self._started = time.monotonic()
        self._seconds = seconds
        self._left_out: dict[str, list[str]] = {}
        out.mkdir(parents=True, exist_ok=True)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """One line of progress."""
        print(f"[{self.elapsed():6.1f} s of {self._seconds:.0f}] {text}", file=sys.stderr, flush=True)

    def announce(self, section: str, part: str) -> bool:
        """The same about the next part of a section; whether there is time for it. What there is none for is noted."""
        in_time = self._seconds * ENDS[section] - self.elapsed() >= PART_SECONDS[section]
        self.say(f"{section}: {part}{'' if in_time else ', left out: out of time'}")
        if not in_time:
            self._left_out.setdefault(section, []).append(part)
        return in_time

    def left_out(self, section: str) -> list[str]:
        """The parts of a section for which there was no time."""
        return self._left_out.get(section, [])

    def write(self, name: str, content: dict[str, Any]) -> None:
        """One file, whole or not at all."""
        path = self._out / f"{name}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(path)


def run(pack: Path, device: Device, report: Report, sections: list[str]) -> bool:
    """All `sections`; what one of them raises is its result, and the next one runs. Whether all passed."""
    passed = True
    for name in sections:
        began = report.elapsed()
        report.say(name)
        try:
            result = _section(name, pack, device, partial(report.announce, name))
        except Exception:  # the next section may still work, and a card is rare
            result = {"passed": False, "error": traceback.format_exc()}
        passed &= bool(result["passed"])
        about = {
            "made": provenance(pack),
            "device": device.describe(),
            "seconds_of_section": round(report.elapsed() - began, 1),
            "left_out_for_lack_of_time": report.left_out(name),
        }
        report.write(name, {**about, **result})
        report.say(f"{name}: {'passed' if result['passed'] else 'FAILED'}")
        if "error" in result:
            report.say(str(result["error"]))
    return passed


def main(arguments: list[str]) -> int:
    """Exit status: 0 if every section passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, help="what pack.sh made")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--fake", action="store_true", help="run on the fakes that the pack carries")
    parser.add_argument("--seconds", type=float, default=430.0, help="all the time there is (default: %(default)s)")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections out of {', '.join(SECTIONS)}")
    options = parser.parse_args(arguments)
    sections = options.only.split(",")
    if not set(sections) <= set(SECTIONS):
        parser.error(f"--only expects names out of {', '.join(SECTIONS)}, but got {options.only}")
    if options.fake and "measurements" in options.out.resolve().parts:
        parser.error("--fake expects --out outside of docs/measurements: what fakes say is no measurement")
    report = Report(options.out, options.seconds)
    device = open_device(options.pack, options.fake)
    report.say(json.dumps(device.describe()))
    return 0 if run(options.pack, device, report, sections) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
