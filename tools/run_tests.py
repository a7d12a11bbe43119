"""Runs every test suite of a build (lit, GoogleTest programs, pytest) and ends with ``N passed, N failed`` over them
all.

The counts come from the machine-readable reports that the runners write, never from their exit status alone: a suite
that dies before writing its report, or that runs no test, counts as one failure.

usage: python tools/run_tests.py --build build/dev [--leave-out SUITE ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = {"asan": "AddressSanitizer", "tsan": "ThreadSanitizer"}
LIT = "import sys; from lit.main import main; sys.exit(main())"


@dataclass
class Outcome:
    """How many tests of one suite passed and failed, the reasons of the skipped ones with their counts, and the numbers
    that tests recorded: of what they recorded the names of, how many different ones."""

    suite: str
    passed: int
    failed: int
    skipped: dict[str, int]
    properties: dict[str, int] = field(default_factory=dict)


def read_junit(suite: str, report: Path) -> Outcome:
    """Counts the test cases in a JUnit XML report as written by lit, GoogleTest and pytest."""
    if not report.exists():
        print(f"{suite}: wrote no report: counted as a failure", file=sys.stderr)
        return Outcome(suite, 0, 1, {})
    passed, failed, skipped, properties = 0, 0, dict[str, int](), dict[str, int]()
    named: dict[str, set[str]] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skip = case.find("skipped")
        for item in case.iter("property"):
            name, value = item.get("name", ""), item.get("value", "")
            if name.startswith("kaon-") and value.isdecimal():
                properties[name] = int(value)
            elif name.startswith("kaon-"):
                named.setdefault(name, set()).add(value)
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif skip is not None or case.get("status") == "notrun":
            reason = (skip.get("message") if skip is not None else None) or "disabled"
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            passed += 1
    if passed + failed == 0:
        print(f"{suite}: ran no test: counted as a failure", file=sys.stderr)
        failed = 1
    properties |= {name: len(values) for name, values in named.items()}
    return Outcome(suite, passed, failed, skipped, properties)


def cuda_summary(properties: Mapping[str, int]) -> list[str]:
    """What was checked of the CUDA target, how, and what was not."""
    prefix = "kaon-cuda-compiled-"
    compiled = {name.removeprefix(prefix): count for name, count in properties.items() if name.startswith(prefix)}
    if not compiled:
        lines = ["cuda: no kernel was compiled: no NVRTC, or these tests were not run"]
    else:
        each = ", ".join(f"{count} for {arch}" for arch, count in compiled.items())
        lines = [f"cuda: {sum(compiled.values())} kernels compiled by NVRTC: {each}"]
    ran = properties.get("kaon-cuda-ran", 0)
    sanitized = " and ".join(
        f"{properties.get(f'kaon-cuda-ran-{suffix}', 0)} under {name}" for suffix, name in SANITIZERS.items()
    )
    lines.append(
        f"cuda: {ran} generated kernels ran on the CPU, in the shim, launched through a FAKE driver; {sanitized}"
    )
    why = "benchmarks/gpu/run.sh does that" if Path("/dev/nvidiactl").exists() else "this machine has none"
    lines.append(f"cuda: not run: L2, on a GPU: {why}")
    lines.append("cuda: not run: L3, on several GPUs with NCCL: there are no collectives yet")
    return lines


def run(suite: str, command: list[str], report: Path, environment: Mapping[str, str]) -> Outcome:
    """Runs one suite's command, which writes its JUnit report to ``report``, and counts what it did."""
    print(f"== {suite}", flush=True)
    report.unlink(missing_ok=True)
    start = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode
    outcome = read_junit(suite, report)
    if status != 0 and outcome.failed == 0:
        print(f"{suite}: exited with status {status} though no test failed: counted as a failure", file=sys.stderr)
        outcome.failed = 1
    seconds = time.monotonic() - start
    print(f"== {suite}: {outcome.passed} passed, {outcome.failed} failed in {seconds:.0f} s", flush=True)
    return outcome


def cuda_programs(build: Path) -> list[Path]:
    """Generated kernels, and plain and under the sanitizers the CUDA device library and the launcher, on the CPU; not
    built for every kind of processor."""
    sanitized = [
        f"{program}{suffix}"
        for program in ("kaon-cuda-tests", "fake/kaon-launcher-tests")
        for suffix in ("", "-asan", "-tsan")
    ]
    return [build / "test/cuda" / program for program in ("kaon-cuda-generated-tests", *sanitized)]


def suites(build: Path) -> dict[str, tuple[list[str], str]]:
    """For each suite its command, and the option that makes it write a JUnit report to the path that replaces '{}'."""
    # One file per worker at a time: most of the time goes to many small steps, which gain nothing from two threads.
    workers = ["-n", str(min(4, os.cpu_count() or 1)), "--dist", "loadfile"]
    return {
        "lit": ([sys.executable, "-c", LIT, "-sv", str(build / "test/lit")], "--xunit-xml-output={}"),
        "unit": ([str(build / "test/unit/kaon-unit-tests"), "--gtest_brief=1"], "--gtest_output=xml:{}"),
        **{
            path.name: ([str(path), "--gtest_brief=1"], "--gtest_output=xml:{}")
            for path in cuda_programs(build)
            if path.exists()
        },
        "pytest": ([sys.executable, "-m", "pytest", *workers, "test/python"], "--junitxml={}"),
    }


def run_all(build: Path, selected: Mapping[str, tuple[list[str], str]]) -> list[Outcome]:
    """Runs the suites one after another; their reports lie in the build's folder `reports`."""
    reports = build / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(build / "python"), os.environ.get("PYTHONPATH")])),
        "KAON_BUILD_DIR": str(build),
        # Compiled kernels of a test run neither come from nor go to the user's own cache.
        "KAON_CACHE_DIR": str(build / "test-kernel-cache"),
    }
    outcomes = []
    for suite, (command, option) in selected.items():
        report = reports / f"{suite}.xml"
        outcomes.append(run(suite, [*command, option.format(report)], report, environment))
    return outcomes


def summary(build: Path, outcomes: list[Outcome], left_out: list[str]) -> list[str]:
    """What was not run and why, what was checked of CUDA, and last the counts."""
    lines = [
        f"{outcome.suite}: {count} not run: {reason}"
        for outcome in outcomes
        for reason, count in outcome.skipped.items()
    ]
    lines += [f"{suite}: not run: left out of this build's tests" for suite in left_out]
    lines += [f"{path.name}: not run: not built" for path in cuda_programs(build) if not path.exists()]
    lines += cuda_summary({name: value for outcome in outcomes for name, value in outcome.properties.items()})
    passed, failed = (sum(getattr(outcome, what) for outcome in outcomes) for what in ("passed", "failed"))
    return [*lines, f"{passed} passed, {failed} failed"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="build directory, e.g. build/dev")
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="SUITE", help="a suite that this kind of build cannot run"
    )
    arguments = parser.parse_args()
    build: Path = arguments.build.resolve()
    selected = suites(build)
    for suite in arguments.leave_out:
        if selected.pop(suite, None) is None:
            parser.error(f"--leave-out: expects one of {', '.join(selected)}, but got {suite}")
    outcomes = run_all(build, selected)
    print("\n".join(summary(build, outcomes, arguments.leave_out)), flush=True)
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
