"""Environment variables: types, precedence, scopes, errors, and that no other file reads the environment."""

from __future__ import annotations

import ast
from pathlib import Path

import kaon
import pytest
from kaon import driver, knobs


def test_default_environment_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAON_NUM_THREADS", raising=False)
    assert knobs.runtime.num_threads is None
    monkeypatch.setenv("KAON_NUM_THREADS", "3")
    assert knobs.runtime.num_threads == 3
    knobs.runtime.num_threads = 5
    assert knobs.runtime.num_threads == 5
    del knobs.runtime.num_threads
    assert knobs.runtime.num_threads == 3


def test_scope_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAON_INTERPRET", raising=False)
    knobs.runtime.num_threads = 2
    with knobs.scope():
        knobs.runtime.num_threads = 7
        knobs.runtime.interpret = True
    assert knobs.runtime.num_threads == 2
    assert knobs.runtime.interpret is False


@pytest.mark.parametrize("text, value", [("1", True), ("ON", True), ("off", False), ("none", False), ("", True)])
def test_cache_flag(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("KAON_CACHE", text)
    assert knobs.cache.enabled is value


@pytest.mark.parametrize("text, value", [("4096", 4096), ("2G", 2 << 30), ("512MiB", 512 << 20), ("1k", 1024)])
def test_byte_counts(monkeypatch: pytest.MonkeyPatch, text: str, value: int) -> None:
    monkeypatch.setenv("KAON_CACHE_SIZE", text)
    assert knobs.cache.size_limit == value


def test_stage_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAON_DUMP", "1")
    assert knobs.debug.dump == {"all"}
    monkeypatch.setenv("KAON_DUMP", "kaon, plan")
    assert knobs.debug.dump == {"kaon", "plan"}
    monkeypatch.setenv("KAON_DUMP", "0")
    assert knobs.debug.dump == frozenset()
    assert {*knobs.STAGES} == {*driver.STAGES}


def test_stages_set_from_python() -> None:
    for value, stages in [(True, {"all"}), (False, set()), ({"plan"}, {"plan"}), ("kaon", {"kaon"})]:
        knobs.debug.dump = value  # type: ignore[assignment]
        assert knobs.debug.dump == stages
    with pytest.raises(knobs.KnobError, match="knob dump expects 1, 0, or names out of"):
        knobs.debug.dump = frozenset({"foo"})


def test_misspelt_variables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAON_DUPM", "1")
    monkeypatch.setenv("KAON_SOMETHING_ELSE_ALTOGETHER", "1")
    monkeypatch.setenv("KAON_VENV", "/venv")
    assert knobs.unknown_variables() == {"KAON_DUPM": "KAON_DUMP", "KAON_SOMETHING_ELSE_ALTOGETHER": None}


@pytest.mark.parametrize(
    "variable, text, message",
    [
        ("KAON_NUM_THREADS", "zero", "variable KAON_NUM_THREADS expects a whole number of at least 1, but got 'zero'"),
        ("KAON_NUM_THREADS", "0", "expects a whole number of at least 1"),
        ("KAON_CACHE_SIZE", "-1", "expects a number of bytes"),
        ("KAON_INTERPRET", "maybe", "expects one of 1, on, true"),
        ("KAON_DUMP", "foo", "expects 1, 0, or names out of dsl, kaon, simplified, scheduled, kernels, cuda, llvm"),
        ("KAON_DUMP", "kaon,foo", "but got 'kaon,foo'"),
        ("KAON_PRINT_IR", "plans", "names out of dsl"),
    ],
)
def test_bad_values(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(knobs.KnobError) as error:
        for group in knobs.GROUPS.values():
            for knob in group.declared():
                getattr(group, knob.name)
    assert message in str(error.value)


def test_misspelt_knob() -> None:
    with pytest.raises(AttributeError, match="Runtime has no knob 'threads'; it has interpret, num_threads"):
        knobs.runtime.threads = 2  # type: ignore[attr-defined]


def test_describe_names_every_variable() -> None:
    knobs.runtime.num_threads = 3
    table = knobs.describe()
    for group in knobs.GROUPS.values():
        for knob in group.declared():
            assert knob.variable in table
            assert knob.__doc__
    (line,) = (line for line in table.splitlines() if "KAON_NUM_THREADS" in line)
    assert line.split()[1:4] == ["runtime.num_threads", "3", "python"]


def test_only_knobs_reads_the_environment() -> None:
    package = Path(kaon.__path__[0])
    readers = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
                readers.add(path.relative_to(package).as_posix())
    assert readers == {"knobs.py"}


def test_the_documentation_lists_every_variable() -> None:
    document = Path(__file__).parents[2] / "docs" / "inspection.md"
    assert document.read_text(encoding="utf-8").endswith(knobs.markdown()), "paste knobs.markdown() at its end"
