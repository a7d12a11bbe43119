"""The examples run, write what they promise, and their own parts (sampler, metrics, report) are right."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
RUN_KEYS = {
    "optimizer",
    "implementation",
    "period",
    "row_scale",
    "seed",
    "lr",
    "heldout_loss",
    "frechet_distance",
    "sample_accuracy",
    "optimizer_ms",
    "step_ms",
}


@pytest.fixture(autouse=True)
def _examples_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices of this size gain nothing from more; Kaon's optimizers follow torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def quick_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one quick comparison."""
    out = tmp_path_factory.mktemp("demo-out")
    run("examples/train_dit.py", "--quick", "--out", str(out))
    return out


def decode_png(data: bytes) -> list[bytes]:
    """The rows of an 8-bit grey PNG without filters, its checksums verified."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    position, body, width = 8, b"", 0
    while position < len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        chunk = data[position + 8 : position + 8 + length]
        (checksum,) = struct.unpack(">I", data[position + 8 + length : position + 12 + length])
        assert checksum == zlib.crc32(kind + chunk)
        if kind == b"IHDR":
            width, _, depth, color, *_ = struct.unpack(">IIBBBBB", chunk)
            assert (depth, color) == (8, 0)
        body += chunk if kind == b"IDAT" else b""
        position += 12 + length
    raw = zlib.decompress(body)
    rows = [raw[begin : begin + width + 1] for begin in range(0, len(raw), width + 1)]
    assert all(row[0] == 0 for row in rows)
    return [row[1:] for row in rows]


# ---- the comparison -------------------------------------------------------------------------------------------------


def test_demo_writes_the_summary(quick_demo: Path) -> None:
    summary = json.loads((quick_demo / "summary.json").read_text())
    assert set(summary) == {"runs", "kernels", "compile_seconds", "machine"}
    assert summary["kernels"] > 0
    assert summary["compile_seconds"] > 0
    kinds = {(r["implementation"], r["optimizer"], r["period"], r["row_scale"]) for r in summary["runs"]}
    assert kinds == {
        ("kaon", "AdamW", 1, None),
        ("kaon", "Muon", 1, None),
        ("kaon", "PeriodicRowwiseMuon", 3, "frobenius"),
        ("kaon", "PeriodicRowwiseMuon", 3, "calibrated"),
        ("kaon", "PeriodicRowwiseMuon", 6, "calibrated"),
        ("torch", "Muon", 1, None),
        ("torch", "AdamW", 1, None),
    }
    for entry in summary["runs"]:
        assert set(entry) == RUN_KEYS
        assert 0 < entry["optimizer_ms"] < entry["step_ms"]
        assert math.isfinite(entry["frechet_distance"])
        assert 0 <= entry["sample_accuracy"] <= 1


def test_every_optimizer_learns(quick_demo: Path) -> None:
    # A model that predicts zero, as all do at the start, has the loss E|x1 - x0|^2, which is above 1.5 on these digits.
    for entry in json.loads((quick_demo / "summary.json").read_text())["runs"]:
        assert entry["heldout_loss"] < 1.0, entry


def test_kaon_and_torch_agree(quick_demo: Path) -> None:
    """The same rule from the same start on the same batches: only rounding (bfloat16 in torch's Muon) can differ."""
    runs = json.loads((quick_demo / "summary.json").read_text())["runs"]
    losses = {(entry["optimizer"], entry["implementation"]): entry for entry in runs if entry["period"] == 1}
    for optimizer, tolerance in (("AdamW", 1e-3), ("Muon", 2e-2)):
        ours, theirs = losses[optimizer, "kaon"], losses[optimizer, "torch"]
        if ours["lr"] == theirs["lr"]:
            assert ours["heldout_loss"] == pytest.approx(theirs["heldout_loss"], rel=tolerance)


def test_report_is_self_contained(quick_demo: Path) -> None:
    report = (quick_demo / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", report)
    assert "<script" not in report
    assert report.count("<polyline") == 7
    assert "prefers-color-scheme: dark" in report
    images = re.findall(r"data:image/png;base64,([^\"]+)", report)
    assert len(images) == 8
    for image in images:
        assert len(decode_png(base64.b64decode(image))) == 4 * (4 * 9 - 1)


def test_write_your_own() -> None:
    done = run("examples/write_your_own.py", "--steps", "120")
    first, last, accuracy = map(float, re.findall(r"loss ([\d.]+) -> ([\d.]+), .* ([\d.]+) %", done.stdout)[0])
    assert last < 0.3 * first
    assert accuracy > 80
    assert "balanced_muon" in done.stdout


def test_learning_rates_are_the_best_of_their_grids() -> None:
    tuned = json.loads((EXAMPLES / "dit" / "tuned.json").read_text())
    train_dit = __import__("train_dit")
    assert set(tuned["recipes"]) == set(train_dit.GRIDS)
    for key, entry in tuned["recipes"].items():
        assert tuple(point["lr"] for point in entry["grid"]) == train_dit.GRIDS[key]
        losses = {point["lr"]: point["validation_loss"] for point in entry["grid"] if point["validation_loss"]}
        assert entry["lr"] == min(losses, key=losses.__getitem__)
        # The best is not at an end of the grid, or a better one might lie beyond.
        assert min(losses) < entry["lr"] < max(losses)


@pytest.mark.parametrize("option", ["--steps", "--seeds", "--workers"])
def test_counts_below_one_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        __import__("train_dit").parse_arguments([option, "0"])
    assert f"expects {option} to be at least 1, but got 0" in capsys.readouterr().err


# ---- the model ------------------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> Any:
    from dit.model import DiT, DiTConfig

    return DiT(DiTConfig(hidden_size=16, depth=1, heads=2), torch.Generator().manual_seed(0))


def test_patches_come_back(model: Any) -> None:
    images = torch.arange(2 * 64.0).view(2, 8, 8)
    patches = model.patchify(images)
    assert patches.shape == (2, 16, 4)
    assert patches[0, 1].tolist() == [2.0, 3.0, 10.0, 11.0]
    assert torch.equal(model.unpatchify(patches), images)


def test_blocks_start_as_identity(model: Any) -> None:
    x, condition = torch.randn(2, 16, 16), torch.randn(2, 16)
    assert torch.equal(model.blocks[0](x, condition), x)
    assert model(torch.randn(2, 8, 8), torch.rand(2), torch.tensor([0, 10])).abs().max() == 0


def test_sampler_follows_a_known_flow() -> None:
    """A velocity of 0.25 with a class and 0 without: guidance 2 doubles it, so every pixel moves by 0.5."""
    from dit.model import DiTConfig, sample

    class Constant:
        config = DiTConfig()

        def __call__(self, x: Any, t: Any, labels: Any) -> Any:
            return (labels < 10).float()[:, None, None].expand_as(x) * 0.25

    labels = torch.arange(3)
    moved = sample(Constant(), labels, torch.Generator().manual_seed(0), steps=4, guidance=2.0)  # type: ignore[arg-type]
    start = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(moved, (start + 0.5).clamp(-1, 1))


def test_kaon_routes_as_the_peer_does(model: Any) -> None:
    import kaon.optim
    from dit.training import split_parameters

    optimizer = kaon.optim.Muon(model.named_parameters(), lr=1e-2)
    routed = {row.name for row in optimizer.plan(show=False).rows if row.update == "muon"}
    matrices = {id(parameter) for parameter in split_parameters(model)[0]}
    assert routed == {name for name, parameter in model.named_parameters() if id(parameter) in matrices}
    assert len(routed) == 5


def test_schedule_and_seed_give_the_same_run_twice() -> None:
    from dit.data import load_splits
    from dit.model import DiTConfig
    from dit.training import RECIPES, Settings, Trainer

    recipe = next(recipe for recipe in RECIPES if recipe.key == "prm3_calibrated")

    def losses() -> list[float]:
        trainer = Trainer(recipe, 2e-2, 3, load_splits().train, Settings(model=DiTConfig(hidden_size=16, depth=1)))
        return [trainer.step() for _ in range(5)]

    assert losses() == losses()


# ---- data and metrics -----------------------------------------------------------------------------------------------


def test_splits_are_disjoint_and_complete() -> None:
    from dit.data import load_splits
    from sklearn.datasets import load_digits

    splits = load_splits()
    parts = [splits.train, splits.validation, splits.held_out]
    assert [len(part) for part in parts] == [1257, 180, 360]
    together = torch.cat([part.images for part in parts]).flatten(1)
    original = torch.from_numpy(load_digits().data).float() / 8 - 1
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, original.tolist()))
    assert torch.equal(load_splits().held_out.images, splits.held_out.images)


