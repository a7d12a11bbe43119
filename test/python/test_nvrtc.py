"""Finding, opening and calling NVIDIA's run-time compiler: what works, and what each way of failing says.

Broken and fake libraries are built here by the host's compiler; tests of compilation use the real one and are skipped
where none is installed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import host_compiler
import pytest
from kaon import _C, knobs, nvrtc
from kaon.cache import Cache, CacheWarning
from nvrtc_tools import find_library

FAKE = Path(__file__).parent / "data" / "fake_nvrtc.c"
REAL = find_library()
needs_nvrtc = pytest.mark.skipif(REAL is None, reason="no NVRTC: the nvidia-cuda-nvrtc wheel is not installed")

KERNEL = 'extern "C" __global__ void kernel(int *p) { *p = 1; }'


def build(path: Path, source: Path | str, *options: str) -> Path:
    """A shared library of C ``source``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, str):
        text = path.with_suffix(".c")
        text.write_text(source)
        source = text
    # The name is the loader's key: without it, or with the real one's, a second library would not be loaded.
    command = [host_compiler.c(), "-shared", "-fPIC", "-w", f"-Wl,-soname,{path.parent.name}-{path.name}", *options]
    subprocess.run([*command, str(source), "-lpthread", "-o", str(path)], check=True)
    return path


def fake(folder: Path, version: str = "12.9", builtins: bool = True, *options: str) -> str:
    """An NVRTC of that version which compiles nothing; the path."""
    major, minor = version.split(".")
    path = build(folder / f"libnvrtc.so.{major}", FAKE, f"-DMAJOR={major}", f"-DMINOR={minor}", *options)
    if builtins:
        build(folder / f"libnvrtc-builtins.so.{version}", "int kaon_no_builtins;")
    return str(path)


def failure(*candidates: str) -> str:
    with pytest.raises(OSError) as caught:
        _C.Nvrtc(list(candidates))
    return str(caught.value)


# ---- opening


def test_every_candidate_is_named_with_its_finding(tmp_path: Path) -> None:
    text = tmp_path / "libnvrtc.so"
    text.write_text("not a library")
    other = build(tmp_path / "other" / "libnvrtc.so", "int nvrtcVersion(int *a, int *b) { return 0; }")
    message = failure(str(tmp_path / "none.so"), str(text), str(other))
    lines = message.splitlines()
    assert lines[0] == "nvrtc: expects a usable libnvrtc, but none of these is one:"
    assert lines[1].startswith(f"  {tmp_path}/none.so: cannot be opened (") and "No such file" in lines[1]
    assert lines[2].startswith(f"  {text}: cannot be opened (")
    assert lines[3].startswith(f"  {other}: is not NVRTC: it lacks nvrtcGetNumSupportedArchs, ")
    assert failure() == "nvrtc: expects a usable libnvrtc, but there is no candidate"


def test_an_old_version_is_refused(tmp_path: Path) -> None:
    message = failure(fake(tmp_path, "11.8"))
    assert message.endswith("is too old: expects NVRTC 12.0 or later, but got 11.8")


def test_missing_builtins_are_noticed_before_anything_is_compiled(tmp_path: Path) -> None:
    message = failure(fake(tmp_path, "12.9", builtins=False))
    assert f"libnvrtc.so.12: lacks its libnvrtc-builtins.so.12.9 ({tmp_path}/libnvrtc-builtins.so.12.9" in message


def test_the_first_usable_candidate_is_taken(tmp_path: Path) -> None:
    broken, first, second = (
        fake(tmp_path / "a", builtins=False),
        fake(tmp_path / "b", "12.8"),
        fake(tmp_path / "c"),
    )
    opened = _C.Nvrtc([broken, first, second])
    assert (opened.path, opened.version) == (first, (12, 8))


def test_blackwell_needs_a_newer_version_than_hopper(tmp_path: Path) -> None:
    old = _C.Nvrtc([fake(tmp_path, "12.6")])
    assert old.compile(KERNEL, "k.cu", "sm_90a").image == b"fake cubin\0"
    with pytest.raises(_C.CompileError) as caught:
        old.compile(KERNEL, "k.cu", "sm_100a")
    assert str(caught.value) == (
        f"cannot compile k.cu for sm_100a: sm_100a expects NVRTC 12.8 or later, but got 12.6 ({old.path})"
    )


@pytest.mark.parametrize("arch", ["", "sm_", "sm_9", "sm_90x", "90", "compute_", "sm_90a "])
def test_an_architecture_is_spelt_as_nvidia_does(tmp_path: Path, arch: str) -> None:
    with pytest.raises(_C.CompileError, match="expects an architecture such as sm_90a or compute_80, but got '"):
        _C.Nvrtc([fake(tmp_path)]).compile(KERNEL, "k.cu", arch)


def test_an_architecture_that_this_version_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(_C.CompileError, match="expects an architecture out of 80, 90, 100, but got 'sm_75'"):
        _C.Nvrtc([fake(tmp_path)]).compile(KERNEL, "k.cu", "sm_75")


