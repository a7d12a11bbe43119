"""From a list of matrices and their updates to a compiled program that steps them.

The way: specialise each distinct update, print one module, lower it stage by stage with the pipelines of ``kaon-opt``,
compile each kernel to an object file, build the step plan, and load both into an executor. Three things are reused:

* a kernel's object file, under the text of the kernel: shapes are erased, so most models share most kernels;
* a whole lowered program (its plan and the names of its kernels), under the text of the module: a warm start parses
  nothing and runs no pass;
* within a process, the specialised text of an update for one shape.

``KAON_DUMP=1`` writes the stages below to ``KAON_DUMP_DIR``, one directory per program; ``KAON_OVERRIDE_DIR`` replaces
the output of a stage by an edited file of the same name. See :data:`STAGES`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kaon import knobs
from kaon.cache import Cache, make_key, open_cache
from kaon.compiler.errors import KaonError

if TYPE_CHECKING:
    import numpy.typing as npt

    from kaon import _C
    from kaon.compiler.update import SpecializedUpdate, Update
    from kaon.interpreter import Interpreter, Precision

SIMPLIFY_PIPELINE = "kaon-simplify-pipeline"
SCHEDULE_PIPELINE = "kaon-schedule-pipeline"

STAGES = {
    "dsl": "00-dsl.py",
    "kaon": "10-kaon.mlir",
    "simplified": "20-simplified.mlir",
    "scheduled": "30-scheduled.mlir",
    "kernels": "40-{kernel}.mlir",
    "llvm": "43-{kernel}.ll",
    "assembly": "45-{kernel}.s",
    "plan": "50-plan.json",
}
"""Stage name, as in ``KAON_DUMP=kaon,plan``, to the file it is written to. Those of :data:`READ_ONLY_STAGES` are for
reading; the others can be edited and fed back."""

READ_ONLY_STAGES = frozenset({"dsl", "llvm", "assembly"})

OPTIMIZATION_LEVEL = 3


class DriverError(KaonError, RuntimeError):
    """Compilation cannot start: the extension is missing, or an edited stage cannot be read."""


class OverrideWarning(RuntimeWarning):
    """Files of the override directory replaced nothing."""


def runtime_extension() -> Any:
    """``kaon._C``, with or without the compiler; raises :class:`DriverError` with the remedy where it is missing."""
    try:
        from kaon import _C
    except ImportError as error:
        raise DriverError(
            f"the compiled extension kaon._C cannot be loaded ({error}); "
            "build it or install the package, and see `python -m kaon doctor`"
        ) from error
    return _C


def extension() -> Any:
    """``kaon._C`` with the compiler; raises :class:`DriverError` with the remedy where it has none or is missing."""
    module = runtime_extension()
    if not module.has_compiler:
        raise DriverError(
            "this build of kaon has no compiler (KAON_COMPILER=OFF), it only runs compiled packages: make one with "
            "`python -m kaon compile ... -o DIR` where the compiler is, and use kaon.load(DIR) here"
        )
    return module


@functools.cache
def build_id() -> str:
    """Identifies the compiler that produces code: the extension's bytes and the LLVM libraries it runs on."""
    module = extension()
    digest = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    return f"{digest}-llvm-{module.llvm_version()}-{_loaded_libraries()}"


def _loaded_libraries() -> str:
    """Size and time of each LLVM and MLIR library in this process: a rebuilt one of the same version is another one."""
    found = set()
    with suppress(OSError):  # no /proc: the version has to do
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            path = line.split(maxsplit=5)[-1]
            if re.match(r"lib(LLVM|MLIR)\b", os.path.basename(path)):
                status = os.stat(path)
                found.add(f"{os.path.basename(path)}:{status.st_size}:{status.st_mtime_ns}")
    return ",".join(sorted(found))


@functools.cache
def host_target() -> dict[str, Any]:
    """What the host processor can do, as ``_C.host_target()`` found it."""
    return dict(extension().host_target())


@dataclass(frozen=True)
class MatrixEntry:
    """One matrix of a model and how it is updated."""

    update: Update
    rows: int
    cols: int
    param_dtype: str = "f32"
    """Storage: ``f64``, ``f32``, ``bf16`` or ``f16``."""
    grad_dtype: str = "f32"
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """The parameter's name in the model, for listings and errors; unique, or empty to be numbered."""
    scalar_set: int = 0
    """Index into the scalar values given at each step."""
    phase: int = 0
    """Offset of this matrix's refresh steps, below the period."""


