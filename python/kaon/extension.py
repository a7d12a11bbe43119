"""The compiled extension ``kaon._C``, and what identifies the compiler in it."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from kaon.compiler.errors import KaonError


class DriverError(KaonError, RuntimeError):
    """Compilation cannot start: the extension is missing, or an edited stage cannot be read."""


def runtime_extension() -> Any:
    """``kaon._C``, with or without the compiler; raises :class:`DriverError` with the remedy where it is missing."""
    try:
        from kaon import _C
    except ImportError as error:
        raise DriverError(
            f"the compiled extension kaon._C cannot be loaded ({error}); "
            "build it or install the package, and see `python -m kaon doctor`"
        ) from error
    return _C


def extension() -> Any:
    """``kaon._C`` with the compiler; raises :class:`DriverError` with the remedy where it has none or is missing."""
    module = runtime_extension()
    if not module.has_compiler:
        raise DriverError(
            "this build of kaon has no compiler (KAON_COMPILER=OFF), it only runs compiled packages: make one with "
            "`python -m kaon compile ... -o DIR` where the compiler is, and use kaon.load(DIR) here"
        )
    return module


@functools.cache
def build_id() -> str:
    """Identifies the compiler that produces code: the extension's bytes and the LLVM libraries it runs on."""
    module = extension()
    digest = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    return f"{digest}-llvm-{module.llvm_version()}-{_loaded_libraries()}"


def _loaded_libraries() -> str:
    """Size and time of each LLVM and MLIR library in this process: a rebuilt one of the same version is another one."""
    found = set()
    with suppress(OSError):  # no /proc: the version has to do
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            path = line.split(maxsplit=5)[-1]
            if re.match(r"lib(LLVM|MLIR)\b", os.path.basename(path)):
                status = os.stat(path)
                found.add(f"{os.path.basename(path)}:{status.st_size}:{status.st_mtime_ns}")
    return ",".join(sorted(found))
