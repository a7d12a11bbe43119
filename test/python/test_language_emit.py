"""The emitted MLIR: operations and their order, types, roles, locations, names, and byte determinism."""

from __future__ import annotations

import math
import re
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kaon
import kaon.language as kl
import language_examples as examples
import numpy as np
import pytest
from kaon import Update
from kaon.compiler.emit import ParameterEntry, float_literal, program_text, string_literal, symbol_name
from kaon.interpreter import Interpreter

HERE = Path(__file__)


def emit(update: Update, rows: int = 4, cols: int = 6, **options: Any) -> str:
    return update.specialize(rows, cols, symbol=options.pop("symbol", "f"), **options).text


def bare(text: str) -> str:
    """The text without locations."""
    while " loc(" in text:
        begin = text.index(" loc(")
        end, depth = begin + 5, 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = text[:begin] + text[end:]
    return text


def check(text: str, *patterns: str) -> None:
    """As FileCheck: each pattern in a line after that of the one before; ``{{...}}`` holds a regular expression."""
    lines = iter(bare(text).splitlines())
    for pattern in patterns:
        parts = re.split(r"\{\{(.*?)\}\}", pattern)
        expression = "".join(part if index % 2 else re.escape(part) for index, part in enumerate(parts))
        assert any(re.search(expression, line) for line in lines), f"not found, in order: {pattern}\n{bare(text)}"


def line_of(text: str) -> int:
    """The number of the only line of this file that holds ``text`` (and is not the call)."""
    lines = HERE.read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if text in line and "line_of(" not in line]
    assert len(found) == 1
    return found[0]


@pytest.fixture(scope="session")
def extension() -> ModuleType:
    return pytest.importorskip("kaon._C", reason="the compiled extension is not built")


# ---- signature ------------------------------------------------------------------------------------------------------


@kaon.update
def every_role(
    w: kl.param,
    g: kl.grad,
    lr: kl.scalar,
    m: kl.state,
    r: kl.row_state = 0.5,
    c: kl.column_state = 1,
    s: kl.scalar_state = -2.0,
    *,
    flag: kl.constexpr = True,
    beta: kl.scalar = 0.9,
):
    return w, m, r, c, s


def test_arguments_come_in_the_order_of_their_roles() -> None:
    check(
        emit(every_role),
        'func.func @f(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"}',
        '%g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"}',
        '%m: tensor<4x6xf32> {kaon.role = #kaon.role<state>, kaon.name = "m", kaon.init = 0.0 : f64}',
        '%r: tensor<4x1xf32> {kaon.role = #kaon.role<state>, kaon.name = "r", kaon.init = 0.5 : f64}',
        '%c: tensor<1x6xf32> {kaon.role = #kaon.role<state>, kaon.name = "c", kaon.init = 1.0 : f64}',
        '%s: tensor<1x1xf32> {kaon.role = #kaon.role<state>, kaon.name = "s", kaon.init = -2.0 : f64}',
        '%lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"}',
        '%beta: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "beta"}',
        '%step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})',
        "-> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x1xf32>, tensor<1x6xf32>, tensor<1x1xf32>) "
        "attributes {kaon.update} {",
        "return %w, %m, %r, %c, %s : ",
    )


