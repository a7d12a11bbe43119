"""Compiles packages, with no device present."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from kaon.cache import Cache, open_cache
from kaon.compiler.errors import KaonError
from kaon.package.errors import PackageError
from kaon.package.machine import CPU_FEATURES, GPU_EXAMPLES, HOST, GpuArchitecture, cpu_levels
from kaon.package.manifest import CPU, CUDA, FileSpec, Manifest, MatrixSpec, UpdateSpec
from kaon.package.plans import spec_of
from kaon.package.reading import MANIFEST, PLAN, kernel_file, library_file
from kaon.target import product_dtypes, product_type, side_by_side

if TYPE_CHECKING:
    from kaon.compiler.update import Update
    from kaon.driver import MatrixEntry
    from kaon.optim.base import KaonOptimizer
    from kaon.target import Kernel, Lowered

T = TypeVar("T")
Shape = tuple[int, ...]
_MAX_COPIES = 1 << 16


@dataclass(frozen=True)
class Request:
    """What a package is to be compiled for.

    Args:
        shapes: of all parameters.
        architectures: GPUs (`sm_90a`, `sm_80`, `compute_80`, ...) or levels of the processor (`x86-64-v3`, `host`).
        param_dtype, grad_dtype: `f64`, `f32`, `bf16` or `f16`; the gradient's default is the parameter's.
        options: of the optimizer, by name; for an update its compile-time arguments among them.
        product_dtype: of matrix products on GPUs, `bfloat16` (the default) or `float16`, or torch's dtypes.
    """

    shapes: tuple[Shape, ...]
    architectures: tuple[str, ...]
    param_dtype: str = "f32"
    grad_dtype: str | None = None
    options: Mapping[str, Any] | None = None
    product_dtype: Any = None


@dataclass(frozen=True)
class Built:
    """What was written."""

    directory: Path
    kernels: int
    files: int
    size: int
    seconds: float


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """`1024x4096,512x512*12,768` as the shapes of 14 parameters.

    Raises:
        ValueError: it is no such list.
    """
    shapes: list[Shape] = []
    for item in text.split(","):
        found = re.fullmatch(r"(\d+(?:x\d+)*)(?:\*(\d+))?", item.strip())
        shape = tuple(int(size) for size in found[1].split("x")) if found else ()
        copies = int(found[2] or 1) if found else 0
        if not shape or 0 in shape or not 1 <= copies <= _MAX_COPIES:
            raise ValueError(f"expects shapes such as 1024x4096,512x512*12, but got {item.strip()!r}")
        shapes += [shape] * copies
    return tuple(shapes)


def compile_update(update: Update, request: Request, directory: str | Path, log: TextIO | None = None) -> Built:
    """Compile a user's update. All parameters go to it, those that are not 2-d as one row.

    Args:
        directory: made where it is missing; else it must be empty or a package, which is replaced.
        log: gets a progress bar; default: standard error where that is a terminal.

    Raises:
        PackageError: the directory or an architecture cannot be used.
        kaon.errors.LanguageError: the update is not valid for a shape.
        kaon.nvrtc.NvrtcError: there is no NVRTC, which packages for GPUs need.
    """
    import kaon
    from kaon.optim.packaged import all_to_the_update

    cls = kaon.optimizer(update)
    given = dict(request.options or {})
    # Run-time scalars without a default are asked of whoever loads the package; no value of theirs is compiled in.
    absent = {spec.name: 0.0 for spec in update.signature.scalars if spec.default is None and spec.name not in given}
    sketch = _sketch(cls, request, {"rules": all_to_the_update(), **absent}, Path(directory))
    return _build(sketch, None, cls.__name__, request, Path(directory), log)


def compile_optimizer(
    cls: type[KaonOptimizer], request: Request, directory: str | Path, log: TextIO | None = None
) -> Built:
    """Compile an optimizer of `kaon.optim`. Its rules decide which parameters go to which update.

    Arguments and errors as for :func:`compile_update`.
    """
    from kaon.optim import optimizers

    if getattr(optimizers, cls.__name__, None) is not cls:
        raise PackageError(directory, f"expects an optimizer of kaon.optim, but got {cls.__name__}; compile its update")
    sketch = _sketch(cls, request, {}, Path(directory))
    return _build(sketch, cls.__name__, cls.__name__, request, Path(directory), log)


def find_optimizer(name: str) -> type[KaonOptimizer]:
    """The optimizer of `kaon.optim` called `name`.

    Raises:
        KaonError: there is none; the message lists those there are.
    """
    from kaon import optim
    from kaon.optim.base import KaonOptimizer

    # The base classes make an optimizer only together with an update.
    classes = {
        key: value
        for key, value in vars(optim).items()
        if isinstance(value, type)
        and issubclass(value, KaonOptimizer)
        and value not in (KaonOptimizer, optim.UpdateOptimizer)
    }
    if name not in classes:
        raise KaonError(f"kaon.optim expects an optimizer named {name!r}, but it has: {', '.join(sorted(classes))}")
    return classes[name]


# ---- the matrices


def _sketch(cls: type[KaonOptimizer], request: Request, extra: dict[str, Any], directory: Path) -> KaonOptimizer:
    """The optimizer on parameters of the shapes, whose memory is never touched and whose states take none.

    Raises:
        PackageError: the optimizer refuses an option or a shape.
    """
    import torch

    from kaon.optim.parameters import PARAMETER_DTYPES

    if "product_dtype" in (request.options or {}):
        raise PackageError(directory, "expects product_dtype in --product-dtype, but got it among the options")
    dtype = next(key for key, value in PARAMETER_DTYPES.items() if value == request.param_dtype)

    class Sketch(cls):  # type: ignore[misc, valid-type]
        def _ensure_state(self, *arguments: Any) -> Any:
            with torch.device("meta"):
                return super()._ensure_state(*arguments)

    Sketch.__name__ = cls.__name__  # errors name the optimizer
    parameters = [torch.nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in request.shapes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that all parameters go to the fallback may be what is wanted
        try:
            return Sketch(parameters, **extra, **dict(request.options or {}))
        except (TypeError, ValueError) as error:
            raise PackageError(directory, str(error)) from None


def _matrices(sketch: KaonOptimizer, request: Request, directory: Path) -> tuple[list[MatrixEntry], list[MatrixSpec]]:
    """The matrices of the optimizer's only program, as the compiler and as the manifest want them."""
    programs = sketch._build()
    if len(programs) != 1:
        raise PackageError(directory, f"expects parameters that one program steps, but got {len(programs)} programs")
    gradient = request.grad_dtype or request.param_dtype
    entries = [replace(entry, grad_dtype=gradient) for entry in programs[0].entries]
    refreshes = [record.refreshes for record in programs[0].records for _ in range(record.matrices)]
    specs = [replace(spec_of(entry), refreshes=own) for entry, own in zip(entries, refreshes, strict=True)]
    return entries, specs


