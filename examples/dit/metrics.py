"""How good samples are: the Frechet distance in the feature space of a small digit classifier, and its verdict."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .data import Digits, batches

FEATURES = 32


class DigitClassifier(nn.Module):
    """Two convolutions and two linear layers; the layer before the last, `FEATURES` wide, is the feature space."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.features = nn.Linear(32 * 2 * 2, FEATURES)
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images `[batch, 8, 8]` -> features `[batch, FEATURES]` and logits `[batch, 10]`."""
        x = functional.max_pool2d(functional.relu(self.conv1(images.unsqueeze(1))), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        features = functional.relu(self.features(x.flatten(1)))
        return features, self.head(features)

    @torch.inference_mode()
    def judge(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features and the most likely class of each image."""
        features, logits = self(images)
        return features, logits.argmax(dim=1)


def train_classifier(digits: Digits, steps: int = 800, batch_size: int = 64) -> DigitClassifier:
    """The same classifier on every call: it is the yardstick, so nothing about it depends on the runs it measures."""
    generator = torch.Generator().manual_seed(7)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        classifier = DigitClassifier()
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=3e-3, weight_decay=0.05)
    stream = batches(digits, batch_size, generator)
    for _ in range(steps):
        batch = next(stream)
        # A little noise keeps features meaningful for samples, which are never as clean as scans.
        images = batch.images + 0.1 * torch.randn(batch.images.shape, generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(classifier(images)[1], batch.labels).backward()
        optimizer.step()
    return classifier.eval().requires_grad_(False)


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Frechet distance of the Gaussians fitted to two sets of features, each `[count, features]`.

    `|mean_a - mean_b|^2 + trace(A + B - 2 (A^1/2 B A^1/2)^1/2)` with covariances `A`, `B`, in float64.
    """
    a, b = a.double(), b.double()
    cov_a, cov_b = torch.cov(a.T), torch.cov(b.T)
    root = _root(cov_a)
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp_min(0).sqrt().sum()
    means = (a.mean(0) - b.mean(0)).square().sum()
    return float(means + cov_a.trace() + cov_b.trace() - 2 * cross)


def _root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt() @ vectors.T
