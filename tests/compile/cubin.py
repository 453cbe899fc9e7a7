# SPDX-License-Identifier: Apache-2.0
"""What a cubin says of its one kernel: an ELF file with NVIDIA's sections."""
import re
import struct

NOBITS = 8
RESERVED_SHARED = 1024  # for the driver: from sm_90 on a kernel's shared section begins with it
FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE, REGISTERS = 0x11, 0x12, 0x23, 0x2F  # attributes of .nv.info


def sections(data):
    """Name -> (size, content)."""
    assert data[:6] == b"\x7fELF\x02\x01", "not a 64-bit ELF file"
    table, = struct.unpack_from("<Q", data, 0x28)
    entry, count, names = struct.unpack_from("<3H", data, 0x3A)
    headers = [struct.unpack_from("<2I4Q2I2Q", data, table + i * entry) for i in range(count)]
    strings = data[headers[names][4]:]
    result = {}
    for name, kind, _, _, offset, size, *_ in headers:
        text = strings[name:strings.index(b"\0", name)].decode()
        result[text] = (size, b"" if kind == NOBITS else data[offset:offset + size])
    return result


def attributes(info):
    """(attribute, value) of the records of .nv.info that give one number for one symbol."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<2BH", info, at)
        at += 4
        if form == 4:  # the others have their value in place of the size
            if size == 8:
                yield attribute, struct.unpack_from("<I", info, at + 4)[0]
            at += size


class Cubin:
    def __init__(self, data, target):
        parts = sections(data)
        values = list(attributes(parts[".nv.info"][1]))

        def largest(*wanted):
            return max((value for attribute, value in values if attribute in wanted), default=0)

        def total(prefix):
            return sum(size for name, (size, _) in parts.items() if name.startswith(prefix))

        self.registers = largest(REGISTERS)
        self.local = largest(FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE) + total(".nv.local.")
        self.shared = sum(max(0, size - (RESERVED_SHARED if target >= 90 else 0)) for name, (size, _) in parts.items()
                          if name.startswith(".nv.shared.") and name != ".nv.shared.reserved.0")
        self.code = total(".text.")
        tool = re.search(rb"Cuda compilation tools, release [0-9.]+, V([0-9.]+)", data)
        self.compiler = tool.group(1).decode() if tool else "unknown"
        self.calls_driver = b"__cuda_syscall" in data
