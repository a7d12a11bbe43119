"""What the kernels of a plan touch in memory, told without the runtime: the judge of plans that validation accepts.

A kernel's code is what the compiler made it for, whatever a changed plan says of it: :class:`Oracle` takes that from
the original plan, by name. It then follows a changed plan byte by byte, and finds what would read or write outside of a
buffer, read what nobody wrote or wrote as another type, write what is read at the same time, take less shared memory
or fewer scalars than the code does, or leave an item, a parameter or a state out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from kaon.target import ELEMENT_BYTES, buckets

Plan = Mapping[str, Any]
Operand = Mapping[str, Any]

_TYPES = tuple(ELEMENT_BYTES)
_UNWRITTEN = 255
_IN_PLACE = ("elementwise", "rows", "columns")


class Hole(Exception):
    """A plan that would go wrong in memory; the message says how."""


class Refused(Exception):
    """A plan that is valid by itself and does not fit its code, which loading the code finds."""


def _cover(count: int, size: int) -> int:
    return -(-count // size)


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise Hole(message)


class Oracle:
    """Judges changes of one plan, of which every kernel's code is known."""

    def __init__(self, plan: Plan):
        self.code = {kernel["name"]: kernel for kernel in plan["kernels"]}
        self.target = plan["target"]
        self.results = self._results(plan)
        self.shared = self._sharing(plan)

    def judge(self, plan: Plan) -> None:
        """Follow every launch of ``plan``.

        Raises:
            Hole: it would go wrong.
            Refused: it would not be loaded.
        """
        _expect(plan["target"] == self.target, "another target")
        for kernel in plan["kernels"]:
            self._load(kernel)
        for sequence in plan["sequences"]:
            self._run(plan, sequence)
        for phase in plan["phases"]:
            self._schedule(plan, phase)
        _expect(self._results(plan) == self.results, "other parameters and states are written")

    def _load(self, kernel: Mapping[str, Any]) -> None:
        code = self.code.get(kernel["name"])
        if code is None:
            raise Refused(f"no code for {kernel['name']}")
        if kernel["threads"] != code["threads"]:
            raise Refused(f"{kernel['name']} is code for {code['threads']} threads")
        schedules = {kernel["schedule"], code["schedule"]}
        alike = self.target == "cpu" and schedules == {"elementwise", "rows"}
        _expect(len(schedules) == 1 or alike, "code is driven by another schedule")

    @staticmethod
    def _results(plan: Plan) -> list[set[tuple[str, int]]]:
        """The parameters and states that are written for each matrix of the model, in some phase."""
        found: list[set[tuple[str, int]]] = [set() for _ in plan["parameters"]]
        for bucket in (bucket for phase in plan["phases"] for bucket in buckets(phase)):
            for launch in plan["sequences"][bucket["sequence"]]["launches"]:
                for operand in launch["operands"][launch["inputs"] :]:
                    if operand["kind"] != "workspace":
                        for member in bucket["members"]:
                            found[member].add((operand["kind"], operand.get("index", 0)))
        return found

    @staticmethod
    def _sharing(plan: Plan) -> dict[str, list[tuple[bool | None, ...]]]:
        """Of each operand of each kernel, whether there is one row, and one column, for all of a launch; None where
        all launches have one themselves."""
        found: dict[str, list[tuple[bool | None, ...]]] = {}
        for launch in (launch for sequence in plan["sequences"] for launch in sequence["launches"]):
            extents = launch["sizes"][:2]
            own = [
                tuple(
                    (one[axis] == 1) if extent > 1 else None
                    for axis, extent in zip(("rows", "cols"), extents, strict=True)
                )
                for one in launch["operands"]
            ]
            name = plan["kernels"][launch["kernel"]]["name"]
            known = found.get(name, own)
            if len(known) == len(own):  # else a product, one with a factor and one without, which share nothing
                found[name] = [
                    tuple(a if a is not None else b for a, b in zip(*pair, strict=True))
                    for pair in zip(known, own, strict=True)
                ]
        return found

    # ---- launches

    def _run(self, plan: Plan, sequence: Mapping[str, Any]) -> None:
        workspace = np.full(sequence["workspaceBytes"], _UNWRITTEN, np.uint8)
        packed: dict[int, list[int]] = {}  # vectors and their length, by offset
        for launch in sequence["launches"]:
            kernel = plan["kernels"][launch["kernel"]]
            sizes, places = launch["sizes"], [operand.get("offset", 0) for operand in launch["operands"]]
            if kernel["schedule"] == "matmul" and self.target == "cpu":
                summed = [packed.get(places[index]) == [sizes[index], sizes[2]] for index in (0, 1)]
                _expect(all(summed), "sums over more or less than was packed")
            if kernel["schedule"] == "pack":
                packed[places[1]] = sizes
            self._follow(self.code[kernel["name"]], launch, len(sequence["scalarProgram"]), workspace)

    def _follow(self, code: Mapping[str, Any], launch: Mapping[str, Any], registers: int, workspace: Any) -> None:
        has_factor = launch.get("factor", False)
        types = list(code["operands"])
        if has_factor:
            types.insert(code["inputs"], "f32")
        inputs = code["inputs"] + has_factor
        operands = launch["operands"]
        _expect(len(operands) == len(types), "another number of operands than the code takes")
        _expect(len(launch["scalars"]) >= code["scalars"], "fewer scalars than the code takes")
        _expect(all(0 <= index < registers for index in launch["scalars"]), "a register that nobody writes")
        _expect(launch["items"] == self._items(code, launch), "items are left out, or there are none")
        _expect(launch["sharedBytes"] >= self._shared(code, launch), "too little shared memory")
        for index, (operand, type_) in enumerate(zip(operands, types, strict=True)):
            _expect(operand["type"] == type_, "a matrix of another type than the code takes")
            touched = self._touched(code, launch, index, index >= inputs)
            real = (operand["rows"], operand["cols"])
            _expect(touched[0] <= real[0] and touched[1] <= real[1], f"operand {index}: {touched} of {real}")
            if index >= inputs:
                _expect(touched == real, f"result {index}: only {touched} of {real}")
        self._access(code, launch, inputs, workspace)

    def _items(self, code: Mapping[str, Any], launch: Mapping[str, Any]) -> int:
        sizes, grain = launch["sizes"], launch["grain"]
        on_cpu = self.target == "cpu"
        match code["schedule"]:
            case "elementwise":
                return int(sizes[0] if on_cpu else _cover(sizes[0] * sizes[1], 8192))
            case "rows":
                return int(sizes[0] if on_cpu else _cover(sizes[0], grain))
            case "columns":
                return int(sizes[1] if on_cpu else _cover(sizes[1], 32))
            case "transpose":
                return _cover(sizes[0], 32) * (1 if on_cpu else _cover(sizes[1], 128))
            case "pack":
                return _cover(sizes[0], code["tiles"][0])
        tile = code["tiles"][2] if on_cpu else 128
        rows, cols = _cover(sizes[0], tile), _cover(sizes[1], tile)
        return rows * (rows + 1) // 2 if code["symmetric"] else rows * cols

    def _shared(self, code: Mapping[str, Any], launch: Mapping[str, Any]) -> int:
        if self.target == "cpu":
            return 0
        match code["schedule"]:
            case "rows":
                threads, kept = code["threads"], code.get("kept", 0)
                groups = _cover(_cover(launch["sizes"][1], 8), threads)
                spilled = max(0, groups - code.get("registerGroups", 0)) if kept else 0
                return int(256 * code.get("reductions", 0) + spilled * threads * 8 * kept * 4)
            case "columns":
                return int(2048 * code.get("reductions", 0))
            case "transpose":
                return 2112 * ELEMENT_BYTES[code["operands"][0]]
            case "matmul":
                return 96 * 1024 + 48 if code.get("mappedOperands") else 48 * 1024
        return 0

    def _touched(
        self, code: Mapping[str, Any], launch: Mapping[str, Any], index: int, is_result: bool
    ) -> tuple[int, int]:
        """Rows and columns of operand ``index`` that the code reads or writes."""
        sizes, operand = launch["sizes"], launch["operands"][index]
        k = sizes[-1]
        match code["schedule"]:
            case "transpose":
                return (sizes[0], sizes[1]) if index == 0 else (sizes[1], sizes[0])
            case "pack" if index == 0:
                return (k, sizes[0]) if code["transposeA"] else (sizes[0], k)
            case "pack":
                return _cover(sizes[0], code["tiles"][0]), 4 * _cover(k, 4) * code["tiles"][0]
            case "matmul" if index < 2 and self.target == "cpu":
                return _cover(sizes[index], code["tiles"][index]), 4 * _cover(k, 4) * code["tiles"][index]
            case "matmul" if index < 2:
                turned = code["transposeA"] if index == 0 else not code["transposeB"]
                return (k, sizes[index]) if turned else (sizes[index], k)
            case "matmul" if launch.get("factor") and index == len(launch["operands"]) - 2:
                return 1, 1
            case "matmul":
                return sizes[0], sizes[1]
        shared = self.shared[code["name"]][index]
        rows, cols = (
            1 if (operand[axis] == 1 if all_alike is None else all_alike) else size
            for axis, all_alike, size in zip(("rows", "cols"), shared, sizes, strict=True)
        )
        if is_result:  # What a thread writes is its own.
            rows = rows if code["schedule"] == "columns" else sizes[0]
            cols = cols if code["schedule"] == "rows" else sizes[1]
        return rows, cols

    def _access(self, code: Mapping[str, Any], launch: Mapping[str, Any], inputs: int, workspace: Any) -> None:
        operands = launch["operands"]
        for operand in operands[:inputs]:
            if operand["kind"] == "workspace":
                number = _TYPES.index(operand["type"])
                _expect(bool((self._bytes(operand, workspace) == number).all()), "reads what nobody wrote so")
        for index in range(inputs, len(operands)):
            _expect(operands[index]["kind"] != "grad", "writes the gradient")
            for other in range(index):
                self._apart(code, operands, inputs, other, index)
        for operand in operands[inputs:]:
            if operand["kind"] == "workspace":
                self._bytes(operand, workspace)[:] = _TYPES.index(operand["type"])

    @staticmethod
    def _bytes(operand: Operand, workspace: Any) -> Any:
        """The bytes of a matrix in the workspace, row by row, without what lies between rows."""
        size = ELEMENT_BYTES[operand["type"]]
        begin, pitch = operand["offset"], operand["pitch"] * size
        end = begin + (operand["rows"] - 1) * pitch + operand["cols"] * size
        _expect(begin >= 0 and end <= len(workspace), "outside of the workspace")
        rows = np.lib.stride_tricks.as_strided(
            workspace[begin:], (operand["rows"], operand["cols"] * size), (pitch, 1), writeable=True
        )
        return rows

    @staticmethod
    def _apart(code: Mapping[str, Any], operands: Any, inputs: int, other: int, result: int) -> None:
        a, b = operands[other], operands[result]
        if a["kind"] != b["kind"] or a.get("index", 0) != b.get("index", 0):
            return
        if a["kind"] == "workspace":
            ends = [one["offset"] + one["rows"] * one["pitch"] * ELEMENT_BYTES[one["type"]] for one in (a, b)]
            if ends[0] <= b["offset"] or ends[1] <= a["offset"]:
                return
        in_place = code["schedule"] in _IN_PLACE or (code["schedule"] == "matmul" and other == 2)
        _expect(other < inputs and a == b and in_place, "writes over what is read or written at the same time")

    # ---- phases

    def _schedule(self, plan: Plan, phase: Any) -> None:
        members = [member for bucket in buckets(phase) for member in bucket["members"]]
        _expect(sorted(members) == list(range(len(plan["parameters"]))), "a matrix twice, or not at all")
        for group in phase:
            taken: list[tuple[int, int]] = []
            for number, bucket in enumerate(group["buckets"]):
                sequence = plan["sequences"][bucket["sequence"]]
                size = sequence["workspaceBytes"] * bucket["concurrent"]
                if size > 0:
                    begin = bucket["workspaceOffset"]
                    taken.append((begin, begin + size))
                parts = [part["launch"] for parts in group["launches"] for part in parts if part["bucket"] == number]
                _expect(parts == list(range(len(sequence["launches"]))), "launches are left out, or out of order")
                for member in bucket["members"]:
                    self._belongs(plan, sequence, plan["parameters"][member])
            taken.sort()
            _expect(all(end <= begin for (_, end), (begin, _) in pairwise(taken)), "slots overlap")
            _expect(all(begin >= 0 and end <= plan["workspaceBytes"] for begin, end in taken), "slots without memory")
            for parts in group["launches"]:
                _expect(len({self._kernel(plan, group, part) for part in parts}) == 1, "a launch of two kernels")

    @staticmethod
    def _kernel(plan: Plan, group: Any, part: Mapping[str, int]) -> int:
        sequence = plan["sequences"][group["buckets"][part["bucket"]]["sequence"]]
        return int(sequence["launches"][part["launch"]]["kernel"])

    @staticmethod
    def _belongs(plan: Plan, sequence: Mapping[str, Any], parameter: Mapping[str, Any]) -> None:
        """Whether the matrix has what the sequence asks of it."""
        names = plan["scalarSets"][parameter["scalarSet"]]["names"]
        for index, instruction in enumerate(sequence["scalarProgram"]):
            _expect(instruction.get("index", 0) < len(names), "a hyperparameter that is not there")
            _expect(
                all(0 <= one < index for one in instruction.get("operands", ())), "a register that is read too early"
            )
        for operand in _operands(sequence):
            if operand["kind"] == "workspace":
                continue
            if operand["kind"] == "state":
                _expect(operand["index"] < len(parameter["states"]), "a state that is not there")
                state = parameter["states"][operand["index"]]
                shape, type_ = (state["rows"], state["cols"]), state["type"]
            else:
                shape = (parameter["rows"], parameter["cols"])
                type_ = parameter["paramType" if operand["kind"] == "param" else "gradType"]
            own = (operand["rows"], operand["cols"])
            _expect(own == shape or (own == shape[::-1] and 1 in shape), "a matrix of another shape")
            _expect(operand["type"] == type_, "a matrix of another type")


def _operands(sequence: Mapping[str, Any]) -> Iterator[Operand]:
    for launch in sequence["launches"]:
        yield from launch["operands"]
