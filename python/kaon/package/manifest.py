"""What `package.json` says, as data: read, checked and written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kaon.compiler.update import REQUIRED, ConstexprSpec, ScalarSpec, Signature, StateSpec
from kaon.language.coefficients import Coefficients

FORMAT = "kaon-package"
SCHEMA = 2
"""Version of the manifest. Readers refuse any other."""

CPU, CUDA = "cpu", "cuda"


class ManifestError(ValueError):
    """A manifest is not one; the message names the field."""


def encode(value: Any) -> Any:
    """An option as JSON holds it: numbers, text, sequences of them, and tables of coefficients.

    Raises:
        TypeError: anything else.
    """
    if isinstance(value, Coefficients):
        return {"coefficients": dataclasses.asdict(value)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"expects options of numbers, text or sequences of them, but got {value!r}")


def decode(value: Any) -> Any:
    """The inverse of :func:`encode`; sequences become tuples.

    Raises:
        ManifestError: what `encode` does not make.
    """
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if isinstance(value, dict):
        try:
            return Coefficients(**{name: decode(item) for name, item in value["coefficients"].items()})
        except (KeyError, AttributeError, TypeError, ValueError):
            raise ManifestError(f"package.json expects an option's value, but got {value!r}") from None
    return value


def canonical(values: Mapping[str, Any]) -> str:
    """Compile-time arguments as text: equal exactly for those that compile to the same code (1, 1.0 and true do not).

    Raises:
        TypeError: a value that JSON cannot hold.
    """
    return json.dumps({name: encode(value) for name, value in values.items()}, sort_keys=True)


@dataclass(frozen=True)
class MatrixSpec:
    """One matrix of a package: what its kernels were compiled for. Its position is that in the plan."""

    update: str
    rows: int
    cols: int
    param_dtype: str
    grad_dtype: str
    constexprs: str
    """As :func:`canonical` writes them."""
    phase: int = 0
    """Offset of the refresh steps."""
    refreshes: tuple[tuple[int, int], ...] = ()
    """Period and first time, after the first step, of each thing that happens at some steps only."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What a matrix of a model must agree in."""
        return self.update, self.rows, self.cols, self.param_dtype, self.grad_dtype, self.constexprs, self.phase

    def __str__(self) -> str:
        phase = f", phase {self.phase}" if self.phase else ""
        return f"{self.update} {self.rows}x{self.cols}, parameter {self.param_dtype}, gradient {self.grad_dtype}{phase}"


@dataclass(frozen=True)
class UpdateSpec:
    """One update of a package: enough to hold its states and to ask for its scalars."""

    signature: Signature
    source: str
    """Hash of its text, for people who look for it."""


