"""Updates that divide matrices by their norms for products, and the schedule that does it in a pass of its own."""

from __future__ import annotations

from typing import Any

import kaon
import kaon.language as kl
from cuda_pipeline import PER_PASS
from kaon.cuda_target import CudaTarget


class UnfoldedTarget(CudaTarget):
    """A GPU whose schedule lacks ``kaon-fold-norms``: every matrix is normalized before its products."""

    schedule_pipeline = ",".join(name for name in PER_PASS[1:] if name != "func.func(kaon-fold-norms)")


@kaon.update
def same_twice(w: kl.param, g: kl.grad, lr: kl.scalar):
    """One matrix, normalized in two ways."""
    x = g / kl.norm(g)
    y = g / kl.max(kl.abs(g))
    return w - lr * ((x @ x.T) @ x) - lr * ((y @ y.T) @ y)


@kaon.update
def crossed(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):
    """Two normalized matrices in one product, which can apply one number."""
    x = g / kl.norm(g)
    y = m / kl.norm(m)
    return w - lr * ((x @ y.T) @ x), m


@kaon.update
def two(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):
    """Two normalized matrices, each in products of its own."""
    x = g / kl.norm(g)
    y = m / kl.norm(m)
    return w - lr * ((x @ x.T) @ x), (y @ y.T) @ y


@kaon.update
def summed(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):
    """Two of them, the second in a product that adds that of the first."""
    x = g / kl.norm(g)
    y = m / kl.norm(m)
    return w - lr * ((x @ x.T) @ x + (y @ y.T) @ y), kl.lerp(m, g, 0.5)


@kaon.update
def three(w: kl.param, g: kl.grad, m: kl.state, v: kl.state, lr: kl.scalar):
    """Three of them, of what the step computes."""
    m = kl.lerp(m, g, 0.5)
    v = kl.lerp(v, g, 0.25)
    x = kl.normalize(m)
    y = kl.normalize(v, epsilon=1e-7, form="add")
    z = (m - v) / kl.max(kl.abs(m - v))
    return w - lr * ((x @ x.T) @ x + (y @ y.T) @ y + (z @ z.T) @ z), m, v


@kaon.update
def beside(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):
    """Something else becomes known together with the norm."""
    n = kl.norm(g)
    x = g / n
    return w - lr * ((x @ x.T) @ x), m / (1.0 + n)


@kaon.update
def raw(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):
    """A normalized matrix times one of any size."""
    x = g / kl.norm(g)
    return w - lr * (x @ (m.T @ x)), m


@kaon.update
def clipped(w: kl.param, g: kl.grad, lr: kl.scalar):
    """Divided by the norm if that is large."""
    x = g * kl.minimum(1.0, 1.0 / kl.norm(g))
    return w - lr * ((x @ x.T) @ x)


@kaon.update
def by_product(w: kl.param, g: kl.grad, lr: kl.scalar):
    """A product is normalized, and its quotient multiplied."""
    x = kl.normalize(g)
    a = kl.normalize(x @ x.T)
    return w - lr * ((a @ a) @ x)


@kaon.update
def read_twice(w: kl.param, g: kl.grad, lr: kl.scalar):
    """A quotient that others than products read."""
    x = g / kl.norm(g)
    return w - lr * ((x @ x.T) @ x + 0.5 * x)


@kaon.update
def along_all(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):
    """Rows, columns and all of them divided by their norms."""
    m = kl.lerp(m, g, 0.5)
    x = kl.row_normalize(m)
    y = kl.column_normalize(m)
    z = kl.normalize(m)
    return w - lr * ((x @ y.T) @ y + (z @ z.T) @ z), m


@kaon.update
def scaled_rows(w: kl.param, g: kl.grad, lr: kl.scalar):
    """Rows divided by their norms, and the result by its own."""
    x = kl.normalize(kl.row_normalize(g))
    return w - lr * ((x @ x.T) @ x)


@kaon.update
def replaced(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar):
    """Of a state that has a new value before the norm is known."""
    x = m / kl.norm(m)
    y = m / kl.max(kl.abs(m))
    return w - lr * ((x @ y.T) @ x), kl.lerp(m, g, 0.25)


UPDATES: dict[str, Any] = {
    update.name: update
    for update in (
        same_twice,
        crossed,
        two,
        summed,
        three,
        beside,
        raw,
        clipped,
        by_product,
        read_twice,
        along_all,
        scaled_rows,
        replaced,
    )
}


def unfolded(target: CudaTarget) -> CudaTarget:
    """The same GPU, without ``kaon-fold-norms``."""
    return UnfoldedTarget(target.arch, target.shared_bytes, target.half, target.placement, target.main_loop)
