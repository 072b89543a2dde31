"""The sink without Spark around it: rows as messages, and what is promised about them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from ropewalk.client.core.messages import Message
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.batch import split_batch
from ropewalk.format.remoting import Command
from ropewalk.spark.options import BadOption, Options, parse_options
from ropewalk.spark.rows.schema import SchemaMismatch
from ropewalk.spark.sink.rows import Columns, RowRefused, columns_of, rows_of
from ropewalk.spark.sink.send import Sender, WriteFailed
from ropewalk.spark.sink.writer import LiveStreamWriter, LiveWriter, Written
from ropewalk.spark.versions import VersionMismatch
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.client.fake_cluster import FakeCluster, route_body
from tests.support.long_run import ROOM_S

BATCH, SINGLE = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2


def options(name_server: str = "h:1", **given: Any) -> Options:
    raw = {"nameServer": name_server, "topic": "T", **given}
    return parse_options({name: value for name, value in raw.items() if value is not None}, "write", {})


def schema_of(text: str) -> StructType:
    """A schema from text, for the few types that sinks know; Spark's own reader of such text needs a JVM."""
    from pyspark.sql import types as t

    atoms = {
        "STRING": t.StringType(), "BINARY": t.BinaryType(), "INT": t.IntegerType(), "BIGINT": t.LongType(),
        "DOUBLE": t.DoubleType(), "MAP": t.MapType(t.StringType(), t.StringType()),
        "HEADERS": t.ArrayType(
            t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
        ),
    }  # fmt: skip
    return StructType(
        [t.StructField(*(name, atoms[kind])) for name, kind in (one.split() for one in text.split(", "))]
    )


def table(**columns: list[Any]) -> pa.RecordBatch:
    arrays = {}
    for name, values in columns.items():
        if name == "properties":
            arrays[name] = pa.array(values, pa.map_(pa.string(), pa.string()))
        else:
            arrays[name] = pa.array(values)
    return pa.RecordBatch.from_pydict(arrays)


def columns(**names: str) -> Columns:
    return Columns({"body": "body", **names}, "T")


# -- columns and rows -------------------------------------------------------------------------------------


def test_the_columns_of_kafkas_sink_and_our_own_mean_the_same() -> None:
    ours = columns_of(schema_of("body BINARY, keys STRING, tags STRING, properties MAP"), options())
    assert ours.names == {"body": "body", "keys": "keys", "tags": "tags", "properties": "properties"}
    theirs = columns_of(
        schema_of("key BINARY, value STRING, headers HEADERS, topic STRING"), options(topic=None)
    )
    assert theirs.names == {"keys": "key", "body": "value", "properties": "headers", "topic": "topic"}


@pytest.mark.parametrize(
    ("schema", "given", "says"),
    [
        ("keys STRING", {}, "needs a column body"),
        ("body DOUBLE", {}, "column body is DOUBLE, and has to be STRING or BINARY"),
        (
            "body STRING, bdy STRING",
            {},
            r"bdy is no part of a message; did you mean body\? .*ignoreExtraColumns",
        ),
        ("body STRING, value STRING", {}, "columns body and value mean the same"),
        ("body STRING", {"topic": None}, "where to"),
        ("body STRING", {"topic": "a,b"}, "names 2 topics"),
        ("body STRING", {"topic": "no blanks"}, "option topic"),
    ],
)
def test_columns_that_no_message_has_are_named(schema: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemaMismatch, match=says):
        columns_of(schema_of(schema), options(**given))


def test_other_columns_are_left_out_when_that_is_wanted() -> None:
    found = columns_of(schema_of("body STRING, price DOUBLE"), options(ignoreExtraColumns="true"))
    assert found.names == {"body": "body"}