@dataclass(frozen=True)
class FileSpec:
    """One file of a package."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All of `package.json`."""

    version: str
    """Of the Kaon that made it."""
    target: str
    architectures: tuple[str, ...]
    name: str
    """Of the optimizer class."""
    optimizer: str | None
    """The class of `kaon.optim` that it stands for; None for an update."""
    options: Mapping[str, Any]
    """Group options that were given, which are the class's defaults."""
    updates: Mapping[str, UpdateSpec]
    matrices: tuple[MatrixSpec, ...]
    products: tuple[str, ...]
    """What the operands of matrix products are, by torch's names; empty if there are no products."""
    kernels: tuple[str, ...]
    files: Mapping[str, FileSpec]

    def to_json(self) -> str:
        """The text of the file; the same manifest gives the same bytes."""
        content = {
            "format": FORMAT,
            "schema": SCHEMA,
            "kaon": self.version,
            "target": self.target,
            "architectures": list(self.architectures),
            "name": self.name,
            "optimizer": self.optimizer,
            "options": {name: encode(value) for name, value in self.options.items()},
            "updates": {name: _update_to_json(update) for name, update in self.updates.items()},
            "matrices": [
                {
                    "update": matrix.update,
                    "rows": matrix.rows,
                    "cols": matrix.cols,
                    "paramType": matrix.param_dtype,
                    "gradType": matrix.grad_dtype,
                    "constexprs": json.loads(matrix.constexprs),
                    "phase": matrix.phase,
                    "refreshes": [list(refresh) for refresh in matrix.refreshes],
                }
                for matrix in self.matrices
            ],
            "products": list(self.products),
            "kernels": list(self.kernels),
            "files": {name: {"bytes": file.size, "sha256": file.sha256} for name, file in sorted(self.files.items())},
        }
        return json.dumps(content, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Manifest:
        """The inverse of :meth:`to_json`.

        Raises:
            ManifestError: not a manifest of this schema.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ManifestError(f"package.json expects JSON, but {error}") from None
        root = _Reader(content, "package.json")
        if (found := root.text("format")) != FORMAT:
            raise ManifestError(f"package.json: format expects '{FORMAT}', but got '{found}'")
        if (schema := root.integer("schema")) != SCHEMA:
            raise ManifestError(f"package.json has schema {schema}, but this kaon reads schema {SCHEMA}")
        matrices = tuple(_matrix_from_json(reader) for reader in root.items("matrices"))
        updates = {name: _update_from_json(reader) for name, reader in root.members("updates")}
        for position, matrix in enumerate(matrices):
            if matrix.update not in updates:
                raise ManifestError(f"package.json: matrices[{position}].update expects one of the updates")
        return Manifest(
            version=root.text("kaon"),
            target=root.choice("target", (CPU, CUDA)),
            architectures=root.texts("architectures"),
            name=root.text("name"),
            optimizer=None if root.value("optimizer") is None else root.text("optimizer"),
            options={name: decode(value) for name, value in root.object("options").items()},
            updates=updates,
            matrices=matrices,
            products=root.texts("products"),
            kernels=root.texts("kernels"),
            files={
                name: FileSpec(reader.integer("bytes"), reader.text("sha256")) for name, reader in root.members("files")
            },
        )


def _update_to_json(update: UpdateSpec) -> dict[str, Any]:
    signature = update.signature
    return {
        "source": update.source,
        "param": signature.param,
        "grad": signature.grad,
        "states": [{"name": state.name, "kind": state.kind, "init": state.init} for state in signature.states],
        "scalars": [{"name": scalar.name, "default": scalar.default} for scalar in signature.scalars],
        "constexprs": [
            {"name": spec.name} if spec.required else {"name": spec.name, "default": encode(spec.default)}
            for spec in signature.constexprs
        ],
    }


def _update_from_json(reader: _Reader) -> UpdateSpec:
    scalars = []
    for scalar in reader.items("scalars"):
        default = scalar.value("default")
        scalars.append(ScalarSpec(scalar.text("name"), None if default is None else scalar.number("default")))
    constexprs = []
    for spec in reader.items("constexprs"):
        default = decode(spec.value("default")) if "default" in spec.object() else REQUIRED
        constexprs.append(ConstexprSpec(spec.text("name"), default))
    states = [
        StateSpec(state.text("name"), state.choice("kind", ("matrix", "row", "column", "scalar")), state.number("init"))
        for state in reader.items("states")
    ]
    signature = Signature(reader.text("param"), reader.text("grad"), tuple(states), tuple(scalars), tuple(constexprs))
    return UpdateSpec(signature, reader.text("source"))


def _matrix_from_json(reader: _Reader) -> MatrixSpec:
    types = ("f64", "f32", "bf16", "f16")
    refreshes = []
    for refresh in reader.elements("refreshes"):
        if not (isinstance(refresh, list) and len(refresh) == 2 and all(type(item) is int for item in refresh)):
            raise ManifestError(f"{reader.path}.refreshes expects pairs of integers, but got {refresh!r}")
        refreshes.append((refresh[0], refresh[1]))
    return MatrixSpec(
        update=reader.text("update"),
        rows=reader.integer("rows"),
        cols=reader.integer("cols"),
        param_dtype=reader.choice("paramType", types),
        grad_dtype=reader.choice("gradType", types),
        constexprs=canonical({name: decode(value) for name, value in reader.object("constexprs").items()}),
        phase=reader.integer("phase"),
        refreshes=tuple(refreshes),
    )


class _Reader:
    """A JSON value and the path to it, so that what is wrong with it can be named."""

    def __init__(self, content: Any, path: str):
        self._content = content
        self.path = path

    def value(self, name: str) -> Any:
        """The member `name`, which must be there."""
        content = self.object()
        if name not in content:
            raise ManifestError(f"{self.path}: expects a value for {name}, but found none")
        return content[name]

    def object(self, name: str | None = None) -> dict[str, Any]:
        """This value, or a member of it, as an object."""
        return self._typed(name, dict, "an object")

    def elements(self, name: str) -> list[Any]:
        return self._typed(name, list, "a list")

    def text(self, name: str) -> str:
        return self._typed(name, str, "text")

    def integer(self, name: str) -> int:
        return self._typed(name, int, "an integer")

    def number(self, name: str) -> float:
        return float(self._typed(name, (int, float), "a number"))

    def texts(self, name: str) -> tuple[str, ...]:
        found = self.elements(name)
        if not all(isinstance(item, str) for item in found):
            raise ManifestError(f"{self.path}.{name} expects a list of text, but got {found!r}")
        return tuple(found)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        found = self.text(name)
        if found not in choices:
            raise ManifestError(f"{self.path}.{name} expects one of {', '.join(choices)}, but got {found!r}")
        return found

    def items(self, name: str) -> list[_Reader]:
        return [_Reader(item, f"{self.path}.{name}[{index}]") for index, item in enumerate(self.elements(name))]

    def members(self, name: str) -> list[tuple[str, _Reader]]:
        return [(key, _Reader(item, f"{self.path}.{name}.{key}")) for key, item in self.object(name).items()]

    def _typed(self, name: str | None, kind: Any, wish: str) -> Any:
        found = self._content if name is None else self.value(name)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            where = self.path if name is None else f"{self.path}.{name}"
            raise ManifestError(f"{where} expects {wish}, but got {found!r:.60}")
        return found
