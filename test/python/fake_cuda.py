"""The imitated CUDA driver (test/cuda/fake) and kernels that it can run, for tests without a GPU.

Both are built with the host's C++ compiler when they are first needed and kept in the build tree by their content. What
a test shows with them is about Kaon's launcher and kernels on the CPU; it shows nothing about a GPU.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import host_compiler
import kaon

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = REPOSITORY / "codegen" / "cuda" / "lib"
FAKE = REPOSITORY / "test" / "cuda" / "fake"
SHIM = REPOSITORY / "test" / "cuda" / "shim"


def _processor_flags() -> list[str]:
    """What the processor has, by Linux's names."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].split() for line in lines if line.startswith("flags")), [])


DRIVER_SOURCES = (
    *(FAKE / f"Fake{part}.cpp" for part in ("Driver", "Kernels", "Memory", "Streams")),
    REPOSITORY / "runtime" / "cuda" / "Cubin.cpp",
)
# Contraction would round once where the device library rounds twice. Products are simulated several times as fast with
# instructions for it, and give the same bits.
_FAST = ("-mavx2", "-mfma") if {"avx2", "fma"} <= set(_processor_flags()) else ()
FLAGS = (
    *_FAST,
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-Wno-unknown-pragmas",
    f"-I{REPOSITORY}",
)

# For kernels whose accesses are counted (test/cuda/shim/Traffic.h): a call at every load and store, none left out, and
# volatile ones, which are prefetches, told apart. No loop becomes one of vectors, for which there are no calls.
_COUNTED_FLAGS = (
    "-fsanitize=thread",
    *("-mllvm", "-tsan-distinguish-volatile=1"),
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
    *("-fno-vectorize", "-fno-slp-vectorize"),
)

_lock = threading.Lock()
# Held while something is made of which a process has one.
_setup = threading.RLock()
_building: dict[Path, threading.Lock] = {}


def unavailable() -> str | None:
    """Why the fake cannot be used here, or None."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return "the shim changes stacks with instructions of x86-64"
    if host_compiler.cxx() is None:
        return "no C++ compiler"
    return None


def _store() -> Path:
    """Where results are kept: in the build tree that the package under test is of."""
    path = Path(kaon.__path__[0]).parents[1] / "test" / "fake-cuda"
    path.mkdir(parents=True, exist_ok=True)
    return path


@functools.cache
def _digest_of(folder: Path) -> bytes:
    """A digest of the files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


