"""The reference optimizers: one step of each in float64 NumPy, written from the formulas in ``docs/optimizers.md``.

This is what the interpreter is held to, and through it the compiler. It shares no code with the package, changes none
of its arguments, and prefers the plain formula to speed or to safety at the ends of the range. Matrices are ``(m, n)``
arrays of float64, a step ``t`` is 1 at the first, and states are dictionaries of arrays by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
State: TypeAlias = Mapping[str, Array]
Row: TypeAlias = tuple[float, float, float]

# Coefficients (a, b, c) of each step of Newton-Schulz.
KELLER_JORDAN: list[Row] = [(3.4445, -4.7750, 2.0315)] * 5
YOU: list[Row] = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]
POLAR_EXPRESS: list[Row] = [  # arXiv:2505.16932
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
]
CANS: list[Row] = [  # arXiv:2506.10935
    (8.4703, -25.1081, 18.6293),
    (4.1828, -3.1087, 0.5806),
    (3.9619, -2.9541, 0.5630),
    (3.2866, -2.4647, 0.5074),
    (2.2737, -1.6447, 0.4162),
]
TURBO_MUON: list[Row] = [  # arXiv:2512.04632
    (4.6051, -9.6552, 5.6769),
    (4.7505, -6.0861, 2.1790),
    (2.7763, -2.3190, 0.5523),
    (2.4231, -2.2861, 0.8193),
]
CUBIC5: list[Row] = [  # arXiv:2606.00371
    (3.3656576, -3.3420992, 0.0),
    (2.5744352, -1.4957376, 0.0),
    (2.5368962, -1.4312570, 0.0),
    (2.4418906, -1.2764040, 0.0),
    (2.2230472, -0.9630650, 0.0),
]
DEEPSEEK_V4: list[Row] = [(3.4445, -4.7750, 2.0315)] * 8 + [(2.0, -1.5, 0.5)] * 2


def safety(coefficients: Sequence[Row], factor: float, keep_last: bool = False) -> list[Row]:
    """``(a, b, c)`` divided by ``(f, f^3, f^5)``, with ``keep_last`` in all rows but the last."""
    scaled = [(a / factor, b / factor**3, c / factor**5) for a, b, c in coefficients]
    return [*scaled[:-1], coefficients[-1]] if keep_last else scaled


def frobenius_norm(x: Array) -> float:
    """``|X|``, the root of the sum of squares."""
    return float(np.sqrt((x * x).sum()))


def divide(x: Array, divisor: Array) -> Array:
    """``x / divisor``, and zero where the divisor is."""
    return np.divide(x, divisor, out=np.zeros_like(x), where=divisor > 0)


def newton_schulz(
    u: Array,
    coefficients: Sequence[Row] = KELLER_JORDAN,
    epsilon: float = 1e-7,
    normalize: str = "add",
    norm_scale: float = 1.0,
) -> Array:
    """``X <- a X + (b A + c A A) X`` with ``A = X X^T``, once per row of ``coefficients``, on the short side.

    ``normalize`` divides by ``s |U| + epsilon`` (``"add"``), ``max(s |U|, epsilon)`` (``"max"``) or not at all
    (``"none"``), where ``s`` is ``norm_scale``.
    """
    norm = norm_scale * frobenius_norm(u)
    divisor = {"add": norm + epsilon, "max": max(norm, epsilon), "none": 1.0}[normalize]
    x = divide(u, np.asarray(divisor))
    is_tall = u.shape[0] > u.shape[1]
    if is_tall:
        x = x.T
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    result: Array = x.T if is_tall else x
    return result


def row_normalize(u: Array, epsilon: float = 1e-12) -> Array:
    """Each row divided by ``max(|U_i|, epsilon)``."""
    norms = np.sqrt((u * u).sum(axis=1, keepdims=True))
    return divide(u, np.maximum(norms, epsilon))


def shape_scale(mode: str, rows: int, cols: int) -> float:
    """``sigma(m, n)``, the shape's factor of the learning rate."""
    return {
        "none": 1.0,
        "original": math.sqrt(max(1.0, rows / cols)),
        "match_rms_adamw": 0.2 * math.sqrt(max(rows, cols)),
        "spectral": math.sqrt(rows / cols),
        "sqrt_max": math.sqrt(max(rows, cols)),
    }[mode]


def momentum(g: Array, m: Array, mu: float, form: str = "lerp", nesterov: bool = True) -> tuple[Array, Array]:
    """The direction ``U`` and the new momentum ``M``.

    ``form="lerp"``: ``M = mu M + (1-mu) G``, ``U = (1-mu) G + mu M``; ``"heavy_ball"``: ``M = mu M + G``,
    ``U = G + mu M``. Without Nesterov ``U = M``.
    """
    weight = {"lerp": 1.0 - mu, "heavy_ball": 1.0}[form]
    m = mu * m + weight * g
    return (weight * g + mu * m if nesterov else m), m


