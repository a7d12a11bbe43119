"""Time and memory of whole optimizer steps on the parameter lists of DiT-S/2 and DiT-B/2, float32, on the CPU.

    make bench-step                                  # the full measurement: about 10 minutes on two cores
    python benchmarks/step.py --models DiT-S/2       # one model
    python benchmarks/step.py --check                # exit code 1 if a target is missed

Every ratio compares things measured in turns in the same run. The peers are torch's: a float32 Muon written with
`torch.mm`/`torch.addmm`, `torch.optim.AdamW` and in-place streams.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from measure import (
    Target,
    interleave,
    machine,
    matmul_peak,
    peak_memory_bytes,
    stream_candidates,
    timed,
    write_report,
)
from timing import Timing
from torch import Tensor, nn

RESULTS = Path(__file__).parent / "results" / "step.json"
MODELS = {"DiT-S/2": (384, 12), "DiT-B/2": (768, 12)}
PERIOD = 3
STREAM_WARMUP = 2
NS_STEPS = 5
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
WORD = 4
# Words of float32 which a step must move per element: gradient in, states and parameter in and out.
ROW_STEP_WORDS, ADAMW_WORDS = 5, 7
BOUNDS = {"cold": 20.0, "warm": 1.0}


def dit_shapes(hidden: int, depth: int) -> dict[str, tuple[int, ...]]:
    """The trainable parameters of the DiT paper's class-conditional model for 32x32x4 latents, patch 2, 1000 classes.

    Names and shapes are those of `facebookresearch/DiT`.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, out_features: int, in_features: int) -> None:
        shapes[f"{name}.weight"] = (out_features, in_features)
        shapes[f"{name}.bias"] = (out_features,)

    shapes["x_embedder.proj.weight"] = (hidden, 4, 2, 2)
    shapes["x_embedder.proj.bias"] = (hidden,)
    linear("t_embedder.mlp.0", hidden, 256)
    linear("t_embedder.mlp.2", hidden, hidden)
    shapes["y_embedder.embedding_table.weight"] = (1001, hidden)
    for block in range(depth):
        linear(f"blocks.{block}.attn.qkv", 3 * hidden, hidden)
        linear(f"blocks.{block}.attn.proj", hidden, hidden)
        linear(f"blocks.{block}.mlp.fc1", 4 * hidden, hidden)
        linear(f"blocks.{block}.mlp.fc2", hidden, 4 * hidden)
        linear(f"blocks.{block}.adaLN_modulation.1", 6 * hidden, hidden)
    linear("final_layer.linear", 2 * 2 * 8, hidden)
    linear("final_layer.adaLN_modulation.1", 2 * hidden, hidden)
    return shapes


def dit_parameters(hidden: int, depth: int) -> dict[str, nn.Parameter]:
    """A model's parameters with random values and gradients."""
    generator = torch.Generator().manual_seed(0)
    parameters = {}
    for name, shape in dit_shapes(hidden, depth).items():
        parameter = nn.Parameter(0.02 * torch.randn(shape, generator=generator))
        parameter.grad = 0.01 * torch.randn(shape, generator=generator)
        parameters[name] = parameter
    return parameters


def is_hidden_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Which parameters Muon takes: `kaon.optim`'s default rules, applied to this model."""
    return name.startswith("blocks.") and len(shape) == 2


class TorchMuon(torch.optim.Optimizer):
    """Muon in float32 with `torch.mm` and `torch.addmm`, as well as plain torch allows.

    The same iteration as Kaon's: lerp momentum, Nesterov, five quintic Newton-Schulz steps on the short side. The
    workspace is kept between matrices and steps, so nothing is allocated.
    """

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.95, "weight_decay": 0.1})
        self.workspaces: dict[tuple[int, int], list[Tensor]] = {}

    def _workspace(self, rows: int, cols: int) -> list[Tensor]:
        if (rows, cols) not in self.workspaces:
            short = min(rows, cols)
            shapes = [(rows, cols), (rows, cols), (short, short), (short, short)]
            self.workspaces[rows, cols] = [torch.empty(shape) for shape in shapes]
        return self.workspaces[rows, cols]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        a, b, c = NS_COEFFICIENTS
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                buffer = state["momentum"].lerp_(parameter.grad, 1 - momentum)
                rows, cols = parameter.shape
                x, spare, gram, polynomial = self._workspace(rows, cols)
                torch.lerp(parameter.grad, buffer, momentum, out=x)
                x.div_(x.norm().clamp_min(1e-7))
                for _ in range(NS_STEPS):
                    # Gram matrices are formed on the short side, from whichever side it is, so nothing is transposed.
                    torch.mm(x, x.T, out=gram) if rows <= cols else torch.mm(x.T, x, out=gram)
                    torch.addmm(gram, gram, gram, beta=b, alpha=c, out=polynomial)
                    left, right = (polynomial, x) if rows <= cols else (x, polynomial)
                    torch.addmm(x, left, right, beta=a, out=spare)
                    x, spare = spare, x
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.add_(x, alpha=-lr * max(1.0, rows / cols) ** 0.5)


