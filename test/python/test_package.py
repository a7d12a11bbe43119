"""Compiled packages for the processor: what they hold, that they compute what the compiler does, what they refuse."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kaon
import nvrtc_tools
import pytest
import torch
from kaon.__main__ import main
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon
from kaon.optim.packaged import all_to_the_update
from kaon.package import Package, PackageError, building, machine, plans
from kaon.package.manifest import Manifest, MatrixSpec
from package_tools import (
    SHAPES,
    Edit,
    build_update,
    contents,
    equal,
    packaged_rowwise,
    parameters,
    place_update,
    request,
    train,
)

pytestmark = pytest.mark.skipif(not machine.cpu_levels(), reason="packages for processors need x86-64-v3")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The update compiled for SHAPES; not to be changed."""
    return build_update(tmp_path_factory.mktemp("packages") / "rowwise", lr=0.02)


@pytest.fixture
def own(package: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(package, tmp_path / "own"))


def edit(directory: Path, change: Edit) -> Path:
    """Change the manifest."""
    path = directory / "package.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return directory


def replace_plan(directory: Path, plan: dict[str, Any]) -> None:
    """Write another plan, and say so in the manifest."""
    content = json.dumps(plan).encode()
    (directory / "plan.json").write_bytes(content)
    listed = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(directory, lambda manifest: manifest["files"].update({"plan.json": listed}))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(PackageError) as error:
        action()
    return str(error.value)


# ---- which matrix is which

SPEC = MatrixSpec("muon", 4, 6, "f32", "f32", "{}", 0)


@pytest.mark.parametrize(
    "difference",
    [
        {"update": "adamw"},
        {"rows": 5},
        {"cols": 5},
        {"param_dtype": "bf16"},
        {"grad_dtype": "bf16"},
        {"constexprs": '{"steps": 4}'},
        {"phase": 1},
    ],
)
def test_a_matrix_is_found_by_all_that_its_kernels_depend_on(difference: dict[str, Any]) -> None:
    other = replace(SPEC, **difference)
    assert plans.match([SPEC, other, SPEC], [other, SPEC, SPEC]) == [1, 0, 2]
    with pytest.raises(plans.MismatchError, match="compiled for 2, this model has 1"):
        plans.match([SPEC, SPEC], [SPEC, other])


# ---- that it computes the same


def test_an_update_is_what_the_compiler_makes(package: Path) -> None:
    mine, theirs = parameters(), parameters()
    packaged = kaon.load(package)(mine)
    compiled = kaon.optimizer(packaged_rowwise)(theirs, lr=0.02, rules=all_to_the_update())
    assert isinstance(packaged, torch.optim.Optimizer) and type(packaged).__name__ == "PackagedRowwise"
    assert equal(train(packaged, mine), train(compiled, theirs))


def test_order_groups_and_scalars_are_free(package: Path) -> None:
    """Parameters may come in any order and in groups, whose run-time options may change at every step."""
    results = []
    for cls in (kaon.load(package), kaon.optimizer(packaged_rowwise)):
        tensors = parameters(SHAPES[::-1])
        groups = [{"params": tensors[:2], "lr": 0.5}, {"params": tensors[2:], "momentum": 0.8}]
        optimizer = cls(groups, lr=0.02, rules=all_to_the_update())
        train(optimizer, tensors, steps=2)
        optimizer.param_groups[0]["lr"] = 0.25
        results.append(train(optimizer, tensors, steps=4, first=2))
    assert equal(*results)


def test_some_gradients_may_be_missing(package: Path) -> None:
    tensors = parameters()
    optimizer = kaon.load(package)(tensors)
    train(optimizer, tensors, steps=1)
    before = tensors[1].detach().clone()
    tensors[1].grad = None
    tensors[0].grad = torch.ones_like(tensors[0])
    optimizer.step()
    assert torch.equal(tensors[1], before)


@pytest.mark.parametrize("options", [{}, {"row_scale": "calibrated", "phase": "staggered", "period": 4}])
def test_a_bundled_optimizer_with_its_rules(tmp_path: Path, options: dict[str, Any]) -> None:
    """Matrices go to the optimizer's update, the rest to AdamW, which counts each parameter's updates."""
    wanted = request(**options)
    built = building.compile_optimizer(PeriodicRowwiseMuon, wanted, tmp_path / "muon")
    mine, theirs = parameters(), parameters()
    packaged, compiled = kaon.load(built.directory)(mine), PeriodicRowwiseMuon(theirs, **options)
    assert isinstance(packaged, PeriodicRowwiseMuon)
    assert [group["period"] for group in packaged.param_groups] == [options.get("period", 3)]
    assert equal(train(packaged, mine), train(compiled, theirs))
    rows = packaged.plan(show=False).rows
    assert [row.update for row in rows] == [row.update for row in compiled.plan(show=False).rows]
    assert {row.update for row in rows} >= {"adamw"}


