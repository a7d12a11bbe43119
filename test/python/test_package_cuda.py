"""Compiled packages for GPUs: made without one, and run on the imitated driver, which shows nothing about a GPU."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import fake_cuda
import kaon
import nvrtc_tools
import pytest
import torch
from kaon import explain, knobs
from kaon.cuda_target import CudaTarget
from kaon.optim import PeriodicRowwiseMuon
from kaon.optim.packaged import all_to_the_update
from kaon.package import PackageError, building
from package_tools import build_update, contents, equal, packaged_rowwise, parameters, place_update, request, train

pytestmark = [
    pytest.mark.skipif(nvrtc_tools.find_library() is None, reason="no NVRTC"),
    pytest.mark.skipif(fake_cuda.unavailable() is not None, reason=str(fake_cuda.unavailable())),
]

SHAPES = ((16, 24), (24, 16), (16, 24), (40,))
ARCHITECTURES = ("sm_90a", "compute_80")


def kernels_of(package: Path) -> dict[str, str]:
    """The text of every kernel."""
    return {path.stem: path.read_text() for path in package.glob("*.cu")}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The update of the CPU's tests; its kernels are known to the fake. Not to be changed."""
    directory = tmp_path_factory.mktemp("packages") / "rowwise"
    build_update(directory, architectures=ARCHITECTURES, shapes=SHAPES, lr=0.02)
    fake_cuda.build_kernels(kernels_of(directory))
    return directory


@pytest.fixture
def fake_device() -> None:
    """CPU tensors are stepped by the imitated driver."""
    knobs.cuda.driver = fake_cuda.driver_path()
    knobs.runtime.target = "cuda"
    fake_cuda.fake().set_devices(1, (9, 0))


def refusal(package: Path) -> str:
    with pytest.raises(PackageError) as error:
        kaon.load(package)
    return str(error.value)


def test_the_files_of_a_package(package: Path) -> None:
    manifest = json.loads((package / "package.json").read_text())
    assert manifest["target"] == "cuda" and manifest["architectures"] == list(ARCHITECTURES)
    assert json.loads((package / "plan.json").read_text())["target"] == "cuda"
    assert "check_finite_f32" in manifest["kernels"]
    for kernel in manifest["kernels"]:
        text = (package / f"{kernel}.cu").read_text()
        assert f"{kernel}(" in text and "#line" not in text
        assert (package / f"{kernel}.sm_90a.cubin").read_bytes().startswith(b"\x7fELF")
        assert ".target sm_90a" in (package / f"{kernel}.sm_90a.ptx").read_text()
        assert ".target sm_80" in (package / f"{kernel}.compute_80.ptx").read_text()
    assert {path.name for path in package.iterdir()} == {"package.json", *manifest["files"]}


def test_the_same_input_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    again = build_update(tmp_path / "again", architectures=ARCHITECTURES, shapes=SHAPES, lr=0.02)
    assert contents(again) == contents(package)


def test_where_an_update_lies_changes_no_byte(tmp_path: Path) -> None:
    """Nor does what a program compiled before, from texts that lead back to the update, and left in the cache."""
    wanted = request(ARCHITECTURES, ((16, 24), (40,)))
    packages = []
    for name, lines_above in (("here", 0), ("some/where else", 7)):
        update = place_update(tmp_path / name, lines_above)
        knobs.cache.directory = tmp_path / name / "cache"
        if lines_above:
            log = explain.explain(update, (16, 24), sections=("cuda", "log"), target=CudaTarget.of_arch("sm_90a"))
            assert f'#line {lines_above + 7} "{tmp_path}/some/where else/my_updates.py"' in log
        packages.append(contents(building.compile_update(update, wanted, tmp_path / name / "package").directory))
    first, second = packages
    assert first == second
    assert not [name for name, content in first.items() if b"my_updates" in content]


def test_it_steps_as_the_cpu_target_does(package: Path, fake_device: None) -> None:
    mine, theirs = parameters(SHAPES[::-1]), parameters(SHAPES[::-1])
    packaged = kaon.load(package)(mine)
    stepped = train(packaged, mine, steps=7)
    assert fake_cuda.fake().take_faults() == []
    assert "FAKE" in packaged._programs[0].compiled.target  # type: ignore[index, union-attr]
    knobs.runtime.target = None
    compiled = kaon.optimizer(packaged_rowwise)(theirs, lr=0.02, rules=all_to_the_update())
    start = parameters(SHAPES[::-1])
    for tensor, expected, begin in zip(stepped, train(compiled, theirs, steps=7), start, strict=True):
        change = torch.linalg.norm(expected - begin)
        assert torch.linalg.norm(tensor - expected) < 2e-2 * change  # refreshes round to bf16