@dataclass
class Statistics:
    """What compiling took. Seconds are wall clock."""

    kernels_compiled: int = 0
    kernels_loaded: int = 0
    """Taken from the cache instead."""
    programs_lowered: int = 0
    programs_loaded: int = 0
    """Taken from the cache instead."""
    emit_seconds: float = 0.0
    """Python functions to module text."""
    lower_seconds: float = 0.0
    """Module text to plan and kernel texts, or loading them."""
    compile_seconds: float = 0.0
    """Kernel texts to loaded machine code."""

    def add(self, other: Statistics) -> None:
        """Add ``other`` to this."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


_totals = Statistics()
_totals_lock = threading.Lock()


def totals() -> Statistics:
    """The sum over every program this process compiled so far."""
    with _totals_lock:
        result = Statistics()
        result.add(_totals)
        return result


# ---- front end


def _constexpr_key(value: Any) -> Any:
    """Equal for values that compile to the same code; 1, 1.0 and True do not."""
    if isinstance(value, (list, tuple)):
        return tuple(_constexpr_key(item) for item in value)
    return type(value).__name__, value


@dataclass(frozen=True)
class _SpecializationKey:
    update: Update
    rows: int
    cols: int
    param_dtype: str
    grad_dtype: str
    constexprs: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(entry: MatrixEntry) -> _SpecializationKey:
        bound = entry.update.bind_constexprs(entry.constexprs)
        constexprs = tuple((name, _constexpr_key(value)) for name, value in bound.items())
        return _SpecializationKey(entry.update, entry.rows, entry.cols, entry.param_dtype, entry.grad_dtype, constexprs)


@dataclass(frozen=True)
class Emitted:
    """The front end's output for a list of matrices."""

    text: str
    """The module: one function per distinct specialisation, one program."""
    updates: tuple[Update, ...]
    """The distinct updates, in order of first use."""
    symbols: tuple[str, ...]
    """The function of each matrix."""


def emit(entries: Sequence[MatrixEntry]) -> Emitted:
    """Specialise every distinct (update, shape, dtypes, constexprs) once and print the module.

    Raises:
        kaon.errors.LanguageError: an update is not valid for its shape, with the place in its source.
    """
    from kaon.compiler import emit as emitter

    specialized: dict[_SpecializationKey, SpecializedUpdate] = {}
    taken: set[str] = set()
    keys = [_SpecializationKey.of(entry) for entry in entries]
    for entry, key in zip(entries, keys, strict=True):
        if key in specialized:
            continue
        base = f"{entry.update.name}_{entry.rows}x{entry.cols}_{entry.param_dtype}"
        if entry.grad_dtype != entry.param_dtype:
            base += f"_{entry.grad_dtype}"
        symbol, suffix = base, 1
        while symbol in taken:
            symbol, suffix = f"{base}_{suffix}", suffix + 1
        taken.add(symbol)
        specialized[key] = entry.update.specialize(
            entry.rows,
            entry.cols,
            param_dtype=entry.param_dtype,
            grad_dtype=entry.grad_dtype,
            constexprs=dict(entry.constexprs),
            symbol=symbol,
        )
    symbols = tuple(specialized[key].symbol for key in keys)
    parameters = [
        emitter.ParameterEntry(symbol, entry.name or f"matrix{index}", entry.scalar_set, entry.phase)
        for index, (symbol, entry) in enumerate(zip(symbols, entries, strict=True))
    ]
    text = emitter.program_text(parameters, list(specialized.values()))
    return Emitted(text, tuple(dict.fromkeys(entry.update for entry in entries)), symbols)


# ---- lowering


_LOCATION_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"| loc\(|[()]')


def without_locations(text: str) -> str:
    """Module text as the front end prints it, less its source locations: what the program is, wherever it is written.

    A line added above an update changes every location and nothing else, so neither the cache nor the name of the
    program's directory may depend on them.
    """
    kept: list[str] = []
    start = depth = 0
    for token in _LOCATION_TOKENS.finditer(text):
        if depth == 0:
            if token[0] == " loc(":
                kept.append(text[start : token.start()])
                depth = 1
        elif token[0] == ")":
            depth -= 1
            start = token.end()
        elif token[0] in ("(", " loc("):
            depth += 1
    return "".join([*kept, text[start:]])


