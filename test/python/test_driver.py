"""The driver: what is compiled and what is reused, dumps, overrides, faults of the cache, the interpreted program."""

from __future__ import annotations

import itertools
import json
import linecache
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kaon.language as kl
import numpy as np
import pytest
from kaon import _C, cache, cpu_target, driver, extension, knobs, stages, target, update
from kaon.cpu_target import KernelBinary
from kaon.driver import MatrixEntry
from kaon.package import building, machine

Array = np.ndarray[Any, Any]


@update
def tracked(
    w: kl.param,
    g: kl.grad,
    m: kl.state,
    lr: kl.scalar,
    mu: kl.scalar = 0.9,
    *,
    period: kl.constexpr = 3,
    steps: kl.constexpr = 2,
):
    u, m = kl.momentum(g, m, mu)
    if kl.every(period):  # noqa: SIM108 - the form the language documents
        o = kl.newton_schulz(u, steps=steps, epsilon=1e-7)
    else:
        o = kl.row_normalize(u)
    w = kl.apply(w, o, lr, weight_decay=0.1)
    return w, m


@update
def descent(w: kl.param, g: kl.grad, lr: kl.scalar):
    return w - lr * g


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path) -> Path:
    """Each test starts with an empty cache directory of its own."""
    knobs.cache.directory = tmp_path / "cache"
    return tmp_path / "cache"


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Matrix:
    """The memory of one matrix: parameter, gradient and states in rows of ``cols + padding`` elements."""

    def __init__(self, entry: MatrixEntry, seed: int = 0, padding: int = 0):
        generator = np.random.default_rng(seed)
        dtypes = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
        storage = [entry.param_dtype, entry.grad_dtype]
        storage += ["f64" if entry.param_dtype == "f64" else "f32"] * len(entry.update.signature.states)
        self.cols = entry.cols
        self.arrays: list[Array] = []
        for index, dtype in enumerate(storage):
            values = generator.standard_normal((entry.rows, entry.cols + padding)) if index < 2 else 0.0
            self.arrays.append(np.full((entry.rows, entry.cols + padding), values, dtypes[dtype]))

    def addresses(self) -> list[int]:
        return [number for array in self.arrays for number in (array.ctypes.data, array.shape[1])]

    def values(self) -> list[Array]:
        return [array[:, : self.cols] for array in self.arrays]


def run(program: Any, entries: list[MatrixEntry], steps: int = 4, lr: float = 0.1) -> list[Array]:
    """Step ``program`` from the same start and return every parameter."""
    matrices = [Matrix(entry, seed) for seed, entry in enumerate(entries)]
    addresses = [number for matrix in matrices for number in matrix.addresses()]
    scalars = [[lr, 0.9][: len(entries[0].update.signature.scalars)]]
    for step in range(1, steps + 1):
        assert program.step(step, addresses, scalars, True) == 0
    return [matrix.values()[0].copy() for matrix in matrices]


