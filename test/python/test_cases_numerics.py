"""Faults reported against other optimizers: numbers that overflow, vanish, or come from the wrong matrix.

Each test is named after its entry in the project's list of cases; the literal numbers were measured there.
"""

from __future__ import annotations

from typing import Any

import kaon
import kaon.language as kl
import numpy as np
import pytest
import torch
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon, Rule, matrix_rules
from optim_tools import (
    NS5_OF_ONE,
    MuonOracle,
    assert_bitwise,
    frobenius,
    orthogonalize,
    parameters,
    relative_error,
    set_gradients,
    snapshot,
    tensor_states,
)
from torch import Tensor, nn


def orthogonalized(gradient: Tensor, optimizer_class: Any = Muon, **options: Any) -> Tensor:
    """What one step without momentum, decay and shape scale subtracts from a zero parameter, per unit of `lr`."""
    parameter = nn.Parameter(torch.zeros_like(gradient))
    options = {"lr": 1.0, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "adjust_lr_fn": "none", **options}
    optimizer = optimizer_class([parameter], rules=matrix_rules(), **options)
    parameter.grad = gradient
    optimizer.step()
    return -parameter.detach()


def gaussian(rows: int, cols: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# -- the reference numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, 0.701), (2, 1.11362), (3, 0.720706), (4, 1.089974), (5, NS5_OF_ONE)]
)
def test_reference_single_singular_value(steps: int, expected: float) -> None:
    for dtype in (torch.float64, torch.float32):
        assert orthogonalized(torch.ones(1, 1, dtype=dtype), ns_steps=steps).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (1, 1), (5, 9)], ids=str)
def test_reference_rank_one(shape: tuple[int, int]) -> None:
    """Any matrix of rank 1 keeps its direction and gets the norm 0.6964."""
    x = gaussian(shape[0], 1) @ gaussian(1, shape[1], seed=1)
    o = orthogonalized(x)
    assert frobenius(o) == pytest.approx(NS5_OF_ONE, rel=1e-4)
    cosine = (o.double() * x.double()).sum() / (frobenius(o) * frobenius(x))
    assert cosine.item() == pytest.approx(1.0, abs=1e-6)


def test_reference_transposition_is_bitwise() -> None:
    x = gaussian(48, 16)
    assert_bitwise([orthogonalized(x.t().contiguous())], [orthogonalized(x).t().contiguous()])


def test_reference_float64_against_float32() -> None:
    x = gaussian(16, 16)
    assert (orthogonalized(x.double()) - orthogonalized(x).double()).abs().max() < 6e-6


@pytest.mark.parametrize(
    ("condition", "smallest", "largest"), [(1e2, 0.68, 1.15), (1e4, 0.032, 1.20), (1e6, 3.7e-4, 1.19)]
)
def test_reference_conditioned(condition: float, smallest: float, largest: float) -> None:
    """Singular values end where five steps bring them; tiny ones are not lifted to 1, which is no fault."""
    u, _, v = np.linalg.svd(gaussian(32, 64).double().numpy(), full_matrices=False)
    spectrum = np.logspace(0, -np.log10(condition), 32)
    x = torch.from_numpy((u * spectrum) @ v).float()
    found = np.linalg.svd(orthogonalized(x).double().numpy(), compute_uv=False)
    expected = np.linalg.svd(orthogonalize((u * spectrum) @ v), compute_uv=False)
    np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=2e-2, atol=1e-6)
    assert found.min() > 0.9 * smallest
    assert found.max() < 1.01 * largest


# -- cases ------------------------------------------------------------------------------------------------------------

EVERY_CLASS = [
    (Muon, {}),
    (Muon, {"ns_normalize": "add"}),
    (PeriodicRowwiseMuon, {"row_scale": "calibrated"}),
    (PeriodicRowwiseMuon, {"row_scale": "unit", "phase": 1}),
    (AdamW, {}),
]


