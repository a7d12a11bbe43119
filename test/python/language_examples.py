"""Updates that the language tests compile: the documented examples, written as a user would."""

from __future__ import annotations

import kaon
import kaon.language as kl


@kaon.update
def muon(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    lr: kl.scalar,
    momentum: kl.scalar = 0.95,
    weight_decay: kl.scalar = 0.0,
    *,
    form: kl.constexpr = "lerp",
    nesterov: kl.constexpr = True,
    scale: kl.constexpr = "kj",
    epsilon: kl.constexpr = 1e-7,
    mode: kl.constexpr = "decoupled",
):
    u, m = kl.momentum(g, m, momentum, form=form, nesterov=nesterov)
    o = kl.newton_schulz(u, epsilon=epsilon, normalize="add")
    return kl.apply(w, o, lr, step_size=lr * sigma(w, scale), weight_decay=weight_decay, mode=mode), m


@kaon.function
def sigma(w, scale: kl.constexpr):
    """The shape-dependent factor of Muon's conventions."""
    if scale == "kj":
        return kl.sqrt(max(1, w.rows / w.cols))
    elif scale == "moonlight":
        return 0.2 * kl.sqrt(max(w.rows, w.cols))
    elif scale == "spectral":
        return kl.sqrt(w.rows / w.cols)
    kl.static_assert(scale == "none", f"expects kj, moonlight, spectral or none, but got {scale}")
    return 1.0


@kaon.update
def periodic_rowwise_muon(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    lr: kl.scalar,
    momentum: kl.scalar = 0.95,
    weight_decay: kl.scalar = 0.1,
    *,
    period: kl.constexpr = 3,
    steps: kl.constexpr = 5,
    nesterov: kl.constexpr = True,
):
    m = kl.lerp(m, g, 1 - momentum)
    u = kl.lerp(g, m, momentum) if nesterov else m
    if kl.every(period):  # noqa: SIM108
        o = kl.newton_schulz(u, steps=steps)
    else:
        o = kl.row_normalize(u) * min(1, kl.sqrt(u.cols / u.rows))
    w = (1 - lr * weight_decay) * w - lr * 0.2 * kl.sqrt(max(w.rows, w.cols)) * o
    return w, m


@kaon.update
def calibrated_rowwise_muon(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    c: kl.scalar_state = 1.0,
    *,
    lr: kl.scalar,
    momentum: kl.scalar = 0.95,
    weight_decay: kl.scalar = 0.1,
    period: kl.constexpr = 3,
):
    u, m = kl.momentum(g, m, momentum)
    q = kl.row_normalize(u) * min(1, kl.sqrt(u.cols / u.rows))
    if kl.every(period):
        o = kl.newton_schulz(u)
        square = kl.dot(q, q)
        c = kl.where(square > 0, kl.dot(q, o) / square, 1.0)
    else:
        o = c * q
    step_size = lr * 0.2 * kl.sqrt(max(w.rows, w.cols))
    return kl.apply(w, o, lr, step_size=step_size, weight_decay=weight_decay), m, c


@kaon.update
def adamw(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    v: kl.state,
    lr: kl.scalar,
    beta1: kl.scalar = 0.9,
    beta2: kl.scalar = 0.999,
    epsilon: kl.scalar = 1e-8,
    weight_decay: kl.scalar = 0.01,
):
    t = kl.step()
    m = kl.lerp(m, g, 1 - beta1)
    v = kl.lerp(v, g * g, 1 - beta2)
    u = m / (1 - beta1**t) / (kl.sqrt(v) / kl.sqrt(1 - beta2**t) + epsilon)
    return kl.apply(w, u, lr, weight_decay=weight_decay), m, v


@kaon.function
def orthogonalize(x, steps: kl.constexpr):
    """A user's own Newton-Schulz iteration, written with primitives only."""
    x = x / (kl.norm(x) + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x


@kaon.update
def own_muon(
    w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, momentum: kl.scalar = 0.95, *, steps: kl.constexpr = 5
):
    m = momentum * m + (1 - momentum) * g
    u = (1 - momentum) * g + momentum * m
    return w - lr * kl.sqrt(max(1, w.rows / w.cols)) * orthogonalize(u, steps), m


@kaon.update
def lion(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    lr: kl.scalar,
    beta1: kl.scalar = 0.9,
    beta2: kl.scalar = 0.99,
    weight_decay: kl.scalar = 0.0,
):
    u = kl.sign(kl.lerp(m, g, 1 - beta1))
    return kl.apply(w, u, lr, weight_decay=weight_decay), kl.lerp(m, g, 1 - beta2)


@kaon.update
def normuon(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    v: kl.row_state,
    lr: kl.scalar,
    momentum: kl.scalar = 0.95,
    beta2: kl.scalar = 0.95,
    weight_decay: kl.scalar = 0.0,
):
    u, m = kl.momentum(g, m, momentum)
    o = kl.newton_schulz(u, epsilon=1e-7, normalize="add")
    v = kl.lerp(v, kl.mean(o * o, "row"), 1 - beta2)
    scaled = o / (kl.sqrt(v) + 1e-10)
    o = scaled * (kl.norm(o) / (kl.norm(scaled) + 1e-10))
    step_size = lr * kl.sqrt(max(1, w.rows / w.cols))
    return kl.apply(w, o, lr, step_size=step_size, weight_decay=weight_decay), m, v
