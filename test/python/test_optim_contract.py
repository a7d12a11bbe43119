"""The contract of torch.optim.Optimizer: groups, schedulers, closures, hooks, copies and checkpoints."""

from __future__ import annotations

import copy
import io
import math
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import kaon
import kaon.language as kl
import pytest
import torch
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon, UpdateOptimizer, elementwise_rules
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
from torch import nn
from torch.optim import lr_scheduler

SHAPES = [(6, 10), (10, 6), (7,)]
FACTORIES: dict[str, Any] = {
    "muon": lambda params: Muon(params, lr=0.02),
    "periodic": lambda params: PeriodicRowwiseMuon(params, lr=0.02, row_scale="calibrated"),
    "adamw": lambda params: AdamW(params, lr=0.02),
}
EVERY = pytest.mark.parametrize("factory", FACTORIES.values(), ids=list(FACTORIES))


@kaon.update
def signed_momentum(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    lr: kl.scalar,
    beta: kl.scalar = 0.9,
    *,
    nesterov: kl.constexpr = False,
):
    """Sign descent, as a user would write it."""
    m = kl.lerp(m, g, 1 - beta)
    u = kl.lerp(g, m, beta) if nesterov else m
    return w - lr * kl.sign(u), m


SignedMomentum = kaon.optimizer(signed_momentum)


def trained(factory: Any, steps: int, shapes: Any = SHAPES) -> tuple[list[nn.Parameter], Any]:
    params = parameters(shapes)
    optimizer = factory(params)
    for step in range(steps):
        set_gradients(params, step)
        optimizer.step()
    return params, optimizer


# -- groups -----------------------------------------------------------------------------------------------------------


@EVERY
def test_is_a_torch_optimizer(factory: Any) -> None:
    params = parameters(SHAPES)
    optimizer = factory(params)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups[0]["params"] == params
    assert "lr: 0.02" in repr(optimizer)


@EVERY
def test_zero_grad(factory: Any) -> None:
    params, optimizer = trained(factory, 1)
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in params)
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


def test_user_groups_keep_their_own_options() -> None:
    a, b, c = parameters([(6, 10), (6, 10), (7,)], torch.float64)
    groups: list[dict[str, Any]] = [
        {"params": [a], "name": "first", "momentum": 0.8},
        {"params": [b, c], "lr": 0.001, "weight_decay": 0.0, "nesterov": False},
    ]
    optimizer = Muon(groups, lr=0.1, adamw_lr=0.01)
    assert optimizer.param_groups[0] is groups[0]
    assert groups[0]["name"] == "first"
    oracles = [
        MuonOracle(a.detach(), lr=0.1, momentum=0.8),
        MuonOracle(b.detach(), lr=0.001, weight_decay=0.0, nesterov=False),
    ]
    for step in range(2):
        set_gradients([a, b, c], step)
        for oracle, parameter in zip(oracles, (a, b), strict=True):
            assert parameter.grad is not None
            oracle.step(parameter.grad.numpy())
        optimizer.step()
    assert relative_error(a, oracles[0].w) < 1e-12
    assert relative_error(b, oracles[1].w) < 1e-12


