"""Messages by key, unique key and tag (code 12), and what a disk that is nearly full lets through."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import JSON, ROCKETMQ, Command
from store.io.disk import Disk, Space
from tests.broker.harness import Client, InProcess, request, send_ext
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
QUERY = RequestCode.QUERY_MESSAGE
FOREVER = 2**63 - 1


def query(client: Client, key: str, *, unique: bool = False, kind: int = JSON, **changes: object) -> Command:
    ext: dict[str, object] = {
        "topic": "T",
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": FOREVER,
        **({"_UNIQUE_KEY_QUERY": "true"} if unique else {}),
        **changes,
    }
    return client.call(QUERY, ext, serialize_type=kind)


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [record.body for record in decode_records(answer.body)]


def send(client: Client, body: bytes, topic: str = "T", **properties: str) -> Command:
    answer = client.send(topic, body, properties=properties)
    assert answer.code == 0, answer.remark
    return answer


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])
def test_a_message_sent_a_moment_ago_is_found_by_key_unique_key_and_tag(client: Client, kind: int) -> None:
    send(client, b"one", KEYS="order-1 order-2", UNIQ_KEY="U1", TAGS="red")
    send(client, b"two", KEYS="order-2", UNIQ_KEY="U2")
    assert bodies(query(client, "order-1", kind=kind)) == [b"one"]
    assert bodies(query(client, "order-2", kind=kind)) == [b"one", b"two"]
    assert bodies(query(client, "U2", kind=kind, unique=True)) == [b"two"]
    assert bodies(query(client, "U1", kind=kind, indexType="U")) == [b"one"]
    assert bodies(query(client, "red", kind=kind, indexType="T")) == [b"one"]
    assert query(client, "red", kind=kind).code == ResponseCode.QUERY_NOT_FOUND


def test_the_answer_tells_how_far_the_index_has_come(client: Client) -> None:
    send(client, b"x", KEYS="k")
    client.owner.clock.ms += 5
    last = send(client, b"y", KEYS="k")
    answer = query(client, "k")
    offset = int(last.ext["msgId"][-16:], 16)
    assert answer.ext == {
        "indexLastUpdateTimestamp": str(START_MS + 5),
        "indexLastUpdatePhyoffset": str(offset),
    }


def test_nothing_found_is_22_with_the_header_and_never_an_empty_success(client: Client) -> None:
    send(client, b"x", KEYS="k")
    answer = query(client, "other")
    assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
    assert answer.remark == "can not find message, maybe time range not correct"
    assert set(answer.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}


def test_an_empty_broker_finds_nothing(client: Client) -> None:
    answer = query(client, "k")
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.ext == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


def test_another_topics_key_is_not_found(client: Client) -> None:
    send(client, b"x", KEYS="k")
    send(client, b"y", topic="U", KEYS="k")
    assert bodies(query(client, "k")) == [b"x"]
    assert bodies(query(client, "k", topic="U")) == [b"y"]


def test_one_query_gives_as_many_as_the_configuration_allows_and_the_newest(
    start_broker: StartBroker,
) -> None:
    client = start_broker(maxMsgsNumBatch=3, defaultQueryMaxNum=2).connect()
    for number in range(5):
        send(client, b"%d" % number, KEYS="k", UNIQ_KEY="U")
    assert bodies(query(client, "k")) == [b"2", b"3", b"4"]
    assert bodies(query(client, "k", maxNum=1)) == [b"4"]
    assert bodies(query(client, "U", unique=True)) == [b"3", b"4"]
    assert query(client, "k", maxNum=0).code == ResponseCode.QUERY_NOT_FOUND
    assert query(client, "k", maxNum=-5).code == ResponseCode.QUERY_NOT_FOUND


def test_only_the_asked_time_is_searched(client: Client) -> None:
    for number in range(3):
        send(client, b"%d" % number, KEYS="k")
        client.owner.clock.ms += 60_000
    middle = START_MS + 60_000
    found = query(client, "k", beginTimestamp=middle - 1000, endTimestamp=middle + 1000)
    assert bodies(found) == [b"1"]
    assert query(client, "k", endTimestamp=START_MS - 1).code == ResponseCode.QUERY_NOT_FOUND


def test_a_key_with_the_same_hash_is_not_found(client: Client) -> None:
    send(client, b"x", KEYS="Aa")  # Java hashes "Aa" and "BB" alike
    assert query(client, "BB").code == ResponseCode.QUERY_NOT_FOUND
    assert bodies(query(client, "Aa")) == [b"x"]


def test_without_an_index_nothing_is_found_and_no_file_made(start_broker: StartBroker) -> None:
    running = start_broker(messageIndexEnable=False)
    client = running.connect()
    send(client, b"x", KEYS="k")
    running.tick(later_ms=1000)
    assert query(client, "k").code == ResponseCode.QUERY_NOT_FOUND
    assert not (running.broker.config.store_path_root_dir / "index").exists()


def test_a_query_that_lacks_a_field_is_refused(client: Client) -> None:
    answer = client.call(QUERY, {"topic": "T", "key": "k"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "maxNum" in (answer.remark or "")


def test_sends_go_on_while_a_query_waits(client: Client) -> None:
    client.send("T")
    opaque = client.ask(
        QUERY, {"topic": "T", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": FOREVER}
    )
    assert not client.link.sent
    other = client.owner.connect()
    assert other.send("T").code == 0
    assert client.answer(opaque).code == ResponseCode.QUERY_NOT_FOUND


def test_a_query_whose_asker_is_gone_is_answered_to_nobody(running: InProcess) -> None:
    client = running.connect()
    send(client, b"x", KEYS="k")
    client.ask(QUERY, {"topic": "T", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": FOREVER})
    client.disconnect()
    index = running.broker.store.upkeep.index
    assert index is not None
    running.until(lambda: not index._waiting and not any(w.pending for w in running.broker.reader._workers))
    assert client.answers() == []


def test_too_many_queries_are_answered_busy(running: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    client = running.connect()
    send(client, b"x", KEYS="k")
    monkeypatch.setattr(running.broker.reader, "_in_flight_max", 0)
    assert query(client, "k").code == ResponseCode.SYSTEM_BUSY


def test_nothing_found_in_an_index_that_is_behind_is_busy_and_what_is_found_is_told(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.connect()
    send(client, b"x", KEYS="old")
    assert bodies(query(client, "old")) == [b"x"]
    index = running.broker.store.upkeep.index
    assert index is not None
    monkeypatch.setattr(index, "_work", lambda through, min_offset: None)  # a builder that does not keep up
    send(client, b"y", KEYS="new")

    def late(key: str) -> Command:
        opaque = client.ask(
            QUERY, {"topic": "T", "key": key, "maxNum": 1, "beginTimestamp": 0, "endTimestamp": FOREVER}
        )
        running.tick(later_ms=1900)
        assert not client.link.sent, "the builder is given some time"
        running.tick(later_ms=100)
        return client.answer(opaque)

    answer = late("new")
    assert answer.code == ResponseCode.SYSTEM_BUSY and "behind the log: ask again" in (answer.remark or "")
    index.trouble = "the index helper ended (1)"
    assert "behind the log: the index helper ended (1)" in (late("new").remark or "")
    assert bodies(late("old")) == [b"x"]


# --- a disk that is nearly full ---------------------------------------------------------------------------


class Scales(Disk):
    """A disk that is as full as it is told to be."""

    used = 50

    def space(self, path: Path) -> Space:
        return Space(1000, 1000 - 10 * self.used, 1000 - 10 * self.used)


def look(running: InProcess) -> None:
    """Let the broker look at its disk."""
    cleaner = running.broker.store.upkeep.cleaner
    assert cleaner is not None
    running.until(lambda: not cleaner._looking)
    running.tick(later_ms=10_001)
    running.until(lambda: not cleaner._looking)


def test_a_nearly_full_disk_refuses_sends_with_14_reads_on_and_resumes(start_broker: StartBroker) -> None:
    disk = Scales()
    running = start_broker(disk)
    client = running.connect()
    send(client, b"before", KEYS="k")
    disk.used = 91
    look(running)
    refused = client.send("T", b"while")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "CL: 0.91 CQ: 0.91" in (refused.remark or "")
    assert client.pull("T").code == 0
    assert bodies(query(client, "k")) == [b"before"]
    client.feed(
        b"".join(request(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x", opaque=n) for n in range(9))
    )
    assert [answer.code for answer in client.answers()] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 9
    disk.used = 90
    look(running)
    send(client, b"after")
    assert [record.body for record in running.stored("T")] == [b"before", b"after"]


def test_what_the_configuration_says_about_keeping_reaches_the_store(start_broker: StartBroker) -> None:
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    running = start_broker(Scales(), fileReservedTime=1, deleteWhen=hours, mappedFileSizeCommitLog=1 << 16)
    client = running.connect()
    for _ in range(10):
        client.send("T", bytes(15_000))
    running.settle()
    store = running.broker.store
    assert len(store.log.segments) == 3
    store.request_flush()
    running.until(lambda: store.log.flushed_offset == store.log.end_offset)
    running.clock.ms = time.time_ns() // 1_000_000
    look(running)
    assert store.log.min_offset == 0
    running.clock.ms += 3_600_000
    look(running)
    running.until(lambda: store.log.min_offset == 2 * 65_536)

    def corrected() -> bool:
        running.tick(later_ms=200)
        return store.queue("T", 0).min_offset == 8

    running.until(corrected)
    moved = client.pull("T", queueOffset=0)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "8")
