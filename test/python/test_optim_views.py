"""Views: how a parameter becomes matrices."""

from __future__ import annotations

import pytest
import torch
from kaon.optim import View


def slices(view: str, shape: tuple[int, ...]) -> list[tuple[int, int, int, int, int]]:
    return [(m.batch, m.start, m.step, m.rows, m.cols) for m in View.parse(view).matrices(shape)]


def test_matrices_of_each_view() -> None:
    assert slices("matrix", (4, 6)) == [(0, 0, 1, 4, 6)]
    assert slices("flatten", (8, 3, 2, 2)) == [(0, 0, 1, 8, 12)]
    assert slices("batch", (2, 4, 6)) == [(0, 0, 1, 4, 6), (1, 0, 1, 4, 6)]
    assert len(slices("batch", (2, 3, 4, 6))) == 6
    assert slices("split(3)", (12, 16)) == [(0, 0, 1, 4, 16), (0, 4, 1, 4, 16), (0, 8, 1, 4, 16)]
    assert slices("split(8, 2, 2)", (12, 16)) == [(0, 0, 1, 8, 16), (0, 8, 1, 2, 16), (0, 10, 1, 2, 16)]
    assert slices("interleaved(2)", (6, 5)) == [(0, 0, 2, 3, 5), (0, 1, 2, 3, 5)]
    assert slices("elementwise", (4, 6)) == [(0, 0, 1, 4, 6)]
    assert slices("elementwise", (4, 3, 2)) == [(0, 0, 1, 1, 24)]
    assert slices("elementwise", ()) == [(0, 0, 1, 1, 1)]
    assert slices("matrix", (0, 6)) == []


@pytest.mark.parametrize(
    ("view", "shape", "message"),
    [
        ("matrix", (4,), 'view "matrix" expects 2 dimensions, but got 1'),
        ("matrix", (4, 3, 5), "expects 2 dimensions, but got 3"),
        ("batch", (4, 3), "expects at least 3 dimensions, but got 2"),
        ("flatten", (4,), "expects at least 2 dimensions, but got 1"),
        ("split(3)", (13, 4), r'view "split\(3\)" expects rows divisible by 3, but got 13 rows'),
        ("split(4, 4)", (9, 4), "expects 8 rows, but got 9 rows"),
        ("interleaved(2)", (7, 4), "expects rows divisible by 2, but got 7 rows"),
    ],
)
def test_views_that_do_not_apply(view: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        View.parse(view).matrices(shape)


@pytest.mark.parametrize(
    "text", ["rows", "split", "split()", "split(0)", "flatten(2)", "interleaved(2, 2)", "split(-1)"]
)
def test_text_that_is_no_view(text: str) -> None:
    with pytest.raises(ValueError, match="view"):
        View.parse(text)


@pytest.mark.parametrize(
    "text", ["matrix", "flatten", "batch", "elementwise", "split(3)", "split(1, 2)", "interleaved(4)"]
)
def test_text_round_trip(text: str) -> None:
    assert str(View.parse(text)) == text
    assert View.parse(str(View.parse(text))) == View.parse(text)


@pytest.mark.parametrize(
    ("view", "shape"),
    [
        ("matrix", (4, 6)),
        ("flatten", (4, 3, 2, 2)),
        ("batch", (3, 4, 5)),
        ("split(2, 1, 3)", (6, 5)),
        ("interleaved(3)", (6, 5)),
        ("elementwise", (2, 3, 4)),
    ],
)
def test_addresses_find_the_elements(view: str, shape: tuple[int, ...]) -> None:
    """Reading memory at (offset, row stride) gives the rows that the view promises, for parameters and states alike."""
    parsed = View.parse(view)
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
    canonical = parsed.canonical(tensor)
    addresses = parsed.addresses(tensor)
    assert addresses is not None
    assert addresses == parsed.state_addresses(shape, "matrix")
    for matrix, (offset, stride) in zip(parsed.matrices(shape), addresses, strict=True):
        found = tensor.flatten().as_strided((matrix.rows, matrix.cols), (stride, 1), offset)
        rows = [matrix.start + matrix.step * row for row in range(matrix.rows)]
        assert torch.equal(found, canonical[matrix.batch, rows])
    for kind, cols in (("row", 1), ("column", None), ("scalar", 1)):
        state = torch.arange(torch.Size(parsed.state_shape(shape, kind)).numel())
        seen: set[int] = set()
        for matrix, (offset, stride) in zip(parsed.matrices(shape), parsed.state_addresses(shape, kind), strict=True):
            rows = matrix.rows if kind == "row" else 1
            taken = state.as_strided((rows, cols or matrix.cols), (stride, 1), offset).flatten().tolist()
            assert seen.isdisjoint(taken)
            seen.update(taken)
        assert seen == set(state.tolist())


def test_addresses_of_strided_tensors() -> None:
    big = torch.zeros(6, 10)
    assert View.parse("matrix").addresses(big[:, 2:6]) == [(0, 10)]
    assert View.parse("split(2)").addresses(big[:, 2:6]) == [(0, 10), (30, 10)]
    assert View.parse("matrix").addresses(torch.zeros(4, 6).t()) is None
    assert View.parse("matrix").addresses(torch.zeros(1, 6).expand(4, 6)) is None
    assert View.parse("matrix").addresses(torch.zeros(1, 6)) == [(0, 6)]
    channels_last = torch.zeros(4, 3, 2, 2).to(memory_format=torch.channels_last)
    assert View.parse("flatten").addresses(channels_last) is None
    assert View.parse("matrix").addresses(torch.zeros(5, 1)) == [(0, 1)]
