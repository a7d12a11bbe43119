"""What users of optimizers are told: mistakes in updates, silent choices, checkpoints of others, shared memory."""

from __future__ import annotations

import copy
import io
import math
import os
import pickle
import subprocess
import sys
import textwrap
import traceback
import warnings
from pathlib import Path
from typing import Any

import kaon
import kaon.language as kl
import pytest
import torch
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon, Rule, default_rules, matrix_rules
from optim_tools import (
    MuonOracle,
    assert_bitwise,
    compiled_programs,
    parameters,
    relative_error,
    set_gradients,
    snapshot,
    tensor_states,
)
from torch import Tensor, nn

# -- mistakes in an update --------------------------------------------------------------------------------------------


@kaon.function
def product(a, b):
    return a @ b


@kaon.update
def wrong_product(w: kl.param, g: kl.grad, lr: kl.scalar):
    return w - lr * product(g, g)


@kaon.update
def unknown_name(w: kl.param, g: kl.grad, lr: kl.scalar):
    return w - lr * g * foo  # noqa: F821


@kaon.update
def sometimes_wrong(w: kl.param, g: kl.grad, lr: kl.scalar, *, wrong: kl.constexpr = False):
    u = g @ g if wrong else g
    return w - lr * u


def test_an_error_of_the_language_arrives_as_itself() -> None:
    for make in (
        lambda: kaon.optimizer(wrong_product)([("w", parameters([(4, 6)])[0])], lr=0.1),
        lambda: wrong_product.specialize(4, 6, symbol="x"),
    ):
        with pytest.raises(kaon.errors.ShapeError, match="expects as many columns") as caught:
            make()
        error = caught.value
        line = wrong_product.definition.header_location().line + 1
        assert isinstance(error, kaon.errors.KaonError)
        assert [location.function for location in error.call_chain] == ["product", "wrong_product"]
        assert error.call_chain[1].line == line
        assert (error.line, error.column) == (line - 5, 12)
        assert error.__cause__ is None
        assert error.__suppress_context__
    with pytest.raises(kaon.errors.UpdateNameError, match="foo") as named:
        kaon.optimizer(unknown_name)(parameters([(4, 6)]), lr=0.1)
    assert isinstance(named.value, NameError)
    assert not hasattr(named.value, "__notes__"), "no parameter is at fault"


def test_an_error_of_the_language_is_printed_once_without_the_compilers_frames() -> None:
    for change in ("construct", "add", "step"):
        (a, b) = parameters([(4, 4), (4, 6)])
        optimizer = None if change == "construct" else kaon.optimizer(sometimes_wrong)([a], lr=0.1)
        with pytest.raises(kaon.errors.ShapeError) as caught:
            if optimizer is None:
                kaon.optimizer(sometimes_wrong)([b], lr=0.1, wrong=True)
            elif change == "add":
                optimizer.add_param_group({"params": [b], "wrong": True})
            else:
                optimizer.add_param_group({"params": [b]})
                optimizer.param_groups[1]["wrong"] = True
                set_gradients([a, b], 0)
                optimizer.step()
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("expects as many columns") == 1
        assert "/kaon/compiler/" not in text
        assert "bindings.py" not in text
        assert caught.value.__notes__ == [
            f"SometimesWrong compiled it for parameter {0 if change == 'construct' else 1} of shape (4, 6)"
        ]


# -- the steps of a parameter of its own ------------------------------------------------------------------------------


