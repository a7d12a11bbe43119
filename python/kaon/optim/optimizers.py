"""The optimizers: each an update written in the language, with defaults. Formulas and sources: docs/optimizers.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, dtype
from torch.optim.optimizer import required

from .base import KaonOptimizer, rate_ratio
from .bindings import AdamWBinding, MuonBinding, PeriodicRowwiseMuonBinding, UpdateBinding, as_number, to_number
from .rules import Rule, elementwise_rules

if TYPE_CHECKING:
    from kaon import Update

KELLER_JORDAN_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def _fallback_defaults(
    lr: Any,
    adamw_lr: float | None,
    adamw_betas: tuple[float, float],
    adamw_eps: float,
    adamw_weight_decay: float,
) -> dict[str, Any]:
    rate = 1e-3 if adamw_lr is None else adamw_lr
    # Where every group has to bring its own `lr`, each also gets its own ratio, when it is added.
    own = {"adamw_lr": rate} if lr is required else {"adamw_lr_ratio": rate_ratio(rate, to_number(lr, "lr"))}
    return {
        **own,
        "adamw_betas": adamw_betas,
        "adamw_eps": adamw_eps,
        "adamw_weight_decay": adamw_weight_decay,
    }


def _check_numbers(**options: Any) -> None:
    """Refuse text and the like by name, before Python's own comparison does so without one."""
    for name, value in options.items():
        if not isinstance(value, Tensor) and value is not required:
            as_number(value, name)


def _check_muon(lr: Any, momentum: float, weight_decay: float) -> None:
    """The checks of torch.optim.Muon's constructor, in its words."""
    _check_numbers(lr=lr, momentum=momentum, weight_decay=weight_decay)
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(f"Learning rate should be >= 0 but is: {lr}")
    if not momentum >= 0.0:
        raise ValueError(f"momentum should be >= 0 but is: {momentum}")
    if not weight_decay >= 0.0:
        raise ValueError(f"weight decay should be >= 0 but is: {weight_decay}")


class Muon(KaonOptimizer):
    """Muon (Keller Jordan; torch.optim.Muon): orthogonalized momentum for matrices, AdamW for everything else.

    For each matrix of `m` rows and `n` columns, with learning rate `lr`, momentum `mu` and weight decay `wd`::

        M = mu * M + (1 - mu) * G                        momentum_form="lerp"        (heavy_ball: mu * M + G)
        U = (1 - mu) * G + mu * M  or  M                 nesterov=True or False      (heavy_ball: G + mu * M)
        O = NS(U / max(|U|, eps))                        ns_steps times X = a X + (b A + c A A) X,  A = X X^T
        W = (1 - lr * wd) * W - lr * sigma(m, n) * O     sigma by adjust_lr_fn

    Positional arguments and defaults are those of torch.optim.Muon, except `eps` (there 1e-7), which is no floor here:
    gradients of any scale give the same update.

    Args:
        params: see `KaonOptimizer`.
        lr: learning rate; a float or a tensor of one element.
        weight_decay: decoupled, with `lr` and not the adjusted one.
        momentum: 0 or more.
        nesterov: look ahead by one momentum step.
        ns_coefficients: one `(a, b, c)` for all steps, one per step, a table of `kaon.language.coefficients`, or its
            name.
        eps: added to or floor of the Frobenius norm. 0 is safe: a zero matrix stays zero.
        ns_steps: 1 to 99; None for a table's own number.
        adjust_lr_fn: sigma. None, "original" or "kj": sqrt(max(1, m / n)); "match_rms_adamw" or "moonlight":
            0.2 * sqrt(max(m, n)); "spectral": sqrt(m / n); "sqrt_max": sqrt(max(m, n)); "none": 1.
        momentum_form: "lerp" or "heavy_ball"; the latter overflows float32 for gradients beyond 3.4e38 (1 - momentum).
        decay_mode: "decoupled" (before the update), "after" it, or "cautious" (only where update and weight agree in
            sign).
        ns_normalize: divide by "max(|U|, eps)" or, with "add", by "|U| + eps".
        ns_norm_scale: factor of the norm, for tables that want slack (Polar Express: 1.01).
        adamw_lr: the fallback's learning rate, kept as a ratio to `lr`, so that schedules scale both; default 1e-3.
            If `lr` is 0 the ratio is 1. In a group, "adamw_lr" sets the ratio to that group's `lr`.
        adamw_betas, adamw_eps, adamw_weight_decay: as in AdamW.
        maximize: ascend.
        rules, nonfinite, threads, product_dtype: see `KaonOptimizer`.
    """

    matrix_binding = MuonBinding()
    fallback_binding = AdamWBinding("adamw_")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Any = KELLER_JORDAN_COEFFICIENTS,
        eps: float = 0.0,
        ns_steps: int | None = 5,
        adjust_lr_fn: str | None = None,
        *,
        momentum_form: str = "lerp",
        decay_mode: str = "decoupled",
        ns_normalize: str = "max",
        ns_norm_scale: float = 1.0,
        adamw_lr: float | None = None,
        adamw_betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        adamw_weight_decay: float = 0.01,
        maximize: bool = False,
        rules: Iterable[Rule] | None = None,
        nonfinite: str = "skip",
        threads: int | None = None,
        product_dtype: str | dtype | None = None,
        extra_defaults: dict[str, Any] | None = None,
    ) -> None:
        _check_muon(lr, momentum, weight_decay)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "momentum_form": momentum_form,
            "decay_mode": decay_mode,
            "ns_normalize": ns_normalize,
            "ns_norm_scale": ns_norm_scale,
            **_fallback_defaults(lr, adamw_lr, adamw_betas, adamw_eps, adamw_weight_decay),
            "maximize": maximize,
            **(extra_defaults or {}),
        }
        super().__init__(
            params, defaults, rules=rules, nonfinite=nonfinite, threads=threads, product_dtype=product_dtype
        )


