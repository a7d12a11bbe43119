"""From a parameter group's options to the arguments of an update.

A binding says which update a group uses, which compile-time arguments a matrix of it gets, and which numbers it gets at
every step. It also checks the options. Bindings keep no state: one serves all optimizers of a class.
"""

from __future__ import annotations

import linecache
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import required

from kaon.driver import extension
from kaon.errors import SourceLocation, UpdateValueError
from kaon.language import coefficients as tables

if TYPE_CHECKING:
    from kaon import Update

Group = Mapping[str, Any]
Refresh = tuple[int, int]
"""Period, and how many steps after the first one it happens for the first time."""


def as_number(value: Any, label: str) -> float:
    """`value` (a number or a tensor of one element) as a float.

    Raises:
        TypeError: not a number; text is none.
        ValueError: a tensor of several elements.
    """
    if isinstance(value, str):
        raise TypeError(f"expects {label} as a number, but got {value!r}")
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {label} must be 1-element, but got shape {tuple(value.shape)}")
        return float(value.item())
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"expects {label} as a number, but got {value!r}") from None


def to_number(value: Any, label: str, low: float = 0.0, high: float = math.inf) -> float:
    """`value` (a number or a tensor of one element) as a float in `[low, high)`.

    Raises:
        TypeError: not a number.
        ValueError: a tensor of several elements, NaN, or out of range.
    """
    number = as_number(value, label)
    if not low <= number < high:
        upper = "finite" if high == math.inf else f"less than {high:g}"
        raise ValueError(f"expects {label} to be {upper} and at least {low:g}, but got {number}")
    return number


def check_choice(value: Any, label: str, choices: tuple[str, ...]) -> str:
    """`value`, which must be one of `choices`. Raises ValueError otherwise."""
    if value not in choices:
        raise ValueError(f"expects {label} out of {', '.join(choices)}, but got {value!r}")
    return value


def coefficient_rows(coefficients: Any, steps: int | None) -> tuple[tables.Row, ...]:
    """One `(a, b, c)` per Newton-Schulz step.

    Args:
        coefficients: a table of `kaon.language.coefficients`, its name, one triple, or one triple per step (the last
            one repeats).
        steps: their number; None means the table's own, 5 for one triple.

    Raises:
        ValueError: unknown name, a step without exactly three values, or not 1 to 99 steps.
    """
    if steps is not None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"expects ns_steps as an integer of at least 1, but got {steps!r}")
        if steps >= 100:
            raise ValueError("Number of steps must be less than 100 for computational efficiency")
    if isinstance(coefficients, str):
        return tables.named(coefficients).table(steps)
    if isinstance(coefficients, tables.Coefficients):
        return coefficients.table(steps)
    entries = tuple(coefficients)
    one = bool(entries) and all(isinstance(entry, (int, float)) for entry in entries)
    rows = (entries,) if one else entries
    if not rows or any(isinstance(row, (int, float, str)) or len(row) != 3 for row in rows):
        raise ValueError(
            f"Coefficients must be a tuple of exactly 3 values, or one such tuple per step: {coefficients}"
        )
    table = tuple((float(a), float(b), float(c)) for a, b, c in rows)
    return tables.Coefficients("custom", table, default_steps=5 if one else len(table)).table(steps)


class Binding(ABC):
    """How groups drive one update (or one family of updates that differ in their states)."""

    name: str
    structure_keys: tuple[str, ...]
    """The options that `structure` reads."""
    counts_updates = False
    """Whether the update's first scalar is `count`, how often the parameter was updated, this time included. It is kept
    as the state "step" of the parameter, which falls behind its group's where the parameter had no gradient."""
    torch_name: str | None = None
    """The optimizer of torch.optim whose options and states have the same names and meanings."""

    @abstractmethod
    def update(self, group: Group) -> Update:
        """The update that `group` asks for."""

    @abstractmethod
    def constexprs(self, group: Group, rows: int, cols: int) -> dict[str, Any]:
        """Compile-time arguments for one matrix of `rows` x `cols`."""

    @abstractmethod
    def structure(self, group: Group) -> tuple[Any, ...]:
        """The options that are compiled in: a change of this value, and nothing else, means a new program."""

    @abstractmethod
    def values(self, group: Group, decay: bool) -> dict[str, float]:
        """The run-time scalars by name, checked, without `count`. `decay` False switches weight decay off."""

    def check(self, group: Group) -> None:
        """Raises ValueError or TypeError where an option of `group` is not acceptable."""
        self.structure(group)
        self.values(group, True)
        phase = group.get("phase", 0)
        if phase != "staggered" and (isinstance(phase, bool) or not isinstance(phase, int) or phase < 0):
            raise ValueError(f'expects phase as an integer of at least 0 or "staggered", but got {phase!r}')

    def refreshes(self, group: Group, rows: int, cols: int, dtype: str) -> tuple[Refresh, ...]:
        """What of the update on a matrix of this shape happens at some steps only; empty where all steps are alike.

        Raises kaon.errors.LanguageError where the update cannot take such a matrix; the built-in updates take all.
        """
        del group, rows, cols, dtype
        return ()

    def offset(self, group: Group, index: int) -> int:
        """How many steps later than its update says the `index`-th matrix parameter refreshes."""
        del group, index
        return 0

    def saved_structure(self, group: Group) -> dict[str, Any]:
        """Options that a checkpoint must share with the optimizer that loads it, because states depend on them."""
        del group
        return {}

    def handles_maximize(self) -> bool:
        """Whether the update itself turns the gradient's sign for `maximize`."""
        return False


