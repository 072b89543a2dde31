"""A stranger on a real port: it answers whatever the test says, and keeps what it was asked."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from broker.state.topics import TopicConfig, TopicTable
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame

__all__ = ["Stranger", "packed"]

Answers = Callable[[Command], Command | None]


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


class Stranger:
    """A server that answers requests with what `answers` returns; None: 3, as for a code that is not known."""

    def __init__(self, answers: Answers) -> None:
        self.asked: list[Command] = []
        self._answers = answers
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: list[socket.socket | Connection] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Stranger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._socket, *self._open):
            each.close()

    def count(self, code: int) -> int:
        """Return how often it was asked this code."""
        return sum(each.code == code for each in self.asked)

    def _serve(self) -> None:
        while True:
            try:
                link, _peer = self._socket.accept()
            except OSError:
                return
            self._open.append(link)
            threading.Thread(target=self._talk, args=(link,), daemon=True).start()

    def _talk(self, link: socket.socket) -> None:
        frames = FrameBuffer()
        try:
            while data := link.recv(65536):
                for payload in frames.feed(data):
                    request = decode_frame(payload)
                    self.asked.append(request)
                    answer = self._answers(request) or request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
                    link.sendall(encode_frame(answer))
        except (OSError, RemoteProtocolError):
            link.close()

    def register(self, name_server: str, broker_id: int) -> None:
        """Register as a broker of this group, as anybody can, for as long as this stranger lives."""
        topics = TopicTable()
        for name in ("T", "U"):
            topics.update(TopicConfig(name), 1)
        body = topics.register_body()
        ext = {
            "brokerName": "broker-a", "brokerAddr": self.address, "clusterName": "DefaultCluster",
            "haServerAddr": self.address, "brokerId": str(broker_id), "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        }  # fmt: skip
        connection = Connection(name_server, 10.0)
        self._open.append(connection)
        answer = connection.call(Command(RequestCode.REGISTER_BROKER, ext, body))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
