"""What kernels read and write under the shim, byte by byte, and how that compares with a plan.

``fake_cuda.build_counted`` builds kernels whose every access to memory is recorded
(test/cuda/shim/Traffic.h). Here the record of a launch is laid over the operands that its tables name. Bytes that are
neither of an operand nor of the launch's own tables and scalars must not occur.

A plan's bytes are those of :func:`moved_bytes`: an operand with a value for every element counts each time it is read,
or written; values per row, per column and single ones count once, however many threads ask for them, and so do the
operands of a product, which tiles read in strips. What those strips come to is :func:`tile_traffic`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fake_cuda
import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
TILE = 128
_MATRIX_WORDS, _PRODUCT_WORDS = 6, 4
_BYTES_OF_BLOCK, _BYTES_OF_PRODUCT = 12, 80


@dataclass(frozen=True)
class Region:
    """``rows`` rows of ``row_bytes`` bytes in memory, ``pitch`` bytes from one to the next."""

    base: int
    rows: int
    row_bytes: int
    pitch: int = 0


class Launch:
    """One launch: its kernel, its tables as Traffic.h describes them, and the bytes that it accessed."""

    def __init__(self, kernel: str, tables: Counts, addresses: Counts, reads: Counts, writes: Counts):
        self.kernel = kernel
        self.tables = tables
        self._addresses = addresses
        self._reads, self._writes = reads, writes
        self._claimed = np.zeros(len(addresses), bool)

    def _positions(self, region: Region) -> Counts:
        """Where the accessed bytes of a region are in the record."""
        starts = region.base + np.arange(region.rows, dtype=np.int64) * region.pitch
        low = np.searchsorted(self._addresses, starts)
        high = np.searchsorted(self._addresses, starts + region.row_bytes)
        parts = [np.arange(a, b) for a, b in zip(low, high, strict=True)]
        found = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        self._claimed[found] = True
        return found

    def reads(self, region: Region) -> tuple[int, int]:
        """Bytes read in a region: how often in all, and how many different ones."""
        counts = self._reads[self._positions(region)]
        return int(counts.sum()), int(np.count_nonzero(counts))

    def writes(self, region: Region) -> tuple[int, int]:
        """The same of bytes written."""
        counts = self._writes[self._positions(region)]
        return int(counts.sum()), int(np.count_nonzero(counts))

    def claim(self, *regions: Region) -> None:
        """Regions that may be accessed, and do not count."""
        for region in regions:
            self._positions(region)

    def strays(self) -> list[str]:
        """Accessed bytes of which nobody has asked."""
        return [
            f"{self.kernel} accesses {int(self._addresses[at]):#x} ({self._reads[at]} reads, {self._writes[at]} writes)"
            for at in np.flatnonzero(~self._claimed)[:10]
        ]


class Recorder:
    """The launches of kernels that ``fake_cuda.build_counted`` built, in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(fake_cuda.counting_shim()))
        self._library.kaon_shim_traffic_kernel.restype = ctypes.c_char_p
        for name in ("launches", "tables", "bytes"):
            getattr(self._library, f"kaon_shim_traffic_{name}").restype = ctypes.c_int64

    def clear(self) -> None:
        self._library.kaon_shim_traffic_clear()

    def take(self) -> list[Launch]:
        """All launches since the last time, which are forgotten."""
        found = [self._launch(index) for index in range(self._library.kaon_shim_traffic_launches())]
        self.clear()
        return found

    def _launch(self, index: int) -> Launch:
        number = ctypes.c_int64(index)
        tables = np.zeros(self._library.kaon_shim_traffic_tables(number, None), np.int64)
        self._library.kaon_shim_traffic_tables(number, _pointer(tables))
        size = self._library.kaon_shim_traffic_bytes(number, None, None, None)
        addresses = np.zeros(size, np.uint64)
        reads, writes = np.zeros(size, np.uint32), np.zeros(size, np.uint32)
        self._library.kaon_shim_traffic_bytes(number, _pointer(addresses), _pointer(reads), _pointer(writes))
        kernel = self._library.kaon_shim_traffic_kernel(number).decode()
        return Launch(kernel, tables, *(array.astype(np.int64) for array in (addresses, reads, writes)))


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


# ---- what a plan says