@pytest.mark.parametrize(
    ("param", "grad", "compute"),
    [("f32", "f32", "f32"), ("f64", "f64", "f64"),
     ("bf16", "bf16", "f32"), ("f16", "f32", "f32"), ("f32", "f64", "f32"),
     ("f64", "f32", "f64"), ("f64", "bf16", "f64")],
)  # fmt: skip
def test_storage_is_widened_at_entry_and_narrowed_at_return(param: str, grad: str, compute: str) -> None:
    width = {"bf16": 16, "f16": 16, "f32": 32, "f64": 64}
    text = bare(emit(examples.lion, param_dtype=param, grad_dtype=grad))
    assert f"%w: tensor<4x6x{param}>" in text and f"%g: tensor<4x6x{grad}>" in text
    assert f"%m: tensor<4x6x{compute}>" in text
    body = text[text.index("attributes {kaon.update}") :].splitlines()[1:]
    conversions = [line.strip() for line in body if re.search(r"arith\.(extf|truncf) %\w+ : tensor", line)]
    expected = []
    for name, dtype in (("w", param), ("g", grad)):
        if dtype != compute:
            kind = "extf" if width[dtype] < width[compute] else "truncf"
            expected.append(f"%{name}_0 = arith.{kind} %{name} : tensor<4x6x{dtype}> to tensor<4x6x{compute}>")
    assert conversions[: len(expected)] == expected
    assert len(conversions) - len(expected) == (param != compute)
    assert body[-2].endswith(f": tensor<4x6x{param}>, tensor<4x6x{compute}>")
    if param != compute:
        assert conversions[-1].endswith(f"tensor<4x6x{compute}> to tensor<4x6x{param}>")


# ---- operations -----------------------------------------------------------------------------------------------------


def test_muon() -> None:
    text = emit(examples.muon, 4, 6, constexprs={"scale": "moonlight"})
    table = ", ".join(["3.4445, -4.775, 2.0315"] * 5)
    check(
        text,
        "%u, %m_0 = kaon.momentum lerp %g, %m, %momentum nesterov : tensor<4x6xf32>",
        f"%o = kaon.newton_schulz %u coefficients [{table}] normalize add epsilon 1.0e-07 scale 1.0 : tensor<4x6xf32>",
        f"%0 = arith.constant {0.2 * math.sqrt(6)!r} : f64",
        "%1 = arith.mulf %lr, %0 : f64",
        "%2 = arith.mulf %lr, %weight_decay : f64",
        "%3 = kaon.apply decoupled %w, %o step_size %1 decay %2 : tensor<4x6xf32>",
        "return %3, %m_0 : tensor<4x6xf32>, tensor<4x6xf32>",
    )
    options = {"form": "heavy_ball", "nesterov": False, "mode": "cautious"}
    check(
        emit(examples.muon, constexprs=options),
        "= kaon.momentum heavy_ball %g, %m, %momentum : tensor<4x6xf32>",
        "= kaon.apply cautious %w, %o",
    )


def test_periodic_rowwise_muon() -> None:
    check(
        emit(examples.periodic_rowwise_muon, 6, 4, constexprs={"period": 5, "steps": 1}),
        "%o_1 = kaon.every %step period 5 phase 1 -> tensor<6x4xf32> {",
        "  %o = kaon.newton_schulz %u coefficients [3.4445, -4.775, 2.0315] normalize max epsilon 0.0 scale 1.0",
        "  kaon.yield %o : tensor<6x4xf32>",
        "} else {",
        "  %{{[0-9]+}} = kaon.normalize %u along row max epsilon 0.0 scale 1.0 : tensor<6x4xf32>",
        f"  %{{{{[0-9]+}}}} = arith.constant {math.sqrt(4 / 6)!r} : f64",
        "  kaon.yield %o_0 : tensor<6x4xf32>",
        "}",
        "return %w_0, %m_0",
    )


def test_calibrated_rowwise_muon_keeps_its_length_as_a_state() -> None:
    check(
        emit(examples.calibrated_rowwise_muon),
        "%c_1, %o_1 = kaon.every %step period 3 phase 1 -> tensor<1x1xf32>, tensor<4x6xf32> {",
        "%square = kaon.reduce sum %{{[0-9]+}} along all : tensor<4x6xf32> -> tensor<1x1xf32>",
        "arith.cmpf ogt, %square, %{{[0-9]+}} : tensor<1x1xf32>",
        "%c_0 = arith.select %{{[0-9]+}}, %{{[0-9]+}}, %{{[0-9]+}} : tensor<1x1xi1>, tensor<1x1xf32>",
        "kaon.yield %c_0, %o : tensor<1x1xf32>, tensor<4x6xf32>",
        "} else {",
        "kaon.broadcast %c : tensor<1x1xf32> to tensor<4x6xf32>",
        "kaon.yield %c, %o_0 : tensor<1x1xf32>, tensor<4x6xf32>",
        "return %{{[0-9]+}}, %m_0, %c_1",
    )


