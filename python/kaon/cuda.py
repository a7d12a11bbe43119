"""Programs on NVIDIA's GPUs: the driver, and a program made of a plan and compiled kernels. Needs no compiler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaon import knobs
from kaon.compiler.errors import KaonError
from kaon.extension import runtime_extension
from kaon.target import CompiledProgram, Statistics

if TYPE_CHECKING:
    from kaon import _C


class CudaUnavailable(KaonError, RuntimeError):
    """There is no CUDA driver, or no such device; the message says why, and what helps."""


_drivers: dict[str | None, _C.CudaDriver] = {}
_drivers_lock = threading.Lock()


def open_driver() -> _C.CudaDriver:
    """The CUDA driver that ``KAON_CUDA_DRIVER`` names, else the system's; opened once per process.

    Raises:
        CudaUnavailable: it cannot be opened or used.
    """
    path = None if knobs.cuda.driver is None else str(knobs.cuda.driver)
    with _drivers_lock:
        if path not in _drivers:
            try:
                _drivers[path] = runtime_extension().CudaDriver(path)
            except runtime_extension().CudaError as error:
                raise CudaUnavailable(str(error)) from None
        return _drivers[path]


def device_info(driver: _C.CudaDriver, index: int) -> dict[str, Any]:
    """What is known about a device: its name, arch, shared_bytes, ...

    Raises:
        CudaUnavailable: there is no such device.
    """
    if not 0 <= index < driver.device_count:
        count = f"{driver.device_count} device{'s' if driver.device_count != 1 else ''}"
        raise CudaUnavailable(f"cuda: expects a device below {driver.device_count}, but got {index}: there are {count}")
    found: dict[str, Any] = driver.device(index)
    return found


def _default_stream() -> int:
    return 0


@dataclass(frozen=True)
class Placement:
    """Where and how a program runs."""

    device: int = 0
    allocate: Callable[[int], int] | None = None
    """Gives the address of so many bytes on the device, which stay for as long as this object does; default: the
    driver's own memory."""
    stream: Callable[[], int] = _default_stream
    """The stream of the next step, as the driver's handle; 0 is the default stream."""
    wait: bool = False
    """Whether a step returns only when it is done."""


class CudaProgram(CompiledProgram):
    """A plan and its kernels on one device.

    Args:
        images: by name, the CUBIN or PTX of every kernel of the plan, and of ``check_finite_<type>`` for every type of
            gradient.
        code: for people, what the images were made for.
    """

    def __init__(
        self,
        plan: _C.StepPlan,
        images: Mapping[str, bytes],
        placement: Placement,
        *,
        code: str,
        module_text: str = "",
        statistics: Statistics | None = None,
    ):
        driver = open_driver()
        device = device_info(driver, placement.device)
        executor = runtime_extension().CudaExecutor(
            plan, dict(images), driver, placement.device, placement.allocate, knobs.cuda.graphs
        )
        target = f"cuda:{placement.device} ({device['name']}, {device['arch']}), kernels for {code}"
        if driver.is_fake:
            target += f", on the FAKE driver {driver.path}: no GPU runs them"
        super().__init__(plan, executor, statistics or Statistics(), module_text, list(images), target)
        self.placement = placement
        self.is_fake: bool = driver.is_fake

    def step(
        self, step: int, parameters: Sequence[int], scalars: Sequence[Sequence[float]], check_finite: bool = True
    ) -> int:
        """As :meth:`CompiledProgram.step`, on addresses of the device.

        Returns before the step is done, unless the placement says to wait or gradients are checked.
        """
        return self._waited(self.executor.step(step, parameters, scalars, check_finite, self.placement.stream()))

    def step_with(self, step: int, inputs: _C.StepInputs, check_finite: bool = True) -> int:
        """As :meth:`step`, on addresses and scalars that the extension keeps from one step to the next."""
        return self._waited(self.executor.step_with(step, inputs, check_finite, self.placement.stream()))

    def _waited(self, bad: int) -> int:
        """The number of bad gradients that a step found, when the step is as far as the placement wants it."""
        if self.placement.wait:
            self.executor.synchronize()
        return bad
