"""Where the source text comes from: everything Python lets one define a function in works, or is one clear error.

Never the text of another function: what is compiled is checked against the bytecode of the function that was decorated.
"""

from __future__ import annotations

import importlib
import linecache
import os
import py_compile
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import kaon
import kaon.language as kl
import pytest
from kaon import errors

DECAY = '''\
import kaon
import kaon.language as kl


@kaon.update
def decay(w: kl.param, g: kl.grad, lr: kl.scalar = 0.1):
    """Weight decay."""
    return w - lr * w - 0.0 * g
'''
PRINT = "\nprint(decay.specialize(2, 3, symbol='f').text)\n"


@pytest.fixture(autouse=True)
def _fresh_line_cache() -> Iterator[None]:
    yield
    linecache.clearcache()


def load(folder: Path, name: str, text: str | bytes) -> ModuleType:
    """Import a module of this text from ``folder``."""
    path = folder / f"{name}.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return imported(folder, name)


def imported(place: Path, name: str) -> ModuleType:
    sys.path.insert(0, str(place))
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(place))
        sys.modules.pop(name, None)


def compiled(update: Any) -> str:
    text: str = update.specialize(2, 3, symbol="f").text
    assert "arith.subf" in text
    return text


def run(*arguments: str, text: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, *arguments], input=text, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


# ---- no file --------------------------------------------------------------------------------------------------------


def test_b67_command_line_program() -> None:
    for option in (["-c"], ["-Wignore", "-c"], ["-Bc"]):
        result = run(*option, DECAY + PRINT)
        assert result.returncode == 0, result.stderr
        assert 'loc("w"("<string>":6:11))' in result.stdout


def test_b67_command_line_program_reports_columns() -> None:
    broken = DECAY.replace("0.0 * g", "0.0 @ g")
    result = run("-c", broken + PRINT)
    assert result.stderr.endswith(
        "kaon.errors.UpdateTypeError: `@` expects a matrix, but got the constant 0.0\n"
        "  --> <string>:8:25, in `decay`\n"
        "    8 |     return w - lr * w - 0.0 @ g\n"
        "      |                         ^^^^^^^\n"
    ), result.stderr
    assert "ast_visitor" not in result.stderr, "compiler frames are not shown"


def test_b67_exec_in_a_command_line_program_is_not_taken_for_the_program() -> None:
    """Both are called <string> and define `decay` on the same line."""
    inner = DECAY.replace("lr * w", "lr * g")
    result = run("-c", DECAY + f"exec({inner!r})")
    assert result.returncode != 0
    assert "SourceError: expects the source text of `decay`, but functions made by exec() or eval() have none" in (
        result.stderr
    )


@pytest.mark.parametrize("arguments", [[], ["-"], ["-i"]])
def test_b67_standard_input(arguments: list[str]) -> None:
    result = run(*arguments, text=DECAY)
    assert (
        "SourceError: expects the source text of `decay`, but Python keeps no text of what is typed at its prompt or "
        "piped into it\n  hint: updates are read as source: put the function in a .py file or a notebook cell\n"
    ) in result.stderr


def test_b67_exec() -> None:
    with pytest.raises(errors.SourceError, match=r"^expects the source text of `decay`, but functions made by exec"):
        exec(DECAY, {})


def test_b67_exec_with_a_file_name_that_does_not_exist() -> None:
    with pytest.raises(errors.SourceError) as caught:
        exec(compile(DECAY, "/nowhere/generated.py", "exec"), {"__name__": "generated"})
    assert caught.value.message == "expects the source text of `decay`, but /nowhere/generated.py cannot be read"


def test_b67_exec_in_a_module_does_not_read_the_modules_text() -> None:
    """linecache falls back to the loader of the module named in the globals: another text."""
    with pytest.raises(errors.SourceError):
        exec(compile(DECAY, "generated.py", "exec"), globals().copy())


def test_b67_notebook_cell() -> None:
    """IPython keeps each cell's text in linecache; a cell may await and hold several definitions."""
    cell = DECAY + DECAY.replace("decay", "decay2").replace("lr * w", "lr * g") + "\nawait_me = 1\n"
    name = "/tmp/ipykernel_1/1234.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell, name, "exec"), namespace)
    assert "arith.mulf %1, %w" in compiled(namespace["decay"])
    assert "arith.mulf %1, %g" in compiled(namespace["decay2"])


