"""Public faults of compilers that Kaon must not share: B64, float literals, and B66, errors that abort or get lost."""

from __future__ import annotations

import importlib.util
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import kaon
import kaon.language as kl
import numpy as np
import pytest
from kaon import _C, driver, target
from kaon.driver import MatrixEntry

LITERALS = [
    "1e-7", "1e-8", "1e-30", "3.4445", "0.9", "-0.0", "inf", "-inf", "nan", "1e38", "1e-45", "16777217", "1.0",
    "1e-300", "5e-324", "0.1", "-1e-8", "1.7976931348623157e308", "8.28721201814563",
]  # fmt: skip
POSITIVE = [text for text in LITERALS if not text.startswith("-") and text not in ("inf", "nan")]
VALUES = [float(text) for text in LITERALS]
DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


@kaon.update
def constant(w: kl.param, g: kl.grad, m: kl.state, v: kl.state, *, value: kl.constexpr):
    return kl.full_like(w, value), g * value, kl.where(g > 0.5, value, w)


def bits(values: Any) -> list[int]:
    array = np.asarray(values)
    return [int(item) for item in array.view(f"u{array.dtype.itemsize}").ravel()]


def step(program: Any, matrices: list[list[np.ndarray[Any, Any]]]) -> None:
    addresses = [number for matrix in matrices for array in matrix for number in (array.ctypes.data, array.shape[1])]
    assert program.step(1, addresses, [[]], False) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_b64_constants_reach_the_kernels_with_all_their_bits(dtype: str) -> None:
    """As a constant, through the DSL, the text of the module, the text of the kernels and machine code."""
    kind = DTYPES[dtype]
    entries = [MatrixEntry(constant, 2, 3, dtype, dtype, {"value": value}) for value in VALUES]
    matrices = [[np.full((2, 3), start, kind) for start in (0.0, 1.0, 0.0, 0.0)] for _ in entries]
    step(driver.compile_program(entries), matrices)
    for literal, value, (filled, _, product, chosen) in zip(LITERALS, VALUES, matrices, strict=True):
        with np.errstate(over="ignore"):
            expected = bits(np.full((2, 3), value).astype(kind))
        assert bits(filled) == expected, literal
        assert bits(product) == expected, literal
        assert bits(chosen) == expected, literal


@pytest.mark.parametrize("dtype", DTYPES)
def test_b64_literals_in_the_source(dtype: str, tmp_path: Path) -> None:
    """As the text of the update itself."""
    kind = DTYPES[dtype]
    finite = [text for text, value in zip(LITERALS, VALUES, strict=True) if math.isfinite(value)]
    text = "import kaon\nimport kaon.language as kl\n"
    for index, literal in enumerate(finite):
        text += f"@kaon.update\ndef update{index}(w: kl.param, g: kl.grad):\n    return kl.full_like(w, {literal})\n"
    path = tmp_path / "literals.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("kaon_test_literals", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entries = [MatrixEntry(getattr(module, f"update{index}"), 1, 2, dtype, dtype) for index in range(len(finite))]
    matrices = [[np.zeros((1, 2), kind), np.ones((1, 2), kind)] for _ in entries]
    step(driver.compile_program(entries), matrices)
    for literal, (filled, _) in zip(finite, matrices, strict=True):
        with np.errstate(over="ignore"):
            assert bits(filled) == bits(np.full((1, 2), float(literal)).astype(kind)), literal


@pytest.mark.parametrize("literal", POSITIVE)
def test_b64_attributes_are_printed_with_all_their_bits(literal: str) -> None:
    """Epsilons and coefficients are attributes: to text and back, with locations and without."""

    @kaon.update
    def normalized(w: kl.param, g: kl.grad, *, epsilon: kl.constexpr):
        return w - kl.newton_schulz(g, epsilon=epsilon, coefficients=((epsilon, -epsilon, 0.0),))

    value = float(literal)
    module = _C.parse(driver.emit([MatrixEntry(normalized, 2, 3, constexprs={"epsilon": value})]).text)
    for text in (str(module), module.print(locations=True), str(_C.parse(str(module)))):
        update, _ = _C.parse(text).to_python().regions[0].blocks[0].operations
        (operation,) = (item for item in update.regions[0].blocks[0].operations if item.name == "kaon.newton_schulz")
        assert bits(float(operation.attributes["epsilon"])) == bits(value)
        assert bits(np.array(operation.attributes["coefficients"], float)) == bits(np.array([value, -value, 0.0]))


