"""What an optimizer does to each parameter, as data and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaon.target import ELEMENT_BYTES, PRODUCT_DTYPES, buckets, finite_checks, launch_counts, product_dtypes

if TYPE_CHECKING:
    from .program import Program, Record


@dataclass(frozen=True)
class PlanRow:
    """One parameter.

    `flops` and `bytes` are averages per step over the phases of the period; kernels are those of all phases. In
    interpreted mode (`KAON_INTERPRET=1`) there are no kernels, whose FLOPs and bytes are 0.

    `refreshes` has what the update does at some steps only (each `kl.every` of it, with a period above 1): the period,
    and how many steps after the first one it happens for the first time, the parameter's own phase included. `period`
    is after how many steps all of them repeat together, `phase` that of the only one, or the parameter's own.

    `staged` names what has to be copied to a buffer at every step, "parameter" (also back) or "gradient", because
    kernels cannot work on it where it is; the copies are counted in `bytes`, the buffers take `staging_bytes`.
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
    refreshes: tuple[tuple[int, int], ...]
    kernels: tuple[str, ...]
    flops: float
    bytes: float
    state_bytes: int
    staged: tuple[str, ...] = ()
    staging_bytes: int = 0


@dataclass(frozen=True)
class PlanKernel:
    """One kernel: its name, as in dumps, its schedule, the number of matrices it works on, and the means per step of
    its launches (each covers as many matrices as are in flight at once), FLOPs and bytes."""

    name: str
    schedule: str
    matrices: int
    launches: float
    flops: float
    bytes: float


@dataclass(frozen=True)
class Plan:
    """All rows, in order of the optimizer's parameters. `str(plan)` is a table.

    `workspace_bytes` is what a step needs besides parameters, gradients and states, buffers for copies included;
    `largest_bucket_bytes` the size of the parameters in the largest group that is stepped together (0 in interpreted
    mode). `kernels` has every kernel once, in order of first use. `checks` has those that look for gradients that are
    not finite before each step, where the optimizer asks for that; rows and `kernels` do not count them. `targets` says
    what each program runs on, one for each device at least, and what its matrix products are of, if it has any. `notes`
    are what is worth knowing, one per line.
    """

    rows: tuple[PlanRow, ...]
    workspace_bytes: int = 0
    largest_bucket_bytes: int = 0
    kernels: tuple[PlanKernel, ...] = ()
    notes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    checks: tuple[PlanKernel, ...] = ()

    @classmethod
    def of(
        cls,
        programs: Sequence[Program],
        notes: Sequence[str] = (),
        product_dtype: str | None = None,
        check_finite: bool = False,
    ) -> Plan:
        """The plan of compiled `programs`, for which products of `product_dtype` were asked; `check_finite`: whether
        they look at gradients before each step."""
        rows: list[tuple[int, PlanRow]] = []
        kernels: dict[str, PlanKernel] = {}
        checks: dict[str, PlanKernel] = {}
        targets: dict[str, None] = {}
        products: set[str] = set()
        workspace = largest_bucket = 0
        for program in programs:
            step_plan = getattr(program.compiled, "plan", None)
            target = program.compiled.target if program.compiled is not None else None
            costs = None
            if step_plan is not None:
                data = json.loads(step_plan.to_json())
                costs = _matrix_costs(data)
                for kernel in kernel_costs(data):
                    kernels[kernel.name] = _joined(kernels.get(kernel.name), kernel)
                for check in _finite_checks(data) if check_finite else ():
                    checks[check.name] = _joined(checks.get(check.name), check)
                workspace += data["workspaceBytes"]
                largest_bucket = max(largest_bucket, _largest_bucket_bytes(data))
                if found := product_dtypes(data):
                    target = f"{target}, products of {' and '.join(found)}"
                    products.update(found)
            if target is not None:
                targets[target] = None
            first = 0
            for record in program.records:
                count = record.matrices
                rows.append((record.index, _row(record, costs[first : first + count] if costs is not None else [])))
                first += count
        ordered = tuple(row for _, row in sorted(rows, key=lambda item: item[0]))
        workspace += sum(row.staging_bytes for row in ordered)
        return cls(
            ordered,
            workspace,
            largest_bucket,
            tuple(kernels.values()),
            (*notes, *_staging_notes(ordered), *_product_notes(product_dtype, products)),
            tuple(targets),
            tuple(checks.values()),
        )

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
                    row.view + (f" = {row.matrices}" if row.matrices != 1 else "") + (", copied" if row.staged else ""),
                    ", ".join(f"{period}+{phase}" if phase else f"{period}" for period, phase in row.refreshes) or "1",
                    str(len(row.kernels)),
                    f"{row.flops / 1e6:.3f}",
                    f"{row.bytes / 1e6:.3f}",
                )
            )
        flops, moved = sum(row.flops for row in self.rows), sum(row.bytes for row in self.rows)
        kernels = len({kernel for row in self.rows for kernel in row.kernels})
        lines.append(("total", "", "", "", "", "", "", str(kernels), f"{flops / 1e6:.3f}", f"{moved / 1e6:.3f}"))
        targets = (f"target: {target}" for target in self.targets)
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([_table(lines, numeric=3), *self._describe_checks(), *targets, *notes])

    def _describe_checks(self) -> list[str]:
        """What looking for gradients that are not finite adds to a step, if it is done."""
        if not self.checks:
            return []
        launches, moved = (sum(getattr(check, name) for check in self.checks) for name in ("launches", "bytes"))
        return [
            f"check: gradients that are not finite are looked for before each step: {launches:.0f} "
            f"launch{'es' if launches != 1 else ''}, {moved / 1e6:.3f} MB beside the above"
        ]

    def kernel_table(self) -> str:
        """Every kernel by name, those of the check included, as a table."""
        lines = [("kernel", "schedule", "matrices", "launches/step", "MFLOP/step", "MB/step")]
        lines.extend(
            (
                kernel.name,
                kernel.schedule,
                str(kernel.matrices),
                f"{kernel.launches:.2f}",
                f"{kernel.flops / 1e6:.3f}",
                f"{kernel.bytes / 1e6:.3f}",
            )
            for kernel in (*self.checks, *self.kernels)
        )
        launches, flops, moved = (
            sum(getattr(kernel, name) for kernel in (*self.checks, *self.kernels))
            for name in ("launches", "flops", "bytes")
        )
        lines.append(("total", "", "", f"{launches:.2f}", f"{flops / 1e6:.3f}", f"{moved / 1e6:.3f}"))
        return _table(lines, numeric=4)


