"""``python -m kaon doctor``: what works on this machine, and why not what does not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from kaon import cuda, cuda_target, driver, knobs, nvrtc
from kaon.cache import open_cache

Status = Literal["works", "absent", "broken"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``absent`` things are optional; a ``broken`` one keeps Kaon from working."""

    name: str
    status: Status
    detail: str


def _python() -> Finding:
    version = platform.python_version()
    return Finding("python", "works" if sys.version_info >= (3, 11) else "broken", f"{version} at {sys.executable}")


def _package(name: str, needed: bool, purpose: str) -> Finding:
    try:
        return Finding(name, "works", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "broken" if needed else "absent", f"not installed; {purpose}")


def _extension() -> Finding:
    try:
        return Finding("extension", "works", str(driver.runtime_extension().__file__))
    except driver.DriverError as error:
        return Finding("extension", "broken", str(error))


def _needs_extension(name: str, describe: Callable[[], str]) -> Finding:
    try:
        return Finding(name, "works", describe())
    except Exception as error:  # whatever is wrong with a machine is the answer here
        return Finding(name, "broken", f"{type(error).__name__}: {error}")


def _host_target() -> str:
    target = driver.host_target()
    shown = ", ".join(f"{key} {target[key]}" for key in target if key != "features")
    features = [feature[1:] for feature in str(target["features"]).split(",") if feature.startswith("+")]
    telling = [name for name in ("fma", "avx2", "avx512f", "avx512bf16", "amx-bf16", "neon", "sve") if name in features]
    return f"{shown}; {' '.join(telling)}"


_TRIAL = """
func.func @trial(%w: tensor<8x24xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                 %g: tensor<8x24xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                 %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                 %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
    -> tensor<8x24xf32> attributes {kaon.update} {
  %zero = arith.constant 0.0 : f64
  %o = kaon.newton_schulz %g coefficients [3.4445, -4.775, 2.0315] normalize max epsilon 1.0e-7 scale 1.0
      : tensor<8x24xf32>
  %w1 = kaon.apply decoupled %w, %o step_size %lr decay %zero : tensor<8x24xf32>
  return %w1 : tensor<8x24xf32>
}
kaon.program @step { kaon.parameter @trial "w" scalars 0 phase 0 }
"""


def _trial() -> str:
    """Compile a small update, run it, and compare it with the interpreter."""
    import numpy as np

    generator = np.random.default_rng(0)
    start, gradient = (generator.standard_normal((8, 24)).astype(np.float32) for _ in range(2))
    program = driver.compile_text(_TRIAL)
    results = []
    for runner in (program, driver.interpret_text(_TRIAL)):
        parameter = start.copy()
        runner.step(1, [parameter.ctypes.data, 24, gradient.ctypes.data, 24], [[0.1]], True)
        results.append(parameter)
    error = float(np.linalg.norm(results[0] - results[1]) / np.linalg.norm(results[1]))
    if not error < 1e-5:
        raise RuntimeError(f"compiled code and interpreter differ by {error:.2g}")
    statistics = program.statistics
    return (
        f"compiled {statistics.kernels_compiled} and loaded {statistics.kernels_loaded} kernels in "
        f"{statistics.lower_seconds + statistics.compile_seconds:.2f} s; relative error {error:.1e}"
    )


def _cache() -> Finding:
    if not knobs.cache.enabled:
        return Finding("cache", "absent", "switched off by KAON_CACHE; every process compiles anew")
    cache = open_cache()
    problem = cache.problem()
    if problem is not None:
        return Finding("cache", "absent", f"{problem}; set KAON_CACHE_DIR to a directory of your own")
    entries = cache.entries()
    size = sum(entry.size for entry in entries)
    return Finding("cache", "works", f"{cache.directory}: {len(entries)} entries, {size / 2**20:.1f} MiB")


def _threads() -> Finding:
    cores = f"{knobs.available_cores()} of {os.cpu_count()} processors of the machine"
    if knobs.runtime.num_threads:
        return Finding("threads", "works", f"{knobs.runtime.num_threads}, as KAON_NUM_THREADS says; {cores}")
    return Finding("threads", "works", f"{cores}; kaon.optim takes as many of them as torch.get_num_threads()")


def _cuda_driver() -> Finding:
    """Whether there is a GPU that answers, not merely a library of that name."""
    try:
        driver_ = cuda.open_driver()
        devices = [driver_.device(index) for index in range(driver_.device_count)]
    except cuda.CudaUnavailable as error:
        return Finding("cuda driver", "absent", f"{_first_line(error)}; not needed for the cpu target")
    version = f"CUDA {driver_.version // 1000}.{driver_.version % 1000 // 10}"
    found = ", ".join(f"{device['name']} ({device['arch']})" for device in devices)
    fake = ", a FAKE one: no GPU runs anything" if driver_.is_fake else ""
    return Finding("cuda driver", "works", f"{driver_.path}, {version}: {found}{fake}")


def _nvrtc() -> Finding:
    try:
        found = nvrtc.load()
    except (nvrtc.NvrtcError, driver.DriverError) as error:
        return Finding("nvrtc", "absent", f"{_first_line(error)}; not needed for the cpu target")
    version = ".".join(map(str, found.version))
    known = ", ".join(arch for arch in cuda_target.ARCHITECTURES if found.supports(arch)) or "none of ours"
    return Finding("nvrtc", "works", f"{found.path}, {version}: {known}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(":")


def findings() -> Iterator[Finding]:
    """Every check, in order. Each is made when its turn comes, so that a slow one does not hold up those before it."""
    yield _python()
    yield _package("numpy", True, "the interpreter needs it")
    yield _package("torch", False, "kaon.optim needs it")
    extension = _extension()
    yield extension
    has_compiler = extension.status == "works" and driver.runtime_extension().has_compiler
    if has_compiler:
        yield _needs_extension("llvm", lambda: str(driver.extension().llvm_version()))
        yield _needs_extension("host", _host_target)
    yield _threads()
    yield _cache()
    if has_compiler:
        yield _needs_extension("compiler", _trial)
    elif extension.status == "works":
        yield Finding("compiler", "absent", "built with KAON_COMPILER=OFF; runs compiled packages, see kaon.load")
    yield _cuda_driver()
    yield _nvrtc()


def report(write: Callable[[str], object]) -> bool:
    """Write one line per finding and the table of environment variables. Returns whether nothing is broken."""
    healthy = True
    for finding in findings():
        write(f"{finding.status:7}{finding.name:12}{finding.detail}\n")
        healthy &= finding.status != "broken"
    write(f"\nenvironment variables\n{knobs.describe()}\n")
    for name, close in knobs.unknown_variables().items():
        write(f"{name} has no effect: no such variable" + (f", did you mean {close}?\n" if close else "\n"))
    return healthy