# ---- architectures


def _target_of(architectures: Sequence[str], directory: Path) -> tuple[str, tuple[str, ...]]:
    """The kind of target that all `architectures` are of, and their names with `host` resolved.

    Raises:
        PackageError: unknown names, both kinds at once, or nothing.
    """
    names = []
    for name in architectures:
        if name == HOST:
            levels = cpu_levels()
            if not levels:
                raise PackageError(directory, f"expects a processor with {next(iter(CPU_FEATURES))} for 'host'")
            name = levels[0]
        elif name not in CPU_FEATURES and GpuArchitecture.parse(name) is None:
            known = ", ".join((*GPU_EXAMPLES, *CPU_FEATURES, HOST))
            raise PackageError(directory, f"expects an architecture such as {known}, but got {name!r}")
        names.append(name)
    kinds = {CPU if name in CPU_FEATURES else CUDA for name in names}
    if len(kinds) != 1:
        raise PackageError(directory, f"expects architectures of GPUs or of processors, but got {', '.join(names)}")
    (kind,) = kinds
    if kind == CPU and len(names) > 1:
        # Register tiles, and so the plan, differ between levels.
        raise PackageError(directory, f"expects one level of the processor, but got {', '.join(names)}")
    return kind, tuple(dict.fromkeys(names))


def _check_gpu(architectures: Sequence[str], request: Request, directory: Path) -> None:
    """Refuse what the compiler at hand cannot make for a GPU.

    Raises:
        PackageError: an architecture that NVRTC does not know, or a dtype that kernels for GPUs do not have.
        kaon.nvrtc.NvrtcError: there is no NVRTC.
    """
    from kaon import nvrtc

    for what, dtype in (("parameters", request.param_dtype), ("gradients", request.grad_dtype)):
        if dtype == "f64":
            raise PackageError(directory, f"expects {what} of f32, bf16 or f16 for a GPU, but got f64")
    compiler = nvrtc.load()
    version = ".".join(map(str, compiler.version))
    for name in architectures:
        if not compiler.supports(name):
            raise PackageError(directory, f"expects an architecture that NVRTC {version} knows, but got {name}")


