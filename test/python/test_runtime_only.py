"""The package built without the compiler: in seconds, from nothing but CMake, a C++ compiler and pybind11."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import host_compiler
import pytest
import runtime_only
from kaon.package import machine
from runtime_only import COMPILER, ROOT, run


@pytest.fixture(scope="module")
def build() -> Path:
    return runtime_only.build()


def test_it_is_small(build: Path) -> None:
    """A few dozen files to compile: seconds, where the machine does nothing else."""
    lines = (build / ".ninja_log").read_text().splitlines()[1:]
    objects = {name for name in (line.split("\t")[3] for line in lines) if name.endswith(".o")}
    assert 10 < len(objects) < 30, objects


def python(build: Path, program: str, *arguments: str | Path) -> str:
    """What ``program`` prints where this build is the only kaon."""
    return run(sys.executable, "-c", program, *arguments, PYTHONPATH=str(build / "python"))


def test_no_llvm_is_found_or_linked(build: Path) -> None:
    cache = (build / "CMakeCache.txt").read_text()
    assert not re.search(r"^(MLIR|LLVM)_DIR", cache, re.MULTILINE)
    (extension,) = (build / "python/kaon").glob("_C*.so")
    assert not re.search("LLVM|MLIR|torch|nvrtc|libcuda", run("ldd", extension))


PLAN = """
import ctypes, json, sys
import numpy as np
import kaon, kaon.language as kl
from kaon import _C
assert _C.has_compiler is False and not hasattr(_C, "parse")
kernels = _C.KernelTable()
library = ctypes.CDLL(sys.argv[2])
kernels.add("kaon_test_descend", ctypes.cast(library.kaon_test_descend, ctypes.c_void_p).value)
plan = _C.StepPlan.from_json(open(sys.argv[1]).read())
executor = _C.Executor(plan, kernels, 1)
w, g = np.ones((300, 70), np.float32), np.full((300, 70), 2, np.float32)
assert executor.step(1, [w.ctypes.data, 70, g.ctypes.data, 70], [[0.25]]) == 0
assert (w == 0.5).all(), w
assert "torch" not in sys.modules
print("a plan ran")
"""


def test_a_plan_runs(build: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs/runtime.md").read_text()
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    plan, library = tmp_path / "plan.json", tmp_path / "kernels.so"
    plan.write_text(json.dumps(json.loads(block)))
    run(host_compiler.c(), "-shared", "-fPIC", f"-I{ROOT}", ROOT / "test/unit/package_kernels.c", "-o", library)
    assert "a plan ran" in python(build, PLAN, plan, library)


FRONT_END = """
import sys
sys.path.insert(0, sys.argv[1])
import kaon, torch
from kaon import driver
from updates_of_test import signed
assert signed.signature.states[0].name == "m"
assert "func.func" in signed.specialize(4, 6, symbol="s").text
try:
    driver.compile_program([driver.MatrixEntry(signed, 4, 6)])
except driver.DriverError as error:
    print("driver:", error)
model = torch.nn.Linear(6, 4)
before = model.weight.detach().clone()
optimizer = kaon.optim.Muon(model)
model(torch.ones(2, 6)).sum().backward()
try:
    optimizer.step()
except kaon.errors.KaonError as error:
    print("optimizer:", error)
assert torch.equal(model.weight, before)
"""

UPDATES = """
import kaon
import kaon.language as kl

@kaon.update
def signed(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, beta: kl.scalar = 0.9):
    m = kl.lerp(m, g, 1 - beta)
    return w - lr * kl.sign(m), m
"""


def test_the_rest_says_what_is_missing(build: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "updates_of_test.py").write_text(UPDATES)
    printed = python(build, FRONT_END, tmp_path).splitlines()
    assert [line.split(":")[0] for line in printed] == ["driver", "optimizer"]
    for line in printed:
        assert "this build of kaon has no compiler (KAON_COMPILER=OFF)" in line and "kaon.load(DIR)" in line


PACKAGE = """
import sys
import kaon, torch
optimizer = kaon.load(sys.argv[1])
tensors = [torch.nn.Parameter(tensor) for tensor in torch.load(sys.argv[2])]
packaged = optimizer(tensors)
for step in range(4):
    for tensor in tensors:
        tensor.grad = tensor.detach().cos() + step
    packaged.step()
torch.save([tensor.detach() for tensor in tensors], sys.argv[3])
loaded = {name for name in sys.modules if name.startswith("kaon")}
assert not loaded & {"kaon.cuda_target", "kaon.nvrtc"}, loaded
assert not any(name in line for line in open("/proc/self/maps") for name in ("libLLVM", "libMLIR"))
"""


@pytest.mark.skipif(not machine.cpu_levels(), reason="packages for processors need x86-64-v3")
def test_a_package_runs(build: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from kaon.optim import PeriodicRowwiseMuon
    from kaon.package import building
    from package_tools import parameters, request

    shapes = ((12, 20), (20, 12), (20,))
    built = building.compile_optimizer(PeriodicRowwiseMuon, request(shapes=shapes), tmp_path / "package")
    tensors = parameters(shapes)
    torch.save([tensor.detach() for tensor in tensors], tmp_path / "before.pt")
    compiled = PeriodicRowwiseMuon(tensors)
    for step in range(4):
        for tensor in tensors:
            tensor.grad = tensor.detach().cos() + step
        compiled.step()
    python(build, PACKAGE, built.directory, tmp_path / "before.pt", tmp_path / "after.pt")
    assert all(map(torch.equal, torch.load(tmp_path / "after.pt"), (tensor.detach() for tensor in tensors)))


def test_doctor_knows(build: Path, tmp_path: Path) -> None:
    report = run(
        sys.executable, "-m", "kaon", "doctor", PYTHONPATH=str(build / "python"), KAON_CACHE_DIR=str(tmp_path / "cache")
    )
    status = {line.split()[1]: line.split()[0] for line in report.splitlines() if len(line.split()) > 1}
    assert (status["extension"], status["compiler"]) == ("works", "absent")
    assert "llvm" not in status


def test_pip_installs_it(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    site = tmp_path / "site"
    settings = ["cmake.define.KAON_COMPILER=OFF", f"build-dir={tmp_path / 'build'}"]
    options = ["--quiet", "--no-build-isolation", "--no-deps", *(f"--config-settings={each}" for each in settings)]
    run(sys.executable, "-m", "pip", "install", ROOT, *options, "--target", site, CXX=COMPILER)
    program = "import kaon; from kaon import _C; print(_C.has_compiler, _C.__file__)"
    assert run(sys.executable, "-c", program, PYTHONPATH=str(site)).split() == [
        "False",
        str(next((site / "kaon").glob("_C*.so"))),
    ]
