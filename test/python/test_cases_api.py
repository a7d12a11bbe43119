"""Faults reported against other optimizers: states, checkpoints, parameter groups, and what callers expect of a step.

Each test is named after its entry in the project's list of cases.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
from kaon import driver
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon
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

SHAPES = [(6, 10), (10, 6), (7,)]


def periodic(params: Any, **options: Any) -> PeriodicRowwiseMuon:
    return PeriodicRowwiseMuon(params, **{"lr": 0.02, "period": 4, "row_scale": "calibrated", **options})


def trained(steps: int, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[list[nn.Parameter], Any]:
    params = parameters(SHAPES, dtype)
    optimizer = periodic(params, **options)
    for step in range(steps):
        set_gradients(params, step)
        optimizer.step()
    return params, optimizer


def continued(optimizer: Any, steps: int, start: int) -> list[torch.Tensor]:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(start, start + steps):
        set_gradients(params, step)
        optimizer.step()
    return snapshot(optimizer)


# -- states and checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("optimizer_class", [periodic, AdamW])
def test_b19_states_keep_their_dtype_and_bits(dtype: torch.dtype, optimizer_class: Any) -> None:
    params = parameters(SHAPES, dtype)
    optimizer = optimizer_class(params)
    continued(optimizer, 257, 0)
    saved = copy.deepcopy(optimizer.state_dict())
    assert type(saved["param_groups"][0]["step"]) is int
    assert saved["param_groups"][0]["step"] == 257
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    twin = optimizer_class(twins)
    twin.load_state_dict(saved)
    for p, q in zip(params, twins, strict=True):
        assert optimizer.state[p].get("step", 257) == twin.state[q].get("step", 257) == 257
        for name, state in tensor_states(optimizer, p).items():
            assert state.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert_bitwise([twin.state[q][name]], [state])
    assert_bitwise(continued(twin, 3, 300), continued(optimizer, 3, 300))


def test_b29_states_exist_before_any_gradient() -> None:
    with_gradients, _ = trained(3)[1], None
    without = periodic(parameters(SHAPES))
    for _ in range(3):
        without.step()
    a, b = with_gradients.state_dict(), without.state_dict()
    assert a["state"].keys() == b["state"].keys()
    for key in a["state"]:
        described = [
            {n: (torch.as_tensor(t).shape, torch.as_tensor(t).dtype) for n, t in s["state"][key].items()}
            for s in (a, b)
        ]
        assert described[0] == described[1]


def test_b30_another_order_at_load_is_an_error() -> None:
    x, y = parameters([(2, 2), (2, 2)])
    first = Muon([("x", x), ("y", y)], lr=0.1)
    set_gradients([x, y], 0)
    first.step()
    second = Muon([("y", y), ("x", x)], lr=0.1)
    before = snapshot(second)
    with pytest.raises(
        ValueError, match=r'other parameters: parameter 0 of group 0 is "y \(2, 2\).*the state dict has "x'
    ):
        second.load_state_dict(first.state_dict())
    assert_bitwise(snapshot(second), before)


def test_b30_another_order_of_shapes_is_an_error_without_names() -> None:
    x, y = parameters([(2, 3), (3, 2)])
    with pytest.raises(ValueError, match="other parameters: parameter 0 of group 0"):
        Muon([y, x]).load_state_dict(Muon([x, y]).state_dict())


def test_b30_unordered_parameters_are_refused() -> None:
    params = parameters([(2, 2), (2, 2)])
    for unordered in (set(params), frozenset(params), [{"params": set(params)}]):
        with pytest.raises(TypeError, match="ordered collections"):
            Muon(unordered)


def test_b30_other_routing_is_an_error() -> None:
    (x,) = parameters([(2, 2)])
    other = Muon([{"params": [x], "update": "adamw"}])
    with pytest.raises(ValueError, match="other parameters"):
        other.load_state_dict(Muon([x]).state_dict())


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.filterwarnings("ignore:skipped a step")
def test_b32_copies_are_complete(how: str) -> None:
    params, optimizer = trained(3, nonfinite="skip")
    params[0].grad = torch.full((6, 10), math.nan)
    optimizer.step()
    twin = copy.deepcopy(optimizer) if how == "deepcopy" else pickle.loads(pickle.dumps(optimizer))
    assert (twin.nonfinite_steps, twin.nonfinite, twin.rules) == (1, "skip", optimizer.rules)
    own = {t.data_ptr() for p in optimizer.state for t in tensor_states(optimizer, p).values()}
    theirs = {t.data_ptr() for p in twin.state for t in tensor_states(twin, p).values()}
    assert own.isdisjoint(theirs)
    (new,) = parameters([(3, 4)], seed=5)
    twin.add_param_group({"params": [new]})
    set_gradients([p for group in twin.param_groups for p in group["params"]], 3)
    twin.step()
    set_gradients(params, 3)
    optimizer.step()
    assert_bitwise(twin.param_groups[0]["params"], params)
    assert twin.param_groups[0]["step"] == optimizer.param_groups[0]["step"] == 4


def test_b32_copy_after_compiling_the_model() -> None:
    model = nn.Linear(4, 6)
    optimizer = periodic(model)
    compiled = torch.compile(model, backend="eager")
    compiled(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    twin = copy.deepcopy(optimizer)
    assert_bitwise(continued(twin, 2, 1), continued(optimizer, 2, 1))


@pytest.mark.parametrize("saved_after", [1, 2, 3, 4, 5])
def test_b33_resume_in_the_middle_of_a_period(saved_after: int) -> None:
    def run(params: Any, optimizer: Any, scheduler: Any, first: int, last: int) -> None:
        for step in range(first, last):
            set_gradients(params, step)
            optimizer.step()
            scheduler.step()

    params, optimizer = trained(0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    run(params, optimizer, scheduler, 0, saved_after)
    file = io.BytesIO()
    saved = {"p": [p.detach() for p in params], "o": optimizer.state_dict(), "s": scheduler.state_dict()}
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True, map_location="cpu")
    run(params, optimizer, scheduler, saved_after, saved_after + 6)
    resumed_params = [nn.Parameter(p) for p in loaded["p"]]
    resumed = periodic(resumed_params)
    resumed_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(resumed, T_max=20)
    resumed.load_state_dict(loaded["o"])
    resumed_scheduler.load_state_dict(loaded["s"])
    run(resumed_params, resumed, resumed_scheduler, saved_after, saved_after + 6)
    assert_bitwise(snapshot(resumed), snapshot(optimizer))


def test_b33_another_period_at_load_is_an_error() -> None:
    saved = trained(2)[1].state_dict()
    for options, message in (
        ({"period": 3}, "has period 4 in group 0, but this optimizer was made with 3"),
        ({"row_scale": "unit"}, "has row_scale 'calibrated'"),
        ({"phase": 1}, "has phase 0"),
    ):
        with pytest.raises(ValueError, match=message):
            periodic(parameters(SHAPES), **options).load_state_dict(saved)


def test_b34_the_step_count_advances_without_gradients() -> None:
    (a,), (b,) = parameters([(6, 10)]), parameters([(6, 10)], seed=3)
    optimizer = periodic([{"params": [a]}, {"params": [b]}, {"params": []}], period=3)
    for _ in range(5):
        optimizer.step()
    assert [group["step"] for group in optimizer.param_groups] == [5, 5, 5]
    resumed = periodic([{"params": [nn.Parameter(p.detach().clone())]} for p in (a, b)] + [{"params": []}], period=3)
    resumed.load_state_dict(optimizer.state_dict())
    assert [group["step"] for group in resumed.param_groups] == [5, 5, 5]
    oracle = MuonOracle(a.detach(), lr=0.02, period=3, row_scale="calibrated")
    oracle.t = 5
    for step in range(3):
        set_gradients([a], step)
        assert a.grad is not None
        oracle.step(a.grad.numpy())
        optimizer.step()
    assert relative_error(a, oracle.w) < 1e-5, "the refresh falls on steps 1, 4, 7 whether gradients were there or not"


# -- groups and steps -------------------------------------------------------------------------------------------------


def test_b37_groups_of_one_shape_keep_their_options() -> None:
    params = parameters([(6, 10)] * 4, torch.float64)
    options: list[dict[str, Any]] = [
        {"lr": 1e-3, "weight_decay": 0.1},
        {"lr": 1e-4, "weight_decay": 0.0},
        {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.5, "period": 2},
        {"lr": 1e-2, "weight_decay": 0.3, "nesterov": False, "row_scale": "unit"},
    ]
    optimizer = periodic([{"params": [p], **own} for p, own in zip(params, options, strict=True)])
    oracles = [
        MuonOracle(p.detach(), **{"period": 4, "row_scale": "calibrated", **own})
        for p, own in zip(params, options, strict=True)
    ]
    for step in range(6):
        set_gradients(params, step)
        for p, oracle in zip(params, oracles, strict=True):
            assert p.grad is not None
            oracle.step(p.grad.numpy())
        optimizer.step()
    for p, oracle in zip(params, oracles, strict=True):
        assert relative_error(p, oracle.w) < 1e-12
    assert len(compiled_programs(optimizer)) == 1


@pytest.mark.parametrize("optimizer_class", [periodic, AdamW])
def test_b39_no_gradient_no_change(optimizer_class: Any) -> None:
    none, frozen, zeros = parameters([(4, 6), (4, 6), (4, 6)])
    frozen.requires_grad_(False)
    frozen.grad = torch.ones(4, 6)
    optimizer = optimizer_class([none, frozen, zeros], lr=0.1, weight_decay=0.1)
    before = [p.detach().clone() for p in (none, frozen, zeros)]
    for _ in range(3):
        zeros.grad = torch.zeros(4, 6)
        optimizer.step()
    assert_bitwise([none, frozen], before[:2])
    torch.testing.assert_close(zeros.detach(), before[2] * 0.99**3)
    assert frozen not in optimizer.state
    assert not any(state.any() for name, state in tensor_states(optimizer, none).items() if name != "row_length")


def test_b41_closure_gradients_are_used() -> None:
    """Gradients made inside the closure are new tensors at new addresses."""
    (w,), (twin,) = parameters([(4, 6)]), parameters([(4, 6)])
    optimizer, reference = periodic([w]), periodic([twin])
    target = torch.randn(4, 6)

    def closure() -> torch.Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = (w - target).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        with torch.no_grad():
            loss = optimizer.step(closure=closure)
        assert loss.requires_grad
        reference.zero_grad()
        (twin - target).square().sum().backward()
        reference.step()
        assert_bitwise([w], [twin])


def test_b42_hundred_scheduled_steps_compile_once() -> None:
    params, optimizer = trained(0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    set_gradients(params, 0)
    optimizer.step()
    programs, before = compiled_programs(optimizer), driver.totals()
    for step in range(100):
        group = optimizer.param_groups[0]
        group["momentum"] = 0.85 + 0.001 * step
        group["weight_decay"] = 0.1 / (1 + step)
        group["row_lr_ratio"] = 1 - 0.001 * step
        set_gradients(params, step)
        optimizer.step()
        scheduler.step()
    assert compiled_programs(optimizer)[0] is programs[0]
    assert driver.totals() == before


def test_b42_tensor_rates() -> None:
    shared = torch.tensor(0.1)
    a, b = parameters([(4, 6), (4, 6)])
    groups = [{"params": [a], "lr": shared}, {"params": [b], "lr": shared}]
    optimizer = Muon(groups)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    twins = parameters([(4, 6), (4, 6)])
    reference = Muon(twins, lr=shared.item())
    for step in range(3):
        for params in ([a, b], twins):
            set_gradients(params, step)
        optimizer.step()
        reference.step()
        scheduler.step()
        reference.param_groups[0]["lr"] *= 0.5
        assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.1 * 0.5 ** (step + 1)] * 2)
    assert torch.equal(shared, torch.tensor(0.1))
    for p, q in zip((a, b), twins, strict=True):
        assert relative_error(p, q) < 1e-6


def test_b42_rates_that_make_no_sense() -> None:
    params = parameters(SHAPES)
    for lr in (-0.1, math.nan, torch.tensor([0.1, 0.2])):
        for optimizer_class in (Muon, PeriodicRowwiseMuon, AdamW):
            with pytest.raises(ValueError):
                optimizer_class(params, lr=lr)
    params, optimizer = trained(1)
    before = snapshot(optimizer)
    for bad in (-0.1, math.nan, math.inf, torch.tensor([0.1, 0.2])):
        optimizer.param_groups[0]["lr"] = bad
        with pytest.raises(ValueError, match="lr"):
            optimizer.step()
        assert_bitwise(snapshot(optimizer), before)


@pytest.mark.parametrize("optimizer_class", [Muon, periodic, AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_b42_zero_rate_moves_the_momentum_only(optimizer_class: Any, dtype: torch.dtype) -> None:
    params = parameters(SHAPES, dtype)
    optimizer = optimizer_class(params, lr=0.0, weight_decay=0.1)
    before = [p.detach().clone() for p in params]
    for step in range(3):
        set_gradients(params, step)
        optimizer.step()
    assert_bitwise(params, before)
    for p in params:
        assert all(state.any() for state in tensor_states(optimizer, p).values())


@pytest.mark.parametrize("optimizer_class", [Muon, periodic, AdamW])
def test_b43_gradients_are_only_read(optimizer_class: Any) -> None:
    params, twins = parameters(SHAPES), parameters(SHAPES)
    optimizer, reference = optimizer_class(params), optimizer_class(twins)
    set_gradients(params, 0)
    gradients = [p.grad for p in params]
    kept = [g.clone() for g in gradients if g is not None]
    versions = [g._version for g in gradients if g is not None]
    for _ in range(2):
        optimizer.step()
        assert all(p.grad is g for p, g in zip(params, gradients, strict=True))
        assert_bitwise([g for g in gradients if g is not None], kept)
        assert [g._version for g in gradients if g is not None] == versions
    for _ in range(2):
        for q, g in zip(twins, kept, strict=True):
            q.grad = g.clone()
        reference.step()
    assert_bitwise(params, twins)


def test_b43_gradients_accumulate_over_micro_batches() -> None:
    (w,), (twin,) = parameters([(4, 6)]), parameters([(4, 6)])
    optimizer, reference = periodic([w]), periodic([twin])
    for _ in range(3):
        optimizer.zero_grad()
        reference.zero_grad()
        for scale in (1.0, 2.0):
            (scale * w.square().sum()).backward()
        (3.0 * twin.square().sum()).backward()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(w, twin)


def test_b45_grad_scaler() -> None:
    params, optimizer = trained(0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    # The first step of all is skipped, and then saved.
    scaler.scale(params[0].sum() * math.inf).backward()
    before = snapshot(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert_bitwise(snapshot(optimizer), before)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["step"] == 0
    # Gradients that the user unscales first are not unscaled twice.
    twins, twin = trained(0)
    for p, q in zip(params, twins, strict=True):
        p.grad, q.grad = None, torch.ones_like(q)
        scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    twin.step()
    assert_bitwise(params, twins)


def test_b45_no_gradients_at_all() -> None:
    _, optimizer = trained(0)
    before = snapshot(optimizer)
    optimizer.step()
    assert_bitwise(snapshot(optimizer), before)
    assert optimizer.param_groups[0]["step"] == 1


def test_b60_kernels_do_not_grow_with_shapes() -> None:
    """Thirty shapes need the kernels of one: what is compiled depends on the work, not on its size."""
    few = AdamW(parameters([(16, 17)]), lr=0.1)
    few.compile()
    many = AdamW(parameters([(rows, 17 + rows) for rows in range(1, 31)]), lr=0.1)
    many.compile()
    (few_program,), (many_program,) = compiled_programs(few), compiled_programs(many)
    # One row is a class of its own; all other shapes share the kernels.
    assert set(few_program.kernel_names) < set(many_program.kernel_names)
    assert len(many_program.kernel_names) == 2
    before = driver.totals()
    params = [p for group in many.param_groups for p in group["params"]]
    for step in range(50):
        set_gradients(params, step)
        many.param_groups[0]["lr"] = 0.1 / (1 + step)
        many.step()
    assert driver.totals() == before
