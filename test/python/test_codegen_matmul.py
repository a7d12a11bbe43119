"""Packing, the packed product and transposition, against NumPy in float64 and across processors."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from kernel_tools import TARGETS, bits, chunks, library_kernel, matrix

TYPES = {"f32": np.float32, "f64": np.float64}
RNG = np.random.default_rng(7)

# Around the register tiles (4x8, 6x16, 12x32), vectors of 16, blocks of 192 and the k block of 256.
SHAPES = [
    (1, 1, 1),
    (1, 40, 3),
    (40, 1, 5),
    (5, 7, 257),
    (6, 16, 4),
    (12, 32, 256),
    (13, 33, 255),
    (11, 31, 8),
    (64, 64, 64),
    (65, 47, 1),
    (193, 191, 19),
    (100, 200, 300),
]
SQUARE = [(1, 1), (5, 3), (12, 256), (33, 40), (64, 300), (191, 17), (192, 9), (200, 260), (400, 30)]
FAST = [name for name in TARGETS if name != "sse2"]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def tile(side: str, element: str, target: str) -> int:
    t = TARGETS[target]
    return t["mr"] if side == "lhs" else t["nr"] // (2 if element == "f64" else 1)


def pack(side: str, source: np.ndarray, transposed: bool, element: str, target: str, grain: int = 3) -> np.ndarray:
    """Packs op(source). The extent is that of rows of the left or columns of the right operand."""
    extent_first = (side == "lhs") != transposed
    extent, depth = source.shape if extent_first else source.shape[::-1]
    width = tile(side, element, target)
    slivers = ceil_div(extent, width)
    packed = np.full((1, slivers * width * ceil_div(depth, 4) * 4), np.nan, TYPES[element])
    kernel = library_kernel(f"pack_{side}{'_transposed' if transposed else ''}", element, target)
    kernel([source, packed], [extent, depth], chunks(slivers, grain))
    return packed


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    element: str,
    target: str = "host",
    *,
    symmetric: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: np.ndarray | None = None,
    transpose: tuple[bool, bool] = (False, False),
    out: np.ndarray | None = None,
    grain: int = 2,
) -> np.ndarray:
    """alpha * op(a) @ op(b) [+ beta * c], where op transposes what ``transpose`` says."""
    m, k = a.shape[::-1] if transpose[0] else a.shape
    n = b.shape[0] if transpose[1] else b.shape[1]
    packed_a = pack("lhs", a, transpose[0], element, target)
    packed_b = pack("rhs", b, transpose[1], element, target)
    d = matrix(np.full((m, n), np.nan, TYPES[element]), gap=3, offset=1) if out is None else out
    block = TARGETS[target]["block"]
    rows = ceil_div(m, block)
    items = rows * (rows + 1) // 2 if symmetric else rows * ceil_div(n, block)
    name = "matmul" + ("_symmetric" if symmetric else "") + ("_add" if c is not None else "")
    buffers = [packed_a, packed_b, *([] if c is None else [c]), d]
    library_kernel(name, element, target)(buffers, [m, n, k], chunks(items, grain), [alpha, beta])
    return d


def operand(rows: int, cols: int, element: str, transposed: bool = False, scale: float = 1.0) -> np.ndarray:
    shape = (cols, rows) if transposed else (rows, cols)
    return matrix((RNG.standard_normal(shape) * scale).astype(TYPES[element]), gap=5, offset=1)


def assert_product(actual: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, depth: int) -> None:
    """Within the error bound of a sum of ``depth`` products of the magnitudes given."""
    unit = np.finfo(actual.dtype).eps
    bound = (np.sqrt(depth) + 4) * unit * magnitude
    assert np.all(np.isfinite(actual))
    error = np.abs(actual.astype(np.float64) - exact)
    assert np.all(error <= bound), f"worst error {np.max(error / bound):.2f} of the bound"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize("transpose", [(False, False), (False, True), (True, False), (True, True)], ids=str)
def test_product(element: str, transpose: tuple[bool, bool], target: str) -> None:
    for m, n, k in SHAPES[:8] if target == "sse2" else SHAPES:
        a = operand(m, k, element, transpose[0])
        b = operand(k, n, element, transpose[1])
        d = multiply(a, b, element, target, transpose=transpose)
        left = (a.T if transpose[0] else a).astype(np.float64)
        right = (b.T if transpose[1] else b).astype(np.float64)
        assert_product(d, left @ right, np.abs(left) @ np.abs(right), k)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", TYPES)
def test_epilogue(element: str, target: str) -> None:
    for m, n, k in [(1, 1, 1), (13, 35, 20), (30, 30, 600)]:
        a, b, c = operand(m, k, element), operand(k, n, element), operand(m, n, element)
        d = multiply(a, b, element, target, alpha=-1.5, beta=0.25, c=c)
        left, right, addend = (x.astype(np.float64) for x in (a, b, c))
        exact = -1.5 * left @ right + 0.25 * addend
        assert_product(d, exact, 1.5 * np.abs(left) @ np.abs(right) + np.abs(addend), k)
        # D over C.
        assert np.array_equal(bits(multiply(a, b, element, target, alpha=-1.5, beta=0.25, c=c, out=c)), bits(d))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize("add", [False, True])
def test_symmetric_product(element: str, add: bool, target: str) -> None:
    for n, k in SQUARE[:5] if target == "sse2" else SQUARE:
        a = operand(n, k, element)
        c = operand(n, n, element)
        c[...] = (c + c.T) / 2
        settings = {"alpha": 2.0, "beta": -1.0, "c": c} if add else {}
        dense = multiply(a, a, element, target, transpose=(False, True), **settings)  # type: ignore[arg-type]
        half = multiply(a, a, element, target, transpose=(False, True), symmetric=True, **settings)  # type: ignore[arg-type]
        assert np.array_equal(half, half.T)
        # The lower triangle is what the dense product computes.
        assert np.array_equal(bits(np.tril(half)), bits(np.tril(dense)))


def test_symmetric_product_mirrors_the_lower_triangle() -> None:
    # Even if the operands break the promise, as rounding makes powers of a matrix do.
    n = 230
    a, b = operand(n, 20, "f32"), operand(20, n, "f32")
    half = multiply(a, b, "f32", symmetric=True)
    dense = multiply(a, b, "f32")
    expected = np.tril(dense) + np.tril(dense, -1).T
    assert np.array_equal(half, expected)


@pytest.mark.parametrize("element", TYPES)
def test_bits_agree_across_processors_and_chunks(element: str) -> None:
    for m, n, k in [(1, 1, 1), (13, 33, 257), (65, 47, 520), (200, 201, 64)]:
        a, b, c = operand(m, k, element), operand(k, n, element), operand(m, n, element)
        runs = [
            multiply(a, b, element, target, alpha=0.7, beta=0.3, c=c, grain=grain)
            for target in (TARGETS if m < 100 else FAST)
            for grain in (1, 100)
        ]
        for other in runs[1:]:
            assert np.array_equal(bits(runs[0]), bits(other))


def test_sum_over_k_is_one_chain_of_fused_steps_per_block() -> None:
    # Products need 48 bits, so that an unfused step would round them: emulated with exact rational arithmetic.
    from fractions import Fraction

    k = 300
    a, b = operand(1, k, "f32"), operand(k, 1, "f32")

    def rounded(value: Fraction) -> Fraction:
        # float32 nearest to a rational: by way of float64 only when that is safe.
        candidate = np.float32(float(value))
        best = min(
            (np.nextafter(candidate, np.float32(d)) for d in (-np.inf, np.inf)),
            key=lambda x: abs(Fraction(float(x)) - value),
        )
        nearest = min((candidate, best), key=lambda x: abs(Fraction(float(x)) - value))
        return Fraction(float(nearest))

    total: Fraction | None = None
    for begin in range(0, k, 256):
        chain = Fraction(0)
        for i in range(begin, min(begin + 256, k)):
            chain = rounded(Fraction(float(a[0, i])) * Fraction(float(b[i, 0])) + chain)
        total = chain if total is None else rounded(total + chain)
    assert Fraction(float(multiply(a, b, "f32")[0, 0])) == total


@pytest.mark.parametrize("target", FAST)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales(scale: float, target: str) -> None:
    a, b = operand(20, 30, "f32", scale=scale), operand(30, 20, "f32", scale=1 / scale)
    left, right = a.astype(np.float64), b.astype(np.float64)
    assert_product(multiply(a, b, "f32", target), left @ right, np.abs(left) @ np.abs(right), 30)


def test_no_rows_is_no_work() -> None:
    d = np.full((1, 8), 3, np.float32)
    library_kernel("matmul", "f32")([d, d, d], [0, 8, 8], [(0, 0)], [1.0, 0.0])
    assert np.all(d == 3)


def test_non_finite_padding_stays_out() -> None:
    # Neighbours in memory are NaN (see matrix()); padding of packed operands must not let them in.
    a = operand(7, 9, "f32")
    b = operand(9, 5, "f32")
    assert np.all(np.isfinite(multiply(a, b, "f32")))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", ["f32", "f64", "bf16", "f16"])
def test_transpose(element: str, target: str) -> None:
    dtype = {"bf16": np.uint16, "f16": np.float16, **TYPES}[element]
    for rows, cols in [(1, 1), (1, 50), (50, 1), (8, 8), (33, 31), (64, 100), (70, 16)]:
        source = matrix(RNG.integers(0, 1000, (rows, cols)).astype(dtype), gap=2, offset=1)
        result = matrix(np.zeros((cols, rows), dtype), gap=1)
        items = ceil_div(rows, 32)
        library_kernel("transpose", element, target)([source, result], [rows, cols], chunks(items, 1))
        assert np.array_equal(result, source.T)


@functools.cache
def guarded(target: str) -> tuple[np.ndarray, np.ndarray]:
    memory = np.full((40, 64), 5, np.float32)
    a, b = operand(13, 9, "f32"), operand(9, 17, "f32")
    multiply(a, b, "f32", target, out=memory[10:23, 20:37])
    return memory, a @ b


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_outside_of_the_result_is_written(target: str) -> None:
    memory, product = guarded(target)
    inside = np.zeros_like(memory, bool)
    inside[10:23, 20:37] = True
    assert np.all(memory[~inside] == 5)
    assert np.allclose(memory[10:23, 20:37], product, atol=1e-4)
