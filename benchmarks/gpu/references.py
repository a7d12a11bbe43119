"""One step of each workload in float64, in plain torch: what kernels are held to. Shares no code with Kaon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

States = Mapping[str, Tensor]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def newton_schulz(u: Tensor, steps: int = 5) -> Tensor:
    """The quintic iteration on `u / |u|`; zero where `u` is."""
    norm = torch.linalg.norm(u)
    x = u / norm if norm > 0 else u
    transposed = x.shape[0] > x.shape[1]
    x = x.T if transposed else x
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if transposed else x


def row_normalize(u: Tensor) -> Tensor:
    """Each row by its norm; zero rows stay zero."""
    norms = torch.linalg.norm(u, dim=1, keepdim=True)
    return torch.where(norms > 0, u / norms, u)


def muon(w: Tensor, g: Tensor, states: States, group: Mapping[str, Any], step: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Muon, and the row steps of PeriodicRowwiseMuon where the group has a period. `step` is 1 at the first."""
    momentum, rate, decay = group["momentum"], group["lr"], group["weight_decay"]
    lerp = group["momentum_form"] == "lerp"
    m = momentum * states["momentum_buffer"] + ((1 - momentum) * g if lerp else g)
    look = (1 - momentum) * g + momentum * m if lerp else g + momentum * m
    u = look if group["nesterov"] else m
    rows, cols = w.shape
    new = {"momentum_buffer": m}
    period = group.get("period", 1)
    row = row_normalize(u) * min(1.0, math.sqrt(cols / rows))
    if (step - 1) % period == 0:
        o = newton_schulz(u)
        if "row_length" in states:
            squares = (row * row).sum()
            new["row_length"] = ((row * o).sum() / squares if squares > 0 else squares + 1).reshape(1, 1)
    elif "row_length" in states:
        o = row * states["row_length"] * group["row_lr_ratio"]
        new["row_length"] = states["row_length"]
    else:
        o = row * group["row_lr_ratio"]
    sigma = math.sqrt(max(1.0, rows / cols))
    return (1 - rate * decay) * w - rate * sigma * o, new


def adamw(
    w: Tensor, g: Tensor, states: States, options: Mapping[str, Any], step: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """AdamW; `options` has lr, betas, eps, weight_decay."""
    beta1, beta2 = options["betas"]
    m = beta1 * states["exp_avg"] + (1 - beta1) * g
    v = beta2 * states["exp_avg_sq"] + (1 - beta2) * g * g
    new = {"exp_avg": m, "exp_avg_sq": v}
    if "max_exp_avg_sq" in states:
        v = new["max_exp_avg_sq"] = torch.maximum(states["max_exp_avg_sq"], v)
    denominator = v.sqrt() / math.sqrt(1 - beta2**step) + options["eps"]
    rate = options["lr"]
    return (1 - rate * options["weight_decay"]) * w - rate / (1 - beta1**step) * m / denominator, new


def row_step(
    w: Tensor, g: Tensor, states: States, group: Mapping[str, Any], step: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """gpu.updates.row_step."""
    del step
    m = group["momentum"] * states["m"] + (1 - group["momentum"]) * g
    return (1 - group["lr"] * group["decay"]) * w - group["lr"] * row_normalize(m), {"m": m}


def symmetric_product(
    w: Tensor, g: Tensor, states: States, group: Mapping[str, Any], step: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """gpu.updates.symmetric_product."""
    del states, step
    return w - group["lr"] * (g @ g.T), {}
