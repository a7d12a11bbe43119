"""Every option of Muon, Periodic Row-wise Muon and AdamW against a float64 oracle written from the formulas."""

from __future__ import annotations

from typing import Any

import kaon.language as kl
import numpy as np
import pytest
import reference_optimizers as reference
import torch
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon
from kaon.optim.bindings import expected_gain
from optim_tools import (
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

SHAPES = [(6, 10), (10, 6), (8, 8), (1, 5), (5, 1)]

MUON_OPTIONS: list[dict[str, Any]] = [
    {},
    {"nesterov": False},
    {"momentum_form": "heavy_ball"},
    {"momentum_form": "heavy_ball", "nesterov": False, "momentum": 0.8},
    {"adjust_lr_fn": "match_rms_adamw"},
    {"adjust_lr_fn": "spectral"},
    {"adjust_lr_fn": "sqrt_max"},
    {"adjust_lr_fn": "none"},
    {"decay_mode": "after"},
    {"decay_mode": "cautious"},
    {"eps": 0.5},
    {"eps": 0.5, "ns_normalize": "add"},
    {"momentum": 0.0, "weight_decay": 0.0},
]

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}


def check_against_oracle(optimizer_class: Any, options: dict[str, Any], dtype: torch.dtype, steps: int) -> None:
    params = parameters(SHAPES, dtype)
    oracles = [MuonOracle(p.detach().double(), lr=0.1, **options) for p in params]
    options = {key: value for key, value in options.items() if key not in ("coefficients", "row_gain")}
    optimizer = optimizer_class(params, lr=0.1, **options)
    for step in range(steps):
        set_gradients(params, 100 + step)
        gradients = [p.grad.double().numpy().copy() for p in params]
        optimizer.step()
        for parameter, oracle, gradient in zip(params, oracles, gradients, strict=True):
            expected = oracle.step(gradient)
            assert relative_error(parameter, expected) < TOLERANCE[dtype]
            assert relative_error(optimizer.state[parameter]["momentum_buffer"], oracle.state["m"]) < TOLERANCE[dtype]


@pytest.mark.parametrize("options", MUON_OPTIONS, ids=str)
def test_muon_float64(options: dict[str, Any]) -> None:
    check_against_oracle(Muon, options, torch.float64, 3)


@pytest.mark.parametrize("options", MUON_OPTIONS[:5], ids=str)
def test_muon_float32(options: dict[str, Any]) -> None:
    check_against_oracle(Muon, options, torch.float32, 3)


@pytest.mark.parametrize("row_scale", ["frobenius", "unit", "calibrated"])
@pytest.mark.parametrize("period", [1, 2, 3])
def test_periodic_rowwise_muon_float64(row_scale: str, period: int) -> None:
    options = {"row_scale": row_scale, "period": period, "adjust_lr_fn": "match_rms_adamw"}
    check_against_oracle(PeriodicRowwiseMuon, options, torch.float64, 5)


@pytest.mark.parametrize("options", [{"row_lr_ratio": 0.3}, {"phase": 1}, {"nesterov": False, "phase": 2}], ids=str)
def test_periodic_rowwise_muon_options(options: dict[str, Any]) -> None:
    check_against_oracle(PeriodicRowwiseMuon, {"period": 3, **options}, torch.float64, 5)


def test_periodic_rowwise_muon_float32() -> None:
    check_against_oracle(PeriodicRowwiseMuon, {"period": 3, "row_scale": "calibrated"}, torch.float32, 5)


def test_ns_matched_row_steps_have_the_refresh_length_of_a_gaussian() -> None:
    # Of small matrices only rows are exact; all are finite.
    for shape, bound in [
        ((64, 96), 0.01),
        ((96, 64), 0.01),
        ((64, 64), 0.01),
        ((1, 9), 1e-9),
        ((1, 1), 1e-9),
        ((2, 2), 0.2),
    ]:
        gain = expected_gain(tuple(reference.KELLER_JORDAN), *shape)
        measured = np.mean(
            [
                frobenius(orthogonalize(np.random.default_rng(seed).standard_normal(shape))) / np.sqrt(min(shape))
                for seed in range(8)
            ]
        )
        assert abs(gain - measured) < bound
    (parameter,) = parameters([(6, 10)], torch.float64)
    options = {"period": 2, "row_scale": "ns_matched", "row_gain": expected_gain(tuple(reference.KELLER_JORDAN), 6, 10)}
    oracle = MuonOracle(parameter.detach(), lr=0.1, **options)
    optimizer = PeriodicRowwiseMuon([parameter], lr=0.1, period=2, row_scale="ns_matched")
    for step in range(3):
        set_gradients([parameter], step)
        assert parameter.grad is not None
        expected = oracle.step(parameter.grad.numpy())
        optimizer.step()
        assert relative_error(parameter, expected) < 1e-12


