"""The GPU script (benchmarks/gpu): run to its end on the fakes, and that its checks can fail.

What a fake answers shows nothing about a GPU; what is tested here is the script.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import host_compiler
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks" / "gpu"
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu import (  # noqa: E402
    accounting,
    conduct,
    correctness,
    environment,
    network,
    occupancy,
    packages,
    processes,
    references,
    sanitizer,
    targets,
    timings,
    workloads,
)
from gpu import device as device_module  # noqa: E402
from gpu.device import FAKE_NOTE, Device  # noqa: E402
from gpu.main import ENDS, Report, main, run, run_section  # noqa: E402
from gpu.measuring import Measured, interleave  # noqa: E402
from gpu.pack import compile_workload  # noqa: E402
from gpu.parts import OUT_OF_TIME, Parts  # noqa: E402
from kaon.package import machine  # noqa: E402
from timing import Timing  # noqa: E402

needs_level = pytest.mark.skipif(not machine.cpu_levels(), reason="packages for processors need x86-64-v3")


def workload(name: str) -> workloads.Workload:
    return next(item for item in workloads.all_workloads(tiny=True) if item.name == name)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The processor in place of a device: for the script's own arithmetic, no imitated driver is needed."""
    monkeypatch.setattr(correctness.accounting, "verdicts", lambda loaded, steps: [])  # a processor has no graphs
    yield Device(torch.device("cpu"), True)


# ---- the arithmetic of the script


@needs_level
def test_the_references_agree_with_the_cpu_target(host: Device, tmp_path: Path) -> None:
    for item in workloads.correctness(tiny=True):
        if not item.package:
            compile_workload(item, tmp_path, ("host",))
        checked = correctness.check(tmp_path, item, host)
        failed = [verdict for verdict in (*checked.results, *checked.memory) if not verdict["passed"]]
        assert not failed and len(checked.memory) == 2, failed
        assert all(checked.kernels.values()) and {verdict["step"] for verdict in checked.results} == {1, 2, 3}


