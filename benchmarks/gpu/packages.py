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

LARGE = 1 << 22


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

    def bytes_of_step(self, phase: int = 0) -> int:
        """What kernels read and write in one step, as the plan says."""
        return int(self.program.plan.costs[phase]["bytes"])

    def launches(self) -> dict[str, int]:
        """On how many matrices each kernel was launched so far."""
        return dict(self.program.executor.launch_counts())


def packed(directory: Path, workloads: Iterable[Workload]) -> list[Workload]:
    """Those that there can be packages of: the loop of sm_90a is packed for that alone."""
    return [item for item in workloads if item.main_loop == "mma" or (directory / item.name).is_dir()]


def random_like(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """Normal values that only the seed and the shape decide; large ones are made where they go, which takes no time."""
    place = device if torch.Size(shape).numel() > LARGE else torch.device("cpu")
    generator = torch.Generator(place).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=place).to(dtype).to(device)


def load(directory: Path, workload: Workload, device: Device, **options: Any) -> Loaded:
    """The package of `workload` on random parameters and gradients."""
    place = device.torch
    parameters = []
    for index, shape in enumerate(workload.shapes):
        values = random_like(shape, DTYPES[workload.param], place, index)
        parameter = torch.nn.Parameter(values)
        gradient = random_like(shape, DTYPES[workload.grad], place, 10_000 + index)
        if gradient.dtype != parameter.dtype:
            parameter.grad_dtype = gradient.dtype
        parameter.grad = gradient
        parameters.append(parameter)
    optimizer = kaon.load(directory / workload.name)(parameters, **options)
    return Loaded(workload, optimizer, parameters)