@functools.cache
def _sources_digest() -> bytes:
    """A digest of everything but the kernel's text that code for the CPU is made from."""
    digest = hashlib.sha256(repr((host_compiler.cxx(), FLAGS)).encode())
    headers = (REPOSITORY / "runtime" / name for name in ("Status.h", "cuda/Cubin.h", "cuda/CudaApi.h"))
    for folder in (LIBRARY, FAKE, SHIM):
        digest.update(_digest_of(folder))
    for path in (*headers, *DRIVER_SOURCES):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _build(
    name: str, content: bytes, arguments: Iterable[str], suffix: str = ".so", command: str | None = None
) -> Path:
    """The file ``name`` of the compiler's ``arguments``, unless it was built before from the same ``content``.

    Args:
        command: another compiler than :func:`host_compiler.cxx`, which ``content`` knows of.
    """
    key = hashlib.sha256(_sources_digest() + content).hexdigest()[:32]
    target = _store() / key / f"{name}{suffix}"
    with _lock:
        lock = _building.setdefault(target, threading.Lock())
    with lock:
        if target.exists():
            return target
        target.parent.mkdir(exist_ok=True)
        command = command or host_compiler.cxx()
        assert command is not None, unavailable()
        # Another process may build the same thing: the first complete one stays.
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            partial = Path(folder, target.name)
            done = subprocess.run([command, *FLAGS, *arguments, "-o", str(partial)], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{name}: the host compiler refuses the text:\n{done.stderr}")
            partial.rename(target)
        return target


@functools.cache
def driver_path() -> Path:
    """The imitated libcuda."""
    return _build("libkaon_fake_cuda", b"driver", (*map(str, DRIVER_SOURCES), "-pthread", "-ldl"))


_SHIM_SOURCES = (str(SHIM / "Background.cpp"), str(SHIM / "Shim.cpp"))


@functools.cache
def _shim() -> Path:
    return _build("libKaonCudaShim", b"shim", _SHIM_SOURCES)


def counting_unavailable() -> str | None:
    """Why accesses of kernels cannot be counted here, or None."""
    missing = unavailable()
    if missing is None and "clang" not in Path(str(host_compiler.cxx())).name:
        missing = "counting accesses needs clang"
    return missing


@functools.cache
def _counting_shim() -> Path:
    return _build("libKaonCountingShim", b"counting shim", (f"-I{LIBRARY}", *_SHIM_SOURCES, str(SHIM / "Traffic.cpp")))


def counting_shim() -> Path:
    """The shim of kernels that were built by :func:`build_counted`, which has the record of what they accessed."""
    with _setup:
        return _counting_shim()


@functools.cache
def _kernel_directory() -> Path:
    """Where the fake looks for kernels of this process."""
    path = Path(tempfile.mkdtemp(prefix="kaon-fake-kernels-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    fake().set_kernel_directory(path)
    return path


_own_directories: list[Path] = []


def kernel_directory() -> Path:
    """Where the fake looks for the kernels of this process: ``<kernel>.so``."""
    with _setup:
        return _own_directories[-1] if _own_directories else _kernel_directory()


@contextmanager
def own_kernels() -> Iterator[None]:
    """Within, the fake runs only what is built within: code of a name stays what it was when it was first loaded."""
    with tempfile.TemporaryDirectory(prefix="kaon-own-kernels-") as folder:
        usual = kernel_directory()
        _own_directories.append(Path(folder))
        fake().set_kernel_directory(_own_directories[-1])
        try:
            yield
        finally:
            _own_directories.pop()
            fake().set_kernel_directory(usual)


def _source_file(text: str, suffix: str = ".cu") -> Path:
    """A file with a text."""
    source = _store() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{suffix}"
    if not source.exists():
        with tempfile.NamedTemporaryFile("w", dir=source.parent, delete=False) as file:
            file.write(text)
        Path(file.name).rename(source)
    return source


def _inputs(name: str, text: str, library: Path = LIBRARY) -> tuple[str, ...]:
    """What makes the shim's sources code of the kernel ``name`` of a CUDA text."""
    return (f"-I{library}", f'-DKAON_KERNEL_TEXT="{_source_file(text)}"', f"-DKAON_KERNEL_NAME={name}")


def _build_kernel(name: str, text: str, shim: Path, link: str, folder: str) -> Path:
    """Code for the fake of a kernel, linked to ``shim`` in a ``folder`` as the loader names it."""
    return _build(
        name,
        f"{link}{name}\0{text}".encode(),
        (
            *_inputs(name, text),
            str(SHIM / "KernelLibrary.cpp"),
            str(shim),
            f"-Wl,-rpath,{folder}",
        ),
    )


def build_kernel(name: str, text: str) -> None:
    """Lets the fake run the kernel ``name`` of a CUDA text. May be called from several threads."""
    with _setup:
        shim, directory = _shim(), kernel_directory()
    _link(name, directory, _build_kernel(name, text, shim, "", str(shim.parent)))


def build_counted(name: str, text: str, library: Path = LIBRARY) -> None:
    """:func:`build_kernel`, of a kernel whose accesses to memory are recorded; see ``shim_traffic``.

    Args:
        library: the device library that the text includes.
    """
    with _setup:
        shim, directory = _counting_shim(), kernel_directory()
    content = f"{name}\0{_COUNTED_FLAGS}\0{text}".encode() + _digest_of(library)
    inputs = _inputs(name, text, library)
    # Linked apart, so that the compiler does not bring ThreadSanitizer's own functions.
    compiled = _build(name, content, ("-c", *_COUNTED_FLAGS, *inputs, str(SHIM / "CountedKernel.cpp")), suffix=".o")
    _link(name, directory, _build(name, content, (str(compiled), str(shim), f"-Wl,-rpath,{shim.parent}")))


def build_source(name: str, source: str) -> None:
    """Lets the fake run C++ of a test's own as the kernel ``name``: ``source`` defines what KernelLibrary.h says."""
    built = _build(name, source.encode(), (str(_source_file(source, ".cpp")),))
    _link(name, kernel_directory(), built)


@dataclass(frozen=True)
class Sanitizer:
    """How kernels are made for a program of the build that has a sanitizer."""

    runner: Path
    """The program kaon-plan-runner."""
    compiler: str
    shim: str
    options: tuple[str, ...]

    @staticmethod
    def find(name: str) -> Sanitizer | None:
        """The one that CMake calls ``name``, or None if this build has none of it."""
        folder = Path(kaon.__path__[0]).parents[1] / "test" / "cuda" / "fake"
        runner, description = folder / f"kaon-plan-runner-{name}", folder / f"kaon-plan-runner-{name}.json"
        if not (runner.exists() and description.exists()):
            return None
        found = json.loads(description.read_text())
        return Sanitizer(runner, found["compiler"], found["shim"], tuple(found["options"]))

    def build_kernels(self, texts: Mapping[str, str], directory: Path, library: Path = LIBRARY) -> None:
        """Code with the sanitizer of kernels, by name, in a directory: ``<kernel>.so``.

        Args:
            library: the device library that the texts include.
        """
        # Headers may be as old as they like, if they say what they said.
        options = (*self.options, "-fpch-validate-input-files-content")
        content = repr((self.compiler, options, self.shim, str(library))).encode() + _digest_of(library)

        def build(name: str, kernel: str, arguments: Iterable[str], suffix: str) -> Path:
            return _build(name, content + kernel.encode(), (*options, *arguments), suffix, self.compiler)

        # All kernels include the same, which takes longer to read than a kernel to compile.
        header = ("-x", "c++-header", f"-I{library}")
        headers = build("KernelHeaders", "", (*header, str(SHIM / "KernelHeaders.h")), ".pch")

        def build_kernel(item: tuple[str, str]) -> None:
            name, text = item
            sources = (str(SHIM / "KernelLibrary.cpp"), self.shim, f"-Wl,-rpath,{Path(self.shim).parent}")
            arguments = ("-include-pch", str(headers), *_inputs(name, text, library), *sources)
            _link(name, directory, build(name, f"{name}\0{text}", arguments, ".so"))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(build_kernel, texts.items()))


def _link(name: str, directory: Path, built: Path) -> None:
    link = directory / f"{name}.so"
    with _lock:
        link.unlink(missing_ok=True)
        link.symlink_to(built)


def build_kernels(texts: dict[str, str]) -> None:
    """:func:`build_kernel` for several, at the same time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda item: build_kernel(*item), texts.items()))


@dataclass(frozen=True)
class Launch:
    """A launch that the fake noted: of products, ``argument`` is a ``ProductList`` of codegen/cuda/lib."""

    kernel: str
    blocks: int
    argument: bytes
    """The kernel's first argument."""

    @property
    def products(self) -> tuple[int, int]:
        """Number of products, and the tiles of each, 0 if they have several numbers of tiles."""
        _, count, tiles = struct.unpack("=QII", self.argument)
        return count, tiles


def build_portable(texts: dict[str, str], directory: Path) -> None:
    """Code for the fake of kernels, and the shim that it needs, in a directory that may go anywhere."""
    name = "libKaonCudaShim"
    with _setup:
        shim = _build(name, b"portable shim", (*_SHIM_SOURCES, f"-Wl,-soname,{name}.so"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda item: _build_kernel(*item, shim, "portable\0", "$ORIGIN"), texts.items()))
    directory.mkdir(parents=True, exist_ok=True)
    for path in (shim, *built):
        shutil.copy(path, directory / path.name)


class Fake:
    """The controls of test/cuda/fake/FakeCuda.h."""

    def __init__(self, path: Path):
        self.path = path
        self._library = ctypes.CDLL(str(path))
        for name, result, arguments in (
            ("take_faults", ctypes.c_int64, [ctypes.c_char_p, ctypes.c_size_t]),
            ("calls", ctypes.c_int64, [ctypes.c_char_p]),
            ("record_launches", None, [ctypes.c_int]),
            ("launches", ctypes.c_int64, [ctypes.c_char_p, ctypes.c_size_t]),
            ("allocated_bytes", ctypes.c_int64, []),
            ("stream_create", ctypes.c_void_p, []),
            ("stream_destroy", None, [ctypes.c_void_p]),
            ("stream_set_capturing", None, [ctypes.c_void_p, ctypes.c_int]),
            ("stream_block", None, [ctypes.c_void_p]),
            ("stream_unblock", None, [ctypes.c_void_p]),
            ("memory_create", ctypes.c_void_p, [ctypes.c_size_t]),
            ("memory_destroy", None, [ctypes.c_void_p]),
        ):
            function = getattr(self._library, f"kaon_fake_cuda_{name}")
            function.restype = result
            function.argtypes = arguments

    def set_kernel_directory(self, path: Path) -> None:
        self._library.kaon_fake_cuda_set_kernel_directory(str(path).encode())

    def set_devices(self, count: int = 1, capability: tuple[int, int] = (9, 0)) -> None:
        self._library.kaon_fake_cuda_set_devices(count, *capability)

    def set_version(self, version: int = 13000) -> None:
        self._library.kaon_fake_cuda_set_version(version)

    def set_delays(self, seed: int = 0, microseconds: int = 0) -> None:
        self._library.kaon_fake_cuda_set_delays(seed, microseconds)

    def fail(self, function: str, code: int, call: int = 1) -> None:
        """Lets a coming call of ``function`` fail."""
        self._library.kaon_fake_cuda_fail(function.encode(), code, call)

    @contextmanager
    def hidden(self, function: str) -> Iterator[None]:
        """A driver without ``function``."""
        self._library.kaon_fake_cuda_hide(function.encode(), 1)
        try:
            yield
        finally:
            self._library.kaon_fake_cuda_hide(function.encode(), 0)

    def calls(self, function: str) -> int:
        return int(self._library.kaon_fake_cuda_calls(function.encode()))

    def reset_calls(self) -> None:
        self._library.kaon_fake_cuda_reset_calls()

    @contextmanager
    def recording(self) -> Iterator[Callable[[], list[Launch]]]:
        """Notes kernels that are launched one by one, not by a graph; gives a function that returns them in order."""

        def launches() -> list[Launch]:
            size = self._library.kaon_fake_cuda_launches(None, 0) + 1
            text = ctypes.create_string_buffer(size)
            self._library.kaon_fake_cuda_launches(text, size)
            lines = (line.split(" ") for line in text.value.decode().splitlines())
            return [Launch(name, int(blocks), bytes.fromhex(argument)) for name, blocks, argument in lines]

        self._library.kaon_fake_cuda_record_launches(1)
        try:
            yield launches
        finally:
            self._library.kaon_fake_cuda_record_launches(0)

    def take_faults(self) -> list[str]:
        """Waits for all streams; everything that was wrong since the last time."""
        text = ctypes.create_string_buffer(1 << 16)
        self._library.kaon_fake_cuda_take_faults(text, len(text))
        return text.value.decode().splitlines()

    def allocated_bytes(self) -> int:
        return int(self._library.kaon_fake_cuda_allocated_bytes())

    @contextmanager
    def stream(self) -> Iterator[int]:
        """A stream of the program around Kaon."""
        handle = self._library.kaon_fake_cuda_stream_create()
        try:
            yield handle
        finally:
            self._library.kaon_fake_cuda_stream_destroy(handle)

    def set_capturing(self, stream: int, capturing: bool) -> None:
        self._library.kaon_fake_cuda_stream_set_capturing(stream, capturing)

    @contextmanager
    def blocked(self, stream: int) -> Iterator[None]:
        """The stream does nothing within."""
        self._library.kaon_fake_cuda_stream_block(stream)
        try:
            yield
        finally:
            self._library.kaon_fake_cuda_stream_unblock(stream)

    def allocate(self, size: int) -> int:
        """Device memory of the program around Kaon, as an allocator gives it."""
        return int(self._library.kaon_fake_cuda_memory_create(size))

    def free(self, address: int) -> None:
        self._library.kaon_fake_cuda_memory_destroy(address)


@functools.cache
def fake() -> Fake:
    """The fake of this process. It is the same library that ``_C.CudaDriver(str(driver_path()))`` opens."""
    return Fake(driver_path())
