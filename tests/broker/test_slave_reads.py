"""Who is sent where to read, and what a slave answers with its master there and without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.codes import PullSysFlag, RequestCode, ResponseCode
from tests.broker.harness import Client, InProcess, config_of, pull_ext, without_fsync
from tests.support.links import FakeHaLink

SUBSCRIBED = PullSysFlag.SUBSCRIPTION
PATIENT = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND


def suggested(client: Client, **header: object) -> tuple[int, str]:
    answer = client.pull("T", **header)
    return answer.code, answer.ext["suggestWhichBrokerId"]


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path, slaveReadEnable=True)) as running:
        yield running


def fill(process: InProcess, count: int = 4) -> None:
    client = process.connect()
    for number in range(count):
        client.send("T", b"%d" % number * 500)


def memory(process: InProcess, size: int) -> None:
    reader = process.broker.reader
    reader.limits = replace(reader.limits, memory_window=size)


def test_a_consumer_far_behind_is_sent_to_the_slave_and_back_when_it_has_caught_up(master: InProcess) -> None:
    fill(master)
    client = master.connect()
    memory(master, 900)
    assert suggested(client, maxMsgNums=1) == (0, "1")
    assert suggested(client, maxMsgNums=1, queueOffset=3) == (0, "0")


def test_without_slave_read_enable_nobody_is_sent_away(master: InProcess) -> None:
    fill(master)
    memory(master, 1)
    processor = master.broker.processors.pulls
    processor.configure(replace(processor._rules, slave_reads=False))
    assert suggested(master.connect(), maxMsgNums=1) == (0, "0")


@pytest.fixture
def slave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    """A slave with four messages whose master is gone."""
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path)) as running:
        fill(running)
    config = config_of(
        tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="10.0.0.1:10912", slaveReadEnable=True
    )
    with InProcess(config) as running:
        yield running


def test_a_slave_alone_serves_and_lets_consumers_wait_at_the_end(slave: InProcess) -> None:
    client = slave.connect()
    assert client.pull("T").code == ResponseCode.SUCCESS
    client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=4, sysFlag=PATIENT))
    assert client.answers() == [], "it is held, and not sent into a circle"
    slave.tick(15_000)
    assert client.answer().code == ResponseCode.PULL_NOT_FOUND


def test_a_slave_never_sends_a_consumer_back_to_what_it_has_itself(slave: InProcess) -> None:
    client = slave.connect()
    code, where = suggested(client, queueOffset=9)
    assert (code, where) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=9, sysFlag=PATIENT))
    assert client.answers() == [], "it waits until the slave has that much, or is no slave any more"


def test_with_its_master_there_a_slave_sends_whom_it_served_back(
    slave: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    replication = slave.broker.replication
    assert replication.client is not None
    monkeypatch.setattr(replication.client, "link", FakeHaLink())
    client = slave.connect()
    assert suggested(client) == (0, "0")
    assert suggested(client, queueOffset=4, sysFlag=PATIENT) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    memory(slave, 1)
    assert suggested(client) == (0, "1"), "still far behind: it stays"
    monkeypatch.setattr(replication.client, "link", None)


def test_offsets_are_committed_at_a_slave_and_told_to_the_master(slave: InProcess) -> None:
    client = slave.connect()
    client.pull("T", sysFlag=SUBSCRIBED | PullSysFlag.COMMIT_OFFSET, commitOffset=3, queueOffset=3)
    assert slave.broker.offsets.query("cg", "T", 0) == 3
    changed, _sequence = slave.broker.offsets.journal.since(0)
    assert [key for key, _time in changed] == [("T", "cg", 0)]