@pytest.mark.parametrize(("optimizer_class", "options"), EVERY_CLASS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_b01_zero_matrix(optimizer_class: Any, options: dict[str, Any], weight_decay: float) -> None:
    parameter = nn.Parameter(gaussian(4, 6))
    before = parameter.detach().clone()
    optimizer = optimizer_class([parameter], lr=0.02, weight_decay=weight_decay, **options)
    for _ in range(4):
        parameter.grad = torch.zeros(4, 6)
        optimizer.step()
    if weight_decay == 0.0:
        assert_bitwise([parameter], [before])
    else:
        torch.testing.assert_close(parameter.detach(), before * (1 - 0.02 * weight_decay) ** 4)
    for name, state in tensor_states(optimizer, parameter).items():
        assert torch.equal(state, torch.ones(1, 1) if name == "row_length" else torch.zeros(4, 6))


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-8, 1e-10, 1e-15, 1e-20, 1e-30, 1e-38, 1e-42])
def test_b02_small_gradients(scale: float) -> None:
    expected = orthogonalized(gaussian(16, 32))
    assert frobenius(expected) == pytest.approx(frobenius(orthogonalize(gaussian(16, 32).double().numpy())), rel=1e-5)
    # At 1e-42 the gradient itself has few bits left.
    tolerance = 1e-3 if scale > 1e-40 else 2e-2
    small = gaussian(16, 32) * scale
    assert relative_error(orthogonalized(small), expected) < tolerance
    rows = orthogonalized(gaussian(16, 32), PeriodicRowwiseMuon, phase=1)
    assert relative_error(orthogonalized(small, PeriodicRowwiseMuon, phase=1), rows) < tolerance


def test_b02_rows_of_every_scale_side_by_side() -> None:
    """A power of two changes no bit of a row's direction, and so of its update, as long as nothing is subnormal."""
    x = gaussian(10, 40)
    scales = torch.tensor([2.0**exponent for exponent in (-100, -70, -60, -59, -20, 0, 40, 60, 61, 120)])
    rows = orthogonalized(x, PeriodicRowwiseMuon, phase=1)
    assert_bitwise([orthogonalized(x * scales[:, None], PeriodicRowwiseMuon, phase=1)], [rows])


def test_b02_rows_of_subnormal_numbers() -> None:
    """The inverse norm of such a row is more than float32 can hold; its direction is as good as its numbers."""
    counts = torch.randint(-1000, 1000, (3, 64), generator=torch.Generator().manual_seed(1)).float()
    counts[1:] = 0
    counts[1, 7] = 20000
    rows = orthogonalized(counts * 2.0**-149, PeriodicRowwiseMuon, phase=1)
    expected = orthogonalized(counts, PeriodicRowwiseMuon, phase=1)
    assert torch.isfinite(rows).all()
    assert relative_error(rows[1:], expected[1:]) < 1e-6
    assert relative_error(rows[:1], expected[:1]) < 2e-2


def test_b02_onset_of_an_eps_that_was_asked_for() -> None:
    """torch's eps=1e-7 floors the norm: below it the update shrinks. The default eps=0 has no such floor."""
    x = gaussian(16, 32)
    expected = frobenius(orthogonalized(x))
    assert frobenius(orthogonalized(x * 1e-8, eps=1e-7)) == pytest.approx(expected, rel=1e-3)
    assert frobenius(orthogonalized(x * 1e-15, eps=1e-7)) < 1e-3


@pytest.mark.parametrize("scale", [1e18, 1e20, 1e30, 1e37])
def test_b04_norm_overflow(scale: float) -> None:
    expected = orthogonalized(gaussian(16, 32))
    assert relative_error(orthogonalized(gaussian(16, 32) * scale), expected) < 1e-4
    rows = orthogonalized(gaussian(16, 32), PeriodicRowwiseMuon, phase=1)
    assert relative_error(orthogonalized(gaussian(16, 32) * scale, PeriodicRowwiseMuon, phase=1), rows) < 1e-4