def test_the_fallback_follows_the_group_rate_by_ratio() -> None:
    weight, bias = parameters([(4, 6), (6,)], torch.float64)
    reference = bias.detach().clone().requires_grad_()
    optimizer = Muon(
        [weight, bias], lr=0.1, adamw_lr=0.02, adamw_betas=(0.8, 0.9), adamw_eps=1e-6, adamw_weight_decay=0.3
    )
    theirs = torch.optim.AdamW([reference], lr=0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    assert optimizer.param_groups[0]["adamw_lr_ratio"] == pytest.approx(0.2)
    for step in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        theirs.param_groups[0]["lr"] = 0.02 / (1 + step)
        set_gradients([weight, bias], step)
        assert bias.grad is not None
        reference.grad = bias.grad.clone()
        optimizer.step()
        theirs.step()
    assert relative_error(bias, reference) < 1e-12


def test_fallback_rate_of_a_group() -> None:
    matrix, a, b = parameters([(4, 4), (4,), (4,)])
    optimizer = Muon([{"params": [a, matrix], "lr": 0.5, "adamw_lr": 0.1}, {"params": [b]}], lr=0.01, adamw_lr=0.002)
    assert [group["adamw_lr_ratio"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.2])
    assert Muon([matrix], lr=0.0, adamw_lr=0.1).param_groups[0]["adamw_lr_ratio"] == 1.0
    assert Muon([matrix], lr=0.02).param_groups[0]["adamw_lr_ratio"] == pytest.approx(0.05)
    with pytest.raises(ValueError, match="adamw_lr"):
        Muon([matrix], lr=0.1, adamw_lr=-1.0)


@EVERY
def test_add_param_group_keeps_old_states(factory: Any) -> None:
    params, optimizer = trained(factory, 2)
    before = snapshot(optimizer)
    (new,) = parameters([(6, 10)], seed=9)
    optimizer.add_param_group({"params": [new], "lr": 0.5})
    assert_bitwise(snapshot(optimizer)[: len(before)], before)
    group = optimizer.param_groups[1]
    assert set(group) == set(optimizer.param_groups[0])
    assert (group["lr"], group["step"], optimizer.param_groups[0]["step"]) == (0.5, 0, 2)
    alone = parameters([(6, 10)], seed=9)
    other = factory(alone)
    other.param_groups[0]["lr"] = 0.5
    for step in range(3):
        set_gradients([*params, new], 50 + step)
        assert new.grad is not None
        alone[0].grad = new.grad.clone()
        optimizer.step()
        other.step()
    assert_bitwise([new], alone)


def test_options_compiled_in_may_change_at_the_cost_of_a_new_program() -> None:
    (parameter,) = parameters([(6, 10)], torch.float64)
    oracle = MuonOracle(parameter.detach(), lr=0.1, period=3)
    optimizer = PeriodicRowwiseMuon([parameter], lr=0.1)
    for step in range(6):
        if step == 3:
            optimizer.param_groups[0].update(period=2, nesterov=False)
        set_gradients([parameter], step)
        assert parameter.grad is not None
        changes = {"period": 2, "nesterov": False} if step >= 3 else {}
        oracle.step(parameter.grad.numpy(), **changes)
        optimizer.step()
    assert relative_error(parameter, oracle.w) < 1e-12


def test_periods_that_do_not_go_together() -> None:
    """Groups of period 7, 11 and 13 repeat after 1001 steps; they run in several programs, and nobody notices."""
    params = parameters([(4, 6)] * 4, torch.float64)
    periods = [7, 11, 13, 7]
    optimizer = PeriodicRowwiseMuon(
        [{"params": [p], "period": period} for p, period in zip(params, periods, strict=True)], lr=0.1
    )
    oracles = [MuonOracle(p.detach(), lr=0.1, period=period) for p, period in zip(params, periods, strict=True)]
    for step in range(15):
        set_gradients(params, step)
        for p, oracle in zip(params, oracles, strict=True):
            assert p.grad is not None
            oracle.step(p.grad.numpy())
        optimizer.step()
    for p, oracle in zip(params, oracles, strict=True):
        assert relative_error(p, oracle.w) < 1e-12
    assert len(compiled_programs(optimizer)) == 2
    assert [row.period for row in optimizer.plan(show=False)] == periods


# -- schedulers -------------------------------------------------------------------------------------------------------

SCHEDULERS: dict[str, Any] = {
    "step": lambda opt: lr_scheduler.StepLR(opt, step_size=3, gamma=0.9),
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=20),
    "one cycle": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.05, total_steps=40),
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: min(1.0, step / 5)),
    "warm-up then decay": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, 1.0, 5), lr_scheduler.ExponentialLR(opt, 0.9)], [5]
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=list(SCHEDULERS))
def test_scheduler_without_recompile(make: Any) -> None:
    """A scheduled rate follows the oracle, and nothing is compiled after the first step."""
    (parameter,) = parameters([(6, 10)], torch.float64)
    oracle = MuonOracle(parameter.detach(), lr=0.02, period=3)
    optimizer = PeriodicRowwiseMuon([parameter], lr=0.02)
    scheduler = make(optimizer)
    programs = None
    for step in range(20):
        set_gradients([parameter], step)
        assert parameter.grad is not None
        group = optimizer.param_groups[0]
        oracle.step(parameter.grad.numpy(), lr=group["lr"], momentum=group["momentum"])
        optimizer.step()
        scheduler.step()
        programs = programs or compiled_programs(optimizer)
        assert all(a is b for a, b in zip(compiled_programs(optimizer), programs, strict=True))
    assert relative_error(parameter, oracle.w) < 1e-11