def same(a: list[Array], b: list[Array]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


SHAPES = [(6, 10), (10, 6), (6, 10), (1, 7), (16, 16)]
ENTRIES = [MatrixEntry(tracked, *shape, name=f"layer{index}") for index, shape in enumerate(SHAPES)]


# ---- what is compiled, and what is reused


def test_a_warm_start_compiles_nothing_and_gives_the_same_bits() -> None:
    cold = driver.compile_program(ENTRIES, threads=2)
    warm = driver.compile_program(ENTRIES, threads=2)
    assert cold.statistics.programs_lowered == 1 and cold.statistics.kernels_compiled > 0
    assert (warm.statistics.programs_loaded, warm.statistics.programs_lowered) == (1, 0)
    assert (warm.statistics.kernels_compiled, warm.statistics.kernels_loaded) == (
        0,
        cold.statistics.kernels_compiled,
    )
    knobs.cache.enabled = False
    fresh = driver.compile_program(ENTRIES, threads=2)
    assert fresh.statistics.kernels_compiled == cold.statistics.kernels_compiled
    results = [run(program, ENTRIES) for program in (cold, warm, fresh)]
    assert same(results[0], results[1]) and same(results[0], results[2])


def test_bits_do_not_depend_on_threads_or_buckets() -> None:
    entries = [MatrixEntry(tracked, *shape) for shape in [(70, 130), (130, 70), (70, 130), (70, 130), (1, 7)]]
    together = [run(driver.compile_program(entries, threads), entries) for threads in (1, 2, 4)]
    assert same(together[0], together[1]) and same(together[0], together[2])
    for index, entry in enumerate(entries):
        alone = Matrix(entry, index)
        program = driver.compile_program([entry], threads=2)
        for step in range(1, 5):
            program.step(step, alone.addresses(), [[0.1, 0.9]], True)
        assert np.array_equal(alone.values()[0], together[0][index])


@pytest.mark.skipif(
    not {"+avx2", "+fma"} <= set(driver.host_target()["features"].split(",")), reason="needs a processor with AVX2"
)
def test_bits_do_not_depend_on_the_width_of_vectors() -> None:
    shapes = [(70, 130), (130, 70), (1, 300), (300, 1), (33, 33)]
    entries = [MatrixEntry(tracked, *shape, dtype, dtype) for shape in shapes for dtype in ("f32", "f64")]
    results = []
    for processor in (None, _C.cpu_target("x86-64-v3", "+avx2,+fma")):
        results.append(run(driver.compile_program(entries, target=driver.CpuTarget(2, processor)), entries))
    assert same(*results)


def test_equal_specialisations_share_one_function() -> None:
    entries = [
        MatrixEntry(tracked, 6, 10, name="a"),
        MatrixEntry(tracked, 6, 10, constexprs={"period": 3}, name="default spelt out"),
        MatrixEntry(tracked, 6, 10, constexprs={"period": 2}, name="another period"),
        MatrixEntry(tracked, 10, 6, name="another shape"),
        MatrixEntry(tracked, 6, 10, "f64", "f64", name="another type"),
        MatrixEntry(tracked, 6, 10, "f32", "bf16", name="another gradient"),
        MatrixEntry(descent, 6, 10, name="another update"),
    ]
    emitted = driver.emit(entries)
    assert emitted.symbols[0] == emitted.symbols[1]
    assert len(set(emitted.symbols)) == 6
    assert emitted.updates == (tracked, descent)
    assert emitted.text == driver.emit(entries).text


def test_b60_kernels_do_not_depend_on_shapes() -> None:
    shapes = [(rows, cols) for rows in (2, 16, 17, 40, 64) for cols in (3, 8, 24, 33, 65, 130)]
    many = driver.compile_program([MatrixEntry(tracked, *shape) for shape in shapes], threads=1)
    few = driver.compile_program([MatrixEntry(tracked, *shape) for shape in ((2, 24), (24, 2), (40, 40))], threads=1)
    assert many.statistics.kernels_compiled == len(set(many.kernel_names))
    # Wide, tall and square matrices are iterated differently; beyond that a shape makes no kernel.
    assert set(many.kernel_names) == set(few.kernel_names)
    assert few.statistics.kernels_compiled == 0


def test_b60_steps_and_hyperparameters_compile_nothing(cache_directory: Path) -> None:
    entries = [MatrixEntry(tracked, 6, 10)]
    program = driver.compile_program(entries, threads=1)
    before, files = driver.totals(), sorted(cache_directory.iterdir())
    matrix = Matrix(entries[0])
    for step in range(1, 51):
        program.step(step, matrix.addresses(), [[0.1 / step, 1 - 0.5 / step]], True)
    assert driver.totals() == before
    assert sorted(cache_directory.iterdir()) == files


def test_a_model_of_150_matrices_starts_warm_within_a_second() -> None:
    shapes = [(48, 144), (48, 48), (48, 192), (192, 48), (96, 16), (10, 48)]
    entries = [MatrixEntry(tracked, *shapes[index % 6], name=f"layer{index}") for index in range(150)]
    driver.compile_program(entries, threads=1)
    start = time.perf_counter()
    program = driver.compile_program(entries, threads=1)
    assert program.statistics.programs_loaded == 1
    assert time.perf_counter() - start < 1.0


def test_always_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    first = driver.compile_program(ENTRIES[:1])
    monkeypatch.setenv("KAON_ALWAYS_COMPILE", "1")
    second = driver.compile_program(ENTRIES[:1])
    assert second.statistics.kernels_compiled == first.statistics.kernels_compiled > 0
    assert second.statistics.programs_lowered == 1


def test_the_key_of_a_kernel_covers_text_processor_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    target = driver.CpuTarget()
    keys = {target.kernel_key("a"), target.kernel_key("b")}
    keys.add(driver.CpuTarget(processor={"features": "+another"}).kernel_key("a"))
    monkeypatch.setattr(cpu_target, "build_id", lambda: "another")
    keys.add(target.kernel_key("a"))
    monkeypatch.setattr(cpu_target, "OPTIMIZATION_LEVEL", 0)
    keys.add(target.kernel_key("a"))
    assert len(keys) == 5


def test_compiling_side_by_side_changes_no_byte(cache_directory: Path) -> None:
    contents = []
    for threads in (1, 4):
        knobs.compilation.threads = threads
        driver.compile_program(ENTRIES)
        contents.append({path.name: path.read_bytes() for path in cache_directory.iterdir()})
        shutil.rmtree(cache_directory)
    assert contents[0] == contents[1]


def test_compilers_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of the first two waits until the other one runs, too: of a program, and of a package."""
    compile_text = driver.CpuTarget.compile_text
    both = threading.Barrier(2, timeout=30)
    started = itertools.count()

    def compile_together(*arguments: Any) -> Any:
        if next(started) < 2:
            both.wait()
        return compile_text(*arguments)

    monkeypatch.setattr(driver.CpuTarget, "compile_text", compile_together)
    knobs.compilation.threads = 2
    assert driver.compile_program(ENTRIES).statistics.kernels_compiled >= 2
    if machine.cpu_levels():
        started = itertools.count()
        building.compile_update(tracked, building.Request(((5, 7),), ("host",)), tmp_path / "package")
        assert next(started) >= 2


def test_missing_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kaon._C", None)
    monkeypatch.delattr(sys.modules["kaon"], "_C")
    with pytest.raises(driver.DriverError, match=r"kaon\._C cannot be loaded .*python -m kaon doctor"):
        driver.compile_program(ENTRIES)


# ---- faults of the cache, with real kernels

PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
import warnings
warnings.simplefilter("error")
import test_driver
program = test_driver.driver.compile_program(test_driver.ENTRIES, threads=1)
results = test_driver.run(program, test_driver.ENTRIES)
print(hash(b"".join(result.tobytes() for result in results)))
"""


def test_b55_processes_compile_the_same_program(cache_directory: Path) -> None:
    environment = {
        **os.environ,
        "KAON_CACHE_DIR": str(cache_directory),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONHASHSEED": "0",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    assert len({out for out, _ in outputs}) == 1


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncate, empty, flip, make_directory])
def test_b56_damaged_entries_are_compiled_again(cache_directory: Path, damage: Callable[[Path], None]) -> None:
    expected = run(driver.compile_program(ENTRIES[:1]), ENTRIES[:1])
    for path in list(cache_directory.iterdir()):
        damage(path)
    cache._open_caches.clear()
    with pytest.warns(cache.CacheWarning, match="compiling it again") as caught:
        program = driver.compile_program(ENTRIES[:1])
    assert len(caught) == 1
    assert program.statistics.kernels_loaded == 0
    assert same(run(program, ENTRIES[:1]), expected)
    with no_warnings():
        repaired = driver.compile_program(ENTRIES[:1])
    assert repaired.statistics.kernels_compiled == 0 and repaired.statistics.programs_loaded == 1
    assert same(run(repaired, ENTRIES[:1]), expected)


