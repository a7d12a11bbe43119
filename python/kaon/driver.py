"""From a list of matrices and their updates to a compiled program that steps them.

The way: specialise each distinct update, print one module, lower it stage by stage with the pipelines of ``kaon-opt``,
compile each kernel for the target, build the step plan, and load both into an executor. Three things are reused:

* a kernel's machine code, under the text of the kernel: shapes are erased, so most models share most kernels;
* a whole lowered program (its plan and the texts of its kernels), under the text of the module: a warm start parses
  nothing and runs no pass;
* within a process, the specialised text of an update for one shape.

:mod:`kaon.target` has the part that targets share, :mod:`kaon.cpu_target` and :mod:`kaon.cuda_target` the rest.
``KAON_DUMP=1`` writes the stages on the way, and ``KAON_OVERRIDE_DIR`` replaces them: see :data:`STAGES`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kaon.cache import open_cache
from kaon.cpu_target import CpuTarget, host_target
from kaon.extension import DriverError, build_id, extension, runtime_extension
from kaon.interpreted import InterpretedProgram
from kaon.stages import STAGES, OverrideWarning, StageFiles
from kaon.target import CompiledProgram, Kernel, Lowered, Statistics, Target, lower, lower_cached

if TYPE_CHECKING:
    from kaon.compiler.update import SpecializedUpdate, Update
    from kaon.interpreter import Precision

__all__ = [
    "STAGES",
    "CompiledProgram",
    "CpuTarget",
    "DriverError",
    "Emitted",
    "InterpretedProgram",
    "Kernel",
    "Lowered",
    "MatrixEntry",
    "OverrideWarning",
    "StageFiles",
    "Statistics",
    "Target",
    "build_id",
    "compile_program",
    "compile_text",
    "emit",
    "extension",
    "host_target",
    "interpret_program",
    "interpret_text",
    "lower",
    "runtime_extension",
    "totals",
]


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


# ---- programs


def compile_program(
    entries: Sequence[MatrixEntry], threads: int | None = None, target: Target | None = None
) -> CompiledProgram:
    """Compile the updates of ``entries`` into one program.

    Args:
        entries: the matrices, in the order in which :meth:`CompiledProgram.step` takes them.
        threads: threads of a step on the host's processor (default: ``KAON_NUM_THREADS``, else one per available core).
        target: what to compile for, default: the host's processor.

    Raises:
        kaon.errors.LanguageError: an update is not valid.
        kaon._C.CompileError: a bug in the compiler, or an edited stage that is not valid.
        DriverError: the extension is missing, ``KAON_OVERRIDE_DIR`` names no directory, or an edited plan is not valid.
    """
    target = CpuTarget(threads) if target is None else target
    statistics = Statistics()
    started = time.perf_counter()
    emitted = emit(entries)
    statistics.emit_seconds = time.perf_counter() - started
    files = StageFiles(emitted.text, target.name)
    if files.wants("dsl"):
        files.write("dsl", "\n\n".join(update.source for update in emitted.updates))
    return compile_text(emitted.text, target=target, statistics=statistics)


def compile_text(
    text: str, threads: int | None = None, target: Target | None = None, statistics: Statistics | None = None
) -> CompiledProgram:
    """Compile a module that is already dialect text; see :func:`compile_program`."""
    target = CpuTarget(threads) if target is None else target
    cache = open_cache()
    statistics = statistics or Statistics()
    started = time.perf_counter()
    lowered = lower_cached(text, target, cache, statistics)
    statistics.lower_seconds = time.perf_counter() - started
    started = time.perf_counter()
    program = target.load(text, lowered, cache, StageFiles(text, target.name), statistics)
    statistics.compile_seconds = time.perf_counter() - started
    with _totals_lock:
        _totals.add(statistics)
    return program


def interpret_program(entries: Sequence[MatrixEntry], precision: Precision = "float64") -> InterpretedProgram:
    """The program of ``entries`` for the reference interpreter; what ``KAON_INTERPRET=1`` runs."""
    return interpret_text(emit(entries).text, precision)


def interpret_text(text: str, precision: Precision = "float64") -> InterpretedProgram:
    """A module that is already dialect text, for the reference interpreter."""
    from kaon.interpreter import Interpreter

    return InterpretedProgram(Interpreter(extension().parse(text).to_python(), precision), text)
