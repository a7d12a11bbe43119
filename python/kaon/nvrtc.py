"""Finds NVIDIA's run-time compiler (NVRTC), and compiles kernels with it through the cache.

NVRTC needs neither a GPU nor a driver, and a wheel of PyTorch with CUDA brings one. It is looked for, in this order, at
``KAON_NVRTC`` (then nowhere else), in this process, among the installed wheels, in ``CUDA_HOME`` and ``CUDA_PATH``, by
the loader, and in ``/usr/local/cuda``.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kaon import knobs
from kaon.cache import Cache, make_key
from kaon.compiler.errors import KaonError
from kaon.extension import build_id, extension

if TYPE_CHECKING:
    from kaon import _C

OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v")
"""Functions of the device library that are neither kernels nor marked, such as constexpr ones, are meant for both
sides; ptxas tells registers and spills in the log."""

FALLBACK_ARCHITECTURE = "compute_80"
"""PTX that the driver compiles for whichever GPU it finds, where NVRTC does not know that."""

_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_TOOLKITS = Path("/usr/local")
_REMEDY = (
    "install the wheel (`pip install nvidia-cuda-nvrtc`, which PyTorch for CUDA brings along), "
    "or set KAON_NVRTC to the path of a libnvrtc"
)


class NvrtcError(KaonError, RuntimeError):
    """There is no usable NVRTC; the message says where it was looked for, and what was wrong with what was found."""


@dataclass(frozen=True)
class Place:
    """Somewhere NVRTC may be, and what was found there, the best first."""

    name: str
    found: tuple[str, ...]


def _libraries(folders: Iterable[Path]) -> tuple[str, ...]:
    """Every libnvrtc in ``folders``, newest version first within each; not the alternative build beside it."""

    def version(path: Path) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", path.name.partition(".so")[2])]

    return tuple(
        str(path)
        for folder in folders
        for path in sorted(folder.glob("libnvrtc.so*"), key=version, reverse=True)
        if path.is_file()
    )


def _wheel_folders() -> Iterator[Path]:
    """Where wheels of NVIDIA put NVRTC: the newest CUDA first, then the layout of CUDA 12; conda's place last."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations if spec is not None else None) or ()]
    for root in roots:
        yield from sorted(root.glob("cu[0-9]*/lib"), key=lambda path: int(path.parent.name[2:]), reverse=True)
    for root in roots:
        yield root / "cuda_nvrtc" / "lib"
    yield Path(sys.prefix) / "lib"


def places(loaded: str) -> list[Place]:
    """Where to look, in order. ``loaded`` is the path of an NVRTC in this process, or empty."""
    if knobs.cuda.nvrtc is not None:
        return [Place("KAON_NVRTC", (str(knobs.cuda.nvrtc),))]
    toolkits = [path for path in (knobs.cuda.home, knobs.cuda.path) if path is not None]
    return [
        Place("loaded in this process", (loaded,) if loaded else ()),
        Place("wheels of this Python", _libraries(_wheel_folders())),
        Place("CUDA_HOME, CUDA_PATH", _libraries(path / lib for path in toolkits for lib in ("lib64", "lib"))),
        Place("the loader's path", _SONAMES),
        Place(
            f"{_TOOLKITS}/cuda*",
            _libraries([_TOOLKITS / "cuda" / "lib64", *sorted(_TOOLKITS.glob("cuda-*/lib64"), reverse=True)]),
        ),
    ]


_opened: dict[tuple[str, ...], _C.Nvrtc] = {}
_opened_lock = threading.Lock()


def load() -> _C.Nvrtc:
    """The first usable NVRTC; opened once per process for the same findings.

    Raises:
        NvrtcError: there is none.
    """
    compiler = extension()
    with _opened_lock:
        looked = places(compiler.Nvrtc.find_loaded())
        candidates = tuple(dict.fromkeys(path for place in looked for path in place.found))
        if candidates not in _opened:
            try:
                _opened[candidates] = compiler.Nvrtc(list(candidates))
            except OSError as error:
                nowhere = "".join(f"\n  {place.name}: nothing there" for place in looked if not place.found)
                raise NvrtcError(f"{error}{nowhere}\n{_REMEDY}") from None
        return _opened[candidates]


