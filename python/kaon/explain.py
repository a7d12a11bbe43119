"""``python -m kaon explain``: the way of an update from Python to kernels, with FLOPs, bytes and workspace.

Everything is lowered as a real step would be, but no kernel is compiled unless its assembly is asked for.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaon import driver, knobs
from kaon.cache import open_cache
from kaon.cuda_target import CudaTarget
from kaon.target import finite_checks, launch_counts, product_dtypes

if TYPE_CHECKING:
    from kaon.compiler.update import Update

SECTIONS = knobs.STAGES
"""What can be shown, in the order of compilation."""

DEFAULT_SECTIONS = ("dsl", "kaon", "simplified", "plan")


class ExplainError(ValueError):
    """The command line names something that does not exist."""


def find_update(reference: str) -> Update:
    """The update that ``package.module:name`` or ``path/to/file.py:name`` names.

    Raises:
        ExplainError: the module cannot be found or has no such update; the message lists those it has.
    """
    from kaon.compiler.update import Update

    source, colon, name = reference.rpartition(":")
    if not colon:
        raise ExplainError(f"expects module:update, but got {reference!r}")
    if source.endswith(".py"):
        module = _import_file(Path(source))
    else:
        sys.path.insert(0, "")
        try:
            module = importlib.import_module(source)
        except ModuleNotFoundError as error:
            raise ExplainError(f"cannot import {source!r}: {error}") from None
        finally:
            sys.path.remove("")
    found = getattr(module, name, None)
    if not isinstance(found, Update):
        known = ", ".join(key for key, value in vars(module).items() if isinstance(value, Update)) or "none"
        raise ExplainError(f"{source} expects an update named {name!r}, but its updates are: {known}")
    return found


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise ExplainError(f"expects a Python file, but {str(path)!r} is none")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def parse_shape(text: str) -> tuple[int, int]:
    """``1152x4608`` as rows and columns; ``1152``, for one dimension, as the one row it is stepped as."""
    found = re.fullmatch(r"(?:(\d+)\s*[x,]\s*)?(\d+)", text.strip())
    rows, cols = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if rows == 0 or cols == 0:
        raise ExplainError(f"expects a shape such as 1152x4608 or 1152, but got {text!r}")
    return rows, cols


def parse_constexpr(text: str) -> tuple[str, Any]:
    """``period=3`` as name and value; the value is a Python literal, or a string if it is none."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ExplainError(f"expects name=value, but got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def explain(
    update: Update,
    shape: tuple[int, int],
    *,
    param_dtype: str = "f32",
    grad_dtype: str | None = None,
    constexprs: Mapping[str, Any] | None = None,
    sections: Sequence[str] = DEFAULT_SECTIONS,
    target: driver.Target | None = None,
) -> str:
    """The text that ``python -m kaon explain`` prints, for ``target`` (default: the host's processor).

    Raises:
        ExplainError: the target has no such section.
        kaon.errors.LanguageError: the update is not valid for this shape.
    """
    rows, cols = shape
    entry = driver.MatrixEntry(update, rows, cols, param_dtype, grad_dtype or param_dtype, dict(constexprs or {}))
    target = driver.CpuTarget() if target is None else target
    foreign = [section for section in sections if section in _FOREIGN_SECTIONS[target.name]]
    if foreign:
        raise ExplainError(f"the {target.name} target has no section {', '.join(foreign)}")
    emitted = driver.emit([entry])
    lowered = driver.lower(emitted.text, target)
    where = target.arch if isinstance(target, CudaTarget) else "the host's processor"
    plan = json.loads(lowered.plan_json)
    products = "".join(f", products of {dtype}" for dtype in product_dtypes(plan))
    parts = [
        f"{update.name} on {rows}x{cols}, parameter {param_dtype}, gradient {entry.grad_dtype}, for {where}{products}"
    ]
    for section in SECTIONS:
        if section not in sections:
            continue
        if section == "dsl":
            parts.append(_titled("what you wrote", update.source))
        elif section == "plan":
            parts.append(_titled("what a step runs", "\n".join(describe_plan(plan))))
        elif section in _KERNEL_TITLES:
            title = _KERNEL_TITLES[section]
            texts = _kernel_texts(section, target, emitted.text, lowered)
            parts += [_titled(f"{title} {name}", text) for name, text in texts.items()]
        else:
            parts.append(_titled(_STAGE_TITLES[section], lowered.stages[section]))
    return "\n\n".join(parts) + "\n"


_FOREIGN_SECTIONS = {"cpu": ("cuda", "ptx", "log"), "cuda": ("llvm", "assembly")}

_KERNEL_TITLES = {
    "kernels": "kernel",
    "cuda": "CUDA C++ of",
    "llvm": "LLVM IR of",
    "ptx": "PTX of",
    "assembly": "assembly of",
    "log": "NVRTC's log of",
}


_STAGE_TITLES = {
    "kaon": "in the kaon dialect",
    "simplified": "library operations expanded, phases split, products oriented and folded",
    "scheduled": "fused into kernels, memory planned",
}


def _titled(title: str, text: str) -> str:
    return f"==== {title}\n{text.rstrip()}"