@dataclass(frozen=True)
class Planned:
    """A launch of a plan for one matrix."""

    kernel: str
    schedule: str
    launch: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """What it has in common with an entry of a launch's table: its kernel, its sizes, and of a product whether it
        has a factor, and which of its matrices are the same."""
        sizes = tuple(self.launch["sizes"])
        if self.schedule == "matmul":
            places = [(one["kind"], one.get("index"), one.get("offset")) for one in self.launch["operands"]]
            sizes += (self.launch.get("factor", False), *_repetitions(places[: 3 if "_add" in self.kernel else 2]))
        return self.kernel, sizes

    def has_every_element(self, operand: Mapping[str, Any]) -> bool:
        """Whether an operand has a value for each element of the launch, which no other element needs."""
        rows, cols = self.launch["sizes"]
        turned = self.schedule == "transpose" and (operand["cols"], operand["rows"]) == (rows, cols)
        return rows * cols > 1 and (turned or (operand["rows"], operand["cols"]) == (rows, cols))


def _repetitions(values: Sequence[Any]) -> tuple[int, ...]:
    """Of each value, the position of the first that is equal."""
    return tuple(values.index(value) for value in values)


def planned_launches(plan: Mapping[str, Any], phase: int) -> list[Planned]:
    """What a phase of a plan runs, once for each matrix."""
    found = []
    for bucket in (bucket for group in plan["phases"][phase] for bucket in group["buckets"]):
        for launch in plan["sequences"][bucket["sequence"]]["launches"]:
            kernel = plan["kernels"][launch["kernel"]]
            found += [Planned(kernel["name"], kernel["schedule"], launch)] * len(bucket["members"])
    return found


# ---- laying one over the other


def entries_of(launch: Launch) -> Iterable[tuple[tuple[int, ...], Counts]]:
    """Of each entry of the launch's table, what :attr:`Planned.key` has besides the kernel, and its words. The table
    itself is claimed."""
    tables = launch.tables
    if launch.kernel.startswith("matmul_"):
        table, _, _, count = (int(word) for word in tables[:_PRODUCT_WORDS])
        launch.claim(Region(table, 1, count * _BYTES_OF_PRODUCT))
        for words in tables[_PRODUCT_WORDS:].reshape(count, -1):
            matrices = [int(word) for word in words[:3] if word != 0]
            yield (*map(int, words[9:12]), words[4] != 0, *_repetitions(matrices)), words
        return
    matrices, blocks, _, num_blocks, count, operands = (int(word) for word in tables[:_MATRIX_WORDS])
    launch.claim(Region(matrices, 1, count * (16 * operands + 24)), Region(blocks, 1, num_blocks * _BYTES_OF_BLOCK))
    for words in tables[_MATRIX_WORDS:].reshape(count, -1):
        yield (int(words[-3]), int(words[-2])), words


def _claim_scalars(launch: Launch, planned: Planned, first: int) -> None:
    scalars = int(launch.tables[1 if planned.schedule == "matmul" else 2])
    launch.claim(Region(scalars + 8 * first, 1, 8 * len(planned.launch["scalars"])))


def moved_bytes(launch: Launch, planned: Planned, words: Counts) -> int:
    """The bytes that a launch moved for one entry of its table, by the rules above."""
    if planned.schedule == "matmul":
        return _bytes_of_product(launch, planned, words)
    _claim_scalars(launch, planned, int(words[-1]))
    operands = planned.launch["operands"]
    read, written = {}, {}
    for index, operand in enumerate(operands):
        size = SIZES[operand["type"]]
        whole = planned.has_every_element(operand)
        pitch = int(words[len(operands) + index]) * size
        region = Region(int(words[index]), operand["rows"], operand["cols"] * size, pitch)
        if index < planned.launch["inputs"]:
            read[region] = launch.reads(region)[0 if whole else 1]
        else:
            written[region] = launch.writes(region)[0]
    return sum(read.values()) + sum(written.values())


# ---- products


