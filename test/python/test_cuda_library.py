"""The CUDA device library as NVRTC compiles it, without a GPU: it compiles, and into the intended instructions.

How the kernels compute is tested on the CPU (test/cuda). The kernels here are the same text.
"""

from __future__ import annotations

import functools
import re

import pytest
from cubin_tools import Kernel, read_kernels
from nvrtc_tools import (
    ARCHITECTURES,
    KERNELS,
    LIBRARY,
    REPOSITORY,
    Compilation,
    CompileError,
    compile_text,
    find_library,
)

pytestmark = pytest.mark.skipif(find_library() is None, reason="no NVRTC: the nvidia-cuda-nvrtc wheel is not installed")

ON_HOST = ("PrimitivesHost.cuh", "WarpgroupHost.cuh")
ON_GPU = ("PrimitivesPtx.cuh", "WarpgroupPtx.cuh")
HEADERS = sorted(path.name for path in LIBRARY.glob("*.cuh") if path.name not in ON_HOST)

# (offset, size) of the parameters of a kernel.
POINTERS = [(0, 8), (8, 8), (16, 8)]
LIST_AND_POINTER = [(0, 16), (16, 8)]

# Kernel -> threads, blocks per multiprocessor. A multiprocessor has 65536 registers.
ELEMENTWISE = {
    "adamw_f32_f32": (256, 2),
    "adamw_f32_bf16": (256, 2),
    "adamw_f16_f16": (256, 2),
    "momentum_bf16_bf16": (256, 2),
    "scale_f32_f64": (256, 2),
    "functions_f32_f64": (256, 2),
}
ROWS = {
    "row_step_f32_bf16_t32": (32, 16),
    "row_step_f32_bf16_t128": (128, 4),
    "row_step_f32_bf16_t256": (256, 2),
    "row_step_bf16_bf16_t256": (256, 2),
    "row_step_f32_f32_t512": (512, 1),
    "row_step_f32_f32_t512_streaming": (512, 1),
    "shares_t32": (32, 16),
    "shares_t128": (128, 4),
    "sum_of_squares_bf16_t256": (256, 2),
    "root_of_sum_t1024": (1024, 1),
    "add_offsets_t128": (128, 4),
}
COLUMNS = {
    "normalize_columns_f32": (256, 2),
    "normalize_columns_bf16": (256, 2),
    "add_column_offsets": (256, 2),
}
OF_LIBRARY = {
    **{f"transpose_{kind}": (256, 4) for kind in ("f32", "f64", "bf16", "f16")},
    **{f"check_finite_{kind}": (256, 2) for kind in ("f32", "f64", "bf16", "f16")},
}
# Kernel -> loads of matrices in a step of the main loop: plain, transposed.
PRODUCTS = {
    "outer_symmetric_bf16": (12, 0),
    "outer_dense_bf16": (12, 0),
    "outer_symmetric_add_f16": (12, 0),
    "short_add_bf16": (8, 4),
    "tall_symmetric_bf16": (0, 12),
    "tall_dense_bf16": (0, 12),
    "short_apply_bf16_f32": (8, 4),
    "short_apply_f16_bf16": (8, 4),
}
# The same products with the main loop of sm_90a -> which operands of the instruction are transposed.
WARPGROUPS = {
    "outer_symmetric_wgmma_bf16": (0, 0),
    "outer_dense_wgmma_bf16": (0, 0),
    "outer_symmetric_add_wgmma_f16": (0, 0),
    "short_add_wgmma_bf16": (0, 1),
    "tall_symmetric_wgmma_bf16": (1, 1),
    "turned_dense_wgmma_f16": (1, 0),
    "short_apply_wgmma_bf16_f32": (0, 1),
    "short_apply_wgmma_f16_bf16": (0, 1),
}
LAUNCH_BOUNDS = {**ELEMENTWISE, **ROWS, **COLUMNS, **OF_LIBRARY, **dict.fromkeys(PRODUCTS, (256, 2))}
LAUNCH_BOUNDS.update(dict.fromkeys(WARPGROUPS, (288, 2)))
PARAMETERS = {**dict.fromkeys(LAUNCH_BOUNDS, POINTERS), **dict.fromkeys([*PRODUCTS, *WARPGROUPS], LIST_AND_POINTER)}
FILES = {
    "ElementwiseKernels.cuh": [*ELEMENTWISE],
    "RowKernels.cuh": [*ROWS],
    "ColumnKernels.cuh": [*COLUMNS],
    "LibraryKernels.cuh": [*OF_LIBRARY],
    "ProductKernels.cuh": [*PRODUCTS],
    "WarpgroupKernels.cuh": [*WARPGROUPS],
}
# Files of kernels that are as fast as memory.
BANDWIDTH_BOUND = [file for file in FILES if file not in ("ProductKernels.cuh", "WarpgroupKernels.cuh")]
# Every file with every architecture that can run it.
BUILDS = [
    (file, architecture)
    for file in FILES
    for architecture in ARCHITECTURES
    if file != "WarpgroupKernels.cuh" or architecture == "sm_90a"
]
# Kernels whose memory is accessed one element at a time, and those with functions that are not rounded correctly.
SINGLE_ELEMENTS = {*COLUMNS, *(name for name in OF_LIBRARY if name.startswith("transpose"))}
INEXACT = {"functions_f32_f64"}


