"""State dicts: which of them an optimizer may load, and how those of torch's own optimizers become Kaon's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .bindings import Binding
from .parameters import Route, compute_dtype

_WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Components that torch.compile, data parallelism and checkpointing put into the names of parameters."""

Layout = list[list[tuple[str, str]]]


def layout(groups: Sequence[Mapping[str, Any]], routes: Sequence[Sequence[Route]]) -> Layout:
    """Per parameter of each group: its name or "", and in one line shape, dtype, update and view."""
    return [
        [
            (name or "", f"{tuple(parameter.shape)} {parameter.dtype} {chosen.update} {chosen.view}")
            for name, parameter, chosen in zip(
                group.get("param_names") or [None] * len(chosen_routes), group["params"], chosen_routes, strict=True
            )
        ]
        for group, chosen_routes in zip(groups, routes, strict=True)
    ]


def check_layout(saved: Layout, mine: Layout) -> None:
    """Raises ValueError where two layouts differ. Names count only where both have them, without wrappers."""
    for position, (their_group, my_group) in enumerate(zip(saved, mine, strict=True)):
        for index, ((their_name, theirs), (my_name, ours)) in enumerate(zip(their_group, my_group, strict=False)):
            renamed = bool(their_name and my_name) and _bare(their_name) != _bare(my_name)
            if renamed or theirs != ours:
                raise ValueError(
                    f"loaded state dict has other parameters: parameter {index} of group {position} is "
                    f'"{f"{my_name} {ours}".strip()}", but the state dict has "{f"{their_name} {theirs}".strip()}"'
                )


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def update_count(value: Any, label: str) -> int:
    """How often a parameter was updated: a whole number, or torch's tensor of one. Raises ValueError otherwise."""
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
    if isinstance(number, bool) or not whole or number < 0:
        raise ValueError(f"expects state step of {label} as a whole number of updates, but got {value!r}")
    return int(number)


def from_torch(
    state_dict: dict[str, Any], optimizer: str, binding: Binding, groups: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A state dict of torch.optim.AdamW or torch.optim.Muon as one of `optimizer`; any other as it is.

    Options that torch does not have stay as in `groups`. Momenta take the dtype of our states; parameters that were
    never updated start afresh. torch's Muon counts no steps: the count starts at 0, that is with a refresh.

    Raises:
        ValueError: the state dict is of another optimizer of torch.optim.
    """
    theirs = state_dict["param_groups"]
    if "kaon" in state_dict or any("step" in group for group in theirs) or len(theirs) != len(groups):
        return state_dict
    known = "AdamW" if all("betas" in group for group in theirs) else "Muon"
    if known == "Muon" and not all("ns_coefficients" in group for group in theirs):
        known = ""
    if known == "AdamW" and not all(group.get("decoupled_weight_decay", True) for group in theirs):
        known = "Adam, whose weight decay is another"
    if not known or known != binding.torch_name:
        own = f"{optimizer} or torch.optim.{binding.torch_name}" if binding.torch_name else optimizer
        found = f"torch.optim.{known}" if known else f"an optimizer with options {sorted(theirs[0])}"
        raise ValueError(f"expects a state dict of {own}, but this one looks like that of {found}")
    states: dict[Any, dict[str, Any]] = {}
    converted = []
    for group, mine in zip(theirs, groups, strict=True):
        counts = [0]
        for key, parameter in zip(group["params"], mine["params"], strict=False):
            saved = state_dict["state"].get(key)
            if saved:
                states[key] = {
                    name: value.to(compute_dtype(parameter.dtype))
                    if isinstance(value, Tensor) and name != "step" and value.is_floating_point()
                    else value
                    for name, value in saved.items()
                }
                if "step" in saved:
                    counts.append(update_count(saved["step"], f"parameter {key}"))
        kept = {name: value for name, value in mine.items() if name not in ("params", "param_names")}
        taken = {name: value for name, value in group.items() if name in mine}
        converted.append({**kept, **taken, "step": max(counts)})
    return {**state_dict, "state": states, "param_groups": converted}


def checked_states(
    key: Any, parameter: Tensor, chosen: Route, binding: Binding, group: dict[str, Any], state: dict[str, Any]
) -> dict[str, Any]:
    """Copies of the saved states of a parameter, on its device and in memory as kernels expect it.

    Raises:
        ValueError: states are missing or too many, or of another shape or dtype.
    """
    specs = binding.update(group).signature.states
    names = [*(["step"] if binding.counts_updates else []), *(spec.name for spec in specs)]
    if set(state) != set(names):
        raise ValueError(f"expects states {names} for parameter {key}, but got {sorted(state)}")
    dtype = compute_dtype(parameter.dtype)
    copies: dict[str, Any] = {}
    if binding.counts_updates:
        copies["step"] = update_count(state["step"], f"parameter {key}")
    for spec in specs:
        value, shape = state[spec.name], chosen.view.state_shape(parameter.shape, spec.kind)
        if tuple(value.shape) != shape or value.dtype != dtype:
            raise ValueError(
                f"expects state {spec.name} of parameter {key} as {dtype} of shape {shape}, but got "
                f"{value.dtype} of shape {tuple(value.shape)}"
            )
        copies[spec.name] = value.detach().to(parameter.device).clone(memory_format=torch.contiguous_format)
    return copies
