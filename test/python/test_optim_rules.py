"""Routing: which parameter gets which update, and what is refused at construction."""

from __future__ import annotations

import pytest
import torch
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon, Rule, default_rules, elementwise_rules, matrix_rules
from optim_tools import parameters, set_gradients
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.gains = nn.Parameter(torch.ones(2, 8))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.patch = nn.Conv2d(3, 8, 2)
        self.block = Block()
        self.head = nn.Linear(8, 11)
        self.mlp = nn.Linear(8, 8)


def updates(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    return {row.name: row.update for row in optimizer.plan(show=False)}  # type: ignore[attr-defined]


def test_default_rules_by_owning_module_and_name() -> None:
    plan = updates(Muon(Model(), lr=0.02))
    assert plan == {
        "tokens.weight": "adamw",
        "patch.weight": "adamw",
        "patch.bias": "adamw",
        "block.qkv.weight": "muon",
        "block.qkv.bias": "adamw",
        "block.norm.weight": "adamw",
        "block.norm.bias": "adamw",
        "block.gains": "muon",
        "head.weight": "adamw",
        "head.bias": "adamw",
        "mlp.weight": "muon",
        "mlp.bias": "adamw",
    }


def test_only_dimensions_count_for_bare_parameters() -> None:
    model = Model()
    plan = list(updates(Muon(model.parameters(), lr=0.02)).values())
    assert plan == ["muon" if p.ndim == 2 else "adamw" for p in model.parameters()]


def test_names_without_modules() -> None:
    plan = updates(Muon(Model().named_parameters(), lr=0.02))
    assert plan["head.weight"] == "adamw"
    assert plan["tokens.weight"] == "muon", "its name does not tell that it is an embedding; a module would"


def test_tied_weights_are_recognised_by_any_owner() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 11, bias=False)
            self.tokens = nn.Embedding(11, 8)
            self.out.weight = self.tokens.weight

    with pytest.warns(UserWarning, match=r'no parameter gets the update of Muon: .* by rule "embedding" \(1\)$'):
        optimizer = Muon(Tied(), lr=0.02)
    assert updates(optimizer) == {"out.weight": "adamw"}


def test_first_match_decides_and_own_rules_go_in_front() -> None:
    rules = [Rule("adamw", name="*.gains"), Rule("matrix", name="*.qkv.weight", view="split(3)"), *default_rules()]
    optimizer = Muon(Model(), lr=0.02, rules=rules)
    plan = {row.name: row for row in optimizer.plan(show=False)}
    assert plan["block.gains"].update == "adamw"
    assert (plan["block.qkv.weight"].view, plan["block.qkv.weight"].matrices) == ("split(3)", 3)
    assert plan["block.qkv.weight"].rule == "*.qkv.weight"
    assert optimizer.rules == tuple(rules)


def test_conditions_of_a_rule() -> None:
    rules = [
        Rule("matrix", module=nn.Conv2d, ndim=4, view="flatten"),
        Rule("matrix", module="Linear", shape=lambda shape: shape == (24, 8)),
        Rule("adamw"),
    ]
    plan = updates(Muon(Model(), lr=0.02, rules=rules))
    assert {name for name, update in plan.items() if update == "muon"} == {"patch.weight", "block.qkv.weight"}


def test_group_options_override_rules() -> None:
    a, b, c = parameters([(4, 6), (4, 6), (4, 3, 2)])
    optimizer = Muon([{"params": [a]}, {"params": [b], "update": "adamw"}, {"params": [c], "view": "flatten"}], lr=0.02)
    rows = list(optimizer.plan(show=False))
    assert [row.update for row in rows] == ["muon", "adamw", "muon"]
    assert rows[2].view == "flatten"