@needs_level
def test_a_wrong_kernel_is_noticed(host: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference stands for the kernel here: an error of one part in 10000 in a row step is too much."""
    compile_workload(workload("row-step-f32"), tmp_path, ("host",))
    normalize = correctness.references.row_normalize
    monkeypatch.setattr(correctness.references, "row_normalize", lambda u: normalize(u) * (1 + 1e-4))
    checked = correctness.check(tmp_path, workload("row-step-f32"), host)
    assert any(not verdict["passed"] for verdict in checked.results if verdict["what"] == "parameter")
    assert not correctness.relative(torch.tensor([float("nan")]), torch.ones(1), torch.ones(1)) <= 1.0


def _failed(checked: correctness.Checked) -> set[str]:
    return {verdict["what"] for verdict in (*checked.results, *checked.memory) if not verdict["passed"]}


@needs_level
@pytest.mark.filterwarnings("ignore:skipped a step")
def test_wrong_use_of_memory_is_noticed(host: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients read where they were before, elements written beyond a row, and a second run of other bits."""
    item = workload("row-step-f32")
    compile_workload(item, tmp_path, ("host",))
    with monkeypatch.context() as patch:
        patch.setattr(conduct, "renew_gradients", lambda loaded, step: [])
        assert _failed(correctness.check(tmp_path, item, host)) >= {"parameter", "m"}
    step_and_spoil = conduct.step_and_spoil

    def step_and_write_on(loaded: packages.Loaded) -> None:
        step_and_spoil(loaded)
        parameter = loaded.parameters[2].detach()  # one with gaps
        parameter.as_strided((1,), (1,), parameter.shape[1]).zero_()

    with monkeypatch.context() as patch:
        patch.setattr(conduct, "step_and_spoil", step_and_write_on)
        assert _failed(correctness.check(tmp_path, item.again("mixed", layout="mixed"), host)) == {
            "gaps stay as they were"
        }
    load = packages.load
    with monkeypatch.context() as patch:
        loads: list[packages.Loaded] = []

        def other_bits(*arguments: Any) -> packages.Loaded:
            loads.append(load(*arguments))
            if len(loads) == 2:
                loads[1].parameters[3].detach().view(-1)[0].mul_(1 + 2.0**-23)
            return loads[-1]

        patch.setattr(correctness, "load", other_bits)
        assert _failed(correctness.check(tmp_path, item, host)) == {"bits of a second run"}


@needs_level
def test_wrong_conduct_is_noticed(host: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that takes place with a NaN, one that is not counted, and one that reads gradients too late."""
    item = workload("muon-calibrated")
    compile_workload(item, tmp_path, ("host",))
    for check in conduct.CHECKS.values():
        assert check(tmp_path, item, host)["passed"]
    load, clone = packages.load, torch.Tensor.clone
    with monkeypatch.context() as patch:
        patch.setattr(conduct, "load", lambda *arguments: load(*arguments, nonfinite="propagate"))
        found = conduct.skips_what_is_not_finite(tmp_path, item, host)
        assert not found["passed"] and not found["nothing_changed"] and found["matrices_stepped_by_them"] > 0
    with monkeypatch.context() as patch:
        patch.setattr(conduct, "BAD", (1.0, 2.0, 3.0))
        assert conduct.skips_what_is_not_finite(tmp_path, item, host)["skipped_steps"] == 0
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", lambda tensor: clone(tensor).mul_(2.0))
        assert not conduct.follows_the_current_stream(tmp_path, item, host)["same_bits"]


def test_every_pair_of_layouts_is_checked() -> None:
    values = torch.arange(12.0).view(3, 4)
    placed = {layout: packages.laid_out(values, layout) for layout in packages.LAYOUTS}
    assert all(torch.equal(tensor, values) for tensor in placed.values())
    assert {layout: (tensor.storage_offset(), tensor.stride()) for layout, tensor in placed.items()} == {
        "dense": (0, (4, 1)),
        "offset": (1, (4, 1)),
        "gaps": (0, (7, 1)),
    }
    assert packages.laid_out(torch.ones(5), "gaps").stride() == (2,)
    for item in workloads.correctness(tiny=False):
        pairs = {packages.layouts(item, index) for index in range(len(item.shapes))}
        assert len(pairs) == (1 if item.layout == "dense" else min(9, len(item.shapes)))


def test_gradients_of_every_scale_are_checked() -> None:
    """With products of bf16 and of f16, and with both main loops."""
    for tiny in (False, True):
        found = {(item.products, item.scale) for item in workloads.correctness(tiny)}
        assert found >= {("bfloat16", scale) for scale in (1e30, 1e-30, 0.0)} | {("float16", 1e30)}
    loops = {(item.main_loop, item.scale) for item in workloads.correctness(tiny=False)}
    assert loops == {(loop, scale) for loop in ("mma", "wgmma") for scale in (1.0, 1e30, 1e-30, 0.0)}
    huge = next(item for item in workloads.correctness(tiny=True) if item.name == "muon-f32-huge")
    tensors = [packages.gradient_of(huge, index, torch.device("cpu"), 1) for index in range(len(huge.shapes))]
    sizes = {tensor.dim(): float(tensor.abs().max()) for tensor in tensors if tensor.numel() > 6}
    assert sizes[2] > 1e29 and sizes[1] < 10


def test_products_have_the_tolerance_of_their_type() -> None:
    """An eighth as much for float16; what is allowed for it would not do for bfloat16."""
    u = torch.randn(96, 160, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = [references.coefficients.KELLER_JORDAN.rows[0]] * 5
    exact = references.newton_schulz(u, rows)
    rounded = {half: references.newton_schulz(u, rows, half) for half in (torch.bfloat16, torch.float16)}
    errors = {half: correctness.relative(found, exact, exact) for half, found in rounded.items()}
    allowed = {half: correctness._tolerance(half, found, exact, exact) for half, found in rounded.items()}
    assert 6 < allowed[torch.bfloat16] / allowed[torch.float16] < 10
    assert allowed[torch.float16] < errors[torch.bfloat16] < allowed[torch.bfloat16] < 0.2


def test_every_option_of_the_optimizers_is_checked() -> None:
    """All tables of coefficients, decay modes, forms of momentum and types of products, on a card and but for momentum
    on the fakes."""
    from kaon.language import coefficients
    from kaon.optim.bindings import DECAY_MODES, MOMENTUM_FORMS

    def values(tiny: bool, option: str) -> set[object]:
        return {item.options.get(option) for item in workloads.correctness(tiny)}

    for tiny in (False, True):
        assert values(tiny, "ns_coefficients") >= set(coefficients.names())
        assert values(tiny, "decay_mode") | {"decoupled"} >= set(DECAY_MODES)
        assert {"calibrated", None} <= values(tiny, "row_scale") and True in values(tiny, "amsgrad")
        by_warpgroups = {item.products for item in workloads.correctness(tiny) if item.main_loop == "wgmma"}
        assert {item.products for item in workloads.correctness(tiny)} == by_warpgroups == {"bfloat16", "float16"}
    assert values(False, "momentum_form") | {"lerp"} >= set(MOMENTUM_FORMS)


def test_the_main_loop_of_sm_90a_is_packed_for_that_alone(tmp_path: Path) -> None:
    loops = {
        architectures: {item.main_loop for item in workloads.all_workloads(tiny=True) if item.suits(architectures)}
        for architectures in (("sm_90a",), ("sm_80",), ("sm_90a", "sm_80"))
    }
    assert loops == {("sm_90a",): {"mma", "wgmma"}, ("sm_80",): {"mma"}, ("sm_90a", "sm_80"): {"mma"}}
    both = [workload("product-f32"), workload("product-f32").by_warpgroups]
    assert packages.packed(tmp_path, both) == both[:1]
    (tmp_path / both[1].name).mkdir()
    assert packages.packed(tmp_path, both) == both


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
    def product(name: str, speedup: float, **waves: Any) -> dict[str, Any]:
        return {"workload": name, "speedup_of_kaon_over": {"cublas": speedup}, "waves": {"kaon": waves}}

    def orthogonalization(name: str, speedup: float) -> dict[str, Any]:
        return {"workload": name, "speedup_of_kaon_over": {"torch.compile": speedup}}

    measured = {
        "bandwidth": [
            {"workload": "time-adamw", "elements": 1 << 26, "achieved_over_ceiling": 0.91},
            {"workload": "time-rows-4096", "skipped": "not run: out of time"},
            {"workload": "time-rows-16384", "error": "Traceback"},
        ],
        "symmetric_product": [
            product("time-product-2048-1", 0.9, waves=0.5),
            product("time-product-4096-2", 1.6, waves=4.0),
            product("time-product-1024-30", 1.7, waves=4.1),
            product("time-product-4096-1", 1.8, why="KeyError('x')"),
        ],
        "newton_schulz": [
            orthogonalization("time-ns-2048x2048-4", 1.4),
            orthogonalization("time-ns-8192x2048-4", 1.8),
            {
                "workload": "time-ns-2048x8192-4",
                "speedup_of_kaon_over": {},
                "peers_that_failed": {"torch.compile": "no C"},
            },
            orthogonalization("time-ns-2048x4096-4", 1.0),
            orthogonalization("time-ns-1024x1024-12", 1.0),
        ],
        "host": {"host_seconds_per_step": {"executor.step": {"median": 60e-6}, "optimizer.step": {"median": 40e-6}}},
    }
    verdicts = list(targets.verdicts(measured))
    assert {verdict["target"]: verdict["met"] for verdict in verdicts if verdict["met"] is not None} == {
        "time-adamw: share of copy bandwidth": True,
        "time-product-4096-2: over cuBLAS": False,
        "time-product-1024-30: over cuBLAS": True,
        "time-ns-2048x2048-4: over torch.compile": True,
        "time-ns-8192x2048-4: over torch.compile": False,
        "host time of optimizer.step": True,
        "host time of executor.step": False,
    }
    reasons = {verdict["target"]: verdict["why"] for verdict in verdicts if verdict["met"] is None}
    assert reasons.pop("time-rows-4096: share of copy bandwidth") == "not run: out of time"
    assert reasons.pop("time-rows-16384: share of copy bandwidth") == "raised: see its entry"
    assert reasons.pop("time-product-2048-1: over cuBLAS") == "has 0.5 waves, and is to have 4"
    assert reasons.pop("time-product-4096-1: over cuBLAS") == "KeyError('x')"
    assert reasons.pop("time-ns-2048x8192-4: over torch.compile") == "torch.compile failed: no C"
    assert set(reasons.values()) == {"not begun"}
    names = [verdict["target"].partition(":")[0] for verdict in verdicts]
    assert set(names) >= {item.name for item in workloads.products(tiny=False)}, "every product has a line"
    nothing = list(targets.verdicts({}))
    assert [verdict["target"] for verdict in nothing] == [verdict["target"] for verdict in verdicts]
    assert all(verdict["met"] is None and verdict["why"] == "not begun" for verdict in nothing)


# ---- the sections


PROCESSOR = Device(torch.device("cpu"), True)


def test_a_section_that_raises_says_so(tmp_path: Path) -> None:
    report = Report(tmp_path / "out", 100.0)
    assert not run_section("training", tmp_path / "nothing", PROCESSOR, report)
    content = report.read("training")
    assert content["passed"] is False and content["complete"] is False and "Traceback" in content["error"]
    assert content["device"]["note"] == FAKE_NOTE


def test_a_part_that_raises_loses_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third workload raises: what was measured before and after it stays, in the file that was there all along."""
    kept: list[dict[str, Any]] = []

    def measured(directory: Path, item: workloads.Workload, device: Device) -> correctness.Checked:
        if item.name == names[2]:
            raise RuntimeError("planted")
        return correctness.Checked([], [], [], {f"kernel of {item.name}": 1})

    items = workloads.correctness(tiny=True)[:4]
    names = [item.name for item in items]
    monkeypatch.setattr(correctness, "packed", lambda directory, wanted: items)
    monkeypatch.setattr(correctness, "check", measured)
    result = correctness.run(tmp_path, PROCESSOR, True, lambda name: True, lambda partial: kept.append(dict(partial)))
    assert not result["passed"] and result["workloads"] == [*names[:2], names[3]]
    assert "planted" in result["unchecked"][names[2]]["error"]
    assert [len(partial["workloads"]) for partial in kept] == [1, 2, 2, 3, 3, 3]
    assert set(result["conduct"]) == set(conduct.CHECKS)
    assert all("Traceback" in found["error"] and not found["passed"] for found in result["conduct"].values())


def test_nan_is_the_worst_error() -> None:
    item = workload("product-f32")
    summary = correctness._Summary([item])
    step = {"workload": item.name, "step": 1, "what": "parameter", "allowed": 1.0}
    results = [{**step, "error": error, "passed": error <= 1.0} for error in (0.5, float("nan"), 0.7)]
    summary.add(item.name, correctness.Checked(results, [], [], {}), {})
    found = summary.as_json()
    assert list(found["worst_error_over_allowed"].values()) == [float("inf")] and len(found["failed"]) == 1


def test_a_timing_that_raises_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def host_time(directory: Path, device: Device, item: workloads.Workload) -> dict[str, Any]:
        return {"workload": item.name, "launches": {"passed": True}, "host_seconds_per_step": {}}

    def each(*arguments: Any) -> Iterator[dict[str, Any]]:
        def measure(item: workloads.Workload) -> dict[str, Any]:
            if item.name == "time-rows-40":
                raise MemoryError("planted")
            return {"workload": item.name, "launches": {"passed": True}}

        return timings._each((*workloads.rows(True), workloads.elementwise(True)), arguments[3], measure)

    monkeypatch.setattr(timings, "host_time", host_time)
    for kind in ("bandwidth", "symmetric_products", "newton_schulz_steps"):
        monkeypatch.setattr(timings, kind, each)
    monkeypatch.setattr(timings.peers, "triton_symmetric", lambda: None)
    saved: list[int] = []
    result = timings.run(tmp_path, PROCESSOR, True, lambda name: True, lambda partial: saved.append(len(partial)))
    raised, measured = result["bandwidth"]
    assert "planted" in raised["error"] and measured["launches"]["passed"] and not result["passed"]
    assert [len(result[kind]) for kind in ("symmetric_product", "newton_schulz")] == [2, 2] and len(saved) == 7
    assert result["triton_check"] == {"passed": None, "why": "Triton is not installed"}


def test_nothing_is_begun_on_a_device_that_answers_no_more() -> None:
    class Lost(Device):
        def synchronize(self) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    def part() -> None:
        raise RuntimeError("planted")

    parts = Parts(Lost(torch.device("cpu"), False), lambda name: True)
    assert "planted" in parts.attempt("first", part)[1]["error"]
    why = {"skipped": "not run: the device answers no more since first"}
    assert parts.attempt("second", lambda: 1) == (None, why)
    parts = Parts(PROCESSOR, lambda name: True)
    assert "error" in parts.attempt("first", part)[1] and parts.attempt("second", lambda: 1) == (1, {})


def test_a_peer_that_fails_is_named() -> None:
    def broken() -> None:
        raise RuntimeError("no C compiler")

    candidates: dict[str, Any] = {"kaon": lambda: None, "torch.compile": broken, "cublas": lambda: None}
    compared = timings._compare(PROCESSOR, workload("time-product-16-2"), 1.0, candidates, True)
    assert compared["peers_that_failed"] == {"torch.compile": "RuntimeError('no C compiler')"}
    assert set(compared["speedup_of_kaon_over"]) == {"cublas"}
    with pytest.raises(RuntimeError, match="no C compiler"):
        timings._compare(PROCESSOR, workload("time-product-16-2"), 1.0, {"kaon": broken}, True)
    entry = {"launches": {"passed": True}}
    assert timings._passed({**entry, "peers_that_failed": {"cublas": ""}})
    assert not timings._passed({**entry, "peers_that_failed": {"kaon, wgmma": ""}})


@needs_level
def test_bandwidth_is_of_useful_bytes(host: Device, tmp_path: Path) -> None:
    """Not of those that a plan counts, which must agree with them."""
    for item in (*workloads.rows(tiny=True), workloads.elementwise(tiny=True)):
        compile_workload(item, tmp_path, ("host",))
        loaded = packages.load(tmp_path, item, host)
        good = timings._bytes_of(loaded)
        assert good["bytes_agree"] and good["useful_bytes"] == item.useful_bytes * 640
        wrong = packages.Loaded(replace(item, useful_bytes=item.useful_bytes - 1), loaded.optimizer, loaded.parameters)
        entry = {**timings._bytes_of(wrong), "launches": {"passed": True}}
        assert not entry["bytes_agree"] and not timings._passed(entry) and timings._passed({**entry, **good})
    sizes = {item.name: item.useful_bytes for item in workloads.rows(tiny=False)}
    assert sizes == {"time-rows-4096": 20, "time-rows-16384": 20, "time-rows-4096-bf16-gradient": 18}


def test_blocks_of_a_multiprocessor() -> None:
    """By registers, by shared memory, by threads and by places; the figures are those of CUDA's calculator for 9.0."""
    shared = 228 << 10
    assert occupancy.blocks_per_multiprocessor(256, 128, 50176, shared) == 2
    assert occupancy.blocks_per_multiprocessor(256, 128, 120000, shared) == 1
    assert occupancy.blocks_per_multiprocessor(288, 96, 99376, shared) == 2
    assert occupancy.blocks_per_multiprocessor(288, 168, 99376, shared) == 1
    assert occupancy.blocks_per_multiprocessor(1024, 32, 0, shared) == 2
    assert occupancy.blocks_per_multiprocessor(32, 16, 0, shared) == 32


def test_a_main_loop_that_took_the_device_is_not_timed(tmp_path: Path) -> None:
    """A part that was ended or raised is a reason, one for which there was no time or which found an error is none."""
    trusted = correctness.distrust_of_warpgroups
    assert trusted({"complete": True, "failed": [{"workload": "muon-f32-wgmma"}]}) == ""
    late = {"unchecked": {"muon-f32-wgmma": {"skipped": OUT_OF_TIME}}, "complete": True}
    assert trusted(late) == ""
    assert trusted({"complete": False}) == "not run: correctness did not end"
    raised = {"unchecked": {"muon-f32-wgmma": {"error": "CudaError"}}, "complete": True}
    assert trusted(raised) == "not run: muon-f32-wgmma did not end in correctness"
    (tmp_path / workload("product-f32").by_warpgroups.name).mkdir()
    refused = timings._by_warpgroups(
        tmp_path, workload("product-f32"), PROCESSOR, trusted(raised), lambda loaded: print
    )
    compared = timings._compare(
        PROCESSOR, workload("product-f32"), 1.0, {"kaon": lambda: None, **refused, "cublas": lambda: None}, True
    )
    assert set(compared["peers_that_failed"]) == {"kaon, wgmma"} and "did not end" in str(compared)


def test_what_a_product_works_on_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the other main loop, nothing but the candidate holds parameters and gradients."""
    executor = SimpleNamespace(
        kernels=lambda phase: ["kernel_1", "matmul_2"], repeat=lambda *launch: done.append(launch)
    )
    program = SimpleNamespace(compiled=SimpleNamespace(executor=executor))
    done: list[tuple[int, ...]] = []
    optimizer = SimpleNamespace(_programs=[program], compile=lambda: None)
    loaded = packages.Loaded(workload("product-f32"), optimizer, [torch.nn.Parameter(torch.ones(1))])
    memory = weakref.ref(loaded.parameters[0])
    call = timings._product_alone(loaded, PROCESSOR)
    del loaded
    gc.collect()
    call()
    assert memory() is not None and done == [(0, 1, 2, 0)]


SECTION = """
import json, os, pathlib, signal, subprocess, sys, time
out, name, what = sys.argv[1:]
path = pathlib.Path(out, name + ".json")
path.write_text(json.dumps({"passed": what == "good", "complete": what == "good", "parts": 1}))
if what == "hangs":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    pathlib.Path(out, "child").write_text(str(child.pid))
    time.sleep(100)
if what == "crashes":
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def _is_alive(process: int) -> bool:
    """Whether it runs: one that was ended and not waited for does not."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_section_that_hangs_or_crashes_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended with all that it started, what it had stays, and the next section runs."""
    monkeypatch.setattr("gpu.main.GRACE", 2.0)
    planted = {"correctness": "hangs", "training": "crashes", "timings": "good"}
    (tmp_path / "training.json").write_text('{"passed": true, "complete": true}')  # of an earlier run
    report = Report(tmp_path, 1.0)
    began = time.monotonic()
    assert not run(
        report, list(planted), lambda name: [sys.executable, "-c", SECTION, str(tmp_path), name, planted[name]]
    )
    assert time.monotonic() - began < 30
    hung, crashed, good = (report.read(name) for name in planted)
    assert hung["parts"] == 1 and not hung["passed"] and hung["error"].startswith("ended after ")
    assert not crashed["passed"] and crashed["error"] == "its process ended with status -11"
    assert good == {"passed": True, "complete": True, "parts": 1}
    assert not _is_alive(int((tmp_path / "child").read_text()))


def test_a_process_of_its_own_writes_what_it_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kaon

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "benchmarks"), str(Path(kaon.__path__[0]).parent)]))
    assert main([str(tmp_path), "--fake", "--out", str(tmp_path / "out"), "--only", "training"]) == 1
    content = Report(tmp_path / "out", 1.0).read("training")
    assert content["complete"] is False and "libkaon_fake_cuda.so" in content["error"]


