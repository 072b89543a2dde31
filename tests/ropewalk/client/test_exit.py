"""The end of a program that did not close its producer: what it handed over is sent, or somebody is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.testing import RopewalkBroker
from tests.support.ports import free_ports
from tests.support.processes import checkout_environment

BLOCKING = """
import sys
from ropewalk import Producer

producer = Producer(linger=60, timeout=float(sys.argv[2]))
for number in range(50):
    producer.send_async(sys.argv[1], b"%d" % number)
"""
IN_A_LOOP = """
import asyncio, sys, trio
from ropewalk import AsyncProducer

async def main():
    producer = AsyncProducer(linger=60)
    await producer.start()
    for number in range(50):
        await producer.send_async(sys.argv[1], b"%d" % number)

trio.run(main) if sys.argv[2] == "trio" else asyncio.run(main())
"""


def run(program: str, folder: Path, name_server: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**checkout_environment(), "NAMESRV_ADDR": name_server},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.slow
def test_what_a_blocking_producer_has_pending_is_sent(
    ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    topic = ropewalk_broker.topic()
    done = run(BLOCKING, tmp_path, ropewalk_broker.namesrv, topic, "30")
    assert done.stderr == ""
    assert {each.body for each in ropewalk_broker.messages(topic, 50)} == {b"%d" % n for n in range(50)}


@pytest.mark.slow
def test_what_cannot_be_sent_any_more_is_told(tmp_path: Path) -> None:
    done = run(BLOCKING, tmp_path, f"127.0.0.1:{free_ports(1)[0]}", "orders", "0.5")
    assert "send failed" in done.stderr or "messages lost" in done.stderr
    assert "50" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_what_a_loop_that_ends_leaves_behind_is_told(
    ropewalk_broker: RopewalkBroker, tmp_path: Path, loop: str
) -> None:
    done = run(IN_A_LOOP, tmp_path, ropewalk_broker.namesrv, ropewalk_broker.topic(), loop)
    assert "messages given up" in done.stderr and "50" in done.stderr
