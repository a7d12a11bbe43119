"""Reads what tests want to know from a CUBIN: instructions and the layout of parameters.

A CUBIN is a 64-bit ELF file. Code of a kernel is in ``.text.<kernel>``: instructions of 16 bytes, whose low 12 bits are
the opcode. ``.nv.info.<kernel>`` is a list of attributes. Neither is documented by NVIDIA; the opcodes below were found
by compiling kernels with known counts and are the same for sm_80, sm_90a and sm_100a.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

# Type of an ELF section without content in the file.
NO_BITS = 8

INSTRUCTION_BYTES = 16
OPCODES = {
    "HMMA": 0x23C,
    "LDSM": 0x83B,
    "LDGSTS": 0xFAE,
    "STL": 0x387,
    "LDL": 0x983,
    # Of sm_90a: products of warpgroups, copies of boxes, and barriers in shared memory that are made and arrived at.
    "HGMMA": 0x9F0,
    "UTMALDG": 0x5B4,
    "SYNCS.EXCH": 0x5B2,
    "SYNCS.ARRIVE": 0x9A7,
}

# Attributes of .nv.info: format of those with a sized payload, and the two that are read.
SIZED_FORMAT = 0x04
KPARAM_INFO = 0x17
MAX_THREADS = 0x05


@dataclass
class Kernel:
    """One kernel of a CUBIN. ``parameters`` are (offset, size) in bytes, in order."""

    instructions: Counter[int] = field(default_factory=Counter)
    parameters: list[tuple[int, int]] = field(default_factory=list)
    max_threads: int = 0

    def count(self, name: str) -> int:
        """How many instructions of a name in OPCODES the kernel has."""
        return self.instructions[OPCODES[name]]


def _sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of every section."""
    assert cubin[:5] == b"\x7fELF\x02", "not a 64-bit ELF file"
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + index * entry_bytes) for index in range(count)]
    names = headers[names_index][4]
    for name, kind, _, _, offset, size, *_ in headers:
        start = names + name
        text = cubin[start : cubin.index(b"\0", start)].decode()
        yield text, b"" if kind == NO_BITS else cubin[offset : offset + size]


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Attribute number and payload of the sized attributes of a .nv.info section."""
    position = 0
    while position + 4 <= len(content):
        kind, attribute, size = struct.unpack_from("<BBH", content, position)
        position += 4
        if kind == SIZED_FORMAT:
            yield attribute, content[position : position + size]
            position += size


def read_kernels(cubin: bytes) -> dict[str, Kernel]:
    """All kernels of a CUBIN by name."""
    kernels: dict[str, Kernel] = {}
    for name, content in _sections(cubin):
        if name.startswith(".text."):
            kernel = kernels.setdefault(name.removeprefix(".text."), Kernel())
            words = (struct.unpack_from("<H", content, at)[0] for at in range(0, len(content), INSTRUCTION_BYTES))
            kernel.instructions.update(word & 0xFFF for word in words)
        elif name.startswith(".nv.info."):
            kernel = kernels.setdefault(name.removeprefix(".nv.info."), Kernel())
            parameters = []
            for attribute, payload in _attributes(content):
                if attribute == KPARAM_INFO:
                    _, ordinal, offset, flags = struct.unpack("<IHHI", payload)
                    parameters.append((ordinal, offset, flags >> 18))
                elif attribute == MAX_THREADS:
                    kernel.max_threads = struct.unpack_from("<I", payload)[0]
            kernel.parameters = [(offset, size) for _, offset, size in sorted(parameters)]
    return kernels
