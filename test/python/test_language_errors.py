"""Every rejected construct, with the whole text of its error: message, file, line, column, source line, carets, hint.

The cases are in ``data/language_errors.txt``: a name, the statements of an update (or whole functions), and the
expected class and text. ``python test/python/test_language_errors.py`` prints the file anew, for review after a
deliberate change.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pickle
import re
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import kaon
import pytest
from kaon import errors
from kaon.compiler.update import Update

CASES = Path(__file__).parent / "data" / "language_errors.txt"

# Whole functions start at line 40 of the file, statements of the standard update at line 43.
PRELUDE = """\
import math

import kaon
import kaon.language as kl
import numpy as np

NUMBERS = [1.0, 2.0]
ARRAY = np.ones(3)
OBJECT = object()


class Plain:
    pass


def plain(x):
    return x


@kaon.update
def other(w: kl.param, g: kl.grad):
    return w


@kaon.function
def scaled(x, factor: kl.constexpr = 2.0):
    return x * factor


@kaon.function
def recursive(x):
    return recursive(x)


@kaon.function
def nothing(x):
    kl.static_assert(x.rows == 4)


"""
SIGNATURE = """\
@kaon.update
def update(w: kl.param, g: kl.grad, m: kl.state, r: kl.row_state, lr: kl.scalar, *,
           steps: kl.constexpr = 5, flag: kl.constexpr = True):
"""


@dataclass(frozen=True)
class Case:
    name: str
    statements: str
    expected: str

    def text(self) -> str:
        if self.statements.startswith("from __future__"):
            future, statements = self.statements.split("\n", 1)
            return f"{future}\n{PRELUDE}{statements}"
        if re.search(r"@kaon|kaon\.(update|function)\(", self.statements):
            return PRELUDE + self.statements
        lines = [f"    {line}\n" for line in self.statements.splitlines()]
        return PRELUDE + SIGNATURE + "".join(lines) + "    return w, m, r\n"

    def run(self, folder: Path) -> str:
        """The class and text of the error, with the file's name in place of its path."""
        path = folder / f"language_error_{self.name}.py"
        path.write_text(self.text(), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
            module.update.specialize(4, 6, constexprs=getattr(module, "OPTIONS", None), symbol="update")
        except errors.LanguageError as error:
            return f"{type(error).__name__}\n{error}\n".replace(str(path), "update.py")
        finally:
            del sys.modules[spec.name]
        return "no error\n"


def read_cases() -> list[Case]:
    cases = []
    for block in CASES.read_text(encoding="utf-8").split("=== ")[1:]:
        head, expected = block.split("--- ", 1)
        name, statements = head.split("\n", 1)
        cases.append(Case(name, statements.rstrip("\n"), expected.rstrip("\n") + "\n"))
    return cases


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("case", read_cases(), ids=lambda case: case.name)
def test_error(case: Case, tmp_path: Path) -> None:
    assert case.run(tmp_path) == case.expected


# What may depend on the shape, on a constexpr, or on what the module defines below the update.
DEFERRED_KINDS = ("ShapeError", "UpdateValueError", "StaticAssertionError")
DEFERRED = {
    "array_constexpr",
    "array_from_outside",
    "helper_captures_a_list",
    "hidden_builtin",
    "list_from_outside",
    "matrix_and_number_in_branches",
    "missing_constexpr",
    "object_from_outside",
    "one_branch_of_constant_if",
    "private_attribute",
    "return_only_under_constant",
    "returns_comparison",
    "returns_number_for_matrix",
    "returns_unpacked_momentum",
    "undefined_name",
    "unhashable_constexpr",
    "unknown_constexpr",
}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_what_needs_no_shape_is_found_at_decoration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/language.md says so; everything but the exceptions above."""
    compiled = []
    monkeypatch.setattr(Update, "specialize", lambda self, *args, **options: compiled.append(self))
    for case in read_cases():
        compiled.clear()
        outcome = case.run(tmp_path)
        assert bool(compiled) == (case.expected.startswith(DEFERRED_KINDS) or case.name in DEFERRED), case.name
        assert outcome == ("no error\n" if compiled else case.expected)


B69 = {
    "a < b < c": "chained_comparison",
    "a and b": "and_of_matrices",
    "not t": "not_of_matrix",
    "if tensor:": "if_matrix",
    "x or default": "or_default",
    "while on a tensor": "while_matrix",
    "early return in one branch": "return_under_every",
    "early return under a comparison": "return_under_comparison",
    "x += y on an argument": "grad_changed",
    "x // y": "floor_division",
    "x % y": "modulo",
    "** with a negative base": "negative_base",
    "unused result of an in-place-looking op": "in_place_method",
    "unused result": "unused_result",
    "variable defined in one branch only": "one_branch_of_every",
    "variable defined in one constant branch only": "one_branch_of_constant_if",
    "print": "print",
    "len": "len",
    "assert": "assert",
    "numpy call on a symbolic value": "numpy_call",
}


@pytest.mark.parametrize("entry", B69)
def test_b69_is_refused_with_a_hint_or_a_place(entry: str, tmp_path: Path) -> None:
    """What Python would do otherwise than a compiler can; what works is in test_language_python.py."""
    (case,) = (case for case in read_cases() if case.name == B69[entry])
    kind, message, *rest = case.run(tmp_path).splitlines()
    assert kind.endswith("Error") and message
    assert rest[0].startswith("  --> update.py:") and "^" in rest[2]
    assert rest[-1].startswith("  hint: ") or kind == "UpdateNameError"


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in read_cases()]
    assert len(names) == len(set(names)) > 150


def test_errors_are_a_closed_family() -> None:
    """All derive from KaonError, and from the builtin of the same meaning, so that `except TypeError` works."""
    pairs = {
        errors.SourceError: OSError,
        errors.UpdateNameError: NameError,
        errors.UpdateTypeError: TypeError,
        errors.UpdateValueError: ValueError,
        errors.ShapeError: ValueError,
        errors.UnsupportedError: NotImplementedError,
        errors.StaticAssertionError: AssertionError,
        errors.CallError: TypeError,
    }
    for kind, builtin in pairs.items():
        assert issubclass(kind, builtin) and issubclass(kind, errors.LanguageError)
    public = [getattr(errors, name) for name in errors.__all__]
    kinds = [kind for kind in public if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, errors.KaonError) for kind in kinds)
    assert kaon.errors is errors


def test_errors_are_known_by_their_public_name() -> None:
    for name in errors.__all__:
        public = getattr(errors, name)
        assert f"{public.__module__}.{public.__qualname__}" == f"kaon.errors.{name}"
    error = errors.ShapeError("message", hint="hint", location=errors.SourceLocation("file", 1, 2, 3))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.ShapeError and str(copy) == str(error)
    assert b"kaon.errors" in pickle.dumps(error)
    assert "".join(traceback.format_exception_only(error)).startswith("kaon.errors.ShapeError: message\n  --> file:1:2")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for item in read_cases():
            with contextlib.redirect_stdout(io.StringIO()):
                outcome = item.run(Path(directory))
            print(f"=== {item.name}\n{item.statements}\n--- {outcome}")
