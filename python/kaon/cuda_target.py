"""NVIDIA's GPUs as a target: kernels become CUDA C++, and NVRTC makes machine code of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kaon import knobs, nvrtc
from kaon.cache import Cache
from kaon.cuda import CudaProgram, Placement, device_info, open_driver
from kaon.extension import extension
from kaon.stages import StageFiles
from kaon.target import CompiledProgram, Kernel, Lowered, Statistics, compile_missing

if TYPE_CHECKING:
    from kaon import _C

SHARED_BYTES = {"sm_80": 166912, "sm_90a": 232448, "sm_100a": 232448}
"""Shared memory that one block may have, by architecture; what a device has is asked from its driver."""

ARCHITECTURES = tuple(SHARED_BYTES)
"""What every kernel is tested to compile for: A100, H100 and H200, B200."""

_FINITE_CHECK = """#include "FiniteCheck.cuh"
using namespace kaon::device;
KAON_KERNEL(256, 2) {name}(const Matrix<1> *matrices, const Block *blocks, u32 *flags) {{
  runFiniteCheck<{type}>(matrices, blocks, flags);
}}
"""
_CUDA_TYPES = {"f64": "double", "f32": "float", "bf16": "bf16", "f16": "f16"}


def _main_loop(arch: str) -> str:
    """The main loop that was asked for, which `arch` must have."""
    wanted = knobs.cuda.main_loop
    if wanted == "wgmma" and arch != "sm_90a":
        raise knobs.KnobError(f"KAON_MAIN_LOOP=wgmma expects the architecture sm_90a, but got {arch}")
    return wanted


@dataclass(frozen=True)
class CudaTarget:
    """An architecture, and the device on which programs for it run.

    Args:
        arch: what NVRTC generates code for.
        shared_bytes: shared memory that one block may have; decides how long a row may be to stay on the chip.
        half: type of the operands of products, ``bf16`` or ``f16``.
        main_loop: what multiplies in products, ``mma`` or, on sm_90a only, ``wgmma``.
        placement: where programs run; compiling alone needs no device.
    """

    arch: str
    shared_bytes: int
    half: str = "bf16"
    placement: Placement = field(default_factory=Placement)
    main_loop: str = "mma"

    name = "cuda"
    schedule_pipeline = "kaon-cuda-schedule-pipeline"

    @staticmethod
    def of_arch(arch: str, half: str = "bf16") -> CudaTarget:
        """The target for an architecture without a device at hand; the least shared memory where it is not known.

        Raises:
            KnobError: ``KAON_MAIN_LOOP`` asks for what the architecture does not have; so does :meth:`of_device`.
        """
        shared_bytes = SHARED_BYTES.get(arch, min(SHARED_BYTES.values()))
        return CudaTarget(arch, shared_bytes, half, main_loop=_main_loop(arch))

    @staticmethod
    def of_device(placement: Placement, half: str = "bf16") -> CudaTarget:
        """The target for a device of the driver in use: PTX, if NVRTC does not know its architecture.

        Raises:
            CudaUnavailable: there is no driver, or no such device.
            NvrtcError: there is no compiler.
        """
        device = device_info(open_driver(), placement.device)
        known = nvrtc.load().supports(device["arch"])
        arch = device["arch"] if known else nvrtc.FALLBACK_ARCHITECTURE
        return CudaTarget(arch, device["shared_bytes"], half, placement, _main_loop(arch))

    def key(self) -> str:
        """What the schedule depends on; the architecture only changes machine code."""
        return json.dumps(self._attribute())

    def _attribute(self) -> dict[str, str | int]:
        return {"half": self.half, "shared_bytes": self.shared_bytes, "main_loop": self.main_loop}

    def state_on(self, module: _C.Module) -> None:
        """Record what the schedule depends on."""
        module.set_cuda_target(self._attribute())

    def finish_kernel(self, kernel: Kernel, files: StageFiles) -> Kernel:
        """The kernel as CUDA C++."""
        return _shown(Kernel(kernel.name, extension().emit_cuda(kernel.text)), files)

    def support_kernels(self, plan_json: str, files: StageFiles) -> tuple[Kernel, ...]:
        """The checks of gradients, one for each type of them."""
        types = sorted({parameter["gradType"] for parameter in json.loads(plan_json)["parameters"]})
        names = {f"check_finite_{type_}": _CUDA_TYPES[type_] for type_ in types}
        return tuple(
            _shown(Kernel(name, _FINITE_CHECK.format(name=name, type=type_)), files) for name, type_ in names.items()
        )

    def load(
        self, text: str, lowered: Lowered, cache: Cache, files: StageFiles, statistics: Statistics
    ) -> CompiledProgram:
        """A program on the device."""
        images = self.compile(lowered.kernels, cache, files, statistics)
        plan = extension().StepPlan.from_json(lowered.plan_json)
        code = {name: image.image for name, image in images.items()}
        made_for = self.arch if self.main_loop == "mma" else f"{self.arch}, products by {self.main_loop}"
        return CudaProgram(plan, code, self.placement, code=made_for, module_text=text, statistics=statistics)

    def compile(
        self, kernels: Iterable[Kernel], cache: Cache, files: StageFiles, statistics: Statistics
    ) -> dict[str, nvrtc.Image]:
        """The images of ``kernels`` by name, from the cache or from NVRTC.

        Raises:
            NvrtcError: there is no compiler.
            kaon._C.CompileError: NVRTC refused a text; carries its log.
        """
        compiler = nvrtc.Compiler(self.arch, cache)
        images: dict[str, nvrtc.Image] = {}

        def keep(image: nvrtc.Image) -> None:
            images[image.name] = image

        def load(kernel: Kernel) -> bool:
            image = None if knobs.compilation.always_compile else compiler.load(kernel.name, kernel.text)
            if image is not None:
                keep(image)
            return image is not None

        def build(kernel: Kernel) -> nvrtc.Image:
            return compiler.compile(kernel.name, kernel.text, kernel.file or None)

        ordered = tuple(kernels)
        compile_missing(ordered, load, build, keep, statistics)
        for kernel in ordered:
            files.write("ptx", images[kernel.name].ptx, kernel.name)
            files.write("log", images[kernel.name].log, kernel.name)
        return {kernel.name: images[kernel.name] for kernel in ordered}


def _shown(kernel: Kernel, files: StageFiles) -> Kernel:
    """A kernel's CUDA C++, dumped, and replaced by an edited file where there is one."""
    files.write("cuda", kernel.text, kernel.name)
    edited = files.replacement("cuda", kernel.name)
    return kernel if edited is None else Kernel(kernel.name, *edited)
