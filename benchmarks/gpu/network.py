"""A small regression: the same parameters, data and loss wherever it runs, so that final weights can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .workloads import TRAINING

STEPS = 24
BATCH = 64


def parameters(device: torch.device) -> list[torch.nn.Parameter]:
    """The initial parameters, in the order of the workload: weights and biases of three layers."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for shape in TRAINING.shapes:
        values = torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) == 2 else 0.0)
        made.append(torch.nn.Parameter(values.to(device)))
    return made


def batches(device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of every step; the targets come from a fixed random network."""
    generator = torch.Generator().manual_seed(11)
    inputs, outputs = TRAINING.shapes[0][1], TRAINING.shapes[4][0]
    teacher = torch.randn(inputs, outputs, generator=generator) * inputs**-0.5
    for _ in range(STEPS):
        x = torch.randn(BATCH, inputs, generator=generator)
        yield x.to(device), torch.tanh(x @ teacher).to(device)


def loss_of(weights: Sequence[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error of the network."""
    for layer in range(0, len(weights), 2):
        x = torch.nn.functional.linear(x, weights[layer], weights[layer + 1])
        x = torch.nn.functional.gelu(x) if layer + 2 < len(weights) else x
    return torch.nn.functional.mse_loss(x, y)


def train(optimizer: torch.optim.Optimizer, weights: Sequence[torch.nn.Parameter], device: torch.device) -> list[float]:
    """Losses of all steps; the parameters are changed."""
    losses = []
    for x, y in batches(device):
        optimizer.zero_grad()
        loss = loss_of(weights, x, y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
