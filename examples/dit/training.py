"""Which optimizers are compared, and how one of them trains one model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .data import Digits, DigitSplits, batches
from .metrics import DigitClassifier, frechet_distance
from .model import DiT, DiTConfig, sample, velocity_loss

LABEL_DROPOUT = 0.1
WARMUP_STEPS = 20
EMA_DECAY = 0.99
ADAMW_RATE = 8e-3
"""The rate of what no Muon takes (embeddings, biases, the final layer), the same in every Muon run."""


@dataclass(frozen=True)
class Recipe:
    """One line of the comparison.

    `rate_of` names the recipe whose tuned learning rate this one uses: itself, or Muon where nothing is to be retuned.
    """

    key: str
    label: str
    optimizer: str
    implementation: str
    rate_of: str
    period: int = 1
    row_scale: str | None = None

    def build(self, model: DiT, rate: float) -> list[torch.optim.Optimizer]:
        """The optimizers which together train `model`; all weight decay is zero."""
        if self.implementation == "torch":
            return self._build_torch(model, rate)
        import kaon.optim

        if self.optimizer == "AdamW":
            return [kaon.optim.AdamW(model.named_parameters(), lr=rate, weight_decay=0.0)]
        options: dict[str, Any] = {
            "lr": rate,
            "momentum": 0.95,
            "weight_decay": 0.0,
            "adamw_lr": ADAMW_RATE,
            "adamw_weight_decay": 0.0,
        }
        if self.optimizer == "Muon":
            return [kaon.optim.Muon(model.named_parameters(), **options)]
        options |= {"period": self.period, "row_scale": self.row_scale}
        return [kaon.optim.PeriodicRowwiseMuon(model.named_parameters(), **options)]

    def _build_torch(self, model: DiT, rate: float) -> list[torch.optim.Optimizer]:
        if self.optimizer == "AdamW":
            return [torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)]
        matrices, others = split_parameters(model)
        return [
            torch.optim.Muon(matrices, lr=rate, momentum=0.95, weight_decay=0.0),
            torch.optim.AdamW(others, lr=ADAMW_RATE, weight_decay=0.0),
        ]


RECIPES = (
    Recipe("adamw", "AdamW", "AdamW", "kaon", rate_of="adamw"),
    Recipe("muon", "Muon", "Muon", "kaon", rate_of="muon"),
    Recipe("prm3", "PRM K=3, paper's rule", "PeriodicRowwiseMuon", "kaon", "prm3", 3, "frobenius"),
    Recipe("prm3_calibrated", "PRM K=3, calibrated", "PeriodicRowwiseMuon", "kaon", "muon", 3, "calibrated"),
    Recipe("prm6_calibrated", "PRM K=6, calibrated", "PeriodicRowwiseMuon", "kaon", "muon", 6, "calibrated"),
    Recipe("torch_muon", "torch Muon + AdamW", "Muon", "torch", rate_of="torch_muon"),
    Recipe("torch_adamw", "torch AdamW", "AdamW", "torch", rate_of="torch_adamw"),
)


def split_parameters(model: DiT) -> tuple[list[Tensor], list[Tensor]]:
    """The matrices inside the blocks, and everything else: what `kaon.optim`'s default rules say of this model."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        (matrices if name.startswith("blocks.") and parameter.ndim == 2 else others).append(parameter)
    return matrices, others


@dataclass(frozen=True)
class Settings:
    """What all runs of one comparison share."""

    steps: int = 800
    batch_size: int = 64
    evaluations: int = 16
    samples: int = 500
    model: DiTConfig = field(default_factory=DiTConfig)


@dataclass(frozen=True)
class RunResult:
    """What one training run gave. `curve` holds (step, loss of the averaged weights on the images of `split`)."""

    key: str
    seed: int
    rate: float
    loss: float
    curve: list[tuple[int, float]]
    frechet_distance: float
    sample_accuracy: float
    samples: Tensor