@pytest.mark.parametrize(
    "content",
    [
        b"whole, but neither a kernel nor a program",
        KernelBinary("kernel", b"not an object file").encode(),
        json.dumps({"plan": 3}).encode(),
    ],
)
def test_b56_whole_entries_with_the_wrong_content(content: bytes) -> None:
    program = driver.compile_program(ENTRIES[:1])
    store = cache.open_cache()
    for entry in store.entries():
        store.store(entry.key, content)
    with pytest.warns(cache.CacheWarning, match="compiling it again"):
        again = driver.compile_program(ENTRIES[:1])
    assert again.statistics.kernels_compiled == program.statistics.kernels_compiled
    assert again.statistics.programs_lowered == 1
    assert same(run(again, ENTRIES[:1]), run(program, ENTRIES[:1]))


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\x02\0\0\0[]object", b"\xff\xff\xff\xff{}", b"\4\0\0\0null!"])
def test_kernel_binaries_refuse_anything_else(data: bytes) -> None:
    binary = KernelBinary("kernel", b"object")
    assert KernelBinary.decode(binary.encode()) == binary
    with pytest.raises(ValueError):
        KernelBinary.decode(data)


def test_b58_an_unusable_directory_costs_only_the_cache() -> None:
    knobs.cache.directory = Path("/proc/kaon")
    cache._open_caches.clear()
    with pytest.warns(cache.CacheWarning, match="KAON_CACHE_DIR") as caught:
        first = driver.compile_program(ENTRIES[:1])
        second = driver.compile_program(ENTRIES[:1])
    assert len(caught) == 1
    assert second.statistics.kernels_compiled == 0, "the second program finds them in memory"
    assert same(run(first, ENTRIES[:1]), run(second, ENTRIES[:1]))


