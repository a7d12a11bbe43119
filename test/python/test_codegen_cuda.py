"""CUDA kernels as text: what is emitted for whole programs compiles, leads back to the user's Python, and computes.

NVRTC compiles for architectures that are not there, and the imitated driver runs kernels on the CPU: nothing here has
been seen on a GPU.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import keyword
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import fake_cuda
import kaon.optim.updates as bundled
import numpy as np
import pytest
from cubin_tools import read_kernels
from hypothesis import given, note, settings
from hypothesis import strategies as st
from kaon import _C, driver
from kaon.interpreter import Interpreter, round_to
from nvrtc_tools import ARCHITECTURES, LIBRARY, Compilation, CompileError, compile_text, find_library
from random_updates import SHAPES, RandomUpdate, random_updates
from test_differential import EPSILON, LR, MU, OPTIONS, amplification, error, inputs, loaded, matrices, stored

needs_nvrtc = pytest.mark.skipif(
    find_library() is None, reason="no NVRTC: the nvidia-cuda-nvrtc wheel is not installed"
)
UNAVAILABLE = fake_cuda.unavailable()
needs_fake = pytest.mark.skipif(UNAVAILABLE is not None, reason=f"the imitated driver: {UNAVAILABLE}")

# Name -> update, constexprs. Rows of 48, 96 and 20000 columns take different kernels.
BUNDLED: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (bundled.adamw, {}),
    "adamw_amsgrad": (bundled.adamw_amsgrad, {"maximize": True}),
    "muon": (bundled.muon, {}),
    "muon_cautious": (
        bundled.muon,
        {"momentum_form": "heavy_ball", "decay_mode": "cautious", "scale": "match_rms_adamw"},
    ),
    "periodic_frobenius": (bundled.periodic_rowwise_muon, {"row_scale": "frobenius"}),
    "periodic_unit": (bundled.periodic_rowwise_muon, {"row_scale": "unit"}),
    "periodic_matched": (bundled.periodic_rowwise_muon, {"row_scale": "frobenius", "row_gain": 0.87}),
    "periodic_calibrated": (bundled.calibrated_rowwise_muon, {}),
}
SHAPES_OF_BUNDLED = [(48, 96, "f32"), (128, 32, "bf16"), (7, 20000, "f32"), (64, 64, "f16"), (9, 70000, "f32")]

Matrix = driver.MatrixEntry


def schedule(entries: Sequence[Matrix], half: str = "bf16") -> _C.Module:
    module = _C.parse(driver.emit(entries).text)
    module.set_cuda_target({"half": half})
    module.run_pipeline("kaon-cuda-pipeline")
    return module


def texts_of(module: _C.Module, lines: bool = True) -> dict[str, str]:
    return {kernel.name: _C.emit_cuda(kernel.text, lines) for kernel in module.kernels()}


def test_device_library_is_embedded() -> None:
    expected = {path.name: path.read_text() for path in LIBRARY.glob("*.cuh")}
    assert _C.cuda_library() == expected
    assert list(_C.cuda_library()) == sorted(expected)


# ---- bundled optimizers


@functools.cache
def compiled(text: str, architecture: str) -> Compilation:
    """Optimizers share kernels."""
    return compile_text(text, architecture)


def bundled_texts(name: str, lines: bool = True) -> dict[str, str]:
    update, constexprs = BUNDLED[name]
    entries = [Matrix(update, rows, cols, dtype, dtype, constexprs) for rows, cols, dtype in SHAPES_OF_BUNDLED]
    return texts_of(schedule(entries), lines)


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_optimizers_compile(name: str, architecture: str) -> None:
    for kernel, text in bundled_texts(name, lines=False).items():
        result = compiled(text, architecture)
        assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", result.log), kernel
        assert "warning" not in result.log
        (found,) = read_kernels(result.cubin).items()
        layout = [(0, 16), (16, 8)] if kernel.startswith("matmul_") else [(0, 8), (8, 8), (16, 8)]
        assert (found[0], found[1].parameters) == (kernel, layout)


@pytest.mark.parametrize("name", BUNDLED)
def test_text_is_the_same_every_time(name: str) -> None:
    assert bundled_texts(name) == bundled_texts(name)


def test_kernels_take_their_place_in_the_plan() -> None:
    update, constexprs = BUNDLED["periodic_frobenius"]
    module = schedule([Matrix(update, *shape, "f32", "bf16", constexprs) for shape in [(48, 96), (96, 48), (5, 70000)]])
    names = [kernel.name for kernel in module.kernels()]
    assert len(set(names)) == len(names)
    planned = re.findall(r'"name": ?"((?:kernel|matmul|transpose)_\w+)"', _C.build_plan(module).to_json())
    assert sorted(planned) == sorted(names)
    assert any(name.endswith("_streaming") for name in names)


# ---- where a text comes from


def test_lines_lead_to_python() -> None:
    source = bundled.__file__
    numbers = set()
    for kernel, text in bundled_texts("periodic_frobenius").items():
        for index, line in enumerate(text.splitlines(), 1):
            directive = re.fullmatch(r'#line (\d+) "(.*)"', line)
            assert (directive is not None) == line.startswith("#") or line.startswith("#include")
            if directive is None:
                continue
            if directive[2] == f"{kernel}.cu":
                assert int(directive[1]) == index + 1
            else:
                assert directive[2] == source
                numbers.add(int(directive[1]))
    lines = Path(source).read_text(encoding="utf-8").splitlines()
    assert any("row_normalize" in lines[number - 1] for number in numbers)


@needs_nvrtc
def test_errors_of_nvrtc_name_python() -> None:
    text = next(text for text in bundled_texts("periodic_unit").values() if "sqrtRn" in text)
    with pytest.raises(CompileError) as caught:
        compile_text(text.replace("sqrtRn(", "sqrtWrong("), "sm_80")
    assert re.search(
        rf"{re.escape(bundled.__file__)}\(\d+\): error: identifier \"sqrtWrong\" is undefined", str(caught.value)
    )


MOVED = """
import kaon
import kaon.language as kl
@kaon.update
def update(w: kl.param, g: kl.grad, lr: kl.scalar):
    return w - lr * kl.row_normalize(g)