def test_reduce_on_plateau() -> None:
    _, optimizer = trained(FACTORIES["muon"], 1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for _ in range(3):
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] < 0.02
    programs = compiled_programs(optimizer)
    optimizer.step()
    assert compiled_programs(optimizer)[0] is programs[0]


# -- closures, hooks, profiler ----------------------------------------------------------------------------------------


@EVERY
def test_closure(factory: Any) -> None:
    params = parameters([(4, 6)])
    optimizer = factory(params)
    calls = []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = params[0].square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        first = optimizer.step(closure)
    second = optimizer.step(closure=closure)
    assert calls == [True, True]
    assert second < first
    assert optimizer.step() is None


@EVERY
def test_hooks_run_once_around_the_step_and_may_change_gradients(factory: Any) -> None:
    params = parameters(SHAPES)
    optimizer = factory(params)
    order: list[str] = []

    def before(opt: Any, args: Any, kwargs: Any) -> None:
        order.append("before")
        for p in params:
            p.grad = torch.ones_like(p)

    optimizer.register_step_pre_hook(before)
    handle = optimizer.register_step_post_hook(lambda *_: order.append("after"))
    set_gradients(params, 0)
    optimizer.step()
    assert order == ["before", "after"]
    handle.remove()
    optimizer.step()
    assert order == ["before", "after", "before"]
    twins = parameters(SHAPES)
    twin = factory(twins)
    for _ in range(2):
        for p in twins:
            p.grad = torch.ones_like(p)
        twin.step()
    assert_bitwise(params, twins)


