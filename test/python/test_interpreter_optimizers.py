"""The interpreter agrees with the reference optimizers: Muon in every convention, Periodic Row-wise Muon, AdamW.

The updates are written here in the dialect, so that nothing but the interpreter is under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import reference_optimizers as reference
from kaon.interpreter import Interpreter

SHAPES = [(4, 6), (7, 3), (5, 5), (1, 8), (8, 1), (1, 1)]
Array = np.ndarray[Any, Any]


def update(shape: tuple[int, int], states: Mapping[str, tuple[int, int]], scalars: Sequence[str], body: str) -> str:
    """A module with the update ``@update`` of a float64 matrix; ``body`` may use ``$T`` for the matrix type."""
    matrix = f"tensor<{shape[0]}x{shape[1]}xf64>"
    arguments = [f'%w: {matrix} {{kaon.role = #kaon.role<param>, kaon.name = "w"}}']
    arguments += [f'%g: {matrix} {{kaon.role = #kaon.role<grad>, kaon.name = "g"}}']
    types = [matrix]
    for name, (rows, cols) in states.items():
        types.append(f"tensor<{rows}x{cols}xf64>")
        role = f'{{kaon.role = #kaon.role<state>, kaon.name = "{name}", kaon.init = 0.0 : f64}}'
        arguments.append(f"%{name}: {types[-1]} {role}")
    arguments += [f'%{name}: f64 {{kaon.role = #kaon.role<scalar>, kaon.name = "{name}"}}' for name in scalars]
    arguments += ['%step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"}']
    returned = ", ".join(f"%{name}1" for name in ("w", *states))
    return f"""
