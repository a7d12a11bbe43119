"""Random updates keep their meaning through every pass, and through compiled code.

An update is a random graph of a few ops on matrices, vectors and single values. The reference interpreter runs it as
written; it runs every stage of the pipeline; and the compiled program runs it in place, in memory.
"""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from test_passes import assert_same_meaning, update_text

_C = pytest.importorskip("kaon._C")

from kaon import driver  # noqa: E402

Shape = tuple[int, int]


class RandomUpdate:
    """The text of a random update, and the shapes of its matrix, gradient and states."""

    def __init__(self, seed: int, element: str | None = None):
        self.random = random.Random(seed)
        self.shape: Shape = self.random.choice([(6, 10), (10, 6), (7, 7), (1, 5), (5, 1), (1, 1), (4, 4)])
        self.element = element or self.random.choice(["f32", "f64"])
        rows, columns = self.shape
        self.kinds: dict[str, Shape] = {"T": (rows, columns), "R": (rows, 1), "C": (1, columns), "S": (1, 1)}
        self.states = {f"s{i}": self.random.choice("TTRCS") for i in range(self.random.randint(0, 3))}
        self.values: list[tuple[str, Shape]] = [("%w", self.shape), ("%g", self.shape)]
        self.values += [(f"%{name}", self.kinds[kind]) for name, kind in self.states.items()]
        self.shapes = [self.shape, self.shape, *(self.kinds[kind] for kind in self.states.values())]
        self.lines: list[str] = []
        steps = [
            self.binary,
            self.binary,
            self.normalize,
            self.reduce,
            self.reduce,
            self.broadcast,
            self.broadcast,
            self.transpose,
            self.matmul,
            self.gram_polynomial,
            self.select,
            self.every,
        ]
        for _ in range(self.random.randint(2, 14)):
            self.random.choice(steps)(*self.pick())
        results = [self.result(self.shape), *(self.result(self.kinds[kind]) for kind in self.states.values())]
        self.lines.append(f"return {', '.join(results)} : {', '.join(['T', *self.states.values()])}")
        self.text = update_text(rows, columns, self.element, "\n".join(self.lines), self.states)

    def type(self, shape: Shape, element: str | None = None) -> str:
        return f"tensor<{shape[0]}x{shape[1]}x{element or self.element}>"

    def pick(self, shape: Shape | None = None) -> tuple[str, Shape]:
        """A value, often a recent one, of a shape if one is given."""
        fitting = [value for value in self.values if shape in (None, value[1])]
        return self.random.choice(fitting[-6:] if self.random.random() < 0.6 else fitting)

    def result(self, shape: Shape) -> str:
        fitting = [name for name, found in self.values if found == shape]
        return self.random.choice(fitting[-3:] if self.random.random() < 0.8 else fitting)

    def emit(self, op: str, shape: Shape, is_value: bool = True) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {op}")
        if is_value:
            self.values.append((name, shape))
        return name

    def scale(self, value: str, shape: Shape, factor: float) -> str:
        splat = self.emit(f"arith.constant dense<{factor}> : {self.type(shape)}", shape, is_value=False)
        return self.emit(f"arith.mulf {splat}, {value} : {self.type(shape)}", shape)

    def binary(self, a: str, shape: Shape) -> None:
        op = self.random.choice(["addf", "subf", "mulf", "maximumf"])
        value = self.emit(f"arith.{op} {a}, {self.pick(shape)[0]} : {self.type(shape)}", shape)
        if op == "mulf":
            self.emit(f"math.absf {value} : {self.type(shape)}", shape)

    def normalize(self, a: str, shape: Shape) -> None:
        along, mode = self.random.choice(["row", "column", "all"]), self.random.choice(["max", "add"])
        self.emit(f"kaon.normalize {a} along {along} {mode} epsilon 1.0e-3 scale 0.7 : {self.type(shape)}", shape)

    def reduce(self, a: str, shape: Shape) -> None:
        along = self.random.choice(["row", "column", "all"])
        result = {"row": (shape[0], 1), "column": (1, shape[1]), "all": (1, 1)}[along]
        op = self.random.choice(["kaon.norm", "kaon.reduce sum", "kaon.reduce max", "kaon.reduce min"])
        self.emit(f"{op} {a} along {along} : {self.type(shape)} -> {self.type(result)}", result)

    def broadcast(self, a: str, shape: Shape) -> None:
        target = self.random.choice(self.values)[1]
        if all(size in (1, wanted) for size, wanted in zip(shape, target, strict=True)):
            self.emit(f"kaon.broadcast {a} : {self.type(shape)} to {self.type(target)}", target)

    def transpose(self, a: str, shape: Shape) -> None:
        result = (shape[1], shape[0])
        self.emit(f"kaon.transpose {a} : {self.type(shape)} -> {self.type(result)}", result)

    def matmul(self, a: str, left: Shape) -> None:
        b, right = self.pick()
        for flag_a in ("", " transpose_a"):
            for flag_b in ("", " transpose_b"):
                rows, depth = left[::-1] if flag_a else left
                found, columns = right[::-1] if flag_b else right
                if depth == found:
                    types = f"({self.type(left)}, {self.type(right)}) -> {self.type((rows, columns))}"
                    product = self.emit(f"kaon.matmul {a}, {b}{flag_a}{flag_b} : {types}", (rows, columns))
                    self.scale(product, (rows, columns), 0.25)
                    return

    def gram_polynomial(self, a: str, shape: Shape) -> None:
        side = (shape[0], shape[0])
        base, square = self.type(shape), self.type(side)
        gram = self.emit(f"kaon.matmul {a}, {a} transpose_b : ({base}, {base}) -> {square}", side)
        scaled = self.scale(gram, side, 0.01)
        power = self.emit(f"kaon.matmul {scaled}, {scaled} : ({square}, {square}) -> {square}", side)
        polynomial = self.emit(f"arith.subf {scaled}, {power} : {square}", side)
        self.emit(f"kaon.matmul {polynomial}, {a} : ({square}, {base}) -> {base}", shape)

    def select(self, a: str, shape: Shape) -> None:
        b = self.pick(shape)[0]
        condition = self.emit(f"arith.cmpf ogt, {a}, {b} : {self.type(shape)}", shape, is_value=False)
        self.emit(f"arith.select {condition}, {a}, {b} : {self.type(shape, 'i1')}, {self.type(shape)}", shape)

    def every(self, a: str, shape: Shape) -> None:
        kind, b = self.type(shape), self.pick(shape)[0]
        regions = f"{{ kaon.yield {a} : {kind} }} else {{ kaon.yield {b} : {kind} }}"
        self.emit(f"kaon.every %step period {self.random.choice([1, 2, 3])} phase 0 -> {kind} {regions}", shape)


