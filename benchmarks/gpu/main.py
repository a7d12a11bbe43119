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

if TYPE_CHECKING:
    from .device import Device

SECTIONS = ("correctness", "training", "sanitizer", "timings")
SHARES = {"correctness": 0.25, "training": 0.35, "sanitizer": 0.4, "timings": 0.9}
"""At which share of the time a section must have started to be run at all."""


RESERVE = 25.0
"""Seconds that the slowest part of the timings may take, and the end."""


def open_device(pack: Path, fake: bool) -> Device:
    """The card, or the fakes that the pack carries."""
    from .device import Device

    return Device.fake(pack / "fake" / "libkaon_fake_cuda.so", pack / "fake" / "kernels") if fake else Device.card()


def _section(name: str, pack: Path, device: Device, tiny: bool, progress: Callable[[str], bool]) -> dict[str, Any]:
    from . import correctness, sanitizer, targets, timings, training

    if name == "correctness":
        return correctness.run(pack, device, tiny, progress)
    if name == "training":
        return training.run(pack, device)
    if name == "sanitizer":
        return sanitizer.run(pack, device)
    result = timings.run(pack, device, tiny, progress)
    # On the fakes a target can be neither met nor missed.
    result["targets"] = [] if device.is_fake else list(targets.verdicts(result))
    result["passed"] = result["triton_check"] is None or result["triton_check"]["passed"]
    return result


class Report:
    """Progress on standard error, results as files."""

    def __init__(self, out: Path, seconds: float) -> None:
        self._out = out
        self._started = time.monotonic()
        self._seconds = seconds
        out.mkdir(parents=True, exist_ok=True)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def share(self) -> float:
        """The part of the time that is over."""
        return self.elapsed() / self._seconds

    def say(self, text: str) -> None:
        """One line of progress."""
        print(f"[{self.elapsed():6.1f} s of {self._seconds:.0f}] {text}", file=sys.stderr, flush=True)

    def announce(self, section: str, text: str) -> bool:
        """The same about what comes next in a section; whether there is time for it."""
        in_time = self._seconds - self.elapsed() > RESERVE
        self.say(f"{section}: {text}{'' if in_time else ', skipped: out of time'}")
        return in_time

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
        if report.share() > SHARES[name]:
            result: dict[str, Any] = {"passed": False, "error": f"not run: {report.elapsed():.0f} s had passed"}
        else:
            report.say(name)
            try:
                result = _section(name, pack, device, device.is_fake, partial(report.announce, name))
            except Exception:  # the next section may still work, and a card is rare
                result = {"passed": False, "error": traceback.format_exc()}
        passed &= bool(result["passed"])
        report.write(name, {"device": device.describe(), **result})
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
    parser.add_argument("--seconds", type=float, default=440.0, help="all the time there is (default: %(default)s)")
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