class Trainer:
    """A model, its averaged copy, its optimizers and its stream of batches.

    Everything random comes from `seed`: recipes with the same seed start from the same weights and see the same
    images, noise, times and dropped labels in the same order.
    """

    def __init__(self, recipe: Recipe, rate: float, seed: int, digits: Digits, settings: Settings) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.model = DiT(settings.model, self.generator)
        self.averaged = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizers = recipe.build(self.model, rate)
        self.schedulers = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP_STEPS))
            for optimizer in self.optimizers
        ]
        self.batches = batches(digits, settings.batch_size, self.generator)
        self.no_class = settings.model.classes
        self.step_count = 0

    def backward(self) -> float:
        """Draws a batch and leaves its gradients in the model. Returns the loss."""
        batch = next(self.batches)
        count = len(batch)
        dropped = torch.rand(count, generator=self.generator) < LABEL_DROPOUT
        labels = batch.labels.masked_fill(dropped, self.no_class)
        noise = torch.randn(batch.images.shape, generator=self.generator)
        t = torch.rand(count, generator=self.generator)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = velocity_loss(self.model, batch.images, labels, noise, t)
        loss.backward()
        return loss.item()

    def optimize(self) -> None:
        """One step of the optimizers and their schedules."""
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()

    def average(self) -> None:
        """Moves the averaged weights; the first steps weigh more, so that the initial weights fade at once."""
        self.step_count += 1
        decay = min(EMA_DECAY, self.step_count / (self.step_count + 9))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averaged.parameters()), list(self.model.parameters()), 1 - decay)

    def step(self) -> float:
        """One training step. Returns the loss of its batch."""
        loss = self.backward()
        self.optimize()
        self.average()
        return loss


@torch.inference_mode()
def evaluate(model: DiT, digits: Digits, rounds: int = 8) -> float:
    """Mean flow-matching loss over `digits`, with the same noise and evenly spread times on every call."""
    generator = torch.Generator().manual_seed(1234)
    total = 0.0
    for _ in range(rounds):
        t = (torch.randperm(len(digits), generator=generator) + torch.rand(1, generator=generator)) / len(digits)
        noise = torch.randn(digits.images.shape, generator=generator)
        total += velocity_loss(model, digits.images, digits.labels, noise, t).item()
    return total / rounds


def train(
    recipe: Recipe,
    rate: float,
    seed: int,
    splits: DigitSplits,
    settings: Settings,
    classifier: DigitClassifier | None,
    advance: Callable[[int], None],
) -> RunResult:
    """Trains one model and measures it.

    Args:
        classifier: judges samples on the held-out images; None while tuning, when the loss is that of the validation
            images and nothing is sampled.
        advance: called with the number of steps done since the last call.
    """
    trainer = Trainer(recipe, rate, seed, splits.train, settings)
    judged_on = splits.validation if classifier is None else splits.held_out
    curve: list[tuple[int, float]] = []
    for part in range(settings.evaluations):
        target = settings.steps * (part + 1) // settings.evaluations
        while trainer.step_count < target:
            if not math.isfinite(trainer.step()):
                return RunResult(recipe.key, seed, rate, math.inf, curve, math.inf, 0.0, torch.empty(0, 8, 8))
            advance(1)
        curve.append((target, evaluate(trainer.averaged, judged_on, rounds=2)))
    loss = evaluate(trainer.averaged, judged_on)
    if classifier is None:
        return RunResult(recipe.key, seed, rate, loss, curve, math.inf, 0.0, torch.empty(0, 8, 8))
    labels = torch.arange(settings.samples) % settings.model.classes
    samples = sample(trainer.averaged, labels, torch.Generator().manual_seed(seed))
    features, predicted = classifier.judge(samples)
    distance = frechet_distance(features, classifier.judge(judged_on.images)[0])
    accuracy = (predicted == labels).float().mean().item()
    return RunResult(recipe.key, seed, rate, loss, curve, distance, accuracy, samples[:40])


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
