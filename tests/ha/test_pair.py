"""Two brokers on real sockets and files: the slave has its master's bytes, whatever is killed in between."""

from __future__ import annotations

import socket
from pathlib import Path

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import ResponseCode
from tests.ha.pairs import SEGMENT_SIZE, Pair, Traffic, missing, send, until_acknowledged
from tests.support.ports import free_ports
from tests.support.waiting import until


def test_a_slave_follows_through_rolls_kills_and_reconnects_and_nothing_acknowledged_is_missing(
    tmp_path: Path,
) -> None:
    with Pair(tmp_path) as pair:
        (port,) = free_ports(1)
        master = pair.start("master", brokerRole="SYNC_MASTER", listenPort=port, haListenPort=port + 1)
        with Connection(master.address, 30.0) as connection:
            assert send(connection, 1, "early") == ResponseCode.SLAVE_NOT_AVAILABLE
        pair.start("slave", brokerRole="SLAVE", brokerId=1)
        until_acknowledged(master.address)
        traffic = Traffic(master.address)
        traffic.start()
        try:
            for _ in range(2):
                wait_for_bytes(pair, "slave", 2)
                pair.kill("slave")
                until(lambda: traffic.codes[ResponseCode.SLAVE_NOT_AVAILABLE] > 0, pair.errors)
                before = traffic.codes[ResponseCode.SUCCESS]
                pair.start("slave")
                until(lambda b=before: traffic.codes[ResponseCode.SUCCESS] > b + 50, pair.errors)  # type: ignore[misc]
            acknowledged = list(traffic.acknowledged)
            pair.kill("master")
            assert missing(pair.log_of("slave"), acknowledged) == [], "0 means that the slave has it"
            pair.start("master")
            before = traffic.codes[ResponseCode.SUCCESS]
            until(lambda: traffic.codes[ResponseCode.SUCCESS] > before + 50, pair.errors)
        finally:
            traffic.end()
        pair.until_equal()
        assert len(list(pair.log_of("slave").iterdir())) > 4, "the log has rolled"
        assert set(traffic.codes) <= {0, 11, 12, 14}, "14: a master that starts looks for a newer one first"
        assert missing(pair.log_of("slave"), traffic.acknowledged) == []
        pair.end("slave")
        pair.end("master")
        pair.until_equal()


def wait_for_bytes(pair: Pair, name: str, segments: int) -> None:
    """Until so many more segments have come."""
    begun = len(list(pair.log_of(name).iterdir()))
    until(lambda: len(list(pair.log_of(name).iterdir())) >= begun + segments, pair.errors)


def test_an_empty_slave_gets_everything_from_the_disk_too(tmp_path: Path) -> None:
    """The master was restarted and its warm window is small: nearly all of it is read by the reader thread."""
    with Pair(tmp_path, warmWindowBytes=1 << 20, checkAtStartBytes=0) as pair:
        master = pair.start("master", brokerRole="ASYNC_MASTER")
        with Connection(master.address, 30.0) as connection:
            for number in range(120):
                assert send(connection, number, size=60_000) == 0
        pair.end("master")
        pair.start("master")
        pair.start("slave", brokerRole="SLAVE", brokerId=1)
        pair.until_equal()
        assert len(list(pair.log_of("slave").iterdir())) * SEGMENT_SIZE > 7 << 20


def test_strangers_on_the_ha_port_are_hung_up_on_and_hurt_nobody(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        master = pair.start("master", brokerRole="SYNC_MASTER")
        host, _, port = str(master.ready["ha"]).rpartition(":")
        slave = pair.start("slave", brokerRole="SLAVE", brokerId=1)
        with Connection(slave.address, 30.0) as connection:
            assert send(connection, 1) == ResponseCode.SYSTEM_BUSY
        until_acknowledged(master.address)
        for words in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\xff" * 64,
            (1 << 40).to_bytes(8, "big"),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        ):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                stranger.sendall(words)
                assert stranger.recv(100) == b"", words
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            stranger.sendall(bytes(8))
            assert stranger.recv(12), "an empty slave, for all anyone knows: it is sent the log"
            with Connection(master.address, 30.0) as connection:
                assert {send(connection, number) for number in range(20)} == {0}, "it took nobody's place"
        pair.kill("slave")
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            stranger.sendall(bytes(8))
            with Connection(master.address, 30.0) as connection:
                codes = {send(connection, number) for number in range(2)}
            assert codes <= {11, 12}, "nobody counts who is not registered"


def test_a_planned_stop_of_the_only_slave_makes_no_producer_wait(tmp_path: Path) -> None:
    """In the time that a client waits by default, an answer that comes late is an unknown outcome."""
    with Pair(tmp_path) as pair:
        master = pair.start("master", brokerRole="SYNC_MASTER", slaveTimeout=15_000)
        pair.start("slave", brokerRole="SLAVE", brokerId=1)
        until_acknowledged(master.address)
        traffic = [Traffic(master.address, topic=f"T{n}") for n in range(4)]
        for each in traffic:
            each.start()
        try:
            for _ in range(2):
                before = [each.codes[ResponseCode.SUCCESS] for each in traffic]
                until(
                    lambda b=before: all(  # type: ignore[misc]
                        each.codes[ResponseCode.SUCCESS] > n + 20 for each, n in zip(traffic, b, strict=True)
                    ),
                    pair.errors,
                )
                pair.end("slave")
                said = pair.places["slave"].errors()
                assert "this broker is stopping" in said, "it hangs up before it closes its store"
                pair.start("slave")
        finally:
            for each in traffic:
                each.end()
        assert {code for each in traffic for code in each.codes} == {0, 11}, pair.errors()
        assert "producers are answered without a slave" in pair.errors()
