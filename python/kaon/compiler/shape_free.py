"""What is wrong with an update whatever it is compiled for, found when it is decorated.

The visitor that compiles an update walks it once with nothing known but the roles: matrices have no sizes, constexprs,
names from outside and everything that depends on them are :class:`Unknown`. Where a condition is unknown both ways are
walked. An error found so occurs for every shape; mistakes in shapes and values, and those that another condition may
rule out, are left to compiling. What the walk emits is thrown away.
"""

from __future__ import annotations

import ast
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType

from kaon.compiler.ast_visitor import AstVisitor, Frame, Returned, assigned_names, is_scalar
from kaon.compiler.emit import Block, Builder, SsaValue
from kaon.compiler.errors import (
    LanguageError,
    StaticAssertionError,
    UnsupportedError,
    UpdateNameError,
    UpdateTypeError,
    UpdateValueError,
)
from kaon.compiler.source import FunctionSource
from kaon.compiler.values import UNKNOWN_SIZE, Const, HostScalar, Phase, Tensor, TupleValue, Unknown, Value, is_unknown
from kaon.language.core import Builtin
from kaon.language.semantic import Semantic


def matrix() -> Tensor:
    """A matrix whose sizes are not known yet."""
    return Tensor(SsaValue("tensor"), UNKNOWN_SIZE, UNKNOWN_SIZE)


def _joint(values: Sequence[Value]) -> Value:
    """What is known of a value that is one of ``values``."""
    first = values[0]
    if all(value is first for value in values):
        return first
    if all(isinstance(value, Tensor) for value in values):
        return matrix()
    if all(isinstance(value, HostScalar) for value in values):
        return first
    return Unknown()


def _result(arguments: Sequence[Value]) -> Value:
    """What is known of an elementwise result: a matrix as soon as one argument is."""
    return matrix() if any(isinstance(value, Tensor) for value in arguments) else Unknown()


class ShapeFreeSemantic(Semantic):
    """The rules of the language where sizes and constants may be unknown."""

    def attribute(self, x: Tensor, name: str) -> Value:
        return Unknown() if name in ("rows", "cols", "shape") else super().attribute(x, name)

    def binary(self, symbol: str, a: Value, b: Value) -> Value:
        if is_unknown(a) or is_unknown(b):
            for value in (a, b):
                self._refuse_condition(value, f"`{symbol}`")
            return _result([a, b])
        return super().binary(symbol, a, b)

    def negate(self, x: Value) -> Value:
        return x if is_unknown(x) else super().negate(x)

    def positive(self, x: Value) -> Value:
        return x if is_unknown(x) else super().positive(x)

    def compare(self, symbol: str, a: Value, b: Value) -> Value:
        return Unknown() if is_unknown(a) or is_unknown(b) else super().compare(symbol, a, b)

    def abs(self, x: Value) -> Value:
        return x if is_unknown(x) else super().abs(x)

    def python_extremum(self, name: str, values: Sequence[Value]) -> Value:
        if any(map(is_unknown, values)) and not any(isinstance(value, Tensor) for value in values):
            return Unknown()
        return super().python_extremum(name, values)

    def mean(self, x: Value, along: Value) -> Value:
        return self._reduce("mean", "sum", x, along)  # the count is not known

    def static_print(self, values: Sequence[Value]) -> Value:
        return Const(None)  # printed when the update is compiled


