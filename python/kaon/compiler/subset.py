"""Refuses the statements and expressions that are outside the language, before anything is evaluated.

The whole body is checked when the function is decorated, also branches that a constant would later leave out.
"""

from __future__ import annotations

import ast

from kaon.compiler.errors import LanguageError, UnsupportedError, UpdateSyntaxError
from kaon.compiler.source import FunctionSource

_STATEMENTS: dict[type[ast.AST], tuple[str, str | None]] = {
    ast.While: ("`while` is not part of the language", "use `for` over a constant range; it is unrolled"),
    ast.With: ("`with` is not part of the language", None),
    ast.AsyncWith: ("`with` is not part of the language", None),
    ast.AsyncFor: ("`async` is not part of the language", None),
    ast.Try: ("`try` is not part of the language", "updates cannot raise while they run"),
    ast.Raise: ("`raise` is not part of the language", "use kl.static_assert for conditions on constants"),
    ast.Assert: ("`assert` is not part of the language", "use kl.static_assert for conditions on constants"),
    ast.Delete: ("`del` is not part of the language", "states are changed by returning their new values"),
    ast.Global: ("`global` is not part of the language", "updates are pure: keep values in states and return them"),
    ast.Nonlocal: ("`nonlocal` is not part of the language", "updates are pure: keep values in states and return them"),
    ast.Import: ("`import` is not part of the language", "import at the top of the file"),
    ast.ImportFrom: ("`import` is not part of the language", "import at the top of the file"),
    ast.FunctionDef: ("a nested function is not part of the language", "write an @kaon.function beside the update"),
    ast.AsyncFunctionDef: ("a nested function is not part of the language", None),
    ast.ClassDef: ("a class is not part of the language", None),
    ast.Break: ("`break` is not part of the language", "put the remaining statements under an `if` on constants"),
    ast.Continue: ("`continue` is not part of the language", "put the remaining statements under an `if` on constants"),
    ast.Match: ("`match` is not part of the language", "use `if` and `elif` on constants"),
}
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = _STATEMENTS[ast.Try]
if hasattr(ast, "TypeAlias"):
    _STATEMENTS[ast.TypeAlias] = ("a type alias is not part of the language", None)

_EXPRESSIONS: dict[type[ast.AST], tuple[str, str | None]] = {
    ast.Lambda: ("a lambda is not part of the language", "write an @kaon.function beside the update"),
    ast.ListComp: ("a comprehension is not part of the language", "use a `for` loop; it is unrolled"),
    ast.SetComp: ("a comprehension is not part of the language", "use a `for` loop; it is unrolled"),
    ast.DictComp: ("a comprehension is not part of the language", "use a `for` loop; it is unrolled"),
    ast.GeneratorExp: ("a generator is not part of the language", "use a `for` loop; it is unrolled"),
    ast.List: ("a list is not part of the language", "write a tuple: (a, b)"),
    ast.Set: ("a set is not part of the language", "write a tuple: (a, b)"),
    ast.Dict: ("a dict is not part of the language", None),
    ast.NamedExpr: ("`:=` is not part of the language", "assign in a statement of its own"),
    ast.Await: ("`await` is not part of the language", None),
    ast.Yield: ("`yield` is not part of the language", None),
    ast.YieldFrom: ("`yield` is not part of the language", None),
    ast.Starred: ("`*` unpacking is not part of the language", "name each item"),
    ast.Slice: ("a slice is not part of the language", "updates work on whole matrices, rows or columns"),
}

_OPERATORS: dict[type[ast.AST], str] = {
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Invert: "~",
}


class _Checker(ast.NodeVisitor):
    def __init__(self, source: FunctionSource) -> None:
        self.source = source
        # f-strings are allowed as arguments of these calls only.
        self._messages: set[ast.AST] = set()

    def refuse(
        self, node: ast.AST, message: str, hint: str | None = None, kind: type[LanguageError] = UpdateSyntaxError
    ) -> LanguageError:
        return kind(message, hint=hint, location=self.source.location(node))

    def visit(self, node: ast.AST) -> None:
        for table in (_STATEMENTS, _EXPRESSIONS):
            if type(node) in table:
                message, hint = table[type(node)]
                raise self.refuse(node, message, hint)
        if isinstance(node, (ast.stmt, ast.expr)) and not isinstance(node, _ALLOWED):
            raise self.refuse(node, f"`{type(node).__name__}` is not part of the language")
        super().visit(node)

    def visit_For(self, node: ast.For) -> None:
        if node.orelse:
            raise self.refuse(node.orelse[0], "`else` of a `for` is not part of the language")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._check_operator(node, node.op)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check_operator(node, node.op)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._check_operator(node, node.op)
        self.generic_visit(node)

    def _check_operator(self, node: ast.AST, operator: ast.AST) -> None:
        if type(operator) in _OPERATORS:
            raise self.refuse(
                node,
                f"the operator `{_OPERATORS[type(operator)]}` is not part of the language",
                "combine conditions on constants with `and`, `or`, `not`, those on matrices with nested kl.where",
            )

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if name in ("static_assert", "static_print"):
            self._messages.update(node.args)
            self._messages.update(keyword.value for keyword in node.keywords)
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.refuse(keyword.value, "`**` arguments are not part of the language", "name each argument")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        if node not in self._messages:
            raise self.refuse(node, "an f-string is allowed only as a message of kl.static_assert or kl.static_print")
        self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self.visit(node.value)
        if node.format_spec is not None:
            self._messages.add(node.format_spec)
            self.visit(node.format_spec)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, (complex, bytes)):
            raise self.refuse(
                node, f"a {type(node.value).__name__} constant is not part of the language", kind=UnsupportedError
            )

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            raise self.refuse(node, "a declaration without a value is not part of the language", "assign a value")
        self.visit(node.target)
        self.visit(node.value)


# A newer Python's constructs are refused until the language gives them a meaning.
_ALLOWED = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.For, ast.If, ast.Pass, ast.Return,
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.FormattedValue, ast.IfExp,
    ast.JoinedStr, ast.Name, ast.Subscript, ast.Tuple, ast.UnaryOp,
)  # fmt: skip


def check_subset(source: FunctionSource) -> None:
    """Raise for the first construct of the body that is outside the language."""
    checker = _Checker(source)
    for statement in source.node.body:
        checker.visit(statement)