# ---- dumps and overrides


def dump(tmp_path: Path, entries: list[MatrixEntry], stages: str = "1") -> Path:
    """Compile with dumps and return the program's directory."""
    with knobs.scope():
        knobs.debug.dump = stages
        knobs.debug.dump_directory = tmp_path / "dump"
        driver.compile_program(entries)
    (directory,) = (tmp_path / "dump").iterdir()
    return directory


def test_dumps_are_numbered_by_stage(tmp_path: Path) -> None:
    directory = dump(tmp_path, ENTRIES[:1])
    names = sorted(path.name for path in directory.iterdir())
    kernels = driver.compile_program(ENTRIES[:1]).kernel_names
    expected = ["00-dsl.py", "10-kaon.mlir", "20-simplified.mlir", "30-scheduled.mlir", "50-plan.json"]
    suffixes = {40: "mlir", 43: "ll", 45: "s"}
    expected += [f"{stage}-{kernel}.{suffixes[stage]}" for kernel in kernels for stage in suffixes]
    assert names == sorted(expected)
    assert "def tracked(" in (directory / "00-dsl.py").read_text()
    assert "kaon.newton_schulz" in (directory / "10-kaon.mlir").read_text()
    assert "kaon.newton_schulz" not in (directory / "20-simplified.mlir").read_text()
    assert "kaon.launch" in (directory / "30-scheduled.mlir").read_text()
    assert all(f"@{kernel}(" in (directory / f"43-{kernel}.ll").read_text() for kernel in kernels)
    assert all("ret" in (directory / f"45-{kernel}.s").read_text() for kernel in kernels)
    assert len(json.loads((directory / "50-plan.json").read_text())["phases"]) == 3


def test_some_stages_only(tmp_path: Path) -> None:
    directory = dump(tmp_path, ENTRIES[:1], "kaon,plan")
    assert sorted(path.name for path in directory.iterdir()) == ["10-kaon.mlir", "50-plan.json"]


def test_print_ir(capsys: pytest.CaptureFixture[str]) -> None:
    knobs.debug.print_ir = "simplified"
    driver.compile_program(ENTRIES[:1])
    printed = capsys.readouterr().err
    assert printed.startswith("// ---- 20-simplified.mlir\n") and "kaon.matmul" in printed
    assert "10-kaon" not in printed


def test_every_dumped_stage_can_be_fed_back_unchanged(tmp_path: Path) -> None:
    expected = run(driver.compile_program(ENTRIES[:1]), ENTRIES[:1])
    directory = dump(tmp_path, ENTRIES[:1])
    knobs.compilation.override_directory = directory
    with pytest.warns(driver.OverrideWarning, match=r"nothing so far: 00-dsl\.py, 43-.*\.ll, .*45-.*\.s$"):
        program = driver.compile_program(ENTRIES[:1])
    assert same(run(program, ENTRIES[:1]), expected)


def test_an_edited_stage_is_what_runs(tmp_path: Path) -> None:
    entries = [MatrixEntry(descent, 4, 6)]
    plain = driver.compile_program(entries)
    start = Matrix(entries[0]).values()
    assert np.allclose(run(plain, entries, steps=1)[0], start[0] - 0.1 * start[1])
    directory = dump(tmp_path, entries)
    for stage in ("10-kaon.mlir", "20-simplified.mlir"):
        override = tmp_path / stage
        override.mkdir()
        text = (directory / stage).read_text()
        assert text.count("arith.subf") == 1
        (override / stage).write_text(text.replace("arith.subf", "arith.addf"))
        knobs.compilation.override_directory = override
        edited = driver.compile_program(entries)
        assert np.allclose(run(edited, entries, steps=1)[0], start[0] + 0.1 * start[1]), stage
    (kernel,) = (path for path in directory.glob("40-*.mlir"))
    override = tmp_path / "kernel"
    (override / directory.name).mkdir(parents=True)
    (override / directory.name / kernel.name).write_text(kernel.read_text().replace("arith.subf", "arith.addf"))
    knobs.compilation.override_directory = override
    assert np.allclose(run(driver.compile_program(entries), entries, steps=1)[0], start[0] + 0.1 * start[1])
    del knobs.compilation.override_directory
    assert same(run(driver.compile_program(entries), entries), run(plain, entries)), "edits never reach the cache"


