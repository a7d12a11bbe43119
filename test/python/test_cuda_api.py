"""The runtime's own declarations of the CUDA driver against NVIDIA's headers, where those are installed.

``cudaTypedefs.h`` has a type for each version of each function. A C++ file that includes both is compiled: the versions
exist, take as many parameters, of the same sizes and kinds, and the numbers are the same.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import fake_cuda
import host_compiler
import pytest

API = fake_cuda.REPOSITORY / "runtime" / "cuda" / "CudaApi.h"

CHECKS = """
#include <cuda.h>
#include <cudaTypedefs.h>
#include "runtime/cuda/CudaApi.h"
#include <cstddef>
#include <type_traits>
namespace ours = kaon::runtime::cuda;

/// Whether two parameters or results are passed alike: pointers (handles are pointers), or numbers of a size.
template <typename A, typename B>
constexpr bool alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                       std::is_floating_point_v<A> == std::is_floating_point_v<B>;
template <typename A, typename B> struct Same : std::false_type {};
template <typename A, typename B, typename... As, typename... Bs>
struct Same<A (*)(As...), B (*)(Bs...)> {
  static constexpr bool check() {
    if constexpr (sizeof...(As) == sizeof...(Bs)) {
      return alike<A, B> && (alike<As, Bs> && ...);
    } else {
      return false;
    }
  }
  static constexpr bool value = check();
};
"""

ENUMERATORS = {
    "Code": {
        "Success": "CUDA_SUCCESS",
        "InvalidValue": "CUDA_ERROR_INVALID_VALUE",
        "OutOfMemory": "CUDA_ERROR_OUT_OF_MEMORY",
        "NotInitialized": "CUDA_ERROR_NOT_INITIALIZED",
        "StubLibrary": "CUDA_ERROR_STUB_LIBRARY",
        "NoDevice": "CUDA_ERROR_NO_DEVICE",
        "InvalidDevice": "CUDA_ERROR_INVALID_DEVICE",
        "InvalidImage": "CUDA_ERROR_INVALID_IMAGE",
        "InvalidContext": "CUDA_ERROR_INVALID_CONTEXT",
        "NoBinaryForDevice": "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "InvalidPtx": "CUDA_ERROR_INVALID_PTX",
        "UnsupportedPtxVersion": "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "InvalidHandle": "CUDA_ERROR_INVALID_HANDLE",
        "NotFound": "CUDA_ERROR_NOT_FOUND",
        "NotReady": "CUDA_ERROR_NOT_READY",
        "IllegalAddress": "CUDA_ERROR_ILLEGAL_ADDRESS",
        "LaunchOutOfResources": "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "LaunchFailed": "CUDA_ERROR_LAUNCH_FAILED",
        "DriverMismatch": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "CaptureUnsupported": "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    },
    "DeviceAttribute": {
        "MaxThreadsPerBlock": "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
        "Multiprocessors": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
        "L2CacheBytes": "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE",
        "CapabilityMajor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
        "CapabilityMinor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
        "SharedBytesPerMultiprocessor": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
        "SharedBytesPerBlockOptIn": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    },
    "FunctionAttribute": {
        "MaxThreadsPerBlock": "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
        "SharedBytes": "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES",
        "MaxDynamicSharedBytes": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    },
    "CaptureStatus": {
        "None": "CU_STREAM_CAPTURE_STATUS_NONE",
        "Active": "CU_STREAM_CAPTURE_STATUS_ACTIVE",
        "Invalidated": "CU_STREAM_CAPTURE_STATUS_INVALIDATED",
    },
    "TensorType": {"F16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16", "BF16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"},
    "TensorInterleave": {"None": "CU_TENSOR_MAP_INTERLEAVE_NONE"},
    "TensorSwizzle": {"Bytes128": "CU_TENSOR_MAP_SWIZZLE_128B"},
    "TensorPromotion": {"Bytes128": "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"},
    "TensorFill": {"Zero": "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"},
    "JitOption": {
        "ErrorLogBuffer": "CU_JIT_ERROR_LOG_BUFFER",
        "ErrorLogBufferBytes": "CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES",
    },
}

NODE = {
    "function": "func",
    "gridX": "gridDimX",
    "gridZ": "gridDimZ",
    "blockX": "blockDimX",
    "blockZ": "blockDimZ",
    "sharedBytes": "sharedMemBytes",
    "parameters": "kernelParams",
    "extra": "extra",
}


def headers() -> Path | None:
    """A folder with cuda.h and cudaTypedefs.h: of a wheel, or of a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    candidates = [
        *(path for folder in wheels for path in folder.glob("cu*/include")),
        *Path("/usr/local").glob("cuda*/include"),
    ]
    return next((path for path in candidates if (path / "cudaTypedefs.h").is_file()), None)