def joins_late(make: Any, theirs: Any, dtype: torch.dtype, tolerance: float) -> None:
    """Three parameters: always, from step 7 on, and at every third step only."""
    ours = parameters([(5,), (5,), (3, 4)], dtype)
    reference = [nn.Parameter(p.detach().clone()) for p in ours]
    a, b = make(ours), theirs(reference)
    programs = None
    for step in range(20):
        set_gradients(ours, step)
        for index, (p, q) in enumerate(zip(ours, reference, strict=True)):
            q.grad = None if p.grad is None else p.grad.clone()
            if (index == 1 and step < 7) or (index == 2 and step % 3):
                p.grad = q.grad = None
        a.step()
        b.step()
        programs = programs or compiled_programs(a)
        assert compiled_programs(a)[0] is programs[0], "counts are run-time values"
        assert len(compiled_programs(a)) == 1
        for p, q in zip(ours, reference, strict=True):
            assert relative_error(p, q) < tolerance
    assert [a.state[p]["step"] for p in ours] == [20, 13, 7]
    assert [int(b.state[q]["step"].item()) for q in reference] == [20, 13, 7]
    assert a.param_groups[0]["step"] == 20


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_corrects_the_bias_of_each_parameter_by_its_own_updates(
    dtype: torch.dtype, tolerance: float, amsgrad: bool
) -> None:
    joins_late(
        lambda ps: AdamW(ps, lr=0.1, amsgrad=amsgrad),
        lambda ps: torch.optim.AdamW(ps, lr=0.1, amsgrad=amsgrad),
        dtype,
        tolerance,
    )


def test_the_fallback_corrects_the_bias_of_each_parameter_by_its_own_updates() -> None:
    rules = [Rule("adamw")]
    with pytest.warns(UserWarning, match="all 3 go to AdamW"):
        joins_late(
            lambda ps: PeriodicRowwiseMuon(ps, lr=0.1, adamw_lr=0.1, rules=rules),
            lambda ps: torch.optim.AdamW(ps, lr=0.1),
            torch.float64,
            1e-12,
        )


def test_a_parameter_that_joins_after_long_takes_a_first_step_of_the_rate() -> None:
    ours, theirs = parameters([(4,), (4,)]), parameters([(4,), (4,)])
    a, b = AdamW(ours, lr=0.1, weight_decay=0.0), torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.0)
    for params, optimizer in ((ours, a), (theirs, b)):
        for _ in range(2000):
            params[0].grad = torch.ones(4)
            optimizer.step()
        before = params[1].detach().clone()
        params[1].grad = torch.ones(4)
        optimizer.step()
        torch.testing.assert_close(params[1].detach(), before - 0.1, rtol=1e-5, atol=1e-6)


def test_the_count_survives_checkpoints_and_copies() -> None:
    params = parameters([(4, 6), (4,), (4,)])

    def go(optimizer: Any, steps: range) -> None:
        ps = optimizer.param_groups[0]["params"]
        for step in steps:
            set_gradients(ps, step)
            if step % 2:
                ps[1].grad = None
            optimizer.step()

    optimizer = Muon(params, lr=0.02)
    go(optimizer, range(5))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = Muon(twins, lr=0.02)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    copies = [resumed, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    go(optimizer, range(5, 10))
    for twin in copies:
        assert [twin.state[p].get("step") for p in twin.param_groups[0]["params"]] == [None, 3, 5]
        go(twin, range(5, 10))
        assert_bitwise(snapshot(twin), snapshot(optimizer))
    assert type(optimizer.state[params[1]]["step"]) is int
    skipped = optimizer.state[params[2]]["step"]
    set_gradients(params, 0)
    params[2].grad = torch.full((4,), math.inf)
    with pytest.warns(UserWarning, match="skipped a step"):
        optimizer.step()
    assert optimizer.state[params[2]]["step"] == skipped, "a skipped step is no update"


def test_torch_takes_our_state_dict_of_adamw() -> None:
    ours, theirs = parameters([(4,)]), parameters([(4,)])
    a, b = AdamW(ours, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
    for step in range(3):
        set_gradients(ours, step)
        a.step()
    b.load_state_dict(copy.deepcopy(a.state_dict()))  # torch keeps the tensors that it is given
    theirs[0].data.copy_(ours[0].data)
    for optimizer, params in ((a, ours), (b, theirs)):
        set_gradients(params, 3)
        optimizer.step()
    assert relative_error(ours[0], theirs[0]) < 1e-6


# -- silent choices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Muon(nn.Conv2d(3, 8, 3)), r"update of Muon: all 2 go to AdamW, by rule .*\(2\); .* view='flatten'"),
        (
            lambda: Muon(nn.LayerNorm(4)),
            r'no parameter gets the update of Muon: all 2 go to AdamW, by rule "norm" \(2\)',
        ),
        (
            lambda: kaon.optimizer(wrong_product)(parameters([(4,)]), lr=0.1),
            "no parameter gets the update of WrongProduct",
        ),
    ],
)
def test_an_optimizer_whose_update_nobody_gets_says_so_once(make: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        make()
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_no_warning_where_a_matrix_is_there_or_adamw_was_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Muon(nn.Linear(3, 4))
        AdamW(nn.LayerNorm(4))
        Muon([{"params": parameters([(4,)]), "update": "adamw"}])
        Muon(nn.Conv2d(3, 8, 3), rules=[Rule("matrix", ndim=4, view="flatten"), *default_rules()])
        Muon(nn.Linear(3, 4).parameters()).add_param_group({"params": parameters([(4,)])})


def test_the_plan_notes_what_bare_tensors_hide(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8, bias=False))
    plan = Muon(model.parameters(), lr=0.1).plan()
    assert (
        capsys.readouterr()
        .out.rstrip()
        .endswith(
            "note: 2 of the matrices came as bare tensors, among which rules cannot tell embeddings and heads from "
            "hidden matrices: give the optimizer the module instead of its parameters()"
        )
    )
    assert len(plan.notes) == 1
    for optimizer in (
        Muon(model, lr=0.1),
        Muon(model.named_parameters(), lr=0.1),
        Muon(model.parameters(), lr=0.1, rules=matrix_rules()),
        Muon([{"params": model.parameters(), "update": "matrix"}], lr=0.1),
        AdamW(model.parameters()),
    ):
        assert optimizer.plan(show=False).notes == ()