@pytest.mark.parametrize(
    ("coefficients", "steps", "expected"),
    [
        ("quintic", None, list(kl.YOU.rows)),
        ("cans", 7, [*kl.CANS.rows, kl.CANS.rows[-1], kl.CANS.rows[-1]]),
        (kl.POLAR_EXPRESS.safety(1.01), 5, list(kl.POLAR_EXPRESS.safety(1.01).rows[:5])),
        ((1.5, -0.5, 0.0), 3, [(1.5, -0.5, 0.0)] * 3),
        (((3.0, -3.0, 1.0), (2.0, -1.5, 0.5)), None, [(3.0, -3.0, 1.0), (2.0, -1.5, 0.5)]),
    ],
    ids=["name", "name and more steps", "table", "triple", "triples"],
)
def test_coefficient_tables(coefficients: Any, steps: int | None, expected: list[Any]) -> None:
    (parameter,) = parameters([(6, 10)], torch.float64)
    oracle = MuonOracle(parameter.detach(), lr=0.1, coefficients=expected)
    optimizer = Muon([parameter], lr=0.1, ns_coefficients=coefficients, ns_steps=steps)
    set_gradients([parameter], 3)
    assert parameter.grad is not None
    expected_parameter = oracle.step(parameter.grad.numpy())
    optimizer.step()
    assert relative_error(parameter, expected_parameter) < 1e-12
    optimizer.state_dict()


def test_norm_scale_gives_slack() -> None:
    (parameter,) = parameters([(6, 10)], torch.float64)
    before = parameter.detach().numpy().copy()
    optimizer = Muon([parameter], lr=1.0, weight_decay=0.0, momentum=0.0, ns_norm_scale=1.25)
    set_gradients([parameter], 3)
    assert parameter.grad is not None
    gradient = parameter.grad.numpy()
    optimizer.step()
    expected = before - orthogonalize(gradient, 1.25 * frobenius(gradient))
    assert relative_error(parameter, expected) < 1e-12


def test_maximize_is_descent_on_the_negative() -> None:
    for optimizer_class in (Muon, PeriodicRowwiseMuon, AdamW):
        up, down = parameters([(6, 10), (4,)]), parameters([(6, 10), (4,)])
        ascending, descending = optimizer_class(up, lr=0.1, maximize=True), optimizer_class(down, lr=0.1)
        for step in range(2):
            set_gradients(up, step)
            for a, b in zip(up, down, strict=True):
                assert a.grad is not None
                b.grad = -a.grad
            ascending.step()
            descending.step()
        assert_bitwise([p for p in up], [p for p in down])


def test_k1_is_bit_identical_to_muon() -> None:
    """With a refresh on every step there is nothing left of the row step, whatever its options."""
    for row_options in ({}, {"row_scale": "unit"}, {"row_scale": "calibrated", "row_lr_ratio": 0.2}):
        a, b = parameters([(6, 10), (10, 6), (48, 33), (7,)]), parameters([(6, 10), (10, 6), (48, 33), (7,)])
        muon = Muon(a, lr=0.02)
        periodic = PeriodicRowwiseMuon(b, lr=0.02, period=1, **row_options)
        for step in range(4):
            set_gradients(a, step)
            set_gradients(b, step)
            muon.step()
            periodic.step()
        assert_bitwise(a, b)
        for p, q in zip(a, b, strict=True):
            for name in tensor_states(muon, p):
                assert_bitwise([muon.state[p][name]], [periodic.state[q][name]])


def test_row_steps_have_the_length_that_the_paper_gives_them() -> None:
    """The row update's Frobenius norm is that of the polar factor; under match_rms_adamw each row has RMS 0.2."""
    for shape in [(6, 10), (10, 6)]:
        (parameter,) = parameters([shape], torch.float64)
        optimizer = PeriodicRowwiseMuon(
            [parameter], lr=1.0, weight_decay=0.0, period=2, phase=1, adjust_lr_fn="match_rms_adamw"
        )
        set_gradients([parameter], 5)
        before = parameter.detach().clone()
        optimizer.step()
        update = before - parameter.detach()
        torch.testing.assert_close(update.square().mean(1).sqrt(), torch.full((shape[0],), 0.2, dtype=torch.float64))
        (parameter,) = parameters([shape], torch.float64)
        optimizer = PeriodicRowwiseMuon([parameter], lr=1.0, weight_decay=0.0, phase=1, adjust_lr_fn="none")
        set_gradients([parameter], 5)
        before = parameter.detach().clone()
        optimizer.step()
        assert abs(frobenius((before - parameter.detach()).numpy()) - np.sqrt(min(shape))) < 1e-12


