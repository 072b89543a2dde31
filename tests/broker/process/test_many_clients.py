"""Whole clusters from one address: bounds that strangers meet are none to many honest clients in one place."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode
from tests.broker.harness import heartbeat_body, request, send_ext
from tests.support.brokers import PATIENCE_S, address_of, ask, broker, stderr_of

CLIENTS_MAX = 20_000
KEPT = 1_200
"""Descriptors that the broker and the test keep for themselves."""
AT_ONCE = 1_000


def connect_all(count: int, host: str, port: int) -> list[socket.socket]:
    """Connect so many clients, `AT_ONCE` at a time, and return them; a heartbeat of each has been answered."""
    clients: list[socket.socket] = []
    while len(clients) < count:
        fresh = []
        for n in range(len(clients), min(len(clients) + AT_ONCE, count)):
            client = socket.create_connection((host, port), timeout=PATIENCE_S)
            body = heartbeat_body(client_id=f"client-{n}", group=None, producers=["pg"])
            client.sendall(request(RequestCode.HEART_BEAT, body=body))
            fresh.append(client)
        clients += fresh
        for client in fresh:
            assert b'"code":0' in client.recv(4096), "a client was hung up on"
    return clients


@pytest.mark.slow
def test_twenty_thousand_clients_of_one_address_and_a_storm_of_their_reconnects_pass(tmp_path: Path) -> None:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = CLIENTS_MAX if hard == resource.RLIM_INFINITY else min(CLIENTS_MAX, hard - KEPT)
    if count < 2_000:
        pytest.skip(f"this machine allows {hard} open files")
    try:
        with broker(tmp_path, "--set", "channelExpiredTimeout=600000") as running:
            host, _, port = address_of(running).rpartition(":")
            with Connection(address_of(running)) as witness:
                assert ask(witness, RequestCode.SEND_MESSAGE_V2, send_ext("T")).code == 0
                for _ in range(2):
                    clients = connect_all(count, host, int(port))
                    assert ask(witness, RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"meanwhile").code == 0
                    listed = ask(witness, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"})
                    assert listed.body.count(b'"clientId":"client-') == count
                    for client in clients:
                        client.close()  # all at once, and then they come again
        said = stderr_of(tmp_path)
        assert "closed" not in said and "cannot accept" not in said
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