@dataclass(frozen=True)
class Subject:
    """One model to measure."""

    name: str
    parameters: dict[str, nn.Parameter]

    @property
    def matrices(self) -> list[Tensor]:
        return [parameter for name, parameter in self.parameters.items() if is_hidden_matrix(name, parameter.shape)]

    @property
    def others(self) -> list[Tensor]:
        return [parameter for name, parameter in self.parameters.items() if not is_hidden_matrix(name, parameter.shape)]

    @property
    def elements(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def row_step_words(self) -> float:
        """Words per element of the model: a row step over the matrices, AdamW over the rest."""
        share = sum(matrix.numel() for matrix in self.matrices) / self.elements
        return share * ROW_STEP_WORDS + (1 - share) * ADAMW_WORDS


def kaon_optimizer(kind: str, parameters: dict[str, nn.Parameter], period: int = PERIOD) -> Any:
    """One of Kaon's optimizers over a whole model."""
    import kaon.optim

    named = list(parameters.items())
    if kind == "AdamW":
        return kaon.optim.AdamW(named, lr=1e-5)
    if kind == "Muon":
        return kaon.optim.Muon(named, lr=1e-4, adamw_lr=1e-5)
    return kaon.optim.PeriodicRowwiseMuon(named, lr=1e-4, adamw_lr=1e-5, period=period, row_scale="frobenius")


def median(seconds: list[float]) -> float:
    return Timing.of(seconds).median


def paired(numerators: list[float], denominators: list[float]) -> float:
    """Median over the rounds of the ratio of two candidates' seconds.

    The rate of a virtual machine's memory changes by half from one second to the next: what is compared must have been
    measured in the same round, and the median must be of ratios.
    """
    return statistics.median(n / d for n, d in zip(numerators, denominators, strict=True))


def measure_muon(subject: Subject, repetitions: int, peak: float) -> tuple[dict[str, Any], list[Target]]:
    """Muon K=1 and Periodic Row-wise Muon K=3 against the same iteration in torch."""
    muon, periodic = kaon_optimizer("Muon", subject.parameters), kaon_optimizer("PRM", subject.parameters)
    torch_muon = TorchMuon(subject.matrices, lr=1e-4)
    torch_rest = torch.optim.AdamW(subject.others, lr=1e-5, fused=True)
    plan = muon.plan(show=False)
    routed = {row.name for row in plan.rows if row.update == "muon"}
    expected = {name for name, parameter in subject.parameters.items() if is_hidden_matrix(name, parameter.shape)}
    if routed != expected:
        raise SystemExit(f"{subject.name}: the peers must update the same matrices, but differ in {routed ^ expected}")

    def torch_step() -> None:
        torch_muon.step()
        torch_rest.step()

    steps: dict[str, Callable[[], object]] = {"kaon Muon": muon.step, "torch.mm Muon": torch_step}
    phases = ["refresh", *(f"row {index}" for index in range(1, PERIOD))]
    periods: dict[str, list[float]] = {phase: [] for phase in phases}

    def period() -> None:
        for phase in phases:
            start = time.perf_counter()
            periodic.step()
            periods[phase].append(time.perf_counter() - start)

    steps[f"kaon PRM K={PERIOD}, {PERIOD} steps"] = period
    seconds = interleave(steps, repetitions, title=f"{subject.name} Muon")
    recorded = {phase: taken[-repetitions:] for phase, taken in periods.items()}
    full = median(seconds["kaon Muon"])
    mean_step = median([sum(turn) / PERIOD for turn in zip(*recorded.values(), strict=True)])
    torch_full = median(seconds["torch.mm Muon"])
    flops = sum(row.flops for row in plan.rows)
    results = {
        "seconds": {name: asdict(Timing.of(taken)) for name, taken in {**seconds, **recorded}.items()},
        "kaon_muon_flops": flops,
        "kaon_muon_share_of_matmul_peak": flops / full / peak,
        "workspace_bytes": plan.workspace_bytes,
        "largest_bucket_bytes": plan.largest_bucket_bytes,
    }
    targets = [
        Target(subject.name, "Muon K=1 / the same in torch.mm", full / torch_full, 1.0, at_most=True),
        Target(subject.name, f"PRM K={PERIOD} mean step / Muon K=1", mean_step / full, 0.5, at_most=True),
        Target(
            subject.name,
            "workspace / largest bucket",
            plan.workspace_bytes / plan.largest_bucket_bytes,
            3.0,
            at_most=True,
        ),
    ]
    return results, targets


def measure_streams(subject: Subject, repetitions: int) -> tuple[dict[str, Any], list[Target]]:
    """Row steps and AdamW against in-place streams over the same tensors, and AdamW against torch's.

    The streams are torch's fused optimizers, which read and write what Kaon's must: SGD with momentum (5 words per
    element: gradient, momentum and parameter) has next to no arithmetic and moves what a row step moves; AdamW moves
    7, and is compared with the faster of the two. Each step is credited with the least traffic that its formula needs,
    so reading something twice counts against it. Passes over one to three vectors are reported beside them.
    """
    # A period longer than the measurement: its first step, a refresh, falls into the warm-up; only row steps follow.
    rows = kaon_optimizer("PRM", subject.parameters, period=repetitions + STREAM_WARMUP + 1)
    adamw = kaon_optimizer("AdamW", subject.parameters)
    everything = list(subject.parameters.values())
    foreach = torch.optim.AdamW(everything, lr=1e-5, foreach=True)
    fused = torch.optim.AdamW(everything, lr=1e-5, fused=True)
    momentum = torch.optim.SGD(everything, lr=1e-5, momentum=0.9, fused=True)
    passes = stream_candidates(subject.elements)
    candidates: dict[str, tuple[float, Callable[[], object]]] = {
        "kaon row step": (subject.row_step_words, rows.step),
        "torch SGD momentum fused": (ROW_STEP_WORDS, momentum.step),
        "kaon AdamW": (ADAMW_WORDS, adamw.step),
        "torch AdamW fused": (ADAMW_WORDS, fused.step),
        "torch AdamW foreach": (ADAMW_WORDS, foreach.step),
        **passes,
    }
    calls = {name: call for name, (_, call) in candidates.items()}
    seconds = interleave(calls, repetitions, warmup=STREAM_WARMUP, title=f"{subject.name} streams")
    rates = {name: words * WORD * subject.elements / median(seconds[name]) for name, (words, _) in candidates.items()}
    # What each round's step would have taken at the rate of that round's streams.
    momentum_seconds, fused_seconds = seconds["torch SGD momentum fused"], seconds["torch AdamW fused"]
    row_ideal = [taken * subject.row_step_words / ROW_STEP_WORDS for taken in momentum_seconds]
    adamw_ideal = [
        min(taken * ADAMW_WORDS / ROW_STEP_WORDS, fused)
        for taken, fused in zip(momentum_seconds, fused_seconds, strict=True)
    ]
    row_share = paired(row_ideal, seconds["kaon row step"])
    adamw_share = paired(adamw_ideal, seconds["kaon AdamW"])
    foreach_ratio = paired(seconds["torch AdamW foreach"], seconds["kaon AdamW"])
    fused_ratio = paired(fused_seconds, seconds["kaon AdamW"])
    results = {
        "seconds": {name: asdict(Timing.of(taken)) for name, taken in seconds.items()},
        "bytes_per_second": rates,
        "share_of_streaming_rate": {"row step": row_share, "AdamW": adamw_share},
        "adamw_times_faster_than_foreach": foreach_ratio,
        "adamw_times_faster_than_fused": fused_ratio,
    }
    targets = [
        Target(subject.name, "row step / streaming rate", row_share, 0.7, at_most=False),
        Target(subject.name, "AdamW / streaming rate", adamw_share, 0.7, at_most=False),
        Target(subject.name, "torch AdamW(foreach) / kaon AdamW", foreach_ratio, 2.0, at_most=False),
    ]
    return results, targets


def first_step(model: str) -> None:
    """Run in a fresh process: prints as JSON the seconds until Muon is ready to step, and of its first two steps.

    Ready: Kaon is imported, the optimizer made, and its program compiled or loaded. What torch itself does once per
    process (its first optimizer, of whatever kind, imports `torch._dynamo`) is done before.
    """
    parameters = dit_parameters(*MODELS[model])
    torch.optim.SGD(parameters.values(), lr=0.0)
    start = time.perf_counter()
    optimizer = kaon_optimizer("Muon", parameters)
    optimizer.compile()
    ready = time.perf_counter() - start
    first, second = timed(optimizer.step), timed(optimizer.step)
    print(json.dumps({"ready": ready, "first": first, "second": second, "peak_memory": peak_memory_bytes()}))


def measure_first_step(model: str, threads: int) -> tuple[dict[str, Any], list[Target]]:
    """The first step of a fresh process with an empty cache, then with the cache which that one left."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "KAON_CACHE_DIR": cache}
        command = [sys.executable, __file__, "--first-step", model, "--threads", str(threads)]
        for temperature in ("cold", "warm"):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"the first step of {model} failed:\n{done.stderr}")
            results[temperature] = json.loads(done.stdout.splitlines()[-1])
    cold, warm = results["cold"], results["warm"]
    targets = [
        Target(model, "cold start and first step", cold["ready"] + cold["first"], BOUNDS["cold"], True, "s"),
        Target(model, "warm start, without the step itself", warm["ready"], BOUNDS["warm"], True, "s"),
    ]
    return results, targets


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--repetitions", type=int, default=7, help="recorded rounds (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of Kaon and torch (default %(default)s)")
    parser.add_argument("--only", nargs="+", choices=("muon", "streams", "first"), default=("muon", "streams", "first"))
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON to write (default %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--first-step", choices=list(MODELS), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    if options.first_step:
        first_step(options.first_step)
        return 0
    here = machine()
    peak = matmul_peak()
    print(f"{here['cpu']}, {here['cores']} cores, {' '.join(here['features'])}, {here['memory_gib']} GiB; "
          f"torch {here['torch']}, {options.threads} threads, load {here['load_average']:.2f}")  # fmt: skip
    print(f"float32 torch.mm of 2048x2048: {peak / 1e9:.0f} GFLOP/s")
    results: dict[str, Any] = {"machine": here, "matmul_flops_per_second": peak, "models": {}}
    targets: list[Target] = []
    for name in options.models:
        subject = Subject(name, dit_parameters(*MODELS[name]))
        entry: dict[str, Any] = {"parameters": subject.elements, "matrices": len(subject.matrices)}
        found: list[Target] = []
        if "first" in options.only:
            entry["first_step"], some = measure_first_step(name, options.threads)
            found += some
        if "streams" in options.only:
            entry["streams"], some = measure_streams(subject, options.repetitions)
            found += some
            rates = "; ".join(f"{key} {rate / 1e9:.1f}" for key, rate in entry["streams"]["bytes_per_second"].items())
            print(f"{name}, GB/s: {rates}")
            print(f"{name}: kaon AdamW is {entry['streams']['adamw_times_faster_than_fused']:.2f}x torch's fused AdamW")
        if "muon" in options.only:
            entry["muon"], some = measure_muon(subject, options.repetitions, peak)
            found += some
            print(f"{name}: kaon Muon runs at {100 * entry['muon']['kaon_muon_share_of_matmul_peak']:.0f} % "
                  "of torch.mm's rate, counting the FLOPs it needs")  # fmt: skip
        results["models"][name] = entry
        targets += found
        print("\n".join(map(str, found)), flush=True)
    write_report(options.out, results, targets)
    missed = [target for target in targets if not target.met]
    print(f"{len(targets) - len(missed)} of {len(targets)} targets met; wrote {options.out}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
