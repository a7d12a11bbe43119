"""Finds the source text of a function, and makes sure that it is the text of that very function.

The whole file (or cell) is parsed and the definition looked up by name and line, so that indentation, tabs,
continuation lines and decorators need no special treatment. The definition found is compiled again and its bytecode
compared with the running function's: a file edited after import, or an unrelated text under the same file name, is
refused.
"""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import inspect
import linecache
import re
import sys
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from kaon.compiler.errors import SourceError, SourceLocation, UpdateSyntaxError

_FUTURE_FLAGS = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0
)


@dataclass(frozen=True, eq=False)
class FunctionSource:
    """The definition of a function and the lines of its file."""

    name: str
    filename: str
    lines: tuple[str, ...]
    node: ast.FunctionDef

    def location(self, node: ast.AST, caller: SourceLocation | None = None) -> SourceLocation:
        """Where ``node`` is; a node over several lines is cut at the end of its first."""
        line = getattr(node, "lineno", self.node.lineno)
        text = self.lines[line - 1] if 1 <= line <= len(self.lines) else ""
        column = _characters(text, getattr(node, "col_offset", 0))
        if getattr(node, "end_lineno", line) == line:
            end = _characters(text, getattr(node, "end_col_offset", None) or 0)
        else:
            end = len(text.rstrip())
        return self._make(line, column, end, text, caller)

    def header_location(self, caller: SourceLocation | None = None) -> SourceLocation:
        """The ``def name`` of the function."""
        line = self.node.lineno
        text = self.lines[line - 1]
        column = _characters(text, self.node.col_offset)
        found = text.find(self.name, column)
        end = found + len(self.name) if found >= 0 else len(text.rstrip())
        return self._make(line, column, end, text, caller)

    def text(self) -> str:
        """The definition with its decorators, unindented."""
        first = min([self.node.lineno, *(item.lineno for item in self.node.decorator_list)])
        lines = self.lines[first - 1 : self.node.end_lineno]
        margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        return "\n".join(line.removeprefix(margin) for line in lines) + "\n"

    def _make(self, line: int, column: int, end: int, text: str, caller: SourceLocation | None) -> SourceLocation:
        return SourceLocation(
            filename=self.filename,
            line=line,
            column=column + 1,
            end_column=max(end, column + 1) + 1,
            text=text,
            function=self.name,
            caller=caller,
        )


def _characters(text: str, byte_offset: int) -> int:
    """Turn an offset into the line's UTF-8 bytes, as the AST counts, into one in characters."""
    return len(text.encode("utf-8")[:byte_offset].decode("utf-8", "replace"))


def function_source(function: Any, decorator: str) -> FunctionSource:
    """Read, parse and verify the definition of ``function``.

    Args:
        function: what the decorator received.
        decorator: its name, for messages.

    Raises:
        UpdateSyntaxError: ``function`` is not a plain function written with ``def``.
        SourceError: the text cannot be had, or is not the text of this function.
    """
    _refuse_other_callables(function, decorator)
    code: CodeType = function.__code__
    text = _text_of(function)
    node = _find_definition(text, code)
    if node is None:
        raise SourceError(
            f"expects to find `def {code.co_name}` at line {code.co_firstlineno} of {code.co_filename}, "
            "but the text there is another one",
            hint="the file changed after it was imported, or a tool rewrote it; import it again",
        )
    if not _is_text_of(node, code):
        raise SourceError(
            f"the text of `{code.co_name}` at {code.co_filename}:{code.co_firstlineno} is not that of the running "
            "function",
            hint="the file changed after it was imported, or a tool rewrote it; import it again",
        )
    return FunctionSource(code.co_name, code.co_filename, tuple(re.split(r"\r\n|\r|\n", text)), node)


def _refuse_other_callables(function: Any, decorator: str) -> None:
    if not isinstance(function, FunctionType):
        kind = "a class" if inspect.isclass(function) else f"an object of type {type(function).__name__}"
        raise UpdateSyntaxError(
            f"@{decorator} expects a function written with def, but got {'nothing' if function is None else kind}",
            hint=f"write @{decorator} without parentheses" if function is None else None,
        )
    code = function.__code__
    if code.co_name == "<lambda>":
        raise UpdateSyntaxError(
            f"@{decorator} expects a function written with def, but got a lambda",
            hint="a lambda has neither roles nor statements; write def",
            location=_first_line(code),
        )
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        raise UpdateSyntaxError(
            f"@{decorator} expects the function itself, but got another decorator's wrapper around "
            f"`{getattr(wrapped, '__name__', function.__name__)}`",
            hint=f"the body is read, not called: put @{decorator} closest to the def",
            location=_first_line(getattr(wrapped, "__code__", code)),
        )
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        kind = "a generator" if code.co_flags & inspect.CO_GENERATOR else "an async function"
        raise UpdateSyntaxError(
            f"@{decorator} expects a plain function, but `{function.__name__}` is {kind}", location=_first_line(code)
        )


