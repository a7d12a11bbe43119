"""From a package's plan to that of a model: which matrix is which, and the plan in the model's order."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kaon.package.manifest import MatrixSpec, canonical
from kaon.target import buckets

if TYPE_CHECKING:
    from kaon.driver import MatrixEntry

_SHOWN = 4


class MismatchError(ValueError):
    """A model's matrices are not those of the package; the message names both."""


def spec_of(entry: MatrixEntry) -> MatrixSpec:
    """What `entry` needs of a package."""
    constexprs = canonical(entry.update.bind_constexprs(entry.constexprs))
    return MatrixSpec(
        entry.update.name, entry.rows, entry.cols, entry.param_dtype, entry.grad_dtype, constexprs, entry.phase
    )


def match(matrices: Sequence[MatrixSpec], wanted: Sequence[MatrixSpec]) -> list[int]:
    """For each of `wanted` the position of its own matrix in the package, equal ones in their order.

    Raises:
        MismatchError: the two are not the same matrices in some order.
    """
    have, want = Counter(spec.key for spec in matrices), Counter(spec.key for spec in wanted)
    if have != want:
        raise MismatchError(_difference(matrices, wanted))
    positions: dict[object, list[int]] = defaultdict(list)
    for position, spec in reversed(list(enumerate(matrices))):
        positions[spec.key].append(position)
    return [positions[spec.key].pop() for spec in wanted]


def _difference(matrices: Sequence[MatrixSpec], wanted: Sequence[MatrixSpec]) -> str:
    """In how many matrices of which kind the package and the model differ."""
    specs = {spec.key: spec for spec in (*matrices, *wanted)}
    have, want = Counter(spec.key for spec in matrices), Counter(spec.key for spec in wanted)
    labels = Counter(str(spec) for spec in specs.values())
    lines = []
    for key, spec in specs.items():
        if have[key] != want[key]:
            # Only where nothing else tells two kinds apart do their options have to be read.
            options = f", options {spec.constexprs}" if labels[str(spec)] > 1 else ""
            lines.append(f"{spec}{options}: compiled for {have[key]}, this model has {want[key]}")
    more = f"; and {len(lines) - _SHOWN} more kinds" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more


def check_names(plan_json: str) -> None:
    """Refuse a plan whose kernels are not what their names say: the compiler's names tell of a product whether it is
    symmetric and how its matrices lie, and of a kernel over rows on a GPU for how many threads it was made.

    Raises:
        MismatchError: names the field, and what the name says.
    """
    plan = json.loads(plan_json)
    on_gpu = plan["target"] == "cuda"
    for index, kernel in enumerate(plan["kernels"]):
        name, words = kernel["name"], kernel["name"].split("_")
        told: dict[str, object] = {}
        if kernel["schedule"] == "matmul":
            told["symmetric"] = "symmetric" in words
            told["transposeA"] = on_gpu and "transposed_lhs" in name
            told["transposeB"] = on_gpu and "transposed_rhs" in name
        if on_gpu and kernel["schedule"] == "rows":
            told["threads"] = next((int(word[1:]) for word in words if re.fullmatch(r"t\d+", word)), None)
        for field, wanted in told.items():
            if kernel[field] != wanted:
                found, wish = json.dumps(kernel[field]), json.dumps(wanted)
                raise MismatchError(f"kernels[{index}].{field}: expects {wish} of the kernel {name!r}, but got {found}")


def arrange(plan_json: str, order: Sequence[int], entries: Sequence[MatrixEntry]) -> str:
    """The plan for `entries`: their order, names and scalar sets. Entry `i` is matrix `order[i]` of the plan."""
    plan = json.loads(plan_json)
    old = plan["parameters"]
    names = {}
    plan["parameters"] = []
    for position, entry in zip(order, entries, strict=True):
        parameter = old[position]
        names[entry.scalar_set] = plan["scalarSets"][parameter["scalarSet"]]
        plan["parameters"].append({**parameter, "name": entry.name, "scalarSet": entry.scalar_set})
    plan["scalarSets"] = [names[index] for index in range(len(names))]
    new = {position: index for index, position in enumerate(order)}
    for phase in plan["phases"]:
        for bucket in buckets(phase):
            bucket["members"] = [new[member] for member in bucket["members"]]
    return json.dumps(plan)
