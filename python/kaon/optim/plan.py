"""What an optimizer does to each parameter, as data and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .program import Program, Record


@dataclass(frozen=True)
class PlanRow:
    """One parameter.

    `flops` and `bytes` are averages per step over the phases of the period; kernels are those of all phases. In
    interpreted mode (`KAON_INTERPRET=1`) there are no kernels, and both are 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    rule: str
    update: str
    view: str
    matrices: int
    decay: bool
    period: int
    phase: int
    kernels: tuple[str, ...]
    flops: float
    bytes: float
    state_bytes: int


@dataclass(frozen=True)
class Plan:
    """All rows, in order of the optimizer's parameters. `str(plan)` is a table.

    `workspace_bytes` is what a step needs besides parameters, gradients and states; `largest_bucket_bytes` the size of
    the parameters in the largest group that is stepped together. Both are 0 in interpreted mode.
    """

    rows: tuple[PlanRow, ...]
    workspace_bytes: int = 0
    largest_bucket_bytes: int = 0

    @classmethod
    def of(cls, programs: Sequence[Program]) -> Plan:
        """The plan of compiled `programs`."""
        rows: list[tuple[int, PlanRow]] = []
        workspace = largest_bucket = 0
        for program in programs:
            step_plan = getattr(program.compiled, "plan", None)
            costs = None
            if step_plan is not None:
                data = json.loads(step_plan.to_json())
                costs = _matrix_costs(data)
                workspace += data["workspaceBytes"]
                largest_bucket = max(largest_bucket, _largest_bucket_bytes(data))
            first = 0
            for record in program.records:
                count = len(record.positions)
                rows.append((record.index, _row(record, costs[first : first + count] if costs is not None else [])))
                first += count
        ordered = tuple(row for _, row in sorted(rows, key=lambda item: item[0]))
        return cls(ordered, workspace, largest_bucket)

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> PlanRow:
        """The row of the parameter called `name`."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        header = ("parameter", "shape", "dtype", "rule", "update", "view", "K", "kernels", "MFLOP/step", "MB/step")
        lines = [header]
        for row in self.rows:
            lines.append(
                (
                    row.name,
                    "x".join(map(str, row.shape)) or "scalar",
                    row.dtype,
                    row.rule,
                    row.update + ("" if row.decay else ", no decay"),
                    row.view + (f" = {row.matrices}" if row.matrices != 1 else ""),
                    f"{row.period}" + (f"+{row.phase}" if row.phase else ""),
                    str(len(row.kernels)),
                    f"{row.flops / 1e6:.3f}",
                    f"{row.bytes / 1e6:.3f}",
                )
            )
        flops, moved = sum(row.flops for row in self.rows), sum(row.bytes for row in self.rows)
        kernels = len({kernel for row in self.rows for kernel in row.kernels})
        lines.append(("total", "", "", "", "", "", "", str(kernels), f"{flops / 1e6:.3f}", f"{moved / 1e6:.3f}"))
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        numeric = len(header) - 3
        text = [
            "  ".join(
                cell.rjust(width) if column >= numeric else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        rule = "-" * max(map(len, text))
        return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])


_ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def _largest_bucket_bytes(plan: dict[str, Any]) -> int:
    """The most parameter bytes that one bucket of any phase holds."""
    sizes = [matrix["rows"] * matrix["cols"] * _ELEMENT_BYTES[matrix["paramType"]] for matrix in plan["parameters"]]
    buckets = (bucket for phase in plan["phases"] for bucket in phase)
    return max((sum(sizes[member] for member in bucket["members"]) for bucket in buckets), default=0)


@dataclass(frozen=True)
class _MatrixCost:
    kernels: tuple[str, ...]
    flops: float
    bytes: float


def _matrix_costs(plan: dict[str, Any]) -> list[_MatrixCost]:
    """Kernels, and mean FLOPs and bytes per step, of each matrix of a step plan."""
    names = [kernel["name"] for kernel in plan["kernels"]]
    kernels: list[dict[str, None]] = [{} for _ in plan["parameters"]]
    flops = [0.0] * len(kernels)
    moved = [0.0] * len(kernels)
    for buckets in plan["phases"]:
        for bucket in buckets:
            launches = plan["sequences"][bucket["sequence"]]["launches"]
            for member in bucket["members"]:
                kernels[member].update((names[launch["kernel"]], None) for launch in launches)
                flops[member] += sum(launch["flops"] for launch in launches)
                moved[member] += sum(launch["bytes"] for launch in launches)
    period = max(len(plan["phases"]), 1)
    return [
        _MatrixCost(tuple(used), operations / period, traffic / period)
        for used, operations, traffic in zip(kernels, flops, moved, strict=True)
    ]


def _row(record: Record, costs: Sequence[_MatrixCost]) -> PlanRow:
    route = record.route
    return PlanRow(
        name=record.name,
        shape=tuple(record.shape),
        dtype=str(record.parameter.dtype).removeprefix("torch."),
        rule=route.rule,
        update=record.binding.update(record.group).name,
        view=str(route.view),
        matrices=len(record.positions),
        decay=route.decay,
        period=record.binding.period(record.group),
        phase=record.phase,
        kernels=tuple(dict.fromkeys(kernel for cost in costs for kernel in cost.kernels)),
        flops=sum(cost.flops for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
        state_bytes=sum(tensor.numel() * tensor.element_size() for _, tensor, _ in record.tensors),
    )
