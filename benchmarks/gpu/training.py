"""A training run, held to the weights of the same run on the CPU target, which the pack carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kaon
import torch

from . import network
from .device import Device
from .workloads import TRAINING

REFERENCE = "training.pt"
TOLERANCE = 5e-2
"""Relative Frobenius distance of each weight's whole change: refreshes round to bf16 on the GPU, to f32 on the CPU."""


def run(directory: Path, device: Device) -> dict[str, Any]:
    """Train on the device, and compare with the reference."""
    reference = torch.load(directory / REFERENCE, weights_only=True)
    weights = network.parameters(device.torch)
    start = [weight.detach().cpu().double() for weight in weights]
    optimizer = kaon.load(directory / TRAINING.name)(weights)
    losses = network.train(optimizer, weights, device.torch)
    distances = []
    for begin, mine, theirs in zip(start, weights, reference["weights"], strict=True):
        change = torch.linalg.norm(theirs.double() - begin)
        distances.append(float(torch.linalg.norm(mine.detach().cpu().double() - theirs.double()) / change))
    return {
        "passed": all(distance <= TOLERANCE for distance in distances) and losses[-1] < 0.7 * losses[0],
        "steps": network.STEPS,
        "tolerance": TOLERANCE,
        "distance_of_weights": distances,
        "losses": losses,
        "losses_on_cpu": reference["losses"],
    }
