"""Every environment variable Kaon reads, typed, documented and settable from Python.

A knob is an attribute of a group. Reading it gives the value set from Python if there is one, else the environment
variable's value, else the default; the environment is looked at on every read, so a test may change it at any time::

    from kaon import knobs

    knobs.runtime.num_threads = 4            # for the rest of the process
    with knobs.scope():                      # for a block
        knobs.debug.dump = True
        ...
    del knobs.runtime.num_threads            # back to the environment

``python -m kaon doctor`` prints the table that :func:`describe` makes. No other file of the package reads the
environment, and nothing below Python does.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

_TRUE = frozenset({"1", "on", "true", "yes"})
_FALSE = frozenset({"", "0", "off", "false", "no", "none"})


class KnobError(ValueError):
    """An environment variable or an assigned value that the knob cannot take."""


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError("one of 1, on, true, yes, 0, off, false, no")


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError("a whole number of at least 1")
    return value


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _byte_count(text: str) -> int:
    lowered = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = lowered[-1:] if lowered[-1:] in ("k", "m", "g") else ""
    digits = lowered.removesuffix(unit) if unit else lowered
    if not digits.isdecimal():
        raise ValueError("a number of bytes such as 1073741824, 512M or 2G")
    return int(digits) * _UNITS[unit]


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    """What reads one of `names`, in letters of either case."""

    def parse(text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return lowered

    return parse


def _path(text: str) -> Path:
    if not text:
        raise ValueError("a path")
    return Path(text).expanduser() if text.startswith("~") else Path(text)


STAGES = ("dsl", "kaon", "simplified", "scheduled", "kernels", "cuda", "llvm", "ptx", "assembly", "log", "plan")
"""What can be dumped and printed, in the order of compilation; :data:`kaon.stages.STAGES` has their files."""


def _stages(text: str) -> frozenset[str]:
    """``1`` selects every stage, a list such as ``kaon,plan`` the named ones, ``0`` none."""
    lowered = text.strip().lower()
    if lowered in _FALSE:
        return frozenset()
    if lowered in _TRUE:
        return frozenset({"all"})
    names = frozenset(part.strip() for part in lowered.split(",") if part.strip())
    if not names <= {"all", *STAGES}:
        raise ValueError(f"1, 0, or names out of {', '.join(STAGES)}")
    return names


TARGETS = ("cpu", "cuda")
"""What programs can be compiled for."""

MAIN_LOOPS = ("mma", "wgmma")
"""How products on a GPU use its tensor cores: by instructions of warps, which all have, or of warpgroups (sm_90a)."""


class Knob(Generic[T]):
    """One typed setting: a descriptor on a :class:`KnobGroup`."""

    def __init__(self, variable: str, parse: Callable[[str], T], default: T, doc: str, *, empty_is_unset: bool = True):
        self.variable = variable
        self.parse = parse
        self.default = default
        self.empty_is_unset = empty_is_unset
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, group: None, owner: type) -> Knob[T]: ...
    @overload
    def __get__(self, group: KnobGroup, owner: type) -> T: ...
    def __get__(self, group: KnobGroup | None, owner: type) -> Knob[T] | T:
        if group is None:
            return self
        if self.name in group.assigned:
            return group.assigned[self.name]
        text = os.environ.get(self.variable)
        if text is None or (not text and self.empty_is_unset):
            return self.default
        return self._convert(text, f"environment variable {self.variable}")

    def __set__(self, group: KnobGroup, value: T | str) -> None:
        group.assigned[self.name] = self._convert(value, f"knob {self.name}") if isinstance(value, str) else value

    def __delete__(self, group: KnobGroup) -> None:
        group.assigned.pop(self.name, None)

    def _convert(self, text: str, what: str) -> T:
        try:
            return self.parse(text)
        except ValueError as wish:
            raise KnobError(f"{what} expects {wish}, but got {text!r}") from None


class StagesKnob(Knob[frozenset[str]]):
    """A set of stages; a flag or a collection of names can be assigned as well as text."""

    def __set__(self, group: KnobGroup, value: frozenset[str] | str) -> None:
        if isinstance(value, bool):
            value = "1" if value else "0"
        super().__set__(group, value if isinstance(value, str) else ",".join(sorted(value)))


class KnobGroup:
    """A named set of knobs. Only declared names can be assigned, so a misspelt one is an error."""

    def __init__(self) -> None:
        self.__dict__["assigned"] = {}

    assigned: dict[str, Any]

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(getattr(type(self), name, None), Knob):
            known = ", ".join(knob.name for knob in self.declared())
            raise AttributeError(f"{type(self).__name__} has no knob {name!r}; it has {known}")
        super().__setattr__(name, value)

    @classmethod
    def declared(cls) -> list[Knob[Any]]:
        """The group's knobs in order of declaration."""
        return [member for member in vars(cls).values() if isinstance(member, Knob)]


class Cache(KnobGroup):
    """Where compiled code is kept between processes."""

    enabled = Knob("KAON_CACHE", _flag, True, "off: keep nothing on disk and load nothing from it")
    directory = Knob[Path | None](
        "KAON_CACHE_DIR", _path, None, "directory of compiled kernels (default: kaon in the user's cache directory)"
    )
    size_limit = Knob(
        "KAON_CACHE_SIZE",
        _byte_count,
        1 << 30,
        "bytes the directory may hold; what was not used for longest goes first",
    )
    user_cache = Knob[Path | None](
        "XDG_CACHE_HOME", _path, None, "the user's cache directory (default: ~/.cache); ignored unless absolute"
    )
    home = Knob[Path | None]("HOME", _path, None, "the user's home directory")