def test_results_that_are_no_compile_errors_have_their_name(tmp_path: Path) -> None:
    opened = _C.Nvrtc([fake(tmp_path, "12.9", True, "-DRESULT=1")])
    with pytest.raises(_C.CompileError) as caught:
        opened.compile(KERNEL, "k.cu", "sm_80")
    assert str(caught.value).startswith("cannot compile k.cu for sm_80: NVRTC_ERROR_OUT_OF_MEMORY\nkernel.cu(3)")
    assert caught.value.diagnostics == [("error", "kernel.cu:3", "made by the fake NVRTC of the tests", [])]
    with pytest.raises(_C.CompileError, match=r"^cannot compile k\.cu for sm_80: NVRTC_ERROR_OUT_OF_MEMORY$"):
        opened.compile("", "k.cu", "sm_80")


def test_compilations_run_at_the_same_time(tmp_path: Path) -> None:
    """Each waits in the library until the other is there too: neither Python's lock nor one of ours keeps it out."""
    opened = _C.Nvrtc([fake(tmp_path, "12.9", True, "-DMEET=2")])
    with ThreadPoolExecutor(2) as pool:
        images = list(pool.map(lambda arch: opened.compile(KERNEL, "k.cu", arch).kind, ["sm_80", "compute_80"]))
    assert images == ["cubin", "ptx"]


