"""Passes keep the meaning of updates: the reference interpreter runs a module before and after them."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

_C = pytest.importorskip("kaon._C")

from kaon.interpreter import Interpreter  # noqa: E402

CPU = "kaon.cpu = #kaon.cpu_target<vector_bits = 256, mr = 6, nr = 16, kc = 256, block = 96>"
KELLER_JORDAN = [3.4445, -4.7750, 2.0315] * 5
CUBIC = [3.3656576, -3.3420992, 0.0, 2.5744352, -1.4957376, 0.0, 2.5368962, -1.4312570, 0.0]

# A pipeline that ends after each pass, in the order of kaon-cpu-pipeline.
STAGES = [
    "builtin.module(kaon-split-phases,func.func(kaon-expand-updates))",
    "builtin.module(kaon-split-phases,func.func(kaon-expand-updates,canonicalize,cse,kaon-orient-products))",
    "builtin.module(kaon-simplify-pipeline)",
    "builtin.module(kaon-simplify-pipeline,kaon-bucket,func.func(kaon-fuse-kernels))",
    "builtin.module(kaon-split-phases,func.func(kaon-expand-updates,kaon-fuse-kernels))",
    "builtin.module(kaon-cpu-pipeline)",
]


def update_text(
    rows: int,
    columns: int,
    element: str,
    body: str,
    states: dict[str, str] | None = None,
    scalars: tuple[str, ...] = (),
) -> str:
    """A module with one update ``@f`` over ``%w``, ``%g``, ``%step``, states and scalars, used by one matrix.

    ``T``, ``R``, ``C`` and ``S`` in ``body`` and in the states stand for the types of the matrix, of one value per row,
    per column and of a single one.
    """
    types = {
        "T": f"tensor<{rows}x{columns}x{element}>",
        "R": f"tensor<{rows}x1x{element}>",
        "C": f"tensor<1x{columns}x{element}>",
        "S": f"tensor<1x1x{element}>",
    }
    states = states or {}
    arguments = ["%w: T {kaon.role = #kaon.role<param>}", "%g: T {kaon.role = #kaon.role<grad>}"]
    arguments += [f"%{name}: {kind} {{kaon.role = #kaon.role<state>}}" for name, kind in states.items()]
    arguments += [f"%{name}: f64 {{kaon.role = #kaon.role<scalar>}}" for name in scalars]
    arguments += ["%step: i64 {kaon.role = #kaon.role<step>}"]
    results = ", ".join(["T", *states.values()])
    text = f"""
      func.func @f({", ".join(arguments)}) -> ({results}) attributes {{kaon.update}} {{
        {body}
      }}
      kaon.program @step {{
        kaon.parameter @f "w" scalars 0 phase 0
      }}"""
    text = re.sub(r"(?<![\w@#%.])[TRCS](?!\w)", lambda match: types[match.group()], text)
    return f"module attributes {{{CPU}}} {{{text}\n}}"


def run(
    text: str, pipeline: str | None, steps: int, inputs: Callable[[], list[np.ndarray]], scalars: list[float]
) -> list[list[np.ndarray]]:
    """The matrix and its states after each of ``steps`` steps."""
    module = _C.parse(text)
    if pipeline:
        module.run_pipeline(pipeline)
    interpreter = Interpreter(module.to_python())
    param, grad, *states = inputs()
    history = []
    for step in range(1, steps + 1):
        ((symbol, members),) = interpreter.schedule(step)
        assert members == [0]
        param, *states = interpreter.call(symbol, param, grad * step, *states, *scalars, step)
        history.append([param, *states])
    return history


def assert_same_meaning(text: str, shapes: list[tuple[int, int]], scalars: list[float], steps: int = 1, seed: int = 0):
    def inputs() -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        return [random.standard_normal(shape) for shape in shapes]

    expected = run(text, None, steps, inputs, scalars)
    for stage in STAGES:
        found = run(text, stage, steps, inputs, scalars)
        for wanted_values, values in zip(expected, found, strict=True):
            for wanted, value in zip(wanted_values, values, strict=True):
                np.testing.assert_allclose(
                    value, wanted, rtol=1e-12, atol=1e-12 * max(1.0, np.abs(wanted).max()), err_msg=stage
                )


SHAPES = [(6, 10), (10, 6), (7, 7), (1, 5), (5, 1), (1, 1)]


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("mode", ["max", "add", "none"])
def test_newton_schulz_keeps_its_meaning(rows, columns, mode, element):
    # Without normalization the input has to be small for the iteration to stay bounded.
    factor = 0.05 if mode == "none" else 3.0
    for coefficients in (KELLER_JORDAN, CUBIC):
        body = f"""
          %s = arith.constant 0.1 : f64
          %c = arith.constant dense<{factor}> : T
          %x = arith.mulf %c, %g : T
          %o = kaon.newton_schulz %x coefficients {coefficients} normalize {mode} epsilon 1.0e-7 scale 1.02 : T
          %w1 = kaon.apply decoupled %w, %o step_size %s decay %s : T
          return %w1 : T"""
        assert_same_meaning(update_text(rows, columns, element, body), [(rows, columns)] * 2, [])


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_newton_schulz_is_the_formula(rows, columns):
    body = f"""
      %o = kaon.newton_schulz %g coefficients {KELLER_JORDAN} normalize add epsilon 1.0e-7 scale 1.0 : T
      return %o : T"""
    grad = np.random.default_rng(1).standard_normal((rows, columns))
    ((found,),) = run(update_text(rows, columns, "f64", body), "kaon-cpu-pipeline", 1, lambda: [grad, grad], [])
    x = (grad.T if rows > columns else grad) / (np.sqrt((grad * grad).sum()) + 1e-7)
    for a, b, c in zip(*[iter(KELLER_JORDAN)] * 3, strict=True):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    np.testing.assert_allclose(found, x.T if rows > columns else x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["max", "add"])
@pytest.mark.parametrize(
    ("element", "exponent"),
    [(element, exponent) for exponent in (-30, 30) for element in ("f32", "f64")]
    + [("f64", exponent) for exponent in (-300, -160, 160, 300)],
)
def test_newton_schulz_accepts_any_scale(element, mode, exponent):
    body = f"""
      %o = kaon.newton_schulz %g coefficients {KELLER_JORDAN} normalize {mode} epsilon 0.0 scale 1.0 : T
      return %o : T"""
    text = update_text(5, 8, element, body)
    grad = np.random.default_rng(2).standard_normal((5, 8))
    ((unscaled,),) = run(text, "kaon-cpu-pipeline", 1, lambda: [grad, grad], [])
    ((scaled,),) = run(text, "kaon-cpu-pipeline", 1, lambda: [grad, grad * 10.0**exponent], [])
    np.testing.assert_allclose(scaled, unscaled, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["max", "add"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-7])
def test_zero_gives_zero(element, mode, epsilon):
    for line in (
        f"kaon.newton_schulz %g coefficients {KELLER_JORDAN} normalize {mode} epsilon {epsilon:e} scale 1.0 : T",
        *(
            f"kaon.normalize %g along {along} {mode} epsilon {epsilon:e} scale 1.0 : T"
            for along in ("row", "column", "all")
        ),
    ):
        text = update_text(4, 6, element, f"%o = {line}\nreturn %o : T")
        for pipeline in (None, "kaon-cpu-pipeline"):
            ((found,),) = run(text, pipeline, 1, lambda: [np.ones((4, 6)), np.zeros((4, 6))], [])
            assert not found.any(), (line, pipeline)


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("along", ["row", "column", "all"])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_norms_and_reductions_keep_their_meaning(rows, columns, along, element):
    kind = {"row": "R", "column": "C", "all": "S"}[along]
    for kind_of_sum in ("sum", "max", "min"):
        body = f"""
          %n = kaon.norm %g along {along} : T -> {kind}
          %r = kaon.reduce {kind_of_sum} %w along {along} : T -> {kind}
          %y = kaon.normalize %g along {along} add epsilon 1.0e-3 scale 0.5 : T
          %a = arith.addf %n, %r : {kind}
          %b = kaon.broadcast %a : {kind} to T
          %c = arith.mulf %b, %y : T
          %v1 = arith.subf %v, %a : {kind}
          return %c, %v1 : T, {kind}"""
        shape = {"R": (rows, 1), "C": (1, columns), "S": (1, 1)}[kind]
        text = update_text(rows, columns, element, body, {"v": kind})
        assert_same_meaning(text, [(rows, columns), (rows, columns), shape], [])


PERIODIC = """
  %u, %m1 = kaon.momentum lerp %g, %m, %mu nesterov : T
  %q = kaon.normalize %u along row max epsilon 1.0e-12 scale 1.0 : T
  %o, %c1 = kaon.every %step period 3 phase 1 -> T, S {
    %a = kaon.newton_schulz %u coefficients [3.4445, -4.775, 2.0315, 3.4445, -4.775, 2.0315]
        normalize max epsilon 1.0e-7 scale 1.0 : T
    %qo = arith.mulf %q, %a : T
    %qq = arith.mulf %q, %q : T
    %above = kaon.reduce sum %qo along all : T -> S
    %below = kaon.reduce sum %qq along all : T -> S
    %zero = arith.constant dense<0.0> : S
    %one = arith.constant dense<1.0> : S
    %positive = arith.cmpf ogt, %below, %zero : S
    %ratio = arith.divf %above, %below : S
    %new = arith.select %positive, %ratio, %one : tensor<1x1xi1>, S
    kaon.yield %a, %new : T, S
  } else {
    %repeated = kaon.broadcast %c : S to T
    %b = arith.mulf %repeated, %q : T
    kaon.yield %b, %c : T, S
  }
  %d = arith.mulf %lr, %wd : f64
  %w1 = kaon.apply decoupled %w, %o step_size %lr decay %d : T
  return %w1, %m1, %c1 : T, T, S