def test_calibration_is_the_least_squares_length() -> None:
    (parameter,) = parameters([(12, 20)], torch.float64)
    optimizer = PeriodicRowwiseMuon([parameter], lr=0.1, row_scale="calibrated", momentum=0.0)
    set_gradients([parameter], 5)
    assert parameter.grad is not None
    direction, q = orthogonalize(parameter.grad.numpy()), reference.row_normalize(parameter.grad.numpy(), epsilon=0.0)
    optimizer.step()
    c = optimizer.state[parameter]["row_length"].item()
    best = frobenius(c * q - direction)
    assert all(best <= frobenius(c * factor * q - direction) for factor in (0.9, 0.99, 1.01, 1.1))
    assert 0.0 < c < 1.0
    set_gradients([parameter], 6)
    optimizer.step()
    assert optimizer.state[parameter]["row_length"].item() == c, "row steps keep the length of the last refresh"


def test_calibration_of_a_zero_gradient_is_one() -> None:
    (parameter,) = parameters([(6, 10)])
    optimizer = PeriodicRowwiseMuon([parameter], lr=0.1, row_scale="calibrated")
    parameter.grad = torch.zeros(6, 10)
    optimizer.step()
    assert optimizer.state[parameter]["row_length"].item() == 1.0


def test_staggered_refreshes_fall_on_different_steps() -> None:
    params = parameters([(6, 10)] * 4, torch.float64)
    optimizer = PeriodicRowwiseMuon(params, lr=0.1, period=3, phase="staggered")
    oracles = [MuonOracle(p.detach(), lr=0.1, period=3, phase=index % 3) for index, p in enumerate(params)]
    for step in range(5):
        set_gradients(params, step)
        expected = [oracle.step(p.grad.numpy()) for oracle, p in zip(oracles, params, strict=True)]  # type: ignore[union-attr]
        optimizer.step()
        for parameter, wanted in zip(params, expected, strict=True):
            assert relative_error(parameter, wanted) < 1e-12


@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True}, {"betas": (0.0, 0.5), "eps": 1e-3, "weight_decay": 0.0}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adamw_equals_torch(options: dict[str, Any], dtype: torch.dtype) -> None:
    shapes = [(6, 10), (7,), (), (2, 3, 4), (1, 9000)]
    ours, theirs = parameters(shapes, dtype), parameters(shapes, dtype)
    kaon_adamw, torch_adamw = AdamW(ours, lr=0.01, **options), torch.optim.AdamW(theirs, lr=0.01, **options)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for step in range(5):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        kaon_adamw.step()
        torch_adamw.step()
    for p, q in zip(ours, theirs, strict=True):
        assert relative_error(p, q) < tolerance
        for name, state in kaon_adamw.state[p].items():
            assert relative_error(state, torch_adamw.state[q][name]) < tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_rounded_once(dtype: torch.dtype) -> None:
    """States are float32 and arithmetic too; the only rounding to half precision is that of the stored parameter."""
    half, full = parameters([(6, 10)], dtype), parameters([(6, 10)])
    full[0].data.copy_(half[0].data)
    a, b = Muon(half, lr=0.1), Muon(full, lr=0.1)
    for step in range(3):
        full[0].data.copy_(half[0].data)
        set_gradients(half, step)
        assert half[0].grad is not None
        full[0].grad = half[0].grad.float()
        a.step()
        b.step()
        assert a.state[half[0]]["momentum_buffer"].dtype == torch.float32
        assert_bitwise([a.state[half[0]]["momentum_buffer"]], [b.state[full[0]]["momentum_buffer"]])
        assert_bitwise(half, [full[0].detach().to(dtype)])


def test_results_do_not_depend_on_threads() -> None:
    def run(threads: int) -> list[torch.Tensor]:
        params = parameters([(48, 33), (33, 48), (48, 33), (100,)])
        optimizer = PeriodicRowwiseMuon(params, lr=0.02, row_scale="calibrated", threads=threads)
        for step in range(4):
            set_gradients(params, step)
            optimizer.step()
        return snapshot(optimizer)

    assert_bitwise(run(1), run(3))


def test_reference_interpreter_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[torch.Tensor]:
        params = parameters([(6, 10), (10, 6), (7,)], torch.float64)
        optimizer = PeriodicRowwiseMuon(params, lr=0.02, row_scale="calibrated")
        for step in range(4):
            set_gradients(params, step)
            optimizer.step()
        return snapshot(optimizer)

    compiled = run()
    monkeypatch.setenv("KAON_INTERPRET", "1")
    for a, b in zip(run(), compiled, strict=True):
        assert relative_error(a, b) < 1e-12
