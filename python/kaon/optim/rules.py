"""Which parameter gets which update: an ordered list of rules, the first match decides.

A rule looks at a parameter's name, number of dimensions, shape and owning module, and names the update (`"matrix"`, the
optimizer's own, or `"adamw"`, the fallback of the same optimizer) and the view. Owning modules are known when the
optimizer is given an `nn.Module`; names when it is given a module or `named_parameters()`. A rule that asks for
something unknown does not match, so that the number of dimensions is all that decides for bare `parameters()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .views import View

MATRIX = "matrix"
FALLBACK = "adamw"


@dataclass(frozen=True)
class ParameterInfo:
    """What rules may look at: the name or None, the shape, and every module that holds the parameter (tied weights
    have several owners; none are known when the optimizer was not given a module)."""

    name: str | None
    shape: tuple[int, ...]
    owners: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One line of the routing table.

    Args:
        update: `"matrix"` (the optimizer's own update) or `"adamw"` (its fallback).
        name: glob pattern or patterns over the full dotted name, case-sensitive (`"*.qkv.weight"`); one must match.
        ndim: number of dimensions or several of them.
        shape: a predicate over the shape.
        module: module class, or its name as text, or several: one owner must be an instance (by class) or be of a class
            of that name, its base classes included (by text).
        view: how the parameter becomes matrices (`kaon.optim.View` or its text); default `"matrix"` for the matrix
            update and `"elementwise"` for AdamW.
        decay: False takes these parameters out of weight decay.
        label: what `opt.plan()` prints; default the conditions.

    All given conditions must hold; a rule without conditions takes everything.

    Raises:
        ValueError: unknown update or view.
    """

    update: str
    name: str | Sequence[str] | None = None
    ndim: int | Sequence[int] | None = None
    shape: Callable[[tuple[int, ...]], bool] | None = None
    module: Any = None
    view: str | View | None = None
    decay: bool = True
    label: str = ""

    def __post_init__(self) -> None:
        if self.update not in (MATRIX, FALLBACK):
            raise ValueError(f'a rule expects update "{MATRIX}" or "{FALLBACK}", but got "{self.update}"')
        self.resolved_view()

    def resolved_view(self) -> View:
        """The view, with the default of the update filled in."""
        if self.view is None:
            return View("matrix" if self.update == MATRIX else "elementwise")
        return View.parse(self.view)

    def matches(self, info: ParameterInfo) -> bool:
        """Whether all conditions hold for `info`."""
        if self.name is not None:
            patterns = (self.name,) if isinstance(self.name, str) else self.name
            if info.name is None or not any(fnmatchcase(info.name, pattern) for pattern in patterns):
                return False
        if self.ndim is not None:
            wanted = (self.ndim,) if isinstance(self.ndim, int) else self.ndim
            if len(info.shape) not in wanted:
                return False
        if self.shape is not None and not self.shape(info.shape):
            return False
        if self.module is not None:
            classes = self.module if isinstance(self.module, (tuple, list)) else (self.module,)
            if not any(_is_instance(owner, cls) for owner in info.owners for cls in classes):
                return False
        return True

    def __str__(self) -> str:
        if self.label:
            return self.label
        parts = []
        if self.name is not None:
            parts.append(self.name if isinstance(self.name, str) else "|".join(self.name))
        if self.ndim is not None:
            parts.append(f"{self.ndim}-d")
        if self.shape is not None:
            parts.append(f"shape {getattr(self.shape, '__name__', 'predicate')}")
        if self.module is not None:
            classes = self.module if isinstance(self.module, (tuple, list)) else (self.module,)
            parts.append("|".join(cls if isinstance(cls, str) else cls.__name__ for cls in classes))
        return " ".join(parts) or "all"


def _is_instance(owner: Any, cls: Any) -> bool:
    if isinstance(cls, str):
        return any(base.__name__ == cls for base in type(owner).__mro__)
    return isinstance(owner, cls)


EMBEDDING_MODULES = ("Embedding", "EmbeddingBag")
NORM_MODULES = ("LayerNorm", "RMSNorm", "GroupNorm", "LocalResponseNorm", "_NormBase")
EMBEDDING_NAMES = ("*embed*", "wte.*", "wpe.*", "*.wte.*", "*.wpe.*")
HEAD_NAMES = tuple(
    pattern
    for head in ("head", "lm_head", "heads", "classifier", "final_layer", "output_layer")
    for pattern in (f"{head}.*", f"*.{head}.*")
)


def default_rules() -> list[Rule]:
    """The rules used when none are given: hidden matrices to the matrix update, everything else to AdamW.

    In order: embeddings (by owning module, then by name), norms (by owning module: a 2-d gain bank is no matrix), heads
    (by name), matrices (2-d), everything else (biases, gains, scalars, and n-d parameters: `"flatten"` and `"batch"`
    are explicit choices). Returns a new list, to be edited freely: put own rules in front, as the first match decides.
    """
    return [
        Rule(FALLBACK, module=EMBEDDING_MODULES, label="embedding"),
        Rule(FALLBACK, module=NORM_MODULES, label="norm"),
        Rule(FALLBACK, name=EMBEDDING_NAMES, label="embedding (by name)"),
        Rule(FALLBACK, name=HEAD_NAMES, label="head (by name)"),
        Rule(MATRIX, ndim=2, label="hidden matrix"),
        Rule(FALLBACK, label="bias, gain, scalar or n-d"),
    ]


def matrix_rules(view: str | View = "matrix") -> list[Rule]:
    """Every parameter to the optimizer's own update; what its view cannot take is refused at construction."""
    return [Rule(MATRIX, view=view, label="all")]


def elementwise_rules() -> list[Rule]:
    """Every parameter, of any shape, to the optimizer's own update, which treats all elements alike."""
    return matrix_rules("elementwise")
