"""The peer: batched symmetric products in Triton, one triangle computed, `alpha x x^T + beta c`.

Written as the kernels of modded-nanogpt and Emerging-Optimizers are: rows beyond the end wrap around, so that the main
loop masks its depth only, loads are pipelined, and the store is mirrored. The grid is the triangle itself, by a
corrected square root. Tuned by Triton's autotuner for each size.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

_CONFIGURATIONS = [
    triton.Config({"BLOCK": block, "DEPTH": depth}, num_stages=stages, num_warps=warps)
    for block, depth, stages, warps in (
        (128, 64, 3, 8),
        (128, 64, 4, 8),
        (128, 64, 4, 4),
        (128, 128, 3, 8),
        (64, 64, 4, 4),
    )
]
_INTERPRETED = [triton.Config({"BLOCK": 16, "DEPTH": 16}, num_stages=1, num_warps=1)]


@triton.jit
def _symmetric(
    x, c, out, n, k, x_batch, x_row, c_batch, c_row, alpha, beta,
    HAS_C: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    # Tiles on and below the diagonal, row by row; the square root may be off by one either way.
    row = ((tl.sqrt(8.0 * tile.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    row = tl.where((row + 1) * (row + 2) // 2 <= tile, row + 1, row)
    row = tl.where(row * (row + 1) // 2 > tile, row - 1, row)
    column = tile - row * (row + 1) // 2
    rows = row * BLOCK + tl.arange(0, BLOCK)
    columns = column * BLOCK + tl.arange(0, BLOCK)
    inside_rows, inside_columns = rows[:, None] < n, columns[:, None] < n
    depth = tl.arange(0, DEPTH)[None, :]
    # What wraps around is computed for nothing and not stored.
    left = x + batch * x_batch + (rows % n)[:, None].to(tl.int64) * x_row + depth
    right = x + batch * x_batch + (columns % n)[:, None].to(tl.int64) * x_row + depth
    sum_ = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for at in range(0, k, DEPTH):
        a = tl.load(left, mask=depth < k - at, other=0.0)
        b = tl.load(right, mask=depth < k - at, other=0.0)
        sum_ = tl.dot(a, tl.trans(b), sum_)
        left += DEPTH
        right += DEPTH
    sum_ = alpha * sum_
    inside = inside_rows & (columns[None, :] < n)
    if HAS_C:
        addend = tl.load(
            c + batch * c_batch + rows[:, None].to(tl.int64) * c_row + columns[None, :], mask=inside, other=0.0
        )
        sum_ += beta * addend.to(tl.float32)
    result = sum_.to(out.dtype.element_ty)
    tl.store(out + batch * c_batch + rows[:, None].to(tl.int64) * c_row + columns[None, :], result, mask=inside)
    if row != column:
        mirrored = out + batch * c_batch + columns[:, None].to(tl.int64) * c_row + rows[None, :]
        tl.store(mirrored, tl.trans(result), mask=inside_columns & (rows[None, :] < n))


def _tuned(interpreted: bool):
    configurations = _INTERPRETED if interpreted else _CONFIGURATIONS
    return triton.autotune(configs=configurations, key=["n", "k", "HAS_C"])(_symmetric)


_kernels: dict[bool, object] = {}


def symmetric(
    x: torch.Tensor, out: torch.Tensor, alpha: float = 1.0, beta: float = 0.0, c: torch.Tensor | None = None
) -> torch.Tensor:
    """`out = alpha x x^T + beta c` for a batch of matrices `x` of (batch, n, k); `c`, if any, is symmetric.

    On the CPU, Triton's interpreter runs one fixed configuration (TRITON_INTERPRET=1 set before Triton is imported).
    """
    batch, n, k = x.shape
    interpreted = not x.is_cuda
    if interpreted not in _kernels:
        _kernels[interpreted] = _symmetric if interpreted else _tuned(interpreted)
    kernel = _kernels[interpreted]
    fixed = {"BLOCK": 16, "DEPTH": 16} if interpreted else {}

    def grid(meta):
        tiles = triton.cdiv(n, meta["BLOCK"])
        return tiles * (tiles + 1) // 2, batch

    kernel[grid](
        x, out if c is None else c, out, n, k, x.stride(0), x.stride(1), out.stride(0), out.stride(1), alpha, beta,
        HAS_C=c is not None, **fixed,
    )  # fmt: skip
    return out