def _kernel_texts(section: str, target: driver.Target, text: str, lowered: driver.Lowered) -> dict[str, str]:
    """By name, what ``section`` shows of every kernel."""
    if section == "kernels":
        return dict(lowered.sources)
    if isinstance(target, driver.CpuTarget):
        compiled = {kernel.name: target.compile_text(kernel.text, section) for kernel in lowered.kernels}
        return {name: str(code.llvm_ir if section == "llvm" else code.assembly) for name, code in compiled.items()}
    assert isinstance(target, CudaTarget)
    if section == "cuda":
        return {kernel.name: kernel.text for kernel in lowered.kernels}
    files = driver.StageFiles(text, target.name)
    images = target.compile(lowered.kernels, open_cache(), files, driver.Statistics())
    return {name: image.ptx if section == "ptx" else image.log for name, image in images.items()}


def describe_plan(plan: Mapping[str, Any]) -> Iterator[str]:
    """Lines that list the launches of each distinct phase of a plan (as JSON) with their work.

    A phase's line has the launches of one step: each covers as many matrices as are in flight at once, on a GPU also
    those of several buckets.
    """
    for name, check in finite_checks(plan).items():
        yield (
            f'{name}: {_launches(1)}, {quantity(check.bytes, "B")} read before every step, unless nonfinite="propagate"'
        )
    period = len(plan["phases"])
    described: dict[str, int] = {}
    for residue, groups in enumerate(plan["phases"]):
        when = f"steps with step mod {period} = {residue}" if period > 1 else "every step"
        same = described.setdefault(json.dumps(groups), residue)
        if same != residue:
            yield f"{when}: as {same}"
            continue
        yield f"{when}: {_launches(sum(count for group in groups for _, count in launch_counts(plan, group)))}"
        for group in groups:
            yield from _describe_group(plan, group)


def _describe_group(plan: Mapping[str, Any], group: Mapping[str, Any]) -> Iterator[str]:
    """The sequences of a group's buckets. Of several, also which launches of the device they share."""
    sequences = [plan["sequences"][bucket["sequence"]] for bucket in group["buckets"]]
    if len(sequences) > 1:
        apart = sum(len(sequence["launches"]) for sequence in sequences)
        yield f"  {len(sequences)} buckets in lock-step: {_launches(len(group['launches']))} instead of {apart}"
        for parts, (kernel, _) in zip(group["launches"], launch_counts(plan, group), strict=True):
            names = ", ".join(sequences[part["bucket"]]["name"] for part in parts)
            yield f"    {plan['kernels'][kernel]['name']}: {names}"
    for sequence in sequences:
        yield from _describe_sequence(plan, sequence)


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count != 1 else ''}"


def _describe_sequence(plan: Mapping[str, Any], sequence: Mapping[str, Any]) -> Iterator[str]:
    launches = sequence["launches"]
    flops, transferred = (sum(launch[field] for launch in launches) for field in ("flops", "bytes"))
    yield (
        f"  {sequence['name']}: {_launches(len(launches))}, {quantity(flops, 'FLOP')}, "
        f"{quantity(transferred, 'B')} read and written, workspace {quantity(sequence['workspaceBytes'], 'B')}"
    )
    on_cuda = plan["target"] == "cuda"
    shape = ("blocks x threads", "shared") if on_cuda else ("items",)
    rows = [("kernel", "schedule", "sizes", *shape, "FLOP", "bytes", "reads -> writes")]
    for launch in launches:
        kernel = plan["kernels"][launch["kernel"]]
        operands = [_operand(operand) for operand in launch["operands"]]
        read, written = operands[: launch["inputs"]], operands[launch["inputs"] :]
        rows.append(
            (
                kernel["name"],
                kernel["schedule"],
                "x".join(map(str, launch["sizes"])),
                *(_cuda_shape(kernel, launch) if on_cuda else [str(launch["items"])]),
                quantity(launch["flops"], ""),
                quantity(launch["bytes"], "B"),
                f"{', '.join(read) or 'nothing'} -> {', '.join(written)}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows]
    yield "    " + lines[0]
    for repeated, times in fold(lines[1:]):
        for index, line in enumerate(repeated):
            bracket = "|" if index < len(repeated) - 1 else f"| {times} times"
            yield f"    {line}" if times == 1 else f"    {line}  {bracket}"


def _cuda_shape(kernel: Mapping[str, Any], launch: Mapping[str, Any]) -> tuple[str, str]:
    """Blocks of one matrix and their threads, and their dynamic shared memory."""
    return f"{launch['items']}x{kernel['threads']}", quantity(launch["sharedBytes"], "B")


def fold(lines: Sequence[str]) -> Iterator[tuple[Sequence[str], int]]:
    """``lines`` as blocks and how often each comes in a row: the block that saves most at each place."""
    start = 0
    while start < len(lines):
        best, times = 1, 1
        for length in range(1, (len(lines) - start) // 2 + 1):
            block = lines[start : start + length]
            count = 1
            while lines[start + count * length : start + (count + 1) * length] == block:
                count += 1
            if (count - 1) * length > (times - 1) * best:
                best, times = length, count
        yield lines[start : start + best], times
        start += best * times


def _operand(operand: Mapping[str, Any]) -> str:
    where = str(operand["kind"])
    if where == "state":
        where += str(operand["index"])
    elif where == "workspace":
        where = f"workspace+{operand['offset']}"
    return f"{where} {operand['rows']}x{operand['cols']}x{operand['type']}"


def quantity(value: float, unit: str) -> str:
    """``value`` with a decimal prefix: 1234567 B is ``1.23 MB``."""
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000 or prefix == "T":
            break
        value /= 1000
    digits = f"{value:.0f}" if prefix == "" else f"{value:.3g}"
    return f"{digits} {prefix}{unit}".rstrip()
