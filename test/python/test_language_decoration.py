"""The check at decoration refuses nothing that compiles for some shape and some constants."""

# ruff: noqa: SIM108 - the forms the language documents

from __future__ import annotations

from typing import Any

import kaon
import kaon.language as kl
import pytest
from kaon import errors

DEBUG = False
MODE = "late"


@kaon.function
def scaled(x, kind: kl.constexpr, factor=None):
    """Kinds that go together with a condition: without a factor the product is never reached."""
    if kind == "plain":
        return x
    return x * factor


@kaon.function
def chosen(kind: kl.constexpr, x, y=None):
    return x * 2 if y is None else x * y if kind == "both" else x.rows


@kaon.update
def guarded(w: kl.param, g: kl.grad, lr: kl.scalar, *, kind: kl.constexpr = "plain", names: kl.constexpr = ("w", "g")):
    if kind == "unheard":
        kl.static_assert(False, "no such kind")
    if "w" in names and len(names) > 1 and max(names) == "w":
        w = w - lr * scaled(g, kind)
    for name in names:
        if name == "g":
            w = w - lr * chosen("both", g)
    if DEBUG:
        w = w * 1.0
    elif MODE == "late":
        w = w - defined_below(w, 0.5)
    return w


@kaon.function
def defined_below(x, factor):
    return x * factor * VALUE


VALUE = 0.25


@kaon.update
def required(w: kl.param, g: kl.grad, m: kl.state, *, period: kl.constexpr, steps: kl.constexpr = None):
    if steps is None:
        o = kl.row_normalize(g)
    else:
        o = kl.newton_schulz(g, steps=steps)
    if period > 1 and kl.every(period):
        m = o
    return (w - o, m) if steps is None else (w - 2 * o, m)


@kaon.update
def returns_on_every_way(w: kl.param, g: kl.grad, *, flip: kl.constexpr = False):
    if flip:
        return w + g
    elif w.rows > w.cols:
        return w - g.T.T
    else:
        return w - g


@kaon.update
def square(w: kl.param, g: kl.grad, c: kl.scalar_state, *, shape: kl.constexpr = None):
    rows, cols = shape or w.shape
    kl.static_assert(rows == cols, f"expects a square matrix, but got {rows}x{cols}")
    d = w @ g + g @ g / rows + kl.mean(g, "row") * kl.full_like(g, cols)
    if kl.every(2):
        c = kl.sum(d, "all" if rows > 1 else "row")
    else:
        c = 0.0
    return w - (d.T if rows == cols else d), c


@kaon.update
def single_value(w: kl.param, g: kl.grad, lr: kl.scalar):
    if kl.every(2):
        u = g
    else:
        u = 0.5
    return w - lr * u


@pytest.mark.parametrize(
    "update, shape, constexprs",
    [
        (guarded, (4, 6), {}),
        (required, (4, 6), {"period": 2}),
        (required, (4, 6), {"period": 1, "steps": 3}),
        (returns_on_every_way, (4, 6), {}),
        (returns_on_every_way, (6, 4), {"flip": True}),
        (square, (5, 5), {}),
        (square, (1, 1), {"shape": (1, 1)}),
        (single_value, (1, 1), {}),
    ],
)
def test_what_compiles_is_accepted(update: kaon.Update, shape: tuple[int, int], constexprs: dict[str, Any]) -> None:
    assert update.specialize(*shape, constexprs=constexprs, symbol="f").text


def test_what_another_shape_or_constant_allows_is_left_to_compiling() -> None:
    for update, shape, constexprs, kind in (
        (square, (4, 6), {}, errors.StaticAssertionError),
        (single_value, (4, 6), {}, errors.UpdateTypeError),
        (guarded, (4, 6), {"kind": "other"}, errors.UpdateTypeError),
        (required, (4, 6), {}, errors.UpdateTypeError),
    ):
        with pytest.raises(kind):
            update.specialize(*shape, constexprs=constexprs, symbol="f")


def test_nothing_is_printed_at_decoration(capsys: pytest.CaptureFixture[str]) -> None:
    @kaon.update
    def printing(w: kl.param, g: kl.grad):
        kl.static_print("rows", w.rows)
        return w - g

    assert capsys.readouterr().out == ""
    printing.specialize(4, 6, symbol="f")
    assert capsys.readouterr().out == "rows 4\n"


def test_mistakes_behind_an_unknown_condition_are_found() -> None:
    with pytest.raises(errors.UnsupportedError, match="`print` is not part of the language"):

        @kaon.update
        def first(w: kl.param, g: kl.grad, *, debug: kl.constexpr = False):
            if debug:
                print(w)
            return w - g

    with pytest.raises(errors.UpdateSyntaxError, match=r"`return` inside `if kl\.every"):

        @kaon.update
        def second(w: kl.param, g: kl.grad, *, period: kl.constexpr = 3):
            if kl.every(period):
                return w
            return w - g

    with pytest.raises(errors.RoleError, match="must return 1 value"):

        @kaon.update
        def third(w: kl.param, g: kl.grad, *, both: kl.constexpr = False):
            if both:
                return w, g
            return w - g


def test_a_helper_is_checked_by_itself_and_where_it_is_called() -> None:
    with pytest.raises(errors.UnsupportedError, match="only names can be assigned"):

        @kaon.function
        def alone(x):
            x[0] = 1
            return x

    @kaon.function
    def truth(x):
        return x if x else 0.0

    with pytest.raises(errors.UnsupportedError, match="truth value of a matrix") as caught:

        @kaon.update
        def update(w: kl.param, g: kl.grad):
            return w - truth(g)

    assert [place.function for place in caught.value.call_chain] == ["truth", "update"]
