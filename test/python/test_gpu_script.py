"""The GPU script (benchmarks/gpu): run to its end on the fakes, and that its checks can fail.

What a fake answers shows nothing about a GPU; what is tested here is the script.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import runtime_only
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks" / "gpu"
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu import correctness, network, packages, targets, timings, workloads  # noqa: E402
from gpu.device import FAKE_NOTE, Device  # noqa: E402
from gpu.main import Report, main, run  # noqa: E402
from gpu.pack import compile_workload  # noqa: E402
from kaon.package import machine  # noqa: E402

needs_level = pytest.mark.skipif(not machine.cpu_levels(), reason="packages for processors need x86-64-v3")


def workload(name: str) -> workloads.Workload:
    return next(item for item in workloads.all_workloads(tiny=True) if item.name == name)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The processor in place of a device: for the script's own arithmetic, no imitated driver is needed."""
    monkeypatch.setattr(packages.Loaded, "launches", lambda self: dict(self.program.executor.launches))
    yield Device(torch.device("cpu"), True)


# ---- the arithmetic of the script


@needs_level
def test_the_references_agree_with_the_cpu_target(host: Device, tmp_path: Path) -> None:
    for name in ("muon-f32", "muon-calibrated", "adamw-amsgrad", "row-step-f32", "product-f32"):
        compile_workload(workload(name), tmp_path, ("host",))
        verdicts, launches = correctness.check(tmp_path, workload(name), host)
        assert all(verdict["passed"] for verdict in verdicts), [v for v in verdicts if not v["passed"]]
        assert all(launches.values()) and {verdict["step"] for verdict in verdicts} == {1, 2, 3}


