"""What every primitive of the CUDA device library is on a GPU: its instructions with their operands in order.

The shim has definitions of its own, so nothing that runs on a CPU sees a mistake in assembly. Here NVRTC compiles a
kernel of each primitive, and its PTX is compared with the instructions written down below. What they mean is said by
the PTX ISA.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import pytest
from nvrtc_tools import ARCHITECTURES, LIBRARY, compile_text, find_library

pytestmark = pytest.mark.skipif(find_library() is None, reason="no NVRTC: the nvidia-cuda-nvrtc wheel is not installed")


@dataclass(frozen=True)
class Golden:
    """A kernel and its instructions.

    A register is called by the parameter that it holds or, for parameters ``from``, ``to`` and ``sums``, by the element
    that it is loaded from or stored to. Others are numbered. Accesses and comparisons of integers are of bits.
    """

    parameters: str
    body: str
    instructions: str


def _of_f32(call: str, instruction: str) -> Golden:
    return Golden("float x, float y, float z, float *to", f"to[0] = {call};", instruction)


def _of_f64(call: str, instruction: str) -> Golden:
    return Golden("double x, double y, double z, double *to", f"to[0] = {call};", instruction)


def _product(type_: str) -> Golden:
    return Golden(
        "const u32 *from, float *sums",
        f"""u32 a[4], b[2];
        float s[4];
        for (int i = 0; i < 4; ++i) a[i] = from[i], s[i] = sums[i];
        b[0] = from[4], b[1] = from[5];
        multiplyAdd<{type_}>(s, a, b);
        for (int i = 0; i < 4; ++i) sums[i] = s[i];""",
        f"mma.sync.aligned.m16n8k16.row.col.f32.{type_}.{type_}.f32 {{sums0, sums1, sums2, sums3}}, "
        "{from0, from1, from2, from3}, {from4, from5}, {sums0, sums1, sums2, sums3}",
    )


def _matrices(function: str, kind: str) -> Golden:
    return Golden(
        "const void *row, u32 *to",
        f"u32 fragment[4]; {function}(fragment, row); for (int i = 0; i < 4; ++i) to[i] = fragment[i];",
        f"ldmatrix.sync.aligned.m8n8.x4.{kind}b16 {{to0, to1, to2, to3}}, [shared row]",
    )


def _warpgroup_product(type_: str, transposed: tuple[int, int]) -> Golden:
    sums = ", ".join(f"sums{i}" for i in range(64))
    flags = ", ".join("true" if each else "false" for each in transposed)
    return Golden(
        "u64 a, u64 b, float *sums",
        f"""WarpgroupSums s;
        for (int i = 0; i < 64; ++i) s[i / 4][i % 4] = sums[i];
        multiplyAsync<{flags}>({type_}(), s, a, b);
        productWaitAll(s);
        for (int i = 0; i < 64; ++i) sums[i] = s[i / 4][i % 4];""",
        ".reg .pred accumulates\nsetp.eq.b32 accumulates, 0, 0\n"
        f"wgmma.mma_async.sync.aligned.m64n128k16.f32.{type_}.{type_} {{{sums}}}, a, b, accumulates, 1, 1, "
        f"{transposed[0]}, {transposed[1]}\nwgmma.wait_group.sync.aligned 0",
    )


PRIMITIVES = {
    "loadWord, storeWord": Golden(
        "void *p, void *q", "storeWord(q, loadWord(p));", "ld.global.b32 r0, [p]\nst.global.b32 [q], r0"
    ),
    "loadWords2, storeWords2": Golden(
        "void *p, void *q",
        "storeWords2(q, loadWords2(p));",
        "ld.global.v2.b32 {r0, r1}, [p]\nst.global.v2.b32 [q], {r0, r1}",
    ),
    "loadWords4, storeWords4": Golden(
        "void *p, void *q",
        "storeWords4(q, loadWords4(p));",
        "ld.global.v4.b32 {r0, r1, r2, r3}, [p]\nst.global.v4.b32 [q], {r0, r1, r2, r3}",
    ),
    "prefetch": Golden("const void *p", "prefetch(p);", "prefetch.global.L2 [p]"),
    "blockBarrier": Golden("", "blockBarrier();", "bar.sync 0"),
    "groupBarrier": Golden("", "groupBarrier<64>();", "bar.sync 1, 64"),
    "shuffleXor": Golden(
        "u32 x, int mask, u32 *to", "to[0] = shuffleXor(x, mask);", "shfl.sync.bfly.b32 to0|r0, x, mask, 31, -1"
    ),
    "atomicOr": Golden("u32 *p, u32 bits", "atomicOr(p, bits);", "atom.global.or.b32 r0, [p], bits"),
    "addRn": _of_f32("addRn(x, y)", "add.rn.f32 to0, x, y"),
    "subRn": _of_f32("subRn(x, y)", "sub.rn.f32 to0, x, y"),
    "mulRn": _of_f32("mulRn(x, y)", "mul.rn.f32 to0, x, y"),
    "divRn": _of_f32("divRn(x, y)", "div.rn.f32 to0, x, y"),
    "sqrtRn": _of_f32("sqrtRn(x)", "sqrt.rn.f32 to0, x"),
    "fmaRn": _of_f32("fmaRn(x, y, z)", "fma.rn.f32 to0, x, y, z"),
    "maximum": _of_f32("maximum(x, y)", "max.NaN.f32 to0, x, y"),
    "minimum": _of_f32("minimum(x, y)", "min.NaN.f32 to0, x, y"),
    "absolute": _of_f32("absolute(x)", "abs.f32 to0, x"),
    "roundDown": _of_f32("roundDown(x)", "cvt.rmi.f32.f32 to0, x"),
    "addRn of f64": _of_f64("addRn(x, y)", "add.rn.f64 to0, x, y"),
    "subRn of f64": _of_f64("subRn(x, y)", "sub.rn.f64 to0, x, y"),
    "mulRn of f64": _of_f64("mulRn(x, y)", "mul.rn.f64 to0, x, y"),
    "divRn of f64": _of_f64("divRn(x, y)", "div.rn.f64 to0, x, y"),
    "sqrtRn of f64": _of_f64("sqrtRn(x)", "sqrt.rn.f64 to0, x"),
    "fmaRn of f64": _of_f64("fmaRn(x, y, z)", "fma.rn.f64 to0, x, y, z"),
    "absolute of f64": _of_f64("absolute(x)", "abs.f64 to0, x"),
    "roundDown of f64": _of_f64("roundDown(x)", "cvt.rmi.f64.f64 to0, x"),
    "toFloatRn": Golden("double x, float *to", "to[0] = toFloatRn(x);", "cvt.rn.f32.f64 to0, x"),
    "toBf16Rn": Golden("float x, u16 *to", "to[0] = toBf16Rn(x).bits;", "cvt.rn.bf16.f32 to0, x"),
    "toF16Rn": Golden("float x, u16 *to", "to[0] = toF16Rn(x).bits;", "cvt.rn.f16.f32 to0, x"),
    "toFloat of f16": Golden("u16 x, float *to", "to[0] = toFloat(f16{x});", "cvt.f32.f16 to0, x"),
    "loadMatrices": _matrices("loadMatrices", "shared."),
    "loadMatricesTransposed": _matrices("loadMatricesTransposed", "trans.shared."),
    "multiplyAdd of bf16": _product("bf16"),
    "multiplyAdd of f16": _product("f16"),
    "copyAsync": Golden(
        "void *shared, const void *global, u32 valid",
        "copyAsync(shared, global, valid);",
        "cp.async.cg.shared.global [shared shared], [global], 16, valid",
    ),
    "copyAsyncCommit": Golden("", "copyAsyncCommit();", "cp.async.commit_group"),
    "copyAsyncWait": Golden("", "copyAsyncWait<3>();", "cp.async.wait_group 3"),
}

WARPGROUP_PRIMITIVES = {
    "barrierInit": Golden(
        "SharedBarrier *p, u32 n", "barrierInit(p, n);", "mbarrier.init.shared::cta.b64 [shared p], n"
    ),
    "barrierInitFence": Golden(
        "", "barrierInitFence();", "fence.mbarrier_init.release.cluster\nfence.proxy.async.shared::cta"
    ),
    "barrierExpect": Golden(
        "SharedBarrier *p, u32 n", "barrierExpect(p, n);", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [shared p], n"
    ),
    "barrierArrive": Golden("SharedBarrier *p", "barrierArrive(p);", "mbarrier.arrive.shared::cta.b64 _, [shared p]"),
    "barrierWait": Golden(
        "SharedBarrier *p, u32 parity",
        "barrierWait(p, parity);",
        ".reg .pred ended\nmbarrier.try_wait.parity.shared::cta.b64 ended, [shared p], parity\n"
        "selp.u32 r0, 1, 0, ended\nsetp.eq.b32 r1, r0, 0\n@r1 bra LOOP",
    ),
    "tensorMapAcquire": Golden(
        "TensorMap *map", "tensorMapAcquire(map);", "fence.proxy.tensormap::generic.acquire.sys [map], 128"
    ),
    "tensorMapPrefetch": Golden("TensorMap *map", "tensorMapPrefetch(map);", "prefetch.tensormap [map]"),
    "copyBox": Golden(
        "void *to_, TensorMap *map, i32 column, i32 row, SharedBarrier *p",
        "copyBox(to_, map, column, row, p);",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [shared to_], "
        "[map, {column, row}], [shared p]",
    ),
    "productFence": Golden("", "productFence();", "wgmma.fence.sync.aligned"),
    "productCommit": Golden("", "productCommit();", "wgmma.commit_group.sync.aligned"),
    "productWait": Golden("", "productWait<2>();", "wgmma.wait_group.sync.aligned 2"),
    "multiplyAsync, productWaitAll of bf16": _warpgroup_product("bf16", (0, 1)),
    "multiplyAsync, productWaitAll of f16": _warpgroup_product("f16", (1, 0)),
}

# Defined by arithmetic on bits or by other functions: there is no instruction to write down.
WITHOUT_INSTRUCTION = {
    *("threadIndex", "blockIndex", "sharedMemory", "sharedAddress", "asGlobal"),
    *("bitsOf", "floatOf", "doubleOf", "copySign", "exponential", "logarithm", "power"),
}


def _text(primitives: dict[str, Golden]) -> str:
    kernels = (
        f'extern "C" __global__ void kernel_{i}({each.parameters}) {{\n{each.body}\n}}\n'
        for i, each in enumerate(primitives.values())
    )
    return '#include "Primitives.cuh"\nnamespace kaon::device {\n' + "".join(kernels) + "}\n"


@functools.cache
def ptx_of(arch: str) -> dict[str, str]:
    """The PTX of every primitive's kernel."""
    primitives = {**PRIMITIVES, **(WARPGROUP_PRIMITIVES if arch == "sm_90a" else {})}
    parts = re.split(r"\.visible \.entry kernel_(\d+)\(", compile_text(_text(primitives), arch).ptx)
    names = list(primitives)
    return {names[int(number)]: text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


class Registers:
    """What registers of a kernel are called. A register that would have two names is an error."""

    def __init__(self, golden: Golden) -> None:
        self.parameters = re.findall(r"(\w+)(?:,|$)", golden.parameters)
        self.names: dict[str, str] = {}
        self.unnamed: dict[str, str] = {}

    def call(self, register: str, name: str) -> None:
        assert self.names.setdefault(register, name) == name, f"{register} is {self.names[register]} and {name}"

    def name(self, register: str) -> str:
        return self.names.get(register) or self.unnamed.setdefault(register, f"r{len(self.unnamed)}")

    def take(self, statement: str) -> bool:
        """Whether a statement only gives a register its name."""
        if found := re.match(r"ld\.param\.\w+ (%\w+), \[\w+_param_(\d+)\]$", statement):
            self.call(found[1], self.parameters[int(found[2])])
        elif found := re.match(r"cvta\.to\.global\.u64 (%\w+), (%\w+)$", statement):
            self.call(found[1], self.names[found[2]])
        elif found := re.match(r"cvta\.to\.shared\.u64 (%\w+), (%\w+)$", statement):
            self.call(found[1], "shared " + self.names[found[2]])
        elif found := re.match(r"cvt\.u32\.u64 (%\w+), (%\w+)$", statement):
            assert self.names[found[2]].startswith("shared "), "shared addresses have 32 bits"
            self.call(found[1], self.names[found[2]])
        elif found := re.match(r"mov\.\w+ (%\w+), (\S+)$", statement):
            self.call(found[1], self.names.get(found[2], found[2]))
        else:
            return self._take_element(statement)
        return True

    def _take_element(self, statement: str) -> bool:
        """Whether a statement loads or stores one element of ``from``, ``to`` or ``sums``."""
        access = r"(?:ld|st)\.global\.[a-z]+(\d+) (?:(%\w+), )?\[(%\w+)(?:\+(\d+))?\](?:, (%\w+))?$"
        found = re.match(access, statement)
        if not found or self.names[found[3]] not in ("from", "to", "sums"):
            return False
        element = int(found[4] or 0) * 8 // int(found[1])
        self.call(found[2] or found[5], f"{self.names[found[3]]}{element}")
        return True


def instructions_of(ptx: str, golden: Golden) -> str:
    """The instructions of a kernel, as :class:`Golden` writes them."""
    registers = Registers(golden)
    kept = []
    for line in re.sub(r"//.*", "", ptx[ptx.index("{") :]).split("\n"):
        statement = " ".join(line.strip("; \t").split())
        is_frame = statement in ("", "{", "}", "ret") or statement.endswith(":") or re.match(r"\.reg .*>$", statement)
        if not is_frame and not registers.take(statement):
            kept.append(statement)
    text = re.sub(r"%\w+", lambda found: registers.name(found[0]), "\n".join(kept))
    text = re.sub(r"\$L\w+", "LOOP", re.sub(r"(?<=[\w}]),(?=\S)", ", ", text))
    return re.sub(r"^((?:ld|st|setp)\b\S*\.)[su](\d+)", r"\1b\2", text, flags=re.MULTILINE)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitives_are_their_instructions(name: str, arch: str) -> None:
    assert instructions_of(ptx_of(arch)[name], PRIMITIVES[name]) == PRIMITIVES[name].instructions


@pytest.mark.parametrize("name", WARPGROUP_PRIMITIVES)
def test_primitives_of_warpgroups_are_their_instructions(name: str) -> None:
    golden = WARPGROUP_PRIMITIVES[name]
    assert instructions_of(ptx_of("sm_90a")[name], golden) == golden.instructions


def test_compilers_may_move_what_computes_alone() -> None:
    """Assembly that the compiler may drop or move computes a value; what touches memory says so."""
    for header in ("PrimitivesPtx.cuh", "WarpgroupPtx.cuh"):
        statements = re.findall(r"\basm( volatile)?\((.*?)\)(?:;\n|\n\n)", (LIBRARY / header).read_text(), re.DOTALL)
        assert len(statements) == (LIBRARY / header).read_text().count("asm")
        for is_volatile, text in statements:
            computes = re.search(r'"(max|min|cvt)\.', text)
            assert bool(is_volatile) != bool(computes), text
            of_registers = computes or re.search(r'"(mma|prefetch\.global)\.', text)
            assert ('"memory"' in text) != bool(of_registers), text


def test_no_primitive_is_forgotten() -> None:
    known = {word for name in (*PRIMITIVES, *WARPGROUP_PRIMITIVES) for word in re.findall(r"\w+", name)}
    for header in ("PrimitivesPtx.cuh", "WarpgroupPtx.cuh"):
        pattern = r"^(?:template <[^>]*>\s)?KAON_DEVICE [^(]*\b(\w+)\("
        found = set(re.findall(pattern, (LIBRARY / header).read_text(), re.MULTILINE))
        assert found and found <= known | WITHOUT_INSTRUCTION, header