class PeriodicRowwiseMuon(Muon):
    """Periodic Row-wise Muon (arXiv:2608.20818): Muon on every `period`-th step, row-normalised momentum on the others.

    With `U` as in `Muon`, and rho = min(1, sqrt(n / m)), a row step replaces the orthogonalized `O` by::

        O_i = row_lr_ratio * rho * U_i / max(|U_i|, row_eps)         for every row i

    which has the refresh's Frobenius norm, costs one pass over memory, and needs no other row. `period=1` is Muon, bit
    for bit.

    Args:
        params, lr, weight_decay, momentum, nesterov: as in `Muon`.
        period: K; steps 1, 1 + K, 1 + 2 K, ... orthogonalize.
        row_scale: the length of row steps. "frobenius": as above, the paper's rule. "unit": rho = 1 (RMNP).
            "ns_matched": rho times what Newton-Schulz with these coefficients makes of a Gaussian matrix's norm.
            "calibrated" (ours): rho * c, where c = <q, O> / <q, q>, q the row step without c, is taken at each refresh
            of the matrix and kept as its state `row_length` (1 before the first refresh, and where q is zero).
        row_lr_ratio: factor of row steps; may change at any step.
        phase: refreshes come `phase` steps later; "staggered": the i-th matrix parameter's come i mod K steps later,
            which makes all steps cost the same.
        row_eps: floor of row norms; 0 is safe: a zero row stays zero.
        muon_options: every other option of `Muon`, with its default.
    """

    matrix_binding = PeriodicRowwiseMuonBinding()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        *,
        period: int = 3,
        row_scale: str = "frobenius",
        row_lr_ratio: float = 1.0,
        phase: int | str = 0,
        row_eps: float = 0.0,
        **muon_options: Any,
    ) -> None:
        row_options = {
            "period": period,
            "row_scale": row_scale,
            "row_lr_ratio": row_lr_ratio,
            "phase": phase,
            "row_eps": row_eps,
        }
        super().__init__(params, lr, weight_decay, momentum, nesterov, extra_defaults=row_options, **muon_options)


