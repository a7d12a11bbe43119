"""Compilation and loading of kernels: determinism, what ends up in the code, and every way it can go wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from kaon import _C
from kernel_tools import HOST, TARGETS, Kernel, library_kernel

SCALE = """
func.func private @scale(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>, %s: f64) -> tensor<?x?xf32>
    attributes {kaon.kernel = #kaon.schedule<elementwise>} {
  %i0 = arith.constant 0 : index
  %i1 = arith.constant 1 : index
  %d0 = tensor.dim %a, %i0 : tensor<?x?xf32>
  %d1 = tensor.dim %a, %i1 : tensor<?x?xf32>
  %t = arith.truncf %s : f64 to f32
  %u = tensor.splat %t[%d0, %d1] : tensor<?x?xf32>
  %p = arith.mulf %u, %a : tensor<?x?xf32>
  %q = arith.addf %p, %b : tensor<?x?xf32>
  return %q : tensor<?x?xf32>
}
"""
UPDATE = """
module attributes {kaon.cpu = #kaon.cpu_target<vector_bits = 256, mr = 6, nr = 16, kc = 256, block = 192>} {
  func.func private @kernel_b(%a: tensor<?x?xf32>) -> tensor<?x?xf32>
      attributes {kaon.kernel = #kaon.schedule<elementwise>} {
    %r = arith.negf %a : tensor<?x?xf32> loc("secret.py":1:2)
    return %r : tensor<?x?xf32> loc("secret.py":3:4)
  }
  func.func private @kernel_a(%a: tensor<?x?xf32>) -> tensor<?x?xf32>
      attributes {kaon.kernel = #kaon.schedule<elementwise>} {
    %r = math.absf %a : tensor<?x?xf32>
    return %r : tensor<?x?xf32>
  }
  func.func @update(%x: tensor<20x8xf32>) -> tensor<20x20xf32> {
    %y = kaon.launch @kernel_b ins(%x : tensor<20x8xf32>) -> tensor<20x8xf32>
    %z = kaon.launch @kernel_a ins(%y : tensor<20x8xf32>) -> tensor<20x8xf32>
    %t = kaon.transpose %z : tensor<20x8xf32> -> tensor<8x20xf32>
    %l = kaon.pack lhs %z : tensor<20x8xf32> -> tensor<4x48xf32>
    %r = kaon.pack rhs %t : tensor<8x20xf32> -> tensor<2x128xf32>
    %d = kaon.matmul %l, %r symmetric packed sizes [20, 20, 8]
        : (tensor<4x48xf32>, tensor<2x128xf32>) -> tensor<20x20xf32>
    return %d : tensor<20x20xf32>
  }
}
"""


def compile_kernel(text: str, target: dict[str, Any] = HOST, **settings: Any) -> _C.CompiledKernel:
    return _C.compile_kernel(text, target, **settings)


def test_host_target_is_complete_and_stable() -> None:
    assert set(HOST) == {"triple", "cpu", "features", "vector_bits", "mr", "nr", "kc", "block"}
    assert dict(_C.host_target()) == HOST
    names = [feature[1:] for feature in HOST["features"].split(",")]
    assert names == sorted(names) and len(set(names)) == len(names)


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_are_whole_tiles(target: str) -> None:
    t = TARGETS[target]
    assert t["block"] % t["mr"] == 0 and t["block"] % t["nr"] == 0 and t["kc"] % 4 == 0
    expected = {"avx2": (6, 16), "avx512": (12, 32), "sse2": (4, 8)}
    if target in expected:
        assert (t["mr"], t["nr"]) == expected[target]


def test_later_features_win() -> None:
    assert _C.cpu_target("x86-64-v3", "+avx2,+fma,-avx2")["mr"] == 4


# ---- the kernels of a module


def test_kernels_of_a_module() -> None:
    kernels = _C.parse(UPDATE).kernels()
    assert [kernel.name for kernel in kernels] == [
        "kernel_b",
        "kernel_a",
        "matmul_symmetric_f32",
        "pack_lhs_f32",
        "pack_rhs_f32",
        "transpose_f32",
    ]
    for kernel in kernels:
        assert "loc(" not in kernel.text and "secret" not in kernel.text
        assert compile_kernel(kernel.text).name == kernel.name
        # What depends on the tile says so, and nothing else does: the text is the cache key.
        assert ("#kaon.cpu_target<" in kernel.text) == kernel.name.startswith(("matmul", "pack"))


def test_kernel_texts_are_canonical() -> None:
    first = [kernel.text for kernel in _C.parse(UPDATE).kernels()]
    renamed = UPDATE.replace("secret.py", "other.py").replace("%y", "%some_value")
    assert [kernel.text for kernel in _C.parse(renamed).kernels()] == first


def test_products_need_a_target_and_packed_operands() -> None:
    text = re.sub(r"module attributes \{.*?>\}", "module", UPDATE)
    with pytest.raises(_C.CompileError, match=r"needs kaon\.cpu on the module"):
        _C.parse(text).kernels()
    module = _C.parse(text)
    module.set_cpu_target(TARGETS["host"])
    assert f"mr = {HOST['mr']}" in str(module)
    text = "func.func @f(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {\n  %d = kaon.matmul %x, %x : "
    text += "(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>\n  return %d : tensor<4x4xf32>\n}\n"
    with pytest.raises(_C.CompileError, match="operands that are not packed"):
        _C.parse(text).kernels()


# ---- compilation


@pytest.mark.parametrize("target", TARGETS)
def test_equal_texts_give_equal_bytes(target: str) -> None:
    texts = [SCALE, *(kernel.text for kernel in _C.parse(UPDATE).kernels())]
    first = [compile_kernel(text, TARGETS[target]).object for text in texts]
    assert [compile_kernel(text, TARGETS[target]).object for text in texts] == first


def test_other_processes_give_equal_bytes() -> None:
    script = "import sys, hashlib; from kaon import _C; text = sys.stdin.read()\n"
    script += "print(hashlib.sha256(_C.compile_kernel(text, _C.host_target()).object).hexdigest())"
    runs = {
        subprocess.run([sys.executable, "-c", script], input=SCALE, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(runs) == 1


def test_kernels_compile_side_by_side() -> None:
    texts = [SCALE.replace("@scale", f"@scale{i}") for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(compile_kernel, texts))
    assert [kernel.name for kernel in kernels] == [f"scale{i}" for i in range(8)]


def test_texts_on_request() -> None:
    plain = compile_kernel(SCALE)
    assert plain.llvm_ir is None and plain.assembly is None and plain.seconds > 0
    ir = compile_kernel(SCALE, dump="llvm").llvm_ir
    assert ir is not None and "define void @scale(" in ir
    assembly = compile_kernel(SCALE, dump="assembly")
    assert assembly.assembly is not None and "scale:" in assembly.assembly
    assert assembly.object == plain.object


@pytest.mark.skipif("avx2" not in TARGETS, reason="needs a processor with AVX2 and FMA")
def test_only_explicit_multiply_adds_are_fused() -> None:
    text = compile_kernel(SCALE, TARGETS["avx2"], dump="assembly").assembly
    assert text is not None and "vmulps" in text and "vaddps" in text and "vfm" not in text


@pytest.mark.skipif("avx512" not in TARGETS, reason="needs a processor with AVX-512")
def test_products_keep_their_sums_in_registers() -> None:
    """The inner loop has one fused step per register of the tile, and neither spills nor reloads sums."""
    for target, register, lines in [("avx2", "ymm", 6 * 2), ("avx512", "zmm", 12 * 2)]:
        t = TARGETS[target]
        tile = ", ".join(f"{name} = {t[name]}" for name in ("vector_bits", "mr", "nr", "kc", "block"))
        text = (
            f"module attributes {{kaon.cpu = #kaon.cpu_target<{tile}>}} {{ func.func private @m(tensor<?x?xf32>, "
            'tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.library = "matmul"} }'
        )
        assembly = compile_kernel(text, t, dump="assembly").assembly
        assert assembly is not None
        blocks = re.split(r"^\.LBB\w+:.*$", assembly, flags=re.MULTILINE)
        inner = max(blocks, key=lambda block: len(re.findall(rf"vfmadd\d+ps.*%{register}", block)))
        assert len(re.findall(r"\bvfmadd\d+ps", inner)) == 4 * lines
        assert not re.search(r"\(%r[sb]p\)", inner)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_other_levels_give_the_same_results(level: int) -> None:
    kernel = compile_kernel(SCALE, opt_level=level)
    library = _C.KernelLibrary()
    library.add("scale", kernel.object)
    low = Kernel.__new__(Kernel)
    low.library, low.function = library, type(Kernel(SCALE).function)(library.address("scale"))
    x, y = np.random.default_rng(0).standard_normal((2, 3, 37)).astype(np.float32)
    results = [np.zeros_like(x), np.zeros_like(x)]
    for kernel_, result in zip((low, Kernel(SCALE)), results, strict=True):
        kernel_([x, y, result], [3, 37], [(0, 3)], [0.3])
    assert np.array_equal(*results)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("this is not IR", "cannot parse a kernel"),
        ("module {}", "expects exactly one kernel, but got 0"),
        (SCALE + SCALE.replace("@scale", "@other"), "expects exactly one kernel, but got 2"),
        (
            'func.func private @x(tensor<?x?xf32>) -> tensor<?x?xf32> attributes {kaon.library = "qr"}',
            "expects the library kernel to be one of transpose, pack_rhs, matmul, pack_rhs_transposed, matmul_add, "
            "pack_lhs, matmul_symmetric, pack_lhs_transposed, matmul_symmetric_add, but got 'qr'",
        ),
        (
            'func.func private @x(tensor<?x?xbf16>) -> tensor<?x?xbf16> attributes {kaon.library = "pack_lhs"}',
            "expects elements of type f32 or f64, but got 'bf16'",
        ),
        ('func.func private @x() attributes {kaon.library = "pack_lhs"}', "expects a matrix as first argument"),
    ],
)
def test_bad_kernels(text: str, message: str) -> None:
    with pytest.raises(_C.CompileError, match=re.escape(message)):
        compile_kernel(text)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="opt_level from 0 to 3, but got 4"):
        compile_kernel(SCALE, opt_level=4)
    with pytest.raises(ValueError, match="'llvm' or 'assembly', but got 'ptx'"):
        compile_kernel(SCALE, dump="ptx")
    with pytest.raises(KeyError, match="expects a target with 'mr'"):
        compile_kernel(SCALE, {key: value for key, value in HOST.items() if key != "mr"})
    with pytest.raises(_C.CompileError, match="cannot generate code for target 'nonsense'"):
        compile_kernel(SCALE, {**HOST, "triple": "nonsense"})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mr", 0, "expects mr to be from 4 to 64, but got 0"),
        ("mr", 2, "expects mr to be from 4 to 64, but got 2"),
        ("mr", 65, "expects mr to be from 4 to 64, but got 65"),
        ("nr", 4, "expects nr to be a multiple of 8 from 8 to 256, but got 4"),
        ("nr", 2**62, "expects nr to be a multiple of 8 from 8 to 256, but got 4611686018427387904"),
        ("kc", 6, "expects kc to be a multiple of 4 from 4 to 1048576, but got 6"),
        ("kc", -4, "expects kc to be a multiple of 4 from 4 to 1048576, but got -4"),
        ("block", 0, "expects block to be from 4 to 1048576, but got 0"),
        ("block", 100, "expects block to be a multiple of mr (4) and nr (8), but got 100"),
        ("vector_bits", 64000064, "expects vector_bits to be 64, 128, 256 or 512, but got 64000064"),
        ("vector_bits", 192, "expects vector_bits to be 64, 128, 256 or 512, but got 192"),
    ],
)
def test_tiles_that_would_write_elsewhere_are_refused(field: str, value: int, message: str) -> None:
    tile = {"vector_bits": 128, "mr": 4, "nr": 8, "kc": 256, "block": 192}
    target = {**HOST, **tile, field: value}
    module = _C.parse(UPDATE)
    before = str(module)
    with pytest.raises(_C.CompileError, match=re.escape(message)):
        module.set_cpu_target(target)
    assert str(module) == before
    with pytest.raises(_C.CompileError, match=re.escape(message)):
        compile_kernel(SCALE, target)
    module.set_cpu_target({**HOST, **tile})
    assert "mr = 4, nr = 8" in str(module)


# ---- loading


def test_library_refuses_what_it_cannot_load() -> None:
    code = compile_kernel(SCALE).object
    library = _C.KernelLibrary()
    for damaged in (b"", b"not an object file", code[:100], code[:-100]):
        with pytest.raises(_C.CompileError):
            library.add("scale", damaged)
    with pytest.raises(_C.CompileError, match="cannot load kernel 'other'"):
        library.add("other", code)
    with pytest.raises(KeyError, match="expects the name of a loaded kernel, but got 'scale'; loaded: none"):
        library.address("scale")
    # None of which stands in the way of the real one.
    library.add("scale", code)
    assert library.address("scale") != 0
    with pytest.raises(_C.CompileError, match="expects the name of a kernel that is not loaded yet, but got 'scale'"):
        library.add("scale", code)


def test_library_is_filled_by_several_threads() -> None:
    """Every kernel is found, by an executor's table too; of those that are added twice one add is refused."""
    names = [f"kernel_{i}" for i in range(24)]
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda name: compile_kernel(SCALE.replace("@scale", f"@{name}")).object, names))
        library = _C.KernelLibrary()

        def add(index: int) -> int:
            try:
                library.add(names[index], codes[index])
            except _C.CompileError as error:
                assert f"not loaded yet, but got '{names[index]}'" in str(error)
                return 0
            assert names[index] in library.table
            return library.address(names[index])

        addresses = list(pool.map(add, [*range(len(names)), *range(len(names))]))
    assert len(set(addresses) - {0}) == len(names) and addresses.count(0) == len(names)
    with pytest.raises(KeyError, match="got 'other'; loaded: 'kernel_0', 'kernel_1', 'kernel_10'"):
        library.address("other")


def test_libraries_are_independent() -> None:
    code = compile_kernel(SCALE).object
    libraries = [_C.KernelLibrary() for _ in range(3)]
    for library in libraries:
        library.add("scale", code)
    assert len({library.address("scale") for library in libraries}) == 3


def test_library_kernels_have_names_of_their_own() -> None:
    library = _C.KernelLibrary()
    for name in ("pack_lhs", "pack_rhs", "matmul"):
        library_kernel(name, "f32")  # loads each into a library of its own
    for kernel in _C.parse(UPDATE).kernels():
        library.add(kernel.name, compile_kernel(kernel.text).object)