def test_profiler_sees_the_step() -> None:
    params, optimizer = trained(FACTORIES["muon"], 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
        optimizer.zero_grad()
    names = {event.key for event in profile.key_averages()}
    assert {"Optimizer.step#Muon.step", "Optimizer.zero_grad#Muon.zero_grad"} <= names
    assert params[0].grad is None


@EVERY
def test_autograd_sees_that_parameters_changed(factory: Any) -> None:
    """Kernels write past autograd; a backward through a graph that saved the old values must fail as with torch."""
    params = parameters([(4, 6)])
    optimizer = factory(params)
    loss = params[0].square().sum()
    params[0].grad = torch.ones(4, 6)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# -- copies and checkpoints -------------------------------------------------------------------------------------------


def continued(optimizer: Any, steps: int, start: int) -> list[torch.Tensor]:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(start, start + steps):
        set_gradients(params, step)
        optimizer.step()
    return snapshot(optimizer)


@EVERY
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_continue_alike_and_share_nothing(factory: Any, how: str) -> None:
    _, optimizer = trained(factory, 2)
    twin = copy.deepcopy(optimizer) if how == "deepcopy" else pickle.loads(pickle.dumps(optimizer))
    before = snapshot(optimizer)
    after = continued(twin, 4, 2)
    assert_bitwise(snapshot(optimizer), before)
    assert_bitwise(continued(optimizer, 4, 2), after)
    (new,) = parameters([(3, 4)])
    twin.add_param_group({"params": [new]})
    set_gradients([new], 0)
    twin.step()
    assert len(optimizer.param_groups) == 1


def test_an_optimizer_pickled_before_products_had_a_type_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = trained(lambda params: Muon(params, lr=0.1), 2)
    state = optimizer.__getstate__()
    del state["_product_dtype"]
    monkeypatch.setattr(Muon, "__getstate__", lambda self: state)
    old = pickle.loads(pickle.dumps(optimizer))
    assert_bitwise(continued(old, 2, 2), continued(optimizer, 2, 2))


@EVERY
@pytest.mark.parametrize("saved_after", [1, 2, 3, 4])
def test_resume_in_mid_period_is_bit_exact(factory: Any, saved_after: int) -> None:
    params, optimizer = trained(factory, saved_after)
    file = io.BytesIO()
    torch.save({"model": [p.detach() for p in params], "optimizer": optimizer.state_dict()}, file)
    expected = continued(optimizer, 5, saved_after)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = factory([nn.Parameter(p) for p in saved["model"]])
    resumed.load_state_dict(saved["optimizer"])
    assert resumed.param_groups[0]["step"] == saved_after
    assert_bitwise(continued(resumed, 5, saved_after), expected)


def test_resume_in_a_fresh_process(tmp_path: Path) -> None:
    params, optimizer = trained(FACTORIES["periodic"], 2)
    torch.save({"model": [p.detach() for p in params], "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    expected = continued(optimizer, 3, 2)
    script = f"""
        import sys, torch
        sys.path[:0] = {sys.path!r}
        from kaon.optim import PeriodicRowwiseMuon
        from optim_tools import set_gradients, snapshot
        saved = torch.load({str(tmp_path / "saved.pt")!r}, weights_only=True, map_location="cpu")
        params = [torch.nn.Parameter(p) for p in saved["model"]]
        optimizer = PeriodicRowwiseMuon(params, lr=0.02, row_scale="calibrated")
        optimizer.load_state_dict(saved["optimizer"])
        for step in range(2, 5):
            set_gradients(params, step)
            optimizer.step()
        torch.save(snapshot(optimizer), {str(tmp_path / "resumed.pt")!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    assert_bitwise(torch.load(tmp_path / "resumed.pt", weights_only=True), expected)


def test_scheduler_and_optimizer_resume_together() -> None:
    def make() -> tuple[list[nn.Parameter], Any, Any]:
        params = parameters(SHAPES)
        optimizer = FACTORIES["periodic"](params)
        return params, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)

    def run(params: Any, optimizer: Any, scheduler: Any, first: int, last: int) -> None:
        for step in range(first, last):
            set_gradients(params, step)
            optimizer.step()
            scheduler.step()

    params, optimizer, scheduler = make()
    run(params, optimizer, scheduler, 0, 4)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict(), [p.detach().clone() for p in params]))
    run(params, optimizer, scheduler, 4, 10)
    resumed_params, resumed, resumed_scheduler = make()
    resumed.load_state_dict(saved[0])
    resumed_scheduler.load_state_dict(saved[1])
    for p, values in zip(resumed_params, saved[2], strict=True):
        p.data.copy_(values)
    run(resumed_params, resumed, resumed_scheduler, 4, 10)
    assert_bitwise(snapshot(resumed), snapshot(optimizer))


def test_state_dict_hooks_and_copies() -> None:
    _, optimizer = trained(FACTORIES["muon"], 2)
    seen: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda _: seen.append("save"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append("load"))
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append(f"loaded {len(opt.state)}"))
    saved = optimizer.state_dict()
    _, other = trained(FACTORIES["muon"], 0)
    other.load_state_dict(saved)
    before = snapshot(optimizer)
    continued(other, 1, 2)
    assert_bitwise(snapshot(optimizer), before)
    optimizer.load_state_dict(saved)
    assert seen == ["save", "load", "loaded 3"]


def test_state_dict_loads_without_its_layout() -> None:
    """Tools that pass on `state` and `param_groups` only keep working."""
    _, optimizer = trained(FACTORIES["periodic"], 2)
    saved = copy.deepcopy(optimizer.state_dict())
    expected = continued(optimizer, 2, 2)
    _, other = trained(FACTORIES["periodic"], 2)
    other.load_state_dict({"state": saved["state"], "param_groups": saved["param_groups"]})
    assert_bitwise(continued(other, 2, 2), expected)


def test_distributed_checkpoint_functions() -> None:
    """torch.distributed.checkpoint's view of states by parameter name, in one process."""
    api = pytest.importorskip("torch.distributed.checkpoint.state_dict")

    def make() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 4))
        return model, PeriodicRowwiseMuon(model, lr=0.02, row_scale="calibrated")

    model, optimizer = make()
    continued(optimizer, 2, 0)
    saved = copy.deepcopy(api.get_state_dict(model, optimizer))
    expected = continued(optimizer, 3, 2)
    other_model, other = make()
    api.set_state_dict(other_model, other, model_state_dict=saved[0], optim_state_dict=saved[1])
    assert_bitwise(continued(other, 3, 2), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved["param_groups"].append(saved["param_groups"][0]), "different number of parameter groups"),
        (lambda saved: saved["param_groups"][0]["params"].pop(), "doesn't match the size"),
        (lambda saved: saved["param_groups"][0].pop("step"), "expects an integer step count in group 0"),
        (lambda saved: saved["param_groups"][0].update(period=4), "has period 4 in group 0, .* was made with 3"),
        (lambda saved: saved["state"][0].pop("row_length"), r"expects states \['momentum_buffer', 'row_length'\]"),
        (lambda saved: saved["state"].pop(1), r"for parameter 1, but got \[\]"),
        (lambda saved: saved["state"][0].update(momentum_buffer=torch.zeros(2, 2)), r"of shape \(6, 10\), but got"),
        (
            lambda saved: saved["state"][0].update(momentum_buffer=torch.zeros(6, 10, dtype=torch.bfloat16)),
            "as torch.float32 .* but got torch.bfloat16",
        ),
        (lambda saved: saved["kaon"].update(version=2), "expects a state dict of version 1, but got 2"),
    ],
)
def test_loading_what_does_not_fit_changes_nothing(change: Any, message: str) -> None:
    _, optimizer = trained(FACTORIES["periodic"], 2)
    saved = copy.deepcopy(optimizer.state_dict())
    change(saved)
    before = snapshot(optimizer)
    options = copy.deepcopy({k: v for k, v in optimizer.param_groups[0].items() if k != "params"})
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert_bitwise(snapshot(optimizer), before)
    assert options == {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}


