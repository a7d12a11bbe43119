"""What Kaon is compared with: products and Newton-Schulz by cuBLAS through torch, by torch.compile and by Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .device import Device

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def newton_schulz(g: Tensor) -> Tensor:
    """Five steps on a batch of matrices in their own dtype, as the public implementations write it: standard form."""
    a, b, c = COEFFICIENTS
    x = g / (torch.linalg.vector_norm(g, dim=(-2, -1), keepdim=True) + 1e-7)
    transposed = x.shape[-2] > x.shape[-1]
    x = x.mT if transposed else x
    for _ in range(STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if transposed else x


def step(w: Tensor, g: Tensor, lr: float) -> None:
    """The whole update that gpu.updates.orthogonalize is."""
    w.add_(newton_schulz(g), alpha=-lr)


def compiled_step(device: Device) -> Callable[[Tensor, Tensor, float], None]:
    """`step` by torch.compile; on the fakes by its front end alone, as there is no GPU to generate code for."""
    torch._dynamo.reset()  # each workload anew: torch gives up on a function of many shapes
    return torch.compile(step, backend="eager" if device.is_fake else "inductor", dynamic=False)


def triton_symmetric() -> Callable[..., Tensor] | None:
    """The Triton kernel; None where Triton is not installed. On the fakes run.sh has Triton interpret it."""
    try:
        from .triton_symmetric import symmetric
    except ImportError:
        return None
    return symmetric


def triton_step(symmetric: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, float], None]:
    """`step` with both symmetric products by Triton, the other by cuBLAS."""
    a, b, c = COEFFICIENTS

    def run(w: Tensor, g: Tensor, lr: float) -> None:
        x = g / (torch.linalg.vector_norm(g, dim=(-2, -1), keepdim=True) + 1e-7)
        transposed = x.shape[-2] > x.shape[-1]
        x = (x.mT if transposed else x).contiguous()
        size = (x.shape[0], x.shape[1], x.shape[1])
        gram, polynomial = (torch.empty(size, dtype=x.dtype, device=x.device) for _ in range(2))
        for _ in range(STEPS):
            symmetric(x, gram)
            symmetric(gram, polynomial, c, b, gram)
            x = torch.baddbmm(x, polynomial, x, beta=a)
        w.add_(x.mT if transposed else x, alpha=-lr)

    return run


def check(device: Device, symmetric: Callable[..., Tensor]) -> dict[str, Any]:
    """That the Triton kernel computes what it is compared for, before it is timed."""
    generator = torch.Generator().manual_seed(3)
    # Triton's interpreter takes the bits of bf16 operands for integers.
    dtype = torch.float32 if device.is_fake else torch.bfloat16
    x = torch.randn(2, 40, 56, generator=generator).to(device.torch, dtype)
    c = (x @ x.mT).contiguous()
    expected = 0.5 * (x.double() @ x.mT.double()) + 2.0 * c.double()
    found = symmetric(x, torch.empty_like(c), 0.5, 2.0, c).double()
    error = float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected))
    return {"error": error, "passed": error < 1e-2}