def test_every_part_of_a_row_reaches_its_message() -> None:
    batch = table(
        body=["text", "two"],
        keys=["k1", None],
        tags=["A", ""],
        properties=[[("a", "1"), ("b", None)], None],
        shardingKey=["s", None],
        delayLevel=[None, 3],
        flag=[7, None],
        queueId=[None, 1],
    )
    parts = columns(
        keys="keys", tags="tags", properties="properties", sharding_key="shardingKey", delay_level="delayLevel",
        flag="flag", queue_id="queueId",
    )  # fmt: skip
    one, two = rows_of(batch, parts)
    assert one.message == Message(b"text", "k1", "A", {"a": "1"}, 7, 0, "s")
    assert two.message == Message(b"two", None, None, {}, 0, 3, None)
    assert (one.queue_id, two.queue_id) == (None, 1)


def test_headers_of_kafkas_source_become_properties() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"body": [b"x"], "headers": [[{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]]}
    )
    (row,) = rows_of(batch, columns(properties="headers"))
    assert row.message.properties == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("values", "parts", "says"),
    [
        ({"body": [b"x", None]}, {}, "row 1 of a batch cannot be sent: its body is null or empty"),
        ({"body": [b""]}, {}, "null or empty"),
        ({"body": [b"x" * (4 << 20) + b"y"]}, {}, "over the 4194304 that brokers take"),
        ({"body": [b"x"], "properties": [[("UNIQ_KEY", "1")]]}, {"properties": "properties"}, "UNIQ_KEY is reserved"),
        ({"body": [b"x"], "properties": [[("TAGS", "A")]]}, {"properties": "properties"}, "column of its own: tags"),
        ({"body": [b"x"], "properties": [[("a", "1\x02")]]}, {"properties": "properties"}, "holds a separator"),
        ({"body": [b"x"], "properties": [[("a", "1" * 33_000)]]}, {"properties": "properties"}, "32511 are the limit"),
        ({"body": [b"x"], "keys": ["a\x01b"]}, {"keys": "keys"}, "keys holds a control character"),
        ({"body": [b"x"], "keys": [b"\xff"]}, {"keys": "keys"}, "not UTF-8"),
        (
            {"body": [b"x"], "delayLevel": [1], "deliverTimeMs": [5]},
            {"delay_level": "delayLevel", "deliver_ms": "deliverTimeMs"},
            "both a delayLevel and a deliverTimeMs",
        ),
    ],
)  # fmt: skip
def test_a_row_that_no_message_can_carry_is_named_before_anything_of_it_is_sent(
    values: dict[str, list[Any]], parts: dict[str, str], says: str
) -> None:
    with pytest.raises(RowRefused, match=says):
        list(rows_of(table(**values), columns(**parts)))


@pytest.mark.parametrize("topics", [["a b"], [None], ["x" * 200]])
def test_a_topic_of_a_row_is_judged(topics: list[Any]) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x"], "topic": pa.array(topics, pa.string())})
    with pytest.raises(RowRefused, match="topic"):
        list(rows_of(batch, Columns({"body": "body", "topic": "topic"}, None)))


# -- sending ----------------------------------------------------------------------------------------------


def write(target: Options, batch: pa.RecordBatch, parts: Columns) -> Any:
    sender = Sender(target)
    try:
        for row in rows_of(batch, parts, wait_store_ok=target.wait_store_ok):
            sender.add(row)
        return sender.finish()
    finally:
        sender.close()


