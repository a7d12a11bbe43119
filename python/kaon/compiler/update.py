"""``@kaon.update``: reads the roles and the source of an update, and compiles it to MLIR text for each shape."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn

from kaon.compiler.ast_visitor import AstVisitor, Frame, Returned
from kaon.compiler.emit import Builder, FunctionArgument, SsaValue, function_text, tensor_type
from kaon.compiler.errors import (
    CallError,
    InternalError,
    LanguageError,
    RoleError,
    ShapeError,
    SourceLocation,
    UnsupportedError,
    UpdateTypeError,
)
from kaon.compiler.function import argument_location, copy_metadata, importable_name, python_signature
from kaon.compiler.shape_free import matrix, walk
from kaon.compiler.source import FunctionSource, function_source
from kaon.compiler.subset import check_subset
from kaon.compiler.values import Const, HostScalar, Tensor, TupleValue, Unknown, Value, unpack
from kaon.language import core
from kaon.language.core import Role
from kaon.language.semantic import Semantic, is_number, plain_number, shape_text

STORAGE_TYPES = ("f32", "f64", "bf16", "f16")
_WIDTH = {"bf16": 16, "f16": 16, "f32": 32, "f64": 64}
_STATE_KINDS = {
    core.state: "matrix",
    core.row_state: "row",
    core.column_state: "column",
    core.scalar_state: "scalar",
}


class _Required:
    """Marks a constexpr without a default."""

    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


@dataclass(frozen=True)
class StateSpec:
    """A state; ``kind`` says its shape: ``"matrix"`` MxN, ``"row"`` Mx1, ``"column"`` 1xN, ``"scalar"`` 1x1."""

    name: str
    kind: str
    init: float = 0.0

    def shape(self, rows: int, cols: int) -> tuple[int, int]:
        """The state's shape for a parameter of ``rows`` x ``cols``."""
        return {"matrix": (rows, cols), "row": (rows, 1), "column": (1, cols), "scalar": (1, 1)}[self.kind]


@dataclass(frozen=True)
class ScalarSpec:
    """A run-time hyperparameter; ``default`` is None when the user must give one."""

    name: str
    default: float | None = None