# ---- compiling


class _Progress:
    """A bar on a terminal: how many kernels are compiled."""

    WIDTH = 30

    def __init__(self, total: int, log: TextIO | None):
        self._total = total
        self._done = 0
        self._log = log

    def step(self, what: str) -> None:
        self._done += 1
        if self._log is None:
            return
        filled = self.WIDTH * self._done // max(1, self._total)
        bar = "#" * filled + "." * (self.WIDTH - filled)
        end = "\n" if self._done == self._total else ""
        self._log.write(f"\r[{bar}] {self._done}/{self._total} {what:60.60}{end}")
        self._log.flush()


def _files_of(
    build: Callable[[T], tuple[str, dict[str, bytes]]], items: Sequence[T], log: TextIO | None
) -> dict[str, bytes]:
    """The files that `build` makes of each item."""
    files: dict[str, bytes] = {}
    progress = _Progress(len(items), log)
    for what, made in side_by_side(build, items):
        files.update(made)
        progress.step(what)
    return files


def _cuda_files(
    kernels: Sequence[Kernel], architectures: Sequence[str], cache: Cache, log: TextIO | None
) -> dict[str, bytes]:
    """The text of each kernel, and for each architecture its PTX and its CUBIN."""
    from kaon import nvrtc

    # Where the update's text lies on this machine is nobody's business there, and would change the bytes.
    kernels = [replace(kernel, text=nvrtc.without_lines(kernel.text)) for kernel in kernels]
    compilers = {architecture: nvrtc.Compiler(architecture, cache) for architecture in architectures}

    def build(item: tuple[Kernel, str]) -> tuple[str, dict[str, bytes]]:
        kernel, architecture = item
        compiler = compilers[architecture]
        image = compiler.load(kernel.name, kernel.text) or compiler.compile(kernel.name, kernel.text)
        files = {kernel_file(kernel.name, architecture): image.image}
        if image.kind == "cubin":
            files[f"{kernel.name}.{architecture}.ptx"] = image.ptx.encode()
        return f"{kernel.name} {architecture}", files

    texts = {f"{kernel.name}.cu": kernel.text.encode() for kernel in kernels}
    return texts | _files_of(build, [(kernel, name) for name in architectures for kernel in kernels], log)


def _cpu_files(
    kernels: Sequence[Kernel], target: Any, architecture: str, directory: Path, log: TextIO | None
) -> dict[str, bytes]:
    """All kernels in one shared object."""

    def build(kernel: Kernel) -> tuple[str, dict[str, bytes]]:
        return kernel.name, {f"{kernel.name}.o": bytes(target.compile_text(kernel.text).object)}

    objects = _files_of(build, kernels, log)
    return {library_file(architecture): _link(objects, directory)}


def _link(objects: Mapping[str, bytes], directory: Path) -> bytes:
    """A shared object of the object files; the same bytes for the same objects."""
    linker = next(filter(None, map(shutil.which, ("clang-22", "cc", "gcc", "clang"))), None)
    if linker is None:
        raise PackageError(directory, "expects a C compiler to link packages for processors with, but found none")
    with tempfile.TemporaryDirectory(prefix="kaon-package-") as folder:
        for name, content in objects.items():
            Path(folder, name).write_bytes(content)
        command = [
            linker,
            "-shared",
            "-nostartfiles",
            "-Wl,--build-id=none",
            "-o",
            "kernels.so",
            *sorted(objects),
            "-lm",
        ]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if result.returncode != 0:
            raise PackageError(directory, f"{linker} cannot link the kernels: {result.stderr.strip()}")
        return Path(folder, "kernels.so").read_bytes()


def _half(request: Request, kind: str, directory: Path) -> str:
    """The type of products on a GPU.

    Raises:
        PackageError: it is none, or there is no GPU that it would be for.
    """
    from kaon.optim.devices import check_product_dtype

    if request.product_dtype is None:
        return product_type(None)
    try:
        name = check_product_dtype(request.product_dtype)
    except ValueError as error:
        raise PackageError(directory, str(error)) from None
    if kind == CPU:
        raise PackageError(
            directory,
            f"expects architectures of GPUs for product_dtype {name!r}, but got {', '.join(request.architectures)}, "
            "where products are of float32 (float64 for float64 parameters)",
        )
    return product_type(name)


