"""The host processor as a target: kernels become object files, by LLVM, and run on a pool of threads."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaon import knobs
from kaon.cache import Cache, make_key
from kaon.extension import build_id, extension
from kaon.stages import StageFiles
from kaon.target import CompiledProgram, Kernel, Lowered, Statistics, compile_missing

if TYPE_CHECKING:
    from kaon import _C

OPTIMIZATION_LEVEL = 3


@functools.cache
def host_target() -> dict[str, Any]:
    """What the host processor can do, as ``_C.host_target()`` found it."""
    return dict(extension().host_target())


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


@dataclass(frozen=True)
class CpuTarget:
    """A processor, by default the host's, and how many threads a step may use there.

    Args:
        threads: default: ``KAON_NUM_THREADS``, else one per available core.
        processor: as ``_C.host_target()`` or ``_C.cpu_target()`` describe it; default: the host's.
    """

    threads: int | None = None
    processor: Mapping[str, Any] | None = None

    name = "cpu"
    schedule_pipeline = "kaon-schedule-pipeline"

    @property
    def features(self) -> Mapping[str, Any]:
        """The description that code is generated for."""
        return host_target() if self.processor is None else self.processor

    def key(self) -> str:
        """The processor; threads change no code."""
        return json.dumps(dict(self.features), sort_keys=True)

    def state_on(self, module: _C.Module) -> None:
        """Record the register tile and cache blocks."""
        module.set_cpu_target(self.features)

    def finish_kernel(self, kernel: Kernel, files: StageFiles) -> Kernel:
        """LLVM takes the IR as it is."""
        return kernel

    def support_kernels(self, plan_json: str, files: StageFiles) -> tuple[Kernel, ...]:
        """None: the runtime checks gradients itself."""
        return ()

    def load(
        self, text: str, lowered: Lowered, cache: Cache, files: StageFiles, statistics: Statistics
    ) -> CompiledProgram:
        """A program on the pool of threads of this process."""
        library = self._library(lowered, cache, files, statistics)
        plan = extension().StepPlan.from_json(lowered.plan_json)
        threads = self.threads or knobs.runtime.num_threads or knobs.available_cores()
        executor = extension().Executor(plan, library, threads)
        names = [kernel.name for kernel in lowered.kernels]
        target = f"cpu ({self.features['cpu']}), {threads} thread{'s' if threads != 1 else ''}"
        return CompiledProgram(plan, executor, statistics, text, names, target)

    def kernel_key(self, text: str) -> str:
        """The cache key of a kernel: its location-free text, the compiler, the processor and the options."""
        return make_key("kernel", build_id(), self.key(), str(OPTIMIZATION_LEVEL), text)

    def _library(self, lowered: Lowered, cache: Cache, files: StageFiles, statistics: Statistics) -> _C.KernelLibrary:
        """All kernels of ``lowered``, loaded."""
        library = extension().KernelLibrary()
        dumped = files.wants("llvm") or files.wants("assembly")
        use_cache = not (knobs.compilation.always_compile or dumped)

        def load(kernel: Kernel) -> bool:
            binary = self._load_kernel(kernel, cache) if use_cache else None
            if binary is None:
                return False
            try:
                library.add(binary.name, binary.object_file)
                return True
            except extension().CompileError as error:
                cache.reject(self.kernel_key(kernel.text), str(error))
                return False

        compile_missing(
            lowered.kernels,
            load,
            lambda kernel: self._compile_kernel(kernel, cache, files),
            lambda binary: library.add(binary.name, binary.object_file),
            statistics,
        )
        return library

    def _load_kernel(self, kernel: Kernel, cache: Cache) -> KernelBinary | None:
        """The binary of ``kernel`` that the cache holds."""
        key = self.kernel_key(kernel.text)
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

    def _compile_kernel(self, kernel: Kernel, cache: Cache, files: StageFiles) -> KernelBinary:
        """Compile ``kernel``, dump its LLVM IR and assembly if asked to, and store it in the cache."""
        if files.wants("llvm"):
            compiled = self.compile_text(kernel.text, "llvm")
            files.write("llvm", compiled.llvm_ir or "", kernel.name)
        compiled = self.compile_text(kernel.text, "assembly" if files.wants("assembly") else None)
        if compiled.assembly is not None:
            files.write("assembly", compiled.assembly, kernel.name)
        binary = KernelBinary(compiled.name, compiled.object)
        cache.store(self.kernel_key(kernel.text), binary.encode())
        return binary

    def compile_text(self, text: str, dump: str | None = None) -> _C.CompiledKernel:
        """Compile the text of a kernel, past the cache; ``dump`` "llvm" or "assembly" gives that text as well."""
        compiled: _C.CompiledKernel = extension().compile_kernel(text, self.features, OPTIMIZATION_LEVEL, dump)
        return compiled