def test_batches_cover_an_epoch_once() -> None:
    from dit.data import Digits, batches

    digits = Digits(torch.arange(10.0).view(10, 1, 1).expand(10, 8, 8), torch.arange(10))
    stream: Iterator[Any] = batches(digits, 5, torch.Generator().manual_seed(0))
    epoch = torch.cat([next(stream).labels, next(stream).labels])
    assert sorted(epoch.tolist()) == list(range(10))


def test_frechet_distance_of_known_gaussians() -> None:
    from dit.metrics import frechet_distance

    generator = torch.Generator().manual_seed(0)
    base = torch.randn(50_000, 3, generator=generator, dtype=torch.float64)
    assert frechet_distance(base, base) == pytest.approx(0, abs=1e-9)
    # Independent axes: sum of (mean difference)^2 + (difference of standard deviations)^2.
    other = base.flip(0) * torch.tensor([2.0, 1.0, 0.5]) + torch.tensor([3.0, 0.0, 0.0])
    assert frechet_distance(base, other) == pytest.approx(9 + 1 + 0.25, rel=0.02)


def test_curves_stay_inside_the_chart() -> None:
    from dit.report import Curve, curves_svg

    curves = [Curve("a", [(50, 1.5), (100, 0.5), (150, 0.4)]), Curve("b", [(50, 9.0), (100, math.inf), (150, 0.45)])]
    chart = ElementTree.fromstring(curves_svg(curves))
    assert [child.tag for child in chart].count("polyline") == 2
    for line in chart.iter("polyline"):
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert all(0 <= x <= 900 for x, _ in points)
        assert points[-1][0] == max(x for x, _ in points)
        assert 0 < points[-1][1] < 380
    labels = [text.text for text in chart.iter("text")]
    assert labels[-1] == "step"
    assert {len(label) for label in labels if label and label.startswith("0.")} == {len("0.40")}


