"""From what a user hands to an optimizer to checked, routed parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .devices import check_device
from .rules import ParameterInfo, Rule
from .views import View

PARAMETER_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic and of states: float64 for float64 parameters, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def gradient_dtype(parameter: torch.dtype, gradient: torch.dtype) -> torch.dtype:
    """The dtype in which kernels read a gradient: its own if the compute dtype holds it, else the compute dtype."""
    compute = compute_dtype(parameter)
    if gradient == torch.float64 and compute != torch.float64:
        return compute
    return gradient


@dataclass(frozen=True)
class Route:
    """What the rules decided for one parameter."""

    rule: str
    update: str
    view: View
    decay: bool


def describe(index: int, name: str | None, parameter: torch.Tensor) -> str:
    """How messages name a parameter: position, name where known, and shape."""
    label = f"parameter {index}" if name is None else f"parameter {index} ('{name}')"
    return f"{label} of shape {tuple(parameter.shape)}"


def expand_modules(group: dict[str, Any]) -> dict[int, tuple[nn.Module, ...]]:
    """Replace a module under `group["params"]` by its named parameters.

    Returns the owners of each parameter (by id). A tied parameter has every module that holds it as an owner, so that a
    head tied to an embedding is recognised as an embedding whichever of them comes first.
    """
    module = group.get("params")
    if not isinstance(module, nn.Module):
        return {}
    owners: dict[int, tuple[nn.Module, ...]] = {}
    for child in module.modules():
        for parameter in child.parameters(recurse=False):
            owners[id(parameter)] = (*owners.get(id(parameter), ()), child)
    group["params"] = list(module.named_parameters())
    return owners


def check_parameter(label: str, optimizer: str, parameter: torch.Tensor) -> None:
    """Refuse what no target can update, naming it.

    Raises:
        RuntimeError: complex parameters (as torch.optim.Muon).
        TypeError: integer, sparse, quantized, or subclassed tensors, and float64 on a GPU.
        ValueError: other devices than a CPU or a GPU of NVIDIA, and tensors whose elements share memory.
    """
    if parameter.is_complex():
        raise RuntimeError(
            f"{optimizer} does not support complex parameters, but {label} is {parameter.dtype}; "
            "pass torch.view_as_real(...) of it where real matrices are meant"
        )
    if parameter.layout != torch.strided:
        raise TypeError(f"{optimizer} expects dense parameters, but {label} has layout {parameter.layout}")
    if parameter.dtype not in PARAMETER_DTYPES:
        known = ", ".join(str(dtype) for dtype in PARAMETER_DTYPES)
        raise TypeError(f"{optimizer} expects a dtype out of {known}, but {label} is {parameter.dtype}")
    if type(parameter) not in (torch.Tensor, nn.Parameter) and not isinstance(parameter, nn.Parameter):
        raise TypeError(f"{optimizer} expects plain tensors, but {label} is a {type(parameter).__name__}")
    if hasattr(parameter, "device_mesh"):
        raise TypeError(f"{optimizer} expects plain tensors, but {label} is a distributed tensor")
    check_device(label, optimizer, parameter.device, parameter.dtype)
    if shares_elements(parameter):
        raise ValueError(
            f"{optimizer} expects every element of a parameter in memory of its own, but {label} has strides "
            f"{parameter.stride()}"
        )


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether two elements of `tensor` may lie at one address (expanded or overlapping strides)."""
    reach = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def find_shared(parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Two of `parameters` that have an element at the same address, in their order; None where there are none."""
    for device in dict.fromkeys(parameter.device for parameter in parameters):
        pair = _find_shared_on_one_device([parameter for parameter in parameters if parameter.device == device])
        if pair is not None:
            return pair
    return None


def _find_shared_on_one_device(parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    spans = sorted((*_span(parameter), index) for index, parameter in enumerate(parameters) if parameter.numel())
    open_spans: list[tuple[int, int]] = []
    for first, end, index in spans:
        open_spans = [(other_end, other) for other_end, other in open_spans if other_end > first]
        for _, other in open_spans:
            pair = parameters[min(index, other)], parameters[max(index, other)]
            if _overlap(*pair):
                return pair
        open_spans.append((end, index))
    return None


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor, and the one after its last."""
    reach = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)) + 1
    return tensor.data_ptr(), tensor.data_ptr() + reach * tensor.element_size()


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors whose address ranges overlap have an element in common (columns of one matrix have not)."""
    size = a.element_size()
    if b.element_size() != size or (a.data_ptr() - b.data_ptr()) % size:
        return True
    start = min(a.data_ptr(), b.data_ptr())
    end = max(_span(a)[1], _span(b)[1])
    taken = torch.zeros((end - start) // size, dtype=torch.bool)
    for tensor in (a, b):
        elements = taken.as_strided(tensor.shape, tensor.stride(), (tensor.data_ptr() - start) // size)
        if elements.any():
            return True
        elements.fill_(True)
    return False


def route(
    label: str,
    optimizer: str,
    parameter: torch.Tensor,
    info: ParameterInfo,
    rules: Iterable[Rule],
    known: Sequence[str],
) -> Route:
    """The route of one parameter by the first rule that matches.

    Raises:
        ValueError: no rule matches, the rule's update does not exist here, or its view cannot take the shape.
    """
    for rule in rules:
        if not rule.matches(info):
            continue
        if rule.update not in known:
            raise ValueError(f'rule "{rule}" sends {label} to "{rule.update}", which {optimizer} does not have')
        view = rule.resolved_view()
        try:
            view.matrices(parameter.shape)
        except ValueError as error:
            wish = "only supports 2D parameters" if view.kind == "matrix" else f'expects what view "{view}" can take'
            raise ValueError(f'{optimizer} {wish} by rule "{rule}", but got {label}: {error}') from None
        return Route(str(rule), rule.update, view, rule.decay)
    raise ValueError(f"{optimizer} has no rule for {label}")