@pytest.mark.parametrize(("param", "grad"), [("bf16", "bf16"), ("f64", "f64")])
def test_other_dtypes(tmp_path: Path, param: str, grad: str) -> None:
    dtype = {"bf16": torch.bfloat16, "f64": torch.float64}[param]
    directory = build_update(tmp_path / param, param_dtype=param, grad_dtype=grad, lr=0.02)
    mine, theirs = parameters(dtype=dtype), parameters(dtype=dtype)
    compiled = kaon.optimizer(packaged_rowwise)(theirs, lr=0.02, rules=all_to_the_update())
    assert equal(train(kaon.load(directory)(mine), mine), train(compiled, theirs))


def test_checkpoints_copies_and_pickles(package: Path) -> None:
    whole = parameters()
    expected = train(kaon.load(package)(whole), whole, steps=7)
    tensors = parameters()
    optimizer = kaon.load(package)(tensors)
    train(optimizer, tensors, steps=4)
    saved = io.BytesIO()
    torch.save({"model": [t.detach() for t in tensors], "optimizer": optimizer.state_dict()}, saved)
    saved.seek(0)
    loaded = torch.load(saved)
    again = [torch.nn.Parameter(tensor) for tensor in loaded["model"]]
    resumed = kaon.load(package)(again)
    resumed.load_state_dict(loaded["optimizer"])
    assert equal(train(resumed, again, steps=3, first=4), expected)
    for duplicate in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        own = duplicate.param_groups[0]["params"]
        assert equal(train(duplicate, own, steps=3, first=4), expected)


# ---- what it is


def test_the_manifest_says_everything(package: Path) -> None:
    content = json.loads((package / "package.json").read_text())
    assert (content["format"], content["schema"], content["kaon"]) == ("kaon-package", 2, kaon.__version__)
    assert content["target"] == "cpu" and content["architectures"] == [machine.cpu_levels()[0]]
    assert [(m["rows"], m["cols"]) for m in content["matrices"]] == [(16, 24), (16, 24), (24, 16), (8, 8), (1, 40)]
    assert all(m["refreshes"] == [[3, 0]] for m in content["matrices"])
    assert content["products"] == ["float32"]
    signature = content["updates"]["packaged_rowwise"]
    assert signature["states"] == [{"name": "m", "kind": "matrix", "init": 0.0}]
    assert signature["scalars"] == [{"name": "lr", "default": None}, {"name": "momentum", "default": 0.95}]
    files = {path.name for path in package.iterdir()}
    assert files == {"package.json", *content["files"]}
    text = (package / "package.json").read_text()
    assert Manifest.from_json(text).to_json() == text


def test_the_same_input_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    again = build_update(tmp_path / "elsewhere", lr=0.02)
    assert contents(again) == contents(package)


def test_where_an_update_lies_changes_no_byte(tmp_path: Path) -> None:
    packages = []
    for name, lines_above in (("here", 0), ("some/where else", 7)):
        update = place_update(tmp_path / name, lines_above)
        built = building.compile_update(update, request(shapes=((16, 24), (40,))), tmp_path / name / "package")
        packages.append(contents(built.directory))
    first, second = packages
    assert first == second
    assert not [name for name, content in first.items() if b"my_updates" in content]


def test_scalars_without_a_default_are_asked_for(tmp_path: Path) -> None:
    directory = build_update(tmp_path / "open", shapes=((4, 4),))
    with pytest.raises(ValueError, match="lr"):
        kaon.load(directory)(parameters([(4, 4)]))
    kaon.load(directory)(parameters([(4, 4)]), lr=0.1)


# ---- what it refuses


def test_another_version(own: Path) -> None:
    edit(own, lambda content: content.update(kaon="0.0.9"))
    message = refusal(lambda: kaon.load(own))
    assert f"package {own}: was made by kaon 0.0.9, but this is kaon {kaon.__version__}" in message


def test_another_schema(own: Path) -> None:
    edit(own, lambda content: content.update(schema=7))
    assert "has schema 7, but this kaon reads schema 2" in refusal(lambda: kaon.load(own))


def test_another_version_of_the_plan(own: Path) -> None:
    plan = json.loads((own / "plan.json").read_text())
    replace_plan(own, plan | {"version": plan["version"] - 1})
    message = refusal(lambda: kaon.load(own))
    wish = f"plan.json: version: expects {plan['version']}, but got {plan['version'] - 1}; compile it again"
    assert f"package {own}: {wish}" in message


