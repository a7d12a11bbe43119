"""Elementwise, row and column kernels, against NumPy and across processors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kaon import _C
from kernel_tools import TARGETS, bits, chunks, compiled, matrix

RNG = np.random.default_rng(11)
SHAPES = [(1, 1), (1, 100), (70, 1), (3, 15), (3, 16), (2, 17), (5, 31), (4, 32), (3, 33), (9, 64), (33, 129)]
FULL, ROW, COLUMN = "tensor<?x?x{}>", "tensor<?x1x{}>", "tensor<1x?x{}>"


def kernel_text(schedule: str, signature: str, results: str, body: str) -> str:
    """A kernel called ``k``. ``%d0`` and ``%d1`` in the body are the sizes of the first matrix, ``%a``."""
    first = signature.split(":", 1)[1].split(">", 1)[0].strip() + ">"
    return (
        f"func.func private @k({signature}) -> ({results}) attributes {{kaon.kernel = #kaon.schedule<{schedule}>}} {{\n"
        "  %i0 = arith.constant 0 : index\n  %i1 = arith.constant 1 : index\n"
        f"  %d0 = tensor.dim %a, %i0 : {first}\n  %d1 = tensor.dim %a, %i1 : {first}\n"
        f"{body}\n}}\n"
    )


def unary(op: str, source: str = "f32", result: str | None = None, schedule: str = "elementwise") -> str:
    a, r = FULL.format(source), FULL.format(result or source)
    types = f"{a} to {r}" if result else a
    return kernel_text(schedule, f"%a: {a}", r, f"  %r = {op} %a : {types}\n  return %r : {r}")


def values(rows: int, cols: int, dtype: type = np.float32, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal((rows, cols)) * scale).astype(dtype)


def run_unary(text: str, x: np.ndarray, dtype: type, target: str = "host", gap: int = 1) -> np.ndarray:
    rows, cols = x.shape
    result = matrix(np.zeros(x.shape, dtype), gap=gap)
    compiled(text, target)([matrix(x, gap=gap, offset=1), result], [rows, cols], chunks(rows, 2))
    return result


# ---- elementwise


AXPY = kernel_text(
    "elementwise",
    "%a: tensor<?x?xf32>, %b: tensor<?x?xf32>, %o: tensor<1x1xf32>, %s: f64",
    "tensor<?x?xf32>, tensor<?x?xf32>",
    """  %t = arith.truncf %s : f64 to f32
  %u = tensor.splat %t[%d0, %d1] : tensor<?x?xf32>
  %c = kaon.broadcast %o : tensor<1x1xf32> to tensor<?x?xf32>
  %p = arith.mulf %u, %a : tensor<?x?xf32>
  %q = arith.addf %p, %b : tensor<?x?xf32>
  %r = arith.divf %a, %c : tensor<?x?xf32>
  return %q, %r : tensor<?x?xf32>, tensor<?x?xf32>""",
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("in_place", [False, True])
def test_elementwise(in_place: bool, target: str) -> None:
    for rows, cols in SHAPES:
        x, y, one = values(rows, cols), values(rows, cols), np.array([[3.0]], np.float32)
        a, b = matrix(x, gap=3, offset=1), matrix(y, gap=1, offset=3)
        # In place crosswise: the first result over the second operand, and vice versa.
        q, r = (b, a) if in_place else (matrix(0 * x), matrix(0 * x, offset=1))
        compiled(AXPY, target)([a, b, one, q, r], [rows, cols], chunks(rows, 2), [0.3])
        # Multiplication and addition round one by one: nothing is fused behind the program's back.
        assert np.array_equal(bits(q), bits(np.float32(0.3) * x + y))
        assert np.array_equal(bits(r), bits(x / one))


def test_nothing_outside_of_a_result_is_written() -> None:
    for rows, cols in SHAPES:
        memory = np.full((rows + 2, cols + 40), 5, np.float32)
        inside = memory[1 : 1 + rows, 20 : 20 + cols]
        x = values(rows, cols)
        compiled(unary("math.absf"))([x, inside], [rows, cols], [(0, rows)])
        assert np.array_equal(inside, np.abs(x))
        inside[...] = 5
        assert np.all(memory == 5)


def test_no_rows_is_no_work() -> None:
    x = np.full((1, 8), 3, np.float32)
    compiled(unary("arith.negf"))([x, x], [0, 8], [(0, 0)])
    assert np.all(x == 3)


def test_fill_without_operands() -> None:
    text = (
        "func.func private @k(%s: f64) -> tensor<4x6xf64> attributes {kaon.kernel = #kaon.schedule<elementwise>} {\n"
        "  %r = tensor.splat %s : tensor<4x6xf64>\n  return %r : tensor<4x6xf64>\n}\n"
    )
    result = matrix(np.zeros((4, 6)), gap=1)
    compiled(text)([result], [4, 6], [(0, 4)], [2.5])
    assert np.all(result == 2.5)


def test_constants_comparisons_and_selection() -> None:
    text = kernel_text(
        "elementwise",
        "%a: tensor<?x?xf32>, %s: f64",
        "tensor<?x?xf32>",
        """  %z = arith.constant 0.0 : f64
  %on = arith.cmpf une, %s, %z : f64
  %y = arith.constant 2.0 : f32
  %two = tensor.splat %y[%d0, %d1] : tensor<?x?xf32>
  %big = arith.cmpf ogt, %a, %two : tensor<?x?xf32>
  %n = arith.negf %a : tensor<?x?xf32>
  %r = arith.select %big, %two, %n : tensor<?x?xi1>, tensor<?x?xf32>
  %q = arith.select %on, %r, %a : tensor<?x?xf32>
  return %q : tensor<?x?xf32>""",
    )
    x = values(3, 40, scale=3)
    for flag, expected in [(1.0, np.where(x > 2, np.float32(2), -x)), (0.0, x)]:
        result = np.zeros_like(x)
        compiled(text)([x, result], [3, 40], [(0, 3)], [flag])
        assert np.array_equal(bits(result), bits(expected))


@pytest.mark.parametrize("target", TARGETS)
def test_extreme_values(target: str) -> None:
    tiny = np.float32(1e-45)
    special = [0.0, -0.0, tiny, -tiny, 1e-39, 1e38, np.inf, -np.inf, np.nan, 1e-30, 1e30]
    x = np.tile(np.array([special], np.float32), (2, 4))
    for op, function in [
        ("arith.negf", np.negative),
        ("math.absf", np.abs),
        ("math.sqrt", np.sqrt),
        ("math.floor", np.floor),
    ]:
        with np.errstate(invalid="ignore"):
            expected = function(x)
        actual = run_unary(unary(op), x, np.float32, target)
        real = ~np.isnan(expected)
        assert np.array_equal(bits(actual[real]), bits(expected[real])), op
        assert np.all(np.isnan(actual[~real]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["maximumf", "minimumf"])
def test_maximum_propagates_nan(op: str, target: str) -> None:
    text = kernel_text(
        "elementwise",
        "%a: tensor<?x?xf32>, %b: tensor<?x?xf32>",
        "tensor<?x?xf32>",
        f"  %r = arith.{op} %a, %b : tensor<?x?xf32>\n  return %r : tensor<?x?xf32>",
    )
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan], np.float32)
    x, y = (np.ascontiguousarray(v.reshape(1, -1)) for v in np.meshgrid(special, special))
    result = np.zeros_like(x)
    compiled(text, target)([x, y, result], list(x.shape), [(0, 1)])
    expected = (np.maximum if op == "maximumf" else np.minimum)(x, y)
    equal = (result == expected) | (np.isnan(result) & np.isnan(expected))
    assert np.all(equal)


ACCURACY: dict[str, tuple[type[np.floating], float]] = {"f32": (np.float32, 1e-6), "f64": (np.float64, 1e-12)}
EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {"exp": np.exp, "log": np.log, "rsqrt": lambda x: 1 / np.sqrt(x)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", ACCURACY)
@pytest.mark.parametrize("op", EXACT)
def test_functions(op: str, element: str, target: str) -> None:
    dtype, tolerance = ACCURACY[element]
    x = np.abs(values(5, 77, dtype, scale=20)) + dtype(1e-3)
    exact = EXACT[op](x.astype(np.longdouble))
    actual = run_unary(unary(f"math.{op}", element), x, dtype, target)
    assert np.all(np.abs(actual - exact) <= tolerance * np.maximum(np.abs(exact), tolerance))


@pytest.mark.parametrize("element", ACCURACY)
def test_pow(element: str) -> None:
    dtype, tolerance = ACCURACY[element]
    full = FULL.format(element)
    text = kernel_text(
        "elementwise", f"%a: {full}, %b: {full}", full, f"  %r = math.powf %a, %b : {full}\n  return %r : {full}"
    )
    x, y = np.abs(values(3, 50, dtype)) + dtype(0.1), values(3, 50, dtype, scale=4)
    result = np.zeros_like(x)
    compiled(text)([x, y, result], [3, 50], [(0, 3)])
    exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert np.all(np.abs(result - exact) <= tolerance * exact)


# ---- half precision


def all_f32_near_bf16() -> np.ndarray:
    """Every bfloat16 with what decides rounding below it: halfway, just under, just over, and more."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (high[:, None] | low[None, :]).view(np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_bfloat16_rounds_to_nearest_even(target: str) -> None:
    torch = pytest.importorskip("torch")
    x = all_f32_near_bf16()
    expected = torch.from_numpy(x.copy()).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    actual = run_unary(unary("arith.truncf", "f32", "bf16"), x.reshape(64, -1), np.uint16, target).reshape(x.shape)
    nan = np.isnan(x)
    assert np.array_equal(actual[~nan], expected[~nan])
    assert np.all((actual[nan] & 0x7FFF) > 0x7F80)


