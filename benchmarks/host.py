"""What a step of many small matrices costs the host on CUDA: the processor's part alone, measured without a GPU.

    python benchmarks/host.py                        # 200 matrices, about a minute
    python benchmarks/host.py --out results.json

**The driver is the imitated one of `test/cuda/fake`, and kernels do nothing**, so this is a figure about Python and C++
on the processor and none about a GPU. What a real driver takes for its nine calls is not in it; what the imitated one
takes, which copies, checks and queues under locks, is. The parts:

* step: the whole of `optimizer.step()`;
* collect: options and every parameter, gradient and state are compared with what they were;
* executor: `step_with`, from Python into the imitated driver and back;
* after: counts of updates and autograd's versions, which increment_version is alone;
* torch: `step()` of a `torch.optim.Optimizer` that does nothing, with torch's own hooks and its profiler's mark.

Needs NVRTC and a C++ compiler, as the tests on the imitated driver do. No peer is beside it: on the CPU
`torch.optim.AdamW(foreach=True)` computes tensor by tensor, which is another thing than queueing kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from measure import interleave_clocks, machine, timed
from timing import Timing
from torch import Tensor, nn
from torch.autograd.graph import increment_version

sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "python"))

import fake_cuda
from cuda_tools import ShimCompiler, unavailable
from kaon import knobs, nvrtc
from kaon.cuda import Placement
from kaon.optim import AdamW, PeriodicRowwiseMuon, devices

NOTE = "FAKE driver, kernels that do nothing: the processor's part of a step, and no figure about a GPU"
TARGET_MICROSECONDS = 50.0
CALLS = 20
SHAPE = (16, 16)
_NOTHING = """#include <cstddef>
#include <cstdint>
extern "C" __attribute__((visibility("default"))) int kaon_shim_run_{name}(
    uint32_t, uint32_t, size_t, void **, unsigned, char *, size_t) {{ return 0; }}