def test_the_first_skipped_step_is_told() -> None:
    (p,) = parameters([(4, 6)])
    optimizer = Muon([("layer.weight", p)], lr=0.1)
    p.grad = torch.full((4, 6), math.nan)
    with pytest.warns(
        UserWarning, match=r"skipped a step of Muon.*parameter 0 \('layer.weight'\).*nonfinite="
    ) as caught:
        optimizer.step()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.step()
    assert (optimizer.nonfinite_steps, optimizer.param_groups[0]["step"]) == (4, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "skipped a step")  # as the warning says
        quiet = Muon([p], lr=0.1)
        quiet.step()
    assert quiet.nonfinite_steps == 1


# -- periods ----------------------------------------------------------------------------------------------------------


@kaon.function
def doubled_at_times(x, k):
    if kl.every(k, phase=2):
        x = x * 2.0
    return x


@kaon.update
def moves(w: kl.param, g: kl.grad, lr: kl.scalar, *, k: kl.constexpr = 3):
    u = g if kl.every(k) else kl.zeros_like(g)
    return w - lr * u


@kaon.update
def moves_and_doubles(w: kl.param, g: kl.grad, lr: kl.scalar, *, k: kl.constexpr = 3, j: kl.constexpr = 2):
    u = g if kl.every(k) else kl.zeros_like(g)
    return w - lr * doubled_at_times(u, j)


def test_periods_of_a_users_update_that_do_not_go_together() -> None:
    """A constexpr of any name; 15 and 17 repeat together after 255 steps, and so run in two programs."""
    params = parameters([(4, 6)] * 3)
    periods = [17, 15, 5]
    optimizer = kaon.optimizer(moves)([{"params": [p], "k": k} for p, k in zip(params, periods, strict=True)], lr=1.0)
    moved: list[list[int]] = [[], [], []]
    for step in range(36):
        before = [p.detach().clone() for p in params]
        set_gradients(params, step)
        optimizer.step()
        for index, (p, old) in enumerate(zip(params, before, strict=True)):
            if not torch.equal(p.detach(), old):
                moved[index].append(step)
    assert moved == [list(range(0, 36, k)) for k in periods]
    assert len(compiled_programs(optimizer)) == 2
    assert [row.period for row in optimizer.plan(show=False)] == periods


