"""How fast: each kind of step against the ceilings of the machine and against its peers, interleaved in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from timing import Timing

from . import peers
from .accounting import Replays
from .device import Device
from .measuring import REPETITIONS, interleave
from .packages import Loaded, load, packed
from .workloads import Workload, elementwise, host, newton_schulz, products, rows

Progress = Callable[[str], bool]
"""Told what comes next; false where there is no time for it."""
Call = Callable[[], object]
Triton = Callable[..., torch.Tensor]
OUT_OF_TIME = "not run: out of time"
QUIET = {"nonfinite": "propagate"}
"""Steps without the check of gradients, which would wait for the device."""


def ceilings(device: Device, tiny: bool) -> tuple[dict[str, Call], dict[str, float]]:
    """What the machine can do, as calls to time, and the work of each: bytes of a copy, FLOP of a bf16 product."""
    elements, size = (1 << 12, 32) if tiny else (1 << 28, 8192)
    source = torch.full((elements,), 0.5, device=device.torch)
    target = torch.empty_like(source)
    a, b = (torch.randn(size, size, device=device.torch).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    calls: dict[str, Call] = {
        "copy": lambda: target.copy_(source),
        "bf16 product": lambda: torch.mm(a, b, out=out),
    }
    return calls, {"copy": 2.0 * source.nbytes, "bf16 product": 2.0 * size**3}


def _step_of(loaded: Loaded) -> Call:
    loaded.optimizer.compile()
    return loaded.optimizer.step


def _in_time(
    workloads: Iterable[Workload], progress: Progress, measure: Callable[[Workload], dict[str, Any]]
) -> list[dict[str, Any]]:
    """What was measured of each workload, or that there was no time for it."""
    return [
        measure(workload) if progress(workload.name) else {"workload": workload.name, "skipped": OUT_OF_TIME}
        for workload in workloads
    ]


def _as_json(timings: Mapping[str, Timing]) -> dict[str, dict[str, float]]:
    """Seconds of every candidate."""
    return {name: asdict(timing) for name, timing in timings.items()}


def bandwidth(directory: Path, device: Device, tiny: bool, progress: Progress) -> list[dict[str, Any]]:
    """Row and elementwise steps: bytes per second as a share of a copy's, measured in turns with it."""

    def measure(workload: Workload) -> dict[str, Any]:
        loaded = load(directory, workload, device, **QUIET)
        calls, work = ceilings(device, tiny)
        step, replays = _step_of(loaded), Replays(loaded)
        timings = interleave(device, {"kaon": step, "copy": calls["copy"]})
        moved = loaded.bytes_of_step()
        rate, ceiling = moved / timings["kaon"].median, work["copy"] / timings["copy"].median
        return {
            "workload": workload.name,
            "elements": sum(p.numel() for p in loaded.parameters),
            "bytes": moved,
            "achieved_bytes_per_s": rate,
            "ceiling_bytes_per_s": ceiling,
            "achieved_over_ceiling": rate / ceiling,
            "launches": replays.verdict(),
            "seconds": _as_json(timings),
        }

    return _in_time((*rows(tiny), elementwise(tiny)), progress, measure)


def _compare(
    device: Device, workload: Workload, flops: float, candidates: dict[str, Call], tiny: bool
) -> dict[str, Any]:
    """Times of all candidates, and FLOP/s of the dense form of the work as a share of a large product's."""
    calls, work = ceilings(device, tiny)
    timings = interleave(device, {**candidates, "ceiling": calls["bf16 product"]})
    ceiling = work["bf16 product"] / timings["ceiling"].median
    kaon = timings["kaon"].median
    return {
        "workload": workload.name,
        "dense_flop": flops,
        "ceiling_flop_per_s": ceiling,
        "dense_flop_per_s_over_ceiling": {name: flops / timings[name].median / ceiling for name in candidates},
        "speedup_of_kaon_over": {name: timings[name].median / kaon for name in candidates if name != "kaon"},
        "seconds": _as_json(timings),
    }


def _stacked(loaded: Loaded) -> tuple[torch.Tensor, torch.Tensor]:
    """The same parameters and gradients as one batch, as the peers want them."""
    with torch.no_grad():
        gradients = [parameter.grad for parameter in loaded.parameters if parameter.grad is not None]
        return torch.stack(list(loaded.parameters)).detach().clone(), torch.stack(gradients)


def _by_warpgroups(
    directory: Path, workload: Workload, device: Device, call_of: Callable[[Loaded], Call]
) -> dict[str, Call]:
    """The same with the main loop of sm_90a as a candidate, if that was packed."""
    found = packed(directory, [workload.by_warpgroups])
    return {"kaon, wgmma": call_of(load(directory, found[0], device, **QUIET))} if found else {}


def _product_alone(loaded: Loaded, device: Device) -> Call:
    """One launch of the symmetric product of a step that was made, on the operands that the step left."""
    executor = loaded.program.executor
    (index,) = (index for index, name in enumerate(executor.kernels(0)) if name.startswith("matmul_"))
    stream = device.stream()
    return lambda: executor.repeat(0, index, 1, stream)


def _first_product(loaded: Loaded, device: Device) -> Call:
    """The same after a step, which makes the operands."""
    _step_of(loaded)()
    return _product_alone(loaded, device)