def test_png_holds_the_pixels() -> None:
    from dit.report import encode_png, image_grid

    images = torch.tensor([-1.0, 0.0, 1.0]).view(3, 1, 1).expand(3, 2, 2)
    rows = decode_png(encode_png(image_grid(images, columns=3, scale=1)))
    assert [list(row) for row in rows] == [[0, 0, 96, 128, 128, 96, 255, 255]] * 2


# ---- the step benchmark ---------------------------------------------------------------------------------------------


@pytest.fixture
def step_benchmark() -> ModuleType:
    return __import__("step")


def test_benchmark_models_have_the_papers_sizes(step_benchmark: ModuleType) -> None:
    # DiT-S/2 has 33 M and DiT-B/2 130 M parameters (Peebles & Xie 2022, table 1; position embeddings are not trained).
    sizes = {}
    for name, (hidden, depth) in step_benchmark.MODELS.items():
        shapes = step_benchmark.dit_shapes(hidden, depth)
        sizes[name] = sum(math.prod(shape) for shape in shapes.values())
        assert sum(step_benchmark.is_hidden_matrix(*item) for item in shapes.items()) == 60
    assert sizes == {"DiT-S/2": 32_865_056, "DiT-B/2": 130_315_808}


def test_benchmark_peer_is_muon(step_benchmark: ModuleType) -> None:
    """The torch.mm peer takes the step which Kaon's Muon takes, on wide, tall and square matrices."""
    import kaon.optim

    generator = torch.Generator().manual_seed(0)
    shapes = [(24, 48), (48, 24), (32, 32)]
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    muon = kaon.optim.Muon(ours, lr=1e-2)
    peer = step_benchmark.TorchMuon(theirs, lr=1e-2)
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        muon.step()
        peer.step()
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()


def test_benchmark_measures_every_target(step_benchmark: ModuleType) -> None:
    subject = step_benchmark.Subject("small", step_benchmark.dit_parameters(32, 1))
    streams, stream_targets = step_benchmark.measure_streams(subject, 2)
    muon, muon_targets = step_benchmark.measure_muon(subject, 2, 1e9)
    assert [target.name for target in (*stream_targets, *muon_targets)] == [
        "row step / streaming rate",
        "AdamW / streaming rate",
        "torch AdamW(foreach) / kaon AdamW",
        "Muon K=1 / the same in torch.mm",
        "PRM K=3 mean step / Muon K=1",
        "workspace / largest bucket",
    ]
    assert all(target.value > 0 for target in (*stream_targets, *muon_targets))
    assert all(entry["repetitions"] == 2 for entry in {**streams["seconds"], **muon["seconds"]}.values())


def test_targets_compare_in_their_own_direction() -> None:
    from measure import Target

    assert Target("m", "time", 0.5, 1.0, at_most=True).met
    assert not Target("m", "rate", 0.5, 1.0, at_most=False).met
    assert str(Target("m", "rate", 0.5, 1.0, at_most=False)).startswith("FAIL")


def test_interleaving_gives_every_candidate_its_turns() -> None:
    from measure import interleave

    calls: list[str] = []
    seconds = interleave({name: lambda name=name: calls.append(name) for name in "abc"}, 3, warmup=1)
    assert calls == ["a", "b", "c", "b", "c", "a", "c", "a", "b", "a", "b", "c"]
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 3, "b": 3, "c": 3}