@pytest.mark.parametrize(
    ("options", "message", "depth"),
    [
        ({"k": 500, "j": 1}, r"at most 240 steps, but update `moves_and_doubles` has 1, 500, which do so after 500", 1),
        ({"k": 2, "j": 500}, r"has 2, 500, which do so after 500", 2),
        ({"k": 16, "j": 17}, r"has 16, 17, which do so after 272", 2),
    ],
)
def test_periods_that_no_program_can_have_are_refused_at_construction(
    options: dict[str, int], message: str, depth: int
) -> None:
    with pytest.raises(kaon.errors.UpdateValueError, match=message) as caught:
        kaon.optimizer(moves_and_doubles)(parameters([(4, 6)]), lr=0.1, **options)
    chain = caught.value.call_chain
    assert len(chain) == depth
    assert chain[0].filename == __file__
    assert "kl.every(k" in chain[0].text
    optimizer = kaon.optimizer(moves_and_doubles)(parameters([(4, 6)]), lr=0.1)
    with pytest.raises(kaon.errors.UpdateValueError, match=message):
        optimizer.add_param_group({"params": parameters([(4, 6)]), **options})


def test_the_plan_shows_the_periods_and_phases_that_an_update_has() -> None:
    rows = {}
    for phase in (0, 1, 4):
        plan = kaon.optimizer(moves)([("w", parameters([(4, 6)])[0])], lr=0.1, phase=phase).plan(show=False)
        rows[phase] = (plan["w"].period, plan["w"].phase, plan["w"].refreshes)
    assert rows == {0: (3, 0, ((3, 0),)), 1: (3, 1, ((3, 1),)), 4: (3, 1, ((3, 1),))}
    params = parameters([(4, 6), (6,)])
    plan = kaon.optimizer(moves_and_doubles)(params, lr=0.1, phase=1).plan(show=False)
    assert plan.rows[0].refreshes == ((2, 0), (3, 1))
    assert plan.rows[0].period == 6
    assert (plan.rows[1].period, plan.rows[1].refreshes) == (1, ())
    assert " 2, 3+1 " in str(plan)


def test_the_plan_names_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = PeriodicRowwiseMuon(nn.Linear(6, 4), lr=0.1, period=4)
    plan = optimizer.plan(kernels=True)
    text = capsys.readouterr().out
    assert {kernel.name for kernel in plan.kernels} == {name for row in plan for name in row.kernels}
    for kernel in plan.kernels:
        assert f"\n{kernel.name} " in text
    assert sum(kernel.flops for kernel in plan.kernels) == pytest.approx(sum(row.flops for row in plan))
    assert sum(kernel.bytes for kernel in plan.kernels) == pytest.approx(sum(row.bytes for row in plan))
    products = sum(kernel.launches for kernel in plan.kernels if kernel.schedule == "matmul")
    assert products == pytest.approx(15 / 4), "three products in each of five iterations, at one step of four"
    optimizer.plan()
    assert "matmul" not in capsys.readouterr().out


# -- memory -----------------------------------------------------------------------------------------------------------


def test_the_plan_shows_copies_through_buffers() -> None:
    plain, turned = nn.Parameter(torch.randn(32, 16)), nn.Parameter(torch.randn(16, 32).T)
    names = [("plain", plain), ("turned", turned)]
    plan = AdamW(names).plan(show=False)
    size = 32 * 16 * 4
    assert (plan["plain"].staged, plan["plain"].staging_bytes) == ((), 0)
    assert (plan["turned"].staged, plan["turned"].staging_bytes) == (("parameter", "gradient"), 2 * size)
    assert plan["turned"].bytes - plan["plain"].bytes == 6 * size
    assert plan.workspace_bytes - AdamW([("plain", plain)]).plan(show=False).workspace_bytes == 2 * size
    assert "elementwise, copied" in str(plan)
    (note,) = plan.notes
    assert "at every step" in note
    assert "turned" in note
    assert "plain" not in note
    # What the first step then does is what was foretold.
    optimizer = AdamW(names)
    foretold = optimizer.plan(show=False)
    for p in (plain, turned):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.plan(show=False) == foretold
    turned.grad = torch.ones(32, 16)
    optimizer.step()
    assert optimizer.plan(show=False)["turned"].staged == ("parameter",)
    ascending = kaon.optimizer(moves)([("plain", plain)], lr=0.1, maximize=True)
    assert ascending.plan(show=False)["plain"].staged == ("gradient",)