"""


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize(("rows", "columns"), [(6, 10), (10, 6), (7, 7)])
def test_calibrated_periodic_update_keeps_its_meaning(rows, columns, element):
    text = update_text(rows, columns, element, PERIODIC, {"m": "T", "c": "S"}, ("lr", "mu", "wd"))
    shapes = [(rows, columns)] * 3 + [(1, 1)]
    assert_same_meaning(text, shapes, [0.02, 0.95, 0.1], steps=7)


def test_row_then_column_normalization_keeps_its_meaning():
    lines = ["%x0 = arith.addf %g, %w : T"]
    for i in range(3):
        lines.append(f"%y{i} = kaon.normalize %x{i} along row max epsilon 0.0 scale 0.3 : T")
        lines.append(f"%x{i + 1} = kaon.normalize %y{i} along column max epsilon 0.0 scale 0.2 : T")
    lines.append("return %x3 : T")
    for element in ("f32", "f64"):
        assert_same_meaning(update_text(9, 4, element, "\n".join(lines)), [(9, 4)] * 2, [])


def test_states_that_change_places_keep_their_meaning():
    body = """
      %t = arith.addf %a, %g : T
      %w1 = arith.subf %w, %b : T
      return %w1, %b, %a, %t : T, T, T, T"""
    text = update_text(5, 3, "f32", body, {"a": "T", "b": "T", "c": "T"})
    assert_same_meaning(text, [(5, 3)] * 5, [], steps=3)


def test_users_own_iteration_keeps_its_meaning():
    body = """
      %gt = kaon.transpose %g : T -> U
      %gram = kaon.matmul %g, %gt : (T, U) -> V
      %square = kaon.matmul %gram, %gram : (V, V) -> V
      %cube = kaon.matmul %gram, %square : (V, V) -> V
      %c = arith.constant dense<0.01> : V
      %scaled = arith.mulf %c, %cube : V
      %p = arith.subf %gram, %scaled : V
      %o = kaon.matmul %p, %g : (V, T) -> T
      %w1 = arith.subf %w, %o : T
      return %w1 : T"""
    for rows, columns in ((10, 4), (4, 10), (5, 5)):
        text = update_text(rows, columns, "f64", body)
        text = re.sub(r"\bU\b", f"tensor<{columns}x{rows}xf64>", text)
        text = re.sub(r"\bV\b", f"tensor<{rows}x{rows}xf64>", text)
        assert_same_meaning(text, [(rows, columns)] * 2, [])


def test_same_input_gives_the_same_bytes():
    text = update_text(6, 10, "f32", PERIODIC, {"m": "T", "c": "S"}, ("lr", "mu", "wd"))
    texts = set()
    for _ in range(5):
        module = _C.parse(text)
        module.run_pipeline("kaon-cpu-pipeline")
        texts.add(str(module))
    assert len(texts) == 1


def test_kernels_do_not_depend_on_shapes():
    def kernels(rows: int, columns: int) -> set[str]:
        module = _C.parse(update_text(rows, columns, "f32", PERIODIC, {"m": "T", "c": "S"}, ("lr", "mu", "wd")))
        module.run_pipeline("kaon-cpu-pipeline")
        return set(re.findall(r"func.func private @(kernel_\w+)", str(module)))

    assert kernels(6, 10) == kernels(48, 20) == kernels(7, 7)


def dit(hidden: int, depth: int) -> list[tuple[int, int]]:
    """The matrices of a DiT's blocks: attention, feed-forward, modulation."""
    block = [(3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden), (6 * hidden, hidden)]
    return block * depth