class Compilation(KnobGroup):
    """How programs are compiled."""

    always_compile = Knob("KAON_ALWAYS_COMPILE", _flag, False, "compile even what the cache holds, and overwrite it")
    threads = Knob[int | None](
        "KAON_COMPILE_THREADS", _positive, None, "kernels compiled at the same time (default: one per available core)"
    )
    override_directory = Knob[Path | None](
        "KAON_OVERRIDE_DIR",
        _path,
        None,
        "existing directory of edited dump files that replace the stages of the same name",
    )


class Debug(KnobGroup):
    """What is written down while compiling."""

    dump = StagesKnob(
        "KAON_DUMP", _stages, frozenset[str](), "write stages as numbered files: 1, or names such as kaon,plan"
    )
    dump_directory = Knob("KAON_DUMP_DIR", _path, Path("kaon-dump"), "where dumps go, one subdirectory per program")
    print_ir = StagesKnob(
        "KAON_PRINT_IR", _stages, frozenset[str](), "print stages to standard error: 1, or names as above"
    )


class Runtime(KnobGroup):
    """How programs run."""

    interpret = Knob("KAON_INTERPRET", _flag, False, "run updates in the NumPy float64 interpreter, compiling nothing")
    num_threads = Knob[int | None](
        "KAON_NUM_THREADS",
        _positive,
        None,
        "threads of a step (default: torch.get_num_threads() under kaon.optim, else one per available core)",
    )
    torch_threads = Knob("KAON_TORCH_THREADS", _flag, True, "off: steps run on threads of their own, not on torch's")
    target = Knob[str | None](
        "KAON_TARGET",
        _one_of(TARGETS),
        None,
        "cpu or cuda: run programs there (default: where the parameters are); cuda on the CPU needs a fake driver",
    )


class Cuda(KnobGroup):
    """Where NVIDIA's libraries are, and how programs run on its GPUs."""

    nvrtc = Knob[Path | None](
        "KAON_NVRTC", _path, None, "path of libnvrtc, the run-time compiler (default: searched, see docs/cuda.md)"
    )
    driver = Knob[Path | None](
        "KAON_CUDA_DRIVER", _path, None, "path of libcuda, the driver (default: the system's libcuda.so.1)"
    )
    graphs = Knob(
        "KAON_CUDA_GRAPHS", _flag, True, "replay each phase of a step as one CUDA graph; off: launch by launch"
    )
    main_loop = Knob(
        "KAON_MAIN_LOOP",
        _one_of(MAIN_LOOPS),
        "mma",
        "main loop of matrix products: mma, or wgmma, which only sm_90a has and which no GPU has run yet",
    )
    home = Knob[Path | None]("CUDA_HOME", _path, None, "a CUDA toolkit, whose NVRTC is used where no wheel has one")
    path = Knob[Path | None]("CUDA_PATH", _path, None, "the same, under the name that NVIDIA's installers set")


cache = Cache()
compilation = Compilation()
debug = Debug()
runtime = Runtime()
cuda = Cuda()

GROUPS: dict[str, KnobGroup] = {
    "cache": cache,
    "compilation": compilation,
    "debug": debug,
    "runtime": runtime,
    "cuda": cuda,
}


@contextmanager
def scope() -> Iterator[None]:
    """Undo, at the end of the block, every assignment made to any knob inside it."""
    saved = {name: dict(group.assigned) for name, group in GROUPS.items()}
    try:
        yield
    finally:
        for name, group in GROUPS.items():
            group.assigned.clear()
            group.assigned.update(saved[name])


def available_cores() -> int:
    """Cores this process may run on: what its affinity mask allows, not what the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every operating system
        return os.cpu_count() or 1


BUILD_VARIABLES = frozenset({"KAON_BUILD_DIR", "KAON_VENV"})
"""Read by the Makefile and the tests, not by the package."""


def unknown_variables() -> dict[str, str | None]:
    """Variables of the environment named ``KAON_*`` that nothing reads, each with the known name it looks like."""
    known = {knob.variable for group in GROUPS.values() for knob in group.declared()} | BUILD_VARIABLES
    unknown = sorted(name for name in os.environ if name.startswith("KAON_") and name not in known)
    return {name: next(iter(difflib.get_close_matches(name, known, n=1)), None) for name in unknown}


def describe() -> str:
    """A table of every knob: variable, value in use, where it comes from, meaning."""
    rows = []
    for group_name, group in GROUPS.items():
        for knob in group.declared():
            try:
                value = str(_shown(getattr(group, knob.name)))
            except KnobError as error:
                value = f"invalid: {error}"
            if knob.name in group.assigned:
                source = "python"
            else:
                source = "environment" if os.environ.get(knob.variable) else "default"
            rows.append((knob.variable, f"{group_name}.{knob.name}", value, source, knob.__doc__ or ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    )


def markdown() -> str:
    """The table of environment variables in ``docs/inspection.md``."""
    lines = ["| variable | in Python | default | meaning |", "| --- | --- | --- | --- |"]
    for group_name, group in GROUPS.items():
        for knob in group.declared():
            default = _shown(knob.default)
            lines.append(f"| `{knob.variable}` | `knobs.{group_name}.{knob.name}` | {default} | {knob.__doc__} |")
    return "\n".join(lines) + "\n"


def _shown(value: object) -> object:
    if isinstance(value, frozenset):
        return ",".join(sorted(value)) or "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "unset" if value is None else value
