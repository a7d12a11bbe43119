"""Every kernel of every bundled optimizer, generated and compiled by the real NVRTC, without a GPU.

The optimizers below, on the shapes below, in three storage types, with products of bf16 and of f16, are lowered for
each architecture; the union of their kernels is compiled for it. From NVRTC's log, the PTX and the CUBIN: nothing
spills, registers leave room for the blocks that the launch bounds promise, instructions are the intended ones, and
parameters lie where the launcher puts them. How the kernels compute is tested in test_cuda_optim.py.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cubin_tools import Kernel as Cubin
from cubin_tools import read_kernels
from kaon import driver, knobs, nvrtc
from kaon.cache import open_cache
from kaon.cuda_target import ARCHITECTURES, CudaTarget
from kaon.nvrtc import FALLBACK_ARCHITECTURE, Image
from kaon.optim import AdamW, Muon, PeriodicRowwiseMuon
from kaon.optim.bindings import DECAY_MODES, MOMENTUM_FORMS, NORMALIZATIONS, ROW_SCALES, SCALE_ALIASES
from kaon.stages import StageFiles
from nvrtc_tools import find_library
from optim_tools import entries_of

pytestmark = pytest.mark.skipif(find_library() is None, reason="no NVRTC: the nvidia-cuda-nvrtc wheel is not installed")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALVES = ("bf16", "f16")
"""Operands of products."""

OPTIMIZERS: dict[str, Any] = {
    "adamw": AdamW,
    "muon": Muon,
    **{f"row steps, {scale}": functools.partial(PeriodicRowwiseMuon, row_scale=scale) for scale in ROW_SCALES},
}
OPTIONS: dict[str, Any] = {
    "adamw, amsgrad": functools.partial(AdamW, amsgrad=True, maximize=True),
    "muon, polar": functools.partial(Muon, ns_coefficients="polar_express", ns_norm_scale=1.01),
    "muon, three steps": functools.partial(Muon, ns_steps=3, eps=1e-7, maximize=True),
    **{f"muon, {form}, plain": functools.partial(Muon, momentum_form=form, nesterov=False) for form in MOMENTUM_FORMS},
    **{f"muon, {form}": functools.partial(Muon, momentum_form=form) for form in MOMENTUM_FORMS},
    **{f"muon, {mode}": functools.partial(Muon, decay_mode=mode) for mode in DECAY_MODES},
    **{f"muon, {rate}": functools.partial(Muon, adjust_lr_fn=rate) for rate in sorted(set(SCALE_ALIASES.values()))},
    **{f"muon, {by}": functools.partial(Muon, ns_normalize=by, eps=1e-7) for by in NORMALIZATIONS},
    **{
        f"row steps, {form}, plain": functools.partial(
            PeriodicRowwiseMuon, momentum_form=form, nesterov=False, row_scale="calibrated", row_eps=1e-7
        )
        for form in MOMENTUM_FORMS
    },
    **{f"row steps, {mode}": functools.partial(PeriodicRowwiseMuon, decay_mode=mode, phase=1) for mode in DECAY_MODES},
    "row steps, every fourth": functools.partial(PeriodicRowwiseMuon, period=4, phase="staggered"),
}
"""These in f32 only; how values are stored is not what they change."""

# Square, wide, tall, odd, a row, a column, two that iterate on their Gram matrix, and rows for every size of blocks,
# and streaming ones.
SHAPES = [
    (256, 256),
    (96, 384),
    (384, 96),
    (33, 17),
    (1, 1000),
    (1000, 1),
    (256, 640),
    (640, 256),
    (7, 4000),
    (5, 9000),
    (3, 66000),
    (2, 78000),
    (2, 100000),
]

BLOCKS = {32: 16, 128: 4, 256: 2, 384: 1, 512: 1}
"""Threads of a block, and blocks of one multiprocessor that registers must leave room for."""

POINTERS = [(0, 8), (8, 8), (16, 8)]
LIST_AND_POINTER = [(0, 16), (16, 8)]


@dataclass(frozen=True)
class Program:
    """An optimizer's program for one architecture: its plan, and its kernels by name."""

    plan: dict[str, Any]
    kernels: dict[str, driver.Kernel]
    sources: dict[str, str]
    """The IR of every kernel but the checks of gradients."""