def test_b67_notebook_cell_run_again_with_another_text() -> None:
    """A cell's new text replaces the old one in linecache; the update keeps what it was made from."""
    name = "<ipython-input-1>"
    namespaces = []
    for text in (DECAY, DECAY.replace("lr * w", "lr * g")):
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        namespaces.append({"__name__": "__main__"})
        exec(compile(text, name, "exec"), namespaces[-1])
    assert "arith.mulf %1, %w" in compiled(namespaces[0]["decay"])
    assert "arith.mulf %1, %g" in compiled(namespaces[1]["decay"])


def test_b67_doctest(tmp_path: Path) -> None:
    (tmp_path / "session.txt").write_text(
        """
        >>> import kaon
        >>> import kaon.language as kl
        >>> @kaon.update
        ... def decay(w: kl.param, g: kl.grad, lr: kl.scalar = 0.1):
        ...     return w - lr * w
        >>> "arith.subf" in decay.specialize(2, 3, symbol="f").text
        True
        """
    )
    result = run("-m", "doctest", "session.txt", cwd=tmp_path)
    assert result.returncode == 0, result.stdout


# ---- files ----------------------------------------------------------------------------------------------------------


def test_b67_zip(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_decay.py", DECAY)
    module = imported(archive, "zipped_decay")
    assert str(archive) in compiled(module.decay)


def test_b67_compiled_file_only(tmp_path: Path) -> None:
    source = tmp_path / "only_pyc.py"
    source.write_text(DECAY)
    py_compile.compile(str(source), cfile=str(tmp_path / "only_pyc.pyc"))
    source.unlink()
    with pytest.raises(errors.SourceError) as caught:
        imported(tmp_path, "only_pyc")
    assert caught.value.message == f"expects the source text of `decay`, but {source} cannot be read"


def test_b67_line_ends_and_tabs(tmp_path: Path) -> None:
    expected = compiled(load(tmp_path, "unix_lines", DECAY).decay).replace("unix_lines", "*")
    dos = load(tmp_path, "dos_lines", DECAY.replace("\n", "\r\n"))
    assert compiled(dos.decay).replace("dos_lines", "*") == expected
    mac = load(tmp_path, "mac_lines", DECAY.replace("\n", "\r"))
    assert compiled(mac.decay).replace("mac_lines", "*") == expected
    tabs = load(tmp_path, "tabs", DECAY.replace("    ", "\t"))
    assert 'tabs.py":8:9)' in compiled(tabs.decay)


def test_b67_other_encodings(tmp_path: Path) -> None:
    text = "# coding: latin-1\n" + DECAY.replace("Weight decay.", "Gewichtsverfall für é").replace("lr", "größe")
    latin = load(tmp_path, "latin", text.encode("latin-1"))
    assert 'kaon.name = "gr\\C3\\B6\\C3\\9Fe"' in compiled(latin.decay)
    bom = load(tmp_path, "bom", b"\xef\xbb\xbf" + DECAY.encode())
    assert 'bom.py":6:11)' in compiled(bom.decay)


def test_b67_columns_count_characters(tmp_path: Path) -> None:
    with pytest.raises(errors.UpdateTypeError) as caught:
        load(tmp_path, "wide", DECAY.replace("lr", "学習率").replace("- 0.0 * g", "- 0.0 @ g"))
    assert caught.value.column == 26
    # Each of the three wide characters takes two columns of a terminal.
    assert str(caught.value).splitlines()[-1] == "      | " + " " * 28 + "^^^^^^^"


def test_b67_form_feed_and_odd_line_separators(tmp_path: Path) -> None:
    """str.splitlines would count these as line ends; Python's parser does not."""
    text = DECAY.replace('"""Weight decay."""', '"""a\x0cb\x1cc\u2028d"""')
    module = load(tmp_path, "separators", "\x0c\n" + text)
    assert 'separators.py":9:12)' in compiled(module.decay)


def test_b67_indented_definitions(tmp_path: Path) -> None:
    """In a function, a class, an if; with comments, strings and continuation lines left of the margin."""
    text = DECAY + textwrap.dedent(
        '''
        def make(sign):
            if True:
                @kaon.update
                def inner(w: kl.param,
        g: kl.grad, lr: kl.scalar = 0.1):
        # a comment at the margin
                    """A text
        at the margin."""
                    return (w -
        sign * lr * g)
            return inner

        class Updates:
            @kaon.update
            def method(w: kl.param, g: kl.grad): return w - g
        '''
    )
    module = load(tmp_path, "indented", text)
    assert "arith.constant -2.0" in compiled(module.make(-2.0))
    assert "arith.constant 3.0" in compiled(module.make(3.0))
    assert module.make(1.0).source.startswith("@kaon.update\ndef inner(w: kl.param,\ng: kl.grad")
    compiled(module.Updates.method)


def test_b67_stacked_decorators(tmp_path: Path) -> None:
    text = DECAY.replace(
        "@kaon.update\n",
        "def mark(*names):\n    def keep(f):\n        return f\n    return keep\n\n"
        "@mark((1, (2, ')')), '@kaon.update', {'def': [3]})\n@kaon.update\n@mark(\n    'decay',\n)\n",
    )
    module = load(tmp_path, "stacked", text)
    compiled(module.decay)
    assert module.decay.source.startswith("@mark((1, (2, ')'))")


def test_b67_same_name_several_times(tmp_path: Path) -> None:
    again = DECAY.split("\n\n\n")[1].replace("lr * w", "lr * g")
    module = load(tmp_path, "again", DECAY + "first = decay\n\n" + again)
    assert "arith.mulf %1, %w" in compiled(module.first)
    assert "arith.mulf %1, %g" in compiled(module.decay)


def test_b67_definition_chosen_at_run_time(tmp_path: Path) -> None:
    """The definition is found by line, not by being the last of its name."""
    text = "import kaon\nimport kaon.language as kl\n"
    for condition, term in (("True", "w"), ("False", "g")):
        text += f"if {condition}:\n    @kaon.update\n    def decay(w: kl.param, g: kl.grad): return w - {term}\n"
    assert "arith.subf %w, %w" in compiled(load(tmp_path, "chosen", text).decay)


def test_b67_file_edited_after_import(tmp_path: Path) -> None:
    """What was decorated before the edit is kept; decorating afterwards is refused."""
    module = load(tmp_path, "edited", DECAY + "\n\ndef plain(w: kl.param, g: kl.grad):\n    return w - g\n")
    path = tmp_path / "edited.py"
    path.write_text(DECAY.replace("lr * w", "lr * g") + "\n\ndef plain(w: kl.param, g: kl.grad):\n    return g - w\n")
    os.utime(path, (1, 1))
    assert "arith.mulf %1, %w" in compiled(module.decay)
    with pytest.raises(errors.SourceError) as caught:
        kaon.update(module.plain)
    assert caught.value.message == f"the text of `plain` at {path}:11 is not that of the running function"
    path.write_text("\n" + DECAY)
    os.utime(path, (2, 2))
    with pytest.raises(errors.SourceError, match=r"expects to find `def plain` at line 11 of .* text there is another"):
        kaon.update(module.plain)
    path.write_text("def broken(:\n")
    os.utime(path, (3, 3))
    with pytest.raises(errors.SourceError, match=r"expects to find `def plain` at line 11"):
        kaon.update(module.plain)


def test_b67_every_detail_of_the_bytecode_counts(tmp_path: Path) -> None:
    """An edit that changes only a constant, a name, an operator or the order of arguments is noticed."""
    original = (
        "import kaon.language as kl\n"
        "def f(w: kl.param, g: kl.grad, a: kl.scalar, b: kl.scalar):\n"
        "    return w - 2 * a\n"
    )
    for number, (old, new) in enumerate(
        [("2", "3"), ("2", "2.0"), ("* a", "* b"), ("-", "+"), ("w - ", "g - "), ("a: kl.scalar, b", "b: kl.scalar, a")]
    ):
        module = load(tmp_path, f"detail{number}", original)
        kaon.update(module.f)
        path = tmp_path / f"detail{number}.py"
        path.write_text(original.replace(old, new, 1))
        os.utime(path, (1, 1))
        with pytest.raises(errors.SourceError, match="is not that of the running function"):
            kaon.update(module.f)


def test_b67_optimised_python(tmp_path: Path) -> None:
    (tmp_path / "optimised.py").write_text(DECAY + PRINT)
    for option in ("-O", "-OO"):
        result = run(option, "optimised.py", cwd=tmp_path)
        assert "arith.subf" in result.stdout, result.stderr


def test_b67_closures_and_recursion_of_names(tmp_path: Path) -> None:
    """Free variables, and a helper that names itself, compile to other bytecode inside a function."""

    def make(factor: float) -> Any:
        @kaon.function
        def scale(x: Any) -> Any:
            return x * factor

        @kaon.update
        def update(w: kl.param, g: kl.grad):
            return w - scale(g)

        factor += 1
        return update

    assert "arith.constant 3.0" in compiled(make(2.0))


def test_b67_asserts_rewritten_by_the_test_runner() -> None:
    """This file is rewritten by pytest: the error is about the assert, not about the text."""
    with pytest.raises(errors.UpdateSyntaxError, match="`assert` is not part of the language"):

        @kaon.update
        def checked(w: kl.param, g: kl.grad):
            assert w is not None
            return w