extern "C" __attribute__((visibility("default"))) const uint32_t kaon_shim_parameters_{name}[] = {{{sizes}, 0}};
"""


class _NothingCompiler(ShimCompiler):
    """Kernels as NVRTC makes them, and for the imitated driver code of the same name that does nothing."""

    def _build(self, name: str, text: str) -> None:
        sizes = "16, 8" if name.startswith("matmul") else "8, 8, 8"
        fake_cuda.build_source(name, _NOTHING.format(name=name, sizes=sizes))


@contextmanager
def _nothing_gpu() -> Iterator[fake_cuda.Fake]:
    """A GPU whose kernels do nothing, for parameters on the CPU; a step returns without waiting for it, as on a GPU."""
    fake = fake_cuda.fake()
    kept = nvrtc.Compiler, devices.placement_for
    with knobs.scope():
        knobs.cuda.driver = fake_cuda.driver_path()
        knobs.runtime.target = "cuda"
        nvrtc.Compiler = _NothingCompiler  # type: ignore[misc]
        devices.placement_for = lambda device: Placement()
        fake.set_devices(1, (9, 0))
        fake.take_faults()
        try:
            yield fake
            faults = fake.take_faults()
            if faults:
                raise SystemExit("the imitated driver found faults:\n" + "\n".join(faults))
        finally:
            nvrtc.Compiler, devices.placement_for = kept  # type: ignore[misc]
            fake.set_delays()


class _Nothing(torch.optim.Optimizer):
    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None: ...


def _parameters(count: int) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.zeros(SHAPE)) for _ in range(count)]
    for parameter in params:
        parameter.grad = torch.zeros(SHAPE)
    return params


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "AdamW": lambda params, **options: AdamW(params, lr=1e-3, **options),
    "row step": lambda params, **options: PeriodicRowwiseMuon(params, lr=1e-3, period=240, phase=239, **options),
    "refresh": lambda params, **options: PeriodicRowwiseMuon(params, lr=1e-3, period=1, **options),
}


class _Subject:
    """An optimizer, and the parts of its step as calls."""

    def __init__(self, name: str, count: int, nonfinite: str) -> None:
        self.params = _parameters(count)
        self.optimizer = OPTIMIZERS[name](self.params, nonfinite=nonfinite)
        for _ in range(3):
            self.optimizer.step()
        (self.program,) = self.optimizer._programs
        self.executor = self.program.compiled.executor
        self.check = nonfinite != "propagate"

    def renew(self) -> None:
        """New gradients elsewhere, as after `zero_grad(set_to_none=True)`."""
        kept: list[Tensor | None] = [parameter.grad for parameter in self.params]
        for parameter in self.params:
            parameter.grad = torch.zeros(SHAPE)
        del kept

    def parts(self) -> dict[str, Callable[[], Any]]:
        program, optimizer = self.program, self.optimizer

        def after() -> None:
            if program._counts_updates:
                program.inputs.count_updates(program._tensors)
            increment_version(program._parameters)

        return {
            "collect": lambda: program.collect(optimizer.state),
            "executor": lambda: program.compiled.step_with(2, program.inputs, self.check),
            "after": after,
            "increment_version": lambda: increment_version(program._parameters),
        }


def _median_of_calls(call: Callable[[], Any], settle: Callable[[], Any]) -> Callable[[], float]:
    """The median of a round's calls, each after the last one's work is done and `settle` has been called."""

    def measured() -> float:
        seconds = []
        for _ in range(CALLS):
            settle()
            seconds.append(timed(call))
        return statistics.median(seconds)

    return measured


def measure(count: int, rounds: int) -> dict[str, Any]:
    """Seconds of every part, in rounds in which all take turns."""
    with _nothing_gpu() as fake:
        nothing = _Nothing(_parameters(count))
        candidates: dict[str, Callable[[], float]] = {"torch": _median_of_calls(nothing.step, lambda: None)}
        calls: dict[str, dict[str, int]] = {}
        for name in OPTIMIZERS:
            subject = _Subject(name, count, "propagate")
            wait = subject.executor.synchronize

            def renewed(subject: _Subject = subject) -> None:
                subject.executor.synchronize()
                subject.renew()

            fake.reset_calls()
            subject.optimizer.step()
            wait()
            calls[name] = {call: fake.calls(call) for call in ("cuLaunchKernel", "cuGraphLaunch", "cuMemcpyHtoDAsync")}
            candidates[f"{name}: step"] = _median_of_calls(subject.optimizer.step, wait)
            candidates[f"{name}: step, new gradients"] = _median_of_calls(subject.optimizer.step, renewed)
            for part, call in subject.parts().items():
                candidates[f"{name}: {part}"] = _median_of_calls(call, wait)
            checked = _Subject(name, count, "skip")
            candidates[f"{name}: step, gradients checked"] = _median_of_calls(
                checked.optimizer.step, checked.executor.synchronize
            )
        taken = interleave_clocks(candidates, rounds, title="host time")
    seconds = {name: asdict(Timing.of(values)) for name, values in taken.items()}
    return {"note": NOTE, "matrices": count, "rounds": rounds, "seconds": seconds, "driver_calls": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrices", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=11, help="at least 7; default: %(default)s")
    parser.add_argument("--out", type=Path, help="where to write the result as JSON")
    options = parser.parse_args()
    if options.rounds < 7:
        parser.error(f"--rounds expects at least 7, but got {options.rounds}")
    missing = unavailable()
    if missing is not None:
        raise SystemExit(f"no imitated driver here: {missing}")
    result = {**measure(options.matrices, options.rounds), "machine": machine()}
    print(NOTE)
    for name, timing in result["seconds"].items():
        print(f"{name:<36} {1e6 * timing['median']:8.1f} us   (least {1e6 * timing['minimum']:.1f})")
    for name in OPTIMIZERS:
        median = 1e6 * result["seconds"][f"{name}: step"]["median"]
        print(f"{name}: {median:.1f} of {TARGET_MICROSECONDS:g} us, without the time of a real driver")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
