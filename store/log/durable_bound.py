"""`ropewalk/bound`: how far this store is known to be good, so that recovery need not guess.

    magic "RWB2" | flushed i64 | queues i64 | entries i64 | end i64 | clean u8 | boot id 16 bytes | CRC32C u32

`flushed`: log bytes below it have survived an fdatasync. `queues`: every record below it has its queue entry in a
queue file (in the page cache: trusted only while the machine has not been rebooted since). `entries`: the files of
all queues together hold at least so many, which is how the loss of one is noticed. `end` and `clean`: the
log ended here when the broker was stopped in good order. The file only ever claims less than the truth, so it is
written without fsync, and a torn one counts as none. Deleting it costs time at the next start, and never messages.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import crc32c

from store.io.disk import Disk

_BODY = struct.Struct(">4sqqqqB16s")
_CRC = struct.Struct(">I")
_MAGIC = b"RWB2"
BOUND_SIZE = _BODY.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Bound:
    flushed: int = 0
    queues: int = 0
    entries: int = 0
    end: int = 0
    clean: bool = False
    boot: bytes = bytes(16)

    def encode(self) -> bytes:
        body = _BODY.pack(_MAGIC, self.flushed, self.queues, self.entries, self.end, self.clean, self.boot)
        return body + _CRC.pack(crc32c.crc32c(body))


def decode_bound(data: bytes | None) -> Bound | None:
    if data is None or len(data) != BOUND_SIZE:
        return None
    body = data[: _BODY.size]
    magic, flushed, queues, entries, end, clean, boot = _BODY.unpack(body)
    if magic != _MAGIC or _CRC.unpack(data[_BODY.size :])[0] != crc32c.crc32c(body):
        return None
    return Bound(flushed, queues, entries, end, bool(clean), boot)


def boot_id(disk: Disk) -> bytes:
    """Sixteen bytes that change with every boot of the machine; zeros where the kernel does not tell."""
    text = disk.read_file(Path("/proc/sys/kernel/random/boot_id")) or b""
    return bytes.fromhex(text.decode().strip().replace("-", "")) if text else bytes(16)
