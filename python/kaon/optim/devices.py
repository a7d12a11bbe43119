"""Where parameters live, and hence what their updates are compiled for.

CPU tensors are stepped by the host's processor, CUDA tensors by the GPU that holds them, in order with whatever else
the trainer has put on torch's current stream, in memory of torch's caching allocator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from kaon import knobs
from kaon.extension import DriverError
from kaon.target import PRODUCT_DTYPES, product_type

from .openmp import lend_threads

if TYPE_CHECKING:
    from kaon.cuda import Placement
    from kaon.target import Target

DEVICES = ("cpu", "cuda")

CUDA_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Parameters that a GPU steps; float64 is for the processor."""


def target_name(device: torch.device) -> str:
    """``cpu`` or ``cuda``: what steps parameters on `device`. ``KAON_TARGET`` can send the CPU's to a fake GPU."""
    forced = knobs.runtime.target if device.type == "cpu" else None
    return forced or device.type


def check_device(label: str, optimizer: str, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a parameter that no target can update, naming it.

    Raises:
        ValueError: another device than a CPU or a GPU of NVIDIA.
        TypeError: a dtype that only the other of both can update.
    """
    if device.type not in DEVICES or (device.type == "cuda" and torch.version.hip is not None):
        raise ValueError(f"{optimizer} expects parameters on the CPU or on a CUDA device, but {label} is on {device}")
    if target_name(device) == "cuda" and dtype not in CUDA_DTYPES:
        known = ", ".join(str(known) for known in CUDA_DTYPES)
        where = f"on {device}" if device.type == "cuda" else "for CUDA, as KAON_TARGET says"
        raise TypeError(f"{optimizer} expects a dtype out of {known} on CUDA, but {label} is {dtype} {where}")


def check_product_dtype(value: Any) -> str:
    """`value`, a name or a dtype of torch, as a name out of `PRODUCT_DTYPES`.

    Raises:
        ValueError: any other.
    """
    name = str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
    if name not in PRODUCT_DTYPES:
        raise ValueError(f"expects product_dtype out of {', '.join(PRODUCT_DTYPES)}, but got {value!r}")
    return str(name)


class TorchMemory:
    """Memory of torch's caching allocator on one device, for as long as this object lives."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._blocks: list[torch.Tensor] = []

    def __call__(self, size: int) -> int:
        """The address of `size` more bytes."""
        self._blocks.append(torch.empty(size, dtype=torch.uint8, device=self._device))
        return self._blocks[-1].data_ptr()


def target_for(device: torch.device, threads: int | None, product_dtype: str | None = None) -> Target:
    """What programs for parameters on `device` are compiled for.

    Args:
        threads: of steps on the CPU.
        product_dtype: a name out of `PRODUCT_DTYPES`, for operands of products on a GPU; default: the target's own.

    Raises:
        DriverError: ``KAON_TARGET`` asks for what cannot work.
        CudaUnavailable, NvrtcError: there is no CUDA driver, device or compiler.
    """
    if target_name(device) == "cpu":
        from kaon.cpu_target import CpuTarget

        threads = threads or knobs.runtime.num_threads or torch.get_num_threads()
        if knobs.runtime.torch_threads and threads == torch.get_num_threads():
            lend_threads()
        return CpuTarget(threads)
    from kaon.cuda_target import CudaTarget

    return CudaTarget.of_device(placement_for(device), product_type(product_dtype))


def placement_for(device: torch.device) -> Placement:
    """Where and how programs for parameters on `device` run, which is a GPU, or the CPU under ``KAON_TARGET=cuda``.

    Raises:
        DriverError: the driver is none for that device.
        CudaUnavailable: there is no driver.
    """
    from kaon.cuda import Placement, open_driver

    if knobs.runtime.target == "cpu":
        raise DriverError(f"KAON_TARGET=cpu expects parameters on the CPU, but they are on {device}")
    driver = open_driver()
    if device.type == "cpu":
        if not driver.is_fake:
            raise DriverError(
                "KAON_TARGET=cuda expects parameters on a CUDA device, or a fake driver in KAON_CUDA_DRIVER: "
                f"{driver.path} is a real one, whose kernels cannot reach memory of the CPU"
            )
        return Placement(wait=True)
    if driver.is_fake:
        raise DriverError(
            f"KAON_CUDA_DRIVER expects a real driver for parameters on {device}, but {driver.path} is a fake one"
        )
    index = torch.cuda.current_device() if device.index is None else device.index

    return Placement(index, TorchMemory(torch.device("cuda", index)), _current_stream(index))


def _current_stream(index: int) -> Callable[[], int]:
    """What gives the handle of torch's current stream on a device."""
    # The same without an object for the stream; Triton asks so, too.
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw_stream is not None:
        return functools.partial(raw_stream, index)
    return lambda: int(torch.cuda.current_stream(index).cuda_stream)
