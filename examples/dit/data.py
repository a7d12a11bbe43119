"""scikit-learn's bundled handwritten digits: 1797 real scans of 8x8 pixels, no download."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor

SPLIT_SEED = 20
VALIDATION_SIZE = 180
HELD_OUT_SIZE = 360


@dataclass(frozen=True)
class Digits:
    """Images `[count, 8, 8]` in [-1, 1] and their classes `[count]`."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DigitSplits:
    """Training images, images which choose learning rates, and images which only the reported numbers see."""

    train: Digits
    validation: Digits
    held_out: Digits


def load_splits() -> DigitSplits:
    """The same three disjoint random parts in every process."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    images = torch.from_numpy(pixels).float().view(-1, 8, 8).div(8).sub(1)[order]
    classes = torch.from_numpy(labels).long()[order]

    def part(begin: int, end: int) -> Digits:
        return Digits(images[begin:end].clone(), classes[begin:end].clone())

    train_end = len(labels) - VALIDATION_SIZE - HELD_OUT_SIZE
    validation_end = train_end + VALIDATION_SIZE
    return DigitSplits(part(0, train_end), part(train_end, validation_end), part(validation_end, len(labels)))


def batches(digits: Digits, batch_size: int, generator: torch.Generator) -> Iterator[Digits]:
    """Endless batches: a new permutation each epoch, the incomplete rest of an epoch left out."""
    while True:
        order = torch.randperm(len(digits), generator=generator)
        for begin in range(0, len(digits) - batch_size + 1, batch_size):
            chosen = order[begin : begin + batch_size]
            yield Digits(digits.images[chosen], digits.labels[chosen])