def symmetric_products(
    directory: Path, device: Device, tiny: bool, progress: Progress, triton: Triton | None
) -> list[dict[str, Any]]:
    """One launch of the symmetric product alone, of a batch, against one dense product of the same batch by cuBLAS; the
    whole step around it, which also copies the gradient and changes the parameter, is a candidate of its own."""

    def measure(workload: Workload) -> dict[str, Any]:
        loaded = load(directory, workload, device, **QUIET)
        _, x = _stacked(loaded)
        out = torch.empty_like(x)
        step, replays = _step_of(loaded), Replays(loaded)
        step()
        launches = replays.verdict()
        candidates: dict[str, Call] = {
            "kaon": _product_alone(loaded, device),
            **_by_warpgroups(directory, workload, device, lambda other: _first_product(other, device)),
            "kaon, the whole step": step,
            "cublas": lambda: torch.bmm(x, x.mT, out=out),
        }
        if triton is not None:
            product = triton
            candidates["triton"] = lambda: product(x, out)
        n = workload.shapes[0][0]
        flops = 2.0 * n**3 * len(workload.shapes)
        return {**_compare(device, workload, flops, candidates, tiny), "launches": launches}

    return _in_time(products(tiny), progress, measure)


def newton_schulz_steps(
    directory: Path, device: Device, tiny: bool, progress: Progress, triton: Triton | None
) -> list[dict[str, Any]]:
    """The whole orthogonalisation, and the parameter changed by it."""

    def measure(workload: Workload) -> dict[str, Any]:
        loaded = load(directory, workload, device, **QUIET)
        w, g = _stacked(loaded)
        step, replays = _step_of(loaded), Replays(loaded)
        compiled = peers.compiled_step(device)
        candidates: dict[str, Call] = {
            "kaon": step,
            **_by_warpgroups(directory, workload, device, _step_of),
            "cublas": lambda: peers.step(w, g, 0.02),
            "torch.compile": lambda: compiled(w, g, 0.02),
        }
        if triton is not None:
            by_triton = peers.triton_step(triton)
            candidates["triton"] = lambda: by_triton(w, g, 0.02)
        short, long = sorted(workload.shapes[0])
        flops = peers.STEPS * (4.0 * short * short * long + 2.0 * short**3) * len(workload.shapes)
        compared = _compare(device, workload, flops, candidates, tiny)
        return {**compared, "launches": replays.verdict()}

    return _in_time(newton_schulz(tiny), progress, measure)


def host_time(directory: Path, device: Device, workload: Workload) -> dict[str, Any]:
    """What a step of many small matrices costs the host, through Python and through the executor alone."""
    loaded = load(directory, workload, device, **QUIET)
    step = _step_of(loaded)
    executor, program = loaded.program.executor, loaded.optimizer._programs[0]
    replays = Replays(loaded)
    for _ in range(5):
        step()
    stream = device.stream()

    def replay() -> None:
        executor.step_with(2, program.inputs, False, stream)

    calls = 3 if device.is_fake else 50
    timings = {}
    for name, call in {"optimizer.step": step, "executor.step": replay}.items():
        seconds = []
        for _ in range(REPETITIONS):
            seconds.append(device.host_seconds(call, calls))
            executor.synchronize()  # nothing of ours is in flight when the tensors go
        timings[name] = Timing.of(seconds)
    return {
        "workload": workload.name,
        "matrices": len(workload.shapes),
        "launches": replays.verdict(),
        "host_seconds_per_step": _as_json(timings),
    }


def _usable_triton(device: Device, progress: Progress) -> tuple[Triton | None, dict[str, Any] | None]:
    """The peer in Triton if it works here, and what its check said; without it the others are timed all the same."""
    triton = peers.triton_symmetric()
    if triton is None or not progress("check of the Triton kernel"):
        return None, None
    try:
        verdict = peers.check(device, triton)
    except Exception as error:  # whatever a compiler of another version does
        return None, {"passed": False, "error": repr(error)}
    return triton if verdict["passed"] else None, verdict


def entries(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything that was measured, or left out."""
    for kind in ("bandwidth", "symmetric_product", "newton_schulz"):
        yield from result[kind]
    yield result["host"]


def run(directory: Path, device: Device, tiny: bool, progress: Progress) -> dict[str, Any]:
    """All timings; the ceilings are measured again beside each. Passed if every step of Kaon was a replayed graph with
    the launches of its plan, and the Triton kernel computes what it is compared for."""
    result: dict[str, Any] = {"bandwidth": bandwidth(directory, device, tiny, progress)}
    (result["host"],) = _in_time([host(tiny)], progress, lambda workload: host_time(directory, device, workload))
    triton, result["triton_check"] = _usable_triton(device, progress)
    result["symmetric_product"] = symmetric_products(directory, device, tiny, progress, triton)
    result["newton_schulz"] = newton_schulz_steps(directory, device, tiny, progress, triton)
    replayed = all(entry["launches"]["passed"] for entry in entries(result) if "skipped" not in entry)
    result["passed"] = replayed and (result["triton_check"] is None or result["triton_check"]["passed"])
    return result
