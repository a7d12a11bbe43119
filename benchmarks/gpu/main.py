"""Runs all sections in turn, each in a process of its own, writes its JSON after each of its parts, and ends in time.

usage: python -m gpu.main PACK --out DIR [--fake] [--seconds N] [--only SECTION,...]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import processes
from .environment import provenance
from .sanitizer import SECONDS as SECONDS_OF_TOOL

if TYPE_CHECKING:
    from .device import Device
    from .parts import Progress, Save

ENDS = {"correctness": 0.4, "training": 0.5, "sanitizer": 0.75, "timings": 1.0}
"""At which share of the time a section must have ended: what is left of it then is left out, and named."""
SECTIONS = tuple(ENDS)
PART_SECONDS = {"correctness": 15.0, "training": 10.0, "sanitizer": SECONDS_OF_TOOL, "timings": 25.0}
"""What the slowest part of a section may take; a part is begun if there is as much time before the section's end."""

GRACE = 6.0
"""Seconds beyond its end after which a section is ended; the last of them must be ended before run.sh ends all."""


def open_device(pack: Path, fake: bool) -> Device:
    """The card, or the fakes that the pack carries."""
    from .device import Device

    return Device.fake(pack / "fake" / "libkaon_fake_cuda.so", pack / "fake" / "kernels") if fake else Device.card()


def _section(name: str, pack: Path, device: Device, report: Report, save: Save) -> dict[str, Any]:
    from . import correctness, sanitizer, timings, training

    progress: Progress = partial(report.announce, name)
    if name == "correctness":
        return correctness.run(pack, device, device.is_fake, progress, save)
    if name == "training":
        return training.run(pack, device) if progress("the run") else {"passed": False}
    if name == "sanitizer":
        return sanitizer.run(pack, device, progress, save)

    def judged(result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "targets": _verdicts(result, device.is_fake)}

    # Without its file it was not asked for.
    distrust = correctness.distrust_of_warpgroups(report.read("correctness")) if report.has("correctness") else ""
    return judged(timings.run(pack, device, device.is_fake, progress, lambda result: save(judged(result)), distrust))


def _verdicts(result: dict[str, Any], fake: bool) -> list[dict[str, Any]]:
    """One for every target; none on the fakes, where it can be neither met nor missed."""
    from . import targets

    return [] if fake else list(targets.verdicts(result))


class Report:
    """Progress on standard error, results as files."""

    def __init__(self, out: Path, seconds: float, started: float | None = None) -> None:
        self._out = out
        self._started = time.monotonic() if started is None else started
        self._seconds = seconds
        self._left_out: dict[str, list[str]] = {}
        out.mkdir(parents=True, exist_ok=True)

    @property
    def started(self) -> float:
        """When, by the monotonic clock, which all processes share."""
        return self._started

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def remaining(self, section: str) -> float:
        """Seconds until a section must have ended."""
        return self._seconds * ENDS[section] - self.elapsed()

    def limit(self, section: str) -> float:
        """Seconds from now on after which a section is to be ended by force."""
        return max(self.remaining(section), 0.0) + GRACE

    def say(self, text: str) -> None:
        """One line of progress."""
        print(f"[{self.elapsed():6.1f} s of {self._seconds:.0f}] {text}", file=sys.stderr, flush=True)

    def announce(self, section: str, part: str) -> bool:
        """The same about the next part of a section; whether there is time for it. What there is none for is noted."""
        in_time = self.remaining(section) >= PART_SECONDS[section]
        self.say(f"{section}: {part}{'' if in_time else ', left out: out of time'}")
        if not in_time:
            self._left_out.setdefault(section, []).append(part)
        return in_time

    def left_out(self, section: str) -> list[str]:
        """The parts of a section for which there was no time."""
        return self._left_out.get(section, [])

    def has(self, name: str) -> bool:
        """Whether something was written."""
        return (self._out / f"{name}.json").exists()

    def read(self, name: str) -> dict[str, Any]:
        """What was written last."""
        content: dict[str, Any] = json.loads((self._out / f"{name}.json").read_text())
        return content

    def write(self, name: str, content: dict[str, Any]) -> None:
        """One file, whole or not at all."""
        path = self._out / f"{name}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=2) + "\n")
        temporary.replace(path)


