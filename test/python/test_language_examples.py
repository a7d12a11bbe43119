"""The documented updates, compiled and interpreted in float64, against the reference optimizers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import language_examples as examples
import numpy as np
import pytest
import reference_optimizers as reference
from kaon import Update
from kaon.compiler.emit import ParameterEntry, program_text
from kaon.interpreter import Interpreter

SHAPES = [(4, 6), (6, 4), (5, 5), (1, 7), (7, 1), (1, 1)]


@pytest.fixture(scope="session")
def extension() -> ModuleType:
    return pytest.importorskip("kaon._C", reason="the compiled extension is not built")


class Program:
    """An update of one shape, with the parameter and the states it carries from step to step."""

    def __init__(
        self, extension: ModuleType, update: Update, w: Any, constexprs: dict[str, Any], scalars: dict[str, float]
    ):
        self.signature = update.signature
        specialized = update.specialize(*w.shape, "f64", "f64", constexprs, symbol="update")
        text = program_text([ParameterEntry("update", "w")], [specialized])
        self.interpreter = Interpreter(extension.parse(text).to_python())
        self.scalars = [scalars.get(spec.name, spec.default) for spec in self.signature.scalars]
        self.values = [w, *(np.full(spec.shape(*w.shape), spec.init) for spec in self.signature.states)]
        self.step = 0

    def run(self, g: Any) -> Any:
        self.step += 1
        w, *states = self.values
        self.values = self.interpreter.call("update", w, g, *states, *self.scalars, self.step)
        return self.values[0]


def agree(
    program: Program, step: Any, state: dict[str, Any], options: dict[str, Any], *, steps: int = 7, seed: int = 0
) -> None:
    """Both go the same way for a few steps, from the same start."""
    random = np.random.default_rng(seed)
    expected = program.values[0]
    for t in range(1, steps + 1):
        g = random.standard_normal(expected.shape)
        expected, state = step(expected, g, state, t, **options)
        found = program.run(g)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13, err_msg=f"step {t}")


def start(shape: tuple[int, int]) -> Any:
    return np.random.default_rng(42).standard_normal(shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", ["kj", "moonlight", "spectral", "none"])
@pytest.mark.parametrize("form", ["lerp", "heavy_ball"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon(extension: ModuleType, shape: tuple[int, int], scale: str, form: str, nesterov: bool) -> None:
    constexprs = {"scale": scale, "form": form, "nesterov": nesterov}
    scalars = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    program = Program(extension, examples.muon, start(shape), constexprs, scalars)
    options = {
        "lr": 0.02,
        "weight_decay": 0.1,
        "scale": {"kj": "original", "moonlight": "match_rms_adamw"}.get(scale, scale),
        "form": form,
        "nesterov": nesterov,
    }
    agree(program, reference.muon_step, {"m": np.zeros(shape)}, options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("nesterov", [True, False])
def test_periodic_rowwise_muon(extension: ModuleType, shape: tuple[int, int], period: int, nesterov: bool) -> None:
    """The example of the design document, word for word."""
    constexprs = {"period": period, "nesterov": nesterov}
    program = Program(extension, examples.periodic_rowwise_muon, start(shape), constexprs, {"lr": 0.02})
    options = {"period": period, "lr": 0.02, "weight_decay": 0.1, "nesterov": nesterov, "orthogonalize": normalized}
    agree(program, reference.periodic_rowwise_muon_step, {"m": np.zeros(shape), "c": np.ones((1, 1))}, options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("period", [1, 3])
def test_calibrated_rowwise_muon(extension: ModuleType, shape: tuple[int, int], period: int) -> None:
    program = Program(extension, examples.calibrated_rowwise_muon, start(shape), {"period": period}, {"lr": 0.02})
    options = {
        "period": period,
        "lr": 0.02,
        "weight_decay": 0.1,
        "row_scale": "calibrated",
        "orthogonalize": normalized,
    }
    agree(program, reference.periodic_rowwise_muon_step, {"m": np.zeros(shape), "c": np.ones((1, 1))}, options)


def test_calibrated_rowwise_muon_starts_from_zero_gradients(extension: ModuleType) -> None:
    """No momentum yet: the row step is zero, its length stays 1, and nothing becomes NaN."""
    program = Program(extension, examples.calibrated_rowwise_muon, start((4, 6)), {}, {"lr": 0.02, "weight_decay": 0.0})
    before = program.values[0]
    np.testing.assert_array_equal(program.run(np.zeros((4, 6))), before)
    assert program.values[2] == [[1.0]]


@pytest.mark.parametrize("shape", SHAPES)
def test_adamw(extension: ModuleType, shape: tuple[int, int]) -> None:
    program = Program(extension, examples.adamw, start(shape), {}, {"lr": 1e-3})
    agree(
        program, reference.adamw_step, {"m": np.zeros(shape), "v": np.zeros(shape)}, {"lr": 1e-3, "weight_decay": 0.01}
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_own_newton_schulz(extension: ModuleType, shape: tuple[int, int]) -> None:
    """Written with `@` and `.T` on the long side too: the same function as the built-in on the short side."""
    program = Program(extension, examples.own_muon, start(shape), {}, {"lr": 0.02})
    agree(program, reference.muon_step, {"m": np.zeros(shape)}, {"lr": 0.02})


@pytest.mark.parametrize("shape", SHAPES)
def test_lion(extension: ModuleType, shape: tuple[int, int]) -> None:
    program = Program(extension, examples.lion, start(shape), {}, {"lr": 1e-3, "weight_decay": 0.1})
    agree(program, reference.lion_step, {"m": np.zeros(shape)}, {"lr": 1e-3, "weight_decay": 0.1})


@pytest.mark.parametrize("shape", SHAPES)
def test_normuon(extension: ModuleType, shape: tuple[int, int]) -> None:
    program = Program(extension, examples.normuon, start(shape), {}, {"lr": 0.02, "weight_decay": 0.1})
    state = {"m": np.zeros(shape), "v": np.zeros((shape[0], 1))}
    agree(program, reference.normuon_step, state, {"lr": 0.02, "weight_decay": 0.1})


def normalized(u: Any) -> Any:
    """The reference iteration with the language's default normalisation."""
    return reference.newton_schulz(u, epsilon=0.0, normalize="max")


@pytest.mark.parametrize("dtypes", [("f32", "f32"), ("f64", "f64"), ("bf16", "bf16"), ("f16", "f32"), ("f32", "bf16")])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_example_parses(extension: ModuleType, shape: tuple[int, int], dtypes: tuple[str, str]) -> None:
    updates = [value for value in vars(examples).values() if isinstance(value, Update)]
    assert len(updates) == 7
    compiled = [update.specialize(*shape, *dtypes, symbol=update.name) for update in updates]
    entries = [ParameterEntry(update.symbol, f"layers.{index}") for index, update in enumerate(compiled)]
    text = str(extension.parse(program_text(entries, compiled)))
    for update in updates:
        assert f"func.func @{update.name}(" in text
        assert f"kaon.parameter @{update.name} " in text