class StageFiles:
    """Dumps, overrides and prints the stages of one program.

    Raises:
        DriverError: ``KAON_OVERRIDE_DIR`` names no directory.
    """

    _used: ClassVar[set[Path]] = set()
    """The files that replaced a stage of any program of this process."""

    def __init__(self, text: str):
        self._wanted = knobs.debug.dump
        self._printed = knobs.debug.print_ir
        self._overrides = knobs.compilation.override_directory
        digest = hashlib.sha256(without_locations(text).encode()).hexdigest()
        self._directory = knobs.debug.dump_directory / f"program-{digest[:12]}"
        if self._overrides is not None and not self._overrides.is_dir():
            raise DriverError(f"KAON_OVERRIDE_DIR expects an existing directory, but got '{self._overrides}'")

    @property
    def active(self) -> bool:
        """Whether any stage has to be seen, so that a lowered program from the cache does not do."""
        return bool(self._wanted or self._printed or self._overrides)

    def wants(self, stage: str) -> bool:
        """Whether ``stage`` is dumped or printed."""
        return bool({"all", stage} & (self._wanted | self._printed))

    def write(self, stage: str, text: str, kernel: str = "") -> None:
        """Dump and print the text of ``stage`` if asked to."""
        name = STAGES[stage].format(kernel=kernel)
        if {"all", stage} & self._wanted:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / name).write_text(text, encoding="utf-8")
        if {"all", stage} & self._printed:
            print(f"// ---- {name}\n{text.rstrip()}", file=sys.stderr)

    def replacement(self, stage: str, kernel: str = "") -> tuple[str, str] | None:
        """Text and file name of the edited ``stage``, where the override directory has one for this program or any."""
        if self._overrides is None:
            return None
        name = STAGES[stage].format(kernel=kernel)
        for path in (self._overrides / self._directory.name / name, self._overrides / name):
            if path.is_file():
                self._used.add(path)
                print(f"kaon: {path} replaces {name} of {self._directory.name}", file=sys.stderr)
                return path.read_text(encoding="utf-8"), str(path)
        return None

    def warn_unused(self) -> None:
        """Warn about files of the override directory that replaced no stage of any program so far."""
        if self._overrides is None:
            return
        files = {path for path in self._overrides.rglob("*") if path.is_file()}
        unused = sorted(str(path.relative_to(self._overrides)) for path in files - self._used)
        if unused:
            warnings.warn(
                f"in KAON_OVERRIDE_DIR '{self._overrides}' these files replaced nothing so far: {', '.join(unused)}",
                OverrideWarning,
                stacklevel=2,
            )


@dataclass(frozen=True)
class Kernel:
    """A kernel of a lowered program."""

    name: str
    text: str