@functools.cache
def program(name: str, dtype: torch.dtype, shared_bytes: int, half: str = "bf16") -> Program:
    """What an optimizer steps all of SHAPES with, in one program."""
    entries = entries_of({**OPTIMIZERS, **OPTIONS}[name], SHAPES, dtype)
    lowered = driver.lower(driver.emit(entries).text, CudaTarget("any", shared_bytes, half))
    kernels = {kernel.name: kernel for kernel in lowered.kernels}
    return Program(json.loads(lowered.plan_json), kernels, dict(lowered.sources))


def programs(arch: str) -> Iterator[Program]:
    shared = CudaTarget.of_arch(arch).shared_bytes
    for half in HALVES:
        for name in OPTIMIZERS:
            for dtype in DTYPES:
                yield program(name, dtype, shared, half)
        for name in OPTIONS:
            yield program(name, torch.float32, shared, half)


@functools.cache
def without_names(source: str) -> str:
    """A kernel's IR, less the names and lines of the user's Python, which differ between updates."""
    return str(driver.extension().parse(source))


@functools.cache
def images(arch: str) -> dict[str, Image]:
    """Every kernel of every program for ``arch``, compiled."""
    kernels: dict[str, driver.Kernel] = {}
    texts: dict[str, str] = {}
    for each in programs(arch):
        for name, kernel in each.kernels.items():
            kernels.setdefault(name, kernel)
            text = without_names(each.sources[name]) if name in each.sources else kernel.text
            assert texts.setdefault(name, text) == text, f"two texts of one name: {name}"
    target = CudaTarget.of_arch(arch)
    files = StageFiles("", target.name)
    return target.compile(kernels.values(), open_cache(), files, driver.Statistics())


@functools.cache
def cubins(arch: str) -> dict[str, Cubin]:
    return {name: read_kernels(image.image)[name] for name, image in images(arch).items()}


def planned(arch: str) -> dict[str, dict[str, Any]]:
    """By name, what the plans say about every kernel but the checks of gradients, which belong to no plan."""
    return {kernel["name"]: kernel for each in programs(arch) for kernel in each.plan["kernels"]}