@functools.cache
def compilation(file: str, architecture: str) -> Compilation:
    return compile_text((KERNELS / file).read_text(), architecture)


@functools.cache
def kernels(file: str, architecture: str) -> dict[str, Kernel]:
    return read_kernels(compilation(file, architecture).cubin)


@functools.cache
def entries(file: str, architecture: str) -> dict[str, str]:
    """The PTX of every kernel of a file."""
    parts = re.split(r"\.entry (\w+)\(", compilation(file, architecture).ptx)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def reported_resources(log: str) -> dict[str, tuple[int, int]]:
    """For every kernel in the log of ptxas its registers, and its bytes of stack and spills."""
    pattern = (
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers"
    )
    return {
        name: (int(registers), int(stack) + int(stores) + int(loads))
        for name, stack, stores, loads, registers in re.findall(pattern, log, re.DOTALL)
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("header", HEADERS)
def test_every_header_compiles_alone(header: str, architecture: str) -> None:
    compile_text(f'#include "{header}"\n', architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tables_have_the_layout_that_the_host_writes(architecture: str) -> None:
    compile_text((KERNELS / "Layout.cuh").read_text(), architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_examples_of_the_documentation_compile(architecture: str) -> None:
    examples = re.findall(r"```cpp\n(.*?)```", (REPOSITORY / "docs" / "cuda-library.md").read_text(), re.DOTALL)
    text = "".join(['#include "Elementwise.cuh"\n#include "Rows.cuh"\nusing namespace kaon::device;\n', *examples])
    found = read_kernels(compile_text(text, architecture).cubin)
    assert {name: kernel.parameters for name, kernel in found.items()} == {
        "sign_descent": POINTERS,
        "normalize_t256": POINTERS,
    }


def test_the_library_includes_only_itself() -> None:
    for header in HEADERS:
        for name in re.findall(r"#\s*include\s*(\S+)", (LIBRARY / header).read_text()):
            assert name.strip('"') in (*HEADERS, *ON_HOST), f"{header} includes {name}"


def test_only_the_primitives_differ_between_gpu_and_host() -> None:
    for header in HEADERS:
        text = (LIBRARY / header).read_text()
        if header not in ON_GPU:
            assert not re.search(r"\basm\b|\b__\w+\(|threadIdx|blockIdx", text), header
        if header != "Primitives.cuh":
            assert "__CUDA" not in text, header


def test_only_primitives_access_several_elements_at_once() -> None:
    """Their definitions for the host see whether an address is aligned; other accesses are of one element each."""
    for header in HEADERS:
        if header in ON_GPU:
            continue
        text = re.sub(r"//.*", "", (LIBRARY / header).read_text())
        # Elements, and what primitives alone look into.
        types = re.findall(r"reinterpret_cast<\s*(?:const )?(\w+) ?[*&]", text)
        assert set(types) <= {"T", "Value", "float", "SharedBarrier", "TensorMap"}, f"{header} casts to {types}"
        assert not re.search(r"\*\s*reinterpret_cast<", text), f"{header} accesses what it casts"
        # Classes with an alignment of their own are copied in one access.
        aligned = re.findall(r"struct alignas\(\d+\) (\w+)", text)
        assert set(aligned) <= {"Words2", "Words4", "SharedBarrier", "TensorMap"}, header
        assert "alignas" not in re.sub(r"struct alignas\(\d+\)", "", text), header
        assert header == "Prelude.cuh" or not re.search(r"\bWords[24] [*&]|<Words[24] ?[*&]", text), header


def test_both_definitions_have_the_same_primitives() -> None:
    def names(header: str) -> set[str]:
        pattern = r"^(?:template <[^>]*>\s)?KAON_DEVICE [^(]*\b(\w+)\("
        return set(re.findall(pattern, (LIBRARY / header).read_text(), re.MULTILINE))

    helpers_of_host = {"shiftRightRn", "halfOf", "largerOf", "multiplyLane"}
    for gpu, host in zip(ON_GPU, ON_HOST, strict=True):
        assert names(gpu) == names(host) - helpers_of_host
        assert names(gpu)


@pytest.mark.parametrize(("file", "architecture"), BUILDS)
def test_kernels_fit_their_registers_and_spill_nothing(file: str, architecture: str) -> None:
    resources = reported_resources(compilation(file, architecture).log)
    assert sorted(resources) == sorted(FILES[file])
    for name, (registers, spilled) in resources.items():
        threads, blocks = LAUNCH_BOUNDS[name]
        # A quarter of a multiprocessor gives registers to whole warps.
        warps = -(-threads * blocks // (4 * 32))
        assert registers <= min(255, 65536 // 4 // (warps * 32)), name
        assert spilled == 0, name
        kernel = kernels(file, architecture)[name]
        assert kernel.max_threads == threads, name
        assert kernel.count("STL") == kernel.count("LDL") == 0, name


@pytest.mark.parametrize(("file", "architecture"), BUILDS)
def test_parameters_lie_where_the_launcher_puts_them(file: str, architecture: str) -> None:
    for name in FILES[file]:
        assert kernels(file, architecture)[name].parameters == PARAMETERS[name], name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products_run_on_tensor_cores(architecture: str) -> None:
    # One step of the main loop: 4x4 blocks in two steps of 16 along k, and the 4 copies of a thread, which occur in the
    # prologue twice and in the loop once.
    for name in PRODUCTS:
        kernel = kernels("ProductKernels.cuh", architecture)[name]
        counts = {opcode: kernel.count(opcode) for opcode in ("HMMA", "LDSM", "LDGSTS")}
        assert counts == {"HMMA": 32, "LDSM": 12, "LDGSTS": 12}, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_products_use_the_intended_instructions(architecture: str) -> None:
    for name, text in entries("ProductKernels.cuh", architecture).items():
        plain, transposed = PRODUCTS[name]
        operand = "f16" if re.search("_f16(_bf16)?$", name) else "bf16"
        assert text.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{operand}.{operand}.f32") == 32, name
        assert text.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == plain, name
        assert text.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == transposed, name
        assert text.count("cp.async.cg.shared.global") == 12, name
        assert re.findall(r"cp\.async\.wait_group (\d)", text) == ["1", "0"], name


def test_warpgroups_multiply_what_was_copied_in_boxes() -> None:
    # One step of the main loop: four products of 16 along k, and two boxes of each operand. Three stages have two
    # barriers each; a phase is announced with its bytes, or a warp arrives.
    expected = {"HGMMA": 4, "UTMALDG": 4, "SYNCS.EXCH": 6, "SYNCS.ARRIVE": 2, "HMMA": 0, "LDSM": 0, "LDGSTS": 0}
    for name in WARPGROUPS:
        kernel = kernels("WarpgroupKernels.cuh", "sm_90a")[name]
        assert {opcode: kernel.count(opcode) for opcode in expected} == expected, name


def test_warpgroups_use_the_intended_instructions() -> None:
    for name, text in entries("WarpgroupKernels.cuh", "sm_90a").items():
        operand = "f16" if "_wgmma_f16" in name else "bf16"
        products = re.findall(rf"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.{operand}\.{operand} .*;", text)
        assert len(products) == 4, name
        # Descriptors, whether sums are added to, signs, and which operands are transposed.
        for product in products:
            flags = re.search(r"\}, %rd\d+, %rd\d+, accumulates, 1, 1, ([01]), ([01]);$", product)
            assert flags and tuple(map(int, flags.groups())) == WARPGROUPS[name], name
        copy = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        assert text.count(copy) == 4, name
        assert re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", text) == ["1", "0"], name
        order = "fence.mbarrier_init.*fence.proxy.async.*bar.sync.*fence.proxy.tensormap::generic.acquire.sys.*" + copy
        assert re.search(order, text, re.DOTALL), name


def test_warpgroups_do_not_wait_for_each_product() -> None:
    log = compilation("WarpgroupKernels.cuh", "sm_90a").log
    assert "serialized" not in log


@pytest.mark.parametrize("architecture", ["sm_80", "sm_100a"])
def test_only_sm_90a_has_warpgroups(architecture: str) -> None:
    with pytest.raises(CompileError, match=r"wgmma|mbarrier|cp\.async\.bulk"):
        compile_text((KERNELS / "WarpgroupKernels.cuh").read_text(), architecture)


@pytest.mark.parametrize(
    ("file", "architecture"), [build for build in BUILDS if build[0] in ("ProductKernels.cuh", "WarpgroupKernels.cuh")]
)
def test_epilogues_load_a_row_before_they_compute(file: str, architecture: str) -> None:
    for name, text in entries(file, architecture).items():
        # Per row of a thread four pairs of the addend, and eight elements of the parameter.
        loads = (4 if "_add" in name or "_apply" in name else 0) + (8 if "_apply" in name else 0)
        epilogue = re.split(r"(?:cp\.async|wgmma)\.wait_group", text)[-1]
        opcodes = re.findall(r"\b(ld\.global|mul\.rn|st\.)", epilogue)
        runs = re.findall(r"l+", "".join(opcode[0] for opcode in opcodes))
        if loads > 0:
            assert sum(len(run) >= loads for run in runs) >= 8, name
        if "_apply" in name:
            # Two elements of 16 bits are one word.
            pair = "[bu]32" if name.endswith("_bf16") else "v2"
            assert re.search(rf"ld\.global\.{pair}\b", epilogue) and re.search(rf"st\.global\.{pair}\b", epilogue), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bandwidth_bound_kernels_access_16_bytes(architecture: str) -> None:
    for file in BANDWIDTH_BOUND:
        for name, text in entries(file, architecture).items():
            if name not in SINGLE_ELEMENTS:
                assert "ld.global.v" in text, name
            if name in ELEMENTWISE or name.startswith("row_step"):
                assert "st.global.v4" in text, name
            assert not re.search(r"\bld\.(v\d\.)?[ufb]\d", text), f"{name}: reads memory of an unknown kind"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_row_kernels_fetch_ahead(architecture: str) -> None:
    for name, text in entries("RowKernels.cuh", architecture).items():
        assert "prefetch.global.L2" in text, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_columns_load_several_rows_before_they_compute(architecture: str) -> None:
    for name in ("normalize_columns_f32", "normalize_columns_bf16"):
        text = entries("ColumnKernels.cuh", architecture)[name]
        # Two operands of four rows each, before the first use: in the main loop of the first pass and in the second's.
        loops = [block for block in re.split(r"\n\$L\w+:", text) if "div.rn" in block]
        stores = {"st.global" in block for block in loops if block.split("div.rn")[0].count("ld.global") == 8}
        assert stores == {False, True}, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_elementwise_arithmetic_is_not_contracted(architecture: str) -> None:
    for file in BANDWIDTH_BOUND:
        for name, text in entries(file, architecture).items():
            if name not in INEXACT:
                assert "fma" not in text and ".approx" not in text, name
            if name in ELEMENTWISE or name in ROWS:
                assert ".rn.f" in text, name


@pytest.mark.parametrize(("file", "architecture"), BUILDS)
def test_everything_is_rounded_to_nearest(file: str, architecture: str) -> None:
    for name, text in entries(file, architecture).items():
        if name not in INEXACT:
            assert not re.search(r"\.(rz|rm|rp|ftz)\b", text), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_maxima_keep_nan(architecture: str) -> None:
    text = entries("RowKernels.cuh", architecture)["shares_t32"]
    assert "max.NaN.f32" in text and "min.NaN.f32" in text
    assert not re.search(r"\b(max|min)(\.ftz)?\.f\d", text)


def test_compilation_is_deterministic() -> None:
    again = compile_text((KERNELS / "RowKernels.cuh").read_text(), "sm_90a")
    first = compilation("RowKernels.cuh", "sm_90a")
    assert (again.ptx, again.cubin) == (first.ptx, first.cubin)


def test_ptx_for_unknown_gpus() -> None:
    fallback = compilation("ProductKernels.cuh", "compute_80")
    assert ".target sm_80" in fallback.ptx
    assert fallback.cubin == b""


def test_errors_come_with_the_compiler_s_log() -> None:
    with pytest.raises(CompileError, match=r'kernels\.cu\(2\): error.*"missing" is undefined'):
        compile_text('#include "Reduce.cuh"\n__global__ void kernel() { missing(); }\n', "sm_80")


def test_the_reader_sees_spills() -> None:
    """What the tests above look for exists: a kernel that must spill is seen to."""
    body = "".join(f"float v{i} = p[{i}];" for i in range(64)) + "__syncthreads();"
    body += "".join(f"p[{(i * 7) % 64}] = v{i} * v{(i * 5 + 1) % 64};" for i in range(64))
    text = f'extern "C" __global__ void __launch_bounds__(1024, 2) spills(volatile float *p) {{ {body} }}'
    result = compile_text(text, "sm_80")
    kernel = read_kernels(result.cubin)["spills"]
    assert reported_resources(result.log)["spills"][1] > 0
    assert kernel.count("STL") > 0 and kernel.count("LDL") > 0