def test_rules_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match='a rule expects update "matrix" or "adamw", but got "sgd"'):
        Rule("sgd")
    with pytest.raises(ValueError, match="expects a view out of"):
        Rule("matrix", view="rows")
    with pytest.raises(ValueError, match=r"Muon has no rule for parameter 0 of shape \(4, 6\)"):
        Muon(parameters([(4, 6)]), rules=[Rule("matrix", ndim=3)])
    with pytest.raises(ValueError, match=r'sends parameter 0 of shape .* to "adamw", which AdamW does not have'):
        AdamW(parameters([(4, 6)]), rules=[Rule("adamw")])


def test_decay_can_be_switched_off_by_rule() -> None:
    weight, bias = parameters([(4, 6), (6,)])
    rules = [Rule("adamw", ndim=1, decay=False), *default_rules()]
    optimizer = Muon([weight, bias], lr=0.0, weight_decay=0.5, adamw_weight_decay=0.5, rules=rules)
    optimizer.param_groups[0]["lr"] = 0.1
    weight.grad, bias.grad = torch.zeros(4, 6), torch.zeros(6)
    before = weight.detach().clone(), bias.detach().clone()
    optimizer.step()
    torch.testing.assert_close(weight.detach(), before[0] * 0.95)
    assert torch.equal(bias.detach(), before[1])


def test_a_rule_without_a_view_for_the_shape_is_refused_with_name_and_shape() -> None:
    model = Model()
    message = r"Muon only supports 2D .* rule .all., but got parameter 0 \('patch.weight'\) of shape \(8, 3, 2, 2\)"
    with pytest.raises(ValueError, match=message):
        Muon([("patch.weight", model.patch.weight)], rules=matrix_rules())
    assert len(AdamW(model, rules=elementwise_rules()).plan(show=False)) == 12


def test_modules_inside_groups() -> None:
    model = Model()
    optimizer = PeriodicRowwiseMuon(
        [{"params": model.block, "lr": 0.01}, {"params": model.tokens}], lr=0.02, adamw_lr=0.001
    )
    assert optimizer.param_groups[0]["param_names"] == ["gains", "qkv.weight", "qkv.bias", "norm.weight", "norm.bias"]
    assert updates(optimizer)["weight"] == "adamw"


def test_plan_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = PeriodicRowwiseMuon(Model(), lr=0.02, phase="staggered", period=3)
    plan = optimizer.plan()
    printed = capsys.readouterr().out
    for row in plan:
        assert row.name in printed
    assert "split" not in printed
    assert [row.phase for row in plan if row.update == "periodic_rowwise_muon"] == [0, 1, 2]
    assert plan["mlp.weight"].state_bytes == 8 * 8 * 4
    assert plan["mlp.bias"].state_bytes == 2 * 8 * 4
    with pytest.raises(KeyError):
        plan["nothing"]


def test_plan_counts_work() -> None:
    """FLOPs of Muon are those of Newton-Schulz to first order; every kernel named exists; bytes cover the tensors."""
    (weight,) = parameters([(64, 128)])
    row = Muon([weight], lr=0.02).plan(show=False)["parameter 0"]
    dense = 5 * (4 * 128 * 64 * 64 + 2 * 64**3)
    assert 0.6 * dense < row.flops < 1.2 * dense
    assert row.bytes >= 5 * 64 * 128 * 4
    assert row.kernels
    periodic = PeriodicRowwiseMuon([weight], lr=0.02, period=3).plan(show=False)["parameter 0"]
    assert periodic.flops < 0.45 * row.flops
    set_gradients([weight], 0)


def test_empty_parameters_are_carried_along() -> None:
    empty, weight = nn.Parameter(torch.zeros(0, 4)), nn.Parameter(torch.ones(2, 4))
    optimizer = Muon([empty, weight], lr=0.1)
    empty.grad, weight.grad = torch.zeros(0, 4), torch.ones(2, 4)
    optimizer.step()
    assert not torch.equal(weight.detach(), torch.ones(2, 4))
    assert len(optimizer.state_dict()["state"]) == 2
