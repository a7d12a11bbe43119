"""The examples in the documentation of optimizers run as they stand."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from optim_tools import MuonOracle, relative_error
from torch import nn

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example(document: str, containing: str, prologue: str, directory: Path) -> ModuleType:
    """The one Python block of `document` that contains a text, run as a module of its own (updates need source)."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / document).read_text(), flags=re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    path = directory / "example.py"
    path.write_text(f"{prologue}\n{block}")
    spec = importlib.util.spec_from_file_location("example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 12)
        self.conv = nn.Conv2d(1, 4, 3)
        self.experts = nn.ParameterList([nn.Parameter(torch.randn(2, 3, 4))])


PROLOGUE = "from torch import nn\nfrom test_optim_docs import Model\nmodel = nn.ModuleDict({'block': Model()})"


def test_a_first_optimizer(tmp_path: Path) -> None:
    prologue = f"{PROLOGUE}\ndata = []"
    module = example("optimizers.md", "PeriodicRowwiseMuon(model", prologue, tmp_path)
    assert module.opt.param_groups[0]["adamw_lr_ratio"] == pytest.approx(0.05)


def test_rules(tmp_path: Path) -> None:
    module = example("optimizers.md", "rules=[", PROLOGUE, tmp_path)
    rows = {row.name: row for row in module.opt.plan(show=False)}
    assert {name: (row.view, row.matrices) for name, row in rows.items() if row.update == "muon"} == {
        "block.qkv.weight": ("split(3)", 3),
        "block.conv.weight": ("flatten", 1),
        "block.experts.0": ("batch", 2),
    }
    assert not rows["block.qkv.bias"].decay


def test_ones_own_update(tmp_path: Path) -> None:
    prologue = "import torch\nfrom torch import nn\nmodel = nn.Linear(6, 4, bias=False, dtype=torch.float64)"
    module = example("adding-an-optimizer.md", "def normalized", prologue, tmp_path)
    (w,) = module.model.parameters()
    start = w.detach().clone()
    w.grad = torch.randn(4, 6, dtype=torch.float64)
    module.opt.step()
    # Its first step is Muon's with six steps, every row divided by its own RMS over sqrt(20).
    oracle = MuonOracle(torch.zeros(4, 6), lr=1.0, weight_decay=0.0, coefficients=[(3.4445, -4.7750, 2.0315)] * 6)
    direction = torch.from_numpy(-oracle.step(w.grad))
    rms = direction.square().mean(1, keepdim=True).mul(0.05).sqrt()
    assert relative_error(w, start - 2e-2 * direction / (rms + 1e-10)) < 1e-12
    assert module.opt.state[w]["v"].shape == (4, 1)
