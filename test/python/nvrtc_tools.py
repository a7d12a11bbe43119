"""Compiles kernel text with NVRTC, which needs no GPU, for tests.

The library is the one of the PyTorch wheel. Headers are handed over in memory: a compilation reads no file.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = REPOSITORY / "codegen" / "cuda" / "lib"
KERNELS = REPOSITORY / "test" / "cuda" / "kernels"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
# Functions of the library that are neither kernels nor marked, such as constexpr ones, are meant for both sides.
OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v")


@dataclass(frozen=True)
class Compilation:
    """What NVRTC made of a text: its log and, unless it failed, PTX and CUBIN."""

    log: str
    ptx: str
    cubin: bytes


class CompileError(Exception):
    """NVRTC refused a text; the message is its log."""


def find_library() -> Path | None:
    """libnvrtc in a ``nvidia`` folder beside installed wheels, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
            found = sorted(path for path in Path(folder).glob(pattern) if ".alt." not in path.name)
            if found:
                return found[-1]
    return None


@functools.cache
def load_library() -> ctypes.CDLL:
    """The NVRTC of :func:`find_library`. Its builtins have no search path of their own and are loaded first."""
    path = find_library()
    assert path is not None
    for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins))
    library = ctypes.CDLL(str(path))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _bytes_of(program: ctypes.c_void_p, what: str) -> bytes:
    """What nvrtcGet<what> gives."""
    library = load_library()
    size = ctypes.c_size_t()
    check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def check(result: int) -> None:
    """Raises RuntimeError with NVRTC's name of an error."""
    if result != 0:
        raise RuntimeError(f"nvrtc: {load_library().nvrtcGetErrorString(result).decode()}")


def headers() -> dict[str, str]:
    """The device library, and what its kernels in tests share: name -> text."""
    paths = [*sorted(LIBRARY.glob("*.cuh")), KERNELS / "ProductEpilogues.cuh"]
    return {path.name: path.read_text() for path in paths}


def compile_text(text: str, architecture: str, options: Sequence[str] = OPTIONS) -> Compilation:
    """Compiles ``text``, which may include headers of the device library by their names.

    Raises CompileError when NVRTC refuses it.
    """
    library = load_library()
    names, sources = zip(*headers().items(), strict=True)
    array = ctypes.c_char_p * len(names)
    program = ctypes.c_void_p()
    check(
        library.nvrtcCreateProgram(
            ctypes.byref(program),
            text.encode(),
            b"kernels.cu",
            len(names),
            array(*(source.encode() for source in sources)),
            array(*(name.encode() for name in names)),
        )
    )
    try:
        flags = [f"--gpu-architecture={architecture}", *options]
        result = library.nvrtcCompileProgram(
            program, len(flags), (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        )
        log = _bytes_of(program, "ProgramLog").rstrip(b"\0").decode()
        if result != 0:
            raise CompileError(log)
        return Compilation(log, _bytes_of(program, "PTX").rstrip(b"\0").decode(), _bytes_of(program, "CUBIN"))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