def test_without_a_device_every_target_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    started = ["--child-since", str(time.monotonic())]
    assert main([str(tmp_path), "--out", str(tmp_path / "out"), "--only", "timings", *started]) == 1
    content = Report(tmp_path / "out", 1.0).read("timings")
    assert "expects a GPU that torch can use" in content["error"] and content["complete"] is False
    assert content["targets"] == list(targets.verdicts({})) and len(content["targets"]) > 15


def test_what_a_program_printed_before_its_time_was_over_stays() -> None:
    ended = processes.run(["sh", "-c", "echo before; sleep 100 & sleep 100"], 0.5)
    assert ended == processes.Ended(None, "before\n")
    assert processes.run(["sh", "-c", "echo here; echo there >&2; exit 3"], 30.0) == processes.Ended(3, "here\nthere\n")


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    report = Report(tmp_path, 1e-6)
    names = ("correctness", "training", "timings")
    for name in names:
        run_section(name, tmp_path, PROCESSOR, report)
    left_out = {name: report.read(name)["left_out_for_lack_of_time"] for name in names}
    mentioned = packages.packed(tmp_path, workloads.correctness(tiny=True))
    assert set(left_out["correctness"]) == {*(item.name for item in mentioned), *conduct.CHECKS}
    assert left_out["training"] == ["the run"]
    assert {"time-adamw", "time-host", "check of the Triton kernel"} <= set(left_out["timings"])


