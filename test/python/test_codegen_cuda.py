"""CUDA kernels as text."""

from __future__ import annotations

from kaon import _C
from nvrtc_tools import LIBRARY


def test_device_library_is_embedded() -> None:
    expected = {path.name: path.read_text() for path in LIBRARY.glob("*.cuh")}
    assert _C.cuda_library() == expected
    assert list(_C.cuda_library()) == sorted(expected)
