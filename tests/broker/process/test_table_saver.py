"""Tables on disk: who waits for a change to be kept is told of that, or why it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from broker.process.table_saver import Dumps, TableSaver
from broker.state import json_file
from broker.state.json_text import at_once
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from tests.broker.harness import send_ext
from tests.support.brokers import address_of, ask, broker, stderr_of
from tests.support.waiting import until

TOPIC: dict[str, object] = {
    "topic": "NEW",
    "defaultTopic": "TBW102",
    "readQueueNums": "3",
    "writeQueueNums": "3",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
GROUP = json.dumps({"groupName": "gg"}).encode()


def table(path: Path, version: int, dump: Callable[[], bytes] = lambda: b"{}") -> Dumps:
    return {path: (version, lambda: at_once(dump()))}


def save(saver: TableSaver, dumps: Dumps) -> None:
    trio.run(saver.save_tables, dumps)


def test_who_waits_for_a_change_is_told_when_that_version_is_on_disk(tmp_path: Path) -> None:
    path, told = tmp_path / "config" / "topics.json", list[tuple[str, str | None]]()
    saver = trio.run(made)
    saver.when_kept(path, 1, lambda why: told.append(("one", why)))
    saver.when_kept(path, 2, lambda why: told.append(("two", why)))
    save(saver, table(path, 1))
    assert told == [("one", None)]
    assert path.read_bytes() == b"{}"
    save(saver, table(path, 2))
    saver.when_kept(path, 2, lambda why: told.append(("nothing changed", why)))
    save(saver, table(path, 2))
    assert told == [("one", None), ("two", None), ("nothing changed", None)]


def test_a_change_that_came_while_its_table_was_written_waits_for_the_next_time(tmp_path: Path) -> None:
    path, told = tmp_path / "config" / "topics.json", list[str | None]()
    saver = trio.run(made)

    def dump() -> bytes:
        saver.when_kept(path, 2, told.append)
        return b"{}"

    save(saver, table(path, 1, dump))
    assert not told
    save(saver, table(path, 2))
    assert told == [None]


def test_a_file_that_cannot_be_written_is_told_once_and_told_again_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "config" / "topics.json", list[str | None]()
    saver = trio.run(made)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr(json_file, "save", full)
            for version in range(1, 4):
                saver.when_kept(path, version, told.append)
                save(saver, table(path, version))
        save(saver, table(path, 3))
    assert told == ["No space left on device"] * 3
    assert [each["event"] for each in logs] == [
        "cannot write a config file",
        "a config file is written again",
    ]


async def made() -> TableSaver:
    return TableSaver(None)


def test_an_administrator_hears_that_a_new_topic_or_group_cannot_be_kept(tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ("--set", f"storePathRootDir={store}")
    with broker(tmp_path, *words) as running, Connection(address_of(running)) as connection:

        def make() -> list[Command]:
            return [
                ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC),
                ask(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP),
            ]

        until((store / "config" / "topics.json").exists)
        (store / "config").rename(store / "away")
        (store / "config").touch()  # what no file can be written into
        for answer, name in zip(make(), ("topics.json", "subscriptionGroup.json"), strict=True):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark is not None and f"{name} cannot be written" in answer.remark
        assert ask(connection, RequestCode.SEND_MESSAGE_V2, send_ext("MADE_BY_A_SEND"), b"x").code == 0
        (store / "config").unlink()
        (store / "away").rename(store / "config")
        assert [answer.code for answer in make()] == [0, 0]
        kept = {
            name: (store / "config" / name).read_text() for name in ("topics.json", "subscriptionGroup.json")
        }
        assert '"NEW"' in kept["topics.json"]
        assert '"gg"' in kept["subscriptionGroup.json"]
    assert stderr_of(tmp_path).count("cannot write a config file") <= 9, "once for each file"


def test_a_large_table_is_not_written_at_once_again_unless_somebody_waits_for_it(tmp_path: Path) -> None:
    """A client that makes a topic with each send would else have the whole table written each time."""
    path = tmp_path / "config" / "topics.json"

    async def run() -> None:
        saver = TableSaver(None)
        large = b'{"a":"' + b"x" * (16 << 20) + b'"}'
        await saver.save_tables(table(path, 1, lambda: large))
        began = trio.current_time()
        saver.save_soon()
        await saver.wait(5)
        assert 1 < trio.current_time() - began <= 2.5
        await saver.save_tables(table(path, 2, lambda: large))
        began = trio.current_time()
        saver.save_soon()
        saver.when_kept(path, 3, lambda why: None)
        await saver.wait(5)
        assert trio.current_time() == began

    trio.run(run, clock=MockClock(autojump_threshold=0))