def test_every_section_has_its_own_limit(tmp_path: Path) -> None:
    """Of 430 seconds; each part is begun only if it can end before the section must."""
    report = Report(tmp_path, 430.0)
    assert list(ENDS.values()) == sorted(ENDS.values()) and all(report.announce(name, "first") for name in ENDS)
    report._started -= 200  # beyond the end of correctness, before those of the others
    assert [name for name in ENDS if report.announce(name, "late")] == ["training", "sanitizer", "timings"]
    assert report.left_out("correctness") == ["late"] and report.left_out("timings") == []
    report._started -= 215
    assert not any(report.announce(name, "very late") for name in ENDS)


def test_timings_without_time_judge_nothing(tmp_path: Path) -> None:
    late = timings.run(tmp_path / "nothing", PROCESSOR, True, lambda what: False, lambda partial: None)
    assert [entry["skipped"] for entry in timings.entries(late)] == ["not run: out of time"] * 5
    assert all(verdict["met"] is None for verdict in targets.verdicts(late))


def _program(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


IMITATED_SANITIZER = """
echo "caching off: $PYTORCH_NO_CUDA_MEMORY_CACHING, $*"
[ -n "$SILENT" ] || echo "two steps, finite"
case "$*" in
  *racecheck*) echo "========= RACECHECK SUMMARY: ${HAZARDS:-0} hazards displayed"; exit "${STATUS:-0}" ;;
  *) echo "========= ERROR SUMMARY: ${ERRORS:-0} errors"; sleep "${SLEEP:-0}" ;;
esac
"""


def test_the_sanitizer_sees_every_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tool runs without torch's cache, whose blocks would hide what lies beyond one; its verdict counts, and so
    does that of the program."""
    _program(tmp_path, "compute-sanitizer", IMITATED_SANITIZER)
    (tmp_path / "sleep").symlink_to(shutil.which("sleep") or "/bin/sleep")
    monkeypatch.setenv("PATH", str(tmp_path))

    def found(left_out: str = "", **planted: str) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            for name, value in planted.items():
                patch.setenv(name, value)
            return sanitizer.run(tmp_path, card, lambda name: name != left_out, saved.append)

    saved: list[dict[str, Any]] = []
    card = Device(torch.device("cpu"), False)
    good = found()
    assert good["passed"] and set(good) == {"passed", "memcheck", "racecheck"}
    assert [set(partial) for partial in saved] == [{"memcheck"}, {"memcheck", "racecheck"}]
    expected = "caching off: 1, --tool memcheck --report-api-errors no --error-exitcode 9"
    assert expected in good["memcheck"]["output"]
    assert good["memcheck"]["summary"] == ["ERROR SUMMARY: 0 errors"]
    raced = found(STATUS="9")
    assert not raced["passed"] and raced["memcheck"]["passed"] and raced["racecheck"]["status"] == 9
    assert not found(HAZARDS="1")["racecheck"]["passed"]
    # Status 0 alone shows nothing.
    assert not found(ERRORS="10")["memcheck"]["passed"]
    silent = found(SILENT="1")
    assert not silent["memcheck"]["passed"] and not silent["racecheck"]["passed"]
    assert not found("racecheck")["passed"]
    monkeypatch.setattr(sanitizer, "SECONDS", 0.7)
    hung = found("racecheck", SLEEP="100")["memcheck"]
    assert not hung["passed"] and hung["error"] == "not done after 1 s" and "two steps, finite" in hung["output"]


# ---- clocks


def test_a_call_may_do_the_work_several_times() -> None:
    class Clock(Device):
        def seconds(self, call: Any, calls: int) -> float:
            call()
            return 8.0

        def host_seconds(self, call: Any, bursts: int) -> float:
            return 7.0

    measured = interleave(Clock(torch.device("cpu"), True), {"kaon": print, "peer": print}, {"peer": 8}, rounds=3)
    assert {name: timing.median for name, timing in measured.seconds.items()} == {"kaon": 8.0, "peer": 1.0}
    assert measured.host_seconds == {"kaon": 7.0, "peer": 7.0 / 8}
    assert measured.bounded_by_host == ["kaon", "peer"] and set(measured.under_load) == {"kaon", "peer"}
    seconds = {"kaon": Timing.of([1e-3]), "peer": Timing.of([1e-3])}
    assert Measured(seconds, {"kaon": 9e-4, "peer": 7e-4}, {}).as_json()["bounded_by_host"] == ["kaon"]


def test_the_hosts_time_has_no_wait_in_it() -> None:
    """Two steps at most between waits, and the waits outside of what is timed."""

    class Slow(Device):
        def synchronize(self) -> None:
            events.append("wait")
            time.sleep(0.05)

    events: list[str] = []
    assert Slow(torch.device("cpu"), False).host_seconds(lambda: events.append("step"), 2) < 0.02
    assert events == ["wait", "step", "step", "wait", "step", "step", "wait"]


def test_what_is_asked_of_a_card_comes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that torch does it there: that no line of it is wrong."""
    order: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            order.append("record")

        def synchronize(self) -> None:
            order.append("wait for the event")

        def elapsed_time(self, last: Event) -> float:
            return 6.0  # milliseconds

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.name = "current"

        def wait_stream(self, stream: Stream) -> None:
            order.append(f"{self.name} waits for {stream.name}")

    other = Stream(torch.device("cpu"))
    other.name = "other"
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: other)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(order.append(stream.name)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append("wait for all"))
    monkeypatch.setattr(device_module, "DELAY_SIZE", 8)
    card = Device(torch.device("cpu"), False)
    assert card.device_seconds(lambda: order.append("step")) == pytest.approx(3e-3)
    assert order == ["wait for all", "record", "step", "step", "record", "wait for the event"]
    order.clear()
    with card.other_stream():
        order.append("step")
    assert order == ["other waits for current", "other", "step", "current waits for other"]


