"""Trains a small diffusion transformer on 8x8 digits with several optimizers and compares them.

    python examples/train_dit.py              # the comparison: table, demo-out/summary.json, demo-out/report.html
    python examples/train_dit.py --tune       # picks the learning rates again and writes examples/dit/tuned.json
    python examples/train_dit.py --quick      # the same in a few seconds; its numbers mean little

All optimizers train the same model from the same weights on the same batches. Learning rates were picked on validation
images with a seed of their own; the calibrated row steps use Muon's, unchanged.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from dit.data import DigitSplits, load_splits
from dit.metrics import DigitClassifier, frechet_distance, train_classifier
from dit.report import Curve, render
from dit.runner import Job, default_workers, run_jobs
from dit.timing import ROUNDS, Compilation, StepTime, Stopwatch
from dit.training import RECIPES, Recipe, RunResult, Settings, mean_and_spread

TUNED = Path(__file__).parent / "dit" / "tuned.json"
TUNING_SEEDS = (1000,)
GRIDS = {
    "adamw": (2e-3, 4e-3, 6e-3, 8e-3, 1.2e-2),
    "muon": (5e-3, 1e-2, 1.5e-2, 2e-2, 3e-2),
    "prm3": (5e-3, 1e-2, 1.5e-2, 2e-2),
    "torch_muon": (5e-3, 1e-2, 1.5e-2, 2e-2, 3e-2),
    "torch_adamw": (2e-3, 4e-3, 6e-3, 8e-3, 1.2e-2),
}
HEADER = (
    "optimizer", "lr", "held-out loss", "vs Muon", "Frechet", "accuracy",
    "optimizer ms", "step ms", "kernels", "compile s",
)  # fmt: skip


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800, help="training steps of each run (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each optimizer (default %(default)s)")
    parser.add_argument("--workers", type=int, default=default_workers(), help="runs at a time (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="output folder (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one seed, 50 steps, few samples: a smoke test")
    parser.add_argument("--tune", action="store_true", help="pick the learning rates and stop")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.seeds = 50, 1
    for name in ("steps", "seeds", "workers"):
        if getattr(options, name) < 1:
            parser.error(f"expects --{name} to be at least 1, but got {getattr(options, name)}")
    return options


def load_rates() -> dict[str, float]:
    """The committed learning rate of every recipe that has one of its own."""
    return {key: entry["lr"] for key, entry in json.loads(TUNED.read_text())["recipes"].items()}


def tune(settings: Settings, workers: int) -> None:
    """Runs the grids on the validation images and writes what they gave and what is picked."""
    recipes = {recipe.key: recipe for recipe in RECIPES}
    jobs = [Job(recipes[key], rate, seed) for seed in TUNING_SEEDS for key, rates in GRIDS.items() for rate in rates]
    results = run_jobs(jobs, settings, None, workers, "tuning")
    entries: dict[str, Any] = {}
    for key, rates in GRIDS.items():
        grid: list[dict[str, Any]] = []
        for rate in rates:
            losses = [result.loss for result in results if (result.key, result.rate) == (key, rate)]
            mean = mean_and_spread(losses)[0]
            grid.append({"lr": rate, "validation_loss": round(mean, 5) if math.isfinite(mean) else None})
        finite = [point for point in grid if point["validation_loss"] is not None]
        if not finite:
            raise SystemExit(f"every learning rate of {key} diverged: {[point['lr'] for point in grid]}")
        best = min(finite, key=lambda point: point["validation_loss"])
        entries[key] = {"lr": best["lr"], "grid": grid}
        shown = "  ".join(f"{point['lr']:g}: {point['validation_loss']}" for point in grid)
        print(f"{recipes[key].label:<24} lr {best['lr']:<8g} {shown}")
    TUNED.write_text(json.dumps({"seeds": TUNING_SEEDS, "steps": settings.steps, "recipes": entries}, indent=2) + "\n")
    print(f"wrote {TUNED}")


def describe_machine() -> dict[str, Any]:
    """What the demo ran on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def table_rows(
    results: Mapping[str, Sequence[RunResult]],
    times: Mapping[str, StepTime],
    compilations: Mapping[str, Compilation],
) -> list[list[str]]:
    """One line per recipe: means over seeds, with the spread of the loss."""
    muon = mean_and_spread([result.loss for result in results["muon"]])[0]
    rows = []
    for recipe in RECIPES:
        runs = results[recipe.key]
        loss, spread = mean_and_spread([run.loss for run in runs])
        compilation, step = compilations[recipe.key], times[recipe.key]
        from_kaon = recipe.implementation == "kaon"
        rows.append(
            [
                recipe.label,
                f"{runs[0].rate:g}",
                f"{loss:.4f}" + (f" ±{spread:.4f}" if len(runs) > 1 else ""),
                f"{100 * (loss / muon - 1):+.1f} %",
                f"{mean_and_spread([run.frechet_distance for run in runs])[0]:.3f}",
                f"{100 * mean_and_spread([run.sample_accuracy for run in runs])[0]:.1f} %",
                f"{step.optimizer_ms:.2f}",
                f"{step.step_ms:.1f}",
                f"{len(compilation.kernels)} ({compilation.compiled} new)" if from_kaon else "-",
                f"{compilation.seconds:.2f}" if from_kaon else "-",
            ]
        )
    return rows


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in (HEADER, *rows)) for column in range(len(HEADER))]
    for row in (HEADER, ["-" * width for width in widths], *rows):
        cells = [cell.rjust(width) if column else cell.ljust(width)
                 for column, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        print("  ".join(cells))


def summarize(
    results: Mapping[str, Sequence[RunResult]],
    times: Mapping[str, StepTime],
    compilations: Mapping[str, Compilation],
) -> dict[str, Any]:
    """The content of `summary.json`. A diverged run has null where it has no number."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    runs = [
        {
            "optimizer": recipe.optimizer,
            "implementation": recipe.implementation,
            "period": recipe.period,
            "row_scale": recipe.row_scale,
            "seed": run.seed,
            "lr": run.rate,
            "heldout_loss": number(run.loss),
            "frechet_distance": number(run.frechet_distance),
            "sample_accuracy": run.sample_accuracy,
            "optimizer_ms": times[recipe.key].optimizer_ms,
            "step_ms": times[recipe.key].step_ms,
        }
        for recipe in RECIPES
        for run in results[recipe.key]
    ]
    return {
        "runs": runs,
        "kernels": len(frozenset().union(*(compilation.kernels for compilation in compilations.values()))),
        "compile_seconds": sum(compilation.seconds for compilation in compilations.values()),
        "machine": describe_machine(),
    }


def mean_curve(recipe: Recipe, runs: Sequence[RunResult]) -> Curve:
    """The mean over seeds, as far as all of them came."""
    columns = zip(*(run.curve for run in runs), strict=False)
    return Curve(recipe.label, [(column[0][0], sum(loss for _, loss in column) / len(column)) for column in columns])


def compare(options: argparse.Namespace) -> None:
    """Compiles, trains, measures, and writes the summary and the report."""
    started = time.perf_counter()
    settings = Settings(steps=options.steps)
    if options.quick:
        settings = replace(settings, samples=50, evaluations=2)
    rates = load_rates()
    torch.set_num_threads(1)  # Kaon's optimizers follow torch
    splits = load_splits()
    stopwatch = Stopwatch(RECIPES, rates, splits.train, settings)
    classifier = train_classifier(splits.train, steps=100 if options.quick else 800)
    jobs = [Job(recipe, rates[recipe.rate_of], seed) for seed in range(options.seeds) for recipe in RECIPES]
    outcomes = run_jobs(jobs, settings, classifier, options.workers, "training")
    times = stopwatch.measure(2 if options.quick else ROUNDS)
    results = {recipe.key: [run for run in outcomes if run.key == recipe.key] for recipe in RECIPES}

    rows = table_rows(results, times, stopwatch.compilations)
    notes = remarks(options, settings, splits, classifier)
    print()
    print_table(rows)
    print()
    print("\n".join(notes))
    options.out.mkdir(parents=True, exist_ok=True)
    summary = summarize(results, times, stopwatch.compilations)
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    grids = {"real digits, held out": real_examples(splits)}
    grids |= {f"{recipe.label}, seed 0": results[recipe.key][0].samples for recipe in RECIPES}
    report = render(
        "Kaon: a diffusion transformer on digits",
        "One small DiT, trained from the same weights on the same batches by optimizers written in Kaon's DSL and "
        f"compiled for this CPU, and by torch's own. {options.steps} steps, mean over {options.seeds} seeds.",
        HEADER,
        rows,
        [mean_curve(recipe, results[recipe.key]) for recipe in RECIPES],
        grids,
        notes,
    )
    (options.out / "report.html").write_text(report)
    print(f"\nwrote {options.out / 'summary.json'} and {options.out / 'report.html'} "
          f"after {time.perf_counter() - started:.0f} s")  # fmt: skip


def real_examples(splits: DigitSplits) -> torch.Tensor:
    """Four held-out scans of each class, in the order in which samples are drawn."""
    held_out = splits.held_out
    by_class = [held_out.images[held_out.labels == label][:4] for label in range(10)]
    return torch.stack(by_class, dim=1).flatten(0, 1)


def remarks(
    options: argparse.Namespace, settings: Settings, splits: DigitSplits, classifier: DigitClassifier
) -> list[str]:
    """What a reader must know to read the table, with the yardsticks' own values on real digits."""
    features, predicted = classifier.judge(splits.held_out.images)
    accuracy = (predicted == splits.held_out.labels).float().mean().item()
    floor = frechet_distance(classifier.judge(splits.train.images)[0], features)
    return [
        f"Scans: {len(splits.train)} training, {len(splits.validation)} validation, {len(splits.held_out)} held out.",
        "Learning rates were picked on the validation scans with another seed; the calibrated rows use Muon's.",
        "Held-out loss: flow matching, averaged weights, fixed noise and times; mean over seeds ± standard deviation.",
        f"Frechet distance and accuracy: {settings.samples} samples, judged by a small classifier.",
        f"Yardstick: it is right on {100 * accuracy:.1f} % of held-out scans; training scans are at {floor:.3f}.",
        "Times: one thread, all optimizers in turns, nothing else running; median of the mean over whole periods.",
        "Kernels: in use (compiled now, others were in the cache). Optimizers share them, so later rows compile fewer.",
        f"Trained {options.workers} at a time, one thread each.",
    ]


def main() -> int:
    options = parse_arguments()
    if options.tune:
        tune(Settings(steps=options.steps), options.workers)
    else:
        compare(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