def test_a_bundled_optimizer(tmp_path: Path, fake_device: None) -> None:
    wanted = request(("sm_90a",), SHAPES, period=2)
    built = building.compile_optimizer(PeriodicRowwiseMuon, wanted, tmp_path / "muon")
    fake_cuda.build_kernels(kernels_of(built.directory))
    mine, theirs = parameters(SHAPES), parameters(SHAPES)
    stepped = train(kaon.load(built.directory)(mine), mine, steps=4)
    assert fake_cuda.fake().take_faults() == []
    knobs.runtime.target = None
    expected = train(PeriodicRowwiseMuon(theirs, period=2), theirs, steps=4)
    for index, begin in enumerate(parameters(SHAPES)):
        change = torch.linalg.norm(expected[index] - begin.detach())
        bound = 2e-2 if len(SHAPES[index]) == 2 else 1e-5
        assert torch.linalg.norm(stepped[index] - expected[index]) < bound * change


def test_products_of_float16(package: Path, tmp_path: Path, fake_device: None) -> None:
    """The dtype of products is the package's: asking for it again is fine, and for the other one is refused."""
    wanted = replace(request(("sm_90a",), SHAPES, lr=0.02), product_dtype=torch.float16)
    half = building.compile_update(packaged_rowwise, wanted, tmp_path / "half").directory
    fake_cuda.build_kernels(kernels_of(half))
    assert json.loads((half / "package.json").read_text())["products"] == ["float16"]
    assert json.loads((package / "package.json").read_text())["products"] == ["bfloat16"]
    assert [path.name for path in half.glob("matmul_*.cu")] and not list(half.glob("matmul_bf16*"))
    results = []
    for directory, options in ((package, {}), (half, {}), (half, {"product_dtype": "float16"})):
        mine = parameters(SHAPES)
        packaged = kaon.load(directory)(mine, **options)
        assert packaged.product_dtype == ("bfloat16" if directory == package else "float16")
        results.append(train(packaged, mine, steps=1))
        assert f"products of {packaged.product_dtype}" in str(packaged.plan(show=False))
    assert equal(results[1], results[2])
    knobs.runtime.target = None
    theirs = parameters(SHAPES)
    compiled = kaon.optimizer(packaged_rowwise)(theirs, lr=0.02, rules=all_to_the_update())
    exact = train(compiled, theirs, steps=1)
    for index, begin in enumerate(parameters(SHAPES[:3])):
        change = torch.linalg.norm(exact[index] - begin.detach())
        coarse, fine = (float(torch.linalg.norm(found[index] - exact[index]) / change) for found in results[:2])
        assert fine < 2e-3 and fine < coarse / 4
    knobs.runtime.target = "cuda"
    with pytest.raises(PackageError) as error:
        kaon.load(half)(parameters(SHAPES), product_dtype=torch.bfloat16)
    assert str(error.value).endswith("was compiled for products of float16, but product_dtype asks for bfloat16")
    with pytest.raises(ValueError, match="expects product_dtype out of bfloat16, float16, but got 'f16'"):
        kaon.load(half)(parameters(SHAPES), product_dtype="f16")


def test_another_architecture(package: Path, tmp_path: Path, fake_device: None) -> None:
    exact = Path(shutil.copytree(package, tmp_path / "exact"))
    content = json.loads((exact / "package.json").read_text())
    content["architectures"] = ["sm_90a"]
    (exact / "package.json").write_text(json.dumps(content))
    kaon.load(exact)
    fake_cuda.fake().set_devices(1, (8, 0))
    message = refusal(exact)
    assert "was compiled for sm_90a, but this machine has sm_80 (" in message
    kaon.load(package)  # PTX runs there
    fake_cuda.fake().set_devices(1, (7, 5))
    assert "was compiled for sm_90a, compute_80, but this machine has sm_75 (" in refusal(package)


def test_no_driver(package: Path, tmp_path: Path) -> None:
    knobs.cuda.driver = tmp_path / "libcuda.so.1"
    message = refusal(package)
    assert "was compiled for sm_90a, compute_80, but " in message and "libcuda.so.1" in message


def test_parameters_on_the_cpu(package: Path, fake_device: None) -> None:
    knobs.runtime.target = None
    with pytest.raises(PackageError) as error:
        kaon.load(package)(parameters(SHAPES)).compile()
    assert "expects parameters on a CUDA device, as it was compiled for sm_90a, compute_80" in str(error.value)