def test_b04_one_huge_entry_and_half_precision() -> None:
    huge = torch.zeros(16, 32)
    huge[3, 5] = 3e38
    o = orthogonalized(huge)
    assert o[3, 5].item() == pytest.approx(NS5_OF_ONE, rel=1e-4)
    assert o.abs().sum().item() == pytest.approx(NS5_OF_ONE, rel=1e-4)
    half = (gaussian(16, 32) * 1e4).half()
    expected = orthogonalize(half.double().numpy())
    assert relative_error(orthogonalized(half), expected) < 1e-3
    for scale in (1e200, 1e-200):
        x = gaussian(16, 32, torch.float64)
        assert relative_error(orthogonalized(x * scale), orthogonalized(x)) < 1e-12


def trained(nonfinite: str = "skip") -> tuple[list[nn.Parameter], Any]:
    params = parameters([(4, 6), (4, 6), (6,)])
    optimizer = PeriodicRowwiseMuon(params, lr=0.1, row_scale="calibrated", nonfinite=nonfinite)
    set_gradients(params, 0)
    optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.filterwarnings("ignore:skipped a step")
def test_b05_nonfinite_gradient_skips_the_step(bad: float, where: int) -> None:
    params, optimizer = trained()
    set_gradients(params, 1)
    gradients = [p.grad.clone() for p in params if p.grad is not None]
    gradient = params[where].grad
    assert gradient is not None
    gradient.view(-1)[5] = bad
    before = snapshot(optimizer)
    optimizer.step()
    assert_bitwise(snapshot(optimizer), before)
    assert (optimizer.nonfinite_steps, optimizer.param_groups[0]["step"]) == (1, 1)
    for p, kept in zip(params, gradients, strict=True):
        p.grad = kept
    optimizer.step()
    twins, twin = trained()
    set_gradients(twins, 1)
    twin.step()
    assert_bitwise(snapshot(optimizer), snapshot(twin))


@pytest.mark.filterwarnings("ignore:skipped a step")
def test_b05_nonfinite_gradient_in_a_later_group_stops_all() -> None:
    """Groups that joined later run in a program of their own; neither may start."""
    params, optimizer = trained()
    (late,) = parameters([(3, 5)], seed=4)
    optimizer.add_param_group({"params": [late]})
    set_gradients([*params, late], 1)
    assert late.grad is not None
    late.grad[0, 0] = float("nan")
    before = snapshot(optimizer)
    optimizer.step()
    assert_bitwise(snapshot(optimizer), before)
    assert [group["step"] for group in optimizer.param_groups] == [1, 0]
    assert optimizer.nonfinite_steps == 1


def test_b05_raise_names_the_parameters() -> None:
    params, optimizer = trained("raise")
    set_gradients(params, 1)
    assert params[1].grad is not None
    params[1].grad[0, 0] = float("inf")
    before = snapshot(optimizer)
    with pytest.raises(
        FloatingPointError, match=r"gradients are not finite: parameter 1 of shape \(4, 6\); nothing was"
    ):
        optimizer.step()
    assert_bitwise(snapshot(optimizer), before)


def test_b05_propagate_spoils_only_its_own_parameter() -> None:
    params, optimizer = trained("propagate")
    twins, twin = trained("propagate")
    for p in (params, twins):
        set_gradients(p, 1)
    assert params[0].grad is not None
    params[0].grad[0, 0] = float("nan")
    optimizer.step()
    twin.step()
    assert optimizer.state[params[0]]["momentum_buffer"].isnan().any()
    assert_bitwise(params[1:], twins[1:])
    assert optimizer.nonfinite_steps == 0


def test_b05_grad_scaler_skips() -> None:
    params, optimizer = trained()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = snapshot(optimizer)
    set_gradients(params, 1)
    scaler.scale(torch.ones(()))
    assert params[0].grad is not None
    params[0].grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert_bitwise(snapshot(optimizer), before)
    assert optimizer.param_groups[0]["step"] == 1
    assert scaler.get_scale() == 2.0


