"""Loads a workload's package onto the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kaon
import torch

from .device import Device
from .workloads import Workload

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

LARGE = 1 << 16

LAYOUTS = ("dense", "offset", "gaps")
"""From the start of memory of its own; one element further; or with gaps between rows, or elements where there is one
dimension. What lies between is NaN."""


@dataclass(frozen=True)
class Loaded:
    """A workload on the device: its optimizer, and its parameters with gradients."""

    workload: Workload
    optimizer: Any
    parameters: list[torch.nn.Parameter]

    @property
    def program(self) -> Any:
        """The compiled program; of one device and one step count, there is only one."""
        self.optimizer.compile()
        (program,) = self.optimizer._programs
        return program.compiled

    @property
    def product_dtype(self) -> torch.dtype:
        """What its matrix products are of."""
        (name,) = self.optimizer.kaon_package.manifest.products
        found: torch.dtype = getattr(torch, name)
        return found

    def bits(self) -> list[torch.Tensor]:
        """Copies of all parameters and of the tensors of their states."""
        states = (value for parameter in self.parameters for value in self.optimizer.state[parameter].values())
        return [tensor.detach().clone() for tensor in (*self.parameters, *states) if isinstance(tensor, torch.Tensor)]

    def bytes_of_step(self, phase: int = 0) -> int:
        """What kernels read and write in one step, as the plan says."""
        return int(self.program.plan.costs[phase]["bytes"])

    def launch_again(self, index: int, times: int, stream: int) -> None:
        """Launch kernel `index` of the first phase on what the last step left. To be called on this object, so that the
        tensors whose addresses the kernel has are there as long as the call can be made."""
        self.optimizer._programs[0].compiled.executor.repeat(0, index, times, stream)

    def matrix_counts(self) -> dict[str, int]:
        """On how many matrices each kernel ran so far."""
        return dict(self.program.executor.matrix_counts)


def packed(directory: Path, workloads: Iterable[Workload]) -> list[Workload]:
    """Those that there can be packages of: the loop of sm_90a is packed for that alone."""
    return [item for item in workloads if item.main_loop == "mma" or (directory / item.directory).is_dir()]


def random_like(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """Normal values that only the seed and the shape decide; large ones are made where they go, which takes no time."""
    place = device if torch.Size(shape).numel() > LARGE else torch.device("cpu")
    generator = torch.Generator(place).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=place).to(dtype).to(device)


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in memory of a layout out of LAYOUTS."""
    if layout == "dense":
        return values
    *rows, cols = values.shape
    if layout == "offset":
        found = values.new_full((values.numel() + 1,), torch.nan)[1:].view(values.shape)
    elif rows:
        found = values.new_full((*rows, cols + 3), torch.nan)[..., :cols]
    else:
        found = values.new_full((2 * cols,), torch.nan)[::2]
    return found.copy_(values)


def layouts(workload: Workload, index: int) -> tuple[str, str]:
    """Those of parameter `index` and its gradient: of nine in a row, each pair once."""
    if workload.layout == "dense":
        return LAYOUTS[0], LAYOUTS[0]
    return LAYOUTS[index % 3], LAYOUTS[(index + 1 + index // 3) % 3]


def gradient_of(workload: Workload, index: int, place: torch.device, seed: int) -> torch.Tensor:
    """A gradient of parameter `index`, as the workload wants it, in new memory."""
    shape = workload.shapes[index]
    values = random_like(shape, DTYPES[workload.grad], place, seed)
    if len(shape) == 2 and workload.scale != 1.0:
        values *= workload.scale
    return laid_out(values, layouts(workload, index)[1])


def load(directory: Path, workload: Workload, device: Device, **options: Any) -> Loaded:
    """The package of `workload` on random parameters and gradients."""
    place = device.torch
    parameters = []
    for index, shape in enumerate(workload.shapes):
        values = random_like(shape, DTYPES[workload.param], place, index)
        parameter = torch.nn.Parameter(laid_out(values, layouts(workload, index)[0]))
        gradient = gradient_of(workload, index, place, 10_000 + index)
        if gradient.dtype != parameter.dtype:
            parameter.grad_dtype = gradient.dtype
        parameter.grad = gradient
        parameters.append(parameter)
    optimizer = kaon.load(directory / workload.directory)(parameters, **options)
    return Loaded(workload, optimizer, parameters)