# -- states and parameters that users move around ---------------------------------------------------------------------


@EVERY
def test_states_exist_from_construction_on(factory: Any) -> None:
    params = parameters(SHAPES)
    optimizer = factory(params)
    saved = optimizer.state_dict()
    assert set(saved["state"]) == {0, 1, 2}
    trained_state = trained(factory, 2)[1].state_dict()
    for key, states in trained_state["state"].items():
        for name, tensor in states.items():
            initial = torch.as_tensor(saved["state"][key][name])
            assert (initial.shape, initial.dtype) == (torch.as_tensor(tensor).shape, torch.as_tensor(tensor).dtype)


def test_states_and_parameters_replaced_between_steps() -> None:
    params, optimizer = trained(FACTORIES["muon"], 2)
    twin_params, twin = trained(FACTORIES["muon"], 2)
    for p in params:
        optimizer.state[p] = {**optimizer.state[p], **{n: t.clone() for n, t in tensor_states(optimizer, p).items()}}
    params[0].data = params[0].data.clone()
    optimizer.state[params[1]]["momentum_buffer"] = optimizer.state[params[1]]["momentum_buffer"].clone()
    assert_bitwise(continued(optimizer, 2, 2), continued(twin, 2, 2))
    optimizer.state.clear()
    continued(optimizer, 1, 4)
    assert set(optimizer.state) == set(params)
    assert twin_params[0] in twin.state


def test_parameters_exchanged_inside_a_group() -> None:
    (old,), (new,) = parameters([(4, 6)]), parameters([(4, 6)], seed=1)
    twin = new.detach().clone().requires_grad_()
    optimizer, reference = Muon([old], lr=0.1), Muon([twin], lr=0.1)
    set_gradients([old], 0)
    optimizer.step()
    reference.step()
    optimizer.param_groups[0]["params"][0] = new
    set_gradients([new, twin], 1)
    twin.grad = new.grad
    optimizer.step()
    reference.step()
    assert_bitwise([new], [twin])
    optimizer.param_groups[0]["params"].append(old)
    with pytest.raises(
        ValueError, match="was made with 1 parameters, but has 2 now; add parameters with add_param_group"
    ):
        optimizer.step()