@dataclass(frozen=True)
class ConstexprSpec:
    """A compile-time argument; ``default`` is :data:`REQUIRED` when the user must give one."""

    name: str
    default: Any = REQUIRED

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Signature:
    """The roles of an update's arguments; states, scalars and constexprs in the order they are written."""

    param: str
    grad: str
    states: tuple[StateSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    constexprs: tuple[ConstexprSpec, ...]


@dataclass(frozen=True)
class SpecializedUpdate:
    """An update compiled for one shape: the text of its ``func.func``."""

    symbol: str
    text: str
    signature: Signature


class Update:
    """An optimizer update; made by ``@kaon.update``.

    Attributes:
        name: the function's name.
        signature: the roles of its arguments.
    """

    __name__: str
    __qualname__: str

    @property
    def source(self) -> str:
        """The text of the function with its decorators, without the indentation of an enclosing block."""
        return self.definition.text()

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.definition = function_source(function, "kaon.update")
        assert isinstance(function, FunctionType)
        self.function = function
        self.name = self.definition.name
        self.signature = _read_signature(function, self.definition)
        check_subset(self.definition)
        self._check_without_shapes()
        copy_metadata(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise CallError(
            f"the update `{self.name}` is compiled, not called",
            hint=f"make an optimizer of it: kaon.optimizer({self.name})(model.parameters(), ...)",
        )

    def __repr__(self) -> str:
        return f"<kaon.update {self.name}>"

    def __reduce__(self) -> str:
        return importable_name(self, self.function)

    def __copy__(self) -> Update:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Update:
        return self

    def _check_without_shapes(self) -> None:
        """Raise for what is wrong whatever the update is compiled for."""
        signature = self.signature
        variables: dict[str, Value] = {spec.name: Unknown() for spec in signature.constexprs}
        variables |= {name: matrix() for name in (signature.param, signature.grad)}
        variables |= {state.name: Tensor(SsaValue("tensor"), *state.shape(0, 0)) for state in signature.states}
        variables |= {scalar.name: HostScalar(SsaValue("f64", scalar.name)) for scalar in signature.scalars}
        returns, always = walk(self.function, self.definition, variables, frozenset({signature.grad}))
        for returned in returns:
            self.check_return(returned)
        if not always:
            raise self.missing_return()

    def wish(self) -> str:
        """The ``return`` that the signature asks for."""
        names = [self.signature.param, *(state.name for state in self.signature.states)]
        return "`return " + ", ".join(names) + "`"

    def missing_return(self) -> LanguageError:
        return RoleError(
            f"update `{self.name}` has no `return`",
            hint=f"end it with {self.wish()}",
            location=self.definition.header_location(),
        )

    def check_return(self, returned: Returned) -> tuple[Sequence[Value], Sequence[ast.expr]]:
        """The returned values and where they are written, one for the parameter and one for every state in order.

        Raises:
            RoleError: another number of values, or one argument's name in the place of another.
        """
        signature = self.signature
        roles = {signature.param: "param"} | {state.name: "state" for state in signature.states}
        node = returned.node.value
        if isinstance(returned.value, Unknown) and node is not None:
            return (), ()
        items = unpack(returned.value) or (returned.value,)
        if node is None or len(items) != len(roles):
            count = 0 if node is None else len(items)
            raise RoleError(
                f"update `{self.name}` must return {len(roles)} value{'s' if len(roles) > 1 else ''} "
                f"(the new param and every new state), but returns {count}",
                hint=f"end it with {self.wish()}",
                location=self.definition.location(returned.node),
            )
        places = node.elts if isinstance(node, ast.Tuple) and len(node.elts) == len(items) else [node] * len(items)
        for (name, role), place in zip(roles.items(), places, strict=True):
            if isinstance(place, ast.Name) and place.id != name and place.id in roles:
                raise RoleError(
                    f"expects the new {role} `{name}` here, but got the {roles[place.id]} `{place.id}`",
                    hint=f"the order is that of the arguments: {self.wish()}",
                    location=self.definition.location(place),
                )
        return items, places

    def bind_constexprs(self, constexprs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Every constexpr of the signature with its value: the one given, else the default.

        Raises:
            UpdateTypeError: an unknown name, a missing value, or a value that is not hashable.
        """
        given = dict(constexprs or {})
        bound: dict[str, Any] = {}
        for spec in self.signature.constexprs:
            value = given.pop(spec.name, spec.default)
            if value is REQUIRED:
                raise self._error(
                    UpdateTypeError, f"update `{self.name}` misses the constexpr `{spec.name}`", spec.name
                )
            bound[spec.name] = _checked_constexpr(self, spec.name, value)
        if given:
            known = ", ".join(f"`{spec.name}`" for spec in self.signature.constexprs) or "none"
            raise UpdateTypeError(
                f"update `{self.name}` has no constexpr `{next(iter(given))}`",
                hint=f"its constexprs: {known}",
                location=self.definition.header_location(),
            )
        return bound

    def _error(self, kind: type[LanguageError], message: str, argument: str, hint: str | None = None) -> LanguageError:
        return kind(message, hint=hint, location=argument_location(self.definition, argument))

    def specialize(
        self,
        rows: int,
        cols: int,
        param_dtype: str = "f32",
        grad_dtype: str = "f32",
        constexprs: Mapping[str, Any] | None = None,
        *,
        symbol: str,
    ) -> SpecializedUpdate:
        """Compile for one shape.

        Args:
            rows, cols: the matrix's shape, both at least 1.
            param_dtype, grad_dtype: storage types, one of ``f32 f64 bf16 f16``. Computed in f64 if the parameter is
                f64, in f32 otherwise; states have the compute type.
            constexprs: values by name; the others take their defaults.
            symbol: the name of the emitted function.

        Raises:
            LanguageError: the update is wrong; with file, line, column, source line, caret and call chain.
        """
        specialization = _Specialization(self, rows, cols, param_dtype, grad_dtype, constexprs, symbol)
        try:
            return specialization.run()
        except InternalError:
            raise  # its cause and frames are what a report needs
        except LanguageError as error:
            # The user's lines are in the message; the compiler's own frames would only hide them.
            raise error.with_traceback(None) from None
        except RecursionError:
            raise UnsupportedError(
                "an expression of this update is nested too deeply", location=self.definition.header_location()
            ) from None


class _Specialization:
    """One run of the compiler: arguments in, body, results out."""

    def __init__(
        self,
        update: Update,
        rows: int,
        cols: int,
        param_dtype: str,
        grad_dtype: str,
        constexprs: Mapping[str, Any] | None,
        symbol: str,
    ) -> None:
        for name, value in (("rows", rows), ("cols", cols)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ShapeError(f"update `{update.name}` expects {name} >= 1, but got {value!r}")
        for name, dtype in (("param_dtype", param_dtype), ("grad_dtype", grad_dtype)):
            if dtype not in STORAGE_TYPES:
                raise UpdateTypeError(
                    f"update `{update.name}` expects {name} to be one of {', '.join(STORAGE_TYPES)}, but got {dtype!r}"
                )
        self.update = update
        self.source = update.definition
        self.shape = (rows, cols)
        self.param_dtype, self.grad_dtype = param_dtype, grad_dtype
        self.dtype = "f64" if param_dtype == "f64" else "f32"
        self.constexprs = update.bind_constexprs(constexprs)
        self.symbol = symbol
        self.builder = Builder()
        self.step = SsaValue("i64", "step")
        self.semantic = Semantic(self.builder, self.dtype, self.step)
        self.arguments: list[FunctionArgument] = []

    def run(self) -> SpecializedUpdate:
        header = self.source.header_location()
        variables = self._make_arguments()
        frame = Frame(
            self.update.function,
            self.source,
            None,
            variables,
            read_only=frozenset({self.update.signature.grad}),
        )
        visitor = AstVisitor(self.builder, self.semantic)
        returned = visitor.run(frame)
        if returned is None:
            raise self.update.missing_return()
        where = self.source.location(returned.node)
        self.builder.location = where
        self._return(returned)
        text = function_text(self.symbol, self.arguments, self.builder.block, header, where)
        return SpecializedUpdate(self.symbol, text, self.update.signature)

    def _make_arguments(self) -> dict[str, Value]:
        """Declare the function's arguments in the contract's order; widen half precision at once."""
        signature = self.update.signature
        variables: dict[str, Value] = {name: Const(value) for name, value in self.constexprs.items()}
        variables[signature.param] = self._tensor_argument("param", signature.param, self.shape, self.param_dtype)
        variables[signature.grad] = self._tensor_argument("grad", signature.grad, self.shape, self.grad_dtype)
        for state in signature.states:
            shape = state.shape(*self.shape)
            variables[state.name] = self._tensor_argument("state", state.name, shape, self.dtype, state.init)
        for scalar in signature.scalars:
            value = SsaValue("f64", scalar.name)
            variables[scalar.name] = HostScalar(value)
            self._declare(value, "scalar", scalar.name)
        self.arguments.append(FunctionArgument(self.step, "step", "step", self.source.header_location()))
        return variables

    def _declare(self, value: SsaValue, role: str, name: str, init: float | None = None) -> None:
        self.arguments.append(FunctionArgument(value, role, name, argument_location(self.source, name), init))

    def _tensor_argument(
        self, role: str, name: str, shape: tuple[int, int], dtype: str, init: float | None = None
    ) -> Tensor:
        value = SsaValue(tensor_type(*shape, dtype), name)
        self._declare(value, role, name, init)
        self.builder.location = argument_location(self.source, name)
        return Tensor(self._convert(value, shape, dtype, self.dtype, name), *shape)

    def _convert(self, value: SsaValue, shape: tuple[int, int], source: str, target: str, name: str) -> SsaValue:
        if source == target:
            return value
        operation = "arith.extf" if _WIDTH[target] > _WIDTH[source] else "arith.truncf"
        type_ = tensor_type(*shape, target)
        result = self.builder.emit(f"{operation} {{}} : {value.type} to {type_}", [value], type_)
        result.hint = name
        return result

    def _return(self, returned: Returned) -> None:
        """Check the returned values against the roles: first the parameter, then every state in order."""
        signature = self.update.signature
        wanted = [("param", signature.param, self.shape)]
        wanted += [("state", state.name, state.shape(*self.shape)) for state in signature.states]
        items, places = self.update.check_return(returned)
        for (role, name, shape), item, place in zip(wanted, items, places, strict=True):
            value = self._returned_tensor(role, name, shape, item, self.source.location(place))
            target = self.param_dtype if role == "param" else self.dtype
            self.builder.block.terminator.append(self._convert(value, shape, self.dtype, target, name))

    def _returned_tensor(
        self, role: str, name: str, shape: tuple[int, int], item: Value, location: SourceLocation
    ) -> SsaValue:
        if isinstance(item, Tensor):
            if item.shape == shape:
                return item.ssa
            raise ShapeError(
                f"expects the new {role} `{name}` to be {shape_text(shape)}, but got {shape_text(item.shape)}",
                location=location,
            )
        if shape == (1, 1) and (isinstance(item, HostScalar) or (isinstance(item, Const) and is_number(item.value))):
            return self.semantic.tensor(item, shape, "`return`")
        hint = None
        if isinstance(item, (HostScalar, Const)):
            hint = "fill a matrix with kl.full_like(x, value)"
        elif isinstance(item, TupleValue):
            hint = "unpack the tuple first, as in `u, m = kl.momentum(...)`"
        raise RoleError(
            f"expects the new {role} `{name}` to be a {shape_text(shape)} matrix, but got {item.describe()}",
            hint=hint,
            location=location,
        )


def _checked_constexpr(update: Update, name: str, value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        raise update._error(
            UpdateTypeError,
            f"the constexpr `{name}` must be hashable, but got a value of type {type(value).__name__}",
            name,
            "give a tuple instead of a list" if isinstance(value, list) else None,
        ) from None
    value = plain_number(value)
    library = type(value).__module__.split(".")[0]
    if library in ("torch", "numpy"):
        raise update._error(
            UpdateTypeError,
            f"the constexpr `{name}` must be a plain Python value, but got a {library} {type(value).__name__}",
            name,
        )
    return value


def _read_signature(function: FunctionType, source: FunctionSource) -> Signature:
    """Sort the arguments by role and check their defaults."""
    parameters = python_signature(function, source).parameters
    states: list[StateSpec] = []
    scalars: list[ScalarSpec] = []
    constexprs: list[ConstexprSpec] = []
    single: dict[Role, str] = {}
    for name, parameter in parameters.items():
        role, default = parameter.annotation, parameter.default
        where = argument_location(source, name)
        if not isinstance(role, Role):
            found = "none" if role is parameter.empty else f"the annotation {role!r}"
            raise RoleError(
                f"argument `{name}` needs a role, but has {found}",
                hint="annotate it: kl.param, kl.grad, kl.state, kl.row_state, kl.column_state, kl.scalar_state, "
                "kl.scalar or kl.constexpr",
                location=where,
            )
        if name == "step":
            raise RoleError(
                "no argument can be named `step`", hint="the number of the step is kl.step()", location=where
            )
        has_default = default is not parameter.empty
        if role in (core.param, core.grad):
            if role in single:
                raise RoleError(
                    f"an update has one {role!r}, but `{single[role]}` and `{name}` have that role", location=where
                )
            if has_default:
                raise RoleError(f"the {role.name} `{name}` cannot have a default", location=where)
            single[role] = name
        elif role is core.constexpr:
            constexprs.append(ConstexprSpec(name, default if has_default else REQUIRED))
        else:
            if has_default and (isinstance(default, bool) or not is_number(default)):
                raise RoleError(
                    f"the default of the {role.name.replace('_', ' ')} `{name}` must be a number, but got {default!r}",
                    location=where,
                )
            if role is core.scalar:
                scalars.append(ScalarSpec(name, float(default) if has_default else None))
            else:
                states.append(StateSpec(name, _STATE_KINDS[role], float(default) if has_default else 0.0))
    for role in (core.param, core.grad):
        if role not in single:
            raise RoleError(
                f"update `{source.name}` needs one {role!r}, but has none", location=source.header_location()
            )
    signature = Signature(single[core.param], single[core.grad], tuple(states), tuple(scalars), tuple(constexprs))
    return signature


def update(function: Callable[..., Any] | None = None) -> Update:
    """Decorator: make an optimizer update of a function on matrices.

    Every argument has a role, given by its annotation (``kl.param``, ``kl.grad``, ``kl.state``, ...). The function
    returns the new parameter and then every new state, in the order of the arguments. See ``docs/language.md``.

    Raises:
        SourceError: the function's source text cannot be read.
        UpdateSyntaxError, RoleError: the signature or a statement is outside the language.
    """
    try:
        return Update(function)
    except InternalError:
        raise  # its cause and frames are what a report needs
    except LanguageError as error:
        raise error.with_traceback(None) from None