def test_a_plan_of_other_kernels(own: Path) -> None:
    # One tile is a triangle as well as a grid, so that nothing else in the plan tells.
    plan = json.loads((own / "plan.json").read_text())
    index, product = next((i, k) for i, k in enumerate(plan["kernels"]) if k["schedule"] == "matmul" and k["symmetric"])
    product["symmetric"] = False
    replace_plan(own, plan)
    wish = f"plan.json: kernels[{index}].symmetric: expects true of the kernel '{product['name']}', but got false"
    assert f"package {own}: {wish}; compile it again" in refusal(lambda: kaon.load(own))


def test_another_architecture(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    information = tmp_path / "cpuinfo"
    information.write_text("processor: 0\nflags\t\t: sse2 avx\n")
    levels = machine.cpu_levels
    monkeypatch.setattr("kaon.package.reading.cpu_levels", lambda: levels(information))
    made_for = levels()[0]
    assert f"was compiled for {made_for}, but this processor has no level of x86-64" in refusal(
        lambda: kaon.load(package)
    )
    flags = " ".join(machine.CPU_FEATURES["x86-64-v3"])
    information.write_text(f"flags : {flags}\n")
    if made_for == "x86-64-v4":
        assert "was compiled for x86-64-v4, but this processor has x86-64-v3" in refusal(lambda: kaon.load(package))
    else:
        kaon.load(package)


def test_damaged_and_missing_files(own: Path) -> None:
    (library,) = own.glob("*.so")
    content = library.read_bytes()
    library.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert f"{library.name} is damaged: expects SHA-256" in refusal(lambda: kaon.load(own))
    library.write_bytes(content[:100])
    assert f"{library.name} is damaged: expects {len(content)} bytes, but has 100" in refusal(lambda: kaon.load(own))
    library.unlink()
    assert f"cannot read {library.name}: No such file" in refusal(lambda: kaon.load(own))
    edit(own, lambda manifest: manifest["files"].pop(library.name))
    assert f"lists no file {library.name}" in refusal(lambda: kaon.load(own))
    (own / "package.json").unlink()
    assert "cannot read package.json: No such file" in refusal(lambda: kaon.load(own))
    assert "expects the directory of a compiled package" in refusal(lambda: kaon.load(own / "nowhere"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format="x"), "format expects 'kaon-package', but got 'x'"),
        (lambda m: m.pop("target"), "expects a value for target, but found none"),
        (lambda m: m.update(target="tpu"), "package.json.target expects one of cpu, cuda, but got 'tpu'"),
        (lambda m: m.update(kernels=[1]), "package.json.kernels expects a list of text, but got [1]"),
        (lambda m: m.pop("products"), "expects a value for products, but found none"),
        (lambda m: m["matrices"][0].update(rows="4"), "matrices[0].rows expects an integer, but got '4'"),
        (lambda m: m["matrices"][0].update(rows=True), "matrices[0].rows expects an integer, but got True"),
        (lambda m: m["matrices"][1].update(update="x"), "matrices[1].update expects one of the updates"),
        (lambda m: m["matrices"][0].update(refreshes=[3]), "matrices[0].refreshes expects pairs of integers"),
        (lambda m: m.update(updates=[]), "package.json.updates expects an object, but got []"),
        (lambda m: m.update(optimizer="Nothing"), "expects an optimizer of kaon.optim, but got 'Nothing'"),
    ],
)
def test_a_manifest_that_is_none(own: Path, change: Edit, message: str) -> None:
    assert message in refusal(lambda: kaon.load(edit(own, change)))


def test_a_manifest_that_is_no_json(own: Path) -> None:
    for content in (b"", b"{", b"\xff\xfe", b"[1]"):
        (own / "package.json").write_bytes(content)
        assert refusal(lambda: kaon.load(own)).startswith(f"package {own}: ")


def test_other_shapes(package: Path) -> None:
    cls = kaon.load(package)
    message = refusal(lambda: cls(parameters([*SHAPES, (9, 8)])))
    assert "was compiled for packaged_rowwise of 16x24, 24x16, 8x8, 1x40" in message
    assert "parameter 5 of shape (9, 8) needs 9x8" in message
    # The number of equal ones is known when all groups are, at the first step.
    tensors = parameters([*SHAPES, (8, 8)])
    before = [tensor.detach().clone() for tensor in tensors]
    message = refusal(lambda: train(cls(tensors), tensors, steps=1))
    assert "packaged_rowwise 8x8, parameter f32, gradient f32: compiled for 1, this model has 2" in message
    assert equal(before, tensors)
    message = refusal(lambda: cls(parameters(SHAPES[1:])).compile())
    assert "packaged_rowwise 16x24, parameter f32, gradient f32: compiled for 2, this model has 1" in message