def declared(enumeration: str) -> set[str]:
    """The names of one of our enumerations."""
    match = re.search(rf"enum class {enumeration} : int {{(.*?)}};", API.read_text(), re.DOTALL)
    assert match is not None
    return set(re.findall(r"(\w+) = \d+", match[1]))


def functions() -> dict[str, tuple[str, int]]:
    """Our members: the driver's name and the version of its signature."""
    found = re.findall(r'X\((\w+), "(\w+)", (\d+)', API.read_text())
    return {member: (name, int(version)) for member, name, version in found}


def compile_checks(checks: list[str]) -> str:
    """What the host compiler says about static assertions; empty if they hold."""
    folder = headers()
    compiler = host_compiler.cxx()
    assert folder is not None and compiler is not None
    text = CHECKS + "\n".join(checks)
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-isystem{folder}", f"-I{fake_cuda.REPOSITORY}", "-xc++", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True).stderr


pytestmark = [
    pytest.mark.skipif(headers() is None, reason="no CUDA headers are installed"),
    pytest.mark.skipif(host_compiler.cxx() is None, reason="no C++ compiler"),
]


def check_function(member: str, name: str, version: int) -> str:
    return (
        f"static_assert(Same<decltype(ours::Functions::{member}), PFN_{name}_v{version}>::value, "
        f'"{name} has other parameters");'
    )


def test_functions_are_those_of_the_headers() -> None:
    assert len(functions()) > 30
    assert compile_checks([check_function(member, *function) for member, function in functions().items()]) == ""


def test_numbers_are_those_of_the_headers() -> None:
    checks = ["static_assert(ours::eventDisableTiming == CU_EVENT_DISABLE_TIMING);"]
    for enumeration, names in ENUMERATORS.items():
        # The code of an old driver is the CUDA runtime's, which libcuda is known to give as well.
        assert declared(enumeration) - {"OldDriver"} == set(names)
        checks += [
            f"static_assert(static_cast<int>(ours::{enumeration}::{name}) == {theirs});"
            for name, theirs in names.items()
        ]
    assert compile_checks(checks) == ""


def test_a_kernel_node_is_that_of_the_headers() -> None:
    checks = ["static_assert(sizeof(ours::KernelNode) == sizeof(CUDA_KERNEL_NODE_PARAMS_v1));"]
    checks += [
        f"static_assert(offsetof(ours::KernelNode, {name}) == offsetof(CUDA_KERNEL_NODE_PARAMS_v1, {theirs}));"
        for name, theirs in NODE.items()
    ]
    assert compile_checks(checks) == ""


def test_a_tensor_map_is_that_of_the_headers() -> None:
    checks = [
        "static_assert(sizeof(ours::TensorMap) == sizeof(CUtensorMap));",
        "static_assert(alignof(ours::TensorMap) >= alignof(CUtensorMap));",
    ]
    assert compile_checks(checks) == ""


def test_what_does_not_fit_is_noticed() -> None:
    assert "has other parameters" in compile_checks([check_function("memAlloc", "cuMemAlloc", 2000)])
    assert "has other parameters" in compile_checks([check_function("memFree", "cuMemAlloc", 3020)])
    assert "PFN_cuMemAlloc_v9990" in compile_checks([check_function("memAlloc", "cuMemAlloc", 9990)])
