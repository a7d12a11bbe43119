"""Plans with one thing wrong are refused by the path of a field, or do no harm in memory.

Every field of the plans of the bundled updates is changed, one at a time (plan_mutants.py); of each kind of change
some, chosen from a seed. What validation accepts is judged by what kernels touch (plan_oracle.py), and must be one of
the changes of :data:`HARMLESS`, each for its reason. Nothing is run.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import kaon.optim.updates as bundled
import pytest
from kaon import _C, driver
from kaon.cuda_target import SHARED_BYTES, CudaTarget
from kaon.package.plans import MismatchError, check_names
from kaon.target import buckets
from plan_mutants import Mutant, mutants
from plan_oracle import Hole, Oracle, Refused

TWO_STEPS = ((3.0, -4.0, 1.5), (2.0, -1.0, 0.25))
UPDATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (bundled.adamw, {}),
    "adamw_amsgrad": (bundled.adamw_amsgrad, {}),
    "muon": (bundled.muon, {"coefficients": TWO_STEPS}),
    "periodic": (bundled.periodic_rowwise_muon, {"coefficients": TWO_STEPS, "period": 2}),
    "calibrated": (bundled.calibrated_rowwise_muon, {"coefficients": TWO_STEPS, "period": 2}),
}
TARGETS: dict[str, driver.Target] = {
    "cpu": driver.CpuTarget(),
    "cuda": CudaTarget("sm_90a", SHARED_BYTES["sm_90a"]),
    "wgmma": CudaTarget("sm_90a", SHARED_BYTES["sm_90a"], main_loop="wgmma"),
}

# Two that share a bucket, one of several tiles that is stored in bf16, and one with rows that take shared memory.
MATRICES = ((40, 70, "f32"), (40, 70, "f32"), (300, 24, "bf16"), (2, 9000, "f32"))

SAMPLES = 2
"""Mutants of one place and change, of all plans for a target."""

HARMLESS = {
    # What only people and callers read. The names of kernels are those of their code, which loading looks for.
    r".*\.name": "a name",
    r"scalarSets\[\]\.names\[\]": "the name of a hyperparameter",
    r".*\.(flops|bytes)": "a cost",
    # How work is divided, or memory is laid out, within what is checked.
    r"sequences\[\]\.launches\[\]\.grain": "how much of the work is taken at a time",
    r"phases\[\]\[\]\.buckets\[\]\.concurrent": "how many of a bucket are in flight, which have memory",
    r"phases\[\]\[\]\.buckets\[\]\.workspaceOffset": "where a bucket's own memory is, if it has any",
    r"sequences\[\]\.workspaceBytes": "more memory than is used",
    r"sequences\[\]\.launches\[\]\.operands\[\]\.pitch": "the distance from a single row to the next",
    r"phases\[\]\[\]": "the order of groups, which have no matrix in common",
    r"phases\[\]\[\]\.buckets\[\]": "the order of buckets that run at once",
    r"phases\[\]\[\]\.buckets\[\]\.members\[\]": "the order of the matrices of a bucket",
    r"(sequences\[\]|phases\[\]\[\])\.launches\[\]": "the order of launches that have nothing to do with each other",
    # What a kernel says of itself, where its launches in this plan are the same either way.
    r"kernels\[\]\.(kept|registerGroups)": "what decides how much shared memory is needed, which does not change",
    r"kernels\[\]\.(symmetric|tiles\[\])": "what decides how many tiles there are, which is one either way",
    r"kernels\[\]\.transpose[AB]": "how a square matrix is read, which the code decides",
    r"kernels\[\]\.threads": "what loading compares with the code",
    r"kernels\[\]\.schedule": "on the CPU, elementwise or rows: the same elements are read and written",
    # Another update: numbers of the same kind from somewhere else, or made into others.
    r"sequences\[\]\.scalarProgram\[\].*": "what hyperparameters are made into",
    r"sequences\[\]\.launches\[\]\.scalars\[\]": "which number a kernel gets",
    r"sequences\[\]\.launches\[\]\.kernel": "which kernel runs, of those that take the same",
    r"sequences\[\]\.launches\[\]\.operands\[\]": "which matrix of the same shape and type is which",
    r"sequences\[\]\.launches\[\]\.operands\[\]\.(kind|index|offset)": "which of several such matrices is read",
    r"sequences\[\]": "which update of the same matrices is which",
    r"parameters\[\](\.states\[\])?": "which matrix, or state, of the same shape and type is which",
    r"parameters\[\]\.scalarSet": "which hyperparameters a matrix has",
    r"phases\[\]\[\]\.buckets\[\]\.sequence": "which update of the same matrices is run",
    r"phases\[\]": "which phase is which",
    r"scalarSets\[\]": "hyperparameters of as many names",
}
"""Places, and why a change there that is accepted goes wrong in no buffer and leaves out no result."""


@functools.cache
def plan_of(name: str, target: str) -> dict[str, Any]:
    update, constexprs = UPDATES[name]
    entries = [driver.MatrixEntry(update, rows, cols, dtype, dtype, constexprs) for rows, cols, dtype in MATRICES]
    plan: dict[str, Any] = json.loads(driver.lower(driver.emit(entries).text, TARGETS[target]).plan_json)
    return plan


def sampled(target: str) -> list[tuple[str, Mutant]]:
    """Mutants of the plans for a target, of every place and change, with the name of their update."""
    found: dict[tuple[str, str], list[tuple[str, Mutant]]] = defaultdict(list)
    for name in UPDATES:
        for mutant in mutants(plan_of(name, target)):
            found[mutant.place, mutant.change].append((name, mutant))
    generator = random.Random(f"mutants for {target}")
    return [one for some in found.values() for one in generator.sample(some, min(SAMPLES, len(some)))]


def refusal(text: str) -> str | None:
    try:
        _C.StepPlan.from_json(text)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("target", TARGETS)
def test_changed_plans_are_refused_or_harmless(target: str) -> None:
    oracles = {name: Oracle(plan_of(name, target)) for name in UPDATES}
    chosen = sampled(target)
    accepted = 0
    for name, mutant in chosen:
        message = refusal(mutant.text)
        if message is not None:
            assert re.match(r"[a-zA-Z]+[\[\].\w]*: .*expects", message), f"{mutant.place} {mutant.change}: {message}"
            continue
        accepted += 1
        what = f"{name}: {mutant.place} {mutant.change}"
        assert any(re.fullmatch(place, mutant.place) for place in HARMLESS), f"{what}: accepted, for no stated reason"
        try:
            oracles[name].judge(json.loads(mutant.text))
        except Refused:
            pass
        except Hole as hole:
            pytest.fail(f"{what}: accepted, but {hole}")
    assert len(chosen) > 800 and accepted < len(chosen) / 3, "mutants that change too little"


# ---- packages


@pytest.mark.parametrize("target", TARGETS)
def test_names_of_kernels_are_what_their_plan_says(target: str) -> None:
    for name in UPDATES:
        check_names(json.dumps(plan_of(name, target)))


@pytest.mark.parametrize(
    ("schedule", "field", "value"),
    [
        ("matmul", "symmetric", False),
        ("matmul", "transposeA", True),
        ("matmul", "transposeB", False),
        ("rows", "threads", 64),
    ],
)
def test_packages_refuse_kernels_by_their_names(schedule: str, field: str, value: object) -> None:
    plan = copy.deepcopy(plan_of("periodic", "cuda"))
    index, kernel = next(
        (index, kernel)
        for index, kernel in enumerate(plan["kernels"])
        if kernel["schedule"] == schedule and kernel[field] != value
    )
    wanted, kernel[field] = kernel[field], value
    texts = json.dumps(wanted), json.dumps(value)
    message = f"kernels[{index}].{field}: expects {texts[0]} of the kernel '{kernel['name']}', but got {texts[1]}"
    with pytest.raises(MismatchError, match=re.escape(message)):
        check_names(json.dumps(plan))


# ---- the judge


def _first(plan: dict[str, Any], schedule: str) -> dict[str, Any]:
    """The first launch of a kernel with a schedule."""
    launches: list[dict[str, Any]] = [launch for sequence in plan["sequences"] for launch in sequence["launches"]]
    return next(launch for launch in launches if plan["kernels"][launch["kernel"]]["schedule"] == schedule)


def _one_item_less(plan: dict[str, Any]) -> None:
    _first(plan, "elementwise")["items"] -= 1


def _less_shared_memory(plan: dict[str, Any]) -> None:
    _first(plan, "matmul")["sharedBytes"] -= 16


def _one_column_more(plan: dict[str, Any]) -> None:
    launch = _first(plan, "elementwise")
    launch["sizes"][1] += 1
    launch["items"] = -(-launch["sizes"][0] * launch["sizes"][1] // 8192)


def _one_operand_less(plan: dict[str, Any]) -> None:
    del _first(plan, "elementwise")["operands"][0]


def _another_offset(plan: dict[str, Any]) -> None:
    _first(plan, "matmul")["operands"][0]["offset"] += 256


def _over_its_operand(plan: dict[str, Any]) -> None:
    launch = _first(plan, "matmul")
    launch["operands"][-1]["offset"] = launch["operands"][0]["offset"]


def _beyond_the_workspace(plan: dict[str, Any]) -> None:
    operand = _first(plan, "matmul")["operands"][-1]
    operand["offset"] = max(sequence["workspaceBytes"] for sequence in plan["sequences"])


def _members_twice(plan: dict[str, Any]) -> None:
    members = next(bucket["members"] for bucket in buckets(plan["phases"][0]) if len(bucket["members"]) > 1)
    members[0] = members[1]


def _a_launch_left_out(plan: dict[str, Any]) -> None:
    plan["phases"][0][0]["launches"].pop()


def _no_scalars(plan: dict[str, Any]) -> None:
    _first(plan, "matmul")["scalars"] = []


@pytest.mark.parametrize(
    "damage",
    [
        _one_item_less,
        _less_shared_memory,
        _one_column_more,
        _one_operand_less,
        _another_offset,
        _over_its_operand,
        _beyond_the_workspace,
        _members_twice,
        _a_launch_left_out,
        _no_scalars,
    ],
)
def test_the_judge_finds_what_validation_refuses(damage: Callable[[dict[str, Any]], None]) -> None:
    original = plan_of("muon", "cuda")
    plan = copy.deepcopy(original)
    oracle = Oracle(original)
    oracle.judge(plan)
    damage(plan)
    assert refusal(json.dumps(plan)) is not None
    with pytest.raises(Hole):
        oracle.judge(plan)