"""


def test_lines_do_not_matter_otherwise() -> None:
    texts = []
    for source in (MOVED, "\n\n\n" + MOVED):
        update = RandomUpdate(source, [], False, 1).compile()
        module = schedule([Matrix(update, 12, 40)])
        texts.append((texts_of(module), texts_of(module, lines=False)))
    (first, first_bare), (second, second_bare) = texts
    assert first != second
    assert first_bare == second_bare
    for name, text in first_bare.items():
        assert "#line" not in text
        assert "".join(line for line in first[name].splitlines(True) if not line.startswith("#line")) == text


def test_errors_name_the_place() -> None:
    text = (
        "func.func private @k(%x: tensor<?x?xf32>) -> tensor<?x?xf32>"
        " attributes {kaon.kernel = #kaon.schedule<elementwise>} {\n"
        '  %0 = math.sin %x : tensor<?x?xf32> loc("user.py":3:7)\n'
        "  return %0 : tensor<?x?xf32>\n}\n"
    )
    with pytest.raises(_C.CompileError, match=r"cannot generate CUDA code for a kernel") as caught:
        _C.emit_cuda(text)
    (_, location, message, _), *_ = caught.value.diagnostics
    assert location == '"user.py":3:7'
    assert "'math.sin' op cannot be computed inside a CUDA kernel" in message
    with pytest.raises(_C.CompileError, match="cannot parse a kernel"):
        _C.emit_cuda("func.func")
    module = _C.parse("module {}")
    assert module.kernels() == []


# ---- numbers


def emitted_literals(values: Sequence[int], kind: str) -> list[str]:
    """How the numbers with these bits are written in a kernel that returns them."""
    matrix, digits = f"tensor<?x?x{kind}>", 8 if kind == "f32" else 16
    constants = "".join(
        f"  %c{i} = arith.constant 0x{value:0{digits}X} : {kind}\n"
        f"  %r{i} = tensor.splat %c{i}[%rows, %cols] : {matrix}\n"
        for i, value in enumerate(values)
    )
    results = [f"%r{i}" for i in range(len(values))]
    text = (
        f"func.func private @k(%x: {matrix}) -> ({', '.join([matrix] * len(values))})"
        " attributes {kaon.kernel = #kaon.schedule<elementwise>} {\n"
        "  %i0 = arith.constant 0 : index\n  %i1 = arith.constant 1 : index\n"
        f"  %rows = tensor.dim %x, %i0 : {matrix}\n  %cols = tensor.dim %x, %i1 : {matrix}\n"
        f"{constants}  return {', '.join(results)} : {', '.join([matrix] * len(values))}\n}}\n"
    )
    found = dict(re.findall(r"get<(\d+)>\(element\) = (.*);", _C.emit_cuda(text, lines=False)))
    return [found[str(i + 1)] for i in range(len(values))]


@needs_nvrtc
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_nvrtc_reads_numbers_back(kind: str) -> None:
    """From the immediate operands of the PTX. Decimal numbers of many magnitudes, subnormals, infinities and NaN."""
    bits, fraction = (32, 23) if kind == "f32" else (64, 52)
    generator = np.random.default_rng(5)
    values = [int(value) for value in generator.integers(0, 1 << 63, 120, np.uint64) >> np.uint64(63 - bits + 1)]
    values += [value & ((1 << fraction) - 1) for value in values[:40]]
    values += [0, 1 << (bits - 1), 1, (1 << fraction) - 1, 1 << fraction]
    exponents = ((1 << (bits - 1)) - 1) >> fraction << fraction
    values += [exponents, exponents | 1 << (bits - 1), exponents | 1, exponents - 1]
    literals = emitted_literals(values, kind)
    scalar, integer = ("float", "u32") if kind == "f32" else ("double", "u64")
    stores = "".join(f"  out[{i}] = bitsOf({scalar}({literal}));\n" for i, literal in enumerate(literals))
    text = (
        '#include "Primitives.cuh"\nusing namespace kaon::device;\n'
        f"KAON_KERNEL(32, 1) numbers({integer} *out) {{\n{stores}}}\n"
    )
    registers: dict[str, int] = {}
    found: dict[int, int] = {}
    for line in compile_text(text, "sm_80").ptx.splitlines():
        move = re.match(r"\s*mov\.[bu]\d+\s+(%\w+), (-?\d+);", line)
        store = re.match(r"\s*st\.global\.[bu]\d+\s+\[%\w+(?:\+(\d+))?\], (%\w+|-?\d+);", line)
        if move is not None:
            registers[move[1]] = int(move[2])
        if store is not None:
            value = registers[store[2]] if store[2].startswith("%") else int(store[2])
            found[int(store[1] or 0) * 8 // bits] = value % (1 << bits)
    assert [found[i] for i in range(len(values))] == values


# ---- names

NAMED = {
    "elementwise": "g * g",
    "rows": 'g / kl.sum(g * g, along="row")',
    "columns": 'g / kl.sum(g * g, along="column")',
    "product": "(g @ g.T) @ g",
}
# Of classes around an update's code, of C++, and of its headers.
OTHER_NAMES = ["List0", "Reductions0", "_List0", "kept", "keeps", "operator", "template", "NULL", "EOF"]


def update_with_names(kind: str, names: Sequence[str]) -> str:
    """Scalars of all names, used one by one."""
    scalars = ", ".join(f"{name}: kl.scalar" for name in names)
    statements = "".join(f"    w = w - {name} * n\n" for name in names)
    return (
        "import kaon\nimport kaon.language as kl\n@kaon.update\n"
        f"def update(w: kl.param, g: kl.grad, {scalars}):\n    n = {NAMED[kind]}\n{statements}    return w\n"
    )


def identifiers_of(texts: Iterable[str]) -> list[str]:
    """What could also be the name of a scalar in Python."""
    found = {name for text in texts for name in re.findall(r"\b[A-Za-z_]\w*\b", text)}
    taken = {"w", "g", "n", "kl", "kaon", "update", *keyword.kwlist, *dir(builtins)}
    return sorted(name for name in found - taken if not name.startswith("__"))


@needs_nvrtc
@pytest.mark.parametrize("kind", NAMED)
def test_a_user_may_use_every_name_that_kernels_use(kind: str) -> None:
    """Every identifier of generated kernels and of the device library's interface, and keywords of C++, as a scalar."""

    def texts_with(names: Sequence[str]) -> list[str]:
        update = RandomUpdate(update_with_names(kind, names), [], False, 1).compile()
        return list(texts_of(schedule([Matrix(update, 48, 96)]), lines=False).values())

    names = identifiers_of([*texts_with(["lr"]), *bundled_texts("periodic_frobenius", lines=False).values()])
    for text in texts_with(sorted({*names, *OTHER_NAMES})):
        compile_text(text, "sm_80")


