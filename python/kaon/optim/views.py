"""How one parameter becomes the matrices an update works on.

A matrix update sees matrices of rank 2; a parameter may be a convolution kernel, a stack of experts or a fused
projection that holds several matrices. A `View` says how the one becomes the other. Nothing is ever guessed: the view
is part of the rule that routed the parameter (`kaon.optim.Rule`) and is printed by `opt.plan()`.

==================  ==============================================================================================
view                matrices
==================  ==============================================================================================
``matrix``          the parameter itself; needs two dimensions
``flatten``         `(out, ...)` as one matrix `out x rest` (convolutions)
``batch``           `(..., rows, cols)` as independent matrices over the leading dimensions (experts)
``split(n)``        `n` equal blocks of rows of the `out x rest` matrix (fused QKV, gate-up)
``split(a, b, ..)`` blocks of `a`, `b`, ... rows, which must add up to the rows
``interleaved(n)``  rows `i`, `i + n`, `i + 2 n`, ... form matrix `i`
``elementwise``     two dimensions as they are, everything else as one row; only for updates that treat all elements
                    alike (AdamW), because the rows then mean nothing
==================  ==============================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_PLAIN_KINDS = ("matrix", "flatten", "batch", "elementwise")
_SPLIT_KINDS = ("split", "interleaved")
_SYNTAX = re.compile(r"(?P<kind>[a-z]+)\s*(?:\(\s*(?P<sizes>\d+(?:\s*,\s*\d+)*)\s*\))?")


@dataclass(frozen=True)
class MatrixSlice:
    """One matrix inside the canonical `(batch, rows, cols)` form of a parameter.

    It holds the rows `start`, `start + step`, ... (`rows` of them) of batch entry `batch`, with all `cols` columns.
    """

    batch: int
    start: int
    step: int
    rows: int
    cols: int


@dataclass(frozen=True)
class View:
    """How a parameter becomes matrices; see the table of this module. Written and stored as text (`str(view)`)."""

    kind: str
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind in _PLAIN_KINDS:
            if self.sizes:
                raise ValueError(f'view "{self.kind}" takes no sizes, but got {self.sizes}')
        elif self.kind in _SPLIT_KINDS:
            if not self.sizes or any(size < 1 for size in self.sizes):
                raise ValueError(f'view "{self.kind}" expects a count or sizes of at least 1, but got {self.sizes}')
            if self.kind == "interleaved" and len(self.sizes) != 1:
                raise ValueError(f'view "interleaved" expects one count, but got {self.sizes}')
        else:
            known = ", ".join((*_PLAIN_KINDS, "split(...)", "interleaved(n)"))
            raise ValueError(f'expects a view out of {known}, but got "{self.kind}"')

    @classmethod
    def parse(cls, text: str | View) -> View:
        """The view written as `text`, e.g. `"flatten"`, `"split(3)"` or `"split(64, 64, 128)"`."""
        if isinstance(text, View):
            return text
        match = _SYNTAX.fullmatch(text.strip())
        if match is None:
            raise ValueError(f'expects a view such as "matrix", "split(3)" or "split(64, 64, 128)", but got "{text}"')
        sizes = match["sizes"]
        return cls(match["kind"], tuple(int(size) for size in sizes.split(",")) if sizes else ())

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.sizes))})" if self.sizes else self.kind

    # -- geometry ---------------------------------------------------------------------------------------------------

    def canonical_shape(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """The `(batch, rows, cols)` form of a parameter of `shape`. Raises ValueError where the view does not apply."""
        shape = tuple(shape)
        if self.kind == "matrix":
            if len(shape) != 2:
                raise ValueError(
                    f'view "matrix" expects 2 dimensions, but got {len(shape)}; "flatten", "batch" and "split" are '
                    "explicit choices of a rule"
                )
            return (1, *shape)
        if self.kind == "batch":
            if len(shape) < 3:
                raise ValueError(f'view "batch" expects at least 3 dimensions, but got {len(shape)}')
            return (prod(shape[:-2]), shape[-2], shape[-1])
        if self.kind == "elementwise":
            return (1, *shape) if len(shape) == 2 else (1, 1, prod(shape))
        if len(shape) < 2:
            raise ValueError(f'view "{self}" expects at least 2 dimensions, but got {len(shape)}')
        return (1, shape[0], prod(shape[1:]))

    def matrices(self, shape: Sequence[int]) -> list[MatrixSlice]:
        """The matrices of a parameter of `shape`, in order; none where the parameter is empty."""
        batch, rows, cols = self.canonical_shape(shape)
        if batch * rows * cols == 0:
            return []
        if self.kind == "split":
            sizes = self.sizes
            if len(sizes) == 1:
                count = sizes[0]
                if rows % count:
                    raise ValueError(f'view "{self}" expects rows divisible by {count}, but got {rows} rows')
                sizes = (rows // count,) * count
            elif sum(sizes) != rows:
                raise ValueError(f'view "{self}" expects {sum(sizes)} rows, but got {rows} rows')
            starts = [sum(sizes[:index]) for index in range(len(sizes))]
            return [MatrixSlice(0, start, 1, size, cols) for start, size in zip(starts, sizes, strict=True)]
        if self.kind == "interleaved":
            count = self.sizes[0]
            if rows % count:
                raise ValueError(f'view "{self}" expects rows divisible by {count}, but got {rows} rows')
            return [MatrixSlice(0, start, count, rows // count, cols) for start in range(count)]
        return [MatrixSlice(index, 0, 1, rows, cols) for index in range(batch)]

    def canonical(self, tensor: Tensor) -> Tensor:
        """`tensor` as `(batch, rows, cols)` without a copy. Raises RuntimeError where its strides do not allow that."""
        return tensor.view(self.canonical_shape(tensor.shape))

    def addresses(self, tensor: Tensor) -> list[tuple[int, int]] | None:
        """Where each matrix lies in `tensor`: (element offset from its first element, row stride in elements).

        None where a matrix has a column stride other than 1 or rows that overlap, or where memory holds the negatives
        of its elements (the imaginary part of a conjugate, which torch leaves as it is), so that kernels cannot read it
        where it is.
        """
        if tensor.is_neg():
            return None
        try:
            canonical = self.canonical(tensor)
        except RuntimeError:
            return None
        batch_stride, row_stride, column_stride = canonical.stride()
        cols = canonical.shape[2]
        if (cols > 1 and column_stride != 1) or (canonical.shape[1] > 1 and row_stride < cols):
            return None
        return [
            (
                matrix.batch * batch_stride + matrix.start * row_stride,
                # One row has no stride of its own: say "dense", which lets kernels treat it as flat memory.
                matrix.step * row_stride if matrix.rows > 1 else matrix.cols,
            )
            for matrix in self.matrices(tensor.shape)
        ]

    # -- states -----------------------------------------------------------------------------------------------------

    def state_shape(self, shape: Sequence[int], kind: str) -> tuple[int, ...]:
        """The shape of a state of `kind` ("matrix", "row", "column", "scalar") of a parameter of `shape`."""
        batch, rows, cols = self.canonical_shape(shape)
        count = len(self.matrices(shape))
        if kind == "matrix":
            return tuple(shape)
        if kind == "row":
            return (rows, 1) if batch == 1 else (batch, rows, 1)
        if kind == "column":
            return (count, cols)
        return (count, 1)

    def state_addresses(self, shape: Sequence[int], kind: str) -> list[tuple[int, int]]:
        """Like `addresses`, for a contiguous state tensor of `state_shape(shape, kind)`."""
        _, rows, cols = self.canonical_shape(shape)
        matrices = self.matrices(shape)
        if kind == "matrix":
            dense = [(matrix.batch * rows * cols + matrix.start * cols, matrix.step * cols) for matrix in matrices]
            return [
                (at, stride if matrix.rows > 1 else cols) for (at, stride), matrix in zip(dense, matrices, strict=True)
            ]
        if kind == "row":
            return [(matrix.batch * rows + matrix.start, matrix.step if matrix.rows > 1 else 1) for matrix in matrices]
        return [(index * cols, cols) if kind == "column" else (index, 1) for index in range(len(matrices))]
