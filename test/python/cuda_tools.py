"""Runs whole optimizers through CUDA kernels on the fake driver, for tests.

Inside :func:`fake_gpu` parameters on the CPU are stepped by generated CUDA C++: NVRTC compiles it, so that the fake can
check arguments, and the host's compiler makes code of the same text, which the fake runs. Nothing that passes here has
run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import fake_cuda
import torch
from kaon import knobs, nvrtc
from kaon.cuda import CudaProgram
from kaon.nvrtc import Image
from nvrtc_tools import find_library
from optim_tools import set_gradients, snapshot
from torch import Tensor

_ran: dict[str, bool] = {}
"""The kernels that the fake ran in this process, beside checks of gradients, and whether they were taken."""


def take_ran() -> list[str]:
    """The kernels that the fake ran for the first time in this process since this was last asked."""
    names = sorted(name for name, is_taken in _ran.items() if not is_taken)
    _ran.update(dict.fromkeys(names, True))
    return names


def unavailable() -> str | None:
    """Why no optimizer can run on the fake here, or None."""
    if find_library() is None:
        return "no NVRTC: the nvidia-cuda-nvrtc wheel is not installed"
    return fake_cuda.unavailable()


class ShimCompiler(nvrtc.Compiler):
    """NVRTC, and code for the fake of every kernel that passes."""

    def load(self, name: str, text: str) -> Image | None:
        image = super().load(name, text)
        if image is not None:
            self._build(name, text)
        return image

    def compile(self, name: str, text: str, filename: str | None = None) -> Image:
        image = super().compile(name, text, filename)
        self._build(name, text)
        return image

    def _build(self, name: str, text: str) -> None:
        fake_cuda.build_kernel(name, text)


class CountingCompiler(ShimCompiler):
    """The same, with code whose accesses to memory are recorded (``shim_traffic``)."""

    library = fake_cuda.LIBRARY

    def _build(self, name: str, text: str) -> None:
        fake_cuda.build_counted(name, text, self.library)


def _counting(step: Callable[..., int]) -> Callable[..., int]:
    """A way to step a ``CudaProgram`` that also notes the kernels that were launched."""

    def counting(program: CudaProgram, *arguments: Any) -> int:
        bad = step(program, *arguments)
        for name, count in program.executor.matrix_counts.items():
            if count:
                _ran.setdefault(name, False)
        return bad

    return counting


@contextmanager
def fake_gpu(
    capability: tuple[int, int] = (9, 0),
    seed: int = 0,
    microseconds: int = 0,
    compiler: type[ShimCompiler] = ShimCompiler,
) -> Iterator[fake_cuda.Fake]:
    """A fake GPU that steps parameters of the CPU, with streams delayed at random; no fault may be left at its end."""
    original, step, step_with = nvrtc.Compiler, CudaProgram.step, CudaProgram.step_with
    fake = fake_cuda.fake()
    with knobs.scope(), nullcontext() if compiler is ShimCompiler else fake_cuda.own_kernels():
        knobs.cuda.driver = fake_cuda.driver_path()
        knobs.runtime.target = "cuda"
        nvrtc.Compiler = compiler  # type: ignore[misc]
        CudaProgram.step = _counting(step)  # type: ignore[method-assign]
        CudaProgram.step_with = _counting(step_with)  # type: ignore[method-assign]
        fake.set_devices(1, capability)
        fake.set_delays(seed, microseconds)
        fake.take_faults()
        try:
            yield fake
            faults = fake.take_faults()
            assert faults == [], "\n".join(faults)
        finally:
            nvrtc.Compiler = original  # type: ignore[misc]
            CudaProgram.step = step  # type: ignore[method-assign]
            CudaProgram.step_with = step_with  # type: ignore[method-assign]
            fake.set_delays()


Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def train(
    make: Make,
    params: Sequence[Tensor],
    steps: int,
    before: Callable[[torch.optim.Optimizer, int], Any] | None = None,
) -> list[Tensor]:
    """``steps`` steps with gradients that only the number of the step decides; all parameters and states after them."""
    optimizer = make(list(params))
    for step in range(steps):
        set_gradients(params, 100 + step)
        if before is not None:
            before(optimizer, step)
        optimizer.step()
    return snapshot(optimizer)