@dataclass(frozen=True)
class _Product:
    """The operands of a product in memory. ``c`` is None without an addend, ``factor`` without one."""

    a: Region
    b: Region
    c: Region | None
    factor: Region | None
    d: Region
    is_symmetric: bool
    has_epilogue: bool

    @staticmethod
    def of(planned: Planned, words: Counts) -> _Product:
        (m, n, k), name = planned.launch["sizes"], planned.kernel
        a, b, c, d, factor, pitch_a, pitch_b, pitch_c, pitch_d = map(int, words[:9])
        size, size_of_d = (SIZES[planned.launch["operands"][at]["type"]] for at in (0, -1))

        def region(base: int, rows: int, cols: int, pitch: int, size: int = size) -> Region:
            return Region(base, rows, cols * size, pitch * size)

        return _Product(
            region(a, *((k, m) if "_transposed_lhs" in name else (m, k)), pitch_a),
            region(b, *((n, k) if "_transposed_rhs" in name else (k, n)), pitch_b),
            region(c, m, n, pitch_c) if c else None,
            Region(factor, 1, SIZES["f32"]) if factor else None,
            region(d, m, n, pitch_d, size_of_d),
            "_symmetric" in name,
            planned.launch["operands"][-1]["kind"] == "param",
        )


def _with_padding(addend: Region) -> Region:
    """What is read of an addend: pairs, so that the last element of an odd row comes with the padding beside it."""
    return replace(addend, row_bytes=-(-addend.row_bytes // 4) * 4)


def _bytes_of_product(launch: Launch, planned: Planned, words: Counts) -> int:
    product = _Product.of(planned, words)
    _claim_scalars(launch, planned, int(words[12]))
    inputs = {product.a, product.b}
    if product.c is not None:
        inputs.add(product.c)
        launch.claim(_with_padding(product.c))
    if product.factor is not None:
        inputs.add(product.factor)
    if product.has_epilogue:
        inputs.add(product.d)
    return sum(launch.reads(region)[1] for region in inputs) + launch.writes(product.d)[1]


def unread_addends(planned: Planned, words: Counts) -> int:
    """Bytes of an addend of its own that a symmetric product has no use for: those of tiles above the diagonal."""
    product = _Product.of(planned, words)
    if not product.is_symmetric or product.c in (None, product.a, product.b):
        return 0
    m = planned.launch["sizes"][0]
    heights = [min(TILE, m - first) for first in range(0, m, TILE)]
    above = sum(height * sum(heights[at + 1 :]) for at, height in enumerate(heights))
    return above * SIZES[planned.launch["operands"][0]["type"]]


def tile_traffic(planned: Planned, words: Counts) -> int:
    """Bytes that the tiles of a product read and write, each its own strips of the operands."""
    product = _Product.of(planned, words)
    m, n, k = planned.launch["sizes"]
    size, size_of_d = (SIZES[planned.launch["operands"][at]["type"]] for at in (0, -1))
    total = 0
    for row in range(0, m, TILE):
        for column in range(0, row + 1 if product.is_symmetric else n, TILE):
            height, width = min(TILE, m - row), min(TILE, n - column)
            total += (height + width) * k * size
            total += height * -(-width // 2) * 2 * size if product.c is not None else 0
            times = 1 + (product.is_symmetric and row != column) + product.has_epilogue
            total += times * height * width * size_of_d
    return total


def counted_traffic(launch: Launch, planned: Planned, words: Counts) -> int:
    """Bytes that a launch moved in the operands of a product, each as often as it did."""
    product = _Product.of(planned, words)
    inputs = {region.base: region for region in (product.a, product.b, *([product.d] if product.has_epilogue else []))}
    if product.c is not None:
        inputs[product.c.base] = _with_padding(product.c)
    return sum(launch.reads(region)[0] for region in inputs.values()) + launch.writes(product.d)[0]


def check_launches(launches: Sequence[Launch], planned: Sequence[Planned]) -> int:
    """Compare what ran with what was planned, entry by entry; how many bytes moved in all.

    Raises:
        AssertionError: a matrix more or less, a byte more or less, or one that belongs to no operand.
    """
    open_ = {key: [one for one in planned if one.key == key] for key in {one.key for one in planned}}
    total = 0
    for launch in launches:
        for sizes, words in entries_of(launch):
            left = open_.get((launch.kernel, sizes))
            assert left, f"{launch.kernel} runs on {sizes} more often than planned"
            one = left.pop()
            found, wanted = moved_bytes(launch, one, words), int(one.launch["bytes"])
            if one.schedule == "matmul":
                wanted -= unread_addends(one, words)
                assert counted_traffic(launch, one, words) == tile_traffic(one, words), (launch.kernel, sizes)
            assert found == wanted, f"{launch.kernel} on {sizes}: expects {wanted} bytes, but moved {found}"
            total += found
        assert not launch.strays(), launch.strays()
    left_over = {key: len(left) for key, left in open_.items() if left}
    assert not left_over, f"planned, but did not run: {left_over}"
    return total