def test_rows_are_stored_once_and_in_order_of_their_queue(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic(queues=4)
    keys = [f"k{n % 10}" for n in range(1000)]
    batch = table(body=[f"{n:06d}" for n in range(1000)], keys=keys)
    sent = write(
        options(ropewalk_broker.namesrv, topic=topic), batch, Columns(columns(keys="keys").names, topic)
    )
    records = ropewalk_broker.messages(topic, 1000)
    assert sorted(record.body for record in records) == [b"%06d" % n for n in range(1000)]
    by_key: dict[str, list[bytes]] = {}
    queues: dict[str, set[int]] = {}
    for record in records:
        by_key.setdefault(record.properties["KEYS"], []).append(record.body)
        queues.setdefault(record.properties["KEYS"], set()).add(record.queue_id)
    assert all(bodies == sorted(bodies) for bodies in by_key.values())
    assert all(len(found) == 1 for found in queues.values())
    assert (sent.rows, sent.size, sent.unreplicated) == (1000, 6000, 0)
    spans = {key[2]: last - first + 1 for key, (first, last) in sent.offsets.items()}
    assert spans == Counter(record.queue_id for record in records)


def test_batches_are_bounded_by_count_and_by_bytes() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)
        write(
            options(cluster.address, batchMessages="10", batchBytes="2k"), table(body=["x"] * 25), columns()
        )
        sizes = [len(split_batch(r.body)) for r in cluster.requests if r.code == BATCH]
        assert sizes == [10, 10, 5]
        cluster.requests.clear()
        write(options(cluster.address, batchBytes="2k"), table(body=["x" * 500] * 8), columns())
        assert [len(split_batch(r.body)) for r in cluster.requests if r.code == BATCH] == [3, 3, 2]
        cluster.requests.clear()
        write(options(cluster.address, batchMessages="5000"), table(body=["x"] * 1_200), columns())
        sizes = [len(split_batch(r.body)) for r in cluster.requests if r.code == BATCH]
        assert sizes == [500, 500, 200], "no more than a broker takes from a sink"
        assert len(cluster.records("T")) == 1_233


def test_delayed_rows_travel_alone_and_in_their_place() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)
        batch = table(body=["a", "b", "c", "d"], delayLevel=[None, None, 2, None])
        write(options(cluster.address), batch, columns(delay_level="delayLevel"))
        assert [r.code for r in cluster.requests if r.code in (BATCH, SINGLE)] == [BATCH, SINGLE, SINGLE]
        assert [record.body for record in cluster.records("T")] == [b"a", b"b", b"c", b"d"]
        assert cluster.records("T")[2].properties["DELAY"] == "2"


def test_a_queue_that_is_named_is_taken_and_has_to_exist() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 4)
        batch = table(body=["a", "b"], queueId=[3, 1])
        write(options(cluster.address), batch, columns(queue_id="queueId"))
        assert sorted((r.queue_id, r.body) for r in cluster.records("T")) == [(1, b"b"), (3, b"a")]
        with pytest.raises(RowRefused, match="no writable queue 9; there are fake-broker/0"):
            write(options(cluster.address), table(body=["a"], queueId=[9]), columns(queue_id="queueId"))


def test_a_sharding_key_goes_where_producers_send_it() -> None:
    from ropewalk.client.core.produce.choice import queue_of_group
    from ropewalk.client.core.routes import Queue

    with FakeCluster() as cluster:
        cluster.create_topic("T", 4)
        names = [f"shard-{n}" for n in range(20)]
        write(
            options(cluster.address),
            table(body=names, shardingKey=names),
            columns(sharding_key="shardingKey"),
        )
        queues = [Queue("fake-broker", n) for n in range(4)]
        for record in cluster.records("T"):
            assert record.queue_id == queue_of_group(record.body.decode(), queues).queue_id


def test_topics_of_rows_and_a_topic_that_is_made_by_its_first_message() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("one", 2)
        batch = pa.RecordBatch.from_pydict({"body": ["a", "b", "c"], "topic": ["one", "new", "one"]})
        write(options(cluster.address, topic=None), batch, Columns({"body": "body", "topic": "topic"}, None))
        assert sorted(record.body for record in cluster.records("one")) == [b"a", b"c"]
        assert [record.body for record in cluster.records("new")] == [b"b"]


def test_wait_store_ok_false_is_what_the_broker_reads() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)
        write(options(cluster.address, waitStoreOk="false"), table(body=["a", "b"]), columns())
        (request,) = [r for r in cluster.requests if r.code == BATCH]
        assert "WAIT\x01false\x02" in request.ext["i"]
        assert {record.properties["WAIT"] for record in cluster.records("T")} == {"false"}