KEEPING = """
import kaon
import kaon.language as kl
@kaon.update
def update(w: kl.param, g: kl.grad, lr: kl.scalar):
    {name} = g / kl.norm(g)
    return w - lr * ({name} @ {name}.T) @ {name}
"""


@needs_nvrtc
@pytest.mark.parametrize("name", ["keeps", "runElementwiseInPlace", "Function", "condition"])
def test_kernels_that_may_keep_a_matrix_leave_it_its_name(name: str) -> None:
    module = schedule([Matrix(RandomUpdate(KEEPING.format(name=name), [], False, 1).compile(), 48, 96)])
    (text,) = (text for kernel, text in texts_of(module, lines=False).items() if kernel.endswith("_in_place"))
    compile_text(text, "sm_80")


# ---- random updates


@settings(max_examples=60, **OPTIONS)
@given(
    update=random_updates(),
    shape=SHAPES,
    dtype=st.sampled_from(["f32", "bf16", "f16"]),
    half=st.sampled_from(["bf16", "f16"]),
)
def test_every_random_update_has_kernels(update: RandomUpdate, shape: tuple[int, int], dtype: str, half: str) -> None:
    note(update.source)
    for text in texts_of(schedule(matrices(update, shape, dtype), half), lines=False).values():
        assert text.startswith("#include")
        assert max(map(len, text.splitlines())) <= 100


