"""What is seen of a program on its way: dumped, printed, or replaced by an edited file.

``KAON_DUMP=1`` writes the stages below to ``KAON_DUMP_DIR``, one directory per program; ``KAON_OVERRIDE_DIR`` replaces
the output of a stage by an edited file of the same name.
"""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from pathlib import Path
from typing import ClassVar

from kaon import knobs
from kaon.extension import DriverError

STAGES = {
    "dsl": "00-dsl.py",
    "kaon": "10-kaon.mlir",
    "simplified": "20-simplified.mlir",
    "scheduled": "30-scheduled.mlir",
    "kernels": "40-{kernel}.mlir",
    "cuda": "42-{kernel}.cu",
    "llvm": "43-{kernel}.ll",
    "ptx": "44-{kernel}.ptx",
    "assembly": "45-{kernel}.s",
    "log": "46-{kernel}.log",
    "plan": "50-plan.json",
}
"""Stage name, as in ``KAON_DUMP=kaon,plan``, to the file it is written to. Those of :data:`READ_ONLY_STAGES` are for
reading; the others can be edited and fed back. The target decides which of them a program has."""

READ_ONLY_STAGES = frozenset({"dsl", "llvm", "ptx", "assembly", "log"})


class OverrideWarning(RuntimeWarning):
    """Files of the override directory replaced nothing."""


_LOCATION_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"| loc\(|[()]')


def without_locations(text: str) -> str:
    """Module text as the front end prints it, less its source locations: what the program is, wherever it is written.

    A line added above an update changes every location and nothing else, so neither the cache nor the name of the
    program's directory may depend on them.
    """
    kept: list[str] = []
    start = depth = 0
    for token in _LOCATION_TOKENS.finditer(text):
        if depth == 0:
            if token[0] == " loc(":
                kept.append(text[start : token.start()])
                depth = 1
        elif token[0] == ")":
            depth -= 1
            start = token.end()
        elif token[0] in ("(", " loc("):
            depth += 1
    return "".join([*kept, text[start:]])


class StageFiles:
    """Dumps, overrides and prints the stages of one program, made for one target.

    Raises:
        DriverError: ``KAON_OVERRIDE_DIR`` names no directory.
    """

    _used: ClassVar[set[Path]] = set()
    """The files that replaced a stage of any program of this process."""

    def __init__(self, text: str, target: str):
        self._wanted = knobs.debug.dump
        self._printed = knobs.debug.print_ir
        self._overrides = knobs.compilation.override_directory
        digest = hashlib.sha256(without_locations(text).encode()).hexdigest()
        self._directory = knobs.debug.dump_directory / f"program-{digest[:12]}{'' if target == 'cpu' else f'-{target}'}"
        if self._overrides is not None and not self._overrides.is_dir():
            raise DriverError(f"KAON_OVERRIDE_DIR expects an existing directory, but got '{self._overrides}'")

    @property
    def active(self) -> bool:
        """Whether any stage has to be seen, so that a lowered program from the cache does not do."""
        return bool(self._wanted or self._printed or self._overrides)

    def wants(self, stage: str) -> bool:
        """Whether ``stage`` is dumped or printed."""
        return bool({"all", stage} & (self._wanted | self._printed))

    def write(self, stage: str, text: str, kernel: str = "") -> None:
        """Dump and print the text of ``stage`` if asked to."""
        name = STAGES[stage].format(kernel=kernel)
        if {"all", stage} & self._wanted:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / name).write_text(text, encoding="utf-8")
        if {"all", stage} & self._printed:
            print(f"// ---- {name}\n{text.rstrip()}", file=sys.stderr)

    def replacement(self, stage: str, kernel: str = "") -> tuple[str, str] | None:
        """Text and file name of the edited ``stage``, where the override directory has one for this program or any."""
        if self._overrides is None:
            return None
        name = STAGES[stage].format(kernel=kernel)
        for path in (self._overrides / self._directory.name / name, self._overrides / name):
            if path.is_file():
                self._used.add(path)
                print(f"kaon: {path} replaces {name} of {self._directory.name}", file=sys.stderr)
                return path.read_text(encoding="utf-8"), str(path)
        return None

    def warn_unused(self) -> None:
        """Warn about files of the override directory that replaced no stage of any program so far."""
        if self._overrides is None:
            return
        files = {path for path in self._overrides.rglob("*") if path.is_file()}
        unused = sorted(str(path.relative_to(self._overrides)) for path in files - self._used)
        if unused:
            warnings.warn(
                f"in KAON_OVERRIDE_DIR '{self._overrides}' these files replaced nothing so far: {', '.join(unused)}",
                OverrideWarning,
                stacklevel=2,
            )
