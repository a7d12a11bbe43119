"""How fast: each kind of step against the ceilings of the machine and against its peers, interleaved in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from kaon.cuda import device_info, open_driver
from kaon.package.reading import Package
from timing import Timing, in_turns

from . import peers
from .accounting import Replays
from .device import Device
from .measuring import BOUND, REPETITIONS, as_json, interleave, several
from .occupancy import waves_of_product
from .packages import Loaded, load, packed
from .parts import Parts, Progress, Save
from .workloads import Workload, elementwise, host, newton_schulz, products, rows

Call = Callable[[], object]
Triton = Callable[..., torch.Tensor]
QUIET = {"nonfinite": "propagate"}
"""Steps without the check of gradients, which is the default, but would wait for the device. Entries say so."""
CHECKED = "kaon, gradients checked"
"""The default."""
WGMMA = "kaon, wgmma"
"""Products with the main loop of sm_90a."""
BYTES_MARGIN = 0.01
"""By which part the plan's bytes may differ from those that the workload says are useful."""
NOT_BEGUN = {"skipped": "not begun"}
"""In place of an entry that the run has not come to."""


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


def _each(
    workloads: Iterable[Workload], parts: Parts, measure: Callable[[Workload], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """What was measured of each workload, or why nothing was."""
    for workload in workloads:
        found, why = parts.attempt(workload.name, partial(measure, workload))
        yield {"workload": workload.name, **why} if found is None else found


def was_measured(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is neither of what was left out nor of what raised."""
    return "skipped" not in entry and "error" not in entry


def _that_work(device: Device, candidates: Mapping[str, Call]) -> tuple[dict[str, Call], dict[str, str]]:
    """The candidates whose first call works, and what the others raise. Kaon's own may raise."""
    working, failed = {}, {}
    for name, call in candidates.items():
        try:
            call()
            device.synchronize()
        except Exception as error:  # a compiler without its tools, no memory left: the others can still be compared
            if name == "kaon":
                raise
            failed[name] = repr(error)
        else:
            working[name] = call
    return working, failed


def _bytes_of(loaded: Loaded) -> dict[str, Any]:
    """What a step must move, what its plan says that it does, and whether these agree: useful bytes are what counts,
    since a plan that moves more than it needs to would look the better for it."""
    useful = loaded.workload.useful_bytes * sum(parameter.numel() for parameter in loaded.parameters)
    planned = loaded.bytes_of_step()
    agree = abs(planned - useful) <= BYTES_MARGIN * useful
    return {"useful_bytes": useful, "bytes_by_plan": planned, "bytes_agree": agree}


def bandwidth(directory: Path, device: Device, tiny: bool, parts: Parts) -> Iterator[dict[str, Any]]:
    """Row and elementwise steps: useful bytes per second as a share of a copy's, measured in turns with it."""

    def measure(workload: Workload) -> dict[str, Any]:
        loaded = load(directory, workload, device, **QUIET)
        calls, work = ceilings(device, tiny)
        step, replays = _step_of(loaded), Replays(loaded)
        candidates = {"kaon": step, CHECKED: _step_of(load(directory, workload, device)), "copy": calls["copy"]}
        measured = interleave(device, candidates)
        moved = _bytes_of(loaded)
        rates = {name: moved["useful_bytes"] / measured.median(name) for name in ("kaon", CHECKED)}
        ceiling = work["copy"] / measured.median("copy")
        return {
            "workload": workload.name,
            **QUIET,
            "elements": sum(p.numel() for p in loaded.parameters),
            **moved,
            "achieved_bytes_per_s": rates["kaon"],
            "ceiling_bytes_per_s": ceiling,
            "achieved_over_ceiling": rates["kaon"] / ceiling,
            "over_ceiling_with_gradients_checked": rates[CHECKED] / ceiling,
            "launches": replays.verdict(),
            **measured.as_json(),
        }

    return _each((*rows(tiny), elementwise(tiny)), parts, measure)


def _compare(
    device: Device,
    workload: Workload,
    flops: float,
    candidates: dict[str, Call],
    tiny: bool,
    works: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Times of all candidates, and FLOP/s of the dense form of the work as a share of a large product's. One call of a
    candidate does the work as often as `works` says, once if not at all."""
    candidates, failed = _that_work(device, candidates)
    calls, work = ceilings(device, tiny)
    measured = interleave(device, {**candidates, "ceiling": calls["bf16 product"]}, works)
    ceiling = work["bf16 product"] / measured.median("ceiling")
    kaon = measured.median("kaon")
    return {
        "workload": workload.name,
        **QUIET,
        "dense_flop": flops,
        "ceiling_flop_per_s": ceiling,
        "dense_flop_per_s_over_ceiling": {name: flops / measured.median(name) / ceiling for name in candidates},
        "speedup_of_kaon_over": {name: measured.median(name) / kaon for name in candidates if name != "kaon"},
        "peers_that_failed": failed,
        **measured.as_json(),
    }


def _stacked(loaded: Loaded) -> tuple[torch.Tensor, torch.Tensor]:
    """The same parameters and gradients as one batch, as the peers want them."""
    with torch.no_grad():
        gradients = [parameter.grad for parameter in loaded.parameters if parameter.grad is not None]
        return torch.stack(list(loaded.parameters)).detach().clone(), torch.stack(gradients)


def _by_warpgroups(
    directory: Path, workload: Workload, device: Device, distrust: str, call_of: Callable[[Loaded], Call]
) -> dict[str, Call]:
    """The same with the main loop of sm_90a as a candidate, if that was packed. With a reason to distrust it, it fails
    at its first call, and is named: what it does to the device would take all others with it."""
    found = packed(directory, [workload.by_warpgroups])
    if not found:
        return {}

    # Made at the first call, so that what it raises loses this candidate alone.
    @cache
    def made() -> Call:
        if distrust:
            raise RuntimeError(distrust)
        return call_of(load(directory, found[0], device, **QUIET))

    return {WGMMA: lambda: made()()}


def _waves(directory: Path, workload: Workload) -> dict[str, Any]:
    """Waves of blocks of a product with each main loop, or why they are not known."""
    device = device_info(open_driver(), 0)
    found: dict[str, Any] = {}
    for item in (workload, *packed(directory, [workload.by_warpgroups])):
        name = "kaon" if item is workload else WGMMA
        try:
            found[name] = waves_of_product(Package.open(directory / item.directory), device)
        except Exception as error:  # times are worth more than this
            found[name] = {"why": repr(error)}
    return found


def _in_a_row(device: Device) -> int:
    """Products that one call of a candidate makes: one alone can take the device less time than the host."""
    return 2 if device.is_fake else 8


def _product_alone(loaded: Loaded, device: Device) -> Call:
    """Launches of the symmetric product of a step that was made, on the operands that the step left."""
    kernels = loaded.program.executor.kernels(0)
    (index,) = (index for index, name in enumerate(kernels) if name.startswith("matmul_"))
    stream, times = device.stream(), _in_a_row(device)
    return lambda: loaded.launch_again(index, times, stream)


def _first_product(loaded: Loaded, device: Device) -> Call:
    """The same after a step, which makes the operands."""
    _step_of(loaded)()
    return _product_alone(loaded, device)


def symmetric_products(
    directory: Path, device: Device, tiny: bool, parts: Parts, triton: Triton | None, distrust: str
) -> Iterator[dict[str, Any]]:
    """Launches of the symmetric product alone, of a batch, against one dense product of the same batch by cuBLAS; the
    whole step around it, which also copies the gradient and changes the parameter, is a candidate of its own."""

    def measure(workload: Workload) -> dict[str, Any]:
        loaded = load(directory, workload, device, **QUIET)
        _, x = _stacked(loaded)
        out, times = torch.empty_like(x), _in_a_row(device)
        step, replays = _step_of(loaded), Replays(loaded)
        step()
        launches = replays.verdict()
        candidates: dict[str, Call] = {
            "kaon": _product_alone(loaded, device),
            **_by_warpgroups(directory, workload, device, distrust, lambda other: _first_product(other, device)),
            "kaon, the whole step": step,
            "cublas": several(lambda: torch.bmm(x, x.mT, out=out), times),
        }
        if triton is not None:
            product = triton
            candidates["triton"] = several(lambda: product(x, out), times)
        n = workload.shapes[0][0]
        flops = 2.0 * n**3 * len(workload.shapes)
        works = {name: times for name in candidates if candidates[name] is not step}
        compared = _compare(device, workload, flops, candidates, tiny, works)
        return {**compared, "launches": launches, "waves": _waves(directory, workload)}

    return _each(products(tiny), parts, measure)


def newton_schulz_steps(
    directory: Path, device: Device, tiny: bool, parts: Parts, triton: Triton | None, distrust: str
) -> Iterator[dict[str, Any]]:
    """The whole orthogonalisation, and the parameter changed by it."""

    def measure(workload: Workload) -> dict[str, Any]:
        loaded = load(directory, workload, device, **QUIET)
        w, g = _stacked(loaded)
        step, replays = _step_of(loaded), Replays(loaded)
        compiled = cache(partial(peers.compiled_step, device))  # at the first call, as above
        candidates: dict[str, Call] = {
            "kaon": step,
            **_by_warpgroups(directory, workload, device, distrust, _step_of),
            "cublas": lambda: peers.step(w, g, 0.02),
            "torch.compile": lambda: compiled()(w, g, 0.02),
        }
        if triton is not None:
            by_triton = peers.triton_step(triton)
            candidates["triton"] = lambda: by_triton(w, g, 0.02)
        short, long = sorted(workload.shapes[0])
        flops = peers.STEPS * (4.0 * short * short * long + 2.0 * short**3) * len(workload.shapes)
        compared = _compare(device, workload, flops, candidates, tiny)
        return {**compared, "launches": replays.verdict()}

    return _each(newton_schulz(tiny), parts, measure)


def host_time(directory: Path, device: Device, workload: Workload) -> dict[str, Any]:
    """What a step of many small matrices costs the host, through Python and through the executor alone, and beside it
    what the same steps take the device, which bounds them where they follow each other."""
    loaded, checked = load(directory, workload, device, **QUIET), load(directory, workload, device)
    step = _step_of(loaded)
    executor, program = loaded.program.executor, loaded.optimizer._programs[0]
    replays = Replays(loaded)
    for _ in range(5):
        step()
    stream = device.stream()

    def replay() -> None:
        executor.step_with(2, program.inputs, False, stream)

    alone: dict[str, Call] = {"optimizer.step": step, "executor.step": replay}
    candidates = {**alone, "optimizer.step, gradients checked": _step_of(checked)}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _, name in in_turns(list(candidates), REPETITIONS):
        seconds[name].append(device.host_seconds(candidates[name], 2 if device.is_fake else 25))
        executor.synchronize()  # nothing of ours is in flight when the tensors go
    timings = {name: Timing.of(taken) for name, taken in seconds.items()}
    on_device = {
        name: Timing.of([device.device_seconds(call) for _ in range(REPETITIONS)]) for name, call in alone.items()
    }
    executor.synchronize()
    return {
        "workload": workload.name,
        **QUIET,
        "matrices": len(workload.shapes),
        "launches": replays.verdict(),
        "host_seconds_per_step": as_json(timings),
        "device_seconds_per_step": as_json(on_device),
        "device_bounds_steps_in_a_row": [
            name for name, timing in on_device.items() if timing.median > BOUND * timings[name].median
        ],
        "under_load": {"optimizer.step": device.state_under(step)},
    }


def _usable_triton(parts: Parts) -> tuple[Triton | None, dict[str, Any]]:
    """The peer in Triton if it works here, and what its check said, or why there was none: "passed" is None then.
    Without it the others are timed all the same."""
    triton = peers.triton_symmetric()
    if triton is None:
        return None, {"passed": None, "why": "Triton is not installed"}
    verdict, why = parts.attempt("check of the Triton kernel", partial(peers.check, parts.device, triton))
    if verdict is None:
        return None, {"passed": False if "error" in why else None, **why}
    return triton if verdict["passed"] else None, verdict


def entries(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything that was measured, or left out."""
    for kind in ("bandwidth", "symmetric_product", "newton_schulz"):
        yield from result[kind]
    yield result["host"]


def run(
    directory: Path, device: Device, tiny: bool, progress: Progress, save: Save, distrust: str = ""
) -> dict[str, Any]:
    """All timings; the ceilings are measured again beside each. Passed if nothing raised, every step of Kaon was a
    replayed graph with the launches of its plan, plans move the bytes that are useful, and the Triton kernel computes
    what it is compared for.

    Args:
        distrust: why the main loop of sm_90a is left out, if it is.
    """
    parts = Parts(device, progress)
    later = {"workload": host(tiny).name, **NOT_BEGUN}
    result: dict[str, Any] = {"bandwidth": [], "host": later, "symmetric_product": [], "newton_schulz": []}

    def collect(kind: str, found: Iterator[dict[str, Any]]) -> None:
        for entry in found:
            result[kind].append(entry)
            save(result)

    save(result)
    collect("bandwidth", bandwidth(directory, device, tiny, parts))
    (result["host"],) = _each([host(tiny)], parts, partial(host_time, directory, device))
    triton, result["triton_check"] = _usable_triton(parts)
    collect("symmetric_product", symmetric_products(directory, device, tiny, parts, triton, distrust))
    collect("newton_schulz", newton_schulz_steps(directory, device, tiny, parts, triton, distrust))
    passed = all(_passed(entry) for entry in entries(result)) and result["triton_check"]["passed"] is not False
    return {**result, "passed": passed}


def _passed(entry: Mapping[str, Any]) -> bool:
    """Whether nothing of Kaon's is wrong with an entry: what was left out is not, and a peer may fail."""
    if not was_measured(entry):
        return "error" not in entry
    failed = entry.get("peers_that_failed", ())
    as_planned = bool(entry["launches"]["passed"]) and entry.get("bytes_agree", True)
    return as_planned and not any(name.startswith("kaon") for name in failed)
