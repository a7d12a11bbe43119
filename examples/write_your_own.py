"""A new optimizer in ten lines: written, compiled, checked against the reference interpreter, and trained.

    python examples/write_your_own.py

The update below is not one of `kaon.optim`: Muon on momentum whose rows are brought to one length first, with the
Newton-Schulz iteration spelled out, refreshed on every second step, and with plain row steps between. Nothing in it
tells the compiler that `x @ x.T` is symmetric, that the iteration may run on the short side, or which passes over
memory can be one: it finds out.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence

import kaon
import kaon.language as kl
import torch
from dit.data import Digits, batches, load_splits
from torch import nn
from torch.nn import functional
from tqdm import tqdm


@kaon.update
def balanced_muon(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, mu: kl.scalar = 0.95):
    m = kl.lerp(m, g, 1 - mu)
    rows = kl.row_normalize(kl.lerp(g, m, mu))
    if kl.every(2):
        x = kl.normalize(rows)
        for _ in kl.static_range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
    else:
        x = 0.5 * rows * min(1.0, (w.cols / w.rows) ** 0.5)
    return w - lr * max(1.0, w.rows / w.cols) ** 0.5 * x, m


BalancedMuon = kaon.optimizer(balanced_muon)
"""A `torch.optim.Optimizer` like any other; matrices get the update above, everything else AdamW."""


def make_model(seed: int) -> nn.Sequential:
    """A classifier of the digits' 64 pixels."""
    torch.manual_seed(seed)
    layers = (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def loss_of(model: nn.Module, digits: Digits, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return functional.cross_entropy(model(digits.images.to(dtype)), digits.labels)


def check(digits: Digits, steps: int = 4) -> float:
    """Largest relative difference of any parameter after `steps` in float64, compiled against interpreted.

    Both follow the compiled run's gradients, so that nothing but the updates can differ.
    """
    compiled_model = make_model(0).double()
    interpreted_model = copy.deepcopy(compiled_model)
    compiled = BalancedMuon(compiled_model.named_parameters(), lr=1e-2)
    interpreted = BalancedMuon(interpreted_model.named_parameters(), lr=1e-2)
    pairs = list(zip(compiled_model.parameters(), interpreted_model.parameters(), strict=True))
    for _ in range(steps):
        compiled.zero_grad()
        loss_of(compiled_model, digits, torch.float64).backward()
        compiled.step()
        for ours, reference in pairs:
            reference.grad = ours.grad
        kaon.knobs.runtime.interpret = True
        interpreted.step()
        del kaon.knobs.runtime.interpret
    return max(((ours - reference).norm() / reference.norm()).item() for ours, reference in pairs)


def train(train_digits: Digits, held_out: Digits, steps: int) -> tuple[float, float, float]:
    """Trains a classifier; returns the first and the last training loss and the accuracy on held-out scans."""
    model = make_model(0)
    optimizer = BalancedMuon(model.named_parameters(), lr=1e-2)
    stream = batches(train_digits, 64, torch.Generator().manual_seed(0))
    first = last = 0.0
    for step in tqdm(range(steps), desc="training"):
        optimizer.zero_grad()
        loss = loss_of(model, next(stream))
        loss.backward()
        optimizer.step()
        last = loss.item()
        first = first if step else last
    optimizer.plan()
    with torch.inference_mode():
        accuracy = (model(held_out.images).argmax(1) == held_out.labels).float().mean().item()
    return first, last, accuracy


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="training steps (default %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # matrices this small gain nothing from a second one; Kaon's optimizers follow torch
    splits = load_splits()
    difference = check(splits.train)
    print(f"compiled against interpreter, float64, 4 steps: relative difference {difference:.1e}")
    if not difference <= 1e-12:
        print("the compiled update does not do what the interpreter does", file=sys.stderr)
        return 1
    first, last, accuracy = train(splits.train, splits.held_out, options.steps)
    print(f"training loss {first:.3f} -> {last:.3f}, accuracy on held-out digits {100 * accuracy:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
