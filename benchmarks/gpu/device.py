"""Where the script runs: a card, or the fakes that let it be tested to its end without one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import environment

FAKE_NOTE = "FAKE: an imitated driver ran on the CPU; no number here says anything about a GPU"
NO_STATE = {"absent": "a fake has no clocks and draws no power"}

DELAY_SIZE, DELAY_PRODUCTS = 8192, 4
"""Products of bf16 that keep a large GPU busy for milliseconds, far longer than the host takes for a burst."""
BURST = 2
"""Steps that can be sent without waiting for any: tables are sent from two places in turn."""


@dataclass(frozen=True)
class Device:
    """A place for tensors, and its clock."""

    torch: torch.device
    is_fake: bool

    @staticmethod
    def card() -> Device:
        """The first GPU.

        Raises:
            RuntimeError: torch sees none.
        """
        if not torch.cuda.is_available():
            raise RuntimeError("expects a GPU that torch can use, but found none; --fake runs without")
        return Device(torch.device("cuda", 0), False)

    @staticmethod
    def fake(library: Path, kernels: Path) -> Device:
        """CPU tensors, which the fake driver `library` takes for device memory; its kernels are the `.so` in `kernels`.

        Before anything of Kaon is used: it reads the environment that this sets.
        """
        os.environ.update(KAON_CUDA_DRIVER=str(library), KAON_TARGET="cuda")
        fake = ctypes.CDLL(str(library))
        fake.kaon_fake_cuda_set_kernel_directory(str(kernels).encode())
        fake.kaon_fake_cuda_set_devices(1, 9, 0)
        return Device(torch.device("cpu"), True)

    def stream(self) -> int:
        """torch's current stream, as the driver's handle."""
        return 0 if self.is_fake else int(torch.cuda.current_stream(self.torch).cuda_stream)

    def synchronize(self) -> None:
        """Wait for everything that was launched."""
        if not self.is_fake:
            torch.cuda.synchronize(self.torch)

    @contextlib.contextmanager
    def other_stream(self) -> Iterator[None]:
        """A stream of its own as torch's current one, after everything so far; what follows comes after all of it. On
        the fakes nothing, as torch has no stream there."""
        if self.is_fake:
            yield
            return
        before = torch.cuda.current_stream(self.torch)
        other = torch.cuda.Stream(self.torch)
        other.wait_stream(before)
        with torch.cuda.stream(other):
            yield
        before.wait_stream(other)

    def delay(self) -> None:
        """Keep torch's current stream busy for some milliseconds, so that what must wait for it is not done by chance.
        On the fakes nothing: their driver delays by itself."""
        if not self.is_fake:
            a = torch.ones(DELAY_SIZE, DELAY_SIZE, device=self.torch, dtype=torch.bfloat16)
            for _ in range(DELAY_PRODUCTS):
                a @ a

    def answers(self) -> bool:
        """Whether it can still be used: after an invalid address or a failed launch, every call fails."""
        try:
            self.synchronize()
        except RuntimeError:
            return False
        return True

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        """Seconds per call of some calls in a row: by events on a card, by the wall clock on the fakes."""
        if self.is_fake:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - start) / calls
        return _seconds_by_events(call, calls)

    def host_seconds(self, call: Callable[[], object], bursts: int) -> float:
        """Seconds of one call that the host spends, in bursts of two to a device with nothing to do: a third step in a
        row would wait for the memory that the first one's tables are sent from."""
        elapsed = 0.0
        for _ in range(bursts):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(BURST):
                call()
            elapsed += time.perf_counter() - start
        self.synchronize()
        return elapsed / (bursts * BURST)

    def device_seconds(self, call: Callable[[], object]) -> float:
        """Seconds of one call that the device spends, however long the host takes: a burst of two waits there behind
        other work until the host has sent all of it. On the fakes, as `seconds`."""
        if self.is_fake:
            return self.seconds(call, BURST)
        self.synchronize()
        self.delay()
        return _seconds_by_events(call, BURST)

    def state_under(self, call: Callable[[], object]) -> dict[str, str]:
        """Clocks, power and what limits them while calls are made all the time; "absent" says why there are none."""
        if self.is_fake:
            return NO_STATE
        name = _smi_name(torch.cuda.get_device_properties(self.torch))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(environment.load_state, name)
            while not asked.done():
                call()
                self.synchronize()
            return asked.result()

    def describe(self) -> dict[str, Any]:
        """What the numbers were measured on."""
        from kaon import _C, __version__
        from kaon.cuda import open_driver

        facts: dict[str, Any] = {"kaon": __version__, "torch": torch.__version__, "compiler": _C.has_compiler}
        facts.update(environment.software(), fake=self.is_fake)
        if self.is_fake:
            return {**facts, "note": FAKE_NOTE, "idle_state": NO_STATE}
        properties = torch.cuda.get_device_properties(self.torch)
        return {
            **facts,
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "driver": open_driver().version,
            "idle_state": environment.card_state(_smi_name(properties)),
        }


def _seconds_by_events(call: Callable[[], object], calls: int) -> float:
    """Seconds per call between events on torch's current stream, before and after some calls in a row."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3 / calls


def _smi_name(properties: Any) -> str:
    """What nvidia-smi calls the device, which counts differently where CUDA_VISIBLE_DEVICES hides some."""
    uuid = getattr(properties, "uuid", None)
    return "0" if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
