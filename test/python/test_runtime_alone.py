"""The runtime without the compiler: built alone, and run from C on a package."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def run(*command: str | Path) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def example_plan() -> dict[str, object]:
    """The plan that the documentation shows."""
    text = (REPOSITORY / "docs" / "runtime.md").read_text()
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    plan: dict[str, object] = json.loads(block)
    return plan


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime")
    run("cmake", "--preset", "runtime", "-S", REPOSITORY, "-B", folder)
    run("ninja", "-C", folder, "KaonRuntimeShared", "kaon-package-host", "kaon-package-kernels")
    return folder


def test_a_package_runs_from_c(build: Path) -> None:
    plan = build / "plan.json"
    plan.write_text(json.dumps(example_plan()))
    unit = build / "test" / "unit"
    kernels = next(unit.glob("*kaon-package-kernels*"))
    assert "package ran" in run(unit / "kaon-package-host", plan, kernels)


def test_it_needs_neither_llvm_nor_python(build: Path) -> None:
    library = build / "runtime" / "libkaon_runtime.so"
    needed = run("ldd", library)
    assert not re.search("LLVM|MLIR|python|torch", needed), needed
    exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    header = (REPOSITORY / "runtime" / "kaon_runtime.h").read_text()
    declared = set(re.findall(r"KAON_EXPORT.*?\b(kaon_\w+)\(", header, re.DOTALL))
    assert len(declared) > 8
    assert exported == declared