def test_own_newton_schulz_is_primitives() -> None:
    text = emit(examples.own_muon, constexprs={"steps": 2})
    check(
        text,
        "kaon.norm %u along all : tensor<4x6xf32> -> tensor<1x1xf32>",
        "kaon.broadcast %{{[0-9]+}} : tensor<1x1xf32> to tensor<4x6xf32>",
        "kaon.transpose %x : tensor<4x6xf32> -> tensor<6x4xf32>",
        "%a = kaon.matmul %x, %{{[0-9]+}} : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>",
        "kaon.matmul %a, %a : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>",
        ": (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>",
        "kaon.transpose %x_0",
        "%a_0 = kaon.matmul %x_0",
    )
    assert bare(text).count("kaon.matmul") == 6


@kaon.update
def each_function(w: kl.param, g: kl.grad, r: kl.row_state, c: kl.column_state, lr: kl.scalar):
    w = kl.sqrt(w) + kl.rsqrt(w) + kl.abs(w) + kl.exp(w) + kl.log(w) + kl.floor(w)
    w = kl.maximum(kl.minimum(w, g), lr) + kl.full_like(w, lr) + kl.zeros_like(w) + abs(-w)
    r = kl.mean(w, "row") + kl.max(w, along="row") + kl.norm(w, "row")
    c = kl.sum(w, "column") + kl.min(w, "column") * (kl.transpose(r) @ kl.column_normalize(w))
    return kl.normalize(w, "all", epsilon=1e-8, form="add", norm_scale=1.5) + r + c, r, c


def test_each_function() -> None:
    text = emit(each_function)
    full, row, column = "tensor<4x6xf32>", "tensor<4x1xf32>", "tensor<1x6xf32>"
    for name in ("sqrt", "rsqrt", "absf", "exp", "log", "floor"):
        assert re.search(rf"= math\.{name} %w : {full}", bare(text)), name
    check(
        text,
        f"arith.minimumf %w_{{{{[0-9]+}}}}, %g : {full}",
        f"arith.maximumf %{{{{[0-9]+}}}}, %{{{{[0-9]+}}}} : {full}",
        f"arith.negf %{{{{[0-9a-z_]+}}}} : {full}",
        f"math.absf %{{{{[0-9]+}}}} : {full}",
        f"kaon.reduce sum %w_{{{{[0-9]+}}}} along row : {full} -> {row}",
        "arith.constant 6.0 : f64",
        f"arith.divf %{{{{[0-9]+}}}}, %{{{{[0-9]+}}}} : {row}",
        f"kaon.reduce max %w_{{{{[0-9]+}}}} along row : {full} -> {row}",
        f"kaon.norm %w_{{{{[0-9]+}}}} along row : {full} -> {row}",
        f"kaon.reduce sum %w_{{{{[0-9]+}}}} along column : {full} -> {column}",
        f"kaon.reduce min %w_{{{{[0-9]+}}}} along column : {full} -> {column}",
        f"kaon.normalize %w_{{{{[0-9]+}}}} along column max epsilon 0.0 scale 1.0 : {full}",
        f"kaon.normalize %w_{{{{[0-9]+}}}} along all add epsilon 1.0e-08 scale 1.5 : {full}",
        f"kaon.broadcast %r_0 : {row} to {full}",
        f"kaon.broadcast %c_0 : {column} to {full}",
    )


@kaon.update
def host_arithmetic(w: kl.param, g: kl.grad, lr: kl.scalar, beta: kl.scalar):
    rate = lr * kl.sqrt(1 - beta ** kl.step()) / (1 - beta) - 1e-3 + abs(-lr)
    rate = min(rate, 0.5, beta) + kl.rsqrt(lr) + kl.where(lr > beta, lr, 2) + kl.sign(beta)
    return w - rate * g


