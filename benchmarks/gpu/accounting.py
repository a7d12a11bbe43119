"""What was launched, as the runtime counted it, against what the plan says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from .packages import Loaded


def _verdict(what: str, found: int, planned: int) -> dict[str, Any]:
    return {"what": what, "found": found, "planned": planned, "passed": found == planned}


def planned_matrices(plan: Mapping[str, Any], steps: range) -> Counter[str]:
    """On how many matrices each kernel of a plan (as JSON) is launched in some steps, in which all have gradients."""
    counts: Counter[str] = Counter()
    for step in steps:
        groups = plan["phases"][step % len(plan["phases"])]
        for bucket in (bucket for group in groups for bucket in group["buckets"]):
            for launch in plan["sequences"][bucket["sequence"]]["launches"]:
                counts[plan["kernels"][launch["kernel"]]["name"]] += len(bucket["members"])
    return counts


def verdicts(loaded: Loaded, steps: int) -> list[dict[str, Any]]:
    """After the first `steps` steps: that every step was a replayed graph, with the launches and the matrices that the
    plan has. Where rows have gaps, tables are made anew at the first step of each phase, which gets no graph then."""
    executor, plan = loaded.program.executor, loaded.program.plan
    planned = planned_matrices(json.loads(plan.to_json()), range(1, steps + 1))
    launches = sum(plan.costs[step % plan.period]["launches"] for step in range(1, steps + 1))
    without_graph = {step % plan.period for step in range(1, steps + 1)} if loaded.workload.layout == "mixed" else ()
    found = loaded.matrix_counts()
    return [
        _verdict("graphs launched", executor.graph_launches, steps - len(without_graph)),
        _verdict("kernels launched", executor.kernel_launches, launches),
        *(_verdict(f"matrices of {kernel}", found.get(kernel, 0), planned[kernel]) for kernel in sorted(planned)),
        _verdict("kernels that are not in the plan", len(found.keys() - planned.keys()), 0),
    ]


class Replays:
    """Counts what a program of one phase launches from here on."""

    def __init__(self, loaded: Loaded) -> None:
        self._executor = loaded.program.executor
        (self._cost,) = loaded.program.plan.costs
        self._graphs, self._kernels = self._executor.graph_launches, self._executor.kernel_launches

    def verdict(self) -> dict[str, Any]:
        """That there were steps, each of them a replayed graph with the launches of the plan."""
        graphs = self._executor.graph_launches - self._graphs
        kernels = self._executor.kernel_launches - self._kernels
        planned = self._cost["launches"]
        return {
            "graphs": graphs,
            "kernels": kernels,
            "planned_kernels_per_graph": planned,
            "passed": graphs > 0 and kernels == graphs * planned,
        }