@pytest.mark.parametrize(("hidden", "depth"), [(64, 3), (384, 12), (768, 12)])
def test_workspace_is_at_most_three_times_the_largest_bucket(hidden, depth):
    body = f"""
      %u, %m1 = kaon.momentum lerp %g, %m, %mu nesterov : T
      %o = kaon.newton_schulz %u coefficients {KELLER_JORDAN} normalize max epsilon 0.0 scale 1.0 : T
      %w1 = kaon.apply decoupled %w, %o step_size %lr decay %lr : T
      return %w1, %m1 : T, T"""
    functions = []
    for rows, columns in dict.fromkeys(dit(hidden, 1)):
        text = update_text(rows, columns, "f32", body, {"m": "T"}, ("lr", "mu"))
        functions.append(
            text[text.index("func.func") : text.index("kaon.program")].replace("@f(", f"@f_{rows}x{columns}(")
        )
    parameters = [
        f'kaon.parameter @f_{rows}x{columns} "{i}" scalars 0 phase 0'
        for i, (rows, columns) in enumerate(dit(hidden, depth))
    ]
    module = _C.parse(
        f"module attributes {{{CPU}}} {{ {' '.join(functions)} kaon.program @step {{ {' '.join(parameters)} }} }}"
    )
    module.run_pipeline("kaon-cpu-pipeline")
    text = str(module)
    slots = {
        name: int(workspace) for name, workspace in re.findall(r"func\.func @(f_\w+)\(.*kaon\.workspace = (\d+)", text)
    }
    workspaces, buckets = [], []
    for name, members, concurrent in re.findall(r"kaon\.bucket @(f_\w+) parameters \[(.*?)\] concurrent (\d+)", text):
        rows, columns = map(int, name.removeprefix("f_").split("x"))
        workspaces.append(int(concurrent) * slots[name])
        buckets.append(len(members.split(",")) * rows * columns * 4)
    assert len(buckets) == 5 and min(slots.values()) > 0
    assert max(workspaces) <= 3 * max(buckets)


