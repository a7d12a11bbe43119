"""A package on disk: read, verified, and made into a program."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaon.package.errors import PackageError
from kaon.package.machine import choose_gpu, cpu_levels
from kaon.package.manifest import CPU, Manifest
from kaon.package.plans import MismatchError, arrange, check_names, match, spec_of

if TYPE_CHECKING:
    from kaon.cuda import Placement
    from kaon.driver import MatrixEntry
    from kaon.target import CompiledProgram

MANIFEST = "package.json"
PLAN = "plan.json"


def kernel_file(kernel: str, architecture: str) -> str:
    """Where a kernel's code for a GPU lies."""
    return f"{kernel}.{architecture}.{'ptx' if architecture.startswith('compute') else 'cubin'}"


def library_file(architecture: str) -> str:
    """Where the code of all kernels for a processor lies."""
    return f"kernels.{architecture}.so"


@dataclass(frozen=True)
class Package:
    """A package whose files are whole and whose version and architecture fit this machine."""

    directory: Path
    manifest: Manifest

    @staticmethod
    def open(directory: str | Path) -> Package:
        """Read and verify a package.

        Raises:
            PackageError: it is none, not whole, or not for this Kaon or this machine.
        """
        package = Package(Path(directory), _read_manifest(Path(directory)))
        package._check_version()
        package._check_files()
        package._check_plan()
        package._check_architecture()
        return package

    def read(self, name: str) -> bytes:
        """The content of a file, verified.

        Raises:
            PackageError: it is missing or damaged.
        """
        if name not in self.manifest.files:
            raise PackageError(self.directory, f"{MANIFEST} lists no file {name}")
        expected = self.manifest.files[name]
        try:
            content = (self.directory / name).read_bytes()
        except OSError as error:
            raise PackageError(self.directory, f"cannot read {name}: {error.strerror}") from None
        if len(content) != expected.size:
            raise PackageError(
                self.directory, f"{name} is damaged: expects {expected.size} bytes, but has {len(content)}"
            )
        digest = hashlib.sha256(content).hexdigest()
        if digest != expected.sha256:
            raise PackageError(
                self.directory,
                f"{name} is damaged: expects SHA-256 {expected.sha256[:16]}..., but has {digest[:16]}...",
            )
        return content

    def program(self, entries: Sequence[MatrixEntry], threads: int, placement: Placement | None) -> CompiledProgram:
        """The program that steps `entries`.

        Args:
            threads: of a step, on a processor.
            placement: where it runs on a GPU; None on a processor.

        Raises:
            PackageError: `entries` are not what the package was compiled for, in some order, or the device is not.
        """
        from kaon.extension import runtime_extension

        try:
            order = match(self.manifest.matrices, [spec_of(entry) for entry in entries])
        except MismatchError as error:
            raise PackageError(self.directory, str(error)) from None
        plan_json = arrange(self.read(PLAN).decode(), order, entries)
        plan = runtime_extension().StepPlan.from_json(plan_json)
        if self.manifest.target == CPU:
            if placement is not None:
                raise PackageError(self.directory, f"expects parameters on the CPU, {self._made_for()}, but got CUDA's")
            return self._cpu_program(plan, threads)
        if placement is None:
            raise PackageError(
                self.directory, f"expects parameters on a CUDA device, {self._made_for()}, but got the CPU's"
            )
        return self._cuda_program(plan, placement)

    # -- programs

    def _cpu_program(self, plan: Any, threads: int) -> CompiledProgram:
        from kaon.extension import runtime_extension
        from kaon.target import CompiledProgram, Statistics

        architecture = self._cpu_architecture()
        name = library_file(architecture)
        self.read(name)
        library = ctypes.CDLL(str(self.directory.resolve() / name))
        table = runtime_extension().KernelTable()
        for kernel in self.manifest.kernels:
            table.add(kernel, ctypes.cast(getattr(library, kernel), ctypes.c_void_p).value)
        executor = runtime_extension().Executor(plan, table, threads)
        target = f"cpu (package for {architecture}), {threads} thread{'s' if threads != 1 else ''}"
        return CompiledProgram(plan, executor, Statistics(), "", list(self.manifest.kernels), target)

    def _cuda_program(self, plan: Any, placement: Placement) -> CompiledProgram:
        from kaon.cuda import CudaProgram, device_info, open_driver

        device = device_info(open_driver(), placement.device)
        architecture = choose_gpu(self.manifest.architectures, device["arch"])
        if architecture is None:
            raise self._wrong_architecture(f"device {placement.device} ({device['name']}) is {device['arch']}")
        images = {kernel: self.read(kernel_file(kernel, architecture)) for kernel in self.manifest.kernels}
        return CudaProgram(plan, images, placement, code=f"{architecture} (package)")

    # -- checks

    def _check_version(self) -> None:
        from kaon import __version__

        if self.manifest.version != __version__:
            raise PackageError(
                self.directory,
                f"was made by kaon {self.manifest.version}, but this is kaon {__version__}; compile it again",
            )

    def _check_files(self) -> None:
        for name in self.manifest.files:
            self.read(name)
        if PLAN not in self.manifest.files:
            raise PackageError(self.directory, f"{MANIFEST} lists no file {PLAN}")
        for architecture in self.manifest.architectures:
            for name in self._code_files(architecture):
                if name not in self.manifest.files:
                    raise PackageError(self.directory, f"{MANIFEST} lists no file {name}")

    def _check_plan(self) -> None:
        """Refuse a plan of another version of its schema, which changes more often than that of the package, and one
        whose kernels are not those of the package."""
        from kaon.extension import runtime_extension

        plan = self.read(PLAN).decode()
        try:
            runtime_extension().StepPlan.from_json(plan)
            check_names(plan)
        except ValueError as error:
            raise PackageError(self.directory, f"{PLAN}: {error}; compile it again") from None

    def _code_files(self, architecture: str) -> list[str]:
        if self.manifest.target == CPU:
            return [library_file(architecture)]
        return [kernel_file(kernel, architecture) for kernel in self.manifest.kernels]

    def _check_architecture(self) -> None:
        """Refuse a package that nothing in this machine can run; which device does is seen later."""
        if self.manifest.target == CPU:
            self._cpu_architecture()
            return
        from kaon.cuda import CudaUnavailable, device_info, open_driver

        try:
            driver = open_driver()
        except CudaUnavailable as error:
            raise self._wrong_architecture(str(error)) from None
        devices = [device_info(driver, index) for index in range(driver.device_count)]
        if not any(choose_gpu(self.manifest.architectures, device["arch"]) for device in devices):
            found = ", ".join(f"{device['arch']} ({device['name']})" for device in devices) or "no device"
            raise self._wrong_architecture(f"this machine has {found}")

    def _cpu_architecture(self) -> str:
        levels = cpu_levels()
        for level in levels:
            if level in self.manifest.architectures:
                return level
        raise self._wrong_architecture(f"this processor has {', '.join(levels) or 'no level of x86-64 that is known'}")

    def _made_for(self) -> str:
        return f"as it was compiled for {', '.join(self.manifest.architectures)}"

    def _wrong_architecture(self, finding: str) -> PackageError:
        return PackageError(self.directory, f"was compiled for {', '.join(self.manifest.architectures)}, but {finding}")


def _read_manifest(directory: Path) -> Manifest:
    if not directory.is_dir():
        raise PackageError(directory, "expects the directory of a compiled package, but there is none")
    try:
        return Manifest.from_json((directory / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise PackageError(directory, f"cannot read {MANIFEST}: {error.strerror}") from None
    except ValueError as error:  # a ManifestError, or bytes that are no text
        raise PackageError(directory, str(error)) from None