def run_section(name: str, pack: Path, device: Device, report: Report) -> bool:
    """One section in this process; what it has is written after each part, as not complete, and again at its end.
    What it raises is part of its result. Whether it passed."""
    began = report.elapsed()
    about = {"made": provenance(pack), "device": device.describe()}
    kept: dict[str, Any] = {}

    def write(result: dict[str, Any], complete: bool) -> None:
        times = {
            "seconds_of_section": round(report.elapsed() - began, 1),
            "left_out_for_lack_of_time": report.left_out(name),
        }
        report.write(name, {**about, **times, **result, "complete": complete})

    def save(result: dict[str, Any]) -> None:
        kept.update(result, passed=False)
        write(kept, complete=False)

    try:
        result = _section(name, pack, device, report, save)
    except Exception:
        write({**kept, "passed": False, "error": traceback.format_exc()}, complete=False)
        return False
    if device.answers():
        about["device"] = device.describe()  # the state of the card when it has worked
    write(result, complete=True)
    return bool(result["passed"])


def run(report: Report, sections: list[str], command: Callable[[str], list[str]]) -> bool:
    """Every section by its `command`; the next one runs whatever becomes of it. Whether all passed."""
    passed = True
    for name in sections:
        report.say(name)
        report.write(name, {"passed": False, "complete": False})  # nor does a file of an earlier run stay
        limit = report.limit(name)
        status = processes.run(command(name), limit, keep_output=False).status
        result = report.read(name)
        if not result["complete"] or status != (0 if result["passed"] else 1):
            why = f"ended after {limit:.0f} s" if status is None else f"its process ended with status {status}"
            result = {**result, "passed": False, "error": result.get("error", why)}
            report.write(name, result)
        passed &= bool(result["passed"])
        report.say(f"{name}: {'passed' if result['passed'] else 'FAILED'}")
        if "error" in result:
            report.say(str(result["error"]))
    return passed


def _child(name: str, options: argparse.Namespace) -> int:
    """One section in this process. Exit status: 0 if it passed."""
    report = Report(options.out, options.seconds, options.child_since)
    try:
        device = open_device(options.pack, options.fake)
        return 0 if run_section(name, options.pack, device, report) else 1
    except Exception:  # there is no device, or it cannot be described
        failed = {"passed": False, "complete": False, "error": traceback.format_exc()}
        report.write(name, failed)
        if name == "timings":
            report.write(name, {**failed, "targets": _verdicts({}, options.fake)})
        return 1


def main(arguments: list[str]) -> int:
    """Exit status: 0 if every section passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, help="what pack.sh made")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--fake", action="store_true", help="run on the fakes that the pack carries")
    parser.add_argument("--seconds", type=float, default=430.0, help="all the time there is (default: %(default)s)")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections out of {', '.join(SECTIONS)}")
    parser.add_argument("--child-since", type=float, help=argparse.SUPPRESS)  # runs one section; when all began
    options = parser.parse_args(arguments)
    sections = options.only.split(",")
    if not set(sections) <= set(SECTIONS):
        parser.error(f"--only expects names out of {', '.join(SECTIONS)}, but got {options.only}")
    if options.fake and "measurements" in options.out.resolve().parts:
        parser.error("--fake expects --out outside of docs/measurements: what fakes say is no measurement")
    # To end is to raise, so that what was started in a session of its own is ended, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if options.child_since is not None:
        return _child(options.only, options)
    report = Report(options.out, options.seconds)

    def command(name: str) -> list[str]:
        own = ["--only", name, "--seconds", str(options.seconds), "--child-since", str(report.started)]
        fake = ["--fake"] if options.fake else []
        return [sys.executable, "-m", "gpu.main", str(options.pack), "--out", str(options.out), *own, *fake]

    return 0 if run(report, sections, command) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
