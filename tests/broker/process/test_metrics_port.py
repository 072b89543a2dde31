"""The port of the metrics: the first free one of a row, or any where the whole row is taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from broker.web.server import MetricsServer

ROW = 3


@pytest.fixture
def first() -> Iterator[int]:
    """The first of a row of ports that are all taken."""
    for begin in range(20_000, 30_000, ROW):
        taken: list[socket.socket] = []
        try:
            for port in range(begin, begin + ROW):
                taken.append(socket.create_server(("127.0.0.1", port)))
            yield begin
            return
        except OSError:
            continue
        finally:
            for each in taken:
                each.close()


def test_where_a_whole_row_of_ports_is_taken_any_free_one_serves(first: int) -> None:
    server = MetricsServer(lambda: pytest.fail("nobody visits"), lambda: 0)
    try:
        assert server.listen("127.0.0.1", first, tried=ROW) not in range(first, first + ROW)
    finally:
        server.stop()


def test_a_port_that_was_asked_for_and_is_taken_is_refused(first: int) -> None:
    server = MetricsServer(lambda: pytest.fail("nobody visits"), lambda: 0)
    try:
        with pytest.raises(OSError, match="in use"):
            server.listen("127.0.0.1", first)
    finally:
        server._socket = socket.socket()
        server.stop()
