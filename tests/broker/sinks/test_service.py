"""Codes 30030 to 30034 through a broker: rows once, states that outlive a restart, refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.sinks.loading import row_in
from ropewalk.client.core.produce.row_identity import KEY_VERSION, Writer, row_prefix
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.batch import encode_batch
from ropewalk.format.record import encode_record
from ropewalk.format.remoting import Command
from tests.broker.harness import Client, InProcess, config_of

INIT, APPEND, COMMIT = (
    RequestCode.ROPEWALK_SINK_INIT,
    RequestCode.ROPEWALK_SINK_APPEND,
    RequestCode.ROPEWALK_SINK_COMMIT,
)


def init(client: Client, **given: object) -> dict[str, str]:
    answer = client.call(INIT, {"sinkId": "S", "topic": "T", "keyVersion": KEY_VERSION, **given})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext


def append(client: Client, rows: Sequence[int], *, body: bytes | None = None, **given: Any) -> Command:
    ext: dict[str, Any] = {
        "sinkId": "S", "epoch": 1, "attempt": 0, "query": "q", "batch": 0, "partition": 0, "topic": "T",
        "queueId": 0, "bornTimestamp": 5, **given,
    }  # fmt: skip
    items = [(0, b"row %d" % n, properties_of(ext, n)) for n in rows]
    return client.call(APPEND, ext, encode_batch(items) if body is None else body)


def properties_of(ext: dict[str, Any], number: int, ordinal: int = 0) -> bytes:
    writer = Writer(ext["epoch"], ext["partition"], ext["attempt"])
    prefix = row_prefix(ext["sinkId"], ext["query"], ext["batch"], writer)
    return b"TAGS\x01a\x02" + prefix + b"%016d%04d\x02" % (number, ordinal)


def counts(answer: Command) -> tuple[int, int]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.ext["appended"]), int(answer.ext["known"])


def commit(client: Client, rows: int, **given: object) -> Command:
    return client.call(
        COMMIT, {"sinkId": "S", "epoch": 1, "query": "q", "batch": 0, "rows": rows, "topic": "T", **given}
    )


def bodies(running: InProcess) -> list[bytes]:
    running.settle()
    return [record.body for number in range(4) for record in running.stored("T", number)]


def listed(client: Client) -> list[dict[str, Any]]:
    answer = client.call(RequestCode.ROPEWALK_SINK_LIST)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    sinks: list[dict[str, Any]] = json.loads(answer.body)["sinks"]
    return sinks


def test_rows_of_a_repeated_batch_are_stored_once_over_restarts_and_queues(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        assert init(client)["epoch"] == "1"
        assert counts(append(client, range(10))) == (10, 0)
        assert counts(append(client, range(5, 12), attempt=1, queueId=2)) == (2, 5)
        assert counts(append(client, range(5), attempt=1, queueId=3)) == (0, 5)
        assert counts(append(client, range(3), partition=1)) == (3, 0)
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        running.until(lambda: running.broker.sinks.is_loaded)
        assert init(client)["epoch"] == "2"
        assert counts(append(client, range(14), epoch=2)) == (2, 12)
        assert counts(append(client, range(14), epoch=2, queueId=1)) == (0, 14)
        assert commit(client, 17, epoch=2).code == ResponseCode.SUCCESS
        assert sorted(bodies(running)) == sorted([b"row %d" % n for n in [*range(14), 0, 1, 2]])
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        running.until(lambda: running.broker.sinks.is_loaded)
        state = init(client)
        assert (state["epoch"], state["query"], state["batch"]) == ("3", "q", "0")
        late = append(client, [99], epoch=3)
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        assert "was committed" in (late.remark or "")
        assert counts(append(client, range(2), epoch=3, batch=1)) == (2, 0)
        (row,) = listed(client)
        assert (row["sinkId"], row["epoch"], row["batch"], row["rows"], row["open"]) == ("S", 3, 0, 2, True)
        assert running.broker.sinks.fenced == 1


def test_a_kill_at_any_moment_leaves_a_window_that_knows_what_the_log_knows(tmp_path: Path) -> None:
    root = tmp_path / "a"
    config = config_of(root, flushDiskType="SYNC_FLUSH")
    running = InProcess(config)
    client = running.connect()
    init(client)
    append(client, range(20))
    running.settle()
    running.broker.store.release()  # as a crash leaves it
    with InProcess(config) as again:
        client = again.connect()
        again.until(lambda: again.broker.sinks.is_loaded)
        assert counts(append(client, range(25), epoch=1)) == (5, 20)


def test_a_batch_that_is_cut_otherwise_is_stored_once_over_restarts(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        init(client)
        append(client, [1, 2], attempt=1)
        append(client, [1, 3], attempt=2, partition=1)
        init(client)
        # Four rows of content 1 now, two of them in each task; the broker starts again when one is done.
        assert append_equal(client, 1, 2, epoch=2, attempt=3, partition=4) == (0, 2)
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        running.until(lambda: running.broker.sinks.is_loaded)
        assert append_equal(client, 1, 2, epoch=2, attempt=3, partition=4) == (0, 2)
        assert append_equal(client, 1, 2, epoch=2, attempt=4, partition=5) == (2, 0)
        assert counts(append(client, [2, 3], epoch=2, attempt=5, partition=0)) == (0, 2)
        assert commit(client, 6, epoch=2).code == ResponseCode.SUCCESS
        assert sorted(bodies(running)) == [b"row 1"] * 4 + [b"row 2", b"row 3"]


def append_equal(client: Client, row: int, count: int, **given: Any) -> tuple[int, int]:
    ext = {"query": "q", "batch": 0, "sinkId": "S", **given}
    items = [(0, b"row %d" % row, properties_of(ext, row, ordinal)) for ordinal in range(count)]
    return counts(append(client, [], body=encode_batch(items), **given))


def test_a_sink_belongs_to_one_topic_which_is_not_made_anew(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        init(client)
        append(client, range(3))
        commit(client, 3)
        (row,) = listed(client)
        assert row["topics"] == ["T"]
        other = client.call(INIT, {"sinkId": "S", "topic": "U", "keyVersion": KEY_VERSION})
        assert other.code == ResponseCode.ILLEGAL_OPERATION
        assert "writes to topic T, and this is topic U" in (other.remark or "")
        assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == ResponseCode.SUCCESS
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        running.until(lambda: running.broker.sinks.is_loaded)
        client.send("T")
        again = client.call(INIT, {"sinkId": "S", "topic": "T", "keyVersion": KEY_VERSION})
        assert again.code == ResponseCode.ILLEGAL_OPERATION
        assert "a topic T that was deleted" in (again.remark or "")


def test_a_topic_that_is_deleted_while_sinks_are_read_is_noted(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        init(client)
        append(client, range(3))
        commit(client, 3)
        sinks = running.broker.sinks
        sinks.is_loaded = False
        sinks.role_changed()
        sinks.topic_deleted("T")
        running.until(lambda: sinks.is_loaded)
        assert sinks.table.sinks["S"].is_topic_gone


def test_a_writer_of_version_0_1_is_refused_before_it_stores_anything(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        answer = client.call(INIT, {"sinkId": "S", "topic": "T"})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "version 0.1" in (answer.remark or "")
        assert not listed(client)


def test_zombies_append_nothing(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        init(client)
        append(client, range(3), attempt=4)
        assert append(client, [7], attempt=3).code == ResponseCode.ILLEGAL_OPERATION
        init(client)
        assert counts(append(client, range(3), epoch=2)) == (0, 3)
        assert append(client, [7], attempt=9).code == ResponseCode.ILLEGAL_OPERATION
        assert commit(client, 3).code == ResponseCode.ILLEGAL_OPERATION
        assert len(bodies(running)) == 3


def test_a_commit_tells_of_rows_that_are_not_there_or_too_many(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        init(client)
        append(client, range(3))
        for rows, words in ((2, "not deterministic"), (4, "lost with a master")):
            answer = commit(client, rows)
            assert answer.code == ResponseCode.ILLEGAL_OPERATION
            assert words in (answer.remark or "")
        assert commit(client, 3, digest="3:1", brokers="a,b").code == ResponseCode.SUCCESS
        assert commit(client, 3, digest="3:1", brokers="a,b").code == ResponseCode.SUCCESS
        state = init(client, brokers="c")
        assert (state["digest"], state["brokers"]) == ("3:1", "a,b")


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"sinkId": "a b"}, ResponseCode.INVALID_PARAMETER, "letters, digits"),
        ({"sinkId": "x" * 65}, ResponseCode.INVALID_PARAMETER, "65 characters"),
        ({"topic": "no blanks"}, ResponseCode.INVALID_PARAMETER, "contains ' '"),
        ({"topic": "%RETRY%g"}, ResponseCode.MESSAGE_ILLEGAL, "retry topic"),
        ({"queueId": 77}, ResponseCode.INVALID_PARAMETER, None),
        ({"body": b"nonsense"}, ResponseCode.MESSAGE_ILLEGAL, "item 0"),
        ({"body": encode_batch([(0, b"x", b"TAGS\x01a\x02")])}, ResponseCode.MESSAGE_ILLEGAL, "row 0 does not end"),
        ({"rows": [1, 1]}, ResponseCode.MESSAGE_ILLEGAL, "same key"),
    ],
)  # fmt: skip
def test_what_no_sink_may_send_is_refused_in_words_and_stores_nothing(
    tmp_path: Path, given: dict[str, Any], code: int, words: str | None
) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        client.send("T")
        answer = append(client, **{"rows": [1], **given})
        assert answer.code in (code, ResponseCode.MESSAGE_ILLEGAL), (answer.code, answer.remark)
        if words is not None:
            assert words in (answer.remark or ""), answer.remark
        assert bodies(running) == [b"x"]
        assert not listed(client)


def test_a_header_without_a_field_is_named(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        for code in (INIT, APPEND, COMMIT, RequestCode.ROPEWALK_SINK_FORGET):
            answer = client.call(code, {"topic": "T"})
            assert answer.code != ResponseCode.SUCCESS
            assert "sinkId" in (answer.remark or "")


def test_a_forgotten_sink_begins_anew_and_an_idle_one_is_forgotten(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, sinkExpiryHours=1)) as running:
        client = running.connect()
        init(client)
        append(client, [1])
        forget = client.call(RequestCode.ROPEWALK_SINK_FORGET, {"sinkId": "S"})
        assert forget.code == ResponseCode.SUCCESS
        again = client.call(RequestCode.ROPEWALK_SINK_FORGET, {"sinkId": "S"})
        assert again.code == ResponseCode.QUERY_NOT_FOUND
        assert append(client, [1]).code == ResponseCode.ILLEGAL_OPERATION
        assert not listed(client)
        epoch = init(client)["epoch"]
        assert counts(append(client, [1], epoch=epoch)) == (1, 0)
        running.tick(90 * 60_000)
        assert len(listed(client)) == 1, "a batch that is open may be repeated"
        assert commit(client, 1, epoch=epoch).code == ResponseCode.SUCCESS
        running.tick(30 * 60_000)
        assert len(listed(client)) == 1
        running.tick(31 * 60_000)
        assert not listed(client)
    with InProcess(config_of(tmp_path), now_ms=running.clock.ms) as running:
        running.until(lambda: running.broker.sinks.is_loaded)
        assert not listed(running.connect())


def test_a_state_that_found_no_room_on_the_disk_is_stored_with_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        with monkeypatch.context() as full:
            full.setattr(running.broker.store, "put", lambda *_given: 0)
            # Epoch 7 began under a master whose records did not come here.
            refused = append(client, range(3), epoch=7)
            assert (refused.code, refused.remark) == (
                ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full, the sink's state was not stored",
            )  # fmt: skip
        assert counts(append(client, range(3), epoch=7)) == (3, 0)
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        running.until(lambda: running.broker.sinks.is_loaded)
        assert counts(append(client, range(3), epoch=7)) == (0, 3)
        with monkeypatch.context() as full:
            full.setattr(running.broker.store, "put", lambda *_given: 0)
            assert commit(client, 3, epoch=7).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert commit(client, 3, epoch=7).code == ResponseCode.SUCCESS
    with InProcess(config_of(tmp_path)) as running:
        running.until(lambda: running.broker.sinks.is_loaded)
        (row,) = listed(running.connect())
        assert (row["batch"], row["open"]) == (0, False)


def test_a_start_begins_at_the_newest_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.sinks.service.TABLE_EVERY", 5)
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        for number in range(12):
            init(client, sinkId=f"S{number % 3}")
            running.tick(10)
        records = running.stored("rmq_sys_ROPEWALK_SINK")
        assert sum(record.tags == "T" for record in records) >= 2
    with InProcess(config_of(tmp_path)) as running:
        running.until(lambda: running.broker.sinks.is_loaded)
        assert {row["sinkId"]: row["epoch"] for row in listed(running.connect())} == {
            "S0": 4,
            "S1": 4,
            "S2": 4,
        }


def test_answers_wait_for_the_disk_also_where_the_rows_were_known(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, flushDiskType="SYNC_FLUSH")) as running:
        client = running.connect()
        init(client)
        assert counts(append(client, range(3))) == (3, 0)
        assert counts(append(client, range(3))) == (0, 3)
        assert running.broker.store.log.flushed_offset == running.broker.store.log.end_offset


def test_the_hidden_topic_is_in_no_list_and_nobody_sends_to_it(tmp_path: Path) -> None:
    for _ in range(2):
        with InProcess(config_of(tmp_path)) as running:
            client = running.connect()
            running.until(lambda: running.broker.sinks.is_loaded)
            init(client)
            answer = client.send("rmq_sys_ROPEWALK_SINK")
            assert answer.code != ResponseCode.SUCCESS
            topics = client.call(RequestCode.GET_ALL_TOPIC_CONFIG)
            assert b"ROPEWALK_SINK" not in topics.body


def test_a_batch_of_too_many_rows_is_refused_and_stores_nothing_of_them(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, sinkWindowRowsMax=5)) as running:
        client = running.connect()
        init(client)
        assert counts(append(client, range(4))) == (4, 0)
        refused = append(client, range(3, 7))
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "sinkWindowRowsMax" in (refused.remark or "")
        assert counts(append(client, range(4))) == (0, 4)
        assert len(bodies(running)) == 4


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_request_of_more_rows_than_are_judged_at_once_is_refused_in_words(
    tmp_path: Path, is_alike: bool
) -> None:
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        init(client)
        rows = range(1_000, 1_501) if is_alike else range(9_700, 10_201)
        refused = append(client, rows)
        assert (refused.code, refused.remark) == (13, "a request of a sink has at most 500 rows")
        assert counts(append(client, rows[1:])) == (500, 0)


@pytest.mark.parametrize("flags", [0, 0x10, 0x20, 0x30])
def test_a_row_is_found_in_its_record_and_not_in_a_body_that_looks_like_one(flags: int) -> None:
    forged = row_prefix("S", "q", 1, Writer(1, 2, 3)) + b"0123456789abcdef0000"
    hosts = [bytes(20) if flags & bit else bytes(8) for bit in (0x10, 0x20)]

    def record(body: bytes, properties: bytes) -> bytes:
        return encode_record(b"T", 0, 0, 5, 0, flags, 1, hosts[0], 2, hosts[1], 0, 0, body, properties)

    assert row_in(record(forged, b"TAGS\x01a\x02")) is None
    assert row_in(record(b"x", b"TAGS\x01a\x02")) is None
    assert row_in(record(forged, row_prefix("S", "q", 3, Writer(4, 5, 6)) + b"fedcba98765432100000\x02")) == (
        "S", "q", 3, (4, 5, 6), b"fedcba98765432100000",
    )  # fmt: skip
    assert row_in(record(b"x", forged)) == ("S", "q", 1, (1, 2, 3), b"0123456789abcdef0000")
    assert row_in(record(b"x", b"RW_SINK\x01nonsense\x02")) is None