def test_a_wrong_edit_is_reported_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "20-simplified.mlir").write_text("func.func @broken(")
    knobs.compilation.override_directory = tmp_path
    with pytest.raises(_C.CompileError, match=r"20-simplified\.mlir"):
        driver.compile_program(ENTRIES[:1])


def test_a_wrong_kernel_or_plan_is_reported_with_its_file(tmp_path: Path) -> None:
    directory = dump(tmp_path, ENTRIES[:1])
    plan = (directory / "50-plan.json").read_text()
    kernel = next(directory.glob("40-*.mlir")).name
    wrong: dict[str, tuple[str, type[Exception], str]] = {
        "50-plan.json": (
            plan.replace('"version":4', '"version":99'),
            driver.DriverError,
            "version: expects 4, but got",
        ),
        kernel: ("func.func @broken(", _C.CompileError, ":1:"),
    }
    for name, (text, kind, message) in wrong.items():
        override = tmp_path / f"override-{name}"
        override.mkdir()
        (override / name).write_text(text)
        knobs.compilation.override_directory = override
        with pytest.raises(kind) as error:
            driver.compile_program(ENTRIES[:1])
        assert str(override / name) in str(error.value) and message in str(error.value)


def test_an_override_directory_that_is_not_there(tmp_path: Path) -> None:
    driver.compile_program(ENTRIES[:1])
    knobs.compilation.override_directory = tmp_path / "nowhere"
    with pytest.raises(
        driver.DriverError, match=r"KAON_OVERRIDE_DIR expects an existing directory, but got '/.*nowhere'"
    ):
        driver.compile_program(ENTRIES[:1])