def test_expressions_of_run_time_scalars_stay_on_the_host_in_f64() -> None:
    text = bare(emit(host_arithmetic))
    check(
        text,
        "arith.sitofp %step : i64 to f64",
        "math.powf %beta, %{{[0-9]+}} : f64",
        "math.sqrt %{{[0-9]+}} : f64",
        "math.absf %{{[0-9]+}} : f64",
        "arith.minimumf %{{[0-9a-z]+}}, %{{[0-9]+}} : f64",
        "arith.divf %{{[0-9]+}}, %{{[0-9]+}} : f64",
        "arith.cmpf ogt, %lr, %beta : f64",
        "arith.select %{{[0-9]+}}, %lr, %{{[0-9]+}} : f64",
        "arith.truncf %rate_0 : f64 to f32",
        "tensor.splat %{{[0-9]+}} : tensor<4x6xf32>",
    )
    # One rounding to the compute type, right before the value enters a matrix.
    assert text.count("truncf") == 1
    assert "truncf" not in bare(emit(host_arithmetic, param_dtype="f64", grad_dtype="f64"))
    assert "rsqrt" not in text, "the host has no rsqrt"


@kaon.update
def powers(w: kl.param, g: kl.grad, lr: kl.scalar):
    return w**2 + w**3 + w**-1 + w**0.5 + w**0 + w**1 + w**-0.5 + w**2.5 + w**lr + 2**w


def test_powers() -> None:
    text = bare(emit(powers))
    assert text.count("math.powf") == 3
    assert text.count("math.sqrt") == 2
    check(text, "%0 = arith.mulf %w, %w", "%1 = arith.mulf %w, %w", "%2 = arith.mulf %1, %w")


@kaon.update
def constants_fold(w: kl.param, g: kl.grad, *, table: kl.constexpr = (1.0, 2.0), mode: kl.constexpr = "wide"):
    scale = math.pi * len(table) + table[-1] ** 2 - round(2.6) // 2 + int("7") % 4
    if mode == "wide" and w.rows <= w.cols and not table[0] > 1 and mode is not None and mode in ("wide", "tall"):
        for index, value in enumerate(table):
            scale = scale + index * value if index < 1 else scale
    return w - (scale if mode.startswith("w") else 0.0) * g


def test_constants_fold_in_python() -> None:
    expected = math.pi * 2 + 2.0**2 - round(2.6) // 2 + int("7") % 4
    check(emit(constants_fold), f"%0 = arith.constant {expected!r} : f64")
    assert bare(emit(constants_fold)).count("arith.constant") == 1


@pytest.mark.parametrize("dtypes", [("f32", "f32"), ("f64", "f64"), ("bf16", "f16")])
def test_everything_emitted_here_parses(extension: ModuleType, dtypes: tuple[str, str]) -> None:
    updates = [value for value in globals().values() if isinstance(value, Update)]
    assert len(updates) >= 9
    compiled = [update.specialize(4, 6, *dtypes, symbol=update.name) for update in updates]
    extension.parse(program_text([ParameterEntry(update.name, "w") for update in updates], compiled))


# ---- kl.every -------------------------------------------------------------------------------------------------------


@kaon.update
def every_forms(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, *, flag: kl.constexpr = True):
    rate = lr
    name = "same"
    if flag and kl.every(4, phase=2):
        product = w @ g.T
        m = product.T @ w if flag is None else g
        rate = 0.5
    elif not kl.every(6):
        m = kl.zeros_like(g)
    kl.static_assert(name == "same")
    return w - rate * m, m