@pytest.mark.filterwarnings("ignore:skipped a step")
def test_b05_count_survives_checkpoints() -> None:
    params, optimizer = trained()
    params[0].grad = torch.full((4, 6), float("nan"))
    optimizer.step()
    _, other = trained()
    other.load_state_dict(optimizer.state_dict())
    assert other.nonfinite_steps == 1


def test_b07_zero_row() -> None:
    for dtype in (torch.float32, torch.float64):
        x = gaussian(4, 6, dtype)
        x[2] = 0
        o = orthogonalized(x, PeriodicRowwiseMuon, phase=1)
        norms = o.norm(dim=1)
        assert torch.equal(o[2], torch.zeros(6, dtype=dtype))
        torch.testing.assert_close(norms[[0, 1, 3]], torch.ones(3, dtype=dtype))
        for eps in (1e-8, 1e-12):
            assert torch.isfinite(orthogonalized(x, PeriodicRowwiseMuon, phase=1, row_eps=eps)).all()
        assert torch.isfinite(orthogonalized(x)).all()


@pytest.mark.parametrize(
    ("shape", "factor"), [((128, 1, 3, 3), 3.7712), ((64, 32, 3, 3), 1.0), ((512, 128), 2.0), ((128, 512), 1.0)]
)
def test_b09_scale_is_read_from_the_flattened_matrix(shape: tuple[int, ...], factor: float) -> None:
    """With a gradient of rank 1 the update's norm is 0.6964 times the factor."""
    rows, cols = shape[0], int(np.prod(shape[1:]))
    gradient = (gaussian(rows, 1) @ gaussian(1, cols, seed=1)).view(shape)
    for adjust_lr_fn, wanted in (("original", factor), ("match_rms_adamw", 0.2 * max(rows, cols) ** 0.5)):
        parameter = nn.Parameter(torch.zeros(shape))
        rules = matrix_rules("flatten")
        optimizer = Muon([parameter], lr=1.0, momentum=0.0, weight_decay=0.0, adjust_lr_fn=adjust_lr_fn, rules=rules)
        parameter.grad = gradient
        optimizer.step()
        assert frobenius(parameter.detach()) / NS5_OF_ONE == pytest.approx(wanted, rel=1e-3)


