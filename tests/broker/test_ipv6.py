"""Hosts of either family: with IPv6 they are longer in a record, and whoever looks into one has to know."""

from pathlib import Path

import pytest

from broker.state.topics import TopicConfig
from ropewalk.codes import RequestCode
from ropewalk.format.record import MAGIC_V1, MAGIC_V2, decode_record, decode_records, parse_message_id
from tests.broker.harness import (
    ADDRESS,
    UNIQ,
    InProcess,
    batch_of,
    config_of,
    pull_ext,
    request,
    send_ext,
    without_fsync,
)
from tests.support.clocks import START_MS

V2 = RequestCode.SEND_MESSAGE_V2
LONG = "%DLQ%" + "g" * 123
"""A topic whose records have two bytes for the length of its name."""


@pytest.mark.parametrize("peer", ["::1", "192.0.2.7"])
@pytest.mark.parametrize("ip", ["2001:db8::7", None])
@pytest.mark.parametrize("topic", ["T", LONG])
def test_messages_are_stored_found_and_read_with_hosts_of_either_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer: str, ip: str | None, topic: str
) -> None:
    without_fsync(monkeypatch)
    with InProcess(config_of(tmp_path), ip=ip) as running:
        client = running.connect(peer=(peer, 50_001))
        running.broker.topics.update(
            TopicConfig(topic), START_MS
        )  # a dead-letter topic comes with its group alone
        ids = [client.send(topic, b"0", properties={"TAGS": "A"}).ext["msgId"]]
        running.clock.ms += 10
        same = [request(V2, send_ext(topic, properties={"TAGS": "A"}), b"%d" % n, opaque=n) for n in (1, 2)]
        client.feed(b"".join(same))  # a run of plain ones
        ids += [answer.ext["msgId"] for answer in client.answers()]
        client.feed(same[0])  # one like those
        ids += [answer.ext["msgId"] for answer in client.answers()]
        if topic == "T":
            batch = client.call(
                RequestCode.SEND_BATCH_MESSAGE, send_ext("T", batch=True), batch_of(b"b", TAGS="A")
            )
            ids.append(batch.ext["msgId"])

        wanted = (ip or ADDRESS[0], ADDRESS[1])
        assert [parse_message_id(text)[:2] for text in ids] == [wanted] * len(ids)
        everything = decode_records(client.pull(topic).body)
        assert [record.msg_id for record in everything] == ids
        assert {(r.topic, r.born_host, r.store_host) for r in everything} == {(topic, (peer, 50_001), wanted)}
        assert {r.magic for r in everything} == {MAGIC_V1 if topic == "T" else MAGIC_V2}
        filtered = decode_records(client.pull(topic, subscription="A").body)
        assert filtered == everything, "what a filter lets through is compared with its entry"

        at = {"topic": topic, "queueId": 0}
        assert client.call(RequestCode.GET_EARLIEST_MSG_STORETIME, at).ext == {"timestamp": str(START_MS)}
        later = {**at, "timestamp": START_MS + 1}
        assert client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, later).ext == {"offset": "1"}
        seen = client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": everything[-1].offset})
        assert decode_record(seen.body).body == everything[-1].body
        back = {"offset": everything[1].offset, "group": "cg", "delayLevel": 0}
        assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0
        (waiting,) = decode_records(
            client.call(RequestCode.PULL_MESSAGE, pull_ext("SCHEDULE_TOPIC_XXXX", queueId=2)).body
        )
        assert (waiting.born_host, waiting.body) == ((peer, 50_001), b"1")
        assert waiting.properties["ORIGIN_MESSAGE_ID"] == ids[1]
        assert waiting.uniq_key == UNIQ
