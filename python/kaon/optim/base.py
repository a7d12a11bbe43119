"""The optimizer that drives compiled updates, as a full `torch.optim.Optimizer`."""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from kaon.errors import InternalError, LanguageError, ShapeError, StaticAssertionError
from kaon.language.coefficients import Coefficients

from .bindings import MAX_PERIOD, Binding, Refresh, check_choice, to_number
from .checkpoint import check_layout, checked_states, from_torch, layout
from .devices import check_product_dtype, target_name
from .parameters import (
    PARAMETER_DTYPES,
    Route,
    check_parameter,
    compute_dtype,
    describe,
    expand_modules,
    find_shared,
    route,
)
from .plan import Plan
from .program import Program, Record
from .rules import FALLBACK, MATRIX, ParameterInfo, Rule, default_rules

NONFINITE_POLICIES = ("skip", "raise", "propagate")
CHECKPOINT_VERSION = 1
GROUP_OPTION = "group option"
"""The rule that a group's own `update` or `view` stands for."""


class KaonOptimizer(torch.optim.Optimizer):
    """Base of all Kaon optimizers; use a subclass, or `kaon.optimizer(update)`.

    One optimizer takes a whole model. `rules` say which parameters get the optimizer's own update (`"matrix"`) and
    which its AdamW (`"adamw"`); `plan()` shows the outcome. Parameters of all groups and both updates run as one
    program per step and device, however many groups there are. Parameters on the CPU are stepped there, those on a CUDA
    device by its GPU, on torch's current stream. Programs are compiled on the first step (or by `compile()`), never
    again for new values of run-time scalars such as `lr`.

    Args:
        params: a module (then rules can see which module owns a parameter), `named_parameters()`, `parameters()`, or
            a list of group dicts, each of whose `"params"` may be any of these. Options that are tensors are copied.
        defaults: options of groups that do not give their own.
        rules: the routing table, first match decides; default `default_rules()`.
        nonfinite: what a step does when a gradient holds inf or NaN. `"skip"`: nothing changes, `nonfinite_steps` goes
            up by one, and the first time a warning names the parameters; `"raise"`: nothing changes, FloatingPointError
            names the parameters; `"propagate"`: no check.
        threads: threads of steps on the CPU; default `torch.get_num_threads()` when compiled. Results do not depend
            on it.
        product_dtype: what matrix products (Newton-Schulz) on a GPU read and give, summed in float32: "bfloat16", the
            default, or "float16", or torch's dtypes. float16 rounds eight times as finely, and products beyond 65504
            are infinite, which those of the optimizers here stay far below. On the CPU products are computed in
            float32 (float64 for float64 parameters), and the option is refused where nothing is on a GPU.

    Group options that every optimizer knows, beside those of its update: `maximize`; `update` (`"matrix"` or
    `"adamw"`) and `view` override the rules for a whole group; `step` counts the group's steps.

    Warns:
        UserWarning: at construction, when every parameter went to the fallback.

    Raises:
        ValueError, TypeError, RuntimeError: at construction and in `add_param_group`, with index, name and shape, for
            parameters that no update here can take, among them two that share memory; in `step`, before anything has
            changed, for unusable gradients or options.
        kaon.errors.LanguageError: at construction and in `add_param_group`, for a mistake in a user's update, with its
            line; where it may be due to the shape of a parameter, a note names that.
    """

    matrix_binding: ClassVar[Binding]
    fallback_binding: ClassVar[Binding | None] = None

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        rules: Iterable[Rule] | None = None,
        nonfinite: str = "skip",
        threads: int | None = None,
        product_dtype: str | torch.dtype | None = None,
    ) -> None:
        if isinstance(params, (set, frozenset)):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets "
                "will change between runs. Please use a list instead."
            )
        if threads is not None and threads < 1:
            raise ValueError(f"expects threads of at least 1, but got {threads}")
        self._rules = list(default_rules() if rules is None else rules)
        self._nonfinite = check_choice(nonfinite, "nonfinite", NONFINITE_POLICIES)
        self._threads = threads
        self._product_dtype = None if product_dtype is None else check_product_dtype(product_dtype)
        self._routes: list[list[Route]] = []
        self._programs: list[Program] | None = None
        self._pending_state: dict[int, dict[str, Any]] | None = None
        self.nonfinite_steps = 0
        """Steps skipped because a gradient was not finite."""
        defaults.setdefault("step", 0)
        defaults.setdefault("maximize", False)
        try:
            super().__init__([{"params": params}] if isinstance(params, nn.Module) else params, defaults)
        except InternalError:
            raise  # its frames are what a report needs
        except LanguageError as error:
            raise error.with_traceback(None) from None
        if self._product_dtype is not None:
            self._check_product_device()
        self._warn_without_matrices()

    # -- construction -----------------------------------------------------------------------------------------------

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The routing table in use."""
        return tuple(self._rules)

    @property
    def nonfinite(self) -> str:
        """What a step does when a gradient holds inf or NaN: "skip", "raise" or "propagate"."""
        return self._nonfinite

    @property
    def product_dtype(self) -> str | None:
        """What was asked for as the dtype of products on a GPU; None: its default. `plan()` shows what is used."""
        return self._product_dtype

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; checked, routed and given its states at once.

        Its step count starts at 0, so its first refresh is its own first step, and its bias corrections start afresh.
        Other groups keep their states and phases. On error the optimizer is as it was.
        """
        owners = expand_modules(param_group) if isinstance(param_group, dict) else {}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._normalize_group(group)
            for binding in self._bindings().values():
                binding.check(group)
            routes = self._route_group(group, owners)
            self._check_memory()
        except Exception as error:
            self.param_groups.pop()
            if isinstance(error, LanguageError) and not isinstance(error, InternalError):
                raise error.with_traceback(None) from None
            raise
        self._routes.append(routes)
        for parameter, chosen in zip(group["params"], routes, strict=True):
            if parameter.requires_grad:
                self._ensure_state(parameter, chosen, group)
        self._programs = None

    def _bindings(self) -> dict[str, Binding]:
        bindings = {MATRIX: self.matrix_binding}
        if self.fallback_binding is not None:
            bindings[FALLBACK] = self.fallback_binding
        return bindings

    def _normalize_group(self, group: dict[str, Any]) -> None:
        """Bring options of `group` into the form in which they are kept: plain data that checkpoints load safely."""
        for key, value in group.items():
            if isinstance(value, Tensor):
                # Schedulers write into a tensor option in place; it must be nobody else's, nor another group's.
                group[key] = value.detach().clone()
        rate = group.pop("adamw_lr", None)
        if rate is not None:
            group["adamw_lr_ratio"] = rate_ratio(rate, group["lr"])
        if isinstance(group.get("ns_coefficients"), Coefficients):
            group["ns_coefficients"] = group["ns_coefficients"].table(group["ns_steps"])
        if group.get("view") is not None:
            group["view"] = str(group["view"])

    def _route_group(self, group: dict[str, Any], owners: dict[int, tuple[nn.Module, ...]]) -> list[Route]:
        rules: Sequence[Rule] = self._rules
        if group.get("update") is not None or group.get("view") is not None:
            rules = [Rule(group.get("update") or MATRIX, view=group.get("view"), label=GROUP_OPTION)]
        first = sum(len(other["params"]) for other in self.param_groups[:-1])
        names = group.get("param_names") or [None] * len(group["params"])
        optimizer = type(self).__name__
        routes = []
        for index, (name, parameter) in enumerate(zip(names, group["params"], strict=True), first):
            if nn.parameter.is_lazy(parameter):
                raise ValueError(f"{optimizer} expects shaped parameters, but parameter {index} is not initialized yet")
            label = describe(index, name, parameter)
            check_parameter(label, optimizer, parameter)
            info = ParameterInfo(name, tuple(parameter.shape), owners.get(id(parameter), ()))
            chosen = route(label, optimizer, parameter, info, rules, tuple(self._bindings()))
            self._refreshes(label, parameter, chosen, group)
            routes.append(chosen)
        return routes

    def _refreshes(self, label: str, parameter: Tensor, chosen: Route, group: dict[str, Any]) -> tuple[Refresh, ...]:
        """The refreshes of all matrices of `parameter`, which the update is thereby known to take."""
        binding, dtype = self._bindings()[chosen.update], PARAMETER_DTYPES[parameter.dtype]
        found: dict[Refresh, None] = {}
        for rows, cols in dict.fromkeys((item.rows, item.cols) for item in chosen.view.matrices(parameter.shape)):
            try:
                found.update(dict.fromkeys(binding.refreshes(group, rows, cols, dtype)))
            except (ShapeError, StaticAssertionError) as error:
                error.add_note(f"{type(self).__name__} compiled it for {label}")
                raise
        return tuple(sorted(found))

    def _check_memory(self) -> None:
        """Refuse two parameters that share memory: their updates would overwrite each other, in no certain order.
        Frozen ones are not updated."""
        labels: dict[int, str] = {}
        parameters: list[Tensor] = []
        for group in self.param_groups:
            names = group.get("param_names") or [None] * len(group["params"])
            for name, parameter in zip(names, group["params"], strict=True):
                if id(parameter) not in labels:
                    labels[id(parameter)] = describe(len(labels), name, parameter)
                    if parameter.requires_grad:
                        parameters.append(parameter)
        pair = find_shared(parameters)
        if pair is not None:
            first, second = (labels[id(parameter)] for parameter in pair)
            raise ValueError(
                f"{type(self).__name__} expects every parameter in memory of its own, but {second} shares memory "
                f"with {first}; tied weights are one and the same Parameter"
            )

    def _check_product_device(self) -> None:
        """Refuse an option about GPUs where there is none: it would change nothing."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        if all(target_name(parameter.device) == "cpu" for parameter in parameters):
            raise ValueError(
                f"{type(self).__name__} expects parameters on a CUDA device for product_dtype "
                f"{self._product_dtype!r}, but all {len(parameters)} are on the CPU, where products are of float32 "
                "(float64 for float64 parameters)"
            )

    def _warn_without_matrices(self) -> None:
        """Say so where everything went to the fallback, unless the groups themselves asked for that."""
        chosen = [route for routes in self._routes for route in routes]
        asked = all(group.get("update") == FALLBACK for group in self.param_groups)
        if not chosen or asked or any(route.update == MATRIX for route in chosen):
            return
        reasons = ", ".join(f'"{rule}" ({count})' for rule, count in Counter(route.rule for route in chosen).items())
        deep = any(parameter.dim() > 2 for group in self.param_groups for parameter in group["params"])
        hint = "; for more than 2 dimensions add a rule with a view, as Rule('matrix', ndim=4, view='flatten')"
        _warn(
            f"no parameter gets the update of {type(self).__name__}: all {len(chosen)} go to AdamW, by rule "
            f"{reasons}{hint if deep else ''}"
        )

    def _ensure_state(self, parameter: Tensor, chosen: Route, group: dict[str, Any]) -> dict[str, Any]:
        """The states of `parameter`, made where they do not exist yet: tensors, and the whole number "step"."""
        state = self.state[parameter]
        shape = parameter.shape
        binding = self._bindings()[chosen.update]
        if binding.counts_updates:
            state.setdefault("step", 0)
        for spec in binding.update(group).signature.states:
            if spec.name not in state:
                state[spec.name] = torch.full(
                    chosen.view.state_shape(shape, spec.kind),
                    spec.init,
                    dtype=compute_dtype(parameter.dtype),
                    device=parameter.device,
                )
        return state

    # -- stepping ---------------------------------------------------------------------------------------------------

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one step.

        Everything is checked before anything changes. Parameters without a gradient, and frozen ones, stay bitwise
        unchanged. Gradients are only read. Every group's `step` goes up by one, whether its parameters have gradients
        or not, except when the step is skipped because a gradient is not finite.

        Args:
            closure: evaluated once with gradients enabled, before gradients are looked at; its value is returned.

        Raises:
            ValueError, TypeError, RuntimeError: unusable gradients or options; nothing has changed.
            FloatingPointError: a gradient is not finite and `nonfinite="raise"`; nothing has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    def _step(self) -> None:
        try:
            self._run(self._compiled_programs())
        finally:
            self._release()

    def _release(self) -> None:
        """Let go of the gradients that programs hold."""
        for program in self._programs or ():
            program.release()

    def _run(self, programs: list[Program]) -> None:
        check = self._nonfinite != "propagate"
        if check and len(programs) > 1:
            # A program checks its own gradients only; none may start before all are known to be finite.
            bad = sum(len(program.nonfinite_records()) for program in programs)
            check = False
        else:
            bad = 0
        if bad == 0:
            for program in programs:
                bad += program.run(check)
        if bad:
            if self._nonfinite == "raise":
                raise FloatingPointError(f"gradients are not finite: {_nonfinite(programs)}; nothing was changed")
            if self.nonfinite_steps == 0:
                self._warn_skipped(programs)
            self.nonfinite_steps += 1
            return
        for group in self.param_groups:
            group["step"] += 1

    def _warn_skipped(self, programs: list[Program]) -> None:
        _warn(
            f"skipped a step of {type(self).__name__}, because gradients are not finite: {_nonfinite(programs)}; more "
            'such steps are counted in nonfinite_steps without a word (nonfinite="raise" stops at the first, '
            '"propagate" does not look; warnings.filterwarnings("ignore", "skipped a step") silences this)'
        )

    def _compiled_programs(self) -> list[Program]:
        """The programs for the next step, up to date and compiled."""
        try:
            programs = self._collect()
            for program in programs:
                program.compile()
        except InternalError:
            raise  # its frames are what a report needs
        except LanguageError as error:
            raise error.with_traceback(None) from None
        return programs

    def _collect(self) -> list[Program]:
        """The programs for the next step, with addresses and scalars up to date."""
        programs = self._programs
        for position, group in enumerate(self.param_groups):
            if type(group["step"]) is not int or group["step"] < 0:
                raise TypeError(
                    f"parameter group {position}: expects step as an integer of at least 0, but got {group['step']!r}"
                )
        if programs is not None and all([program.collect(self.state) for program in programs]):
            return programs
        self._release()
        programs = self._build()
        if not all([program.collect(self.state) for program in programs]):
            raise RuntimeError(
                f"{type(self).__name__} expects options, states and the types of gradients to stay as they are while a "
                "step looks at them, but they were others at the second look"
            )
        return programs

    def _build(self) -> list[Program]:
        """The programs of the current groups: one per device, unless groups joined later or their periods do not go
        together."""
        self._programs = None
        self._check_options()
        self._check_memory()
        phases = self._phases()
        cohorts: list[_Cohort] = []
        taken: set[int] = set()
        for position, (group, routes) in enumerate(zip(self.param_groups, self._routes, strict=True)):
            if len(group["params"]) != len(routes):
                raise ValueError(
                    f"parameter group {position} was made with {len(routes)} parameters, but has "
                    f"{len(group['params'])} now; add parameters with add_param_group"
                )
            names = group.get("param_names") or [None] * len(group["params"])
            for name, parameter, chosen in zip(names, group["params"], routes, strict=True):
                index = len(taken)
                if id(parameter) in taken:
                    continue  # torch warns about duplicates when the group is added; one update per step is enough
                taken.add(id(parameter))
                label = describe(index, name, parameter)
                check_parameter(label, type(self).__name__, parameter)
                active = parameter.requires_grad
                refreshes = self._refreshes(label, parameter, chosen, group)
                period = math.lcm(*(period for period, _ in refreshes))
                cohort = _Cohort.joining(cohorts, parameter.device, group["step"], period)
                cohort.records.append(
                    Record(
                        index=index,
                        parameter=parameter,
                        label=label,
                        name=name or f"parameter {index}",
                        group=group,
                        binding=self._bindings()[chosen.update],
                        route=chosen,
                        state=self._ensure_state(parameter, chosen, group) if active else None,
                        refreshes=refreshes,
                        phase=phases[id(parameter)],
                    )
                )
        self._programs = [
            Program(cohort.records, cohort.device, self._threads, self._product_dtype)
            for cohort in cohorts
            if cohort.records
        ]
        return self._programs

    def _check_options(self) -> None:
        """Check every group's options before anything is built from them."""
        for position, group in enumerate(self.param_groups):
            for binding in self._bindings().values():
                try:
                    binding.check(group)
                except (ValueError, TypeError) as error:
                    raise type(error)(f"parameter group {position}: {error}") from None

    def _phases(self) -> dict[int, int]:
        """Each parameter's phase offset; "staggered" gives the i-th matrix parameter i mod K."""
        phases: dict[int, int] = {}
        count = 0
        for group, routes in zip(self.param_groups, self._routes, strict=True):
            for parameter, chosen in zip(group["params"], routes, strict=False):
                phases[id(parameter)] = self._bindings()[chosen.update].offset(group, count)
                count += chosen.update == MATRIX
        return phases

    def compile(self) -> None:
        """Compile now what the first step would compile (for example before a process group's first collective)."""
        try:
            self._compiled_programs()
        finally:
            self._release()

    def plan(self, show: bool = True, kernels: bool = False) -> Plan:
        """What happens to each parameter: rule, update, view, matrices, kernels, and FLOPs and bytes per step.

        Prints it, unless `show` is False, and returns it as data. With `kernels`, prints also each kernel by name.
        FLOPs and bytes are averages over the phases of the period. Compiles if need be.
        """
        self.compile()
        programs = self._programs or []
        check = self._nonfinite != "propagate" and len(programs) == 1
        plan = Plan.of(programs, self._routing_notes(), self._product_dtype, check)
        if show:
            print(plan)
            if kernels:
                print(f"\n{plan.kernel_table()}")
        return plan

    def _routing_notes(self) -> list[str]:
        """What the rules could not see."""
        if self.fallback_binding is None or not any(rule.name or rule.module for rule in self._rules):
            return []
        blind = sum(
            chosen.update == MATRIX and chosen.rule != GROUP_OPTION
            for group, routes in zip(self.param_groups, self._routes, strict=True)
            if not group.get("param_names")
            for chosen in routes
        )
        if not blind:
            return []
        return [
            f"{blind} of the matrices came as bare tensors, among which rules cannot tell embeddings and heads from "
            "hidden matrices: give the optimizer the module instead of its parameters()"
        ]

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As torch's; under `"kaon"` also the layout of parameters, by which loading detects another order or model."""
        state_dict = super().state_dict()
        state_dict["kaon"] = {
            "version": CHECKPOINT_VERSION,
            "nonfinite_steps": self.nonfinite_steps,
            "layout": layout(self.param_groups, self._routes),
        }
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict()` saved: bits and dtypes of all states, options, and step counts, hence phases.

        States are copied. Options of groups are replaced by the saved ones, as in torch. `AdamW` also loads state dicts
        of torch.optim.AdamW, and `Muon` those of torch.optim.Muon; options that those lack stay as they are.

        Raises:
            ValueError: names (where both sides have them; what torch.compile and data parallelism add to names does not
                count), shapes, order, routing or structure (period, row scale, phase, ...) differ, or a state is
                missing; nothing has changed then.
        """
        handle = self.register_load_state_dict_pre_hook(KaonOptimizer._take_state)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._pending_state = None
        self.nonfinite_steps = int(state_dict.get("kaon", {}).get("nonfinite_steps", 0))

    def _take_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Check a state dict; set its states aside for `__setstate__`, past torch's cast to the parameter's dtype."""
        given = state_dict
        state_dict = from_torch(given, type(self).__name__, self.matrix_binding, self.param_groups)
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        saved = state_dict.get("kaon", {})
        if saved.get("version", CHECKPOINT_VERSION) != CHECKPOINT_VERSION:
            raise ValueError(f"expects a state dict of version {CHECKPOINT_VERSION}, but got {saved['version']}")
        if "layout" in saved:
            check_layout(saved["layout"], layout(self.param_groups, self._routes))
        states: dict[int, dict[str, Any]] = {}
        for position, (group, mine, routes) in enumerate(zip(groups, self.param_groups, self._routes, strict=True)):
            if len(group["params"]) != len(mine["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
                )
            if not isinstance(group.get("step"), int):
                raise ValueError(f"expects an integer step count in group {position} of the state dict")
            self._check_structure(position, group, mine)
            for key, parameter, chosen in zip(group["params"], mine["params"], routes, strict=True):
                state = state_dict["state"].get(key)
                if state is None and (state_dict is not given or not self.state.get(parameter)):
                    continue  # never updated by torch, to be made anew; or frozen when saved and frozen now
                binding = self._bindings()[chosen.update]
                states[id(parameter)] = checked_states(key, parameter, chosen, binding, mine, state or {})
        self._pending_state = states
        return {**state_dict, "state": {}}

    def _check_structure(self, position: int, saved: dict[str, Any], mine: dict[str, Any]) -> None:
        for binding in self._bindings().values():
            for option, value in binding.saved_structure(mine).items():
                if option in saved and saved[option] != value:
                    raise ValueError(
                        f"loaded state dict has {option} {saved[option]!r} in group {position}, but this optimizer was "
                        f"made with {value!r}"
                    )

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_rules": self._rules,
            "_routes": self._routes,
            "_nonfinite": self._nonfinite,
            "_threads": self._threads,
            "_product_dtype": self._product_dtype,
            "nonfinite_steps": self.nonfinite_steps,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_product_dtype", None)  # which optimizers pickled by older versions lack
        self._programs = None  # compiled code and addresses are found again at the next step
        pending = self.__dict__.get("_pending_state")
        self._pending_state = None
        if pending is not None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in pending:
                        self.state[parameter] = pending[id(parameter)]


@dataclass
class _Cohort:
    """Parameters of groups that one program can step: on one device, of one step count, and of periods that repeat
    together soon."""

    device: torch.device
    step: int
    period: int
    records: list[Record] = field(default_factory=list)

    @classmethod
    def joining(cls, cohorts: list[_Cohort], device: torch.device, step: int, period: int) -> _Cohort:
        """The first of `cohorts` that a group can join, or a new one at their end."""
        for cohort in cohorts:
            together = math.lcm(cohort.period, period)
            if (cohort.device, cohort.step) == (device, step) and together <= MAX_PERIOD:
                cohort.period = together
                return cohort
        cohorts.append(cls(device, step, period))
        return cohorts[-1]


def rate_ratio(rate: Any, base: Any) -> float:
    """`rate` as a multiple of `base`, 1 where `base` is 0 (schedules scale both, so the ratio is what lasts)."""
    rate, base = to_number(rate, "adamw_lr"), float(base)
    return rate / base if base > 0.0 else 1.0


def _nonfinite(programs: list[Program]) -> str:
    """The parameters with gradients that are not finite, the first five of them."""
    names = [record.label for program in programs for record in program.nonfinite_records()]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


_LIBRARIES = tuple(f"{Path(module).parent}/" for module in (__file__, torch.__file__))


def _warn(message: str) -> None:
    """A UserWarning at the user's line, which is the first outside of this package and of torch."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
        level += 1
    warnings.warn(message, UserWarning, stacklevel=level)
