"""Runs many trainings at once, one thread each, with one progress bar over all their steps."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from .data import DigitSplits, load_splits
from .metrics import DigitClassifier
from .training import Recipe, RunResult, Settings, train

REPORT_EVERY = 10


@dataclass(frozen=True)
class Job:
    """One training to do. Without a classifier it is a tuning run (see `train`)."""

    recipe: Recipe
    rate: float
    seed: int


@dataclass
class _Worker:
    """What a worker process sets up once."""

    splits: DigitSplits
    settings: Settings
    classifier: DigitClassifier | None
    progress: multiprocessing.Queue[int]


_worker: _Worker | None = None


def _start_worker(progress: Any, settings: Settings, classifier_state: dict[str, Any] | None) -> None:
    global _worker
    torch.set_num_threads(1)  # Kaon's optimizers follow torch
    classifier = None
    if classifier_state is not None:
        classifier = DigitClassifier().eval().requires_grad_(False)
        classifier.load_state_dict(classifier_state)
    _worker = _Worker(load_splits(), settings, classifier, progress)


def _run_job(job: Job) -> RunResult:
    worker = _worker
    assert worker is not None, "the pool calls _start_worker first"
    unreported = 0

    def advance(steps: int) -> None:
        nonlocal unreported
        unreported += steps
        if unreported >= REPORT_EVERY:
            worker.progress.put(unreported)
            unreported = 0
            parent = multiprocessing.parent_process()
            if parent is not None and not parent.is_alive():
                os._exit(1)  # the comparison was killed; nobody waits for this run

    return train(job.recipe, job.rate, job.seed, worker.splits, worker.settings, worker.classifier, advance)


def default_workers() -> int:
    """One process per core this process may use, at most eight."""
    return min(8, len(os.sched_getaffinity(0)))


def run_jobs(
    jobs: Sequence[Job], settings: Settings, classifier: DigitClassifier | None, workers: int, title: str
) -> list[RunResult]:
    """Trains all jobs, `workers` at a time, and returns their results in the order of `jobs`.

    The first failure is raised here, once the runs in progress have ended; no further one is started.
    """
    context = multiprocessing.get_context("spawn")
    progress: multiprocessing.Queue[int] = context.Queue()
    state = None if classifier is None else classifier.state_dict()
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_start_worker, initargs=(progress, settings, state)
    )
    with pool, tqdm(total=len(jobs) * settings.steps, desc=title, unit="step", smoothing=0.05) as bar:
        futures = [pool.submit(_run_job, job) for job in jobs]
        reported: set[Future[RunResult]] = set()
        try:
            while len(reported) < len(futures):
                with contextlib.suppress(queue.Empty):
                    bar.update(progress.get(timeout=0.2))
                for job, future in zip(jobs, futures, strict=True):
                    if future.done() and future not in reported:
                        reported.add(future)
                        bar.set_postfix_str(f"{job.recipe.label}, seed {job.seed}: {future.result().loss:.4f}")
            bar.update(len(jobs) * settings.steps - bar.n)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]