# -- what goes wrong --------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(cluster: FakeCluster, answer: Callable[[Command, int], Command | None]) -> Iterator[list[int]]:
    """Have sends answered by a function that is told how many there were before; None stores and answers them."""
    seen: list[int] = []

    def handle(request: Command) -> Command | None:
        seen.append(request.code)
        chosen = answer(request, len(seen) - 1)
        return cluster._answer(request) if chosen is None else chosen

    cluster.answers[BATCH] = cluster.answers[SINGLE] = handle
    yield seen


def test_a_busy_broker_is_asked_again_and_nothing_is_lost() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)

        def busy(request: Command, before: int) -> Command | None:
            return request.reply(ResponseCode.SYSTEM_BUSY, "busy") if before < 2 else None

        with answering(cluster, busy) as seen:
            sent = write(options(cluster.address), table(body=[str(n) for n in range(50)]), columns())
        assert len(seen) == 3
        assert sent.rows == 50
        assert [record.body for record in cluster.records("T")] == [b"%d" % n for n in range(50)]


def test_a_connection_that_breaks_before_the_answer_means_again_and_perhaps_twice() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)

        def hang_up_once(request: Command, before: int) -> Command | None:
            if before == 1:
                cluster._answer(request)  # stored, and nobody hears of it
                cluster.hang_up()
            return None if before != 1 else request.reply(ResponseCode.SUCCESS)

        with answering(cluster, hang_up_once):
            batch = table(body=[str(n) for n in range(100)])
            sent = write(options(cluster.address, batchMessages="20"), batch, columns())
        bodies = [int(record.body) for record in cluster.records("T")]
        assert sent.rows == 100
        assert set(bodies) == set(range(100))
        assert bodies == [*range(40), *range(20, 100)]


def test_answers_of_a_broken_connection_are_never_taken_for_others() -> None:
    # After a reconnect the numbers of requests begin anew: an old number must not match a new answer.
    with FakeCluster() as cluster:
        cluster.create_topic("T", 8)

        def first_round_unheard(request: Command, before: int) -> Command | None:
            if before == 7:
                cluster.hang_up()
            return None

        with answering(cluster, first_round_unheard):
            rows = [str(n) for n in range(800)]
            batch = table(body=rows, queueId=[n % 8 for n in range(800)])
            sent = write(options(cluster.address, batchMessages="10"), batch, columns(queue_id="queueId"))
        assert sent.rows == 800
        assert {record.body.decode() for record in cluster.records("T")} == set(rows)


def test_silence_ends_in_an_error_that_names_the_queue_and_the_limit() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)
        cluster.answers[SINGLE] = lambda request: None
        began = time.monotonic()
        with pytest.raises(
            WriteFailed, match=r"queue 0 of T at fake-broker: 1 rows were not stored within 300 ms"
        ):
            write(options(cluster.address, sendTimeoutMs="300"), table(body=["a"]), columns())
        assert time.monotonic() - began < 5 + ROOM_S


def test_a_refusal_is_told_at_once() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)
        cluster.answers[SINGLE] = lambda request: request.reply(ResponseCode.MESSAGE_ILLEGAL, "too odd")
        with pytest.raises(WriteFailed, match="too odd"):
            write(options(cluster.address), table(body=["a"]), columns())


ROLE = {"sync": b"brokerRole=SYNC_MASTER\n", "async": b"a=1\nbrokerRole=ASYNC_MASTER\nb=2\n"}


@pytest.mark.parametrize(
    "code",
    [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT],
)
@pytest.mark.parametrize(
    ("required", "role", "fails"),
    [
        (None, "sync", True),
        (None, "async", False),
        (None, "silent", True),
        ("true", "async", True),
        ("false", "sync", False),
    ],
)
def test_stored_with_a_reservation_is_a_failure_where_replication_is_required(
    code: int, required: str | None, role: str, fails: bool
) -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)
        if role != "silent":
            cluster.answers[RequestCode.GET_BROKER_CONFIG] = lambda request: request.reply(0, body=ROLE[role])

        def reserved(request: Command, before: int) -> Command | None:
            answer = cluster._answer(request)
            answer.code = code
            return answer

        target = options(
            cluster.address, requireReplication=required, sendTimeoutMs="300" if fails else "20000"
        )
        with answering(cluster, reserved):
            if fails:
                with pytest.raises(
                    WriteFailed, match=r"stored on one machine only.*requireReplication=false"
                ):
                    write(target, table(body=["a", "b"]), columns())
            else:
                sent = write(target, table(body=["a", "b"]), columns())
                assert (sent.rows, sent.unreplicated) == (2, 2)


