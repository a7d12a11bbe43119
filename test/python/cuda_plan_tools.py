"""Replays a step plan for CUDA in NumPy: memory in bytes as the plan lays it out, kernels as the interpreter runs them.

Nothing but the plan and the functions of the kernels is read, so that operands, pitches, offsets, views, scalars and
names must all be right for a step to come out as the module says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kaon.interpreter import Interpreter, narrow_to_bf16, round_to, widen_bf16

Array = np.ndarray[Any, Any]

BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
STORAGE: dict[str, Any] = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}

SCALARS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "pow": np.power,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "unordered": lambda a, b: math.isnan(a) or math.isnan(b),
    "and": lambda a, b: a != 0 and b != 0,
    "or": lambda a, b: a != 0 or b != 0,
    "not": lambda a: a == 0,
    "select": lambda a, b, c: b if a != 0 else c,
}


def evaluate(program: Sequence[dict[str, Any]], arguments: Sequence[float], step: int) -> list[float]:
    """The registers of a scalar program."""
    registers: list[float] = []
    with np.errstate(all="ignore"):
        for instruction in program:
            match instruction["op"]:
                case "const":
                    registers.append(float(instruction["value"]))
                case "arg":
                    registers.append(arguments[instruction["index"]])
                case "step":
                    registers.append(float(step))
                case name:
                    operands = [np.float64(registers[index]) for index in instruction["operands"]]
                    registers.append(float(SCALARS[name](*operands)))
    return registers


class Replay:
    """One matrix of a plan, its memory, and the workspace, which begins as NaN."""

    def __init__(self, plan: dict[str, Any], interpreter: Interpreter, sequence: int, matrices: Sequence[Array]):
        """``matrices``: the parameter, the gradient and the states."""
        assert plan["target"] == "cuda"
        self.plan = plan
        self.interpreter = interpreter
        self.sequence = plan["sequences"][sequence]
        self.param, self.grad, *self.states = [np.array(matrix, dtype=np.float64) for matrix in matrices]
        self.workspace = np.full(self.sequence["workspaceBytes"], 0xFF, np.uint8)  # NaN in every type

    def rows_of(self, operand: dict[str, Any]) -> Array:
        """The matrix in the workspace, as a view of its bytes in the storage type."""
        size, begin = BYTES[operand["type"]], operand["offset"]
        memory = self.workspace[begin : begin + operand["rows"] * operand["pitch"] * size]
        rows: Array = memory.view(STORAGE[operand["type"]]).reshape(operand["rows"], operand["pitch"])
        return rows[:, : operand["cols"]]

    def callers(self, operand: dict[str, Any]) -> Array:
        """The matrix of the caller that an operand is."""
        if operand["kind"] == "state":
            found = self.states[operand["index"]]
        else:
            found = self.param if operand["kind"] == "param" else self.grad
        return found.reshape(operand["rows"], operand["cols"])

    def load(self, operand: dict[str, Any]) -> Array:
        if operand["kind"] != "workspace":
            return self.callers(operand).copy()
        memory = self.rows_of(operand)
        return widen_bf16(memory) if operand["type"] == "bf16" else memory.astype(np.float64)

    def store(self, operand: dict[str, Any], value: Array) -> None:
        if operand["kind"] != "workspace":
            self.callers(operand)[:] = round_to(value, operand["type"])
        elif operand["type"] == "bf16":
            self.rows_of(operand)[:] = narrow_to_bf16(value)
        else:
            self.rows_of(operand)[:] = value.astype(STORAGE[operand["type"]])

    def run(self, scalars: Sequence[float], step: int) -> list[Array]:
        """The new parameter and states."""
        registers = evaluate(self.sequence["scalarProgram"], scalars, step)
        with np.errstate(all="ignore"):
            for launch in self.sequence["launches"]:
                kernel = self.plan["kernels"][launch["kernel"]]
                values = [registers[register] for register in launch["scalars"]]
                match kernel["schedule"]:
                    case "matmul":
                        self.multiply(launch, kernel, values)
                    case "transpose":
                        source, result = launch["operands"]
                        self.store(result, self.load(source).T)
                    case _:
                        self.launch(launch, kernel["name"], values)
        return [self.param, *self.states]

    def launch(self, launch: dict[str, Any], name: str, scalars: list[float]) -> None:
        function = self.interpreter.function("_".join(name.split("_")[:2]))
        if name.endswith("_in_place"):
            (result,) = launch["operands"][launch["inputs"] :]
            assert result in launch["operands"], "a kernel that may leave its result as it is, but not in place"
        inputs = [self.load(operand) for operand in launch["operands"][: launch["inputs"]]]
        rows, cols = launch["sizes"]
        results = self.interpreter.call_operation(function, [*inputs, *scalars], (rows, cols))
        for operand, result in zip(launch["operands"][launch["inputs"] :], results, strict=True):
            self.store(operand, result)

    def multiply(self, launch: dict[str, Any], kernel: dict[str, Any], scalars: list[float]) -> None:
        """Its name is ``matmul_bf16[_transposed_lhs][_transposed_rhs][_symmetric][_add][_<hash of the epilogue>]``."""
        name = kernel["name"]
        *operands, result = launch["operands"]
        a, b, *extras = [self.load(operand) for operand in operands]
        product = (a.T if kernel["transposeA"] else a) @ (b.T if kernel["transposeB"] else b)
        assert product.shape == tuple(launch["sizes"][:2])
        alpha, *rest = scalars
        product = alpha * product
        if "_add" in name:
            beta, *rest = rest
            product = product + beta * extras.pop(0)
        if launch.get("factor"):
            product = extras.pop(0) * product
        assert not extras
        if kernel["symmetric"]:
            product = np.tril(product) + np.tril(product, -1).T
        if result["kind"] == "param":
            epilogue = self.interpreter.function("kernel_" + name.split("_")[-1])
            arguments = [round_to(product, "f32"), self.load(result), *rest]
            (product,) = self.interpreter.call_operation(epilogue, arguments, product.shape)
        else:
            assert not rest, "scalars without an epilogue"
        self.store(result, product)