def apply(w: Array, u: Array, lr: float, step_size: float, weight_decay: float, mode: str = "decoupled") -> Array:
    """The new parameter, with ``d = lr weight_decay``.

    ``"decoupled"``: ``(1-d) W - s U``; ``"after"``: ``V = W - s U``, then ``V - d V``; ``"cautious"``:
    ``W - s U - d W``, the last term only where ``U W >= 0``.
    """
    decay = lr * weight_decay
    if mode == "decoupled":
        return (1 - decay) * w - step_size * u
    if mode == "after":
        v = w - step_size * u
        return v - decay * v
    assert mode == "cautious"
    return w - step_size * u - decay * (u * w >= 0) * w


def muon_step(
    w: Array,
    g: Array,
    state: State,
    t: int,
    *,
    lr: float = 0.02,
    mu: float = 0.95,
    weight_decay: float = 0.0,
    form: str = "lerp",
    nesterov: bool = True,
    scale: str = "original",
    decay_mode: str = "decoupled",
    orthogonalize: Callable[[Array], Array] = newton_schulz,
) -> tuple[Array, State]:
    """Muon; ``state`` holds the momentum ``m``."""
    u, m = momentum(g, state["m"], mu, form, nesterov)
    step_size = lr * shape_scale(scale, *w.shape)
    return apply(w, orthogonalize(u), lr, step_size, weight_decay, decay_mode), {"m": m}


def periodic_rowwise_muon_step(
    w: Array,
    g: Array,
    state: State,
    t: int,
    *,
    period: int = 3,
    phase: int = 1,
    row_scale: str = "frobenius",
    row_lr_ratio: float = 1.0,
    row_epsilon: float = 1e-12,
    lr: float = 0.02,
    mu: float = 0.95,
    weight_decay: float = 0.0,
    form: str = "lerp",
    nesterov: bool = True,
    scale: str = "match_rms_adamw",
    decay_mode: str = "decoupled",
    orthogonalize: Callable[[Array], Array] = newton_schulz,
) -> tuple[Array, State]:
    """Muon where ``(t - phase) mod period`` is 0, rows of the momentum divided by their norms on the other steps.

    With ``rho = min(1, sqrt(n/m))`` (``row_scale="unit"``: 1) and ``Q_i = rho U_i / max(|U_i|, row_epsilon)`` a row
    step goes along ``row_lr_ratio c Q``. ``c`` is 1, except with ``row_scale="calibrated"``: then each refresh, whose
    direction is ``O``, sets ``c = <Q, O> / <Q, Q>``, or 1 where ``Q`` is zero. ``state`` holds the momentum ``m`` and
    ``c``, 1x1.
    """
    rows, cols = w.shape
    u, m = momentum(g, state["m"], mu, form, nesterov)
    rho = 1.0 if row_scale == "unit" else min(1.0, math.sqrt(cols / rows))
    q = rho * row_normalize(u, row_epsilon)
    c = state["c"]
    if (t - phase) % period == 0:
        direction = orthogonalize(u)
        if row_scale == "calibrated":
            square = (q * q).sum()
            c = np.full((1, 1), (q * direction).sum() / square if square > 0 else 1.0)
    else:
        direction = row_lr_ratio * c * q
    step_size = lr * shape_scale(scale, rows, cols)
    return apply(w, direction, lr, step_size, weight_decay, decay_mode), {"m": m, "c": c}


def adamw_step(
    w: Array,
    g: Array,
    state: State,
    t: int,
    *,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 1e-2,
) -> tuple[Array, State]:
    """AdamW as ``torch.optim.AdamW`` computes it; ``state`` holds the moments ``m`` and ``v``."""
    m = beta1 * state["m"] + (1 - beta1) * g
    v = beta2 * state["v"] + (1 - beta2) * g * g
    denominator = np.sqrt(v) / math.sqrt(1 - beta2**t) + epsilon
    return apply(w, m / denominator, lr, lr / (1 - beta1**t), weight_decay), {"m": m, "v": v}


def lion_step(
    w: Array,
    g: Array,
    state: State,
    t: int,
    *,
    lr: float = 1e-4,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: float = 0.0,
) -> tuple[Array, State]:
    """Lion (arXiv:2302.06675); ``state`` holds the momentum ``m``."""
    u = np.sign(beta1 * state["m"] + (1 - beta1) * g)
    return apply(w, u, lr, lr, weight_decay), {"m": beta2 * state["m"] + (1 - beta2) * g}


def normuon_step(
    w: Array,
    g: Array,
    state: State,
    t: int,
    *,
    lr: float = 0.02,
    mu: float = 0.95,
    beta2: float = 0.95,
    weight_decay: float = 0.0,
    epsilon: float = 1e-10,
) -> tuple[Array, State]:
    """NorMuon (arXiv:2510.05491): rows divided by a running RMS, then the old norm; ``v`` is mx1."""
    u, m = momentum(g, state["m"], mu)
    o = newton_schulz(u)
    v = beta2 * state["v"] + (1 - beta2) * (o * o).mean(axis=1, keepdims=True)
    scaled = o / (np.sqrt(v) + epsilon)
    direction = scaled * (frobenius_norm(o) / (frobenius_norm(scaled) + epsilon))
    return apply(w, direction, lr, lr * shape_scale("original", *w.shape), weight_decay), {"m": m, "v": v}
