"""``python -m kaon``: doctor, explain, compile, cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from kaon import doctor, driver, explain, knobs
from kaon.__main__ import main
from nvrtc_tools import find_library

UPDATES = """
import kaon
import kaon.language as kl

NOT_AN_UPDATE = 3

@kaon.update
def periodic(w: kl.param, g: kl.grad, m: kl.state, lr: kl.scalar, *, period: kl.constexpr = 3, steps: kl.constexpr = 2):
    u, m = kl.momentum(g, m, 0.95)
    if kl.every(period):
        o = kl.newton_schulz(u, steps=steps)
    else:
        o = kl.row_normalize(u)
    return kl.apply(w, o, lr), m

@kaon.update
def wrong(w: kl.param, g: kl.grad, lr: kl.scalar):
    return w - lr * (g @ g)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    knobs.cache.directory = tmp_path / "cache"
    path = tmp_path / "updates_of_test.py"
    path.write_text(UPDATES)
    return str(path)


def test_explain_shows_the_whole_way(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = driver.totals()
    assert main(["explain", f"{file}:periodic", "--shape", "24x40"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "periodic on 24x40, parameter f32, gradient f32, for the host's processor, products of float32\n"
    )
    places = [
        out.index(text)
        for text in ("def periodic(", "kaon.newton_schulz", "kaon.matmul", "steps with step mod 3 = 0", "workspace")
    ]
    assert places == sorted(places)
    assert "FLOP" in out and "matmul_symmetric_f32" in out
    assert driver.totals() == before, "explaining compiles nothing"


def test_explain_options(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", f"{file}:periodic", "--shape", "4x6", "--dtype", "f64", "--constexpr", "period=1"]
    assert main([*command, "--show", "plan"]) == 0
    out = capsys.readouterr().out
    assert "every step:" in out and "def periodic" not in out and "xf64" in out
    assert main([*command, "--show", "kernels,assembly"]) == 0
    out = capsys.readouterr().out
    assert "==== kernel matmul" in out and "==== assembly of " in out and "ret" in out


def test_explain_for_a_gpu(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", f"{file}:periodic", "--shape", "24x40", "--arch", "sm_90a"]
    assert main([*command, "--show", "kernels,cuda,plan"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("periodic on 24x40, parameter f32, gradient f32, for sm_90a, products of bfloat16\n")
    assert "==== CUDA C++ of kernel_" in out and "==== CUDA C++ of check_finite_f32" in out and "KAON_KERNEL(" in out
    assert "blocks x threads" in out and "matmul_bf16" in out
    assert main([*command, "--product-dtype", "float16", "--show", "plan"]) == 0
    out = capsys.readouterr().out
    assert ", for sm_90a, products of float16\n" in out and "matmul_f16" in out and "bf16" not in out
    assert main([*command, "--show", "llvm"]) == 1
    assert "the cuda target has no section llvm" in capsys.readouterr().err
    assert main([*command[:-2], "--show", "cuda,ptx"]) == 1
    assert "the cpu target has no section cuda, ptx" in capsys.readouterr().err
    assert main([*command[:-2], "--product-dtype", "float16"]) == 1
    assert "--product-dtype float16 expects --arch with a GPU; on the CPU products are" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--product-dtype", "float32"])
    assert "invalid choice: 'float32'" in capsys.readouterr().err


@pytest.mark.skipif(find_library() is None, reason="no NVRTC: the nvidia-cuda-nvrtc wheel is not installed")
def test_explain_shows_what_nvrtc_makes(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", f"{file}:periodic", "--shape", "24x40", "--arch", "sm_80"]
    assert main([*command, "--constexpr", "period=1", "--show", "ptx,log"]) == 0
    out = capsys.readouterr().out
    assert ".target sm_80" in out and "mma.sync" in out and "registers" in out


def test_the_work_of_a_plan_is_that_of_the_formula(file: str) -> None:
    """Two steps of a wide s x l matrix take T (4 l s^2 + 2 s^3) FLOP, half of the two symmetric products saved."""
    text = explain.explain(explain.find_update(f"{file}:periodic"), (48, 96), sections=("plan",))
    short, long = 48, 96
    dense = 2 * (4 * long * short**2 + 2 * short**3)
    (line,) = (line for line in text.splitlines() if "launches" in line and "MFLOP" in line and "kFLOP" not in line)
    millions = float(line.split(" MFLOP")[0].rsplit(" ", 1)[1])
    assert 0.6 * dense < millions * 1e6 < 1.15 * dense


def test_the_check_of_gradients_is_in_the_plan(file: str) -> None:
    text = explain.explain(explain.find_update(f"{file}:periodic"), (48, 96), sections=("plan",))
    assert 'check_finite_f32: 1 launch, 18.4 kB read before every step, unless nonfinite="propagate"' in text


def test_repeated_launches_are_folded(file: str) -> None:
    update = explain.find_update(f"{file}:periodic")
    plan = explain.explain(update, (24, 40), sections=("plan",), constexprs={"steps": 7})
    symmetric = [line for line in plan.splitlines() if line.strip().startswith("matmul_symmetric_f32")]
    assert len(symmetric) < 7 and symmetric[0].endswith("  |") and "| 7 times\n" in plan
    lines = ["a", "b", "c", "b", "c", "b", "c", "d", "d", "a"]
    folded = list(explain.fold(lines))
    assert folded == [(["a"], 1), (["b", "c"], 3), (["d"], 2), (["a"], 1)]
    assert [line for block, count in folded for line in block * count] == lines


def test_explain_takes_one_dimension(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{file}:periodic", "--shape", "48", "--show", "plan"]) == 0
    assert capsys.readouterr().out.startswith("periodic on 1x48,")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{}:missing", "--shape", "4x6"], "expects an update named 'missing', but its updates are: periodic, wrong"),
        (["{}:NOT_AN_UPDATE", "--shape", "4x6"], "expects an update named 'NOT_AN_UPDATE'"),
        (["nowhere.py:u", "--shape", "4x6"], "expects a Python file, but 'nowhere.py' is none"),
        (["no_such_module_at_all:u", "--shape", "4x6"], "cannot import 'no_such_module_at_all'"),
        (["periodic", "--shape", "4x6"], "expects module:update, but got 'periodic'"),
        (["{}:periodic", "--shape", "4x"], "expects a shape such as 1152x4608 or 1152, but got '4x'"),
        (["{}:periodic", "--shape", "0x6"], "expects a shape such as 1152x4608 or 1152, but got '0x6'"),
        (["{}:periodic", "--shape", "4x6", "--constexpr", "period"], "expects name=value, but got 'period'"),
        (["{}:periodic", "--shape", "4x6", "--constexpr", "perod=2"], "no constexpr `perod`"),
        (["{}:periodic", "--shape", "4x6", "--show", "assembler"], "--show expects names out of"),
        (["{}:wrong", "--shape", "4x6"], "g @ g"),
    ],
)
def test_mistakes_take_one_message(
    file: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *(argument.format(file) for argument in arguments)]) == 1
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err
    assert captured.out == ""


def test_compile_fills_the_cache(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compile", f"{file}:periodic", "--shape", "4x6", "--shape", "6x4"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert " kernels compiled, 0 found in the cache" in first and not first.startswith("0 ")
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("0 kernels compiled, ")


def test_cache(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compile", f"{file}:periodic", "--shape", "4x6"])
    capsys.readouterr()
    assert main(["cache", "list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert f"{len(rows)} entries" in head and len(rows) > 1
    assert main(["cache", "clear"]) == 0
    assert f"removed {len(rows)} entries" in capsys.readouterr().out
    assert main(["cache"]) == 0
    assert "0 entries" in capsys.readouterr().out


def test_doctor_finds_this_machine_healthy(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    found = {line.split()[1]: line.split()[0] for line in out.split("\n\n")[0].splitlines()}
    for name in ("python", "numpy", "extension", "llvm", "host", "threads", "cache", "compiler"):
        assert found[name] == "works", out
    assert "relative error" in out and "KAON_CACHE_DIR" in out


def test_doctor_lists_misspelt_variables(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAON_DUPM", "1")
    monkeypatch.setenv("KAON_CUDA_DRIVER", "libkaon-nowhere.so.1")
    main(["doctor"])
    out = capsys.readouterr().out
    assert "KAON_DUPM has no effect: no such variable, did you mean KAON_DUMP?\n" in out
    (line,) = (line for line in out.splitlines() if line.startswith("absent cuda driver"))
    assert "'libkaon-nowhere.so.1': expects a library that can be opened" in line


def test_doctor_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise driver.DriverError("the compiled extension kaon._C cannot be loaded (no such file)")

    monkeypatch.setattr(driver, "runtime_extension", missing)
    knobs.cache.directory = Path("/proc/kaon")
    lines: list[str] = []
    assert not doctor.report(lines.append)
    text = "".join(lines)
    assert "broken extension" in text and "no such file" in text
    assert "absent cache" in text and "cannot make /proc/kaon" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "bogus"], "--arch expects a GPU such as sm_80, sm_90a or sm_100a, but got 'bogus'"),
        (["--arch", ""], "--arch expects a GPU such as sm_80, sm_90a or sm_100a, but got ''"),
        (["--arch", "sm_90a", "--dtype", "f64"], "--arch expects matrices of f32, bf16 or f16 for a GPU, but got f64"),
    ],
)
def test_explain_refuses_what_is_no_gpu(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["explain", "kaon.optim.updates:muon", "--shape", "8x8", *arguments]) == 1
    assert capsys.readouterr() == ("", f"kaon: {message}\n")


def test_a_main_loop_that_the_gpu_lacks_takes_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    knobs.cuda.main_loop = "wgmma"
    for command in (["explain"], ["compile", "-o", str(tmp_path / "package")]):
        assert main([*command, "kaon.optim.updates:muon", "--shape", "8x8", "--arch", "sm_80"]) == 1
        message = "kaon: KAON_MAIN_LOOP=wgmma expects the architecture sm_90a, but got sm_80\n"
        assert capsys.readouterr().err == message


def test_what_the_compiler_refuses_takes_one_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise driver.extension().CompileError("update.py:3:5: error: 'kaon.matmul' op expects something else")

    monkeypatch.setattr(driver, "compile_program", refuse)
    assert main(["compile", "kaon.optim.updates:muon", "--shape", "8x8"]) == 1
    assert capsys.readouterr().err == "kaon: update.py:3:5: error: 'kaon.matmul' op expects something else\n"
