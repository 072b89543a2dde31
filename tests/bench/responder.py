"""A broker with nothing in it: answers every send with status 0 as cheaply as Python can.

What the load reaches against it is the load's own limit, so a figure of a real broker that comes near it
is a figure of the load. All frames of one read are recognised by the first one's size, which the load's
fixed-width patterns allow, and answered by one `%` over a repeated template.

Run as a program it prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import sys

_REPLY_HEADER = (
    b'{"code":0,"extFields":{"queueId":"3","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"7F00000100002A9F00000000000003E8","queueOffset":"1000000"},'
    b'"flag":1,"language":"JAVA","opaque":##########,"serializeTypeCurrentRPC":"JSON","version":479}'
)
_REPLY = (struct.pack(">ii", len(_REPLY_HEADER) + 4, len(_REPLY_HEADER)) + _REPLY_HEADER).replace(b"%", b"%%")
# JSON has room for blanks before a number, so that the length is right for shorter opaques as well.
REPLY = _REPLY.replace(b"##########", b"%10b")
_OPAQUE = re.compile(rb'"opaque":(\d+)').findall


def answer(data: bytes) -> tuple[bytes, bytes]:
    """Replies to all whole frames of `data`, every one as long as the first, and what is left over."""
    if len(data) < 4:
        return b"", data
    size = 4 + int.from_bytes(data[:4], "big")
    count = len(data) // size
    end = count * size
    opaques = _OPAQUE(data, 0, end)
    assert len(opaques) == count, "frames of one connection must all be of one size"
    return REPLY * count % tuple(opaques), data[end:]


def serve(listener: socket.socket, until: int) -> None:
    """Serve until the file descriptor `until` becomes readable."""
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    epoll.register(until, select.EPOLLIN)
    peers: dict[int, tuple[socket.socket, bytes]] = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == until:
                return
            if fd == listener.fileno():
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers[sock.fileno()] = (sock, b"")
                epoll.register(sock.fileno(), select.EPOLLIN)
                continue
            sock, rest = peers[fd]
            data = sock.recv(1 << 18)
            if not data:
                epoll.unregister(fd)
                sock.close()
                del peers[fd]
                continue
            replies, rest = answer(rest + data)
            peers[fd] = (sock, rest)
            sock.sendall(replies)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        serve(listener, sys.stdin.fileno())


if __name__ == "__main__":
    main()