# ---- kernels


@dataclass(frozen=True)
class Resources:
    """What a kernel takes, as ptxas told."""

    registers: int
    stack_bytes: int
    spill_bytes: int


_RESOURCES = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class Image:
    """A kernel as a CUDA driver loads it, and what the cache holds for it."""

    name: str
    arch: str
    kind: str
    """``cubin`` or ``ptx``."""
    image: bytes
    ptx: str
    log: str

    @property
    def resources(self) -> dict[str, Resources]:
        """What each kernel of the image takes; empty for PTX, which has no registers yet."""
        return {
            name: Resources(int(registers), int(stack), int(stores) + int(loads))
            for name, stack, stores, loads, registers in _RESOURCES.findall(self.log)
        }

    def encode(self) -> bytes:
        """As one byte string: length of the rest in JSON, the rest, the image."""
        fields = {"name": self.name, "arch": self.arch, "kind": self.kind, "ptx": self.ptx, "log": self.log}
        head = json.dumps(fields).encode()
        return len(head).to_bytes(4, "little") + head + self.image

    @staticmethod
    def decode(data: bytes) -> Image:
        """The inverse of :meth:`encode`; raises ValueError for anything else."""
        end = 4 + int.from_bytes(data[:4], "little")
        fields = json.loads(data[4:end])
        if not (isinstance(fields, dict) and set(fields) == {"name", "arch", "kind", "ptx", "log"} and data[end:]):
            raise ValueError("not a compiled kernel")
        return Image(image=data[end:], **fields)


def kernel_key(text: str, arch: str, headers: Mapping[str, str], version: tuple[int, int]) -> str:
    """The cache key of a kernel: all that decides its image. The lines of the user's Python do not."""
    library = json.dumps(headers, sort_keys=True)
    return make_key("cuda", build_id(), str(version), arch, json.dumps(OPTIONS), library, without_lines(text))


_LINE_DIRECTIVES = re.compile(r"^#line .*\n", re.MULTILINE)


def without_lines(text: str) -> str:
    """A kernel's text, less the lines of the user's Python that it was made from."""
    return _LINE_DIRECTIVES.sub("", text)


class Compiler:
    """Compiles kernels for one architecture; from any number of threads at the same time.

    Args:
        arch: such as ``sm_90a`` for machine code, or ``compute_80`` for PTX.
        headers: what kernels may include, name to text; default: the device library.
    """

    def __init__(self, arch: str, cache: Cache, headers: Mapping[str, str] | None = None):
        self.arch = arch
        self.nvrtc = load()
        self._cache = cache
        self._headers = dict(library() if headers is None else headers)

    def load(self, name: str, text: str) -> Image | None:
        """The image of a kernel that the cache holds."""
        key = self._key(text)
        payload = self._cache.load(key)
        if payload is None:
            return None
        try:
            image = Image.decode(payload)
            if (image.name, image.arch) != (name, self.arch):
                raise ValueError(f"holds kernel {image.name} for {image.arch}, not {name} for {self.arch}")
            return image
        except ValueError as error:
            self._cache.reject(key, str(error))
            return None

    def compile(self, name: str, text: str, filename: str | None = None) -> Image:
        """Compile a kernel and store it in the cache. Other Python threads run meanwhile.

        Args:
            filename: what messages call the text where no ``#line`` says otherwise.

        Raises:
            kaon._C.CompileError: NVRTC refused the text; carries its log.
        """
        binary = self.nvrtc.compile(text, filename or f"{name}.cu", self.arch, list(OPTIONS), self._headers)
        image = Image(name, self.arch, binary.kind, binary.image, binary.ptx, binary.log)
        self._cache.store(self._key(text), image.encode())
        return image

    def _key(self, text: str) -> str:
        return kernel_key(text, self.arch, self._headers, self.nvrtc.version)


def library() -> dict[str, str]:
    """The device library that kernels include: name to text."""
    return dict(extension().cuda_library())
