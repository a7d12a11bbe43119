"""The extension ``kaon._C``: what it links and exports, its modules, and that no input brings the process down."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

import pytest
from kaon import _C

MODULE = """
func.func @update(%w: tensor<4x6xf32> {kaon.role = #kaon.role<param>, kaon.name = "w"},
                  %g: tensor<4x6xf32> {kaon.role = #kaon.role<grad>, kaon.name = "g"},
                  %m: tensor<4x1xf32> {kaon.role = #kaon.role<state>, kaon.name = "m", kaon.init = 0.5 : f64},
                  %lr: f64 {kaon.role = #kaon.role<scalar>, kaon.name = "lr"},
                  %step: i64 {kaon.role = #kaon.role<step>, kaon.name = "step"})
    -> (tensor<4x6xf32>, tensor<4x1xf32>) attributes {kaon.update} {
  %unused = kaon.norm %g along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %c = arith.constant dense<[[1.0, 2.0]]> : tensor<1x2xf32>
  %r = kaon.every %step period 3 phase 1 -> tensor<4x6xf32> {
    %o = kaon.newton_schulz %g coefficients [1.5, -0.5, 0.0] normalize max epsilon 0.0 scale 1.0 : tensor<4x6xf32>
    kaon.yield %o : tensor<4x6xf32>
  } else {
    kaon.yield %g : tensor<4x6xf32>
  }
  %w1 = kaon.apply decoupled %w, %r step_size %lr decay %lr : tensor<4x6xf32> loc("user.py":7:4)
  return %w1, %m : tensor<4x6xf32>, tensor<4x1xf32>
}

kaon.program @step {
  kaon.parameter @update "layer.weight" scalars 0 phase 2
}
"""


def operations(module: _C.Module) -> list[_C.Operation]:
    return module.to_python().regions[0].blocks[0].operations


def run_python(code: str) -> str:
    """Runs a fresh interpreter; its output. Fails with the child's stderr, also when a signal ended it."""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, f"status {child.returncode}: {child.stderr}"
    return child.stdout


# ---- linking


def test_exports_one_symbol() -> None:
    symbols = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=just-symbols", _C.__file__],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert symbols == ["PyInit__C"]


def test_links_one_mlir_and_one_llvm() -> None:
    libraries = subprocess.run(["ldd", _C.__file__], check=True, capture_output=True, text=True).stdout
    names = [line.split()[0] for line in libraries.splitlines()]
    assert [name for name in names if "MLIR" in name] == ["libMLIR.so.22.1"]
    assert [name for name in names if "LLVM" in name] == ["libLLVM.so.22.1"]
    # A second, static MLIR inside the extension would bring this storage class along with its own copy of the code.
    undefined = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", _C.__file__], check=True, capture_output=True, text=True
    ).stdout
    assert "_ZN4mlir11MLIRContext" in undefined, "the context's code comes from the shared library"


@pytest.mark.parametrize(
    "order", [("kaon._C", "torch", "triton"), ("torch", "triton", "kaon._C"), ("triton", "kaon._C", "torch")]
)
def test_lives_with_other_compilers(order: tuple[str, ...]) -> None:
    for name in order:
        pytest.importorskip(name.partition(".")[0])
    imports = "\n".join(f"import {name}" for name in order)
    output = run_python(
        f"{imports}\n"
        "from kaon import _C\n"
        f"module = _C.parse({MODULE!r})\n"
        "module.run_pipeline('canonicalize,cse')\n"
        "print('kaon.norm ' in str(module), float(torch.ones(3).sum()))"
    )
    assert output.split() == ["False", "3.0"]


def test_import_needs_neither_torch_nor_numpy() -> None:
    assert (
        run_python("import sys; from kaon import _C; print({'torch', 'numpy'} & set(sys.modules))").strip() == "set()"
    )


# ---- modules


def test_print_and_parse_again() -> None:
    module = _C.parse(MODULE, "a.mlir")
    again = _C.parse(str(module), "b.mlir")
    assert str(again) == str(module) == module.print()
    assert "user.py" not in str(module)
    assert 'loc("user.py":7:4)' in module.print(locations=True)
    assert 'loc("user.py":7:4)' in _C.parse(module.print(locations=True)).print(locations=True)


@pytest.mark.parametrize(
    "pipeline",
    [
        "canonicalize",
        "canonicalize{max-iterations=2 top-down=false}, cse",
        "builtin.module(canonicalize,cse)",
        "func.func(canonicalize,cse)",
        "cse,func.func(canonicalize)",
    ],
)
def test_pipelines(pipeline: str) -> None:
    module = _C.parse(MODULE)
    module.run_pipeline(pipeline)
    assert "kaon.norm " not in str(module)


def test_empty_pipeline_does_nothing() -> None:
    module = _C.parse(MODULE)
    module.run_pipeline("")
    assert str(module) == str(_C.parse(MODULE))


def test_passes_on_functions_need_no_nesting() -> None:
    module = _C.parse(MODULE)
    module.run_pipeline("kaon-expand-updates,canonicalize")
    assert "kaon.apply" not in str(module)
    again = _C.parse(MODULE)
    again.run_pipeline("func.func(kaon-expand-updates,canonicalize)")
    assert str(again) == str(module)


def test_clone_is_independent_and_outlives_its_source() -> None:
    module = _C.parse(MODULE)
    clone = module.clone()
    clone.run_pipeline("canonicalize")
    assert "kaon.norm " in str(module)
    del module
    assert "kaon.norm " not in str(clone)
    clone.run_pipeline("cse")


def test_cuda_target() -> None:
    module = _C.parse(MODULE)
    module.set_cuda_target({})
    assert "#kaon.cuda_target<half = bf16, shared_bytes = 166912>" in module.print()
    module.set_cuda_target({"half": "f16", "shared_bytes": 232448})
    assert "#kaon.cuda_target<half = f16, shared_bytes = 232448>" in module.print()


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ({"half": "f32"}, ValueError, "expects half to be 'bf16' or 'f16', but got 'f32'"),
        ({"main_loop": "fma"}, ValueError, "expects main_loop to be 'mma' or 'wgmma', but got 'fma'"),
        ({"warps": 32}, ValueError, "expects 'half', 'shared_bytes' and 'main_loop', but got 'warps'"),
        ({"shared_bytes": 1}, _C.CompileError, "expects shared_bytes to be from 49152 to 1048576, but got 1"),
    ],
)
def test_wrong_cuda_targets(target: dict[str, object], error: type[Exception], message: str) -> None:
    module = _C.parse(MODULE)
    with pytest.raises(error, match=message):
        module.set_cuda_target(target)
    assert "kaon.cuda" not in module.print()


def test_a_module_has_one_target() -> None:
    module = _C.parse(MODULE)
    module.set_cpu_target(_C.host_target())
    with pytest.raises(_C.CompileError, match="but this one has a cpu target"):
        module.set_cuda_target({})


def test_contexts_live_side_by_side() -> None:
    first, second = _C.parse(MODULE), _C.parse(MODULE)
    first.run_pipeline("canonicalize")
    del first
    second.run_pipeline("canonicalize,cse")
    assert "kaon.apply" in str(second)


def test_threads() -> None:
    """Modules that share a context may be used from several threads, and errors stay with their thread."""
    module = _C.parse(MODULE)
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for _ in range(20):
                clone = module.clone()
                clone.run_pipeline("canonicalize,cse")
                assert len(operations(clone)) == 2
                with pytest.raises(_C.CompileError, match=f"thread{index}"):
                    _C.parse("func.func @f() { kaon.nope }", f"thread{index}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_introspection() -> None:
    update, program = operations(_C.parse(MODULE, "a.mlir"))
    assert update.name == "func.func"
    assert update.attributes["sym_name"] == "update"
    assert update.attributes["kaon.update"] is True
    assert update.attributes["arg_attrs"][2] == {"kaon.init": 0.5, "kaon.name": "m", "kaon.role": "state"}
    matrix, rows = ("tensor", (4, 6), "f32"), ("tensor", (4, 1), "f32")
    assert update.attributes["function_type"] == (
        "function",
        (matrix, matrix, rows, ("f64",), ("i64",)),
        (matrix, rows),
    )
    (body,) = update.regions[0].blocks
    assert body.argument_types == [matrix, matrix, rows, ("f64",), ("i64",)]
    w, g, m, lr, step = body.arguments
    norm, constant, every, apply, end = body.operations
    assert (norm.name, norm.operands, norm.attributes) == ("kaon.norm", [g], {"along": "all"})
    assert norm.result_types == [("tensor", (1, 1), "f32")]
    assert constant.attributes == {"value": [[1.0, 2.0]]}
    assert every.operands == [step]
    assert every.attributes == {"period": 3, "phase": 1}
    (newton_schulz, taken), (otherwise,) = (region.blocks[0].operations for region in every.regions)
    assert newton_schulz.attributes == {
        "coefficients": [1.5, -0.5, 0.0],
        "mode": "max",
        "epsilon": 0.0,
        "scale": 1.0,
    }
    assert taken.operands == newton_schulz.results
    assert otherwise.operands == [g]
    assert apply.operands == [w, every.results[0], lr, lr]
    assert apply.location == '"user.py":7:4'
    assert norm.location.startswith('"a.mlir":8:')
    assert end.operands == [apply.results[0], m]
    (parameter,) = program.regions[0].blocks[0].operations
    assert parameter.attributes == {"updates": ["update"], "name": "layer.weight", "scalars": 0, "phase": 2}


def test_introspection_of_attributes_and_unknown_sizes() -> None:
    module = _C.parse("""
        module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 256, mr = 6, nr = 16, kc = 256, block = 192>} {
          func.func private @k(%x: tensor<?x1xf32>, %c: i1) -> tensor<?x1xf32> attributes {
              test.all = [1 : i64, true, false, "a", 2.5 : f32, dense<[1, -2]> : tensor<2xi32>,
                          dense<true> : tensor<1xi1>, {a = unit, b = @s}, array<i64: 1, 2>, f32, #kaon.buffer<state, 1>,
                          #kaon.schedule<rows>]} {
            return %x : tensor<?x1xf32>
          }
        }""")
    root = module.to_python()
    assert root.attributes == {
        "kaon.cpu": "#kaon.cpu_target<vector_bits = 256, mr = 6, nr = 16, kc = 256, block = 192>"
    }
    (function,) = root.regions[0].blocks[0].operations
    assert function.regions[0].blocks[0].argument_types == [("tensor", (None, 1), "f32"), ("i1",)]
    assert function.attributes["test.all"] == [
        1,
        True,
        False,
        "a",
        2.5,
        [1, -2],
        [True],
        {"a": True, "b": "s"},
        [1, 2],
        ("f32",),
        ("state", 1),
        "rows",
    ]


def test_introspection_survives_the_garbage_collector() -> None:
    """Making objects runs the collector, which destroys clones of the module that is looked at."""
    code = f"""
import gc
from kaon import _C

module = _C.parse({MODULE!r})
gc.set_threshold(50)
for _ in range(300):
    clone = module.clone()
    cycle = [clone]
    cycle.append(cycle)
    del clone, cycle
    module.to_python()
print("done")
"""
    assert run_python(code) == "done\n"


def test_introspection_of_wide_integers() -> None:
    root = _C.parse("module attributes {test.wide = 170141183460469231731687303715884105727 : i128} {}").to_python()
    assert root.attributes["test.wide"] == "170141183460469231731687303715884105727 : i128"


def test_introspection_is_deterministic() -> None:
    assert _C.parse(MODULE).to_python() == _C.parse(MODULE).to_python()
    code = f"from kaon import _C; print(_C.parse({MODULE!r}).to_python())"
    assert run_python(code) == run_python(code)


# ---- errors


def test_error_carries_its_diagnostics() -> None:
    text = """
func.func private @f()
kaon.program @p {
  kaon.parameter @f "a" scalars 0 phase 0
}"""
    with pytest.raises(_C.CompileError) as caught:
        _C.parse(text, "program.mlir")
    ((severity, location, message, notes),) = caught.value.diagnostics
    assert severity == "error"
    assert location == '"program.mlir":4:3'
    assert message == "'kaon.parameter' op refers to @f, which is not an update"
    assert notes == ['"program.mlir":2:1: the function has no kaon.update']
    assert str(caught.value) == caught.value.message
    for part in ("cannot parse program.mlir", location, message, *notes):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%0 = kaon.unknown %x : tensor<4x6xf32>", "custom op 'kaon.unknown' is unknown"),
        (
            "%0 = kaon.matmul %x, %x : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>",
            "expects operands whose inner dimensions agree, but got 4x6 and 4x6",
        ),
        ('"kaon.matmul"() : () -> ()', "'kaon.matmul' op requires one result"),
        (
            '%0 = "kaon.norm"(%x) {along = 7 : i32} : (tensor<4x6xf32>) -> tensor<4x1xf32>',
            "attribute 'along' failed to satisfy constraint",
        ),
        ('%0 = "kaon.norm"(%x) : (tensor<4x6xf32>) -> tensor<4x1xf32>', "requires attribute 'along'"),
        ("%0 = kaon.norm %y along row : tensor<4x6xf32> -> tensor<4x1xf32>", "use of undeclared SSA value name"),
        ("%0 = kaon.norm %x along row : tensor<4x6xf32", "expected"),
    ],
)
def test_invalid_modules(body: str, message: str) -> None:
    with pytest.raises(_C.CompileError, match=r"bad\.mlir") as caught:
        _C.parse(f"func.func @f(%x: tensor<4x6xf32>) {{\n  {body}\n  return\n}}", "bad.mlir")
    assert message in str(caught.value)


def test_empty_text_is_an_empty_module() -> None:
    assert operations(_C.parse("")) == []


@pytest.mark.parametrize("seed", range(4))
def test_garbage(seed: int) -> None:
    generator = random.Random(seed)
    alphabet = [chr(code) for code in range(128)] + ["kaon.norm ", "%x", "tensor<", "func.func @f("]
    for size in (1, 100, 10_000, 300_000):
        with pytest.raises(_C.CompileError, match="cannot parse"):
            _C.parse("".join(generator.choices(alphabet, k=size)))


def test_a_megabyte_of_words() -> None:
    with pytest.raises(_C.CompileError, match="custom op 'garbage' is unknown"):
        _C.parse("garbage " * 131_072)


def test_mutated_modules() -> None:
    """Every module with a piece cut out or doubled either parses or is refused."""
    generator = random.Random(0)
    refused = 0
    for _ in range(300):
        start, end = sorted(generator.choices(range(len(MODULE)), k=2))
        end = min(end, start + 40)
        text = MODULE[:start] + MODULE[start:end] * generator.choice([0, 2]) + MODULE[end:]
        try:
            _C.parse(text).run_pipeline("canonicalize")
        except _C.CompileError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("start", "bracket"),
    [
        ("module attributes {a = ", "["),
        ("module attributes {a = ", "{a = "),
        ("", "module {"),
        ("func.func private @f(", "tuple<"),
        ("func.func private @f(", "("),
    ],
)
def test_deep_nesting_is_refused(start: str, bracket: str) -> None:
    """MLIR's parser would overflow the stack, hence the child process."""
    output = run_python(
        "from kaon import _C\n"
        "try:\n"
        f"    _C.parse('\\n' + {start!r} + {bracket!r} * 300_000, 'deep.mlir')\n"
        "except _C.CompileError as error:\n"
        "    print(error)"
    )
    assert output.strip() == (
        "cannot parse deep.mlir: expects brackets nested at most 256 levels, but line 2 goes deeper"
    )


@pytest.mark.parametrize("call", ["_C.emit_cuda(text)", "_C.compile_kernel(text, _C.host_target(), 0)"])
def test_deep_nesting_of_a_kernel_is_refused(call: str) -> None:
    """Whoever edits a kernel and feeds it back gets the same answer."""
    output = run_python(
        "from kaon import _C\n"
        "text = '\\n' + 'module {' * 300_000\n"
        "try:\n"
        f"    {call}\n"
        "except _C.CompileError as error:\n"
        "    print(error)"
    )
    assert output.strip() == "cannot parse a kernel: expects brackets nested at most 256 levels, but line 2 goes deeper"


def test_brackets_in_strings_and_comments_do_not_nest() -> None:
    brackets = "([{<" * 200
    module = _C.parse(f'// {brackets}\nmodule attributes {{test.a = "{brackets}\\"{brackets}"}} {{ }} // {brackets}')
    assert brackets in str(module)


@pytest.mark.parametrize(
    "pipeline", ["no-such-pass", "cse,", "canonicalize(", "canonicalize{no-such-option=1}", "func.func()x"]
)
def test_invalid_pipelines(pipeline: str) -> None:
    module = _C.parse(MODULE)
    with pytest.raises(_C.CompileError) as caught:
        module.run_pipeline(pipeline)
    assert f"cannot parse pass pipeline '{pipeline}'" in str(caught.value)
    assert "kaon.norm " in str(module), "the module is as before"


def test_failing_pass_names_the_reason() -> None:
    parameter = 'kaon.parameter @update "layer.weight" scalars 0 phase 2'
    module = _C.parse(MODULE.replace(parameter, f"{parameter}\n  {parameter}"), "twice.mlir")
    with pytest.raises(_C.CompileError, match="pass pipeline 'kaon-verify-program' failed") as caught:
        module.run_pipeline("kaon-verify-program")
    ((severity, location, message, notes),) = caught.value.diagnostics
    assert severity == "error"
    assert location.startswith('"twice.mlir":')
    assert 'expects a name of its own, but "layer.weight" is taken' in message
    assert len(notes) == 1
