"""Optimizer classes whose programs come from a compiled package; what `kaon.load` returns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch import Tensor

from kaon import knobs
from kaon.package.errors import PackageError
from kaon.package.manifest import CPU, canonical
from kaon.package.reading import Package
from kaon.target import PRODUCT_DTYPES

from . import optimizers
from .base import KaonOptimizer
from .bindings import Group, Refresh, UpdateBinding
from .devices import check_product_dtype, placement_for, target_name
from .parameters import PARAMETER_DTYPES, Route
from .program import Program
from .rules import MATRIX, Rule

if TYPE_CHECKING:
    from kaon.compiler.update import Signature


class PackagedUpdate:
    """Stands for an update whose text is elsewhere: its name and its signature."""

    def __init__(self, name: str, signature: Signature, directory: Path):
        self.name = name
        self.signature = signature
        self._directory = directory

    def bind_constexprs(self, constexprs: dict[str, Any]) -> dict[str, Any]:
        """Every compile-time argument with its value."""
        return {spec.name: constexprs.get(spec.name, spec.default) for spec in self.signature.constexprs}

    def specialize(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raises: there is nothing to compile."""
        del arguments, options
        raise PackageError(self._directory, f"holds update {self.name} compiled; its text is not here")


class PackagedBinding(UpdateBinding):
    """A user's update, of which the package knows what it would say."""

    def __init__(self, update: Any, refreshes: dict[tuple[int, int, str], tuple[Refresh, ...]]):
        super().__init__(update)
        self._known = refreshes

    def refreshes(self, group: Group, rows: int, cols: int, dtype: str) -> tuple[Refresh, ...]:
        del group
        return self._known.get((rows, cols, dtype), ())


class PackagedOptimizer(KaonOptimizer):
    """Base of the classes that :func:`kaon.load` makes.

    Parameters must be, in any order, those that the package was compiled for.

    Args:
        params: see `KaonOptimizer`.
        product_dtype: what the package was compiled for, or None.
        options: those of the optimizer that was compiled, by name; what was given then is the default now.

    Raises:
        PackageError: parameters or options that the package was not compiled for.
    """

    kaon_package: ClassVar[Package]

    def __init__(self, params: Any, *, product_dtype: str | torch.dtype | None = None, **options: Any) -> None:
        manifest = self.kaon_package.manifest
        if product_dtype is not None:
            self._check_products(check_product_dtype(product_dtype))
        if manifest.optimizer is None and options.get("rules") is None:
            options["rules"] = all_to_the_update()
        super().__init__(params, **{**manifest.options, **options})

    def _check_products(self, wanted: str) -> None:
        package = self.kaon_package
        found = package.manifest.products
        if wanted not in found:
            has = f"products of {' and '.join(found)}" if found else "updates without products of matrices"
            raise PackageError(package.directory, f"was compiled for {has}, but product_dtype asks for {wanted}")

    @property
    def product_dtype(self) -> str | None:
        """What products on a GPU were compiled for; None where there are none."""
        found = [name for name in self.kaon_package.manifest.products if name in PRODUCT_DTYPES]
        return found[0] if found else None

    def _refreshes(self, label: str, parameter: Tensor, chosen: Route, group: dict[str, Any]) -> tuple[Refresh, ...]:
        """As the base; refuses, when the optimizer is made, a parameter of which the package has no matrix."""
        self._check_parameter(label, parameter, chosen, group)
        return super()._refreshes(label, parameter, chosen, group)

    def _check_parameter(self, label: str, parameter: Tensor, chosen: Route, group: dict[str, Any]) -> None:
        package, binding = self.kaon_package, self._bindings()[chosen.update]
        matrices, dtype = package.manifest.matrices, PARAMETER_DTYPES[parameter.dtype]
        update = binding.update(group)
        for rows, cols in dict.fromkeys((item.rows, item.cols) for item in chosen.view.matrices(parameter.shape)):
            same = [spec for spec in matrices if (spec.update, spec.rows, spec.cols) == (update.name, rows, cols)]
            if not same:
                shapes = _listed(f"{spec.rows}x{spec.cols}" for spec in matrices if spec.update == update.name)
                raise PackageError(
                    package.directory, f"was compiled for {update.name} of {shapes}, but {label} needs {rows}x{cols}"
                )
            if dtype not in {spec.param_dtype for spec in same}:
                dtypes = _listed(spec.param_dtype for spec in same)
                raise PackageError(
                    package.directory,
                    f"was compiled for {update.name} {rows}x{cols} in {dtypes}, but {label} is {dtype}",
                )
            options = canonical(update.bind_constexprs(binding.constexprs(group, rows, cols)))
            if options not in {spec.constexprs for spec in same}:
                raise PackageError(
                    package.directory,
                    f"was compiled for {update.name} {rows}x{cols} with options {_listed(s.constexprs for s in same)}, "
                    f"but {label} asks for {options}",
                )

    def _build(self) -> list[Program]:
        """As the base; each program is what the package has of it, so that nothing is left to compile."""
        programs = super()._build()
        for program in programs:
            if program.entries:
                placement = None if target_name(program.device) == CPU else placement_for(program.device)
                program._compiled = self.kaon_package.program(program.entries, self._step_threads(), placement)
        return programs

    def _step_threads(self) -> int:
        return self._threads or knobs.runtime.num_threads or torch.get_num_threads()

    def __reduce__(self) -> Any:
        # The class was made by a call and has no name to be found under; its package has.
        return _restore, (str(self.kaon_package.directory.resolve()),), self.__getstate__()


def _listed(values: Any) -> str:
    return ", ".join(dict.fromkeys(values)) or "nothing"


def _restore(directory: str) -> PackagedOptimizer:
    """An empty optimizer of a package, to be filled by `__setstate__`."""
    cls = optimizer_class(Package.open(directory))
    return cls.__new__(cls)


def optimizer_class(package: Package) -> type[PackagedOptimizer]:
    """The optimizer class of a package."""
    manifest = package.manifest
    made_for = ", ".join(manifest.architectures)
    namespace: dict[str, Any] = {
        "__doc__": f"Optimizer {manifest.name}, compiled for {made_for} (package {package.directory}).",
        "__module__": __name__,
        "kaon_package": package,
    }
    base = _update_base(package, namespace) if manifest.optimizer is None else _bundled_base(package)
    return type(manifest.name, (PackagedOptimizer, base), namespace)


def _bundled_base(package: Package) -> type[KaonOptimizer]:
    name = package.manifest.optimizer
    found = getattr(optimizers, str(name), None)
    if not (isinstance(found, type) and issubclass(found, KaonOptimizer)):
        raise PackageError(package.directory, f"expects an optimizer of kaon.optim, but got {name!r}")
    return found


def _update_base(package: Package, namespace: dict[str, Any]) -> type[KaonOptimizer]:
    """`UpdateOptimizer` for the one update of the package, which takes every parameter."""
    ((name, update),) = package.manifest.updates.items()
    stand_in = PackagedUpdate(name, update.signature, package.directory)
    refreshes = {(spec.rows, spec.cols, spec.param_dtype): spec.refreshes for spec in package.manifest.matrices}
    namespace["matrix_binding"] = PackagedBinding(stand_in, refreshes)
    namespace["fallback_binding"] = None
    namespace["kaon_update"] = stand_in
    return optimizers.UpdateOptimizer


def all_to_the_update() -> list[Rule]:
    """The rules of packages of one update."""
    return [Rule(MATRIX, ndim=2, label="matrix"), Rule(MATRIX, view="elementwise", label="not 2-d, as one row")]
