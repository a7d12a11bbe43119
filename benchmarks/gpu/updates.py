"""Updates that isolate one kind of kernel each, to be timed and checked alone."""

# mypy: allow-incomplete-defs

from __future__ import annotations

import kaon
import kaon.language as kl


@kaon.update
def row_step(
    w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar = 0.02, momentum: kl.scalar = 0.95, decay: kl.scalar = 0.1
):
    """Momentum, row norm, weight decay and the update of the parameter: one pass over a row that stays on the chip."""
    m = kl.lerp(m, g, 1 - momentum)
    return kl.apply(w, kl.row_normalize(m), lr, weight_decay=decay), m


@kaon.update
def symmetric_product(w: kl.param, g: kl.grad, lr: kl.scalar = 0.02):
    """One symmetric product of a square matrix, and the parameter changed by it."""
    return w - lr * (g @ g.T)


@kaon.update
def orthogonalize(w: kl.param, g: kl.grad, lr: kl.scalar = 0.02):
    """Newton-Schulz alone: norm, cast, five steps, and the parameter changed by the result."""
    return w - lr * kl.newton_schulz(g)
