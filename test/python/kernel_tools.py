"""Compiling and calling single kernels, for the tests of code generation."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from kaon import _C

FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

HOST: dict[str, Any] = dict(_C.host_target())


def _host_has(*features: str) -> bool:
    return {f"+{feature}" for feature in features} <= set(HOST["features"].split(","))


def _targets() -> dict[str, dict[str, Any]]:
    """The kinds of processor that this host can stand in for, by name."""
    targets = {"host": HOST}
    if HOST["triple"].startswith("x86_64"):
        targets["sse2"] = dict(_C.cpu_target("x86-64", ""))
        if _host_has("avx2", "fma", "f16c", "bmi2"):
            targets["avx2"] = dict(_C.cpu_target("x86-64-v3", "+avx2,+fma,+f16c"))
        if _host_has("avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"):
            features = "+avx2,+fma,+f16c,+avx512f,+avx512vl,+avx512bw,+avx512dq"
            targets["avx512"] = dict(_C.cpu_target("x86-64-v4", features))
    return targets


TARGETS = _targets()


class Kernel:
    """A kernel loaded into this process.

    Args:
        text: IR of the kernel.
        target: a key of ``TARGETS``.
    """

    def __init__(self, text: str, target: str = "host") -> None:
        compiled = _C.compile_kernel(text, TARGETS[target])
        self.library = _C.KernelLibrary()  # owns the code
        self.library.add(compiled.name, compiled.object)
        self.function = FUNCTION(self.library.address(compiled.name))

    def __call__(
        self,
        buffers: Sequence[np.ndarray],
        sizes: Sequence[int],
        items: Iterable[tuple[int, int]],
        scalars: Sequence[float] = (),
    ) -> None:
        """Runs the kernel on each range of ``items``; buffers are matrices with unit column stride."""
        fields: list[int] = []
        for buffer in buffers:
            assert buffer.size == 0 or buffer.shape[-1] == 1 or buffer.strides[-1] == buffer.itemsize
            fields += [buffer.ctypes.data, buffer.strides[0] // buffer.itemsize]
        c_buffers = (ctypes.c_int64 * max(1, len(fields)))(*fields)
        c_scalars = (ctypes.c_double * max(1, len(scalars)))(*scalars)
        c_sizes = (ctypes.c_int64 * len(sizes))(*sizes)
        for begin, end in items:
            self.function(
                ctypes.addressof(c_buffers), ctypes.addressof(c_scalars), ctypes.addressof(c_sizes), begin, end
            )


@functools.cache
def compiled(text: str, target: str = "host") -> Kernel:
    """A kernel, compiled once per process."""
    return Kernel(text, target)


@functools.cache
def library_kernel(library: str, element: str, target: str = "host") -> Kernel:
    """A library kernel such as ``pack_lhs``, with the tile of ``target``."""
    t = TARGETS[target]
    matrices = 1 if library.startswith(("pack", "transpose")) else 3 if library.endswith("add") else 2
    matrix = f"tensor<?x?x{element}>"
    tile = ", ".join(f"{name} = {t[name]}" for name in ("vector_bits", "mr", "nr", "kc", "block"))
    return compiled(
        f"module attributes {{kaon.cpu = #kaon.cpu_target<{tile}>}} {{\n"
        f"  func.func private @{library}_{element}({', '.join([matrix] * matrices)}) -> {matrix}\n"
        f'    attributes {{kaon.library = "{library}"}}\n}}\n',
        target,
    )


def matrix(values: np.ndarray, gap: int = 0, offset: int = 0) -> np.ndarray:
    """A copy of ``values`` whose rows are ``gap`` elements apart, ``offset`` elements past an aligned address.

    What lies between the rows is NaN, so that reading it shows.
    """
    rows, cols = values.shape
    memory = np.full(rows * (cols + gap) + offset + 64, np.nan if values.dtype.kind == "f" else 7, values.dtype)
    start = offset + (-memory.ctypes.data % 64) // values.itemsize
    view = np.lib.stride_tricks.as_strided(
        memory[start:], (rows, cols), ((cols + gap) * values.itemsize, values.itemsize)
    )
    view[...] = values
    return view


def bits(array: np.ndarray) -> np.ndarray:
    """The bits of floating-point numbers, for exact comparison that tells -0 from 0 and sees NaN."""
    return np.ascontiguousarray(array).view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.itemsize])


def chunks(count: int, grain: int) -> list[tuple[int, int]]:
    """[0, count) in pieces of ``grain``, last piece first."""
    return [(begin, min(begin + grain, count)) for begin in range(0, count, grain)][::-1]
