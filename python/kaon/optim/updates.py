"""The built-in updates, written in Kaon's own language.

Each is a function of one parameter matrix, its gradient and its states, and returns the new parameter and the new
states. `kaon.optim` binds them to parameter groups; `docs/optimizers.md` gives formulas, defaults and sources.
"""

# mypy: allow-incomplete-defs

from __future__ import annotations

import kaon
import kaon.language as kl


@kaon.function
def shape_scale(rows, cols, scale):
    """The factor sigma(rows, cols) by which conventions lengthen an orthogonal update."""
    if scale == "original":
        factor = max(1.0, rows / cols) ** 0.5
    elif scale == "match_rms_adamw":
        factor = 0.2 * max(rows, cols) ** 0.5
    elif scale == "spectral":
        factor = (rows / cols) ** 0.5
    elif scale == "sqrt_max":
        factor = max(rows, cols) ** 0.5
    else:
        kl.static_assert(scale == "none", f"unknown scale {scale}")
        factor = 1.0
    return factor


@kaon.update
def muon(
    w: kl.param,
    g: kl.grad,
    momentum_buffer: kl.state,
    lr: kl.scalar = 1e-3,
    momentum: kl.scalar = 0.95,
    weight_decay: kl.scalar = 0.1,
    *,
    coefficients: kl.constexpr = kl.KELLER_JORDAN,
    norm_scale: kl.constexpr = 1.0,
    eps: kl.constexpr = 0.0,
    normalize: kl.constexpr = "max",
    nesterov: kl.constexpr = True,
    momentum_form: kl.constexpr = "lerp",
    scale: kl.constexpr = "original",
    decay_mode: kl.constexpr = "decoupled",
    maximize: kl.constexpr = False,
):
    """Muon: the momentum's polar factor, approximated by Newton-Schulz."""
    g = -g if maximize else g
    u, momentum_buffer = kl.momentum(g, momentum_buffer, momentum, form=momentum_form, nesterov=nesterov)
    o = kl.newton_schulz(u, coefficients=coefficients, epsilon=eps, normalize=normalize, norm_scale=norm_scale)
    step_size = lr * shape_scale(w.rows, w.cols, scale)
    w = kl.apply(w, o, lr, step_size=step_size, weight_decay=weight_decay, mode=decay_mode)
    return w, momentum_buffer


@kaon.update
def periodic_rowwise_muon(
    w: kl.param,
    g: kl.grad,
    momentum_buffer: kl.state,
    lr: kl.scalar = 1e-3,
    momentum: kl.scalar = 0.95,
    weight_decay: kl.scalar = 0.1,
    row_lr_ratio: kl.scalar = 1.0,
    *,
    period: kl.constexpr = 3,
    row_scale: kl.constexpr = "frobenius",
    row_gain: kl.constexpr = 1.0,
    row_eps: kl.constexpr = 0.0,
    coefficients: kl.constexpr = kl.KELLER_JORDAN,
    norm_scale: kl.constexpr = 1.0,
    eps: kl.constexpr = 0.0,
    normalize: kl.constexpr = "max",
    nesterov: kl.constexpr = True,
    momentum_form: kl.constexpr = "lerp",
    scale: kl.constexpr = "original",
    decay_mode: kl.constexpr = "decoupled",
    maximize: kl.constexpr = False,
):
    """Periodic Row-wise Muon: Muon's update on every `period`-th step, row-normalised momentum on the others."""
    g = -g if maximize else g
    u, momentum_buffer = kl.momentum(g, momentum_buffer, momentum, form=momentum_form, nesterov=nesterov)
    if kl.every(period):
        o = kl.newton_schulz(u, coefficients=coefficients, epsilon=eps, normalize=normalize, norm_scale=norm_scale)
    else:
        radius = 1.0 if row_scale == "unit" else min(1.0, (w.cols / w.rows) ** 0.5)
        o = kl.row_normalize(u, epsilon=row_eps) * (row_lr_ratio * (row_gain * radius))
    step_size = lr * shape_scale(w.rows, w.cols, scale)
    w = kl.apply(w, o, lr, step_size=step_size, weight_decay=weight_decay, mode=decay_mode)
    return w, momentum_buffer