def test_rows_that_one_machine_has_are_sent_again_until_a_slave_has_them() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)

        def alone_at_first(request: Command, before: int) -> Command | None:
            answer = cluster._answer(request)
            if before == 0:
                answer.code = ResponseCode.SLAVE_NOT_AVAILABLE
            return answer

        with answering(cluster, alone_at_first) as seen:
            target = options(cluster.address, requireReplication="true")
            sent = write(target, table(body=["a", "b"]), columns())
        assert (len(seen), sent.rows, sent.unreplicated) == (2, 2, 0)
        assert [record.body for record in cluster.records("T")] == [b"a", b"b", b"a", b"b"]


def test_routing_any_turns_to_another_broker_and_routing_key_does_not() -> None:
    with FakeCluster() as alive, socket.create_server(("127.0.0.1", 0)) as probe:
        dead = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()  # nobody listens there any more
        alive.create_topic("T", 1)

        def route(request: Command) -> Command:
            from ropewalk.format import fastjson

            one = fastjson.loads(route_body("fake-broker", alive.address, 1))
            two = fastjson.loads(route_body("dead-broker", dead, 1))
            both = {name: one[name] + two[name] for name in ("brokerDatas", "queueDatas")}
            return request.reply(ResponseCode.SUCCESS, body=fastjson.dumps(both))

        alive.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = route
        batch = table(body=[str(n) for n in range(20)])
        sent = write(options(alive.address, routing="any", batchMessages="5"), batch, columns())
        assert sent.rows == 20
        assert sorted(int(record.body) for record in alive.records("T")) == list(range(20))
        with pytest.raises(WriteFailed, match=r"at dead-broker: .*were not stored within 2000 ms"):
            write(options(alive.address, sendTimeoutMs="2000"), batch, columns())


# -- the writers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LiveWriter, LiveStreamWriter])
def test_a_writer_writes_its_batches_and_tells_what_it_stored(
    ropewalk_broker: RopewalkBroker,
    kind: type[LiveWriter] | type[LiveStreamWriter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pickle

    topic = ropewalk_broker.topic()
    writer = kind(options(ropewalk_broker.namesrv, topic=topic), schema_of("body STRING, keys STRING"), False)
    there = pickle.loads(pickle.dumps(writer))
    written = there.write(iter([table(body=["a", "b"], keys=["1", "2"]), table(body=["c"], keys=["3"])]))
    assert isinstance(pickle.loads(pickle.dumps(written)), Written)
    assert written.sent.rows == 3
    assert isinstance(there.write(iter([])), Written)  # Spark takes no None
    assert sorted(record.body for record in ropewalk_broker.messages(topic, 3)) == [b"a", b"b", b"c"]
    monkeypatch.setattr("ropewalk.spark.versions.__version__", "9.9.9")
    with pytest.raises(VersionMismatch, match=r"this worker has 9\.9\.9"):
        there.write(iter([]))


@pytest.mark.parametrize(
    ("given", "overwrite", "says"),
    [
        ({}, True, "a log cannot be overwritten"),
        ({"delivery": "exactly-once", "sinkId": "a b"}, False, "option sinkId"),
        ({"nameServer": None, "brokers": "b@h:1"}, False, "option brokers is for reads"),
    ],
)
def test_what_a_sink_cannot_do_is_refused(given: dict[str, Any], overwrite: bool, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        LiveWriter(options(**given), schema_of("body STRING"), overwrite)