def test_overrides_report_what_they_replace_and_what_they_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = dump(tmp_path, ENTRIES[:1])
    override = tmp_path / "override"
    for name in ("20-simplified.mlir", "21-misspelt.mlir", "program-000000000000/30-scheduled.mlir"):
        (override / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(directory / "20-simplified.mlir", override / name)
    knobs.compilation.override_directory = override
    with pytest.warns(driver.OverrideWarning) as caught:
        driver.compile_program(ENTRIES[:1])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"kaon: {override}/20-simplified.mlir replaces 20-simplified.mlir of {directory.name}"
    (warning,) = caught
    assert str(warning.message).endswith(
        "replaced nothing so far: 21-misspelt.mlir, program-000000000000/30-scheduled.mlir"
    )


def _defined_at_line(tmp_path: Path, lines: int) -> Any:
    """The same update in the same file, after ``lines`` more lines of comment."""
    path = tmp_path / "moving.py"
    text = "import kaon\nimport kaon.language as kl\n" + "# (comment\n" * lines
    text += "@kaon.update\ndef moved(w: kl.param, g: kl.grad, lr: kl.scalar):\n    return w - lr * g\n"
    path.write_text(text)
    linecache.checkcache()
    namespace: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace["moved"]


def test_a_line_above_an_update_neither_lowers_it_anew_nor_detaches_an_override(tmp_path: Path) -> None:
    first = [MatrixEntry(_defined_at_line(tmp_path, 0), 4, 6, name='a ") loc( name')]
    directory = dump(tmp_path, first)
    driver.compile_program(first)
    second = [MatrixEntry(_defined_at_line(tmp_path, 3), 4, 6, name='a ") loc( name')]
    assert driver.emit(first).text != driver.emit(second).text
    again = driver.compile_program(second)
    assert (again.statistics.programs_loaded, again.statistics.programs_lowered) == (1, 0)
    assert dump(tmp_path, second) == directory
    other = [MatrixEntry(_defined_at_line(tmp_path, 3), 4, 6, name="another name")]
    assert driver.compile_program(other).statistics.programs_loaded == 0


def test_without_locations_is_what_the_printer_leaves_out() -> None:
    text = driver.emit(ENTRIES).text
    bare = stages.without_locations(text)
    assert "loc(" in text and "loc(" not in bare
    assert str(_C.parse(bare)) == str(_C.parse(text))


def test_dumps_keep_the_places_of_the_source(tmp_path: Path) -> None:
    directory = dump(tmp_path, ENTRIES[:1])
    for name in ("10-kaon.mlir", "20-simplified.mlir", "30-scheduled.mlir"):
        text = (directory / name).read_text()
        assert "test_driver.py" in text
        assert _C.parse(text).print(locations=True) == text


def test_kaon_opt_makes_the_next_stage(tmp_path: Path) -> None:
    directory = dump(tmp_path, ENTRIES[:1])
    pipelines = [target.SIMPLIFY_PIPELINE, driver.CpuTarget.schedule_pipeline]
    names = ["10-kaon.mlir", "20-simplified.mlir", "30-scheduled.mlir"]
    for pipeline, before, after in zip(pipelines, names, names[1:], strict=False):
        module = _C.parse((directory / before).read_text())
        module.run_pipeline(pipeline)
        assert module.print(locations=True) == (directory / after).read_text()


def test_the_build_covers_the_libraries_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    extension.build_id.cache_clear()
    assert "libLLVM" in extension.build_id()
    monkeypatch.setattr(extension, "_loaded_libraries", lambda: "another")
    extension.build_id.cache_clear()
    assert extension.build_id().endswith("-another")
    monkeypatch.undo()
    extension.build_id.cache_clear()


# ---- the interpreted program


def test_the_interpreter_steps_the_same_memory() -> None:
    entries = [
        MatrixEntry(tracked, 6, 10, phase=0, name="a"),
        MatrixEntry(tracked, 10, 6, phase=2, name="b"),
        MatrixEntry(tracked, 6, 10, "f64", "f64", phase=1, name="c"),
    ]
    programs = [driver.compile_program(entries), driver.interpret_program(entries)]
    results = []
    for program in programs:
        matrices = [Matrix(entry, seed, padding=seed) for seed, entry in enumerate(entries)]
        addresses = [number for matrix in matrices for number in matrix.addresses()]
        for step in range(1, 8):
            assert program.step(step, addresses, [[0.1, 0.9]], True) == 0
        results.append([value.copy() for matrix in matrices for value in matrix.values()])
    for ours, oracle in zip(*results, strict=True):
        tolerance = 1e-12 if ours.dtype == np.float64 else 2e-5
        assert np.linalg.norm(ours - oracle) <= tolerance * np.linalg.norm(oracle)


@pytest.mark.parametrize("make", [driver.compile_program, driver.interpret_program])
def test_a_matrix_without_gradient_is_left_alone(make: Callable[[list[MatrixEntry]], Any]) -> None:
    entries = [MatrixEntry(descent, 4, 6), MatrixEntry(descent, 4, 6)]
    matrices = [Matrix(entry, seed) for seed, entry in enumerate(entries)]
    before = [matrix.values()[0].copy() for matrix in matrices]
    addresses = [number for matrix in matrices for number in matrix.addresses()]
    addresses[2] = 0
    assert make(entries).step(1, addresses, [[0.1]], True) == 0
    assert np.array_equal(matrices[0].values()[0], before[0])
    assert not np.array_equal(matrices[1].values()[0], before[1])


@pytest.mark.parametrize("make", [driver.compile_program, driver.interpret_program])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_stops_the_step(make: Callable[[list[MatrixEntry]], Any], value: float) -> None:
    entries = [MatrixEntry(tracked, 4, 6), MatrixEntry(tracked, 4, 6), MatrixEntry(tracked, 4, 6)]
    matrices = [Matrix(entry, seed) for seed, entry in enumerate(entries)]
    for poisoned in matrices[1:]:
        poisoned.values()[1][3, 5] = value
    before = [array.copy() for matrix in matrices for array in matrix.values()]
    addresses = [number for matrix in matrices for number in matrix.addresses()]
    program = make(entries)
    assert program.step(1, addresses, [[0.1, 0.9]], True) == 2
    after = [array for matrix in matrices for array in matrix.values()]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(after, before, strict=True))
    assert program.step(1, addresses, [[0.1, 0.9]], False) == 0
    assert not np.array_equal(matrices[0].values()[0], before[0])


def test_the_interpreter_counts_its_addresses() -> None:
    program = driver.interpret_program([MatrixEntry(descent, 4, 6)])
    with pytest.raises(ValueError, match="expects 4 addresses and strides, but got 6"):
        program.step(1, [0] * 6, [[0.1]], True)