@needs_nvrtc
@settings(max_examples=8, **OPTIONS)
@given(update=random_updates(), shape=SHAPES, dtype=st.sampled_from(["f32", "bf16", "f16"]))
def test_kernels_of_random_updates_compile(update: RandomUpdate, shape: tuple[int, int], dtype: str) -> None:
    note(update.source)
    for text, architecture in zip(
        texts_of(schedule(matrices(update, shape, dtype))).values(), itertools.cycle(ARCHITECTURES)
    ):
        compile_text(text, architecture)


class CudaRun:
    """A program for CUDA on the imitated driver, whose memory is the host's."""

    def __init__(self, module: _C.Module):
        texts = texts_of(module)
        fake_cuda.build_kernels(texts)
        images = {name: compile_text(text, "sm_90a").cubin for name, text in texts.items()}
        self.executor = _C.CudaExecutor(_C.build_plan(module), images, _C.CudaDriver(str(fake_cuda.driver_path())), 0)
        assert self.executor.is_fake

    def step(self, step: int, arrays: Sequence[np.ndarray], scalars: Sequence[float]) -> None:
        pointers = [entry for array in arrays for entry in (array.ctypes.data, array.shape[1])]
        self.executor.step(step, pointers, [list(scalars)], False)
        self.executor.synchronize()
        assert fake_cuda.fake().take_faults() == []


@needs_nvrtc
@needs_fake
@settings(max_examples=12, **OPTIONS)
@given(
    update=random_updates(max_statements=6),
    shape=SHAPES,
    dtype=st.sampled_from(["f32", "f32", "bf16", "f16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_kernels_of_random_updates_compute(update: RandomUpdate, shape: tuple[int, int], dtype: str, seed: int) -> None:
    """Against the interpreter, within what roundings to f32 and, in products, to bf16 do to this very program."""
    note(update.source)
    (matrix,) = matrices(update, shape, dtype)
    before = _C.parse(driver.emit([matrix]).text).to_python()
    oracle = Interpreter(before, "native")
    dtypes = [dtype, dtype, *["f32"] * len(update.states)]
    values = [round_to(value, kind) for value, kind in zip(inputs(update, shape, seed), dtypes, strict=True)]
    memory = [stored(value, kind) for value, kind in zip(values, dtypes, strict=True)]
    ((symbol, _),) = oracle.schedule(1)
    arguments = [*values, LR, MU, 1]
    expected = oracle.call(symbol, *arguments, phase=0)
    factors = amplification(before, symbol, arguments, expected)
    CudaRun(schedule([matrix])).step(1, memory, [LR, MU])
    epsilon = EPSILON["bf16"] if update.has_products else EPSILON["f32"]
    for index, (array, result, factor, kind) in enumerate(
        zip([memory[0], *memory[2:]], expected, factors, [dtypes[0], *dtypes[2:]], strict=True)
    ):
        bound = max(1e-6, 8 * factor * epsilon, EPSILON[kind] if kind != "f32" else 0.0)
        found = error(loaded(array, kind), result)
        assert found <= bound, f"result {index}: {found:.2g} > {bound:.2g}"
    assert np.array_equal(memory[1], stored(values[1], dtype)), "a gradient must never change"