class AdamW(KaonOptimizer):
    """AdamW (arXiv:1711.05101), as torch.optim.AdamW::

        m = beta1 * m + (1 - beta1) * G
        v = beta2 * v + (1 - beta2) * G * G
        W = (1 - lr * wd) * W - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

    Takes parameters of any shape. `t` counts the updates of the parameter, as in torch: one that had no gradient at
    some step is that much younger. It is the state "step", a whole number.

    Args:
        params: see `KaonOptimizer`.
        lr, betas, eps, weight_decay, amsgrad, maximize: as in torch.optim.AdamW.
        foreach, fused: accepted for torch's sake and checked as there; there is one implementation, always fused.
        capturable, differentiable: refused, as steps run outside of autograd and of CUDA graphs.
        rules, nonfinite, threads: see `KaonOptimizer`.
    """

    matrix_binding = AdamWBinding()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        rules: Iterable[Rule] | None = None,
        nonfinite: str = "skip",
        threads: int | None = None,
    ) -> None:
        _check_adamw(lr, betas, eps, weight_decay, foreach, capturable, differentiable, fused)
        defaults = {
            "lr": lr,
            "betas": tuple(float(beta) for beta in betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        rules = elementwise_rules() if rules is None else rules
        super().__init__(params, defaults, rules=rules, nonfinite=nonfinite, threads=threads)


def _check_adamw(
    lr: Any,
    betas: tuple[Any, Any],
    eps: float,
    weight_decay: float,
    foreach: bool | None,
    capturable: bool,
    differentiable: bool,
    fused: bool | None,
) -> None:
    """The checks of torch.optim.AdamW's constructor, in its words, and the flags that this one does not have."""
    _check_numbers(lr=lr, eps=eps, weight_decay=weight_decay)
    if isinstance(betas, str) or len(betas) != 2:
        raise ValueError(f"expects two betas, but got {betas!r}")
    _check_numbers(**{f"betas[{index}]": beta for index, beta in enumerate(betas)})
    if isinstance(lr, Tensor):
        if foreach and not capturable:
            raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not eps >= 0.0:
        raise ValueError(f"Invalid epsilon value: {eps}")
    for index, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
    if not weight_decay >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {weight_decay}")
    if isinstance(betas[0], Tensor) != isinstance(betas[1], Tensor):
        raise ValueError("betas must be either both floats or both Tensors")
    for index, beta in enumerate(betas):
        if isinstance(beta, Tensor):
            if foreach and not capturable:
                raise ValueError(f"betas[{index}] as a Tensor is not supported for capturable=False and foreach=True")
            if beta.numel() != 1:
                raise ValueError(f"Tensor betas[{index}] must be 1-element")
    if fused and differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")
    if fused and foreach:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    if differentiable:
        raise ValueError("kaon.optim.AdamW does not support differentiable=True: steps run outside of autograd")
    if capturable:
        raise ValueError("kaon.optim.AdamW does not support capturable=True: steps run on the CPU")


_RESERVED_OPTIONS = (
    "params",
    "param_names",
    "rules",
    "nonfinite",
    "threads",
    "product_dtype",
    "step",
    "phase",
    "update",
    "view",
)


class UpdateOptimizer(KaonOptimizer):
    """Base of the classes that `kaon.optimizer` makes.

    Args:
        params: see `KaonOptimizer`.
        phase: as in `PeriodicRowwiseMuon`; "staggered" goes by a constexpr of the update called `period`.
        adamw_lr, adamw_betas, adamw_eps, adamw_weight_decay, maximize: as in `Muon`.
        rules, nonfinite, threads, product_dtype: see `KaonOptimizer`.
        options: the update's scalars and constexprs, by name. Those without a default must be given here or by every
            group. An update without a scalar `lr` has an option `lr` all the same (default 1e-3), for the fallback.
    """

    matrix_binding: ClassVar[UpdateBinding]
    fallback_binding = AdamWBinding("adamw_")
    kaon_update: ClassVar[Update]

    def __init__(
        self,
        params: Any,
        *,
        phase: int | str = 0,
        adamw_lr: float | None = None,
        adamw_betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        adamw_weight_decay: float = 0.01,
        maximize: bool = False,
        rules: Iterable[Rule] | None = None,
        nonfinite: str = "skip",
        threads: int | None = None,
        product_dtype: str | dtype | None = None,
        **options: Any,
    ) -> None:
        defaults: dict[str, Any] = {"lr": 1e-3, **self.matrix_binding.defaults()}
        unknown = sorted(options.keys() - defaults.keys())
        if unknown:
            raise TypeError(
                f"{type(self).__name__} got an unexpected option '{unknown[0]}'; its update has {', '.join(defaults)}"
            )
        defaults.update(options)
        defaults.update(_fallback_defaults(defaults["lr"], adamw_lr, adamw_betas, adamw_eps, adamw_weight_decay))
        defaults.update(maximize=maximize, phase=phase)
        super().__init__(
            params, defaults, rules=rules, nonfinite=nonfinite, threads=threads, product_dtype=product_dtype
        )

    def __reduce__(self) -> Any:
        # The class was made by a call and has no name to be found under; its update has.
        return _restore, (self.kaon_update, type(self).__name__), self.__getstate__()


def _restore(update: Update, name: str) -> UpdateOptimizer:
    """An empty optimizer for `update`, to be filled by `__setstate__`."""
    cls = optimizer(update, name=name)
    return cls.__new__(cls)


def optimizer(update: Update, *, name: str | None = None) -> type[UpdateOptimizer]:
    """An optimizer class for a user's update::

        @kaon.update
        def signed(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, beta: kl.scalar = 0.9):
            m = kl.lerp(m, g, 1 - beta)
            return w - lr * kl.sign(m), m

        Signed = kaon.optimizer(signed)
        opt = Signed(model, lr=1e-4)

    The update's scalars and constexprs become options of the class and of its parameter groups; scalars may change at
    every step without recompiling. Parameters go to the update by `default_rules()` unless `rules` are given (for an
    update that treats all elements alike: `kaon.optim.elementwise_rules()`), the rest to AdamW.

    Args:
        update: what `@kaon.update` made.
        name: the class's name; default the update's in CamelCase.

    Raises:
        TypeError: not an update.
        ValueError: a scalar or constexpr has a name that optimizers use themselves.
    """
    if not hasattr(update, "specialize"):
        raise TypeError(f"expects a function decorated with @kaon.update, but got {update!r}")
    binding = UpdateBinding(update)
    for option in binding.defaults():
        if option in _RESERVED_OPTIONS or option.startswith("adamw_"):
            raise ValueError(f"update '{update.name}' has an option '{option}', a name that optimizers use themselves")
    cls_name = name or "".join(part.capitalize() for part in update.name.split("_"))
    namespace = {
        "__doc__": f"Optimizer of the update `{update.name}`.\n\n{update.__doc__ or ''}".rstrip(),
        "__module__": getattr(update, "__module__", __name__),
        "matrix_binding": binding,
        "kaon_update": update,
    }
    return type(cls_name, (UpdateOptimizer,), namespace)
