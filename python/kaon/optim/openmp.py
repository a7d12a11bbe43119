"""Steps on torch's own threads.

torch computes on the threads of an OpenMP runtime. After their last work these spin for some milliseconds before they
sleep, so that a step that follows a backward pass on other threads would find every core taken.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch


@cache
def parallel_address() -> int:
    """Address of ``GOMP_parallel`` in the OpenMP runtime that torch itself uses; 0 if it uses none that has it."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # Loaded already: nothing is loaded here, and the search starts at torch's library, whatever else there is.
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(loaded.GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError):
        return 0


def lend_threads() -> None:
    """Lets the steps of this process run on torch's threads, if that is possible."""
    from kaon import _C

    if address := parallel_address():
        _C.lend_threads(address)
