"""Walks the AST of an update and emits its operations.

One :class:`Frame` per function on the call chain: helpers are inlined, with their calls kept in every location.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import enum
import inspect
import numbers
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from kaon.compiler.emit import Block, Builder
from kaon.compiler.errors import (
    InternalError,
    LanguageError,
    RoleError,
    ShapeError,
    SourceLocation,
    UnsupportedError,
    UpdateNameError,
    UpdateSyntaxError,
    UpdateTypeError,
    UpdateValueError,
)
from kaon.compiler.function import Function
from kaon.compiler.source import FunctionSource
from kaon.compiler.values import (
    Comparison,
    Const,
    HostScalar,
    Phase,
    Tensor,
    Undefined,
    Unknown,
    Value,
    is_unknown,
    pack,
    unpack,
)
from kaon.language import coefficients as coefficient_tables
from kaon.language.coefficients import Coefficients
from kaon.language.core import Builtin, Role
from kaon.language.semantic import Semantic, is_number, plain_number

_BINARY = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@",
}  # fmt: skip
_COMPARE = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip

# Python functions that are computed while compiling, on constants.
_CONSTANT_FUNCTIONS: tuple[Any, ...] = (len, int, float, bool, round, range, sum, enumerate, zip, reversed)
_MAX_ITERATIONS = 10_000
# Libraries whose functions work on arrays in memory, which symbolic values are not.
_REDUCTION_BY_NAME = re.compile(r"(row|col|column)(s|wise)?_(?P<kind>sum|mean|max|min|norm|dot)")
"""How other libraries call reductions along a dimension, which is an argument here."""
_ARRAY_LIBRARIES = ("numpy", "torch", "scipy", "jax", "cupy")
_INSTEAD = {
    "print": "use kl.static_print, which prints while compiling",
    "sorted": "only constants can be ordered while compiling",
    "any": "reduce with kl.max and kl.where",
    "all": "reduce with kl.min and kl.where",
    "pow": "use the operator `**`",
    "divmod": "use kl.floor(a / b)",
}


@dataclass
class Frame:
    """One function being walked."""

    function: FunctionType
    source: FunctionSource
    caller: SourceLocation | None
    variables: dict[str, Value]
    # Names that `+=` and the like may not change: for the caller's arrays that would mean a change in place.
    read_only: frozenset[str] = frozenset()
    # Why a local variable has no value: it is assigned only where a constant condition does not lead.
    skipped: dict[str, str] = field(default_factory=dict)
    # How many `if kl.every` are open: a return inside would leave on some steps only.
    open_phases: int = 0
    # A return under a condition that is not known before there are shapes.
    early: ast.Return | None = None


@dataclass(frozen=True)
class Returned:
    """The outcome of a ``return`` statement."""

    value: Value
    node: ast.Return


class AstVisitor:
    """Emits the body of one update.

    Args:
        builder: receives the operations.
        semantic: the rules of operators and functions.
    """

    def __init__(self, builder: Builder, semantic: Semantic) -> None:
        self.builder = builder
        self.semantic = semantic
        self._frames: list[Frame] = []
        self._iterations = 0

    @property
    def frame(self) -> Frame:
        return self._frames[-1]

    def run(self, frame: Frame) -> Returned | None:
        """Walk a function's body; the result of its ``return``, or None without one."""
        self._frames.append(frame)
        try:
            return self.body(frame.source.node.body)
        finally:
            self._frames.pop()

    def locate(self, node: ast.AST) -> SourceLocation:
        return self.frame.source.location(node, self.frame.caller)

    @contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Give operations, and errors without a location, the place of ``node``."""
        previous, here = self.builder.location, self.locate(node)
        self.builder.location = here
        try:
            yield
        except LanguageError as error:
            if error.location is None:
                error.location = here
            raise
        except RecursionError:
            raise
        except Exception as error:
            raise InternalError(
                f"the front end failed with {type(error).__name__}: {error}",
                hint="this is a bug in Kaon: please report it with the update",
                location=here,
            ) from error
        finally:
            self.builder.location = previous

    # ---- statements --------------------------------------------------------------------------------------------------

    def body(self, statements: Sequence[ast.stmt]) -> Returned | None:
        """Walk statements up to a ``return``; what follows it is never reached, as in Python."""
        for statement in statements:
            with self.at(statement):
                handler: Callable[[Any], Returned | None] = getattr(self, f"visit_{type(statement).__name__}")
                returned = handler(statement)
            if returned is not None:
                return returned
        return None

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_Return(self, node: ast.Return) -> Returned:
        if self.frame.open_phases:
            raise UpdateSyntaxError(
                "`return` inside `if kl.every(...)` would leave the function on some steps only",
                hint="assign the values in both branches and return them at the end",
            )
        value = Const(None) if node.value is None else self.expression(node.value)
        return Returned(value, node)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.expression(node.value)
        for target in node.targets:
            self.bind(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        assert node.value is not None
        self.bind(node.target, self.expression(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        if not isinstance(target, ast.Name):
            raise self._bad_target(target)
        if target.id in self.frame.read_only:
            raise RoleError(
                f"the gradient `{target.id}` is read-only, but is changed here",
                hint=f"give the result a name of its own, as in `d = {target.id} {_BINARY[type(node.op)]} ...`",
            )
        current = self.expression(ast.copy_location(ast.Name(target.id, ast.Load()), target))
        operand = self.expression(node.value)
        self.bind(target, self.semantic.binary(_BINARY[type(node.op)], current, operand))

    def _bad_target(self, target: ast.expr) -> LanguageError:
        return UnsupportedError(
            "only names can be assigned",
            hint="values never change in place: assign the whole new value",
            location=self.locate(target),
        )

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign ``value`` to a name or a tuple of them."""
        with self.at(target):
            if isinstance(target, ast.Name):
                self._bind_name(target.id, value)
            elif isinstance(target, ast.Tuple):
                items = unpack(value)
                if items is None:
                    raise UpdateTypeError(f"expects a tuple to unpack, but got {value.describe()}")
                if len(items) != len(target.elts):
                    raise UpdateValueError(f"expects {len(target.elts)} values to unpack, but got {len(items)}")
                for element, item in zip(target.elts, items, strict=True):
                    self.bind(element, item)
            else:
                raise self._bad_target(target)

    def _bind_name(self, name: str, value: Value) -> None:
        if isinstance(value, (Tensor, HostScalar)) and value.ssa.hint is None:
            value.ssa.hint = name
        self.frame.variables[name] = value

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring or `...`
        value = self.expression(node.value)
        if not (isinstance(value, Unknown) or (isinstance(value, Const) and value.value is None)):
            raise UpdateSyntaxError(
                "the result of this expression is not used",
                hint="values never change in place: assign the result, as in `w = ...`",
            )

    def visit_For(self, node: ast.For) -> Returned | None:
        return self.loop(node, self.expression(node.iter))

    def loop(self, node: ast.For, iterable: Value) -> Returned | None:
        """Unroll a loop."""
        for item in self._items(node.iter, iterable):
            self._iterations += 1
            if self._iterations > _MAX_ITERATIONS:
                raise UpdateValueError(f"the loops of this update unroll to more than {_MAX_ITERATIONS} iterations")
            self.bind(node.target, item)
            returned = self.body(node.body)
            if returned is not None:
                return returned
        return None

    def _items(self, node: ast.expr, iterable: Value) -> Iterator[Value]:
        items = unpack(iterable)
        if items is not None:
            return iter(items)
        if isinstance(iterable, Const) and isinstance(iterable.value, (range, str, Coefficients)):
            return (Const(item) for item in iterable.value)
        with self.at(node):
            raise UnsupportedError(
                f"`for` expects a constant range or tuple, but got {iterable.describe()}",
                hint="loops are unrolled while compiling: use range(...), kl.static_range(...) or a tuple",
            )

    def visit_If(self, node: ast.If) -> Returned | None:
        condition = self.expression(node.test)
        if isinstance(condition, Phase):
            self._if_every(node, condition)
            return None
        return self.branch(node, condition)

    def branch(self, node: ast.If, condition: Value) -> Returned | None:
        """Walk the statements that a constant condition leads to."""
        with self.at(node.test):
            holds = self.semantic.truth(condition, "`if`")
        taken, left_out = (node.body, node.orelse) if holds else (node.orelse, node.body)
        for name in assigned_names(left_out):
            self.frame.skipped.setdefault(
                name,
                f"`{name}` has no value here: it is assigned only where the condition of the `if` at line "
                f"{node.lineno} is {not holds}",
            )
        return self.body(taken)

    def _if_every(self, node: ast.If, phase: Phase) -> None:
        frame = self.frame
        before = frame.variables
        frame.open_phases += 1
        then, after_then = self._branch(node.body, before)
        otherwise, after_otherwise = self._branch(node.orelse, before)
        frame.open_phases -= 1
        frame.variables = dict(before)
        yielded: list[tuple[str, Tensor | HostScalar]] = []
        for name in dict.fromkeys([*after_then, *after_otherwise]):
            left, right = after_then.get(name), after_otherwise.get(name)
            if left is right and left is not None:
                frame.variables[name] = left
                continue
            value = self._merge(f"`{name}`", left, right, then, otherwise, node.lineno)
            if isinstance(value, (Tensor, HostScalar)):
                yielded.append((name, value))
            else:
                frame.variables[name] = value
        results = self._emit_every(phase, then, otherwise, [value for _, value in yielded])
        for (name, _), result in zip(yielded, results, strict=True):
            self._bind_name(name, result)

    def _emit_every(
        self, phase: Phase, then: Block, otherwise: Block, merged: Sequence[Tensor | HostScalar]
    ) -> list[Tensor | HostScalar]:
        """The values after the two blocks; ``merged`` are those that :meth:`_merge` made of them."""
        results = self.semantic.emit_every(phase, then, otherwise, [value.ssa.type for value in merged])
        return [
            Tensor(result, *value.shape) if isinstance(value, Tensor) else HostScalar(result)
            for value, result in zip(merged, results, strict=True)
        ]

    def _branch(self, statements: Sequence[ast.stmt], before: Mapping[str, Value]) -> tuple[Block, dict[str, Value]]:
        self.frame.variables = dict(before)
        with self.builder.open_block() as block:
            self.body(statements)
        return block, self.frame.variables

    def _merge(
        self, what: str, left: Value | None, right: Value | None, then: Block, otherwise: Block, line: int
    ) -> Value:
        """One value after ``if kl.every``; the value of the first block stands for it until its operation exists."""
        where = f"the `if kl.every(...)` at line {line}"
        if left is None or right is None:
            branch = "second" if left is None else "first"
            return Undefined(
                f"{what} has no value on some steps: it is assigned only in the {branch} branch of {where}",
                "assign it in both branches, or before the `if`",
            )
        for value in (left, right):
            if isinstance(value, Undefined):
                return value
        if isinstance(left, Const) and isinstance(right, Const) and _same_constant(left.value, right.value):
            return left
        items = unpack(left), unpack(right)
        if items[0] is not None and items[1] is not None and len(items[0]) == len(items[1]):
            return Undefined(
                f"{what} is a tuple that differs between the branches of {where}",
                "assign its items one by one",
                UnsupportedError,
            )
        shape: tuple[int, int] | None = None
        found = f"{what} is {left.describe()} in the first branch of {where}, but {right.describe()} in the second"
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            if left.shape != right.shape:
                return Undefined(found, kind=ShapeError)
            shape = left.shape
        elif isinstance(left, Tensor) or isinstance(right, Tensor):
            matrix, other = (left, right) if isinstance(left, Tensor) else (right, left)
            assert isinstance(matrix, Tensor)
            if not is_scalar(other):
                return Undefined(found, kind=UpdateTypeError)
            if matrix.shape != (1, 1):
                hint = "make both matrices of one shape, for example with kl.full_like"
                return Undefined(found, hint, UpdateTypeError)
            shape = (1, 1)
        elif not (is_scalar(left) and is_scalar(right)):
            return Undefined(found, kind=UpdateTypeError)
        first, second = (self._yielded(value, shape, block) for value, block in ((left, then), (right, otherwise)))
        then.terminator.append(first)
        otherwise.terminator.append(second)
        return HostScalar(first) if shape is None else Tensor(first, *shape)

    def _yielded(self, value: Value, shape: tuple[int, int] | None, block: Block) -> Any:
        with self.builder.open_block(block):
            if shape is None:
                return self.semantic.host(value, "a branch")
            return self.semantic.tensor(value, shape, "a branch")

    # ---- expressions -------------------------------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> Value:
        with self.at(node):
            handler: Callable[[Any], Value] = getattr(self, f"visit_{type(node).__name__}")
            return handler(node)

    def visit_Constant(self, node: ast.Constant) -> Value:
        return Const(node.value)

    def visit_Tuple(self, node: ast.Tuple) -> Value:
        return pack([self.expression(item) for item in node.elts])

    def visit_Name(self, node: ast.Name) -> Value:
        frame = self.frame
        if node.id in frame.variables:
            value = frame.variables[node.id]
            if isinstance(value, Undefined):
                raise value.kind(value.message, hint=value.hint)
            return value
        if node.id in frame.function.__code__.co_varnames:
            message = frame.skipped.get(node.id, f"`{node.id}` is read before it is assigned")
            raise UpdateNameError(message)
        return self.capture(f"`{node.id}`", self._outer(node.id))

    def _outer(self, name: str) -> Any:
        """A name from outside the function: enclosing functions, module, builtins. Read anew each time."""
        function = self.frame.function
        code = function.__code__
        if name in code.co_freevars:
            cell = (function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                raise UpdateNameError(f"`{name}` of the enclosing function has no value yet") from None
        if name in function.__globals__:
            return function.__globals__[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        known = [*self.frame.variables, *function.__globals__]
        raise UpdateNameError(f"`{name}` is not defined", hint=_did_you_mean(name, known))

    def capture(self, what: str, value: Any) -> Value:
        """A value from outside as a constant, if it is of a kind that cannot change behind the compiler's back."""
        if _is_static(value):
            return Const(plain_number(value))
        raise UpdateTypeError(
            f"{what} is a value of type {_type_name(value)} from outside the function",
            hint="only numbers, strings, tuples, modules and functions can be read from outside; "
            "pass anything else as an argument",
        )

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.expression(node.value), node.attr)

    def attribute(self, owner: Value, name: str) -> Value:
        """``owner.name``."""
        if isinstance(owner, Tensor):
            return self.semantic.attribute(owner, name)
        if not isinstance(owner, Const):
            raise UpdateTypeError(f"{owner.describe()} has no attribute `{name}`")
        if isinstance(owner.value, types.ModuleType):
            return self.module_attribute(owner.value, name)
        if callable(owner.value) and not isinstance(owner.value, type):
            raise UpdateTypeError(f"{owner.describe()} has no attribute `{name}` that an update can read")
        if name.startswith("__"):
            raise UnsupportedError(f"the attribute `{name}` is not part of the language")
        missing = object()
        value = self.semantic.evaluate(lambda: getattr(owner.value, name, missing), f"`.{name}`")
        if value is missing:
            raise UpdateTypeError(f"{owner.describe()} has no attribute `{name}`")
        return self.capture(f"`.{name}`", value)

    def module_attribute(self, module: types.ModuleType, name: str) -> Value:
        try:
            value = getattr(module, name)
        except AttributeError:
            raise UpdateNameError(
                f"module `{module.__name__}` has no `{name}`", hint=_hint_for_missing(module, name)
            ) from None
        return self.capture(f"`{module.__name__}.{name}`", value)

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        return self.item(self.expression(node.value), self.expression(node.slice))

    def item(self, value: Value, index: Value) -> Value:
        """``value[index]``."""
        if isinstance(value, Tensor):
            raise UnsupportedError(
                "a matrix cannot be indexed",
                hint="updates work on whole matrices, rows or columns: see kl.sum(x, 'row')",
            )
        if not isinstance(index, Const):
            raise UpdateTypeError(f"expects a constant index, but got {index.describe()}")
        items = unpack(value)
        if items is not None:
            return self.semantic.evaluate(lambda: items[index.value], "indexing a tuple")
        if isinstance(value, Const):
            return self.capture("the item", self.semantic.evaluate(lambda: value.value[index.value], "indexing"))
        raise UpdateTypeError(f"{value.describe()} cannot be indexed")

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.expression(node.left), self.expression(node.right)
        return self.semantic.binary(_BINARY[type(node.op)], left, right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        operand = self.expression(node.operand)
        if isinstance(node.op, ast.USub):
            return self.semantic.negate(operand)
        if isinstance(node.op, ast.UAdd):
            return self.semantic.positive(operand)
        if isinstance(operand, Phase):
            return Phase(operand.period, operand.phase, not operand.negated)
        return self.negation(operand)

    def negation(self, operand: Value) -> Value:
        """``not operand``."""
        return Const(not self.semantic.truth(operand, "`not`"))

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        # As in Python the result is an operand, and the last one's truth value is never asked for.
        is_and = isinstance(node.op, ast.And)
        for item in node.values[:-1]:
            value = self.expression(item)
            with self.at(item):
                if self.semantic.truth(value, "`and`" if is_and else "`or`") != is_and:
                    return value
        return self.expression(node.values[-1])

    def visit_Compare(self, node: ast.Compare) -> Value:
        left = self.expression(node.left)
        if len(node.ops) == 1:
            return self.semantic.compare(_COMPARE[type(node.ops[0])], left, self.expression(node.comparators[0]))
        result: Value = Const(True)
        for operator, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.expression(comparator)
            result = self.semantic.compare(_COMPARE[type(operator)], left, right)
            if isinstance(result, Unknown):
                left = right
                continue
            if not isinstance(result, Const):
                raise UnsupportedError(
                    f"a chained comparison needs the truth value of {result.describe()}, "
                    "which is not known while compiling",
                    hint="nest the comparisons: kl.where(a < b, kl.where(b < c, x, y), y)",
                )
            if not self.semantic.truth(result, "a comparison"):
                return result
            left = right
        return result

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        condition = self.expression(node.test)
        if isinstance(condition, Phase):
            return self._choose_every(node, condition)
        return self.choose(node, condition)

    def choose(self, node: ast.IfExp, condition: Value) -> Value:
        """The operand that a constant condition selects."""
        with self.at(node.test):
            holds = self.semantic.truth(condition, "`if`")
        return self.expression(node.body if holds else node.orelse)

    def _choose_every(self, node: ast.IfExp, phase: Phase) -> Value:
        with self.builder.open_block() as then:
            left = self.expression(node.body)
        with self.builder.open_block() as otherwise:
            right = self.expression(node.orelse)
        if left is right:
            return left
        value = self._merge("the result", left, right, then, otherwise, node.lineno)
        if isinstance(value, Undefined):
            raise value.kind(value.message, hint=value.hint)
        if not isinstance(value, (Tensor, HostScalar)):
            return value
        return self._emit_every(phase, then, otherwise, [value])[0]

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Value:
        return Const(self._text(node))

    def _text(self, node: ast.JoinedStr) -> str:
        return "".join(self._format(part) for part in node.values)

    def _format(self, part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        assert isinstance(part, ast.FormattedValue)
        value = self.expression(part.value)
        if not isinstance(value, Const):
            return self.semantic.format(value)
        spec = self._text(part.format_spec) if isinstance(part.format_spec, ast.JoinedStr) else ""
        conversions: dict[int, Callable[[Any], Any]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}
        convert = conversions.get(part.conversion, lambda item: item)
        with self.at(part.value):
            return str(self.semantic.evaluate(lambda: format(convert(value.value), spec), "formatting"))

    # ---- calls -------------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> Value:
        return self.call(node, self.expression(node.func))

    def call(self, node: ast.Call, callee: Value) -> Value:
        """``callee(...)`` with the arguments of ``node``."""
        if not isinstance(callee, Const):
            raise UpdateTypeError(f"{callee.describe()} cannot be called")
        function = callee.value
        if isinstance(function, Builtin):
            return self._call_builtin(node, function)
        if isinstance(function, Role):
            raise UpdateTypeError(f"`{function!r}` is an annotation of an argument, not a function")
        if isinstance(function, Function):
            return self._call_helper(node, function)
        return self._call_python(node, function)

    def _call_builtin(self, node: ast.Call, function: Builtin) -> Value:
        rule = getattr(self.semantic, function.name)
        if function.name == "static_print":
            arguments = self._arguments(node)
            return self.semantic.static_print([self.expression(item) for item in arguments])
        bound = self._bind_arguments(node, f"kl.{function.name}", function.__signature__)
        try:
            result = self.apply(function, rule, {name: value for name, (value, _) in bound.items()})
        except LanguageError as error:
            place = bound.get(error.argument or "", (None, None))[1]
            if error.location is None and place is not None:
                error.location = self.locate(place)
            raise
        return result

    def apply(self, function: Builtin, rule: Callable[..., Value], arguments: dict[str, Value]) -> Value:
        """The result of a function of the language."""
        return rule(**arguments)

    def _arguments(self, node: ast.Call) -> list[ast.expr]:
        if node.keywords:
            raise UpdateTypeError(f"unexpected keyword argument `{node.keywords[0].arg}`")
        return node.args

    def _bind_arguments(
        self, node: ast.Call, name: str, signature: inspect.Signature
    ) -> dict[str, tuple[Value, ast.expr | None]]:
        """Match a call with a signature by Python's rules; each parameter's value and where it is written."""
        parameters = list(signature.parameters.values())
        positional = [item for item in parameters if item.kind != item.KEYWORD_ONLY]
        if len(node.args) > len(positional):
            with self.at(node.args[len(positional)]):
                count = len(positional)
                hint = None
                if len(parameters) > count:
                    hint = f"`{parameters[count].name}` is keyword-only"
                raise UpdateTypeError(
                    f"`{name}` takes {count or 'no'} positional argument{'' if count == 1 else 's'}, "
                    f"but got {len(node.args)}",
                    hint=hint,
                )
        written: dict[str, ast.expr] = {}
        for parameter, argument in zip(positional, node.args, strict=False):
            written[parameter.name] = argument
        by_keyword = {item.name for item in parameters if item.kind != item.POSITIONAL_ONLY}
        for keyword in node.keywords:
            assert keyword.arg is not None
            with self.at(keyword):
                if keyword.arg not in by_keyword:
                    hint = _did_you_mean(keyword.arg, by_keyword) or f"it takes {_list(list(signature.parameters))}"
                    raise UpdateTypeError(f"`{name}` has no argument `{keyword.arg}`", hint=hint)
                if keyword.arg in written:
                    raise UpdateTypeError(f"`{name}` got two values for the argument `{keyword.arg}`")
            written[keyword.arg] = keyword.value
        values = {key: self.expression(argument) for key, argument in written.items()}
        bound: dict[str, tuple[Value, ast.expr | None]] = {}
        for parameter in parameters:
            if parameter.name in values:
                bound[parameter.name] = (values[parameter.name], written[parameter.name])
            elif parameter.default is not parameter.empty:
                default = self.capture(f"the default of `{parameter.name}`", parameter.default)
                bound[parameter.name] = (default, None)
            else:
                raise UpdateTypeError(f"`{name}` misses the argument `{parameter.name}`")
        return bound

    def _call_helper(self, node: ast.Call, helper: Function) -> Value:
        if any(frame.source is helper.definition for frame in self._frames):
            raise UnsupportedError(
                f"`{helper.name}` calls itself", hint="helpers are inlined: use a `for` loop over a constant range"
            )
        bound = self._bind_arguments(node, helper.name, helper.python_signature)
        for name, (value, place) in bound.items():
            if name in helper.constexprs and not (isinstance(value, Const) or is_unknown(value)):
                with self.at(place or node):
                    raise UpdateTypeError(
                        f"`{helper.name}` expects a constant for `{name}`, but got {value.describe()}"
                    )
        caller = self.locate(node)
        frame = Frame(helper.function, helper.definition, caller, {name: value for name, (value, _) in bound.items()})
        returned = self.run(frame)
        return Const(None) if returned is None else returned.value

    def _call_python(self, node: ast.Call, function: Any) -> Value:
        name = ast.unparse(node.func)
        if function is min or function is max:
            return self._call_extremum(node, function.__name__)
        if function is abs:
            return self.semantic.abs(self._single(node, "abs"))
        if _is_constant_function(function):
            return self._call_constant(node, function, name)
        last = name.rsplit(".", 1)[-1]
        if self._library(node.func, function) in _ARRAY_LIBRARIES:
            raise UnsupportedError(
                f"`{name}` works on arrays in memory, but an update is compiled before there are any",
                hint=_instead(last) or "use the functions of kaon.language",
            )
        if isinstance(function, FunctionType):
            raise UpdateTypeError(
                f"`{name}` is a plain Python function", hint="decorate it with @kaon.function to call it here"
            )
        if _is_update(function):
            raise UpdateTypeError(
                f"`{name}` is an update, which cannot be called from another",
                hint="move what both share into an @kaon.function",
            )
        if not callable(function):
            raise UpdateTypeError(f"{Const(function).describe()} cannot be called")
        hint = _INSTEAD.get(name) or _instead(last) or "use the functions of kaon.language"
        raise UnsupportedError(f"`{name}` is not part of the language", hint=hint)

    def _library(self, node: ast.expr, function: Any) -> str:
        """The top-level package a called function comes from."""
        while isinstance(node, ast.Attribute):
            node = node.value
            if isinstance(node, ast.Name) and node.id not in self.frame.variables:
                owner = self._outer(node.id)
                if isinstance(owner, types.ModuleType):
                    return owner.__name__.split(".")[0]
        module = getattr(function, "__module__", None) or type(function).__module__
        return str(module).split(".")[0]

    def _single(self, node: ast.Call, name: str) -> Value:
        arguments = self._arguments(node)
        if len(arguments) != 1:
            raise UpdateTypeError(f"`{name}` takes 1 argument, but got {len(arguments)}")
        return self.expression(arguments[0])

    def _call_extremum(self, node: ast.Call, name: str) -> Value:
        values = [self.expression(argument) for argument in self._arguments(node)]
        if len(values) == 1:
            items = unpack(values[0])
            if isinstance(values[0], Tensor):
                raise UnsupportedError(
                    f"`{name}` of a matrix would compare its rows",
                    hint=f"use kl.{name}(x) for its {'largest' if name == 'max' else 'smallest'} value",
                )
            if items is None and not isinstance(values[0], Const):
                if is_unknown(values[0]):
                    return values[0]
                raise UpdateTypeError(f"`{name}` expects several numbers or a tuple, but got {values[0].describe()}")
            if items is None:
                return self._call_constant(node, {"min": min, "max": max}[name], name)
            values = list(items)
        if not values:
            raise UpdateTypeError(f"`{name}` expects at least 1 value, but got none")
        return self.semantic.python_extremum(name, values)

    def _call_constant(self, node: ast.Call, function: Any, name: str) -> Value:
        """Compute a Python function on constants while compiling."""
        values = [self.expression(argument) for argument in node.args]
        keywords = {str(keyword.arg): self.expression(keyword.value) for keyword in node.keywords}
        if function is len and len(values) == 1:
            items = unpack(values[0])
            if items is not None:
                return Const(len(items))
        if function is float and len(values) == 1 and isinstance(values[0], HostScalar):
            return values[0]
        written = [*node.args, *(keyword.value for keyword in node.keywords)]
        for argument, value in zip(written, [*values, *keywords.values()], strict=True):
            if not (isinstance(value, Const) or is_unknown(value)):
                with self.at(argument):
                    raise UnsupportedError(
                        f"`{name}` is for constants only, but got {value.describe()}",
                        hint=_instead_on(function, name, value),
                    )
        if any(map(is_unknown, [*values, *keywords.values()])):
            return Unknown()
        constants = [value.value for value in values if isinstance(value, Const)]
        options = {key: value.value for key, value in keywords.items() if isinstance(value, Const)}
        if function is not range and any(isinstance(item, range) and _is_long(item) for item in constants):
            raise UpdateValueError(f"`{name}` expects a range of at most {_MAX_ITERATIONS} numbers, but got more")

        def compute() -> Any:
            result = function(*constants, **options)
            return tuple(result) if function in (enumerate, zip, reversed) else result

        result = self.semantic.evaluate(compute, f"`{name}`")
        return self.capture(f"the result of `{name}`", result)


def assigned_names(statements: Sequence[ast.stmt]) -> list[str]:
    """The names that ``statements`` assign anywhere, in order, with repetitions."""
    return [
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def _is_long(values: range) -> bool:
    # len() of a very long range overflows.
    return bool(values) and abs(values[-1] - values[0]) // abs(values.step) >= _MAX_ITERATIONS


def is_scalar(value: Value) -> bool:
    """Is ``value`` a number, known while compiling or evaluated on the host?"""
    return isinstance(value, HostScalar) or (isinstance(value, Const) and is_number(value.value))


def _same_constant(a: Any, b: Any) -> bool:
    # 1 == 1.0 == True in Python, but they are different constants; repr tells 0.0 from -0.0 as well.
    return a is b or (type(a) is type(b) and repr(a) == repr(b) and bool(a == b))


def _is_static(value: Any) -> bool:
    """May an update read this Python object? Immutable data, modules and callables (calling them is another matter)."""
    if value is None or isinstance(value, (bool, int, float, str, range, numbers.Real, Coefficients, enum.Enum)):
        return True
    if isinstance(value, tuple):
        return all(_is_static(item) for item in value)
    return isinstance(value, (types.ModuleType, Builtin, Role)) or callable(value)


def _is_update(function: Any) -> bool:
    from kaon.compiler.update import Update  # which compiles with this module

    return isinstance(function, Update)


def _is_constant_function(function: Any) -> bool:
    if any(function is item for item in _CONSTANT_FUNCTIONS):
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(function, types.BuiltinFunctionType):
        return getattr(function, "__module__", None) == "math" or isinstance(owner, (str, int, float, tuple))
    if isinstance(owner, Coefficients):
        return True
    return isinstance(function, FunctionType) and function.__module__ == coefficient_tables.__name__


def _instead(name: str) -> str | None:
    """A hint to the function of the language that is called alike."""
    from kaon import language

    if name in ("matmul", "mm"):
        return "use the operator `@`"
    name = {"fabs": "abs", "round": "floor"}.get(name, name)
    return f"use kl.{name}" if isinstance(getattr(language, name, None), Builtin) else None


def _instead_on(function: Any, name: str, value: Value) -> str | None:
    if function is len and isinstance(value, Tensor):
        return "use x.rows and x.cols"
    if isinstance(value, Comparison):
        return "turn it into numbers with kl.where(condition, 1.0, 0.0)"
    if function is int:
        return "use kl.floor"
    return _instead(name.rsplit(".", 1)[-1])


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _hint_for_missing(module: types.ModuleType, name: str) -> str | None:
    """What to write where a module lacks `name`, if that can be told."""
    reduction = _REDUCTION_BY_NAME.fullmatch(name)
    if reduction is not None and hasattr(module, reduction["kind"]):
        along = "row" if name.startswith("row") else "column"
        return f'write `{reduction["kind"]}(x, along="{along}")`'
    return _did_you_mean(name, [item for item in dir(module) if not item.startswith("_")])


def _did_you_mean(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{close[0]}`?" if close else None


def _list(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    if len(quoted) <= 1:
        return quoted[0] if quoted else "no arguments"
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]


__all__ = ["AstVisitor", "Frame", "Returned", "assigned_names", "is_scalar"]