class AdamWBinding(Binding):
    """AdamW; with `prefix` "adamw_" the fallback inside another optimizer's groups, whose rate follows the group's."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.name = "adamw"
        self.structure_keys = ("maximize",) if prefix else ("amsgrad", "maximize")

    counts_updates = True
    torch_name = "AdamW"

    def update(self, group: Group) -> Update:
        from . import updates

        return updates.adamw_amsgrad if self._amsgrad(group) else updates.adamw

    def _amsgrad(self, group: Group) -> bool:
        return not self.prefix and bool(group["amsgrad"])

    def structure(self, group: Group) -> tuple[Any, ...]:
        return (self._amsgrad(group), bool(group["maximize"]))

    def constexprs(self, group: Group, rows: int, cols: int) -> dict[str, Any]:
        del rows, cols
        return {"maximize": bool(group["maximize"])}

    def values(self, group: Group, decay: bool) -> dict[str, float]:
        prefix = self.prefix
        rate = to_number(group["lr"], "lr")
        if prefix:
            rate *= to_number(group["adamw_lr_ratio"], "adamw_lr_ratio")
        betas = group[prefix + "betas"]
        if len(betas) != 2:
            raise ValueError(f"expects two {prefix}betas, but got {betas}")
        return {
            "lr": rate,
            "beta1": to_number(betas[0], f"{prefix}betas[0]", high=1.0),
            "beta2": to_number(betas[1], f"{prefix}betas[1]", high=1.0),
            "eps": to_number(group[prefix + "eps"], prefix + "eps"),
            "weight_decay": to_number(group[prefix + "weight_decay"], prefix + "weight_decay") if decay else 0.0,
        }

    def saved_structure(self, group: Group) -> dict[str, Any]:
        return {"amsgrad": self._amsgrad(group)}

    def handles_maximize(self) -> bool:
        return True


SCALE_ALIASES = {
    None: "original",
    "original": "original",
    "kj": "original",
    "shape_scaling": "original",
    "match_rms_adamw": "match_rms_adamw",
    "moonlight": "match_rms_adamw",
    "rms_norm": "match_rms_adamw",
    "spectral": "spectral",
    "unit_rms_norm": "spectral",
    "sqrt_max": "sqrt_max",
    "none": "none",
}
MOMENTUM_FORMS = ("lerp", "heavy_ball")
DECAY_MODES = ("decoupled", "after", "cautious")
NORMALIZATIONS = ("max", "add")
MAX_PERIOD = 240
"""What one program can tell apart: the compiler makes a sequence of launches for each kind of step."""
ROW_SCALES = ("frobenius", "unit", "ns_matched", "calibrated")


class MuonBinding(Binding):
    """Muon in all its conventions."""

    name = "muon"
    torch_name = "Muon"
    structure_keys: tuple[str, ...] = (
        "adjust_lr_fn",
        "ns_coefficients",
        "ns_steps",
        "ns_norm_scale",
        "eps",
        "ns_normalize",
        "nesterov",
        "momentum_form",
        "decay_mode",
        "maximize",
    )

    def update(self, group: Group) -> Update:
        del group
        from . import updates

        return updates.muon

    def structure(self, group: Group) -> tuple[Any, ...]:
        scale = group["adjust_lr_fn"]
        if scale not in SCALE_ALIASES:
            raise ValueError(
                f"Adjust learning rate function {scale} is not supported; expects one of "
                f"{', '.join(str(name) for name in SCALE_ALIASES)}"
            )
        return (
            coefficient_rows(group["ns_coefficients"], group["ns_steps"]),
            to_number(group["ns_norm_scale"], "ns_norm_scale"),
            to_number(group["eps"], "eps"),
            check_choice(group["ns_normalize"], "ns_normalize", NORMALIZATIONS),
            bool(group["nesterov"]),
            check_choice(group["momentum_form"], "momentum_form", MOMENTUM_FORMS),
            SCALE_ALIASES[scale],
            check_choice(group["decay_mode"], "decay_mode", DECAY_MODES),
            bool(group["maximize"]),
        )

    def constexprs(self, group: Group, rows: int, cols: int) -> dict[str, Any]:
        del rows, cols
        names = (
            "coefficients",
            "norm_scale",
            "eps",
            "normalize",
            "nesterov",
            "momentum_form",
            "scale",
            "decay_mode",
            "maximize",
        )
        return dict(zip(names, MuonBinding.structure(self, group), strict=True))

    def values(self, group: Group, decay: bool) -> dict[str, float]:
        return {
            "lr": to_number(group["lr"], "lr"),
            "momentum": to_number(group["momentum"], "momentum"),
            "weight_decay": to_number(group["weight_decay"], "weight_decay") if decay else 0.0,
        }

    def handles_maximize(self) -> bool:
        return True


class PeriodicRowwiseMuonBinding(MuonBinding):
    """Periodic Row-wise Muon: Muon's options and the row step's."""

    name = "periodic_rowwise_muon"
    structure_keys = (*MuonBinding.structure_keys, "period", "row_scale", "row_eps")

    def update(self, group: Group) -> Update:
        from . import updates

        calibrated = group["row_scale"] == "calibrated"
        return updates.calibrated_rowwise_muon if calibrated else updates.periodic_rowwise_muon

    def period(self, group: Group) -> int:
        """Steps between refreshes, checked."""
        period = group["period"]
        if isinstance(period, bool) or not isinstance(period, int) or period < 1:
            raise ValueError(f"expects period as an integer of at least 1, but got {period!r}")
        if period > MAX_PERIOD:
            raise ValueError(f"expects period of at most {MAX_PERIOD}, but got {period}")
        return period

    def refreshes(self, group: Group, rows: int, cols: int, dtype: str) -> tuple[Refresh, ...]:
        del rows, cols, dtype
        return ((self.period(group), 0),)

    def offset(self, group: Group, index: int) -> int:
        return (index if group["phase"] == "staggered" else group["phase"]) % self.period(group)

    def structure(self, group: Group) -> tuple[Any, ...]:
        return (
            *super().structure(group),
            self.period(group),
            check_choice(group["row_scale"], "row_scale", ROW_SCALES),
            to_number(group["row_eps"], "row_eps"),
        )

    def constexprs(self, group: Group, rows: int, cols: int) -> dict[str, Any]:
        constexprs = super().constexprs(group, rows, cols)
        *_, period, row_scale, row_eps = self.structure(group)
        constexprs.update(period=period, row_eps=row_eps)
        if row_scale != "calibrated":
            gain = expected_gain(constexprs["coefficients"], rows, cols) if row_scale == "ns_matched" else 1.0
            constexprs.update(row_scale="unit" if row_scale == "unit" else "frobenius", row_gain=gain)
        return constexprs

    def values(self, group: Group, decay: bool) -> dict[str, float]:
        return {**super().values(group, decay), "row_lr_ratio": to_number(group["row_lr_ratio"], "row_lr_ratio")}

    def saved_structure(self, group: Group) -> dict[str, Any]:
        return {"period": self.period(group), "row_scale": group["row_scale"], "phase": group["phase"]}


def expected_gain(steps: tuple[tuple[float, float, float], ...], rows: int, cols: int, points: int = 2048) -> float:
    """`||NS(X)||_F / sqrt(min(rows, cols))` expected of a Gaussian matrix: what `row_scale="ns_matched"` matches.

    The squared singular values of a Gaussian `s x l` matrix over its squared Frobenius norm follow `x / s` with `x`
    Marchenko-Pastur distributed of ratio `s / l`; the polynomial's square is averaged over that density. The
    substitution `x = 1 + ratio - 2 sqrt(ratio) cos(angle)` removes the density's square-root ends. A singular value
    never exceeds the norm, which the distribution knows for large `s` only; a single one is the norm.
    """
    short, long = min(rows, cols), max(rows, cols)
    ratio = short / long
    total = weights = 0.0
    for index in range(points):
        angle = math.pi * (index + 0.5) / points
        x = 1.0 + ratio - 2.0 * math.sqrt(ratio) * math.cos(angle)
        weight = math.sin(angle) ** 2 / x
        sigma = min(1.0, math.sqrt(x / short)) if short > 1 else 1.0
        for a, b, c in steps:
            square = sigma * sigma
            sigma *= a + square * (b + square * c)
        total += weight * sigma * sigma
        weights += weight
    return math.sqrt(total / weights)


class UpdateBinding(Binding):
    """Any user's update: options are the names of its scalars and constexprs."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self.name = update.name
        self._scalars = tuple(spec.name for spec in update.signature.scalars)
        self._constexprs = tuple(spec.name for spec in update.signature.constexprs)
        self.structure_keys = self._constexprs
        self._refreshes: dict[tuple[Any, ...], tuple[Refresh, ...]] = {}

    def defaults(self) -> dict[str, Any]:
        """Every option with its default; torch's `required` marks those without one."""
        from kaon.compiler.update import REQUIRED

        signature = self._update.signature
        scalars = {spec.name: required if spec.default is None else spec.default for spec in signature.scalars}
        constexprs = {
            spec.name: required if spec.default is REQUIRED else spec.default for spec in signature.constexprs
        }
        return {**scalars, **constexprs}

    def update(self, group: Group) -> Update:
        del group
        return self._update

    def check(self, group: Group) -> None:
        super().check(group)
        if group.get("phase") == "staggered" and "period" not in self._constexprs:
            raise ValueError(f'phase "staggered" needs a constexpr `period`, which update {self.name} does not have')

    def refreshes(self, group: Group, rows: int, cols: int, dtype: str) -> tuple[Refresh, ...]:
        options = self.structure(group)
        key = (rows, cols, dtype, options, *map(type, options))
        try:
            if key in self._refreshes:
                return self._refreshes[key]
        except TypeError:
            pass  # an option that cannot be hashed: the update itself says so, by name
        constexprs = self.constexprs(group, rows, cols)
        text = self._update.specialize(rows, cols, dtype, dtype, constexprs, symbol="check").text
        self._refreshes[key] = found = refreshes_of(self._update.name, text)
        return found

    def structure(self, group: Group) -> tuple[Any, ...]:
        return tuple(group[name] for name in self._constexprs)

    def constexprs(self, group: Group, rows: int, cols: int) -> dict[str, Any]:
        del rows, cols
        return {name: group[name] for name in self._constexprs}

    def values(self, group: Group, decay: bool) -> dict[str, float]:
        # What a user's scalar means is not known, so only what makes no sense for any of them is refused.
        values = {name: to_number(group[name], name, low=0.0 if name == "lr" else -math.inf) for name in self._scalars}
        if not decay and "weight_decay" in values:
            values["weight_decay"] = 0.0
        return values

    def offset(self, group: Group, index: int) -> int:
        if group["phase"] != "staggered":
            return int(group["phase"])
        period = group["period"]
        # What a period may be is the update's matter; an unusable one is refused with its line.
        return index % period if isinstance(period, int) and period >= 1 else 0

    def saved_structure(self, group: Group) -> dict[str, Any]:
        return {name: group[name] for name in (*self._constexprs, "phase")}

    def handles_maximize(self) -> bool:
        return "maximize" in self._constexprs


