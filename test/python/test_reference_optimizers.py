"""The reference optimizers by themselves: known values, and agreement with derivations that share no line with them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import kaon.language as kl
import numpy as np
import pytest
import reference_optimizers as reference
import torch

OUTSIDE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "optimizers.py"
SHAPES = [(4, 6), (7, 3), (5, 5), (1, 8), (8, 1)]
Array = np.ndarray[Any, Any]
Step = Callable[..., tuple[Array, Any]]


def matrices(shape: tuple[int, int], count: int, seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape) for _ in range(count)]


@pytest.mark.parametrize("shape", SHAPES)
def test_newton_schulz_is_an_odd_polynomial_of_the_singular_values(shape: tuple[int, int]) -> None:
    (u,) = matrices(shape, 1)
    left, values, right = np.linalg.svd(u, full_matrices=False)
    for table in (reference.KELLER_JORDAN, reference.YOU, reference.POLAR_EXPRESS, reference.DEEPSEEK_V4):
        x = values / np.sqrt((values**2).sum())
        for a, b, c in table:
            x = a * x + b * x**3 + c * x**5
        expected = (left * x) @ right
        assert np.allclose(reference.newton_schulz(u, table, epsilon=0.0), expected, rtol=0, atol=1e-12)


def test_the_tables_are_those_of_the_language() -> None:
    for name in ("KELLER_JORDAN", "YOU", "CANS", "CUBIC5", "DEEPSEEK_V4"):
        table = getattr(reference, name)
        assert getattr(kl, name).table(len(table)) == tuple(table), name
    assert kl.POLAR_EXPRESS.table(8) == tuple(reference.POLAR_EXPRESS)


@pytest.mark.parametrize("shape", SHAPES)
def test_row_steps_have_the_length_of_the_polar_factor(shape: tuple[int, int]) -> None:
    rows, cols = shape
    w, g = matrices(shape, 2)
    state = {"m": np.zeros(shape), "c": np.ones((1, 1))}
    new, _ = reference.periodic_rowwise_muon_step(w, g, state, 2, lr=1.0, scale="none")
    assert np.isclose(reference.frobenius_norm(w - new), np.sqrt(min(rows, cols)), rtol=1e-12)


def test_adamw_is_that_of_torch() -> None:
    w, *gradients = matrices((4, 6), 5)
    parameter = torch.nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=1e-2)
    state: reference.State = {"m": np.zeros_like(w), "v": np.zeros_like(w)}
    for t, g in enumerate(gradients, start=1):
        w, state = reference.adamw_step(w, g, state, t)
        parameter.grad = torch.from_numpy(g)
        optimizer.step()
        assert np.allclose(parameter.detach().numpy(), w, rtol=1e-13, atol=1e-14)


@pytest.fixture(scope="module")
def outside() -> ModuleType:
    """Another derivation of the same steps, kept beside some checkouts of the repository."""
    if not OUTSIDE.is_file():
        pytest.skip(f"no other derivation at {OUTSIDE}")
    spec = importlib.util.spec_from_file_location("outside_reference_optimizers", OUTSIDE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", [*SHAPES, (1, 1)])
def test_another_derivation_agrees(outside: ModuleType, shape: tuple[int, int]) -> None:
    scales = {"none": "none", "original": "kj", "match_rms_adamw": "moonlight", "spectral": "spectral"}
    pairs: list[tuple[Step, Step]] = [
        (
            partial(reference.muon_step, weight_decay=0.1, form=form, nesterov=nesterov, scale=scale),
            partial(outside.muon_step, wd=0.1, kind=kind, nesterov=nesterov, mode=mode),
        )
        for form, kind in (("lerp", "lerp"), ("heavy_ball", "heavy"))
        for nesterov in (False, True)
        for scale, mode in scales.items()
    ]
    for normalize, norm_scale in (("add", 1.01), ("max", 1.0), ("none", 1.0)):
        ours = partial(reference.newton_schulz, normalize=normalize, norm_scale=norm_scale)
        theirs = partial(outside.ns, norm=normalize, norm_mul=norm_scale)
        pairs.append((partial(reference.muon_step, orthogonalize=ours), partial(outside.muon_step, orth=theirs)))
    pairs.append((partial(reference.muon_step, decay_mode="cautious"), partial(outside.muon_step, cautious=True)))
    for row_scale in ("frobenius", "unit", "calibrated"):
        for period, phase in ((1, 0), (3, 1), (4, 2)):
            pairs.append(
                (
                    partial(
                        reference.periodic_rowwise_muon_step,
                        period=period, phase=phase, row_scale=row_scale, row_lr_ratio=0.7,
                    ),
                    partial(outside.prm_step, K=period, phase=phase, target=row_scale, row_lr_ratio=0.7),
                )
            )  # fmt: skip
    pairs.append((reference.adamw_step, outside.adamw_step))
    for ours_step, their_step in pairs:
        w, *gradients = matrices(shape, 9)
        other, theirs_state = w, {"M": np.zeros(shape), "m": np.zeros(shape), "v": np.zeros(shape), "c": 1.0}
        state: reference.State = {"m": np.zeros(shape), "v": np.zeros(shape), "c": np.ones((1, 1))}
        for t, g in enumerate(gradients, start=1):
            w, state = ours_step(w, g, state, t)
            other, theirs_state = their_step(other, g, theirs_state, t)
            assert np.allclose(w, other, rtol=1e-12, atol=1e-12), ours_step