def test_other_dtypes_are_refused(package: Path, tmp_path: Path) -> None:
    tensors = parameters(dtype=torch.bfloat16)
    message = refusal(lambda: kaon.load(package)(tensors))
    assert "was compiled for packaged_rowwise 16x24 in f32, but parameter 0 of shape (16, 24) is bf16" in message
    mixed = build_update(tmp_path / "mixed", shapes=((8, 8),), grad_dtype="bf16", lr=0.1)
    (tensor,) = parameters([(8, 8)])
    optimizer = kaon.load(mixed)([tensor])
    tensor.grad = torch.ones(8, 8)
    before = tensor.detach().clone()
    message = refusal(optimizer.step)
    assert "8x8, parameter f32, gradient f32: compiled for 0, this model has 1" in message
    assert "8x8, parameter f32, gradient bf16: compiled for 1, this model has 0" in message
    assert torch.equal(before, tensor)


def test_other_options(package: Path) -> None:
    message = refusal(lambda: kaon.load(package)(parameters(), period=4))
    assert 'with options {"period": 3}' in message and 'parameter 0 of shape (16, 24) asks for {"period": 4}' in message


def test_a_dtype_of_products_that_it_does_not_have(package: Path, tmp_path: Path) -> None:
    message = refusal(lambda: kaon.load(package)(parameters(), product_dtype="float16"))
    assert message.endswith("was compiled for products of float32, but product_dtype asks for float16")
    directory = building.compile_optimizer(AdamW, request(shapes=((4, 4),)), tmp_path / "adamw").directory
    message = refusal(lambda: kaon.load(directory)(parameters([(4, 4)]), product_dtype="float16"))
    assert "was compiled for updates without products of matrices, but product_dtype asks for float16" in message


def test_parameters_elsewhere(package: Path) -> None:
    """CUDA's parameters do not go to a package for processors; seen here without any, as none are needed to see it."""
    cuda = pytest.importorskip("kaon.cuda")
    opened = Package.open(package)
    entries = kaon.load(package)(parameters())._build()[0].entries
    opened.program(entries, 1, None)
    message = refusal(lambda: opened.program(entries, 1, cuda.Placement()))
    assert "expects parameters on the CPU, as it was compiled for x86-64-v" in message