def test_every_yields_what_is_read_later_and_nothing_else(extension: ModuleType) -> None:
    text = emit(every_forms)
    check(
        text,
        "%m_2, %rate = kaon.every %step period 4 phase 2 -> tensor<4x6xf32>, f64 {",
        "  %0 = arith.constant 0.5 : f64",
        "  kaon.yield %g, %0 : tensor<4x6xf32>, f64",
        "} else {",
        # `not` exchanges the regions.
        "  %m_1 = kaon.every %step period 6 phase 1 -> tensor<4x6xf32> {",
        "    kaon.yield %m : tensor<4x6xf32>",
        "  } else {",
        "    kaon.yield %m_0 : tensor<4x6xf32>",
        "  kaon.yield %m_1, %lr : tensor<4x6xf32>, f64",
    )
    assert "matmul" not in text, "dead code is not emitted"
    interpreter = interpret(extension, every_forms)
    w, g, m = (np.full((4, 6), value) for value in (10.0, 2.0, 1.0))
    for step, rate, momentum in [(1, 0.1, 1.0), (2, 0.5, 2.0), (3, 0.1, 0.0), (6, 0.5, 2.0), (7, 0.1, 1.0)]:
        found, state = interpreter.call("f", w, g, m, 0.1, step)
        assert np.all(state == momentum), step
        np.testing.assert_allclose(found, w - rate * state, err_msg=str(step))


def interpret(extension: ModuleType, update: Update, rows: int = 4, cols: int = 6) -> Interpreter:
    specialized = update.specialize(rows, cols, "f64", "f64", symbol="f")
    return Interpreter(extension.parse(program_text([], [specialized])).to_python())


@kaon.update
def exchange(w: kl.param, g: kl.grad, a: kl.state = 1.0, b: kl.state = 2.0):
    if kl.every(2):
        x, y = a, a
    else:
        x, y = a, b
    return w, x + y, y - x


def test_every_with_one_value_under_two_names(extension: ModuleType) -> None:
    w, a, b = np.zeros((4, 6)), np.full((4, 6), 1.0), np.full((4, 6), 2.0)
    interpreter = interpret(extension, exchange)
    _, first, second = interpreter.call("f", w, w, a, b, 1)
    assert np.all(first == 2) and np.all(second == 0)
    _, first, second = interpreter.call("f", w, w, a, b, 2)
    assert np.all(first == 3) and np.all(second == 1)


@pytest.mark.parametrize("period", [1, 2, 3])
def test_every_is_kept_for_every_period(period: int) -> None:
    """Also for period 1: the passes decide, and K = 1 goes the same way as any other."""
    text = emit(examples.periodic_rowwise_muon, constexprs={"period": period})
    assert f"kaon.every %step period {period} phase {1 % period}" in text


# ---- names and locations --------------------------------------------------------------------------------------------


@kaon.function
def doubled(x):
    twice = x + x
    return twice


@kaon.function
def quadrupled(x):
    return doubled(doubled(x))


@kaon.update
def located(w: kl.param, g: kl.grad):
    scaled_gradient = quadrupled(g)
    return w - scaled_gradient


def test_locations_hold_file_line_column_names_and_call_chain() -> None:
    text = emit(located)
    inner = f'"{HERE}":{line_of("    twice = x + x")}:13'
    middle = f'"{HERE}":{line_of("    return doubled(doubled(x))")}'
    outer = f'"{HERE}":{line_of("    scaled_gradient = quadrupled(g)")}:23'
    first = f'loc("twice"(callsite({inner} at callsite({middle}:20 at {outer}))))'
    second = f'loc("twice"(callsite({inner} at callsite({middle}:12 at {outer}))))'
    assert f"%twice = arith.addf %g, %g : tensor<4x6xf32> {first}" in text
    assert f"%twice_0 = arith.addf %twice, %twice : tensor<4x6xf32> {second}" in text
    last = line_of("    return w - scaled_gradient")
    assert f'arith.subf %w, %twice_0 : tensor<4x6xf32> loc("{HERE}":{last}:12)' in text
    definition = line_of("def located(")
    assert (
        f'%g: tensor<4x6xf32> {{kaon.role = #kaon.role<grad>, kaon.name = "g"}} loc("g"("{HERE}":{definition}:26))'
        in text
    )
    assert text.endswith(f'}} loc("{HERE}":{definition}:1)\n')


def test_locations_survive_parsing(extension: ModuleType) -> None:
    module = extension.parse(program_text([], [located.specialize(4, 6, symbol="f")]))
    (function, *_) = module.to_python().regions[0].blocks[0].operations
    location = function.regions[0].blocks[0].operations[0].location
    assert f'"{HERE}":{line_of("    twice = x + x")}:13' in location
    assert "callsite" in location and "twice" in location