@needs_level
def test_a_wrong_kernel_is_noticed(host: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference stands for the kernel here: an error of one part in 10000 in a row step is too much."""
    compile_workload(workload("row-step-f32"), tmp_path, ("host",))
    normalize = correctness.references.row_normalize
    monkeypatch.setattr(correctness.references, "row_normalize", lambda u: normalize(u) * (1 + 1e-4))
    verdicts, _ = correctness.check(tmp_path, workload("row-step-f32"), host)
    assert any(not verdict["passed"] for verdict in verdicts if verdict["what"] == "parameter")
    assert not correctness.relative(torch.tensor([float("nan")]), torch.ones(1), torch.ones(1)) <= 1.0


def test_shapes_and_sizes() -> None:
    assert len(workloads.SHAPES) == len(set(workloads.SHAPES)) == 30
    names = [item.name for item in workloads.all_workloads(tiny=False)]
    assert len(names) == len(set(names)) > len(workloads.all_workloads(tiny=True))
    kinds = {tuple(item.shapes[0]) for item in workloads.newton_schulz(tiny=False)}
    assert {(2048, 2048), (2048, 4096), (2048, 8192)} <= kinds


def test_the_run_is_a_training_run() -> None:
    weights = network.parameters(torch.device("cpu"))
    losses = network.train(torch.optim.AdamW(weights, lr=1e-2), weights, torch.device("cpu"))
    assert losses[-1] < 0.7 * losses[0]


def test_targets_are_judged() -> None:
    def product(name: str, speedup: float) -> dict[str, Any]:
        return {"workload": name, "speedup_of_kaon_over": {"cublas": speedup}}

    def orthogonalization(name: str, speedup: float) -> dict[str, Any]:
        return {"workload": name, "speedup_of_kaon_over": {"torch.compile": speedup}}

    measured = {
        "bandwidth": [
            {"workload": "time-adamw", "elements": 1 << 26, "achieved_over_ceiling": 0.91},
            {"workload": "small", "elements": 1 << 10, "achieved_over_ceiling": 0.1},
            {"workload": "late", "skipped": "not run: out of time"},
        ],
        "symmetric_product": [product("time-product-2048-1", 0.9), product("time-product-4096-4", 1.6)],
        "newton_schulz": [
            orthogonalization("time-ns-2048x2048-4", 1.4),
            orthogonalization("time-ns-8192x2048-4", 1.8),
            orthogonalization("time-ns-2048x4096-4", 1.0),
            orthogonalization("time-ns-1024x1024-12", 1.0),
        ],
        "host": {"host_seconds_per_step": {"executor.step": {"median_s": 60e-6}}},
    }
    verdicts = {verdict["target"]: verdict["met"] for verdict in targets.verdicts(measured)}
    assert verdicts == {
        "time-adamw: share of copy bandwidth": True,
        "time-product-4096-4: over cuBLAS": False,
        "time-ns-2048x2048-4: over torch.compile": True,
        "time-ns-8192x2048-4: over torch.compile": False,
        "host time of executor.step": False,
    }


# ---- the sections


def test_a_section_that_raises_does_not_stop_the_others(tmp_path: Path) -> None:
    device = Device(torch.device("cpu"), True)
    assert not run(tmp_path / "nothing", device, Report(tmp_path / "out", 100.0), ["correctness", "training"])
    for name in ("correctness", "training"):
        content = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert content["passed"] is False and "Traceback" in content["error"]
        assert content["device"]["note"] == FAKE_NOTE


def test_a_section_that_cannot_end_in_time_is_not_run(tmp_path: Path) -> None:
    report = Report(tmp_path, 1e-6)
    assert not run(tmp_path, Device(torch.device("cpu"), True), report, ["training"])
    assert "not run: 0 s had passed" in json.loads((tmp_path / "training.json").read_text())["error"]


def test_timings_that_cannot_end_in_time_are_skipped(tmp_path: Path) -> None:
    device = Device(torch.device("cpu"), True)
    late = timings.run(tmp_path / "nothing", device, True, lambda what: False)
    entries = [*late["bandwidth"], late["host"], *late["symmetric_product"], *late["newton_schulz"]]
    assert len(entries) == 5 and all(entry["skipped"] == "not run: out of time" for entry in entries)
    assert list(targets.verdicts(late)) == []
    assert Report(tmp_path, 1000.0).announce("timings", "first") and not Report(tmp_path, 1.0).announce("timings", "x")


def test_fakes_write_no_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--fake", "--out", str(ROOT / "docs" / "measurements" / "x")])
    assert "what fakes say is no measurement" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--fake", "--out", str(tmp_path / "out"), "--only", "speed"])
    assert "--only expects names out of correctness" in capsys.readouterr().err


def test_without_packages_the_script_says_what_to_do(tmp_path: Path) -> None:
    environment = {**os.environ, "KAON_GPU_PACK": str(tmp_path / "none")}
    result = subprocess.run([SCRIPTS / "run.sh"], env=environment, capture_output=True, text=True)
    assert result.returncode == 1 and "make them with benchmarks/gpu/pack.sh" in result.stderr
    result = subprocess.run([SCRIPTS / "run.sh", "--fast"], env=environment, capture_output=True, text=True)
    assert result.returncode == 2 and "but got '--fast'" in result.stderr


# ---- the whole, on the fakes


def _script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("KAON_")}
    clean["PYTHON"] = sys.executable
    if "KAON_CACHE_DIR" in os.environ:
        clean["KAON_CACHE_DIR"] = os.environ["KAON_CACHE_DIR"]
    command = [str(SCRIPTS / name), *arguments]
    return subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, timeout=1500)


def test_the_script_runs_to_its_end_on_the_fakes(tmp_path: Path) -> None:
    fake_cuda = pytest.importorskip("fake_cuda")
    nvrtc_tools = pytest.importorskip("nvrtc_tools")
    if fake_cuda.unavailable() is not None or nvrtc_tools.find_library() is None or shutil.which("ninja") is None:
        pytest.skip("needs the fakes, NVRTC and ninja")
    import kaon

    where = {"KAON_GPU_PACK": str(tmp_path / "pack"), "KAON_GPU_BUILD": str(runtime_only.build())}
    packed = _script("pack.sh", "--fake", PYTHONPATH=str(Path(kaon.__path__[0]).parent), **where)
    assert packed.returncode == 0, packed.stderr
    result = _script("run.sh", "--fake", "--out", str(tmp_path / "out"), "--seconds", "1200", **where)
    assert result.returncode == 0, result.stderr[-6000:]
    files = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert set(files) == {"correctness.json", "training.json", "sanitizer.json", "timings.json"}
    for content in files.values():
        assert content["passed"] is True and content["device"]["note"] == FAKE_NOTE
        assert content["device"]["compiler"] is False
    assert files["correctness.json"]["checks"] > 250
    assert files["sanitizer.json"]["tools"].startswith("none: ")
    timings = files["timings.json"]
    assert timings["targets"] == [], "a fake meets no target and misses none"
    assert {"bandwidth", "symmetric_product", "newton_schulz", "host"} <= set(timings)