def test_clocks_are_read_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Card(Device):
        def synchronize(self) -> None:
            time.sleep(0.001)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sleep").symlink_to(shutil.which("sleep") or "/bin/sleep")
    _program(tmp_path, "nvidia-smi", 'sleep 0.1; echo "P0, 1755, 3201, 612.5, 60, 0x0000000000000004"')
    calls: list[int] = []
    state = Card(torch.device("cpu"), False).state_under(lambda: calls.append(1))
    assert len(calls) > 5 and state["clocks.sm"] == "1755"
    assert (state["power.draw.instant"], state["clocks_event_reasons.active"]) == ("612.5", "0x0000000000000004")
    # An nvidia-smi without these fields refuses the question as a whole.
    row = "Imitated card, 580.1, P0, 1980, 3201, 1980, 3201, 95.2, 700.0, 31"
    _program(tmp_path, "nvidia-smi", f'case "$*" in *instant*) echo no field; exit 2 ;; *) echo "{row}" ;; esac')
    assert environment.load_state("0")["clocks.sm"] == "1980"


# ---- what results say about where they were measured


def test_the_state_of_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environment, "TOOLKIT", tmp_path / "toolkit")
    assert environment.card_state("0") == {"absent": f"no nvidia-smi in PATH or {tmp_path / 'toolkit'}"}
    assert environment.toolkit_version().startswith("absent: no nvcc")
    row = "Imitated card, 580.1, P0, 1980, 3201, 1980, 3201, 95.2, 700.0, 31"
    _program(
        tmp_path, "nvidia-smi", f'case "$*" in *--id=GPU-7*) echo "{row}" ;; *) echo no such device; exit 6 ;; esac'
    )
    _program(tmp_path, "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.48'")
    state = environment.card_state("GPU-7")
    assert (state["name"], state["clocks.sm"], state["power.limit"]) == ("Imitated card", "1980", "700.0")
    assert environment.card_state("1") == {"absent": "nvidia-smi exits with 6: no such device"}
    assert environment.toolkit_version() == "13.0.48"
    _program(tmp_path, "nvidia-smi", "echo Field is not valid")
    assert environment.card_state("0") == {"absent": "nvidia-smi printed 'Field is not valid'"}


