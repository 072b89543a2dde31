"""Linearizable reads of a DLedger group: code 14 at the leader, so many in flight, and what each costs its processor.

    python -m tests.bench.ledger_reads [--reads 50000] [--in-flight 64] [--lease]

Three real brokers on this machine; the client sends frames that were made before, and counts answers. Processor time
is the leader's own, from /proc: it does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from pathlib import Path

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.crash.ledger_group import LedgerGroup, Member

TOPIC, GROUP = "T", "readers"


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=50_000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--lease", action="store_true", help="with raftLeaseReads")
    options = parser.parse_args()
    settings: dict[str, str | int] = {"raftLeaseReads": str(options.lease).lower()}
    with tempfile.TemporaryDirectory() as folder, LedgerGroup(Path(folder), settings=settings) as group:
        leader = group.leader()
        _prepare(leader)
        _read(leader, 2_000, options.in_flight)
        before, began = _spent(leader), time.perf_counter()
        _read(leader, options.reads, options.in_flight)
        seconds, spent = time.perf_counter() - began, _spent(leader) - before
    print(
        f"{options.reads} reads, {options.in_flight} in flight, lease {options.lease}: {options.reads / seconds:,.0f} a"
        f" second; {spent / options.reads * 1e6:.1f} us of the leader's processor each, which is"
        f" {options.reads / spent:,.0f} a second of it"
    )


def _prepare(leader: Member) -> None:
    with Connection(leader.address, 5.0) as connection:
        calls = [
            Command(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"%s"}' % GROUP.encode()
            ),
            send_request(TOPIC, Queue("", 0), Message(b"x"), "K", 0),
            Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**_QUEUE, "commitOffset": "1"}),
        ]
        for call in calls:
            answer = connection.call(call)
            assert answer.code == ResponseCode.SUCCESS, answer.remark


_QUEUE = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}


def _read(leader: Member, count: int, in_flight: int) -> None:
    """Keep so many reads under way until `count` are answered."""
    request = Command(RequestCode.QUERY_CONSUMER_OFFSET, _QUEUE)
    frame = encode_frame(request)
    host, port = leader.address.split(":")
    frames = FrameBuffer()
    with socket.create_connection((host, int(port))) as link:
        link.sendall(frame * in_flight)
        asked, answered = in_flight, 0
        while answered < count:
            payloads = list(frames.feed(link.recv(1 << 16)))
            if answered == 0 and payloads:
                assert decode_frame(payloads[0]).ext["offset"] == "1"
            answered += len(payloads)
            if more := min(len(payloads), count - asked):
                link.sendall(frame * more)
                asked += more


def _spent(member: Member) -> float:
    """Return the seconds of processor time that a member has had."""
    fields = Path(f"/proc/{member.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
