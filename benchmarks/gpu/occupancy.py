"""How many waves of blocks the product of a package is: from the code that runs and the tiles that its plan launches.

What a block takes of a multiprocessor follows CUDA's rules (those of its occupancy calculator), which are the same from
sm_80 to sm_100. Registers and static shared memory are read from the CUBIN: NVIDIA does not document that, but the log
of NVRTC says the same.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from kaon.package.machine import choose_gpu
from kaon.package.reading import PLAN, Package, kernel_file

WARP = 32
REGISTERS = 65536
"""Of a multiprocessor; ..."""
REGISTERS_AT_A_TIME = 256
"""... a warp gets them in such portions, ..."""
WARPS_AT_A_TIME = 4
"""... and those of so many warps are together."""
WARPS = 64
BLOCKS = 32
RESERVED_BYTES = 1024
"""Of shared memory, which every block takes beside its own."""
SHARED_AT_A_TIME = 128

SIZED = 4
REGISTER_COUNT = 0x2F
"""The attribute of .nv.info that says of a symbol how many registers its threads have."""


def _sections(cubin: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, size and content of every section of an ELF file of 64 bits; no content where the file has none."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + index * entry_bytes) for index in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        start = names + name
        yield cubin[start : cubin.index(b"\0", start)].decode(), size, cubin[offset : offset + size]


def _register_counts(content: bytes) -> Iterator[int]:
    """Those in a section .nv.info, which is attributes of 4 bytes, some with a payload."""
    position = 0
    while position + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, position)
        position += 4
        if form == SIZED:
            if attribute == REGISTER_COUNT:
                yield struct.unpack_from("<II", content, position)[1]
            position += size


def code_needs(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Registers of a thread and bytes of static shared memory of the one kernel of a CUBIN."""
    registers, shared = 0, 0
    for name, size, content in _sections(cubin):
        if name == ".nv.info":
            registers = max(_register_counts(content))
        elif name == f".nv.shared.{kernel}":
            shared = size
    return registers, shared


def blocks_per_multiprocessor(threads: int, registers: int, shared: int, shared_of_multiprocessor: int) -> int:
    """How many blocks are on a multiprocessor at once, each with `shared` bytes of shared memory in all."""
    warps = -(-threads // WARP)
    portions = -(-registers * WARP // REGISTERS_AT_A_TIME)
    warps_by_registers = REGISTERS // (portions * REGISTERS_AT_A_TIME) // WARPS_AT_A_TIME * WARPS_AT_A_TIME
    taken = -(-(shared + RESERVED_BYTES) // SHARED_AT_A_TIME) * SHARED_AT_A_TIME
    return min(BLOCKS, WARPS // warps, warps_by_registers // warps, shared_of_multiprocessor // taken)


def waves_of_product(package: Package, device: Mapping[str, Any]) -> dict[str, Any]:
    """Of the only matrix product in the first phase of a package.

    Args:
        device: what `kaon.cuda.device_info` says of it, which the package has machine code for.
    """
    plan = json.loads(package.read(PLAN))
    buckets = [bucket for group in plan["phases"][0] for bucket in group["buckets"]]
    found = [
        (launch, len(bucket["members"]))
        for bucket in buckets
        for launch in plan["sequences"][bucket["sequence"]]["launches"]
        if plan["kernels"][launch["kernel"]]["schedule"] == "matmul"
    ]
    (kernel,) = {launch["kernel"] for launch, _ in found}
    name, threads = plan["kernels"][kernel]["name"], plan["kernels"][kernel]["threads"]
    architecture = choose_gpu(package.manifest.architectures, device["arch"])
    assert architecture is not None, "it was opened on a device that it has code for"
    registers, static = code_needs(package.read(kernel_file(name, architecture)), name)
    shared = static + max(launch["sharedBytes"] for launch, _ in found)
    blocks = blocks_per_multiprocessor(threads, registers, shared, device["shared_bytes_per_multiprocessor"])
    tiles = sum(launch["items"] * matrices for launch, matrices in found)
    return {
        "kernel": name,
        "tiles": tiles,
        "registers": registers,
        "shared_bytes": shared,
        "blocks_per_multiprocessor": blocks,
        "waves": tiles / (blocks * device["multiprocessors"]),
    }
