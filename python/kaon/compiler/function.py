"""``@kaon.function``, and what helpers and updates have in common: signatures, metadata, pickling by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NoReturn

from kaon.compiler.errors import CallError, LanguageError, SourceLocation, UpdateSyntaxError
from kaon.compiler.source import FunctionSource, function_source
from kaon.compiler.subset import check_subset
from kaon.language import core
from kaon.language.core import Role


class Function:
    """A helper that updates can call; made by ``@kaon.function``. Its body is inlined at each call."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.definition = function_source(function, "kaon.function")
        assert isinstance(function, FunctionType)
        self.function = function
        self.name = self.definition.name
        self.python_signature = python_signature(function, self.definition)
        annotations = {name: item.annotation for name, item in self.python_signature.parameters.items()}
        for name, annotation in annotations.items():
            if isinstance(annotation, Role) and annotation is not core.constexpr:
                raise UpdateSyntaxError(
                    f"the helper argument `{name}` has the role {annotation!r}, but helpers take kl.constexpr only",
                    hint="leave out the annotation: helpers take any value",
                    location=argument_location(self.definition, name),
                )
        self.constexprs = frozenset(name for name, role in annotations.items() if role is core.constexpr)
        check_subset(self.definition)
        self._check_without_shapes()
        copy_metadata(self, function)

    def _check_without_shapes(self) -> None:
        """Raise for what is wrong whatever the arguments are."""
        from kaon.compiler.shape_free import walk  # which inlines helpers
        from kaon.compiler.values import Unknown

        variables = {name: Unknown() for name in self.python_signature.parameters}
        walk(self.function, self.definition, variables, frozenset())

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise CallError(
            f"the helper `{self.name}` must be called from inside an @kaon.update function",
            hint="its body is compiled as a part of the update, not run by Python",
        )

    def __repr__(self) -> str:
        return f"<kaon.function {self.name}>"

    def __reduce__(self) -> str:
        return importable_name(self, self.function)

    def __copy__(self) -> Function:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        return self


def python_signature(function: FunctionType, source: FunctionSource) -> inspect.Signature:
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception as error:
        raise UpdateSyntaxError(
            f"the annotations of `{source.name}` cannot be evaluated: {error}",
            hint="import kaon.language as kl at the top of the file",
            location=source.header_location(),
        ) from None
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind == parameter.VAR_POSITIONAL else "**"
            raise UpdateSyntaxError(
                f"`{stars}{parameter.name}` is not part of the language",
                hint="name each argument",
                location=argument_location(source, parameter.name),
            )
    return signature


def argument_location(source: FunctionSource, name: str) -> SourceLocation:
    arguments = source.node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    node = next((item for item in every if item is not None and item.arg == name), None)
    return source.location(node) if node is not None else source.header_location()


def copy_metadata(target: Any, function: FunctionType) -> None:
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(target, attribute, getattr(function, attribute))


def importable_name(target: Any, function: FunctionType) -> str:
    """Pickle by name, as Python does with functions; refuse what could not be found again."""
    import pickle

    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not target:
        raise pickle.PicklingError(
            f"can't pickle {target!r}: it is not found as {function.__module__}.{function.__qualname__}"
        )
    return function.__qualname__


def function(function: Callable[..., Any] | None = None) -> Function:
    """Decorator: make a helper that updates, and other helpers, can call. It is inlined at each call.

    Raises:
        SourceError: the function's source text cannot be read.
        UpdateSyntaxError: the signature or a statement is outside the language.
    """
    try:
        return Function(function)
    except LanguageError as error:
        raise error.with_traceback(None) from None