def test_unfrozen_parameters_join() -> None:
    a, b = parameters([(4, 6), (4, 6)])
    b.requires_grad_(False)
    optimizer = Muon([a, b], lr=0.1)
    assert b not in optimizer.state
    set_gradients([a, b], 0)
    before = b.detach().clone()
    optimizer.step()
    assert_bitwise([b], [before])
    b.requires_grad_(True)
    set_gradients([a, b], 1)
    optimizer.step()
    assert not torch.equal(b.detach(), before)
    assert "momentum_buffer" in optimizer.state[b]


def test_a_parameter_of_another_shape_is_an_error() -> None:
    params, optimizer = trained(FACTORIES["muon"], 1)
    params[0].grad = None
    params[0].data = torch.randn(12, 10)
    params[0].grad = torch.randn(12, 10)
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match=r"parameter 0 of shape \(6, 10\) .* has shape \(12, 10\)"):
        optimizer.step()
    assert_bitwise(snapshot(optimizer), before)
    (fresh,) = parameters([(6, 10)])
    optimizer = Muon([fresh], lr=0.1)
    fresh.data = torch.randn(12, 10)
    fresh.grad = torch.randn(12, 10)
    with pytest.raises(ValueError, match=r"expects state momentum_buffer of parameter 0 .* but got .* shape \(6, 10\)"):
        optimizer.step()


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Muon(p, momentum=-0.1), "momentum should be >= 0 but is: -0.1"),
        (lambda p: Muon(p, ns_steps=100), "Number of steps must be less than 100"),
        (lambda p: Muon(p, ns_steps=0), "expects ns_steps as an integer of at least 1"),
        (lambda p: Muon(p, ns_coefficients=(1.0, 2.0)), "Coefficients must be a tuple of exactly 3 values"),
        (lambda p: Muon(p, ns_coefficients="kj"), "expects one of keller_jordan"),
        (lambda p: Muon(p, momentum_form="ema"), "expects momentum_form out of lerp, heavy_ball, but got 'ema'"),
        (lambda p: Muon(p, decay_mode="l2"), "expects decay_mode out of decoupled, after, cautious"),
        (lambda p: Muon(p, ns_normalize="l2"), "expects ns_normalize out of max, add"),
        (lambda p: Muon(p, eps=-1.0), "expects eps to be finite and at least 0, but got -1.0"),
        (lambda p: Muon(p, adamw_betas=(0.9, 1.0)), r"expects adamw_betas\[1\] to be less than 1 and at least 0"),
        (lambda p: Muon(p, nonfinite="ignore"), "expects nonfinite out of skip, raise, propagate"),
        (lambda p: Muon(p, threads=0), "expects threads of at least 1, but got 0"),
        (lambda p: PeriodicRowwiseMuon(p, period=0), "expects period as an integer of at least 1, but got 0"),
        (lambda p: PeriodicRowwiseMuon(p, period=241), "expects period of at most 240, but got 241"),
        (lambda p: PeriodicRowwiseMuon(p, phase=-1), "expects phase as an integer of at least 0"),
        (lambda p: PeriodicRowwiseMuon(p, period=2.0), "expects period as an integer of at least 1, but got 2.0"),
        (lambda p: PeriodicRowwiseMuon(p, row_scale="rms"), "expects row_scale out of frobenius, unit, ns_matched"),
        (lambda p: PeriodicRowwiseMuon(p, row_lr_ratio=-1), "expects row_lr_ratio to be finite and at least 0"),
        (
            lambda p: PeriodicRowwiseMuon(p, phase="random"),
            'expects phase as an integer of at least 0 or "staggered", but got',
        ),
        (lambda p: AdamW(p, capturable=True), "does not support capturable=True"),
        (lambda p: AdamW(p, differentiable=True), "does not support differentiable=True"),
    ],
)
def test_options_are_checked_at_construction(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(parameters([(4, 6)]))


def test_unknown_options_are_refused() -> None:
    for optimizer_class in (Muon, PeriodicRowwiseMuon, AdamW, SignedMomentum):
        with pytest.raises(TypeError, match="unexpected"):
            optimizer_class(parameters([(4, 6)]), lr=0.1, learning_rate=0.1)


def test_options_are_checked_again_at_every_step() -> None:
    for key, value, error in (
        ("momentum", -1.0, ValueError),
        ("weight_decay", math.nan, ValueError),
        ("lr", "fast", TypeError),
        ("period", 0, ValueError),
        ("adamw_eps", -1.0, ValueError),
    ):
        _, optimizer = trained(FACTORIES["periodic"], 1)
        before = snapshot(optimizer)
        optimizer.param_groups[0][key] = value
        with pytest.raises(error, match=key):
            optimizer.step()
        assert_bitwise(snapshot(optimizer), before)
        assert optimizer.param_groups[0]["step"] == 1


# -- a user's own update ----------------------------------------------------------------------------------------------


def test_optimizer_of_a_users_update() -> None:
    assert issubclass(SignedMomentum, UpdateOptimizer)
    assert SignedMomentum.__name__ == "SignedMomentum"
    assert "Sign descent" in (SignedMomentum.__doc__ or "")
    weight, bias = parameters([(4, 6), (6,)], torch.float64)
    w, m = weight.detach().clone(), torch.zeros(4, 6, dtype=torch.float64)
    optimizer = SignedMomentum([weight, bias], lr=0.01, nesterov=True)
    for step in range(3):
        set_gradients([weight, bias], step)
        assert weight.grad is not None
        m = 0.9 * m + (1 - 0.9) * weight.grad
        w = w - 0.01 * torch.sign((1 - 0.9) * weight.grad + 0.9 * m)
        optimizer.step()
    torch.testing.assert_close(weight.detach(), w, rtol=1e-12, atol=1e-12)
    assert set(optimizer.state[bias]) == {"step", "exp_avg", "exp_avg_sq"}


@kaon.update
def every_third(w: kl.param, g: kl.grad, lr: kl.scalar):
    """Moves on every third step only."""
    u = g if kl.every(3) else kl.zeros_like(g)
    return w - lr * u


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_phase_of_a_users_update(phase: int) -> None:
    (parameter,) = parameters([(4, 6)])
    optimizer = kaon.optimizer(every_third)([parameter], lr=1.0, phase=phase)
    moved = []
    for step in range(6):
        before = parameter.detach().clone()
        set_gradients([parameter], step)
        optimizer.step()
        moved.append(not torch.equal(parameter.detach(), before))
    assert moved == [step % 3 == phase for step in range(6)]
    with pytest.raises(ValueError, match='phase "staggered" needs a constexpr `period`'):
        kaon.optimizer(every_third)([parameter], lr=1.0, phase="staggered")


def test_users_update_over_everything() -> None:
    params = parameters([(4, 6), (6,), (2, 3, 4)])
    optimizer = SignedMomentum(params, lr=0.01, rules=elementwise_rules())
    before = [p.detach().clone() for p in params]
    set_gradients(params, 0)
    optimizer.step()
    for parameter, old in zip(params, before, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.detach(), old - 0.01 * parameter.grad.sign())


def test_users_optimizer_is_copied_pickled_and_resumed() -> None:
    params = parameters(SHAPES)
    optimizer = SignedMomentum(params, lr=0.01)
    continued(optimizer, 2, 0)
    twin = pickle.loads(pickle.dumps(optimizer))
    other = copy.deepcopy(optimizer)
    resumed = SignedMomentum([nn.Parameter(p.detach().clone()) for p in params], lr=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    expected = continued(optimizer, 2, 2)
    for copied in (twin, other, resumed):
        assert type(copied).__name__ == "SignedMomentum"
        assert_bitwise(continued(copied, 2, 2), expected)


def test_users_update_handles_maximize_without_knowing_it() -> None:
    up, down = parameters([(4, 6)]), parameters([(4, 6)])
    ascending, descending = SignedMomentum(up, lr=0.01, maximize=True), SignedMomentum(down, lr=0.01)
    set_gradients(up, 1)
    assert up[0].grad is not None
    down[0].grad = -up[0].grad
    kept = up[0].grad.clone()
    ascending.step()
    descending.step()
    assert_bitwise(up, down)
    assert_bitwise([up[0].grad], [kept])


def test_a_required_scalar_must_come_from_somewhere() -> None:
    a, b = parameters([(4, 6), (4, 6)])
    with pytest.raises(ValueError, match="didn't specify a value of required optimization parameter lr"):
        SignedMomentum([a])
    optimizer = SignedMomentum([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.2}], adamw_lr=0.05)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    assert [group["adamw_lr_ratio"] for group in optimizer.param_groups] == pytest.approx([0.5, 0.25])


@kaon.update
def wide_only(w: kl.param, g: kl.grad, lr: kl.scalar, *, limit: kl.constexpr = 8):
    """Takes wide matrices only."""
    kl.static_assert(w.rows <= w.cols, f"expects at most {w.cols} rows")
    return w - lr * (g @ g.T @ g)


def test_what_a_users_update_cannot_take_is_refused_at_construction() -> None:
    optimizer_class = kaon.optimizer(wide_only)
    wide, tall = parameters([(4, 6), (6, 4)])
    with pytest.raises(kaon.errors.StaticAssertionError, match="expects at most 4 rows") as caught:
        optimizer_class([("w", wide), ("t", tall)], lr=0.1)
    assert caught.value.__notes__ == ["WideOnly compiled it for parameter 1 ('t') of shape (6, 4)"]
    with pytest.raises(kaon.errors.UpdateTypeError, match="`limit` must be hashable"):
        optimizer_class([wide], lr=0.1, limit=[1])
    optimizer = optimizer_class([wide], lr=0.1)
    with pytest.raises(kaon.errors.StaticAssertionError) as caught:
        optimizer.add_param_group({"params": [tall]})
    assert caught.value.__notes__ == ["WideOnly compiled it for parameter 1 of shape (6, 4)"]
    assert len(optimizer.param_groups) == 1
    before = wide.detach().clone()
    set_gradients([wide], 0)
    assert wide.grad is not None
    optimizer.step()
    torch.testing.assert_close(wide.detach(), before - 0.1 * (wide.grad @ wide.grad.T @ wide.grad))


def test_only_updates_make_optimizers() -> None:
    with pytest.raises(TypeError, match=r"expects a function decorated with @kaon.update, but got"):
        kaon.optimizer(len)  # type: ignore[arg-type]


# -- what plan() says of the check of gradients ----------------------------------------------------------------------


def test_plan_lists_the_check_of_gradients() -> None:
    params = parameters([(6, 10), (4, 4), (5,)])
    checked = AdamW(params).plan(show=False)
    (check,) = checked.checks
    assert (check.name, check.matrices, check.launches, check.bytes) == ("check_finite_f32", 3, 1.0, 4 * (60 + 16 + 5))
    line = "check: gradients that are not finite are looked for before each step: 1 launch, 0.000 MB beside the above"
    assert line in str(checked).splitlines() and check.name in checked.kernel_table()
    unchecked = AdamW(params, nonfinite="propagate").plan(show=False)
    assert unchecked.checks == () and "check" not in str(unchecked) + unchecked.kernel_table()
    assert (unchecked.rows, unchecked.kernels) == (checked.rows, checked.kernels)


# -- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer_class", [Muon, AdamW])
def test_python_overhead_of_a_step_is_small(optimizer_class: Any) -> None:
    """150 parameters with new gradients each time, kernels left out: the bookkeeping alone stays below a millisecond on
    a quiet machine; twice that is allowed for, as tests run side by side."""
    params = parameters([(4, 4)] * 150)
    optimizer = optimizer_class(params, lr=0.1)
    set_gradients(params, 0)
    optimizer.step()
    (program,) = optimizer._programs or []

    class Nothing:
        def step_with(self, *_: Any) -> int:
            return 0

    program._compiled = Nothing()  # type: ignore[assignment]
    best = math.inf
    for _ in range(30):
        for p in params:
            assert p.grad is not None
            p.grad = p.grad.clone()
        start = time.perf_counter()
        optimizer.step()
        best = min(best, time.perf_counter() - start)
    assert best < 2e-3