EXTREME = [1e-200, 1e-30, 1e200]


@pytest.mark.parametrize("size", [0.0, 1e-100, 1.0])
@pytest.mark.parametrize("first", EXTREME)
@pytest.mark.parametrize("second", EXTREME)
@pytest.mark.parametrize("run_time", [False, True])
def test_scalings_of_products_neither_overflow_nor_vanish_together(first, second, size, run_time):
    """Two factors that are harmless one after the other are not multiplied to one that is not."""
    constants = f"%a = arith.constant {first:.1e} : f64\n%b = arith.constant {second:.1e} : f64\n"
    body = f"""
      {"" if run_time else constants}
      %p = kaon.matmul %g, %g transpose_b : (T, T) -> T
      %as = tensor.splat %a : T
      %bs = tensor.splat %b : T
      %q = arith.mulf %p, %as : T
      %r = arith.mulf %q, %bs : T
      %s = arith.addf %r, %g : T
      %t = arith.mulf %s, %bs : T
      %w1 = arith.subf %w, %t : T
      return %w1 : T"""
    text = update_text(3, 3, "f64", body, scalars=("a", "b") if run_time else ())
    scalars = [first, second] if run_time else []

    def inputs() -> list[np.ndarray]:
        return [np.ones((3, 3)), np.full((3, 3), size)]

    with np.errstate(over="ignore", invalid="ignore"):
        ((expected,),) = run(text, None, 1, inputs, scalars)
        for stage in STAGES:
            ((found,),) = run(text, stage, 1, inputs, scalars)
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=stage)