def _compiled_files(
    text: str, kind: str, architectures: tuple[str, ...], half: str, directory: Path, log: TextIO | None
) -> tuple[Lowered, dict[str, bytes]]:
    """The lowered module `text`, and the files of its kernels."""
    from kaon.extension import extension
    from kaon.target import lower

    if kind == CPU:
        from kaon.cpu_target import CpuTarget

        (level,) = architectures
        features = ",".join(f"+{feature}" for feature in _features(level))
        target = CpuTarget(processor=extension().cpu_target(level, features))
        lowered = lower(text, target)
        return lowered, _cpu_files(lowered.kernels, target, level, directory, log)
    from kaon.cuda_target import CudaTarget

    # One plan for all architectures: rows stay on the chip where the smallest one can hold them.
    targets = [CudaTarget.of_arch(name, half) for name in architectures]
    shared_bytes = min(target.shared_bytes for target in targets)
    lowered = lower(text, replace(targets[0], shared_bytes=shared_bytes))
    return lowered, _cuda_files(lowered.kernels, architectures, open_cache(), log)


def _features(level: str) -> Iterable[str]:
    """What LLVM has to know beside the level's name, from which register tiles are chosen."""
    return ("avx2", "fma") if level == "x86-64-v3" else ("avx2", "fma", *CPU_FEATURES[level])


def _build(
    sketch: KaonOptimizer, optimizer: str | None, name: str, request: Request, directory: Path, log: TextIO | None
) -> Built:
    from kaon import __version__, driver

    if log is None and sys.stderr.isatty():
        log = sys.stderr
    started = time.perf_counter()
    kind, architectures = _target_of(request.architectures, directory)
    if kind == CUDA:
        _check_gpu(architectures, request, directory)
    half = _half(request, kind, directory)
    _check_directory(directory)
    try:
        entries, specs = _matrices(sketch, request, directory)
    except TypeError as error:
        raise PackageError(directory, str(error)) from None
    lowered, files = _compiled_files(driver.emit(entries).text, kind, architectures, half, directory, log)
    plan = json.loads(lowered.plan_json)
    files[PLAN] = (json.dumps(plan, indent=1) + "\n").encode()
    updates = {entry.update.name: entry.update for entry in entries}
    manifest = Manifest(
        version=__version__,
        target=kind,
        architectures=architectures,
        name=name,
        optimizer=optimizer,
        options=dict(request.options or {}),
        updates={key: _update_spec(update) for key, update in sorted(updates.items())},
        matrices=tuple(specs),
        products=product_dtypes(plan),
        kernels=tuple(kernel.name for kernel in lowered.kernels),
        files={key: FileSpec(len(content), hashlib.sha256(content).hexdigest()) for key, content in files.items()},
    )
    files[MANIFEST] = manifest.to_json().encode()
    _write(directory, files)
    size = sum(map(len, files.values()))
    return Built(directory, len(lowered.kernels), len(files), size, time.perf_counter() - started)


def _update_spec(update: Update) -> UpdateSpec:
    return UpdateSpec(update.signature, hashlib.sha256(update.source.encode()).hexdigest())


# ---- the directory


def _check_directory(directory: Path) -> None:
    """Refuse to write where other files are, or where nothing can be written."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryDirectory(dir=directory.parent).cleanup()
    except OSError as error:
        raise PackageError(directory, f"cannot be written: {error}") from None
    if not directory.exists():
        return
    if not directory.is_dir():
        raise PackageError(directory, "expects a directory to write to, but this is a file")
    others = [path.name for path in directory.iterdir()]
    if others and MANIFEST not in others:
        raise PackageError(
            directory, f"expects an empty directory or a package to replace, but found {sorted(others)[0]}"
        )


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write all files beside the directory, then put them in its place: nobody sees half a package."""
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        staging.chmod(0o755)
        if directory.exists():
            old = staging.with_name(staging.name + ".old")
            os.replace(directory, old)
            os.replace(staging, directory)
            shutil.rmtree(old)
        else:
            os.replace(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