@pytest.mark.parametrize("target", TARGETS)
def test_half_precision_widens_exactly(target: str) -> None:
    raw = np.arange(1 << 16, dtype=np.uint16).reshape(32, -1)
    wide = run_unary(unary("arith.extf", "bf16", "f32"), raw, np.float32, target)
    assert np.array_equal(bits(wide), raw.astype(np.uint32) << 16)
    half = raw.view(np.float16)
    number = ~np.isnan(half)
    actual = run_unary(unary("arith.extf", "f16", "f32"), half, np.float32, target)
    assert np.array_equal(bits(actual[number]), bits(half.astype(np.float32)[number]))
    assert np.all(np.isnan(actual[~number]))


@pytest.mark.parametrize("target", TARGETS)
def test_float16_rounds_to_nearest_even(target: str) -> None:
    high = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    high = high[np.isfinite(high)]
    x = np.concatenate([high, np.nextafter(high, np.float32(np.inf)), (high[1:] + high[:-1]) / 2]).reshape(1, -1)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    assert np.array_equal(bits(run_unary(unary("arith.truncf", "f32", "f16"), x, np.float16, target)), bits(expected))


def test_mixed_precision_update_in_place() -> None:
    text = kernel_text(
        "elementwise",
        "%a: tensor<?x?xbf16>, %b: tensor<?x?xf32>",
        "tensor<?x?xbf16>",
        """  %w = arith.extf %a : tensor<?x?xbf16> to tensor<?x?xf32>
  %s = arith.subf %w, %b : tensor<?x?xf32>
  %r = arith.truncf %s : tensor<?x?xf32> to tensor<?x?xbf16>
  return %r : tensor<?x?xbf16>""",
    )
    torch = pytest.importorskip("torch")
    for rows, cols in SHAPES:
        w = torch.randn(rows, cols).to(torch.bfloat16)
        u = torch.randn(rows, cols)
        expected = (w.float() - u).to(torch.bfloat16)
        buffer = matrix(w.view(torch.int16).numpy().view(np.uint16), gap=3, offset=1)
        compiled(text)([buffer, matrix(u.numpy(), gap=1), buffer], [rows, cols], [(0, rows)])
        assert np.array_equal(buffer, expected.view(torch.int16).numpy().view(np.uint16))


