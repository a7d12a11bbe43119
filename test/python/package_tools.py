"""Updates, models and training for tests of compiled packages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kaon
import kaon.language as kl
import torch
from kaon import explain
from kaon.package import building

SHAPES: tuple[tuple[int, ...], ...] = ((16, 24), (16, 24), (24, 16), (8, 8), (40,))


@kaon.update
def packaged_rowwise(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    lr: kl.scalar,
    momentum: kl.scalar = 0.95,
    *,
    period: kl.constexpr = 3,
):
    m = kl.lerp(m, g, 1 - momentum)
    if kl.every(period):  # noqa: SIM108 - the form the language documents
        o = kl.newton_schulz(m, steps=2)
    else:
        o = kl.row_normalize(m) * min(1.0, (w.cols / w.rows) ** 0.5)
    return w - lr * o, m


def request(
    architectures: Sequence[str] = ("host",),
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
    param_dtype: str = "f32",
    grad_dtype: str | None = None,
    **options: Any,
) -> building.Request:
    return building.Request(shapes, tuple(architectures), param_dtype, grad_dtype, options)


def parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def train(
    optimizer: torch.optim.Optimizer, tensors: Sequence[torch.nn.Parameter], steps: int = 7, first: int = 0
) -> list[torch.Tensor]:
    """The parameters after some steps on gradients that only their shape, position and the step decide."""
    for step in range(first, first + steps):
        for index, tensor in enumerate(tensors):
            generator = torch.Generator().manual_seed(1000 * step + index)
            tensor.grad = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        optimizer.step()
    return [tensor.detach().clone() for tensor in tensors]


def build_update(directory: Path, **changes: Any) -> Path:
    """A package of `packaged_rowwise` with period 3."""
    return building.compile_update(packaged_rowwise, request(**changes), directory).directory


ROWWISE = """
import kaon
import kaon.language as kl

@kaon.update
def rowwise(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, *, period: kl.constexpr = 2):
    m = kl.lerp(m, g, 0.1)
    if kl.every(period):
        o = kl.newton_schulz(m, steps=2)
    else:
        o = kl.row_normalize(m)
    return w - lr * o, m
"""


def place_update(folder: Path, lines_above: int = 0) -> Any:
    """The update of ROWWISE, from a file of its own in ``folder``."""
    folder.mkdir(parents=True)
    source = folder / "my_updates.py"
    source.write_text("# a line\n" * lines_above + ROWWISE)
    return explain.find_update(f"{source}:rowwise")


def contents(package: Path) -> dict[str, bytes]:
    """Every file of a package."""
    return {path.name: path.read_bytes() for path in package.iterdir()}


def equal(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, first, second))


Edit = Callable[[dict[str, Any]], object]