# ---- finding


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which NVRTC is nowhere; returns a directory that stands for /usr/local."""
    for variable in ("KAON_NVRTC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(nvrtc, "_wheel_folders", lambda: iter(()))
    monkeypatch.setattr(nvrtc, "_SONAMES", ("libnvrtc-no-such.so",))
    monkeypatch.setattr(nvrtc, "_TOOLKITS", tmp_path / "local")
    monkeypatch.setattr(_C.Nvrtc, "find_loaded", staticmethod(lambda: ""))
    return tmp_path / "local"


def test_where_there_is_none_the_message_lists_every_place_and_a_remedy(bare: Path) -> None:
    with pytest.raises(nvrtc.NvrtcError) as caught:
        nvrtc.load()
    text = str(caught.value)
    assert "\n  libnvrtc-no-such.so: cannot be opened (" in text
    nowhere = ("loaded in this process", "wheels of this Python", "CUDA_HOME, CUDA_PATH", f"{bare}/cuda*")
    for place in nowhere:
        assert f"\n  {place}: nothing there" in text
    assert text.splitlines()[-1].startswith("install the wheel (`pip install nvidia-cuda-nvrtc`")


def test_an_explicit_path_is_the_only_one(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake(tmp_path / "mine")
    fake(bare / "cuda" / "lib64")
    monkeypatch.setenv("KAON_NVRTC", path)
    assert nvrtc.load().path == path
    monkeypatch.setenv("KAON_NVRTC", str(tmp_path / "gone.so"))
    with pytest.raises(nvrtc.NvrtcError, match=r"gone\.so: cannot be opened"):
        nvrtc.load()


def test_places_come_in_the_documented_order(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, home, path = (fake(tmp_path / name / "lib64") for name in ("wheel", "home", "path"))
    default = fake(bare / "cuda" / "lib64")
    older, newer = fake(bare / "cuda-12.4" / "lib64"), fake(bare / "cuda-12.6" / "lib64")
    fake(tmp_path / "wheel" / "lib64", "13.1")  # beside the wheel's other one, and newer
    monkeypatch.setattr(nvrtc, "_wheel_folders", lambda: iter([tmp_path / "wheel" / "lib64"]))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "path"))
    found = [path for place in nvrtc.places("/loaded/libnvrtc.so.13") for path in place.found]
    newest = str(tmp_path / "wheel" / "lib64" / "libnvrtc.so.13")
    expected = ["/loaded/libnvrtc.so.13", newest, wheel, home, path, "libnvrtc-no-such.so", default, newer, older]
    assert found == expected
    assert nvrtc.load().path == newest


@needs_nvrtc
def test_the_wheel_is_found_without_torch_and_one_in_the_process_goes_first() -> None:
    script = (
        "import ctypes, sys; from kaon import nvrtc, _C\n"
        "before = _C.Nvrtc.find_loaded()\n"
        f"ctypes.CDLL({str(REAL)!r})\n"
        "print(repr(before), _C.Nvrtc.find_loaded(), nvrtc.load().path, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["''", str(REAL), str(REAL), "False"]
    wheels = next(place for place in nvrtc.places("") if place.name == "wheels of this Python")
    assert wheels.found[0] == str(REAL)


def test_importing_kaon_looks_for_nothing() -> None:
    script = "import kaon, sys; print('kaon.nvrtc' in sys.modules); from kaon import _C; print(_C.Nvrtc.find_loaded())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


# ---- compiling


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


HEADERS = {"Constant.cuh": "constexpr int constant = 5;\n"}
USER = '#include "Constant.cuh"\n#line 12 "/home/user/my update.py"\n'


@needs_nvrtc
def test_cubin_ptx_and_log(cache: Cache) -> None:
    text = '#include "Constant.cuh"\nextern "C" __global__ void kernel(int *p) { *p = constant; }'
    machine = nvrtc.Compiler("sm_90a", cache, HEADERS).compile("kernel", text)
    assert machine.kind == "cubin" and machine.image.startswith(b"\x7fELF")
    assert ".target sm_90a" in machine.ptx
    assert machine.resources["kernel"].registers > 0 and machine.resources["kernel"].spill_bytes == 0
    fallback = nvrtc.Compiler(nvrtc.FALLBACK_ARCHITECTURE, cache, HEADERS).compile("kernel", text)
    assert fallback.kind == "ptx" and fallback.image.decode() == fallback.ptx and ".target sm_80" in fallback.ptx
    assert fallback.resources == {}


@needs_nvrtc
def test_an_error_has_the_line_of_the_user_s_python_and_the_log(cache: Cache) -> None:
    with pytest.raises(_C.CompileError) as caught:
        nvrtc.Compiler("sm_80", cache, HEADERS).compile("kernel", f"{USER}__global__ void kernel() {{ w; }}")
    error = caught.value
    assert str(error).startswith("cannot compile kernel.cu for sm_80: NVRTC_ERROR_COMPILATION\n")
    assert '/home/user/my update.py(12): error: identifier "w" is undefined' in str(error)
    assert error.diagnostics == [("error", "/home/user/my update.py:12", 'identifier "w" is undefined', [])]
    assert cache.statistics.stores == 0


@needs_nvrtc
def test_headers_in_memory_hide_files(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Constant.cuh").write_text("#error a file of the working directory\n")
    monkeypatch.chdir(tmp_path)
    nvrtc.Compiler("sm_80", cache, HEADERS).compile("kernel", f"{USER}{KERNEL}")


@needs_nvrtc
def test_a_compiled_kernel_comes_back_from_the_cache_whole(cache: Cache, tmp_path: Path) -> None:
    compiled = nvrtc.Compiler("sm_80", cache, HEADERS).compile("kernel", KERNEL)
    again = nvrtc.Compiler("sm_80", Cache(tmp_path / "cache"), HEADERS)
    assert again.load("kernel", KERNEL) == compiled
    assert nvrtc.Compiler("sm_90a", cache, HEADERS).load("kernel", KERNEL) is None
    assert nvrtc.Compiler("sm_80", cache, {}).load("kernel", KERNEL) is None
    assert again.load("kernel", KERNEL + "\n") is None
    assert again.load("kernel", f'#line 7 "elsewhere.py"\n{KERNEL}') == compiled, "lines change no code"


@needs_nvrtc
def test_the_cache_of_another_kernel_is_not_used(cache: Cache) -> None:
    compiler = nvrtc.Compiler("sm_80", cache, HEADERS)
    compiler.compile("kernel", KERNEL)
    with pytest.warns(CacheWarning, match="holds kernel kernel for sm_80, not other for sm_80"):
        assert compiler.load("other", KERNEL) is None


@needs_nvrtc
def test_a_damaged_payload_is_compiled_anew(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    compiler = nvrtc.Compiler("sm_80", cache, HEADERS)
    key = nvrtc.kernel_key(KERNEL, "sm_80", HEADERS, compiler.nvrtc.version)
    for payload in (b"", b"\x05\0\0\0[1,2]rest", compiler.compile("kernel", KERNEL).encode()[:-1][:60]):
        damaged = Cache(tmp_path / "cache")
        damaged.store(key, payload)
        with pytest.warns(CacheWarning, match="ignored cache entry .*; compiling it again"):
            assert nvrtc.Compiler("sm_80", damaged, HEADERS).load("kernel", KERNEL) is None


def test_keys_differ_in_everything_that_decides_an_image() -> None:
    base = ("text", "sm_80", HEADERS, (13, 0))
    others = [
        ("text2", "sm_80", HEADERS, (13, 0)),
        ("text", "sm_90a", HEADERS, (13, 0)),
        ("text", "sm_80", {**HEADERS, "B.cuh": ""}, (13, 0)),
        ("text", "sm_80", HEADERS, (13, 1)),
    ]
    keys = [nvrtc.kernel_key(*key) for key in [base, *others]]  # type: ignore[arg-type]
    assert nvrtc.kernel_key(*base) == keys[0]  # type: ignore[arg-type]
    for name, value in {"OPTIONS": (*nvrtc.OPTIONS, "--fmad=false"), "build_id": lambda: "another build"}.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nvrtc, name, value)
            keys.append(nvrtc.kernel_key(*base))  # type: ignore[arg-type]
    assert len(set(keys)) == len(keys)


def test_loading_from_many_threads_opens_one_library(bare: Path, tmp_path: Path) -> None:
    with knobs.scope():
        knobs.cuda.nvrtc = Path(fake(tmp_path / "mine"))
        gate = threading.Barrier(4)

        def opened(_: int) -> object:
            gate.wait()
            return nvrtc.load()

        with ThreadPoolExecutor(4) as pool:
            assert len({id(item) for item in pool.map(opened, range(4))}) == 1