# ---- rows


def fixed_order_sum(x: np.ndarray) -> np.ndarray:
    """Row sums in 16 lanes of float64 and a fixed tree: the order that kernels promise."""
    rows, cols = x.shape
    lanes = np.zeros((rows, 16))
    for begin in range(0, cols, 16):
        part = x[:, begin : begin + 16].astype(np.float64)
        lanes[:, : part.shape[1]] += part
    for half in (8, 4, 2, 1):
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
    return lanes


def reduction(kind: str, along: str, element: str = "f32") -> str:
    schedule, result = ("rows", ROW) if along == "row" else ("columns", COLUMN)
    full, r = FULL.format(element), result.format(element)
    body = f"  %r = kaon.reduce {kind} %a along {along} : {full} -> {r}\n  return %r : {r}"
    return kernel_text(schedule, f"%a: {full}", r, body)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", ACCURACY)
def test_row_sum_has_the_promised_order(element: str, target: str) -> None:
    dtype = ACCURACY[element][0]
    for rows, cols in [*SHAPES, (2, 1000)]:
        x = matrix(values(rows, cols, dtype) * 10.0 ** RNG.integers(-8, 8, (rows, cols)), gap=1, offset=1).astype(dtype)
        result = np.zeros((rows, 1), dtype)
        compiled(reduction("sum", "row", element), target)([x, result], [rows, cols], chunks(rows, 2))
        assert np.array_equal(bits(result), bits(fixed_order_sum(x).astype(dtype)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("along", ["row", "column"])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_extrema(kind: str, along: str, target: str) -> None:
    function = np.max if kind == "max" else np.min
    for rows, cols in SHAPES:
        x = values(rows, cols)
        if rows > 3:
            x[2, cols // 2] = np.nan
        axis = 1 if along == "row" else 0
        expected = function(x, axis=axis, keepdims=True)
        result = np.full_like(expected, 77)
        count = rows if along == "row" else cols
        kernel = compiled(reduction(kind, along), target)
        kernel([matrix(x, gap=2), result], [rows, cols], chunks(count, 2 if along == "row" else 16))
        assert np.array_equal(result, expected, equal_nan=True)


ROW_STEP = kernel_text(
    "rows",
    "%a: tensor<?x?xf32>, %g: tensor<?x?xf32>, %m: tensor<?x?xf32>, %c: tensor<1x?xf32>, %t: tensor<?x1xf32>, "
    "%mu: f64, %lr: f64",
    "tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x1xf32>",
    """  %one = arith.constant 1.0 : f64
  %zero = arith.constant 0.0 : f64
  %nu = arith.subf %one, %mu : f64
  %mu32 = arith.truncf %mu : f64 to f32
  %nu32 = arith.truncf %nu : f64 to f32
  %lr32 = arith.truncf %lr : f64 to f32
  %mus = tensor.splat %mu32[%d0, %d1] : tensor<?x?xf32>
  %nus = tensor.splat %nu32[%d0, %d1] : tensor<?x?xf32>
  %lrs = tensor.splat %lr32[%d0, %d1] : tensor<?x?xf32>
  %p = arith.mulf %mus, %m : tensor<?x?xf32>
  %q = arith.mulf %nus, %g : tensor<?x?xf32>
  %m1 = arith.addf %p, %q : tensor<?x?xf32>
  %x = arith.extf %m1 : tensor<?x?xf32> to tensor<?x?xf64>
  %xx = arith.mulf %x, %x : tensor<?x?xf64>
  %s = kaon.reduce sum %xx along row : tensor<?x?xf64> -> tensor<?x1xf64>
  %n = math.sqrt %s : tensor<?x1xf64>
  %z = tensor.splat %zero[%d0] : tensor<?x1xf64>
  %ones = tensor.splat %one[%d0] : tensor<?x1xf64>
  %empty = arith.cmpf oeq, %n, %z : tensor<?x1xf64>
  %safe = arith.select %empty, %ones, %n : tensor<?x1xi1>, tensor<?x1xf64>
  %wide = kaon.broadcast %safe : tensor<?x1xf64> to tensor<?x?xf64>
  %y = arith.divf %x, %wide : tensor<?x?xf64>
  %y32 = arith.truncf %y : tensor<?x?xf64> to tensor<?x?xf32>
  %top = kaon.reduce max %y32 along row : tensor<?x?xf32> -> tensor<?x1xf32>
  %t1 = arith.addf %t, %top : tensor<?x1xf32>
  %tw = kaon.broadcast %t1 : tensor<?x1xf32> to tensor<?x?xf32>
  %cw = kaon.broadcast %c : tensor<1x?xf32> to tensor<?x?xf32>
  %u = arith.mulf %lrs, %y32 : tensor<?x?xf32>
  %v = arith.mulf %u, %tw : tensor<?x?xf32>
  %k = arith.mulf %v, %cw : tensor<?x?xf32>
  %w1 = arith.subf %a, %k : tensor<?x?xf32>
  return %w1, %m1, %t1 : tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x1xf32>""",
)


def row_step(
    w: np.ndarray, g: np.ndarray, m: np.ndarray, c: np.ndarray, t: np.ndarray, mu: float, lr: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    f32 = np.float32
    m1 = f32(mu) * m + f32(1 - mu) * g
    x = m1.astype(np.float64)
    norm = np.sqrt(fixed_order_sum(x * x))
    y = (x / np.where(norm == 0, 1, norm)).astype(f32)
    t1 = t + y.max(axis=1, keepdims=True)
    return w - f32(lr) * y * t1 * c, m1, t1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1.0, 1e30])
def test_row_step_in_place(scale: float, target: str) -> None:
    """Two reductions that follow one another, values per row and per column, and everything in place."""
    for rows, cols in SHAPES:
        w, g, m = values(rows, cols), values(rows, cols, scale=scale), values(rows, cols, scale=scale)
        c, t = values(1, cols), values(rows, 1)
        g[0], m[0] = 0, 0
        expected = row_step(w, g, m, c, t, 0.9, 0.02)
        for grain in (1, rows):
            a, b, d = matrix(w, gap=1, offset=1), matrix(m, gap=7), t.copy()
            buffers = [a, matrix(g, offset=3), b, c, d, a, b, d]
            compiled(ROW_STEP, target)(buffers, [rows, cols], chunks(rows, grain), [0.9, 0.02])
            for actual, wanted in zip((a, b, d), expected, strict=True):
                assert np.array_equal(bits(actual), bits(wanted))
        assert np.array_equal(a[0], w[0])  # a zero row does not move


def test_results_may_lie_over_any_operand() -> None:
    """The first result over the second operand, which the last pass still reads, and the reverse."""
    full = FULL.format("f32")
    text = kernel_text(
        "rows",
        f"%a: {full}, %b: {full}",
        f"{full}, {full}",
        f"""  %s = kaon.reduce sum %a along row : {full} -> tensor<?x1xf32>
  %w = kaon.broadcast %s : tensor<?x1xf32> to {full}
  %p = arith.mulf %a, %b : {full}
  %q = arith.addf %b, %w : {full}
  return %p, %q : {full}, {full}""",
    )
    for rows, cols in SHAPES:
        x, y = values(rows, cols), values(rows, cols)
        a, b = matrix(x, gap=1), matrix(y, offset=1)
        compiled(text)([a, b, b, a], [rows, cols], chunks(rows, 1))
        assert np.array_equal(bits(b), bits(x * y))
        assert np.array_equal(bits(a), bits(y + fixed_order_sum(x).astype(np.float32)))


def test_second_level_of_a_total() -> None:
    text = (
        "func.func private @k(%a: tensor<1x?xf64>) -> tensor<1x1xf64>\n"
        "    attributes {kaon.kernel = #kaon.schedule<rows>} {\n"
        "  %r = kaon.reduce sum %a along row : tensor<1x?xf64> -> tensor<1x1xf64>\n  return %r : tensor<1x1xf64>\n}\n"
    )
    for count in (1, 15, 16, 17, 100):
        x, result = values(1, count, np.float64), np.zeros((1, 1))
        compiled(text)([x, result], [1, count], [(0, 1)])
        assert np.array_equal(result, fixed_order_sum(x))


def test_reducing_a_single_value_keeps_it() -> None:
    text = (
        "func.func private @k(%a: tensor<?x1xf32>) -> tensor<?x1xf32>\n"
        "    attributes {kaon.kernel = #kaon.schedule<rows>} {\n"
        "  %r = kaon.reduce sum %a along row : tensor<?x1xf32> -> tensor<?x1xf32>\n  return %r : tensor<?x1xf32>\n}\n"
    )
    x, result = values(9, 1), np.zeros((9, 1), np.float32)
    compiled(text)([x, result], [9, 1], [(0, 9)])
    assert np.array_equal(x, result)


# ---- columns

COLUMN_STEP = kernel_text(
    "columns",
    "%a: tensor<?x?xf32>, %m: tensor<?x?xf32>, %c: tensor<1x?xf32>, %r: tensor<?x1xf32>, %s: f64",
    "tensor<?x?xf32>, tensor<?x?xf32>, tensor<1x?xf32>",
    """  %s32 = arith.truncf %s : f64 to f32
  %sw = tensor.splat %s32[%d0, %d1] : tensor<?x?xf32>
  %rw = kaon.broadcast %r : tensor<?x1xf32> to tensor<?x?xf32>
  %p = arith.mulf %m, %sw : tensor<?x?xf32>
  %m1 = arith.addf %p, %rw : tensor<?x?xf32>
  %n = kaon.reduce sum %m1 along column : tensor<?x?xf32> -> tensor<1x?xf32>
  %c1 = arith.addf %c, %n : tensor<1x?xf32>
  %nw = kaon.broadcast %c1 : tensor<1x?xf32> to tensor<?x?xf32>
  %q = arith.mulf %m1, %nw : tensor<?x?xf32>
  %w1 = arith.subf %a, %q : tensor<?x?xf32>
  return %w1, %m1, %c1 : tensor<?x?xf32>, tensor<?x?xf32>, tensor<1x?xf32>""",
)


@pytest.mark.parametrize("target", TARGETS)
def test_column_step_in_place(target: str) -> None:
    for rows, cols in [*SHAPES, (40, 200)]:
        w, m, c, r = values(rows, cols), values(rows, cols), values(1, cols), values(rows, 1)
        m1 = m * np.float32(0.5) + r
        total = np.zeros((1, cols))
        for row in m1:  # in f64, row after row
            total += row
        c1 = c + total.astype(np.float32)
        expected = (w - m1 * c1, m1, c1)
        for grain in (16, 48, cols):
            a, b, d = matrix(w, gap=1, offset=1), matrix(m, gap=3), matrix(c, offset=1)
            compiled(COLUMN_STEP, target)([a, b, d, r, a, b, d], [rows, cols], chunks(cols, grain), [0.5])
            for actual, wanted in zip((a, b, d), expected, strict=True):
                assert np.array_equal(bits(actual), bits(wanted))


# ---- what is refused


@pytest.mark.parametrize(
    ("schedule", "result", "body", "message"),
    [
        (
            "elementwise",
            FULL.format("bf16"),
            "%r = arith.truncf %a : tensor<?x?xf64> to tensor<?x?xbf16>",
            "expects f32 as the source of 'bf16', but got 'f64'",
        ),
        ("rows", FULL.format("f64"), "%r = tensor.cast %a : tensor<?x?xf64> to tensor<?x?xf64>", "tensor.cast"),
        (
            "elementwise",
            FULL.format("bf16"),
            "%h = arith.truncf %a : tensor<?x?xf64> to tensor<?x?xf32>\n"
            "  %b = arith.truncf %h : tensor<?x?xf32> to tensor<?x?xbf16>\n"
            "  %r = arith.negf %b : tensor<?x?xbf16>",
            "16-bit types are for memory only",
        ),
    ],
)
def test_refusal(schedule: str, result: str, body: str, message: str) -> None:
    text = kernel_text(schedule, f"%a: {FULL.format('f64')}", result, f"  {body}\n  return %r : {result}")
    with pytest.raises(_C.CompileError) as caught:
        _C.compile_kernel(text, TARGETS["host"])
    assert message in str(caught.value)
