"""What the tests of `kaon.optim` share: a float64 oracle written from the formulas, and small helpers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

KELLER_JORDAN = [(3.4445, -4.7750, 2.0315)] * 5

# Newton-Schulz with these coefficients takes a single singular value 1 to this one; so does every matrix of rank 1.
NS5_OF_ONE = 0.696436


def frobenius(x: Any) -> float:
    """The Frobenius norm in float64, safe for any scale."""
    x = np.asarray(x, dtype=np.float64)
    largest = np.abs(x).max(initial=0.0)
    return float(largest * np.sqrt(((x / largest) ** 2).sum())) if largest > 0 else 0.0


def newton_schulz(
    u: np.ndarray,
    coefficients: Sequence[tuple[float, float, float]] = KELLER_JORDAN,
    eps: float = 0.0,
    form: str = "max",
) -> np.ndarray:
    norm = max(frobenius(u), eps) if form == "max" else frobenius(u) + eps
    x = u / norm if norm > 0 else u
    if x.shape[0] > x.shape[1]:
        x = x.T
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if u.shape[0] > u.shape[1] else x


def row_normalize(u: np.ndarray) -> np.ndarray:
    largest = np.abs(u).max(axis=1, keepdims=True)
    scaled = np.divide(u, largest, out=np.zeros_like(u), where=largest > 0)
    norms = np.sqrt((scaled**2).sum(axis=1, keepdims=True))
    return np.divide(scaled, norms, out=np.zeros_like(u), where=norms > 0)


def shape_scale(mode: str | None, rows: int, cols: int) -> float:
    return {
        None: math.sqrt(max(1.0, rows / cols)),
        "original": math.sqrt(max(1.0, rows / cols)),
        "match_rms_adamw": 0.2 * math.sqrt(max(rows, cols)),
        "spectral": math.sqrt(rows / cols),
        "sqrt_max": math.sqrt(max(rows, cols)),
        "none": 1.0,
    }[mode]


class MuonOracle:
    """Muon and Periodic Row-wise Muon (`period` > 1) on one matrix, in float64."""

    def __init__(self, w: Any, **options: Any) -> None:
        self.w = np.asarray(w, dtype=np.float64).copy()
        self.m = np.zeros_like(self.w)
        self.c = 1.0
        self.t = 0
        self.options = {
            "lr": 1e-3,
            "weight_decay": 0.1,
            "momentum": 0.95,
            "nesterov": True,
            "momentum_form": "lerp",
            "adjust_lr_fn": None,
            "decay_mode": "decoupled",
            "coefficients": KELLER_JORDAN,
            "eps": 0.0,
            "ns_normalize": "max",
            "period": 1,
            "row_scale": "frobenius",
            "row_lr_ratio": 1.0,
            "row_gain": 1.0,
            "phase": 0,
            **options,
        }

    def step(self, g: Any, **changes: Any) -> np.ndarray:
        o = {**self.options, **changes}
        g = np.asarray(g, dtype=np.float64)
        self.t += 1
        mu = o["momentum"]
        weight = 1 - mu if o["momentum_form"] == "lerp" else 1.0
        self.m = mu * self.m + weight * g
        u = weight * g + mu * self.m if o["nesterov"] else self.m
        rows, cols = self.w.shape
        rho = 1.0 if o["row_scale"] == "unit" else min(1.0, math.sqrt(cols / rows))
        q = rho * row_normalize(u)
        if (self.t - 1 - o["phase"]) % o["period"] == 0:
            direction = newton_schulz(u, o["coefficients"], o["eps"], o["ns_normalize"])
            if o["row_scale"] == "calibrated":
                self.c = float((q * direction).sum() / (q * q).sum()) if (q * q).sum() > 0 else 1.0
        else:
            direction = q * o["row_lr_ratio"] * self.c * o["row_gain"]
        step = o["lr"] * shape_scale(o["adjust_lr_fn"], rows, cols)
        decay = o["lr"] * o["weight_decay"]
        if o["decay_mode"] == "decoupled":
            self.w = (1 - decay) * self.w - step * direction
        elif o["decay_mode"] == "after":
            self.w = self.w - step * direction
            self.w = self.w - decay * self.w
        else:
            self.w = self.w - step * direction - decay * (direction * self.w >= 0) * self.w
        return self.w


def parameters(
    shapes: Iterable[Sequence[int]], dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)) for shape in shapes
    ]


def set_gradients(params: Iterable[Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)


def snapshot(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Copies of all parameters and all their states."""
    tensors = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            tensors.append(parameter.detach().clone())
            tensors.extend(
                torch.as_tensor(optimizer.state[parameter][name]).clone()
                for name in sorted(optimizer.state.get(parameter, {}))
            )
    return tensors


def tensor_states(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The states of a parameter without its count of updates."""
    return {name: state for name, state in optimizer.state[parameter].items() if isinstance(state, Tensor)}


def assert_bitwise(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    for a, b in zip(list(actual), list(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        view = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
        assert torch.equal(a.detach().contiguous().view(view), b.detach().contiguous().view(view))


def relative_error(actual: Any, expected: Any) -> float:
    actual = actual.detach().double().numpy() if isinstance(actual, Tensor) else np.asarray(actual, dtype=np.float64)
    expected = expected.detach().double().numpy() if isinstance(expected, Tensor) else np.asarray(expected, np.float64)
    norm = frobenius(expected)
    return frobenius(actual - expected) / norm if norm > 0 else frobenius(actual)


def compiled_programs(optimizer: Any) -> list[Any]:
    """The optimizer's compiled programs, for tests that count compilations."""
    return [program.compiled for program in optimizer._programs or []]
