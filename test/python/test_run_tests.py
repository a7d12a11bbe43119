"""The test runner's summary: counts come from reports, and what was not run is said."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "tools" / "run_tests.py"
REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="kaon-cuda-compiled-sm_80" value="7"/></properties></testcase>
<testcase name="b"><failure/></testcase>
<testcase name="c"><skipped message="no reason"/></testcase>
<testcase name="d"><properties><property name="other" value="text"/></properties></testcase>
<testcase name="e"><properties><property name="kaon-cuda-ran" value="kernel_a"/>
<property name="kaon-cuda-ran" value="kernel_b"/></properties></testcase>
<testcase name="f"><properties><property name="kaon-cuda-ran" value="kernel_a"/></properties></testcase>
</testsuite></testsuites>"""


def runner() -> Any:
    spec = importlib.util.spec_from_file_location("kaon_run_tests", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_counts_and_numbers_come_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    outcome = runner().read_junit("suite", report)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (4, 1, {"no reason": 1})
    assert outcome.properties == {"kaon-cuda-compiled-sm_80": 7, "kaon-cuda-ran": 2}


def test_a_suite_without_a_report_failed(tmp_path: Path) -> None:
    assert runner().read_junit("suite", tmp_path / "none.xml").failed == 1


def test_the_summary_says_what_ran_where_and_what_did_not_run() -> None:
    compiled, ran, gpu, several = runner().cuda_summary(
        {
            "kaon-cuda-compiled-sm_80": 7,
            "kaon-cuda-compiled-sm_90a": 8,
            "kaon-cuda-ran": 5,
            "kaon-cuda-ran-asan": 4,
            "kaon-cuda-ran-tsan": 3,
        }
    )
    assert compiled == "cuda: 15 kernels compiled by NVRTC: 7 for sm_80, 8 for sm_90a"
    assert ran == (
        "cuda: 5 generated kernels ran on the CPU, in the shim, launched through a FAKE driver; "
        "4 under AddressSanitizer and 3 under ThreadSanitizer"
    )
    assert gpu.startswith("cuda: not run: L2, on a GPU: ")
    assert several.startswith("cuda: not run: L3, on several GPUs with NCCL: ")
    nothing, none, *_ = runner().cuda_summary({})
    assert nothing == "cuda: no kernel was compiled: no NVRTC, or these tests were not run"
    assert none.startswith("cuda: 0 generated kernels ran")


def test_what_is_left_out_is_a_suite(tmp_path: Path) -> None:
    command = [sys.executable, str(PATH), "--build", str(tmp_path), "--leave-out", "pytests"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "--leave-out: expects one of lit, unit, pytest, but got pytests" in result.stderr


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    left_out = [option for suite in ("lit", "pytest") for option in ("--leave-out", suite)]
    unit = tmp_path / "test" / "unit" / "kaon-unit-tests"
    unit.parent.mkdir(parents=True)
    unit.write_text(f"#!/bin/bash\ncat >${{2#*:}} <<'end'\n{REPORT}\nend\n")
    unit.chmod(0o755)
    command = [sys.executable, str(PATH), "--build", str(tmp_path), *left_out]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    assert "lit: not run: left out of this build's tests" in lines
    assert "pytest: not run: left out of this build's tests" in lines
    assert lines[-1] == "4 passed, 1 failed"