def refreshes_of(name: str, text: str) -> tuple[Refresh, ...]:
    """The distinct periods and phases of the `kl.every` in the dialect text of update `name`.

    Raises:
        kaon.errors.UpdateValueError: they repeat together after more than `MAX_PERIOD` steps; at the longest one.
    """
    if "kaon.every" not in text:
        return ()
    found: dict[Refresh, str] = {}

    def collect(operation: Any) -> None:
        if operation.name == "kaon.every":
            period, phase = operation.attributes["period"], operation.attributes["phase"]
            found.setdefault((period, (phase - 1) % period), operation.location)
        for region in operation.regions:
            for block in region.blocks:
                for inner in block.operations:
                    collect(inner)

    collect(extension().parse(text).to_python())
    together = math.lcm(*(period for period, _ in found))
    if together > MAX_PERIOD:
        periods = sorted({period for period, _ in found})
        longest = max(found)
        raise UpdateValueError(
            f"expects periods that repeat together after at most {MAX_PERIOD} steps, but update `{name}` has "
            f"{', '.join(map(str, periods))}" + (f", which do so after {together}" if len(periods) > 1 else ""),
            location=_source_location(found[longest]),
        )
    return tuple(sorted(refresh for refresh in found if refresh[0] > 1))


_POSITION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')


def _source_location(text: str) -> SourceLocation | None:
    """The place that a printed MLIR location names, with the calls around it."""
    location = None
    for filename, line, column in reversed(_POSITION.findall(text)):
        source = linecache.getline(filename, int(line)).rstrip("\n")
        end = max(len(source.rstrip()), int(column)) + 1
        location = SourceLocation(filename, int(line), int(column), end, source, caller=location)
    return location