class ShapeFreeVisitor(AstVisitor):
    """Walks an update that is not compiled for any shape yet."""

    def __init__(self) -> None:
        builder = Builder()
        super().__init__(builder, ShapeFreeSemantic(builder, "f32", SsaValue("i64", "step")))
        self._open_conditions = 0
        self.returns: list[Returned] = []
        """Every return of the outermost function that was met."""

    def _is_deferred(self, error: LanguageError) -> bool:
        """Could another shape or constant do without ``error``?"""
        if isinstance(error, (UpdateValueError, StaticAssertionError)):
            return True
        # Under an open condition kinds may go together with it: `if fixed is None: ... else: fixed * 2`.
        is_open = self._open_conditions > 0 or any(frame.early is not None for frame in self._frames)
        return isinstance(error, UpdateTypeError) and is_open

    def run(self, frame: Frame) -> Returned | None:
        returned = super().run(frame)
        return Returned(Unknown(), frame.early) if frame.early is not None else returned

    def body(self, statements: Sequence[ast.stmt]) -> Returned | None:
        for statement in statements:
            try:
                returned = super().body([statement])
            except LanguageError as error:
                if not self._is_deferred(error):
                    raise
                returned = None
                self.frame.variables.update((name, Unknown()) for name in assigned_names([statement]))
            if returned is not None:
                return returned
        return None

    def expression(self, node: ast.expr) -> Value:
        try:
            return super().expression(node)
        except LanguageError as error:
            if not self._is_deferred(error):
                raise
            return Unknown()

    def bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, Unknown):
            value = TupleValue((value,) * len(target.elts))
        super().bind(target, value)

    def visit_Return(self, node: ast.Return) -> Returned:
        returned = super().visit_Return(node)
        if len(self._frames) == 1:
            self.returns.append(returned)
        return returned

    # ---- ways that are not known apart -------------------------------------------------------------------------------

    def _walk_all(self, ways: Sequence[Callable[[], Returned | None]]) -> Returned | None:
        """Walk each of ``ways`` from here; afterwards a name is what all of them agree on."""
        frame, before = self.frame, self.frame.variables
        open_ends: list[dict[str, Value]] = []
        returned: Returned | None = None
        self._open_conditions += 1
        for way in ways:
            frame.variables = dict(before)
            end = way()
            if end is None:
                open_ends.append(frame.variables)
            else:
                returned = end
        self._open_conditions -= 1
        if not open_ends:
            assert returned is not None
            return Returned(Unknown(), returned.node)
        if returned is not None:
            frame.early = returned.node
        names = dict.fromkeys(name for end in open_ends for name in end)
        frame.variables = {name: _joint([end.get(name, Unknown()) for end in open_ends]) for name in names}
        return None

    def branch(self, node: ast.If, condition: Value) -> Returned | None:
        if not is_unknown(condition):
            return super().branch(node, condition)
        return self._walk_all([lambda: self.body(node.body), lambda: self.body(node.orelse)])

    def choose(self, node: ast.IfExp, condition: Value) -> Value:
        if not is_unknown(condition):
            return super().choose(node, condition)
        return self._either([node.body, node.orelse])

    def _either(self, nodes: Sequence[ast.expr]) -> Value:
        self._open_conditions += 1
        values = [self.expression(node) for node in nodes]
        self._open_conditions -= 1
        return _joint(values)

    def loop(self, node: ast.For, iterable: Value) -> Returned | None:
        if not is_unknown(iterable) or isinstance(iterable, TupleValue):
            return super().loop(node, iterable)

        def once() -> Returned | None:
            self.bind(node.target, Unknown())
            return self.body(node.body)

        return self._walk_all([once, lambda: None])

    def negation(self, operand: Value) -> Value:
        return Unknown() if is_unknown(operand) else super().negation(operand)

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        for index, item in enumerate(node.values[:-1]):
            value = self.expression(item)
            if is_unknown(value):
                self._either(node.values[index + 1 :])
                return Unknown()
            with self.at(item):
                is_and = isinstance(node.op, ast.And)
                if self.semantic.truth(value, "`and`" if is_and else "`or`") != is_and:
                    return value
        return self.expression(node.values[-1])

    def _merge(
        self, what: str, left: Value | None, right: Value | None, then: Block, otherwise: Block, line: int
    ) -> Value:
        for value, other in ((left, right), (right, left)):
            if value is not None and other is not None:
                # A number joins a matrix that turns out to be a single value.
                sizes_matter = isinstance(value, Tensor) and is_scalar(other)
                if is_unknown(value) or sizes_matter:
                    return Unknown()
        return super()._merge(what, left, right, then, otherwise, line)

    # ---- what may still change ---------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> Value:
        frame = self.frame
        if node.id in frame.variables or node.id in frame.function.__code__.co_varnames:
            return super().visit_Name(node)
        try:
            value = self._outer(node.id)
        except UpdateNameError:
            return Unknown()  # defined below the update, perhaps
        return self._lasting(value)

    @staticmethod
    def _lasting(value: object) -> Value:
        """Functions and modules are taken for what they are now; numbers and the like may change until compiling."""
        return Const(value) if isinstance(value, types.ModuleType) or callable(value) else Unknown()

    def module_attribute(self, module: types.ModuleType, name: str) -> Value:
        if module.__name__.startswith("kaon.language"):
            return super().module_attribute(module, name)
        return self._lasting(getattr(module, name, None))

    def attribute(self, owner: Value, name: str) -> Value:
        if is_unknown(owner):
            return Unknown()
        if isinstance(owner, Const) and isinstance(owner.value, type) and not issubclass(owner.value, enum.Enum):
            return Unknown()
        return super().attribute(owner, name)

    def item(self, value: Value, index: Value) -> Value:
        if is_unknown(index) and not isinstance(value, Tensor):
            return Unknown()
        return Unknown() if isinstance(value, Unknown) else super().item(value, index)

    def call(self, node: ast.Call, callee: Value) -> Value:
        if not isinstance(callee, Unknown):
            return super().call(node, callee)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.expression(argument)
        return Unknown()

    def apply(self, function: Builtin, rule: Callable[..., Value], arguments: dict[str, Value]) -> Value:
        values = list(arguments.values())
        if not any(map(is_unknown, values)):
            return super().apply(function, rule, arguments)
        if function.name == "every":
            return Phase(1, 0)
        if function.name == "momentum":
            return TupleValue((matrix(), matrix()))
        return Const(None) if function.name == "static_assert" else _result(values)


def walk(
    function: FunctionType, source: FunctionSource, variables: Mapping[str, Value], read_only: frozenset[str]
) -> tuple[list[Returned], bool]:
    """Walk a function whose arguments are ``variables``.

    Returns:
        Every return met, and whether the end is always reached by one.

    Raises:
        LanguageError: what is wrong for every shape.
    """
    visitor = ShapeFreeVisitor()
    try:
        returned = visitor.run(Frame(function, source, None, dict(variables), read_only))
    except RecursionError:
        raise UnsupportedError(
            f"an expression of `{source.name}` is nested too deeply", location=source.header_location()
        ) from None
    return visitor.returns, returned is not None