@pytest.mark.parametrize("chunk", range(8))
def test_every_stage_keeps_the_meaning_of_random_updates(chunk):
    for seed in range(20 * chunk, 20 * chunk + 20):
        update = RandomUpdate(seed)
        assert_same_meaning(update.text, update.shapes, [], steps=2, seed=seed)


def step_in_memory(program, shapes: list[Shape], seed: int) -> list[np.ndarray]:
    """The matrix and its states after two steps."""
    generator = np.random.default_rng(seed)
    param, grad, *states = (generator.standard_normal(shape) for shape in shapes)
    for step in (1, 2):
        scaled = grad * step
        pointers = [entry for array in (param, scaled, *states) for entry in (array.ctypes.data, array.shape[1])]
        program.step(step, pointers, [[]], False)
    return [param, *states]


@pytest.mark.parametrize("chunk", range(4))
def test_compiled_random_updates_agree_in_place(chunk):
    for seed in range(10 * chunk, 10 * chunk + 10):
        update = RandomUpdate(seed, element="f64")
        # The driver describes the host's own processor.
        text = re.sub(r"attributes \{kaon\.cpu = .*?>\} ", "", update.text)
        expected = step_in_memory(driver.interpret_text(text), update.shapes, seed)
        found = step_in_memory(driver.compile_text(text, threads=2), update.shapes, seed)
        for wanted, value in zip(expected, found, strict=True):
            np.testing.assert_allclose(
                value, wanted, rtol=1e-11, atol=1e-11 * max(1.0, np.abs(wanted).max()), err_msg=f"seed {seed}"
            )