def test_where_a_pack_comes_from(tmp_path: Path) -> None:
    assert environment.provenance(tmp_path)["commit"].startswith("absent: cannot read packed.json")
    environment.write_packed(tmp_path, "0123abc with uncommitted changes")
    found = environment.provenance(tmp_path)
    assert found["commit"] == "0123abc with uncommitted changes" and set(found) == {"commit", "packed", "run"}


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

TOOLS = (
    "ar", "as", "basename", "bash", "cat", "cmake", "dirname", "env", "ld", "ninja", "ranlib", "sh", "timeout", "uname",
)  # fmt: skip
"""What the machine with the card has of programs, beside Python: enough to build C++, neither LLVM nor git."""


def _bare_path(directory: Path) -> str:
    """A PATH of TOOLS alone; `c++` is what CMake looks for."""
    directory.mkdir()
    for name in TOOLS:
        if (found := shutil.which(name)) is not None:
            (directory / name).symlink_to(found)
    compiler = host_compiler.another_cxx()
    assert compiler is not None
    (directory / "c++").symlink_to(compiler)
    return str(directory)


def _pack(directory: Path) -> Path:
    """The archive that pack.sh makes for the fakes."""
    import kaon

    kept = {key: value for key, value in os.environ.items() if not key.startswith("KAON_") or key == "KAON_CACHE_DIR"}
    where = {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(Path(kaon.__path__[0]).parent),
        "KAON_GPU_PACK": str(directory / "pack"),
    }
    command = [str(SCRIPTS / "pack.sh"), "--fake"]
    result = subprocess.run(command, env={**kept, **where}, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stderr
    return directory / "pack.tar.gz"


def _run_elsewhere(archive: Path, directory: Path) -> dict[str, Any]:
    """The results of run.sh from the archive alone, unpacked in an empty directory."""
    subprocess.run(["tar", "-C", str(directory), "-xzf", str(archive)], check=True)
    shutil.rmtree(archive.parent / "pack")
    environment = {
        "PATH": _bare_path(directory / "bin"),
        "PYTHON": sys.executable,
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    out = directory / "out"
    command = [str(directory / "kaon-gpu" / "benchmarks" / "gpu" / "run.sh"), "--fake", "--out", str(out)]
    result = subprocess.run(
        [*command, "--seconds", "1700"], env=environment, cwd=directory, capture_output=True, text=True, timeout=1800
    )
    assert result.returncode == 0, result.stderr[-6000:]
    return {path.name: json.loads(path.read_text()) for path in out.iterdir()}


def test_the_archive_is_all_that_the_script_needs(tmp_path: Path) -> None:
    """Packed here, unpacked elsewhere, built without a compiler for kernels, and run to the end on the fakes: slow."""
    fake_cuda = pytest.importorskip("fake_cuda")
    nvrtc_tools = pytest.importorskip("nvrtc_tools")
    if fake_cuda.unavailable() is not None or nvrtc_tools.find_library() is None or shutil.which("ninja") is None:
        pytest.skip("needs the fakes, NVRTC and ninja")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    files = _run_elsewhere(_pack(tmp_path), elsewhere)
    assert set(files) == {"correctness.json", "training.json", "sanitizer.json", "timings.json"} and len(files) <= 8
    kernels = elsewhere / "kaon-gpu" / "build" / "gpu-pack-fake" / "fake" / "kernels"
    assert (kernels / "libKaonCudaShim.so").is_file(), "code for the fake needs what only this machine has"
    for content in files.values():
        assert content["passed"] is content["complete"] is True and content["left_out_for_lack_of_time"] == []
        device, made = content["device"], content["made"]
        assert device["note"] == FAKE_NOTE and device["compiler"] is False
        assert device["idle_state"] == {"absent": "a fake has no clocks and draws no power"}
        assert made["commit"].startswith(head.stdout.strip()) and {"packed", "run"} <= set(made)
        assert {"torch", "triton", "python", "cuda_toolkit"} <= set(device)
    checks = files["correctness.json"]
    assert checks["checks"] > 250 and checks["checks_of_launches"] > 200 and checks["checks_of_memory"] > 50
    assert set(checks["conduct"]) == set(conduct.CHECKS)
    assert checks["workloads"] == [item.name for item in workloads.correctness(tiny=True)]
    assert files["sanitizer.json"]["tools"].startswith("none: ")
    _check_timings(files["timings.json"])


def _check_timings(measured: dict[str, Any]) -> None:
    assert measured["targets"] == [], "a fake meets no target and misses none"
    assert len(measured["bandwidth"]) == 2 and measured["host"]["matrices"] == 6
    for entry in timings.entries(measured):
        assert entry["launches"]["graphs"] > 0, "graphs were not replayed"
        assert entry["nonfinite"] == "propagate"
    for entry in measured["bandwidth"]:
        assert entry["bytes_agree"] and {"kaon", timings.CHECKED, "copy"} == set(entry["seconds"])
    (product,) = measured["symmetric_product"]
    assert product["launches"]["planned_kernels_per_graph"] == 3
    assert {"kaon", "kaon, wgmma", "kaon, the whole step", "cublas", "ceiling"} <= set(product["seconds"])
    assert set(product["host_seconds"]) == set(product["seconds"]) and set(product["under_load"]) == {"kaon", "ceiling"}
    waves = product["waves"]
    assert set(waves) == {"kaon", "kaon, wgmma"}
    assert all((found["tiles"], found["blocks_per_multiprocessor"]) == (2, 2) for found in waves.values())
    host, checked = measured["host"], "optimizer.step, gradients checked"
    assert set(host["host_seconds_per_step"]) == {*host["device_seconds_per_step"], checked}
    (orthogonalized,) = measured["newton_schulz"]
    assert {"kaon", "kaon, wgmma", "cublas", "torch.compile", "ceiling"} <= set(orthogonalized["seconds"])


def test_wrong_counts_of_launches_are_noticed() -> None:
    """A step that was no graph, and a kernel that the plan does not have as often."""

    class Executor:
        graph_launches, kernel_launches = 3, 9

    class Program:
        executor = Executor()
        plan = SimpleNamespace(costs=[{"launches": 3}], period=1)

    loaded: Any = SimpleNamespace(program=Program())
    replays = accounting.Replays(loaded)
    assert not replays.verdict()["passed"], "no step at all"
    Executor.graph_launches, Executor.kernel_launches = 5, 15
    assert replays.verdict()["passed"]
    Executor.kernel_launches = 16
    assert not replays.verdict()["passed"]