func.func @update({", ".join(arguments)}) -> ({", ".join(types)}) attributes {{kaon.update}} {{
{body.replace("$T", matrix)}
  return {returned} : {", ".join(types)}
}}
"""


def run(
    text: str,
    reference_step: Callable[[Array, Array, reference.State, int], tuple[Array, reference.State]],
    shape: tuple[int, int],
    states: Mapping[str, Array],
    scalars: Sequence[float],
    steps: int,
) -> None:
    """Run both for ``steps`` steps on the same gradients and compare parameter and states after each."""
    from kaon import _C

    interpreter = Interpreter(_C.parse(text).to_python())
    generator = np.random.default_rng(0)
    expected = generator.standard_normal(shape)
    expected_states: reference.State = {name: np.array(value) for name, value in states.items()}
    ours, our_states = expected, list(states.values())
    for step in range(1, steps + 1):
        gradient = generator.standard_normal(shape)
        expected, expected_states = reference_step(expected, gradient, expected_states, step)
        ours, *our_states = interpreter.call("update", ours, gradient, *our_states, *scalars, step)
        assert np.allclose(ours, expected, rtol=1e-12, atol=1e-12)
        for name, state in zip(states, our_states, strict=True):
            assert np.allclose(state, expected_states[name], rtol=1e-12, atol=1e-12), name


def flat(coefficients: Sequence[tuple[float, float, float]]) -> str:
    return "[" + ", ".join(np.format_float_positional(x, trim="0") for step in coefficients for x in step) + "]"


def muon_body(
    form: str,
    nesterov: bool,
    scale: float,
    normalize: str = "add",
    coefficients: Sequence[tuple[float, float, float]] = reference.KELLER_JORDAN,
    norm_scale: float = 1.0,
    decay: str = "decoupled",
) -> str:
    return f"""
  %scale = arith.constant {scale!r} : f64
  %u, %m1 = kaon.momentum {form} %g, %m, %mu {"nesterov" if nesterov else ""} : $T
  %o = kaon.newton_schulz %u coefficients {flat(coefficients)} normalize {normalize} epsilon 1.0e-7
      scale {norm_scale!r} : $T
  %s = arith.mulf %lr, %scale : f64
  %d = arith.mulf %lr, %wd : f64
  %w1 = kaon.apply {decay} %w, %o step_size %s decay %d : $T"""


def muon(shape: tuple[int, int], body: str, **options: Any) -> None:
    text = update(shape, {"m": shape}, ["lr", "mu", "wd"], body)

    def reference_step(w: Array, g: Array, state: reference.State, step: int) -> tuple[Array, reference.State]:
        return reference.muon_step(w, g, state, step, lr=0.02, mu=0.95, weight_decay=0.1, **options)

    run(text, reference_step, shape, {"m": np.zeros(shape)}, [0.02, 0.95, 0.1], steps=4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("form", ["lerp", "heavy_ball"])
def test_muon_momentum(form: str, nesterov: bool, shape: tuple[int, int]) -> None:
    body = muon_body(form, nesterov, float(reference.shape_scale("original", *shape)))
    muon(shape, body, form=form, nesterov=nesterov, scale="original")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["none", "original", "match_rms_adamw", "spectral", "sqrt_max"])
def test_muon_scale(mode: str, shape: tuple[int, int]) -> None:
    muon(shape, muon_body("lerp", True, float(reference.shape_scale(mode, *shape))), scale=mode)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normalize, norm_scale", [("add", 1.0), ("add", 1.01), ("max", 1.0)])
def test_muon_normalization(normalize: str, norm_scale: float, shape: tuple[int, int]) -> None:
    def orthogonalize(u: Array) -> Array:
        return reference.newton_schulz(u, epsilon=1e-7, normalize=normalize, norm_scale=norm_scale)

    body = muon_body("lerp", True, 1.0, normalize, norm_scale=norm_scale)
    muon(shape, body, scale="none", orthogonalize=orthogonalize)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("table", ["KELLER_JORDAN", "YOU", "POLAR_EXPRESS", "CANS", "CUBIC5", "DEEPSEEK_V4"])
def test_muon_coefficients(table: str, shape: tuple[int, int]) -> None:
    coefficients = getattr(reference, table)
    body = muon_body("lerp", True, 1.0, coefficients=coefficients)
    muon(shape, body, scale="none", orthogonalize=lambda u: reference.newton_schulz(u, coefficients))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["decoupled", "after", "cautious"])
def test_muon_decay(mode: str, shape: tuple[int, int]) -> None:
    muon(shape, muon_body("lerp", True, 1.0, decay=mode), scale="none", decay_mode=mode)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("period, phase", [(1, 0), (3, 1), (3, 0), (4, 2)])
@pytest.mark.parametrize("target", ["frobenius", "unit", "calibrated"])
def test_periodic_rowwise_muon(target: str, period: int, phase: int, shape: tuple[int, int]) -> None:
    rows, cols = shape
    rho = 1.0 if target == "unit" else min(1.0, (cols / rows) ** 0.5)
    body = f"""
  %scale = arith.constant {float(reference.shape_scale("match_rms_adamw", rows, cols))!r} : f64
  %rho64 = arith.constant {rho!r} : f64
  %u, %m1 = kaon.momentum lerp %g, %m, %mu nesterov : $T
  %n = kaon.normalize %u along row max epsilon 1.0e-12 scale 1.0 : $T
  %rho = tensor.splat %rho64 : $T
  %q = arith.mulf %n, %rho : $T
  %o, %c1 = kaon.every %step period {period} phase {phase} -> $T, tensor<1x1xf64> {{
    %full = kaon.newton_schulz %u coefficients {flat(reference.KELLER_JORDAN)} normalize add epsilon 1.0e-7
        scale 1.0 : $T
    %qo = arith.mulf %q, %full : $T
    %qq = arith.mulf %q, %q : $T
    %a = kaon.reduce sum %qo along all : $T -> tensor<1x1xf64>
    %b = kaon.reduce sum %qq along all : $T -> tensor<1x1xf64>
    %zero64 = arith.constant 0.0 : f64
    %one64 = arith.constant 1.0 : f64
    %zero = tensor.splat %zero64 : tensor<1x1xf64>
    %one = tensor.splat %one64 : tensor<1x1xf64>
    %some = arith.cmpf ogt, %b, %zero : tensor<1x1xf64>
    %ratio = arith.divf %a, %b : tensor<1x1xf64>
    %fit = arith.select %some, %ratio, %one : tensor<1x1xi1>, tensor<1x1xf64>
    kaon.yield %full, {"%fit" if target == "calibrated" else "%c"} : $T, tensor<1x1xf64>
  }} else {{
    %cs = kaon.broadcast %c : tensor<1x1xf64> to $T
    %r = tensor.splat %row_lr_ratio : $T
    %rc = arith.mulf %r, %cs : $T
    %row = arith.mulf %rc, %q : $T
    kaon.yield %row, %c : $T, tensor<1x1xf64>
  }}
  %s = arith.mulf %lr, %scale : f64
  %d = arith.mulf %lr, %wd : f64
  %w1 = kaon.apply decoupled %w, %o step_size %s decay %d : $T"""
    text = update(shape, {"m": shape, "c": (1, 1)}, ["lr", "mu", "wd", "row_lr_ratio"], body)

    def reference_step(w: Array, g: Array, state: reference.State, step: int) -> tuple[Array, reference.State]:
        return reference.periodic_rowwise_muon_step(
            w, g, state, step, period=period, phase=phase, row_scale=target, weight_decay=0.1, row_lr_ratio=0.7
        )

    states = {"m": np.zeros(shape), "c": np.ones((1, 1))}
    run(text, reference_step, shape, states, [0.02, 0.95, 0.1, 0.7], steps=2 * period + 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_adamw(shape: tuple[int, int]) -> None:
    body = """
  %one = arith.constant 1.0 : f64
  %t = arith.sitofp %step : i64 to f64
  %b1t = math.powf %b1, %t : f64
  %b2t = math.powf %b2, %t : f64
  %correction1 = arith.subf %one, %b1t : f64
  %correction2 = arith.subf %one, %b2t : f64
  %root2 = math.sqrt %correction2 : f64
  %rest1 = arith.subf %one, %b1 : f64
  %rest2 = arith.subf %one, %b2 : f64
  %b1s = tensor.splat %b1 : $T
  %b2s = tensor.splat %b2 : $T
  %rest1s = tensor.splat %rest1 : $T
  %rest2s = tensor.splat %rest2 : $T
  %m_old = arith.mulf %b1s, %m : $T
  %m_new = arith.mulf %rest1s, %g : $T
  %m1 = arith.addf %m_old, %m_new : $T
  %gg = arith.mulf %g, %g : $T
  %v_old = arith.mulf %b2s, %v : $T
  %v_new = arith.mulf %rest2s, %gg : $T
  %v1 = arith.addf %v_old, %v_new : $T
  %root_v = math.sqrt %v1 : $T
  %root2s = tensor.splat %root2 : $T
  %eps_s = tensor.splat %eps : $T
  %scaled = arith.divf %root_v, %root2s : $T
  %den = arith.addf %scaled, %eps_s : $T
  %u = arith.divf %m1, %den : $T
  %s = arith.divf %lr, %correction1 : f64
  %d = arith.mulf %lr, %wd : f64
  %w1 = kaon.apply decoupled %w, %u step_size %s decay %d : $T"""
    text = update(shape, {"m": shape, "v": shape}, ["lr", "b1", "b2", "eps", "wd"], body)

    def reference_step(w: Array, g: Array, state: reference.State, step: int) -> tuple[Array, reference.State]:
        return reference.adamw_step(w, g, state, step, weight_decay=0.1)

    states = {"m": np.zeros(shape), "v": np.zeros(shape)}
    run(text, reference_step, shape, states, [1e-3, 0.9, 0.999, 1e-8, 0.1], steps=5)
