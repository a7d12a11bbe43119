"""How long a step takes: all recipes in turns in one process while nothing else runs, and what compiling them cost."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kaon import driver
from kaon.optim import KaonOptimizer
from tqdm import tqdm

from .data import Digits
from .training import Recipe, Settings, Trainer

ROUNDS = 9


@dataclass(frozen=True)
class Compilation:
    """What the first step of a recipe's optimizers took.

    Attributes:
        kernels: names of all kernels in use.
        compiled: how many of them were compiled now; the others came from the cache on disk.
        seconds: all the way from Python source to loaded machine code.
    """

    kernels: frozenset[str]
    compiled: int
    seconds: float

    @staticmethod
    def of(trainer: Trainer, before: driver.Statistics, after: driver.Statistics) -> Compilation:
        """For `trainer`, made and stepped between two readings of `kaon.driver.totals()`."""

        def seconds(statistics: driver.Statistics) -> float:
            return statistics.emit_seconds + statistics.lower_seconds + statistics.compile_seconds

        plans = [optimizer.plan(show=False) for optimizer in trainer.optimizers if isinstance(optimizer, KaonOptimizer)]
        kernels = frozenset(kernel for plan in plans for row in plan for kernel in row.kernels)
        compiled = after.kernels_compiled - before.kernels_compiled
        return Compilation(kernels, compiled, seconds(after) - seconds(before))


@dataclass(frozen=True)
class StepTime:
    """Milliseconds: the optimizers' part of a training step, and the whole of it."""

    optimizer_ms: float
    step_ms: float


class Stopwatch:
    """Trainers of all recipes which take turns; making one compiles (or loads) its kernels.

    The turns are whole periods of all recipes, so that refresh and row steps are weighed as training weighs them.
    """

    def __init__(
        self, recipes: Sequence[Recipe], rates: Mapping[str, float], digits: Digits, settings: Settings
    ) -> None:
        self.trainers: dict[str, Trainer] = {}
        self.compilations: dict[str, Compilation] = {}
        self.turn = math.lcm(*(recipe.period for recipe in recipes))
        for recipe in tqdm(recipes, desc="compiling", unit="optimizer"):
            before = driver.totals()
            trainer = Trainer(recipe, rates[recipe.rate_of], 0, digits, settings)
            trainer.step()
            self.trainers[recipe.key] = trainer
            self.compilations[recipe.key] = Compilation.of(trainer, before, driver.totals())

    def measure(self, rounds: int = ROUNDS) -> dict[str, StepTime]:
        """Median over `rounds` turns of the mean time of a step within a turn."""
        samples: dict[str, list[StepTime]] = {key: [] for key in self.trainers}
        keys = list(self.trainers)
        with tqdm(total=rounds * len(keys), desc="timing", unit="turn") as bar:
            for turn in range(rounds):
                for key in keys[turn % len(keys) :] + keys[: turn % len(keys)]:
                    samples[key].append(self._turn(self.trainers[key]))
                    bar.update()
        return {
            key: StepTime(
                statistics.median(sample.optimizer_ms for sample in taken),
                statistics.median(sample.step_ms for sample in taken),
            )
            for key, taken in samples.items()
        }

    def _turn(self, trainer: Trainer) -> StepTime:
        optimizer_seconds = 0.0
        start = time.perf_counter()
        for _ in range(self.turn):
            trainer.backward()
            before = time.perf_counter()
            trainer.optimize()
            optimizer_seconds += time.perf_counter() - before
            trainer.average()
        seconds = time.perf_counter() - start
        return StepTime(1e3 * optimizer_seconds / self.turn, 1e3 * seconds / self.turn)