UPDATE = """
func.func @update(%w: tensor<4x6xf32> {{kaon.role = #kaon.role<param>, kaon.name = "w"}},
                  %g: tensor<4x6xf32> {{kaon.role = #kaon.role<grad>, kaon.name = "g"}},
                  %step: i64 {{kaon.role = #kaon.role<step>, kaon.name = "step"}})
    -> tensor<4x6xf32> attributes {{kaon.update}} {{
  {body}
}}
"""
VALID = UPDATE.format(body="%0 = arith.subf %w, %g : tensor<4x6xf32>\n  return %0 : tensor<4x6xf32>")
WRONG = {
    "mismatched matmul": (
        UPDATE.format(
            body="%0 = kaon.matmul %w, %g : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>\n"
            "  return %0 : tensor<4x6xf32>"
        ),
        ["'kaon.matmul' op", "inner dimensions agree, but got 4x6 and 4x6", '"edited.mlir":6:8'],
    ),
    "unknown op": (
        UPDATE.format(body="%0 = kaon.nope %w : tensor<4x6xf32>\n  return %0 : tensor<4x6xf32>"),
        ["custom op 'kaon.nope' is unknown", '"edited.mlir":6:8'],
    ),
    "missing terminator": (
        UPDATE.format(body="%0 = arith.subf %w, %g : tensor<4x6xf32>"),
        ["terminator", '"edited.mlir":'],
    ),
    "unknown dialect": (
        UPDATE.format(body='"foo.bar"() : () -> ()\n  return %w : tensor<4x6xf32>'),
        ["unregistered dialect", '"edited.mlir":6:12'],
    ),
    "garbage": ("".join(random.Random(0).choices("ab%,:= \n\0", k=1 << 20)), ['"edited.mlir":2:2']),
}


def works() -> None:
    """The next compilation in this process is as good as the first."""
    w, g = np.full((4, 6), 3.0, np.float32), np.ones((4, 6), np.float32)
    text = VALID + 'kaon.program @step { kaon.parameter @update "w" scalars 0 phase 0 }\n'
    step(driver.compile_text(text), [[w, g]])
    assert (w == 2.0).all()


@pytest.mark.parametrize("case", WRONG)
def test_b66_wrong_modules_are_refused_with_their_place(case: str) -> None:
    text, expected = WRONG[case]
    with pytest.raises(_C.CompileError) as error:
        _C.parse(text, "edited.mlir")
    for part in expected:
        assert part in str(error.value)
    assert error.value.diagnostics and error.value.diagnostics[0][0] == "error"
    works()


def test_b66_an_empty_module_is_no_program() -> None:
    assert _C.parse("").to_python().regions[0].blocks[0].operations == []
    with pytest.raises(_C.CompileError, match=r"expects one kaon\.program"):
        driver.compile_text("")
    works()


def test_b66_an_unknown_pass_is_refused() -> None:
    module = _C.parse(VALID)
    with pytest.raises(_C.CompileError, match="no-such-pass"):
        module.run_pipeline("no-such-pass")
    module.run_pipeline("canonicalize")
    works()


def test_b66_a_failing_pass_raises_with_the_operation() -> None:
    parameter = 'kaon.parameter @update "w" scalars 0 phase 0'
    program = f"kaon.program @step {{ {parameter} {parameter} }}"
    with pytest.raises(_C.CompileError, match="failed") as error:
        _C.parse(VALID + program, "edited.mlir").run_pipeline(target.SIMPLIFY_PIPELINE)
    assert "'kaon.parameter' op" in str(error.value) and '"edited.mlir":' in str(error.value)
    works()


def test_b66_what_the_processor_lacks_is_refused() -> None:
    """A kernel with an operation that no lowering knows."""
    text = (
        "func.func @kernel(%x: tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.kernel = #kaon.schedule<rows>} {\n"
    )
    text += "  %0 = math.acosh %x : tensor<?x?xf32>\n  return %0 : tensor<?x?xf32>\n}\n"
    with pytest.raises(_C.CompileError, match=r"acosh"):
        _C.compile_kernel(text, driver.host_target())
    works()


def test_b66_two_modules_outlive_each_other() -> None:
    first, second = _C.parse(VALID, "first.mlir"), _C.parse(VALID, "second.mlir")
    with pytest.raises(_C.CompileError):
        _C.parse(WRONG["unknown op"][0])
    with pytest.raises(_C.CompileError):
        first.run_pipeline("no-such-pass")
    del first
    second.run_pipeline("canonicalize,cse")
    assert "arith.subf" in str(second)
    works()


def test_b66_a_process_with_only_errors_ends_by_itself() -> None:
    script = f"""
from kaon import _C
for text in {[text for text, _ in WRONG.values()][:4]!r}:
    try:
        _C.parse(text)
    except _C.CompileError as error:
        print(type(error).__name__)
"""
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["CompileError"] * 4 and result.stderr == ""