def _first_line(code: CodeType) -> SourceLocation | None:
    """The line a function starts on, its first decorator included; None if its text cannot be had."""
    text = linecache.getline(code.co_filename, code.co_firstlineno).rstrip()
    if not text:
        return None
    column = len(text) - len(text.lstrip()) + 1
    return SourceLocation(code.co_filename, code.co_firstlineno, column, len(text) + 1, text)


def _text_of(function: FunctionType) -> str:
    code = function.__code__
    command = _command_line_text() if code.co_filename == "<string>" else None
    if command is not None:
        node = _find_definition(command, code)
        if node is not None and _is_text_of(node, code):
            return command
    try:
        lines, _ = inspect.findsource(function)
    except (OSError, TypeError, SyntaxError, UnicodeDecodeError, IndexError):
        # Frozen and zipped modules without a path of their own still register their loader with linecache.
        lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise SourceError(f"expects the source text of `{code.co_name}`, but {_why_no_text(code)}", hint=_REMEDY)
    return "".join(lines)


_REMEDY = "updates are read as source: put the function in a .py file or a notebook cell"


def _why_no_text(code: CodeType) -> str:
    name = code.co_filename
    if name == "<stdin>":
        return "Python keeps no text of what is typed at its prompt or piped into it"
    if name == "<string>":
        return "functions made by exec() or eval() have none"
    if name.startswith("<"):
        return f"there is none for {name}"
    return f"{name} cannot be read"


def _command_line_text() -> str | None:
    """The program of ``python -c program``, if this is one."""
    arguments = getattr(sys, "orig_argv", [])
    for index, argument in enumerate(arguments[1:-1], start=1):
        # Options may be joined, as in `python -Ic`; the first argument that is none ends them.
        if not argument.startswith("-"):
            return None
        if not argument.startswith("--") and argument.endswith("c"):
            return arguments[index + 1]
    return None


@functools.lru_cache(maxsize=8)
def _parse(text: str) -> ast.Module | None:
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # notebook cells may await
        return compile(text, "<source>", "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None


def _find_definition(text: str, code: CodeType) -> ast.FunctionDef | None:
    module = _parse(text)
    if module is None:
        return None
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            if first == code.co_firstlineno:
                return node
    return None


def _is_text_of(node: ast.FunctionDef, code: CodeType) -> bool:
    # Test runners rewrite asserts, so that the bytecode says nothing; the language refuses asserts right afterwards.
    return any(isinstance(item, ast.Assert) for item in ast.walk(node)) or _same_code(node, code)


def _same_code(node: ast.FunctionDef, code: CodeType) -> bool:
    """Does compiling ``node`` give the bytecode of the running function?"""
    bare = ast.FunctionDef(
        name=node.name, args=node.args, body=node.body, decorator_list=[], returns=None, type_comment=None
    )
    # Defining the free variables in an enclosing function makes them free here as well.
    bindings: list[ast.stmt] = [
        ast.Assign(targets=[ast.Name(name, ast.Store())], value=ast.Constant(None)) for name in code.co_freevars
    ]
    if node.name not in code.co_freevars:
        # The definition must not make its own name, as in a recursive call, a local of that function.
        bindings.append(ast.Global([node.name]))
    outer = ast.FunctionDef(
        name="_enclosing", args=ast.arguments([], [], None, [], [], None, []), body=[*bindings, bare],
        decorator_list=[], returns=None, type_comment=None,
    )  # fmt: skip
    if sys.version_info >= (3, 12):
        bare.type_params = []
        outer.type_params = []
    ast.copy_location(bare, node)
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(outer, node)], []))
    try:
        compiled = compile(module, code.co_filename, "exec", flags=code.co_flags & _FUTURE_FLAGS, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    enclosing = _inner_code(compiled, "_enclosing")
    found = _inner_code(enclosing, node.name) if enclosing else None
    return found is not None and _fingerprint(found) == _fingerprint(code)


def _inner_code(code: CodeType, name: str) -> CodeType | None:
    return next((item for item in code.co_consts if isinstance(item, CodeType) and item.co_name == name), None)


# Whether a call on an imported name loads a method or an attribute depends on the rest of the module.
_EQUIVALENT = {"LOAD_METHOD": "LOAD_ATTR"}
_IGNORED = frozenset({"CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "MAKE_CELL", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})


def _fingerprint(code: CodeType) -> tuple[Any, ...]:
    """What the code does, without the details that depend on its surroundings."""
    steps: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _IGNORED:
            continue
        name = _EQUIVALENT.get(instruction.opname, instruction.opname)
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            steps.append(name)
        elif isinstance(instruction.argval, CodeType):
            steps.append((name, _fingerprint(instruction.argval)))
        else:
            steps.append((name, repr(instruction.argval)))
    return (code.co_varnames, code.co_argcount, code.co_kwonlyargcount, *steps)