def _table(lines: Sequence[Sequence[str]], numeric: int) -> str:
    """Header, rows and totals in columns, the last `numeric` of them to the right."""
    columns = len(lines[0])
    widths = [max(len(line[column]) for line in lines) for column in range(columns)]
    text = [
        "  ".join(
            cell.rjust(width) if column >= columns - numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    rule = "-" * max(map(len, text))
    return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])


def _staging_notes(rows: Sequence[PlanRow]) -> list[str]:
    names = [row.name for row in rows if row.staged]
    if not names:
        return []
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    size = sum(row.staging_bytes for row in rows)
    return [
        f"copied to buffers of {size / 1e6:.3f} MB at every step, as columns are not next to each other (or, of "
        f"gradients, the type or sign is another): {', '.join(names[:5])}{more}; contiguous tensors are not"
    ]


def _product_notes(wanted: str | None, products: set[str]) -> list[str]:
    """That an option changes nothing."""
    if wanted is None or not products.isdisjoint(PRODUCT_DTYPES):
        return []
    return [f"product_dtype {wanted!r} changes nothing: no update of a parameter on a GPU has a product of matrices"]


def _largest_bucket_bytes(plan: dict[str, Any]) -> int:
    """The most parameter bytes that one bucket of any phase holds."""
    sizes = [matrix["rows"] * matrix["cols"] * ELEMENT_BYTES[matrix["paramType"]] for matrix in plan["parameters"]]
    members = (bucket["members"] for phase in plan["phases"] for bucket in buckets(phase))
    return max((sum(sizes[member] for member in together) for together in members), default=0)


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
    for phase in plan["phases"]:
        for bucket in buckets(phase):
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


def kernel_costs(plan: dict[str, Any]) -> list[PlanKernel]:
    """Every kernel of a step plan, with means per step over its phases."""
    count = len(plan["kernels"])
    members: list[set[int]] = [set() for _ in range(count)]
    launches, flops, moved = [0] * count, [0.0] * count, [0.0] * count
    for group in (group for phase in plan["phases"] for group in phase):
        for bucket in group["buckets"]:
            for launch in plan["sequences"][bucket["sequence"]]["launches"]:
                kernel, matrices = launch["kernel"], len(bucket["members"])
                members[kernel].update(bucket["members"])
                flops[kernel] += launch["flops"] * matrices
                moved[kernel] += launch["bytes"] * matrices
        for kernel, number in launch_counts(plan, group):
            launches[kernel] += number
    period = max(len(plan["phases"]), 1)
    return [
        PlanKernel(
            kernel["name"],
            kernel["schedule"],
            len(members[index]),
            launches[index] / period,
            flops[index] / period,
            moved[index] / period,
        )
        for index, kernel in enumerate(plan["kernels"])
    ]


def _finite_checks(plan: dict[str, Any]) -> list[PlanKernel]:
    return [
        PlanKernel(name, "elementwise", check.matrices, 1.0, 0.0, check.bytes)
        for name, check in finite_checks(plan).items()
    ]


def _joined(known: PlanKernel | None, other: PlanKernel) -> PlanKernel:
    """One kernel's shares in two programs together."""
    if known is None:
        return other
    return PlanKernel(
        other.name,
        other.schedule,
        known.matrices + other.matrices,
        known.launches + other.launches,
        known.flops + other.flops,
        known.bytes + other.bytes,
    )


def _row(record: Record, costs: Sequence[_MatrixCost]) -> PlanRow:
    route = record.route
    staged = record.staged()
    refreshes = tuple((period, (phase + record.phase) % period) for period, phase in record.refreshes if period > 1)
    return PlanRow(
        name=record.name,
        shape=tuple(record.shape),
        dtype=str(record.parameter.dtype).removeprefix("torch."),
        rule=route.rule,
        update=record.binding.update(record.group).name,
        view=str(route.view),
        matrices=record.matrices,
        decay=route.decay,
        period=math.lcm(*(period for period, _ in refreshes)),
        phase=refreshes[0][1] if len(refreshes) == 1 else record.phase,
        refreshes=refreshes,
        kernels=tuple(dict.fromkeys(kernel for cost in costs for kernel in cost.kernels)),
        flops=sum(cost.flops for cost in costs),
        bytes=sum(cost.bytes for cost in costs) + sum(moved for _, moved in staged.values()),
        state_bytes=sum(tensor.numel() * tensor.element_size() for _, tensor, _ in record.tensors),
        staged=tuple(staged),
        staging_bytes=sum(size for size, _ in staged.values()),
    )
