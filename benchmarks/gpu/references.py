"""One step of each workload in float64, in plain torch: what kernels are held to.

Takes nothing from Kaon but the tables of coefficients. With `half`, every result of a matrix product is rounded to that
dtype, as products on tensor cores are at best: how far that is from the exact step is the measure of tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from kaon.language import coefficients
from torch import Tensor

States = Mapping[str, Tensor]
Half = torch.dtype | None
Step = tuple[Tensor, dict[str, Tensor]]


def _stored(x: Tensor, half: Half) -> Tensor:
    return x if half is None else x.to(half).double()


def newton_schulz(u: Tensor, rows: Any, half: Half = None) -> Tensor:
    """The iteration with `(a, b, c)` in `rows` on `u / |u|`; zero where `u` is."""
    norm = torch.linalg.norm(u)
    x = _stored(u / norm if norm > 0 else u, half)
    transposed = x.shape[0] > x.shape[1]
    x = x.T if transposed else x
    for a, b, c in rows:
        gram = _stored(x @ x.T, half)
        x = _stored(a * x + _stored(b * gram + c * gram @ gram, half) @ x, half)
    return x.T if transposed else x


def coefficient_rows(group: Mapping[str, Any]) -> Any:
    """`(a, b, c)` of every step that a group of Muon's asks for, by the name of a table or by one triple."""
    given, steps = group["ns_coefficients"], group["ns_steps"]
    return coefficients.named(given).table(steps) if isinstance(given, str) else [given] * steps


def row_normalize(u: Tensor) -> Tensor:
    """Each row by its norm; zero rows stay zero."""
    norms = torch.linalg.norm(u, dim=1, keepdim=True)
    return torch.where(norms > 0, u / norms, u)


def apply(w: Tensor, change: Tensor, decay: float, mode: str) -> Tensor:
    """The new parameter: less `change`, and less its share `decay` before that, after it, or where the signs agree."""
    if mode == "decoupled":
        return (1 - decay) * w - change
    if mode == "after":
        return (1 - decay) * (w - change)
    return w - change - decay * w * (w * change >= 0)


def muon(w: Tensor, g: Tensor, states: States, group: Mapping[str, Any], step: int, half: Half = None) -> Step:
    """Muon, and the row steps of PeriodicRowwiseMuon where the group has a period. `step` is 1 at the first."""
    momentum, rate = group["momentum"], group["lr"]
    lerp = group["momentum_form"] == "lerp"
    m = momentum * states["momentum_buffer"] + ((1 - momentum) * g if lerp else g)
    look = (1 - momentum) * g + momentum * m if lerp else g + momentum * m
    u = look if group["nesterov"] else m
    rows, cols = w.shape
    new = {"momentum_buffer": m}
    row = row_normalize(u) * min(1.0, math.sqrt(cols / rows))
    if (step - 1) % group.get("period", 1) == 0:
        o = newton_schulz(u, coefficient_rows(group), half)
        if "row_length" in states:
            squares = (row * row).sum()
            new["row_length"] = ((row * o).sum() / squares if squares > 0 else squares + 1).reshape(1, 1)
    elif "row_length" in states:
        o = row * states["row_length"] * group["row_lr_ratio"]
        new["row_length"] = states["row_length"]
    else:
        o = row * group["row_lr_ratio"]
    sigma = math.sqrt(max(1.0, rows / cols))
    return apply(w, rate * sigma * o, rate * group["weight_decay"], group["decay_mode"]), new


def adamw(w: Tensor, g: Tensor, states: States, options: Mapping[str, Any], step: int, half: Half = None) -> Step:
    """AdamW; `options` has lr, betas, eps, weight_decay. No products."""
    del half
    beta1, beta2 = options["betas"]
    m = beta1 * states["exp_avg"] + (1 - beta1) * g
    v = beta2 * states["exp_avg_sq"] + (1 - beta2) * g * g
    new = {"exp_avg": m, "exp_avg_sq": v}
    if "max_exp_avg_sq" in states:
        v = new["max_exp_avg_sq"] = torch.maximum(states["max_exp_avg_sq"], v)
    denominator = v.sqrt() / math.sqrt(1 - beta2**step) + options["eps"]
    rate = options["lr"]
    return (1 - rate * options["weight_decay"]) * w - rate / (1 - beta1**step) * m / denominator, new


def row_step(w: Tensor, g: Tensor, states: States, group: Mapping[str, Any], step: int, half: Half = None) -> Step:
    """gpu.updates.row_step. No products."""
    del step, half
    m = group["momentum"] * states["m"] + (1 - group["momentum"]) * g
    return (1 - group["lr"] * group["decay"]) * w - group["lr"] * row_normalize(m), {"m": m}


def symmetric_product(
    w: Tensor, g: Tensor, states: States, group: Mapping[str, Any], step: int, half: Half = None
) -> Step:
    """gpu.updates.symmetric_product."""
    del states, step
    x = _stored(g, half)
    return w - group["lr"] * _stored(x @ x.T, half), {}