@dataclass(frozen=True)
class Lowered:
    """A program after all passes: what to run, and the kernels it needs."""

    plan_json: str
    kernels: tuple[Kernel, ...]
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stage name to module text; empty when the program came from the cache."""


def lower(text: str, files: StageFiles | None = None) -> Lowered:
    """Run every pass on the module ``text`` and build its plan. Compiles no kernel.

    Raises:
        kaon._C.CompileError: the module is not valid, or a pass failed; carries the diagnostics.
    """
    compiler = extension()
    files = files or StageFiles(text)

    def stage(name: str, module: _C.Module) -> _C.Module:
        """Dump ``module``, and continue with the edited file where there is one."""
        if files.wants(name):
            files.write(name, module.print(locations=True))
        edited = files.replacement(name)
        if edited is not None:
            module = compiler.parse(edited[0], edited[1])
        stages[name] = str(module)
        return module

    stages: dict[str, str] = {}
    module = compiler.parse(text)
    module.set_cpu_target(host_target())  # before the dump, so that kaon-opt makes the next stage of it
    module = stage("kaon", module)
    if "kaon.cpu" not in stages["kaon"]:  # an edited file that does without
        module.set_cpu_target(host_target())
    module.run_pipeline(SIMPLIFY_PIPELINE)
    module = stage("simplified", module)
    module.run_pipeline(SCHEDULE_PIPELINE)
    module = stage("scheduled", module)
    kernels = []
    for source in module.kernels():
        files.write("kernels", source.text, source.name)
        edited = files.replacement("kernels", source.name)
        if edited is not None:
            compiler.parse(*edited)  # a mistake is reported with the name of the file
        kernels.append(Kernel(source.name, edited[0] if edited else source.text))
    plan_json = compiler.build_plan(module).to_json()
    files.write("plan", plan_json)
    edited = files.replacement("plan")
    if edited is not None:
        plan_json, name = edited
        try:
            compiler.StepPlan.from_json(plan_json)
        except ValueError as error:
            raise DriverError(f"{name}: {error}") from None
    files.warn_unused()
    return Lowered(plan_json, tuple(kernels), stages)


def _lower_cached(text: str, cache: Cache, statistics: Statistics) -> Lowered:
    """:func:`lower`, unless the cache holds the result for this program, compiler and processor."""
    files = StageFiles(text)
    if files.active:
        statistics.programs_lowered += 1
        return lower(text, files)
    key = make_key("program", build_id(), _target_text(), SIMPLIFY_PIPELINE, SCHEDULE_PIPELINE, without_locations(text))
    payload = None if knobs.compilation.always_compile else cache.load(key)
    if payload is not None:
        try:
            stored = json.loads(payload)
            lowered = Lowered(stored["plan"], tuple(Kernel(*kernel) for kernel in stored["kernels"]))
        except (ValueError, KeyError, TypeError) as error:
            cache.reject(key, f"not a lowered program ({error})")
        else:
            statistics.programs_loaded += 1
            return lowered
    lowered = lower(text, files)
    statistics.programs_lowered += 1
    stored = {"plan": lowered.plan_json, "kernels": [[kernel.name, kernel.text] for kernel in lowered.kernels]}
    cache.store(key, json.dumps(stored).encode())
    return lowered


def _target_text() -> str:
    return json.dumps(host_target(), sort_keys=True)


# ---- kernels


@dataclass(frozen=True)
class KernelBinary:
    """A compiled kernel: what the cache holds for it."""

    name: str
    object_file: bytes

    def encode(self) -> bytes:
        """As one byte string: length of the name in JSON, the name, the object file."""
        name = json.dumps(self.name).encode()
        return len(name).to_bytes(4, "little") + name + self.object_file

    @staticmethod
    def decode(data: bytes) -> KernelBinary:
        """The inverse of :meth:`encode`; raises ValueError for anything else."""
        end = 4 + int.from_bytes(data[:4], "little")
        name = json.loads(data[4:end])
        if not (isinstance(name, str) and data[end:]):
            raise ValueError("not a compiled kernel")
        return KernelBinary(name, data[end:])


def kernel_key(text: str) -> str:
    """The cache key of a kernel: its location-free text, the compiler, the processor and the options."""
    return make_key("kernel", build_id(), _target_text(), str(OPTIMIZATION_LEVEL), text)


def _load_kernel(kernel: Kernel, cache: Cache) -> KernelBinary | None:
    """The binary of ``kernel`` that the cache holds."""
    key = kernel_key(kernel.text)
    payload = cache.load(key)
    if payload is None:
        return None
    try:
        binary = KernelBinary.decode(payload)
        if binary.name != kernel.name:
            raise ValueError(f"holds kernel {binary.name}, not {kernel.name}")
        return binary
    except ValueError as error:
        cache.reject(key, str(error))
        return None


def _compile_kernel(kernel: Kernel, cache: Cache, files: StageFiles) -> KernelBinary:
    """Compile ``kernel``, dump its LLVM IR and assembly if asked to, and store it in the cache."""
    if files.wants("llvm"):
        compiled = extension().compile_kernel(kernel.text, host_target(), OPTIMIZATION_LEVEL, "llvm")
        files.write("llvm", compiled.llvm_ir, kernel.name)
    dump = "assembly" if files.wants("assembly") else None
    compiled = extension().compile_kernel(kernel.text, host_target(), OPTIMIZATION_LEVEL, dump)
    if compiled.assembly is not None:
        files.write("assembly", compiled.assembly, kernel.name)
    binary = KernelBinary(compiled.name, compiled.object)
    cache.store(kernel_key(kernel.text), binary.encode())
    return binary


def _load_kernels(kernels: Sequence[Kernel], cache: Cache, files: StageFiles, statistics: Statistics) -> Any:
    """A ``KernelLibrary`` of all ``kernels``. Those the cache lacks are compiled side by side: LLVM runs without the
    interpreter lock."""
    library = extension().KernelLibrary()

    def add(binary: KernelBinary) -> None:
        library.add(binary.name, binary.object_file)

    missing = []
    use_cache = not (knobs.compilation.always_compile or files.wants("llvm") or files.wants("assembly"))
    for kernel in kernels:
        binary = _load_kernel(kernel, cache) if use_cache else None
        if binary is not None:
            try:
                add(binary)
                statistics.kernels_loaded += 1
                continue
            except extension().CompileError as error:
                cache.reject(kernel_key(kernel.text), str(error))
        missing.append(kernel)
    if missing:
        workers = min(len(missing), knobs.compilation.threads or knobs.available_cores())
        with ThreadPoolExecutor(workers, thread_name_prefix="kaon-compile") as pool:
            for binary in pool.map(lambda kernel: _compile_kernel(kernel, cache, files), missing):
                add(binary)
                statistics.kernels_compiled += 1
    return library


# ---- programs


class CompiledProgram:
    """Machine code and plan for a list of matrices, ready to step.

    Attributes:
        plan: the ``_C.StepPlan``; ``str(plan)`` is a listing for people.
        executor: the ``_C.Executor``, which owns the workspace.
        statistics: what compiling it took.
        module_text: the module the front end made.
        kernel_names: the kernels it uses.
    """

    def __init__(self, plan: Any, executor: Any, statistics: Statistics, module_text: str, kernel_names: list[str]):
        self.plan = plan
        self.executor = executor
        self.statistics = statistics
        self.module_text = module_text
        self.kernel_names = kernel_names

    def step(
        self, step: int, parameters: Sequence[int], scalars: Sequence[Sequence[float]], check_finite: bool = True
    ) -> int:
        """Update every matrix in place.

        Args:
            step: 1 at the first step.
            parameters: flat, per matrix: address and row stride of the parameter, of the gradient (address 0: leave
                this matrix alone), and of each state. Strides count elements; columns are adjacent.
            scalars: per scalar set, the values of the update's scalars in order.
            check_finite: whether a non-finite gradient stops the step before anything changes.

        Returns:
            How many matrices have a non-finite gradient; if not 0, nothing was changed.
        """
        return int(self.executor.step(step, parameters, scalars, check_finite))


def compile_program(entries: Sequence[MatrixEntry], threads: int | None = None) -> CompiledProgram:
    """Compile the updates of ``entries`` into one program.

    Args:
        entries: the matrices, in the order in which :meth:`CompiledProgram.step` takes them.
        threads: threads of a step (default: ``KAON_NUM_THREADS``, else one per available core).

    Raises:
        kaon.errors.LanguageError: an update is not valid.
        kaon._C.CompileError: a bug in the compiler, or an edited stage that is not valid.
        DriverError: the extension is missing, ``KAON_OVERRIDE_DIR`` names no directory, or an edited plan is not valid.
    """
    statistics = Statistics()
    started = time.perf_counter()
    emitted = emit(entries)
    statistics.emit_seconds = time.perf_counter() - started
    files = StageFiles(emitted.text)
    if files.wants("dsl"):
        files.write("dsl", "\n\n".join(update.source for update in emitted.updates))
    return compile_text(emitted.text, threads, statistics)


def compile_text(text: str, threads: int | None = None, statistics: Statistics | None = None) -> CompiledProgram:
    """Compile a module that is already dialect text; see :func:`compile_program`."""
    compiler = extension()
    cache = open_cache()
    statistics = statistics or Statistics()
    started = time.perf_counter()
    lowered = _lower_cached(text, cache, statistics)
    statistics.lower_seconds = time.perf_counter() - started
    started = time.perf_counter()
    library = _load_kernels(lowered.kernels, cache, StageFiles(text), statistics)
    plan = compiler.StepPlan.from_json(lowered.plan_json)
    executor = compiler.Executor(plan, library, threads or knobs.runtime.num_threads or knobs.available_cores())
    statistics.compile_seconds = time.perf_counter() - started
    with _totals_lock:
        _totals.add(statistics)
    return CompiledProgram(plan, executor, statistics, text, [kernel.name for kernel in lowered.kernels])


class InterpretedProgram:
    """The same program run by the reference interpreter: slow, and right by definition."""

    def __init__(self, interpreter: Interpreter, module_text: str):
        self.interpreter = interpreter
        self.module_text = module_text
        self.statistics = Statistics()
        self._parameters = interpreter.parameters()
        self._arguments = [interpreter.arguments(parameter.symbols[0]) for parameter in self._parameters]

    def step(
        self, step: int, parameters: Sequence[int], scalars: Sequence[Sequence[float]], check_finite: bool = True
    ) -> int:
        """As :meth:`CompiledProgram.step`, on the same addresses."""
        import numpy as np

        matrices = self._matrices(parameters)
        if check_finite:
            poisoned = sum(
                not bool(np.isfinite(values[1].read()).all()) for values in matrices if values[1].address != 0
            )
            if poisoned:
                return poisoned
        for symbol, members in self.interpreter.schedule(step):
            for member in members:
                values = matrices[member]
                if values[1].address == 0:
                    continue
                parameter = self._parameters[member]
                tensors = [value.read() for value in values]
                results = self.interpreter.call(
                    symbol, *tensors, *scalars[parameter.scalar_set], step, phase=parameter.phase
                )
                for target, result in zip([values[0], *values[2:]], results, strict=True):
                    target.write(result)
        return 0

    def _matrices(self, parameters: Sequence[int]) -> list[list[_Memory]]:
        """Per matrix: parameter, gradient and states."""
        position = 0
        matrices = []
        for arguments in self._arguments:
            tensors = [argument.type for argument in arguments if argument.role in ("param", "grad", "state")]
            addresses = parameters[position : position + 2 * len(tensors)]
            position += 2 * len(tensors)
            matrices.append(
                [
                    _Memory(address, stride, shape[0], shape[1], element)
                    for (_, shape, element), address, stride in zip(
                        tensors, addresses[0::2], addresses[1::2], strict=True
                    )
                ]
            )
        if position != len(parameters):
            raise ValueError(f"expects {position} addresses and strides, but got {len(parameters)}")
        return matrices


_STORAGE = {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": "u2"}


@dataclass(frozen=True)
class _Memory:
    """A matrix somewhere in memory: rows ``row_stride`` elements apart, columns adjacent."""

    address: int
    row_stride: int
    rows: int
    cols: int
    element: str

    def _view(self) -> npt.NDArray[Any]:
        import numpy as np

        dtype = np.dtype(_STORAGE[self.element])
        if self.rows == 0 or self.cols == 0:
            return np.empty((self.rows, self.cols), dtype)
        length = ((self.rows - 1) * self.row_stride + self.cols) * dtype.itemsize
        memory = memoryview((ctypes.c_ubyte * length).from_address(self.address))
        strides = (self.row_stride * dtype.itemsize, dtype.itemsize)
        return np.ndarray((self.rows, self.cols), dtype, memory, 0, strides)

    def read(self) -> npt.NDArray[Any]:
        from kaon.interpreter import widen_bf16

        view = self._view()
        return widen_bf16(view) if self.element == "bf16" else view.astype("f8")

    def write(self, values: npt.NDArray[Any]) -> None:
        from kaon.interpreter import narrow_to_bf16

        self._view()[...] = narrow_to_bf16(values) if self.element == "bf16" else values


def interpret_program(entries: Sequence[MatrixEntry], precision: Precision = "float64") -> InterpretedProgram:
    """The program of ``entries`` for the reference interpreter; what ``KAON_INTERPRET=1`` runs."""
    return interpret_text(emit(entries).text, precision)


def interpret_text(text: str, precision: Precision = "float64") -> InterpretedProgram:
    """A module that is already dialect text, for the reference interpreter."""
    from kaon.interpreter import Interpreter

    return InterpretedProgram(Interpreter(extension().parse(text).to_python(), precision), text)
