"""The public surface: decorators, signatures, documentation stubs, coefficient tables, pickling, import cost."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import math
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import kaon
import kaon.language as kl
import language_examples as examples
import numpy as np
import pytest
import reference_optimizers as reference
from kaon import errors
from kaon.compiler.errors import SourceLocation, render_excerpt
from kaon.compiler.update import REQUIRED, ConstexprSpec, ScalarSpec, StateSpec
from kaon.language import coefficients
from kaon.language.core import Builtin
from kaon.language.semantic import Semantic

ROOT = Path(__file__).resolve().parents[2]
BUILTINS = [value for value in vars(kl).values() if isinstance(value, Builtin)]


# ---- signature ------------------------------------------------------------------------------------------------------


@kaon.function
def shared_factor(x, factor):
    return x * factor


def test_signature() -> None:
    signature = examples.calibrated_rowwise_muon.signature
    assert (signature.param, signature.grad) == ("w", "g")
    assert signature.states == (StateSpec("m", "matrix", 0.0), StateSpec("c", "scalar", 1.0))
    assert signature.scalars == (
        ScalarSpec("lr", None),
        ScalarSpec("momentum", 0.95),
        ScalarSpec("weight_decay", 0.1),
    )
    assert signature.constexprs == (ConstexprSpec("period", 3),)
    assert examples.calibrated_rowwise_muon.name == "calibrated_rowwise_muon"


def test_state_shapes() -> None:
    kinds = {"matrix": (4, 6), "row": (4, 1), "column": (1, 6), "scalar": (1, 1)}
    assert {kind: StateSpec("s", kind).shape(4, 6) for kind in kinds} == kinds


def test_bind_constexprs() -> None:
    @kaon.update
    def update(w: kl.param, g: kl.grad, *, table: kl.constexpr, mode: kl.constexpr = "wide"):
        return w - g

    assert update.signature.constexprs[0].default is REQUIRED and update.signature.constexprs[0].required
    assert update.bind_constexprs({"table": (1, None, "x")}) == {"table": (1, None, "x"), "mode": "wide"}
    with pytest.raises(errors.UpdateTypeError, match="misses the constexpr `table`"):
        update.bind_constexprs({"mode": "tall"})
    with pytest.raises(errors.UpdateTypeError, match="has no constexpr `tables`"):
        update.bind_constexprs({"table": 1, "tables": 2})


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (-1, 4), (True, 4), (2.0, 4), ("2", 4)])
def test_shapes_are_checked(shape: Any) -> None:
    with pytest.raises(errors.ShapeError, match=r"expects (rows|cols) >= 1, but got"):
        examples.lion.specialize(*shape, symbol="f")


def test_dtypes_are_checked() -> None:
    with pytest.raises(errors.UpdateTypeError, match="param_dtype to be one of f32, f64, bf16, f16, but got 'float32'"):
        examples.lion.specialize(2, 2, "float32", symbol="f")
    with pytest.raises(errors.UpdateTypeError, match="grad_dtype"):
        examples.lion.specialize(2, 2, "f32", "i8", symbol="f")


def test_constexprs_take_any_hashable_value() -> None:
    @kaon.update
    def update(w: kl.param, g: kl.grad, *, value: kl.constexpr):
        kl.static_assert(value is None or value == "text" or value == (1, ("a", 2.5)) or value is True or value == 3)
        return w - g

    for value in (None, "text", (1, ("a", 2.5)), True, np.int64(3), np.float32(3)):
        update.specialize(2, 2, constexprs={"value": value}, symbol="f")


class Side(enum.Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclasses.dataclass(frozen=True)
class Options:
    steps: int = 2
    side: Side = Side.RIGHT


def test_constexprs_may_be_enumerations_and_frozen_objects() -> None:
    @kaon.update
    def update(w: kl.param, g: kl.grad, *, options: kl.constexpr = Options()):
        if options.side == Side.LEFT or options.side.value == "left":
            w = w * options.steps
        return w - g

    assert "arith.constant" not in update.specialize(2, 2, symbol="f").text
    left = update.specialize(2, 2, constexprs={"options": Options(7, Side.LEFT)}, symbol="f")
    assert "arith.constant 7.0 : f64" in left.text


def test_names_from_outside_may_be_of_every_immutable_kind() -> None:
    import math as arithmetic

    table = ((1.0, "a"), (2.0, None))
    number, count, helper, length = np.float64(0.5), np.int32(3), shared_factor, kl.norm

    @kaon.update
    def update(w: kl.param, g: kl.grad):
        for value, name in table:
            if name is None:
                g = helper(g, value * arithmetic.pi + number + count)
        return w - g / length(g)

    assert f"arith.constant {2 * math.pi + 0.5 + 3!r} : f64" in update.specialize(2, 2, symbol="f").text


def test_source_is_the_unindented_definition() -> None:
    @kaon.update
    def update(w: kl.param, g: kl.grad):
        return w - g

    assert update.source == "@kaon.update\ndef update(w: kl.param, g: kl.grad):\n    return w - g\n"


# ---- outside of updates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", BUILTINS, ids=lambda function: function.name)
def test_functions_refuse_to_run_in_plain_python(function: Builtin) -> None:
    with pytest.raises(errors.CallError) as caught:
        function(1.0)
    assert str(caught.value) == (
        f"`kl.{function.name}` must be called from inside an @kaon.update or @kaon.function function\n"
        "  hint: did you forget the decorator?"
    )
    assert isinstance(caught.value, TypeError)


def test_updates_and_helpers_refuse_to_run_in_plain_python() -> None:
    with pytest.raises(
        errors.CallError, match=r"^the update `muon` is compiled, not called\n  hint: make an optimizer"
    ):
        examples.muon(1, 2)
    with pytest.raises(errors.CallError, match=r"^the helper `sigma` must be called from inside an @kaon.update"):
        examples.sigma(1, 2)


def test_pickle_and_copy() -> None:
    for value in (examples.muon, examples.sigma, kl.sqrt, kl.param, REQUIRED, coefficients.YOU):
        assert pickle.loads(pickle.dumps(value)) is value or value == coefficients.YOU
        assert copy.deepcopy(value) is value or value == coefficients.YOU
    assert copy.copy(examples.muon) is examples.muon

    @kaon.update
    def local(w: kl.param, g: kl.grad):
        return w - g

    with pytest.raises(pickle.PicklingError, match=r"not found as test_language_api.*local"):
        pickle.dumps(local)


def test_errors_survive_pickling() -> None:
    """As when a worker process hands one to its parent."""
    with pytest.raises(errors.ShapeError) as caught:
        bad_shape().specialize(2, 3, symbol="f")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is errors.ShapeError and str(again) == str(caught.value)
    assert (again.line, again.column) == (caught.value.line, caught.value.column)


def bad_shape() -> Any:
    @kaon.update
    def update(w: kl.param, g: kl.grad):
        return shared_factor(w, g.T)

    return update


def test_error_attributes() -> None:
    with pytest.raises(errors.ShapeError) as caught:
        bad_shape().specialize(2, 3, symbol="f")
    error = caught.value
    lines = Path(__file__).read_text().splitlines()
    assert error.message == "`*` expects shapes that broadcast (equal, or 1), but got 2x3 and 3x2"
    assert error.hint == "one of them looks transposed: use `.T`"
    assert error.filename == __file__
    inner, outer = error.call_chain
    assert (lines[inner.line - 1], inner.column, inner.function) == ("    return x * factor", 12, "shared_factor")
    assert (lines[outer.line - 1].strip(), outer.function) == ("return shared_factor(w, g.T)", "update")
    assert error.__cause__ is None and error.__suppress_context__


def test_a_bug_of_the_front_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Semantic, x: Any) -> Any:
        raise KeyError("lost")

    monkeypatch.setattr(Semantic, "sign", broken)
    with pytest.raises(
        errors.InternalError, match=r"the front end failed with KeyError: 'lost'\n  --> .*:\d+:9"
    ) as caught:
        examples.lion.specialize(2, 2, symbol="f")
    assert isinstance(caught.value.__cause__, KeyError)


def test_deep_nesting_is_an_error() -> None:
    import linecache

    text = "@kaon.update\ndef f(w: kl.param, g: kl.grad):\n    return " + "-" * 3000 + "w\n"
    linecache.cache["<deep>"] = (len(text), None, text.splitlines(True), "<deep>")
    namespace: dict[str, Any] = {"kaon": kaon, "kl": kl}
    with pytest.raises((errors.LanguageError, RecursionError, MemoryError)) as caught:
        exec(compile(text, "<deep>", "exec"), namespace)
        namespace["f"].specialize(2, 2, symbol="f")
    assert not isinstance(caught.value, errors.InternalError)


# ---- carets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "column", "end", "line", "carets"),
    [
        ("abc", 2, 3, "abc", " ^"),
        ("\tabc", 2, 5, "    abc", "    ^^^"),
        ("ab\tc", 4, 5, "ab  c", "    ^"),
        ("勾配 + w", 6, 7, "勾配 + w", "       ^"),
        ("勾配 + w", 1, 3, "勾配 + w", "^^^^"),
        ("e\u0301 + w", 6, 7, "e\u0301 + w", "    ^"),
        ("abc", 9, 12, "abc", "   ^"),
        ("", 1, 1, "", "^"),
    ],
)
def test_carets_have_the_visual_width(text: str, column: int, end: int, line: str, carets: str) -> None:
    assert render_excerpt(text, column, end) == (line, carets)


def test_locations_render_the_call_chain() -> None:
    outer = SourceLocation("a.py", 120, 5, 9, "    call(x)", "update")
    inner = SourceLocation("b.py", 7, 1, 2, "x", "call", outer)
    assert inner.render() == (
        "  --> b.py:7:1, in `call`\n"
        "    7 | x\n"
        "      | ^\n"
        "  called at a.py:120:5, in `update`\n"
        "  120 |     call(x)\n"
        "      |     ^^^^"
    )


# ---- stubs and rules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", BUILTINS, ids=lambda function: function.name)
def test_each_function_has_documentation_and_a_rule_with_its_parameters(function: Builtin) -> None:
    assert function.__doc__ and len(function.__doc__) > 20
    rule = list(inspect.signature(getattr(Semantic, function.name)).parameters)[1:]
    assert rule == list(function.__signature__.parameters)


def test_public_names() -> None:
    assert set(kl.__all__) == {name for name, value in vars(kl).items() if is_public(name, value)}
    assert "optim" in dir(kaon) and kaon.__version__
    with pytest.raises(AttributeError, match="module 'kaon' has no attribute 'nothing'"):
        kaon.nothing  # noqa: B018


def is_public(name: str, value: Any) -> bool:
    hidden = ("core", "semantic", "annotations")
    return not name.startswith("_") and name not in hidden


def test_import_needs_neither_torch_nor_the_extension_nor_numpy() -> None:
    script = textwrap.dedent(
        """
        import sys
        for name in ("torch", "numpy", "kaon._C"):
            sys.modules[name] = None  # importing it raises
        import language_examples
        text = language_examples.muon.specialize(4, 6, symbol="f").text
        assert "kaon.newton_schulz" in text
        print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "numpy") and sys.modules[name]))
        """
    )
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    result = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": ":".join(paths)}, capture_output=True, text=True, check=False
    )
    assert result.stdout == "[]\n", result.stderr


# ---- coefficient tables ---------------------------------------------------------------------------------------------


def test_tables_agree_with_the_reference() -> None:
    assert coefficients.KELLER_JORDAN.table(5) == tuple(reference.KELLER_JORDAN)
    assert coefficients.YOU.table() == tuple(reference.YOU)
    assert coefficients.QUINTIC is coefficients.YOU
    assert coefficients.POLAR_EXPRESS.rows == tuple(reference.POLAR_EXPRESS)
    assert coefficients.CANS.table() == tuple(reference.CANS)
    assert coefficients.TURBO_MUON.table() == tuple(reference.TURBO_MUON)
    assert coefficients.CUBIC5.table() == tuple(reference.CUBIC5)
    assert coefficients.DEEPSEEK_V4.table() == tuple(reference.DEEPSEEK_V4)
    safe = reference.safety(reference.POLAR_EXPRESS, 1.01, keep_last=True)
    assert coefficients.POLAR_EXPRESS.safety(1.01).rows == tuple(safe)
    five = reference.safety(reference.POLAR_EXPRESS[:5], 1.05)
    assert coefficients.POLAR_EXPRESS.first(5).safety(1.05, keep_last=False).table() == tuple(five)


BANDS = [
    (coefficients.KELLER_JORDAN, 484.9, 0.682, 1.134, 0.696),
    (coefficients.YOU, 492.7, 0.978, 1.032, 0.978),
    (coefficients.POLAR_EXPRESS.safety(1.01), 976.3, 0.870, 1.124, 1.029),
    (coefficients.POLAR_EXPRESS.first(5).safety(1.05, keep_last=False), 803.9, 0.846, 1.124, 1.019),
    (coefficients.POLAR_EXPRESS_NANOGPT, 989.5, 0.859, 1.141, 0.859),
    (coefficients.CANS, 1048.9, 0.884, 1.120, 1.005),
    (coefficients.DEEPSEEK_V4, 79263, 1.000, 1.001, 1.000),
    (coefficients.CUBIC5, 119.3, 0.774, 1.300, 0.774),
]


@pytest.mark.parametrize(
    ("table", "slope", "low", "high", "at_one"), BANDS, ids=lambda value: getattr(value, "name", None)
)
def test_tables_map_singular_values_into_their_published_bands(
    table: coefficients.Coefficients, slope: float, low: float, high: float, at_one: float
) -> None:
    """A mistyped digit in any table leaves its band."""

    def composed(x: Any) -> Any:
        for a, b, c in table.table():
            x = a * x + b * x**3 + c * x**5
        return x

    values = composed(np.geomspace(1e-2, 1, 20001))
    assert values.min() == pytest.approx(low, abs=1e-3)
    assert values.max() == pytest.approx(high, abs=1e-3)
    assert composed(1.0) == pytest.approx(at_one, abs=1e-3)
    assert np.prod([a for a, _, _ in table.table()]) == pytest.approx(slope, rel=1e-3)


def test_more_steps_than_rows() -> None:
    assert coefficients.KELLER_JORDAN.table(7) == coefficients.KELLER_JORDAN.rows * 7
    assert coefficients.YOU.table(7) == coefficients.YOU.rows + coefficients.YOU.rows[:2]
    assert coefficients.CANS.table(7) == coefficients.CANS.rows + coefficients.CANS.rows[-1:] * 2
    assert coefficients.CANS.table(2) == coefficients.CANS.rows[:2]
    for table, count in ((coefficients.DEEPSEEK_V4, 10), (coefficients.CUBIC5, 5)):
        with pytest.raises(ValueError, match=f"is for exactly {count} steps, but got 7"):
            table.table(7)
    with pytest.raises(ValueError, match="at least 1 step, but got 0"):
        coefficients.YOU.table(0)
    with pytest.raises(ValueError, match="positive factor, but got 0"):
        coefficients.YOU.safety(0)
    with pytest.raises(ValueError, match="1 to 5 rows of YOU, but got 6"):
        coefficients.YOU.first(6)


def test_tables_by_name_and_in_updates() -> None:
    @kaon.update
    def update(w: kl.param, g: kl.grad, *, table: kl.constexpr = None, steps: kl.constexpr = None):
        if table is None:
            o = kl.newton_schulz(g, steps, kl.coefficients.POLAR_EXPRESS.safety(1.01), 1e-7, "add", norm_scale=1.01)
        else:
            o = kl.newton_schulz(g, steps, coefficients=table)
        return w - o

    def emitted(**constexprs: Any) -> list[float]:
        text = update.specialize(4, 6, constexprs=constexprs, symbol="f").text
        found = re.search(r"coefficients \[(.*?)\]", text)
        assert found is not None
        return [float(number) for number in found[1].split(", ")]

    def flat(rows: Any) -> list[float]:
        return [number for row in rows for number in row]

    assert emitted() == flat(coefficients.POLAR_EXPRESS.safety(1.01).table(5))
    for name in coefficients.names():
        assert emitted(table=name) == flat(coefficients.named(name).table())
    assert emitted(table=(1.5, -0.5, 0)) == [1.5, -0.5, 0.0] * 5
    assert emitted(table=(1.5, -0.5, 0), steps=2) == [1.5, -0.5, 0.0] * 2
    assert emitted(table=((2, -1.5, 0.5), (1.5, -0.5, 0))) == [2.0, -1.5, 0.5, 1.5, -0.5, 0.0]
    assert emitted(table=((2, -1.5, 0.5), (1.5, -0.5, 0)), steps=1) == [2.0, -1.5, 0.5]
    with pytest.raises(ValueError, match=r"expects one of keller_jordan, .* but got 'quantic'"):
        coefficients.named("quantic")


# ---- documentation --------------------------------------------------------------------------------------------------

LANGUAGE = ROOT / "docs" / "language.md"


def test_documentation_names_everything() -> None:
    text = LANGUAGE.read_text()
    for name in kl.__all__:
        assert f"`kl.{name}" in text or f"`{name}" in text or f"kl.{name}(" in text, name
    for name in errors.__all__:
        assert f"`{name}`" in text, name


def test_documentation_examples_compile(tmp_path: Path) -> None:
    """Each Python block of the reference is a module; each update in it compiles."""
    blocks = re.findall(r"```python\n(.*?)```", LANGUAGE.read_text(), re.DOTALL)
    compiled = 0
    for number, block in enumerate(blocks):
        path = tmp_path / f"block{number}.py"
        path.write_text("import kaon\nimport kaon.language as kl\n" + block)
        namespace: dict[str, Any] = {"__name__": path.stem}
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        for value in namespace.values():
            if isinstance(value, kaon.Update):
                value.specialize(4, 6, symbol="f")
                compiled += 1
    assert compiled >= 4