def test_parameters_that_share_memory_are_refused() -> None:
    base = torch.randn(8, 6)
    whole = nn.Parameter(base)
    for part in (base[:4], base[:, 2:4], base[3:], base.view(-1)[5:6], base.view(torch.int32)[:2].view(torch.float32)):
        for pair in ([whole, nn.Parameter(part)], [nn.Parameter(part), whole]):
            with pytest.raises(
                ValueError, match=r"AdamW expects every parameter in memory .* parameter 1 of .* shares memory"
            ):
                AdamW(pair)
    optimizer = Muon([("whole", whole)], lr=0.1)
    with pytest.raises(ValueError, match=r"parameter 1 \('part'\) .* shares memory with parameter 0 \('whole'\)"):
        optimizer.add_param_group({"params": [("part", nn.Parameter(base[:4]))]})
    assert len(optimizer.param_groups) == 1
    frozen = nn.Parameter(base[:4], requires_grad=False)
    optimizer = AdamW([whole, frozen])
    for p in (whole, frozen):
        p.grad = torch.ones_like(p)
    optimizer.step()
    frozen.requires_grad_(True)
    before = base.clone()
    with pytest.raises(ValueError, match="shares memory"):
        optimizer.step()
    assert torch.equal(base, before)
    AdamW([nn.Parameter(base[:, :3]), nn.Parameter(base[:, 3:])])
    AdamW([nn.Parameter(base[:4]), nn.Parameter(base[4:])])
    AdamW([nn.Parameter(base[::2]), nn.Parameter(base[1::2]), nn.Parameter(torch.empty(0, 3))])


@pytest.mark.parametrize("nesterov", [True, False])
def test_heavy_ball_overflows_where_documented_and_not_before(nesterov: bool) -> None:
    """Its momentum grows to `|G| / (1 - mu)`, which float32 has to hold; that of lerp never exceeds the gradient."""
    largest = torch.finfo(torch.float32).max
    for form, size, finite in (
        ("heavy_ball", 0.05 * 0.999 * largest, True),
        ("heavy_ball", 0.05 * 1.001 * largest, False),
        ("lerp", 0.999 * largest, True),
    ):
        (p,) = parameters([(4, 6)])
        optimizer = Muon([p], lr=0.1, momentum_form=form, momentum=0.95, nesterov=nesterov)
        for _ in range(400):
            p.grad = torch.full((4, 6), size)
            optimizer.step()
        assert bool(optimizer.state[p]["momentum_buffer"].isfinite().all()) == finite
        assert bool(p.isfinite().all()) == finite
        assert optimizer.nonfinite_steps == 0


# -- checkpoints of others --------------------------------------------------------------------------------------------


def trained_state(make: Any, model: nn.Module) -> dict[str, Any]:
    optimizer = make(model)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(2):
        set_gradients(params, step)
        optimizer.step()
    return copy.deepcopy(optimizer.state_dict())