def test_an_edited_plan_is_not_built_from_wrong_buffers():
    """A slip in the place of one value of a scheduled module is refused when the step plan is made."""
    body = """
      %x = kaon.normalize %g along all max epsilon 1.0e-12 scale 1.0 : T
      %p = kaon.matmul %x, %x transpose_b : (T, T) -> T
      %q = kaon.matmul %p, %x : (T, T) -> T
      %w1 = arith.subf %w, %q : T
      return %w1 : T"""
    module = _C.parse(update_text(8, 8, "f32", body))
    module.run_pipeline("kaon-cpu-pipeline")
    text = str(module)
    _C.build_plan(_C.parse(text))
    offsets = sorted({int(offset) for offset in re.findall(r"#kaon.buffer<workspace, (\d+)>", text)})
    assert len(offsets) > 2
    refused = 0
    for match in re.finditer(r"#kaon.buffer<workspace, (\d+)>", text):
        for offset in offsets:
            edited = f"{text[: match.start(1)]}{offset}{text[match.end(1) :]}"
            try:
                _C.build_plan(_C.parse(edited))
            except _C.CompileError as error:
                assert re.search("overwritten|overwrites|within the workspace|view|same memory|lives", str(error))
                refused += 1
    assert refused > len(offsets)


def test_a_plan_needs_the_packed_sizes_of_its_target():
    """Slivers that are too small for the tile of the target would be written past their end."""
    module = _C.parse(
        update_text(
            4,
            6,
            "f32",
            "%p = kaon.matmul %w, %g transpose_b : (T, T) -> tensor<4x4xf32>\n"
            "%w1 = kaon.matmul %p, %g : (tensor<4x4xf32>, T) -> T\nreturn %w1 : T",
        )
    )
    module.run_pipeline("kaon-cpu-pipeline")
    text = str(module)
    _C.build_plan(_C.parse(text))
    # mr = 6 instead of 4: one sliver of 6 rows and 8 columns.
    assert "tensor<1x48xf32>" in text
    with pytest.raises(_C.CompileError, match=r"expects slivers of type 'tensor<1x48xf32>' for the module's kaon.cpu"):
        _C.build_plan(_C.parse(text.replace("tensor<1x48xf32>", "tensor<1x32xf32>")))