def test_b11_newton_schulz_runs_for_every_matrix_on_refresh_steps() -> None:
    """Each matrix really is orthogonalized on the steps that say so, and on no others."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8))
    optimizer = PeriodicRowwiseMuon(model, lr=1.0, weight_decay=0.0, momentum=0.0, adjust_lr_fn="none")
    for step in range(6):
        for index, p in enumerate(model.parameters()):
            p.grad = gaussian(*p.shape, seed=10 * step + index) if p.ndim == 2 else torch.ones_like(p)
        before = [p.detach().clone() for p in model.parameters()]
        with torch.autocast("cpu"):
            optimizer.step()
        for p, old in zip(model.parameters(), before, strict=True):
            if p.ndim != 2:
                continue
            singular = np.linalg.svd((old - p.detach()).double().numpy(), compute_uv=False)
            assert p.grad is not None
            expected = orthogonalize(p.grad.double().numpy())
            refreshed = relative_error(old - p.detach(), expected) < 1e-3
            assert refreshed == (step % 3 == 0)
            assert (singular.min() > 0.5) or not refreshed
    rows = {row.name: row for row in optimizer.plan(show=False)}
    assert [name for name, row in rows.items() if row.update == "periodic_rowwise_muon"] == ["0.weight", "1.weight"]


@pytest.mark.parametrize("view", ["split(3)", "split(4, 4, 4)", "interleaved(3)"])
@pytest.mark.parametrize("row_scale", ["frobenius", "calibrated"])
def test_b12_fused_matrices_are_orthogonalized_apart(view: str, row_scale: str) -> None:
    weight = nn.Parameter(gaussian(12, 16, torch.float64))
    part = (lambda t, i: t[i::3]) if view.startswith("interleaved") else (lambda t, i: t[4 * i : 4 * i + 4])
    options: dict[str, Any] = {"lr": 0.1, "period": 2, "row_scale": row_scale}
    oracles = [MuonOracle(part(weight.detach(), i), **options) for i in range(3)]
    whole = MuonOracle(weight.detach(), **options)
    optimizer = PeriodicRowwiseMuon(
        [("qkv.weight", weight)], rules=[Rule("matrix", name="qkv.*", view=view)], **options
    )
    start = weight.detach().clone()
    for step in range(4):
        set_gradients([weight], step)
        assert weight.grad is not None
        for index, oracle in enumerate(oracles):
            oracle.step(part(weight.grad, index).numpy())
        whole.step(weight.grad.numpy())
        optimizer.step()
        for index, oracle in enumerate(oracles):
            assert relative_error(part(weight.detach(), index), oracle.w) < 1e-12
        if step == 0:
            joint = frobenius(whole.w - start.numpy())
            assert frobenius(whole.w - weight.detach().numpy()) / joint > 0.2
    if row_scale == "calibrated":
        lengths = optimizer.state[weight]["row_length"]
        assert lengths.flatten().tolist() == pytest.approx([oracle.state["c"].item() for oracle in oracles], rel=1e-12)


def test_b12_a_split_that_does_not_divide_is_refused() -> None:
    (weight,) = parameters([(13, 4)])
    for view, message in (("split(3)", "rows divisible by 3, but got 13"), ("split(4, 4, 4)", "12 rows, but got 13")):
        with pytest.raises(ValueError, match=rf"'qkv'\) of shape \(13, 4\): .*{message}"):
            Muon([("qkv", weight)], rules=[Rule("matrix", view=view)])


def test_b12_experts_are_a_batch() -> None:
    weight = nn.Parameter(torch.stack([gaussian(4, 6, torch.float64, seed) for seed in range(3)]))
    oracles = [MuonOracle(weight.detach()[i], lr=0.1) for i in range(3)]
    optimizer = Muon([weight], lr=0.1, rules=[Rule("matrix", view="batch")])
    set_gradients([weight], 0)
    assert weight.grad is not None
    for index, oracle in enumerate(oracles):
        oracle.step(weight.grad[index].numpy())
    optimizer.step()
    for index, oracle in enumerate(oracles):
        assert relative_error(weight.detach()[index], oracle.w) < 1e-12


# -- scalings of products ---------------------------------------------------------------------------------------------


@kaon.update
def scaled_twice(
    w: kl.param, g: kl.grad, lr: kl.scalar, first: kl.scalar = 1.0, second: kl.scalar = 1.0
) -> tuple[Any, ...]:
    y = ((g @ g.T) * first) * second
    return w - lr * (y @ w)


@kaon.update
def scaled_by_constants(
    w: kl.param, g: kl.grad, lr: kl.scalar, *, first: kl.constexpr = 1.0, second: kl.constexpr = 1.0
) -> tuple[Any, ...]:
    y = ((g @ g.T) * first) * second
    return w - lr * (y @ w)


@pytest.mark.parametrize("update", [scaled_twice, scaled_by_constants], ids=lambda update: update.name)
@pytest.mark.parametrize(
    ("size", "first", "second"),
    [(0.0, 1e30, 1e30), (1e-20, 1e20, 1e20), (1e15, 1e-30, 1e-30), (1.0, 1e-30, 1e30), (1.0, 3.0, 0.5)],
)
def test_scalings_of_a_product_are_as_safe_as_one_by_one(update: Any, size: float, first: float, second: float) -> None:
    """Two factors that float32 holds may make one that it does not: infinite, and times zero not a number, or zero."""
    parameter = nn.Parameter(torch.ones(4, 6))
    parameter.grad = torch.full((4, 6), size)
    y = parameter.grad @ parameter.grad.T
    expected = torch.ones(4, 6) - (y * first * second) @ torch.ones(4, 6)
    kaon.optimizer(update)([parameter], lr=1.0, first=first, second=second, rules=matrix_rules()).step()
    assert expected.isfinite().all()
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-4, atol=0.0)