def launches(arch: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Kernel and launch of every launch of every program."""
    for each in programs(arch):
        for sequence in each.plan["sequences"]:
            for launch in sequence["launches"]:
                yield each.plan["kernels"][launch["kernel"]], launch


def is_product(name: str) -> bool:
    return name.startswith("matmul_")


@pytest.mark.parametrize("arch", [*ARCHITECTURES, FALLBACK_ARCHITECTURE])
def test_every_kernel_compiles(arch: str, record_property: Any) -> None:
    compiled = images(arch)
    wanted = set(planned(arch)) | {f"check_finite_{dtype}" for dtype in ("f32", "bf16", "f16")}
    assert set(compiled) == wanted
    kind = "ptx" if arch == FALLBACK_ARCHITECTURE else "cubin"
    assert {(image.arch, image.kind) for image in compiled.values()} == {(arch, kind)}
    assert all(f".visible .entry {name}(" in image.ptx for name, image in compiled.items())
    record_property(f"kaon-cuda-compiled-{arch}", len(compiled))


def test_the_list_of_optimizers_is_worth_its_name() -> None:
    """All kinds of kernels occur: what no program has would be checked nowhere."""
    found = planned("sm_90a")
    assert {kernel["schedule"] for kernel in found.values()} >= {"elementwise", "rows", "matmul"}
    assert {kernel["threads"] for kernel in found.values()} == set(BLOCKS)
    names = set(found)
    assert any("_streaming" in name for name in names) and any("_symmetric" in name for name in names)
    for half in HALVES:
        products = [name for name in names if name.startswith(f"matmul_{half}_")]
        assert any(re.search(r"_[0-9a-f]{6,}$", name) for name in products), "no product has an epilogue"
        # Besides those with epilogues, whose names are hashes, there is each form of product. A Gram matrix that is
        # squared without an addend occurs in f16 alone, which starts the iteration on Gram matrices anew less often.
        plain = {re.sub(r"_[0-9a-f]{6,}$", "", name).removeprefix(f"matmul_{half}_") for name in products}
        forms = {re.sub(r"_[0-9a-f]{6,}$", "", name).split("_", 2)[2] for name in names if is_product(name)}
        assert plain == forms - ({"symmetric"} if half == "bf16" else set()), f"a form of products is not in {half}"


def test_no_option_is_forgotten() -> None:
    """Every option that kernels depend on has a value above that is not its default."""
    makes = [*OPTIMIZERS.values(), *OPTIONS.values()]
    for cls in (AdamW, Muon, PeriodicRowwiseMuon):
        tried = {name for make in makes if getattr(make, "func", make) in cls.__mro__[:2] for name in _options_of(make)}
        assert tried >= set(cls.matrix_binding.structure_keys), cls.__name__


def _options_of(make: Any) -> set[str]:
    """The options that ``make`` gives a value other than the default."""
    if not isinstance(make, functools.partial):
        return set()
    defaults = inspect.signature(make.func).parameters | inspect.signature(Muon).parameters
    return {name for name, value in make.keywords.items() if value != defaults[name].default}


def test_long_matrices_take_the_gram_form() -> None:
    """Products of the short side alone, whose factors meet in the end, and an epilogue on what they come to."""
    shared = CudaTarget.of_arch("sm_90a").shared_bytes
    plan = program("muon", torch.float32, shared).plan
    (sequence,) = (
        each
        for each in plan["sequences"]
        if any(launch["sizes"] == [256, 640, 256] for launch in each["launches"])
        and any(operand["kind"] == "param" and operand["rows"] == 256 for operand in each["launches"][-1]["operands"])
    )
    sizes = [tuple(launch["sizes"]) for launch in sequence["launches"] if len(launch["sizes"]) == 3]
    assert sum(640 in each for each in sizes) == 6 and sum(each == (256,) * 3 for each in sizes) > 6


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nothing_spills_and_registers_leave_room(arch: str) -> None:
    plans = planned(arch)
    for name, image in images(arch).items():
        threads = plans[name]["threads"] if name in plans else 256
        resources = image.resources[name]
        assert resources.registers <= min(255, 65536 // (threads * BLOCKS[threads])), name
        assert (resources.stack_bytes, resources.spill_bytes) == (0, 0), name
        cubin = cubins(arch)[name]
        assert cubin.max_threads == threads, name
        assert cubin.count("STL") == cubin.count("LDL") == 0, name


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_parameters_lie_where_the_launcher_puts_them(arch: str) -> None:
    for name, cubin in cubins(arch).items():
        assert cubin.parameters == (LIST_AND_POINTER if is_product(name) else POINTERS), name


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_products_run_on_tensor_cores(arch: str) -> None:
    # One step of the main loop: 4x4 blocks in two steps of 16 along k, and the 4 copies of a thread, which occur in the
    # prologue twice and in the loop once.
    for name, cubin in cubins(arch).items():
        counts = {opcode: cubin.count(opcode) for opcode in ("HMMA", "LDSM", "LDGSTS")}
        assert counts == dict.fromkeys(counts, 0) | (
            {"HMMA": 32, "LDSM": 12, "LDGSTS": 12} if is_product(name) else {}
        ), name


@pytest.mark.parametrize("arch", [*ARCHITECTURES, FALLBACK_ARCHITECTURE])
def test_products_multiply_the_type_of_their_name(arch: str) -> None:
    """With sums in f32. Both types are one opcode, whose bits for the type are documented nowhere: PTX says it."""
    for name, image in images(arch).items():
        operands = set(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col(\.\w+\.\w+\.\w+\.\w+)", image.ptx))
        half = name.split("_")[1]
        assert operands == ({f".f32.{half}.{half}.f32"} if is_product(name) else set()), name


@pytest.mark.parametrize("arch", [*ARCHITECTURES, FALLBACK_ARCHITECTURE])
def test_everything_is_rounded_to_nearest(arch: str) -> None:
    narrowing: set[str] = set()
    for name, image in images(arch).items():
        assert not re.search(r"\.(rz|rm|rp|ftz)\b", image.ptx), name
        narrowing.update(re.findall(r"\bcvt\.\S*(?:\.b?f16(?:x2)?\.f32|f32\.f64)\b", image.ptx))
    assert narrowing == {"cvt.rn.bf16.f32", "cvt.rn.f16.f32", "cvt.rn.f32.f64"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_warpgroups_compile_for_sm_90a(dtype: torch.dtype) -> None:
    with knobs.scope():
        knobs.cuda.main_loop = "wgmma"
        target = CudaTarget.of_arch("sm_90a")
    lowered = driver.lower(driver.emit(entries_of(OPTIMIZERS["muon"], SHAPES, dtype)).text, target)
    kernels = [kernel for kernel in lowered.kernels if kernel.name.startswith("matmul_wgmma_bf16")]
    assert any("_symmetric" in kernel.name for kernel in kernels)
    compiled = target.compile(kernels, open_cache(), StageFiles("", target.name), driver.Statistics())
    for name, image in compiled.items():
        assert (image.resources[name].stack_bytes, image.resources[name].spill_bytes) == (0, 0), name
        assert image.resources[name].registers <= 96, name
        assert "serialized" not in image.log, name
        cubin = read_kernels(image.image)[name]
        assert (cubin.max_threads, cubin.parameters) == (288, LIST_AND_POINTER), name
        expected = {"HGMMA": 4, "UTMALDG": 4, "HMMA": 0, "LDSM": 0, "LDGSTS": 0, "STL": 0, "LDL": 0}
        assert {opcode: cubin.count(opcode) for opcode in expected} == expected, name
    plan = json.loads(lowered.plan_json)
    mapped = {kernel["name"] for kernel in plan["kernels"] if kernel.get("mappedOperands") == 2}
    assert mapped == set(compiled)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_elementwise_and_row_kernels_access_16_bytes_and_contract_nothing(arch: str) -> None:
    for kernel, launch in launches(arch):
        if kernel["schedule"] not in ("elementwise", "rows"):
            continue
        name = kernel["name"]
        text = images(arch)[name].ptx
        whole = [operand["rows"] * operand["cols"] == math.prod(launch["sizes"]) for operand in launch["operands"]]
        assert "ld.global.v4" in text or not any(whole[: launch["inputs"]]), name
        assert "st.global.v4" in text or not any(whole[launch["inputs"] :]), name
        assert not re.search(r"\bld\.(v\d\.)?[ufb]\d", text), f"{name}: reads memory of an unknown kind"
        assert ".approx" not in text and "fma" not in text, name


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_launches_stay_within_what_a_block_may_have(arch: str) -> None:
    # From the table of compute capabilities in NVIDIA's programming guide.
    limit = {"sm_80": 163, "sm_90a": 227, "sm_100a": 227, "compute_80": 163}[arch] << 10
    assert CudaTarget.of_arch(arch).shared_bytes == limit
    for kernel, launch in launches(arch):
        fixed = static_shared_bytes(arch, kernel["name"])
        assert launch["sharedBytes"] + fixed <= limit, (kernel["name"], launch["sizes"])
        assert launch["items"] >= 1 and launch["grain"] >= 1 and kernel["threads"] in BLOCKS


def static_shared_bytes(arch: str, name: str) -> int:
    """Shared memory of the kernel's own declarations, as ptxas told."""
    log = images(arch)[name].log
    found = re.search(
        rf"Compiling entry function '{name}'.*?Used \d+ registers(?:, used \d+ barriers)?(?:, (\d+) bytes smem)?",
        log,
        re.DOTALL,
    )
    assert found is not None, log
    return int(found[1] or 0)


def test_texts_and_machine_code_are_deterministic() -> None:
    name, dtype, arch = "row steps, calibrated", torch.bfloat16, "sm_90a"
    target = CudaTarget.of_arch(arch)
    first = program(name, dtype, target.shared_bytes)
    program.cache_clear()
    again = program(name, dtype, target.shared_bytes)
    assert again == first
    kernel = next(iter(first.kernels.values()))
    compiler = nvrtc.Compiler(arch, open_cache())
    assert compiler.compile(kernel.name, kernel.text).image == images(arch)[kernel.name].image