@kaon.update
def odd_names(θ: kl.param, _g: kl.grad, lr_: kl.scalar, step_: kl.state):
    __0 = θ - lr_ * _g
    é = __0 + step_
    return é, step_


def test_names_follow_the_users_variables_where_mlir_allows(extension: ModuleType) -> None:
    text = emit(odd_names)
    assert '%_: tensor<4x6xf32> {kaon.role = #kaon.role<param>, kaon.name = "\\CE\\B8"}' in text
    assert "%__0 = arith.subf %_, " in text
    module = extension.parse(
        program_text([ParameterEntry("f", 'a "quoted" θ\n')], [odd_names.specialize(4, 6, symbol="f")])
    )
    function, program = module.to_python().regions[0].blocks[0].operations
    assert [item["kaon.name"] for item in function.attributes["arg_attrs"]] == ["θ", "_g", "step_", "lr_", "step"]
    (parameter, *_) = program.regions[0].blocks[0].operations
    assert parameter.attributes["name"] == 'a "quoted" θ\n'


# ---- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, 1.0, 1e-8, -1e-8, 1e22, 5e-324, 1.7976931348623157e308, 0.1, 1 / 3, 123456789.125, 2**53 + 1.0, 1e16],
)
def test_float_literals_read_back_to_the_same_bits(extension: ModuleType, value: float) -> None:
    literal = float_literal(value)
    assert struct.pack("<d", float(literal)) == struct.pack("<d", value)
    assert re.fullmatch(r"-?[0-9]+\.[0-9]*(e[-+]?[0-9]+)?", literal), literal
    text = f"func.func @f() -> f64 {{\n %0 = arith.constant {literal} : f64\n return %0 : f64\n}}"
    assert struct.pack("<d", Interpreter(extension.parse(text).to_python()).call("f")[0]) == struct.pack("<d", value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite_literals(extension: ModuleType, value: float) -> None:
    text = f"func.func @f() -> f64 {{\n %0 = arith.constant {float_literal(value)} : f64\n return %0 : f64\n}}"
    (found,) = Interpreter(extension.parse(text).to_python()).call("f")
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_symbols_and_strings_are_quoted_when_needed() -> None:
    assert symbol_name("muon_4x6_f32.0") == "@muon_4x6_f32.0"
    assert symbol_name("0 a") == '@"0 a"'
    assert string_literal('a\\b"c\n') == '"a\\5Cb\\22c\\0A"'


def test_program_text_holds_each_update_once_and_the_parameters_in_order(extension: ModuleType) -> None:
    wide = examples.lion.specialize(4, 6, symbol="wide")
    tall = examples.lion.specialize(6, 4, symbol="tall")
    entries = [
        ParameterEntry("wide", "a"), ParameterEntry("tall", "b", 1), ParameterEntry("wide", "c", 1, 2),
    ]  # fmt: skip
    text = program_text(entries, [wide, tall, wide])
    assert text.count("func.func @wide(") == 1
    check(
        text,
        "kaon.program @step {",
        'kaon.parameter @wide "a" scalars 0 phase 0',
        'kaon.parameter @tall "b" scalars 1 phase 0',
        'kaon.parameter @wide "c" scalars 1 phase 2',
    )
    extension.parse(text)
    with pytest.raises(ValueError, match="expects the update 'missing'"):
        program_text([ParameterEntry("missing", "a")], [wide])
    with pytest.raises(ValueError, match="two different ones named 'wide'"):
        program_text([], [wide, examples.lion.specialize(6, 4, symbol="wide")])


def test_the_same_input_gives_the_same_bytes_in_another_process() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import language_examples as e\n"
        "print(e.calibrated_rowwise_muon.specialize(5, 3, symbol='f').text)\n"
        "print(e.own_muon.specialize(5, 3, symbol='g').text)\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script, str(HERE.parent)],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1 and "kaon.every" in texts.pop()
