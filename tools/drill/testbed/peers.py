"""Find the process at the other end of a connection: the kernel is asked, because nothing on the wire tells it.

Every process of a throw-away cluster connects to the same few addresses: the ones that the name server tells. A proxy
that is to cut the master from its slave, and not from its clients, has to know which process a connection came from.
On one machine the kernel knows: `/proc/net/tcp` names the socket behind a port, `/proc/PID/fd` who holds it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

_TABLE = Path("/proc/net/tcp")


def encode_address(host: str, port: int) -> str:
    """An address as the kernel's table spells it: the four bytes as one number of this machine, and the port."""
    (number,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{number:08X}:{port:04X}"


def socket_inode(host: str, port: int, peer_host: str, peer_port: int, table: str) -> int | None:
    """The socket with these two ends, from the text of the kernel's table."""
    wanted = encode_address(host, port), encode_address(peer_host, peer_port)
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and (fields[1], fields[2]) == wanted:
            return int(fields[9])
    return None


def holder(inode: int, pids: Iterable[int]) -> int | None:
    """Which of these processes holds the socket."""
    wanted = f"socket:[{inode}]"
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue  # it has just ended
        for name in names:
            try:
                if os.readlink(f"{folder}/{name}") == wanted:
                    return pid
            except OSError:
                continue
    return None


def who_connected(source: tuple[str, int], target: tuple[str, int], pids: Iterable[int]) -> int | None:
    """The process among `pids` that made the connection from `source` to `target`; None if it is another one."""
    try:
        table = _TABLE.read_text()
    except OSError:
        return None
    inode = socket_inode(*source, *target, table)
    return None if inode is None else holder(inode, pids)