# ---- making one


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "updates_of_package_test.py"
    file.write_text(
        "import kaon\nimport kaon.language as kl\n\n\n@kaon.update\ndef signed(w: kl.param, g: kl.grad, m: kl.state, "
        "lr: kl.scalar = 0.1, *, nesterov: kl.constexpr = True):\n    u, m = kl.momentum(g, m, 0.9, nesterov=nesterov)"
        "\n    return w - lr * kl.sign(u), m\n"
    )
    command = ["compile", f"{file}:signed", "--shapes", "8x8*2,4x6", "--shapes", "12", "--constexpr", "nesterov=False"]
    assert main([*command, "--arch", "host", "-o", str(tmp_path / "signed")]) == 0
    assert f"{tmp_path / 'signed'}: " in capsys.readouterr().out
    tensors = parameters([(4, 6), (8, 8), (12,), (8, 8)])
    optimizer = kaon.load(tmp_path / "signed")(tensors, lr=0.25)
    assert optimizer.param_groups[0]["nesterov"] is False
    train(optimizer, tensors, steps=2)
    command = ["compile", "kaon.optim:Muon", "--shapes", "8x8,8", "--option", "nesterov=False"]
    assert main([*command, "--arch", "x86-64-v3", "-o", str(tmp_path / "muon")]) == 0
    tensors = parameters([(8, 8), (8,)])
    optimizer = kaon.load(tmp_path / "muon")(tensors)
    assert isinstance(optimizer, Muon)
    train(optimizer, tensors, steps=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "8x8", "--arch", "host"], "--arch expects -o DIR"),
        (["--shapes", "8x8", "-o", "DIR"], "-o expects --arch, such as sm_90a"),
        (["--shapes", "8x", "--arch", "host", "-o", "DIR"], "--shapes expects shapes such as"),
        (["--shapes", "8x8*0", "--arch", "host", "-o", "DIR"], "but got '8x8*0'"),
        (["--shapes", "8x8", "--arch", "pentium", "-o", "DIR"], "expects an architecture such as sm_80"),
        (["--shapes", "8x8", "--arch", "sm_90a,host", "-o", "DIR"], "expects architectures of GPUs or of processors"),
        (["--shapes", "8x8", "--arch", "x86-64-v3,x86-64-v4", "-o", "DIR"], "expects one level of the processor"),
        (
            ["--shapes", "8x8", "--arch", "host", "-o", "DIR", "--option", "perid=3"],
            "unexpected keyword argument 'perid'",
        ),
        (["--shapes", "8x8", "--arch", "host", "-o", "DIR", "--option", "lr=abc"], "lr"),
        (["--shapes", "8x8", "--arch", "sm_90a", "-o", "DIR", "--dtype", "f64"], "for a GPU, but got f64"),
        (["--shapes", "8x8", "--product-dtype", "float16"], "--product-dtype float16 expects -o DIR and a GPU"),
        (
            ["--shapes", "8x8", "--arch", "x86-64-v3", "-o", "DIR", "--product-dtype", "float16"],
            "expects architectures of GPUs for product_dtype 'float16', but got x86-64-v3, where products are of",
        ),
        (
            ["--shapes", "8x8", "--arch", "x86-64-v3", "-o", "DIR", "--option", "product_dtype=float16"],
            "expects product_dtype in --product-dtype, but got it among the options",
        ),
        (["--shapes", "8x8", "--arch", "host", "-o", "/proc/nowhere/out"], "cannot be written"),
    ],
)
def test_the_command_line_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    arguments = [str(tmp_path / "out") if item == "DIR" else item for item in arguments]
    assert main(["compile", "kaon.optim:Muon" if "-o" in arguments else "kaon.optim.updates:muon", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(nvrtc_tools.find_library() is None, reason="no NVRTC")
def test_an_architecture_is_one_that_the_compiler_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compile", "kaon.optim:Muon", "--shapes", "8x8", "-o", str(tmp_path / "out"), "--arch"]
    assert main([*command, "sm_90a,sm_70"]) == 1
    assert "expects an architecture that NVRTC 13." in (message := capsys.readouterr().err)
    assert message.endswith("knows, but got sm_70\n")
    assert not (tmp_path / "out").exists()


def test_only_bundled_optimizers_have_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("Adagrad", "UpdateOptimizer"):
        command = ["compile", f"kaon.optim:{name}", "--shapes", "8x8", "--arch", "host", "-o", str(tmp_path / "out")]
        assert main(command) == 1
        assert "but it has: AdamW, Muon, PeriodicRowwiseMuon\n" in capsys.readouterr().err
    cls = kaon.optimizer(packaged_rowwise)
    assert "compile its update" in refusal(lambda: building.compile_optimizer(cls, request(), tmp_path / "out"))


def test_a_directory_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    message = refusal(lambda: build_update(tmp_path, lr=0.1))
    assert "expects an empty directory or a package to replace, but found notes.txt" in message
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    message = refusal(lambda: build_update(tmp_path / "notes.txt", lr=0.1))
    assert "expects a directory to write to, but this is a file" in message


def test_a_package_is_replaced_as_a_whole(tmp_path: Path) -> None:
    directory = build_update(tmp_path / "p", lr=0.1)
    build_update(directory, shapes=((4, 4),), lr=0.1)
    assert len(Package.open(directory).manifest.matrices) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_progress_is_shown(tmp_path: Path) -> None:
    log = io.StringIO()
    built = building.compile_update(packaged_rowwise, request(shapes=((4, 4),), lr=0.1), tmp_path / "p", log)
    assert log.getvalue().count("\r") == built.kernels
    assert f"[{'#' * 30}] {built.kernels}/{built.kernels}" in log.getvalue()


@pytest.mark.parametrize(
    ("made_for", "device", "chosen"),
    [
        (("sm_90a", "sm_80", "compute_80"), "sm_90a", "sm_90a"),
        (("sm_80", "compute_80"), "sm_90a", "compute_80"),
        (("sm_80", "compute_80"), "sm_86", "sm_80"),
        (("sm_80",), "sm_90a", None),
        (("sm_90a",), "sm_100a", None),
        (("sm_90a",), "sm_80", None),
        (("sm_86", "sm_80"), "sm_89", "sm_86"),
        (("sm_86",), "sm_80", None),
        (("compute_90",), "sm_80", None),
        (("compute_90a",), "sm_90a", "compute_90a"),
        (("compute_90a",), "sm_100a", None),
        (("sm_100a",), "sm_103a", None),
        (("nonsense",), "sm_80", None),
    ],
)
def test_which_code_runs_on_which_gpu(made_for: tuple[str, ...], device: str, chosen: str | None) -> None:
    assert machine.choose_gpu(made_for, device) == chosen