@kaon.update
def calibrated_rowwise_muon(
    w: kl.param,
    g: kl.grad,
    momentum_buffer: kl.state,
    row_length: kl.scalar_state = 1.0,
    lr: kl.scalar = 1e-3,
    momentum: kl.scalar = 0.95,
    weight_decay: kl.scalar = 0.1,
    row_lr_ratio: kl.scalar = 1.0,
    *,
    period: kl.constexpr = 3,
    row_eps: kl.constexpr = 0.0,
    coefficients: kl.constexpr = kl.KELLER_JORDAN,
    norm_scale: kl.constexpr = 1.0,
    eps: kl.constexpr = 0.0,
    normalize: kl.constexpr = "max",
    nesterov: kl.constexpr = True,
    momentum_form: kl.constexpr = "lerp",
    scale: kl.constexpr = "original",
    decay_mode: kl.constexpr = "decoupled",
    maximize: kl.constexpr = False,
):
    """Periodic Row-wise Muon with row steps of the length that brings them closest to the last refresh.

    At each refresh `row_length = <q, o> / <q, q>`, the least-squares length of the row step `q` against the refresh
    `o`; 1 where `q` is zero.
    """
    g = -g if maximize else g
    u, momentum_buffer = kl.momentum(g, momentum_buffer, momentum, form=momentum_form, nesterov=nesterov)
    q = kl.row_normalize(u, epsilon=row_eps) * min(1.0, (w.cols / w.rows) ** 0.5)
    if kl.every(period):
        o = kl.newton_schulz(u, coefficients=coefficients, epsilon=eps, normalize=normalize, norm_scale=norm_scale)
        if period > 1:
            squares = kl.dot(q, q)
            row_length = kl.where(squares > 0, kl.dot(q, o) / kl.where(squares > 0, squares, 1.0), 1.0)
    else:
        o = q * row_length * row_lr_ratio
    step_size = lr * shape_scale(w.rows, w.cols, scale)
    w = kl.apply(w, o, lr, step_size=step_size, weight_decay=weight_decay, mode=decay_mode)
    return w, momentum_buffer, row_length


@kaon.update
def adamw(
    w: kl.param,
    g: kl.grad,
    exp_avg: kl.state,
    exp_avg_sq: kl.state,
    count: kl.scalar,
    lr: kl.scalar = 1e-3,
    beta1: kl.scalar = 0.9,
    beta2: kl.scalar = 0.999,
    eps: kl.scalar = 1e-8,
    weight_decay: kl.scalar = 0.01,
    *,
    maximize: kl.constexpr = False,
):
    """AdamW with eps added after the bias correction, as in torch; `count` is how often this parameter was updated."""
    g = -g if maximize else g
    exp_avg = kl.lerp(exp_avg, g, 1 - beta1)
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * (g * g)
    denominator = kl.sqrt(exp_avg_sq) * (1 / kl.sqrt(1 - beta2**count)) + eps
    w = (1 - lr * weight_decay) * w - (lr / (1 - beta1**count)) * (exp_avg / denominator)
    return w, exp_avg, exp_avg_sq


@kaon.update
def adamw_amsgrad(
    w: kl.param,
    g: kl.grad,
    exp_avg: kl.state,
    exp_avg_sq: kl.state,
    max_exp_avg_sq: kl.state,
    count: kl.scalar,
    lr: kl.scalar = 1e-3,
    beta1: kl.scalar = 0.9,
    beta2: kl.scalar = 0.999,
    eps: kl.scalar = 1e-8,
    weight_decay: kl.scalar = 0.01,
    *,
    maximize: kl.constexpr = False,
):
    """AdamW that divides by the largest second moment so far (arXiv:1904.09237)."""
    g = -g if maximize else g
    exp_avg = kl.lerp(exp_avg, g, 1 - beta1)
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * (g * g)
    max_exp_avg_sq = kl.maximum(max_exp_avg_sq, exp_avg_sq)
    denominator = kl.sqrt(max_exp_avg_sq) * (1 / kl.sqrt(1 - beta2**count)) + eps
    w = (1 - lr * weight_decay) * w - (lr / (1 - beta1**count)) * (exp_avg / denominator)
    return w, exp_avg, exp_avg_sq, max_exp_avg_sq