class Wrapper(nn.Module):
    """What torch.compile and data parallelism do to names."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        setattr(self, name, module)


def hidden_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 6))


WAYS: dict[str, Any] = {
    "module": lambda model: Muon(model, lr=0.02),
    "named": lambda model: Muon(model.named_parameters(), lr=0.02),
    "bare": lambda model: Muon(model.parameters(), lr=0.02),
    "compiled": lambda model: Muon(Wrapper("_orig_mod", model), lr=0.02),
    "parallel": lambda model: Muon(Wrapper("module", model), lr=0.02),
    "both": lambda model: Muon(Wrapper("module", Wrapper("_orig_mod", model)), lr=0.02),
}


@pytest.mark.parametrize("saved", WAYS)
@pytest.mark.parametrize("loaded", WAYS)
def test_names_count_only_where_both_have_them_and_without_wrappers(saved: str, loaded: str) -> None:
    model = hidden_model()
    state = trained_state(WAYS[saved], model)
    optimizer = WAYS[loaded](model)
    optimizer.load_state_dict(state)
    again = optimizer.state_dict()
    assert_bitwise(
        [t for s in again["state"].values() for t in s.values() if isinstance(t, Tensor)],
        [t for s in state["state"].values() for t in s.values() if isinstance(t, Tensor)],
    )


def test_other_names_shapes_and_orders_are_still_refused() -> None:
    model = hidden_model()
    state = trained_state(WAYS["compiled"], model)
    renamed = Muon([(f"x.{name}", p) for name, p in model.named_parameters()], lr=0.02)
    with pytest.raises(ValueError, match=r'is "x.0.weight \(10, 6\).*has "_orig_mod.0.weight \(10, 6\)'):
        renamed.load_state_dict(state)
    with pytest.raises(ValueError, match="has other parameters: parameter 0"):
        Muon(list(model.parameters())[::-1], lr=0.02).load_state_dict(state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_over_from_torchs_adamw(dtype: torch.dtype, amsgrad: bool) -> None:
    theirs = parameters([(4, 6), (6,), (3,)], dtype)
    options = {"lr": 0.05, "betas": (0.8, 0.99), "amsgrad": amsgrad, "weight_decay": 0.2}
    reference = torch.optim.AdamW([{"params": theirs[:1]}, {"params": theirs[1:], "lr": 0.01}], **options)
    for step in range(5):
        set_gradients(theirs, step)
        theirs[2].grad = None
        reference.step()
    ours = [nn.Parameter(p.detach().clone()) for p in theirs]
    optimizer = AdamW([{"params": ours[:1]}, {"params": ours[1:]}], amsgrad=amsgrad)
    saved = copy.deepcopy(reference.state_dict())
    optimizer.load_state_dict(saved)
    assert [group["step"] for group in optimizer.param_groups] == [5, 5]
    assert [optimizer.state[p]["step"] for p in ours[:2]] == [5, 5]
    assert (optimizer.param_groups[1]["lr"], optimizer.param_groups[0]["betas"]) == (0.01, (0.8, 0.99))
    for step in range(5, 9):
        for params, each in ((theirs, reference), (ours, optimizer)):
            set_gradients(params, step)
            each.step()
    for p, q in zip(ours, theirs, strict=True):
        assert relative_error(p, q) < (1e-6 if dtype == torch.float32 else 1e-12)
    assert saved["state"][0].keys() == reference.state_dict()["state"][0].keys(), "the state dict itself is unchanged"


def test_over_from_torchs_muon() -> None:
    theirs = parameters([(4, 6), (6, 4)])
    reference = torch.optim.Muon(theirs, lr=0.05, momentum=0.9, ns_steps=6)
    for step in range(3):
        set_gradients(theirs, step)
        reference.step()
    for optimizer_class in (Muon, PeriodicRowwiseMuon):
        ours = [nn.Parameter(p.detach().clone()) for p in theirs]
        optimizer = optimizer_class(ours, momentum_form="lerp")
        optimizer.load_state_dict(reference.state_dict())
        group = optimizer.param_groups[0]
        assert (group["lr"], group["momentum"], group["ns_steps"], group["eps"], group["step"]) == (
            0.05,
            0.9,
            6,
            1e-7,
            0,
        )
        assert_bitwise(
            [optimizer.state[p]["momentum_buffer"] for p in ours],
            [reference.state[p]["momentum_buffer"] for p in theirs],
        )
        oracle = MuonOracle(ours[0].detach(), lr=0.05, momentum=0.9, coefficients=[(3.4445, -4.7750, 2.0315)] * 6)
        momentum = reference.state[theirs[0]]["momentum_buffer"].double().numpy()
        oracle.state = {**oracle.state, "m": momentum}
        set_gradients(ours, 3)
        assert ours[0].grad is not None
        oracle.step(ours[0].grad)
        optimizer.step()
        assert relative_error(ours[0], oracle.w) < 1e-5
    half = [nn.Parameter(p.detach().bfloat16()) for p in theirs]
    in_half = torch.optim.Muon(half, lr=0.05)
    set_gradients(half, 0)
    in_half.step()
    optimizer = Muon(half, lr=0.05)
    optimizer.load_state_dict(in_half.state_dict())
    momentum = tensor_states(optimizer, half[0])["momentum_buffer"]
    assert momentum.dtype == torch.float32
    torch.testing.assert_close(momentum.bfloat16(), in_half.state[half[0]]["momentum_buffer"])


def test_over_from_an_optimizer_that_never_stepped() -> None:
    for ours, theirs in ((AdamW, torch.optim.AdamW), (Muon, torch.optim.Muon)):
        (p,) = parameters([(4, 6)])
        optimizer = ours([p])
        optimizer.load_state_dict(theirs([p], lr=0.3).state_dict())
        set_gradients([p], 0)
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        (torch.optim.AdamW, Muon, r"of Muon or torch.optim.Muon, but this one looks like that of torch.optim.AdamW$"),
        (torch.optim.Muon, AdamW, r"of AdamW or torch.optim.AdamW, but this one looks like that of torch.optim.Muon$"),
        (torch.optim.Adam, AdamW, r"looks like that of torch.optim.Adam, whose weight decay is another$"),
        (torch.optim.SGD, AdamW, r"looks like that of an optimizer with options \['dampening'"),
        (torch.optim.AdamW, kaon.optimizer(moves), r"of Moves, but this one looks like that of torch.optim.AdamW$"),
    ],
)
def test_other_optimizers_of_torch_are_refused_in_a_sentence(theirs: Any, ours: Any, message: str) -> None:
    (p,) = parameters([(4, 6)])
    reference, optimizer = theirs([p], lr=0.1), ours([p], lr=0.2)
    set_gradients([p], 0)
    reference.step()
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(reference.state_dict())
    assert_bitwise(snapshot(optimizer), before)
    assert optimizer.param_groups[0]["lr"] == 0.2


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p: Muon(p, lr="0.1"), "lr"),
        (lambda p: Muon(p, momentum="0.9"), "momentum"),
        (lambda p: Muon(p, weight_decay=[0.1]), "weight_decay"),
        (lambda p: Muon(p, adamw_lr="0.1"), "adamw_lr"),
        (lambda p: AdamW(p, lr="0.1"), "lr"),
        (lambda p: AdamW(p, eps="0.1"), "eps"),
        (lambda p: AdamW(p, betas=("0.9", 0.99)), r"betas\[0\]"),
        (lambda p: kaon.optimizer(moves)(p, lr="0.1"), "lr"),
        (lambda p: Muon([{"params": p, "lr": "0.1"}]), "lr"),
    ],
)
def test_text_for_a_number_is_refused_by_name(make: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"expects {name} as a number, but got"):
        make(parameters([(4, 6)]))


@pytest.mark.parametrize("value", ["x", 1.5, -1, None, [1]])
def test_a_step_count_that_is_none_is_refused_by_name(value: Any) -> None:
    (p,) = parameters([(4, 6)])
    optimizer = Muon([p], lr=0.1)
    set_gradients([p], 0)
    optimizer.step()
    before = snapshot(optimizer)
    optimizer.param_groups[0]["step"] = value
    with pytest.raises(TypeError, match=r"parameter group 0: expects step as an integer of at least 0, but got"):
        optimizer.step()
    assert_bitwise(snapshot(optimizer), before)


def test_uncaught_error_of_an_update_ends_with_its_place(tmp_path: Path) -> None:
    script = tmp_path / "training.py"
    script.write_text(
        textwrap.dedent("""\
            import kaon
            import kaon.language as kl
            from torch import nn


            @kaon.update
            def wrong(w: kl.param, g: kl.grad, lr: kl.scalar):
                return w - lr * g * kl.sign(missing)


            kaon.optimizer(wrong)(nn.Linear(4, 6), lr=0.1)
            """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    *_, title, place, line, carets = done.stderr.splitlines()
    assert done.returncode == 1
    assert title.startswith("kaon.errors.UpdateNameError: "), done.stderr
    assert place == f"  --> {script}:8:33, in `wrong`" or place.endswith("training.py:8:33, in `wrong`")
    assert line.endswith("kl.sign(missing)")
    assert carets.strip(" |") == "^" * len("missing")
