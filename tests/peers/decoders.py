"""The registry of what reads a peer's bytes: its name, samples of what a peer says, and a call with any bytes.

A name is `module:function`, as `test_decoders` finds it in the source. Each call raises nothing but a `RopewalkError`,
or the error that is named beside it.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import crc32c
import msgspec

from broker.admin.base import object_of
from broker.admin.relay import _offsets_in
from broker.namesrv.answers import broker_addresses, group_addresses
from broker.namesrv.registration import BadRegistration, decode_registration
from broker.namesrv.server import NameServer
from broker.remoting.refused import RequestRefused
from broker.replication.dledger.pull_commits import batch_untrusted
from broker.replication.dledger.table_snapshots import TableSnapshot, decode_snapshot, encode_snapshot
from broker.settings.java_properties import read_properties
from broker.sinks.records import decode_claims
from broker.state.data_version import DataVersion
from broker.state.groups import GroupTable
from broker.state.heartbeat import HeartbeatData, HeartbeatRefused
from broker.state.queue_locks import LockRequest
from broker.state.topics import TopicTable
from ha.dledger.links.address_book import Membership
from ha.dledger.links.frames import from_frame
from ha.dledger.links.hello import (
    Identity,
    IntroductionFrames,
    Step,
    introduction_of,
    prove,
    read_introduction,
)
from ha.group.block_repair import BlockRequest, BlockResponse, Span, block_untrusted
from ha.group.epochs import Epochs
from ha.group.hello import (
    EpochRequest,
    Hello,
    MemberStatusMessage,
    RangesRequest,
    SlaveView,
    Sums,
    Welcome,
    decode_untrusted,
    encode,
)
from ha.group.metadata import Seen, SyncRequest, SyncResponse
from ha.group.roles import QuorumPolicy
from ha.raft.types import Link
from ropewalk.client.admin import results
from ropewalk.client.admin.cluster import document_in
from ropewalk.client.core.admin_requests import reset_offsets
from ropewalk.client.core.connection import RemotingCore
from ropewalk.client.core.consume.consuming import _granted, _member_ids
from ropewalk.client.core.consume.received import TopicQueue, decode_received
from ropewalk.client.core.produce.results import read_send_result
from ropewalk.client.core.routes import Queue, parse_route
from ropewalk.client.core.tracing.records import decode_trace
from ropewalk.client.kv.asking import _regions_in
from ropewalk.client.kv.routes import Routes
from ropewalk.codes import RequestCode
from ropewalk.format import fastjson
from ropewalk.format.dledger.configuration import Configuration, decode_configuration, encode_configuration
from ropewalk.format.dledger.entry import check_run, decode_head, decode_index, encode_entries
from ropewalk.format.dledger.frame import Frames, Kind, encode_head
from ropewalk.format.dledger.snapshot import MemberSnapshot, decode_member_snapshot, encode_member_snapshot
from ropewalk.format.ha import Frames as HaFrames
from ropewalk.format.ha import Reports, encode_header
from ropewalk.format.headers import (
    KvWriteHeader,
    PullResponseHeader,
    RecallHandle,
    SendMessageHeader,
    decode_header,
    decode_json_ext,
)
from ropewalk.format.kv.commands import (
    OpenTerm,
    Outcome,
    Status,
    Write,
    decode_command,
    decode_found,
    decode_outcome,
    encode_command,
    encode_found,
    encode_outcome,
)
from ropewalk.format.kv.items import ComparePut, Count, Put
from ropewalk.format.kv.snapshot import decode_columns, encode_columns
from ropewalk.format.properties import parse_properties
from ropewalk.format.record import decode_record, decode_records, encode_host, encode_record, parse_message_id
from ropewalk.format.remoting import Command, decode_ext, decode_frame, decode_json_header, encode_frame
from ropewalk.format.sliced_json import finish, loads_in_slices
from ropewalk.member_proof import Asker, Challenge
from store.timer.layout import Checkpoint

__all__ = ["DECODERS", "Decoder"]

HOST = encode_host("10.0.0.1", 10911)
RECORD = encode_record(
    b"orders", 1, 0, 7, 100, 0, 1_700_000_000_000, HOST, 1_700_000_000_001, HOST, 0, 0, b"a body", b"KEYS\x01a b\x02"
)  # fmt: skip
ENTRY = encode_entries(5, 3, 0, [RECORD])
SOURCE = TopicQueue("orders", Queue("broker-a", 1))
MEMBER = results.BrokerMember("c", "broker-a", 0, "10.0.0.1:10911")
CLIENT = results.ClientConnection("id", "10.0.0.9:1", "JAVA", 1)
POLICY = QuorumPolicy("SYNC_MASTER", 2, 3, {"1": "10.0.0.2:10911"}, {"1": 2}, 1)
ME, PEER = (Identity("c", "g", id, id.encode() * 8, 1 << 20) for id in ("n1", "n0"))
STATUS = MemberStatusMessage(
    "broker-a", 0, "10.0.0.1:10911", "SYNC_MASTER", 4, 4, 0, 900, policy=POLICY,
    slaves=[SlaveView("a:1", 1, 5, True, True)],
)  # fmt: skip
WELCOME = Welcome(4, 0, 900, [(1, 0), (4, 300)], [5, None], POLICY)
QUEUE_KEY = b'{"brokerName":"broker-a","queueId":1,"topic":"orders"}'
KEY = "a queue"
VERSION = {"counter": 3, "stateVersion": 1, "timestamp": 1_700_000_000_000}
TOPIC = {
    "topicName": "orders",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "order": False,
    "attributes": {"a": "b"},
}
GROUP = {"groupName": "g", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0}
ROUTE = {
    "brokerDatas": [{"brokerAddrs": {"0": "10.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "c"}],
    "queueDatas": [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 0}
    ],
    "orderTopicConf": "broker-a:4",
}
CLUSTER = {
    "brokerAddrTable": {
        "broker-a": {"brokerAddrs": {"0": "10.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "c"}
    },
    "clusterAddrTable": {"c": ["broker-a"]},
}
LEDGER = {
    "id": "n0", "group": "g", "voters": ["n0"], "old": [], "learners": [], "leads": True, "durable": 5, "elections": 1,
    "standing": {"role": "LEADER", "term": 3, "leader": "n0", "why": "x"}, "end": {"index": 5}, "commit": {"index": 5},
    "shown": {"index": 5}, "is_learner": False, "unmet": [], "doubt": {"index": 3}, "regionsBehind": [1],
    "peers": [{"id": "n1", "address": "h:1", "control": True, "data": True, "state": "x", "heard_ms": 1, "match": 2,
               "why": "", "counts": True}],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decoder:
    """A reader of a peer's bytes."""

    name: str
    form: str
    """`json`, `msgpack` or `bytes`: how a sample is changed."""
    samples: tuple[bytes, ...]
    call: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...] = ()
    """What it raises beside `RopewalkError`, as its docstring says."""


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _keyed(name: str, entry: Any) -> bytes:
    """A document whose table has queues for keys: `_dialect` makes them what fastjson writes."""
    return _json({name: {KEY: entry}})


def _dialect(data: bytes) -> bytes:
    return data.replace(f'"{KEY}"'.encode(), QUEUE_KEY)


def _document(read: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    return lambda data: read(document_in(Command(0, body=_dialect(data))))


def _documents(name: str, read: Callable[[Any], Any], *samples: bytes) -> Decoder:
    return Decoder(f"ropewalk.client.admin.results:{name}", "json", samples, _document(read))


def _messages(name: str, *samples: msgspec.Struct) -> list[Decoder]:
    """The messages between members, each under the name of its reader."""
    return [
        Decoder(
            f"{name}[{type(each).__name__}]", "msgpack", (encode(each),),
            partial(_consistent, type(each)),
        )
        for each in samples
    ]  # fmt: skip


def _consistent(kind: type[msgspec.Struct], data: bytes) -> None:
    """A message that was read can be written again, and so can what is made of it by adding one to its numbers."""
    message = decode_untrusted(kind, data)
    encode(message)
    for name in message.__struct_fields__:
        if isinstance(value := getattr(message, name), int) and not isinstance(value, bool):
            encode(msgspec.structs.replace(message, **{name: value + 1}))
    for pairs in (getattr(message, "epochs", []),):
        with contextlib.suppress(ValueError):
            Epochs.of(pairs)


def _crc_of(encoded: Callable[[bytes], bytes], decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Make the checksum right, as a peer does: what is behind it is changed."""
    return lambda data: decode(encoded(data))


def _with_text_crc(body: bytes) -> bytes:
    return b"%08x\n" % crc32c.crc32c(body) + body


def _with_crc(body: bytes) -> bytes:
    return b"RWSN" + crc32c.crc32c(body).to_bytes(4, "big") + body


def _frames(data: bytes) -> None:
    for frame in Frames().feed(data):
        if frame.kind not in (Kind.PING, Kind.FORWARD, Kind.FORWARD_ANSWER, Kind.BLOCK, Kind.BLOCK_ANSWER):
            from_frame(frame, 1 << 20)


def _introduction(data: bytes) -> None:
    frames = IntroductionFrames()
    frames.feed(data)
    while (message := frames.next_message()) is not None:
        read_introduction(*message, ME, b"c" * 32)


def _span(data: bytes) -> None:
    block_untrusted(Span(0, 6, None), data)


def _sections(data: bytes) -> Any:
    return decode_registration(zlib.compress(data), compressed=True)


def _section(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def _kv_answer(data: bytes) -> Any:
    return _regions_in(Command(0, {"regions": data.decode("utf-8", "replace")}))


def _ext(call: Callable[[dict[str, str]], Any]) -> Callable[[bytes], Any]:
    def run(data: bytes) -> Any:
        return call(decode_ext(data))

    return run


def _read(table: Any, adopt: str, data: bytes) -> Any:
    value = fastjson.loads(data)
    if isinstance(value, dict):
        getattr(table, adopt)(value)
        msgspec.msgpack.encode(table.to_wrapper())
    return value


_FRAME = encode_frame(Command(10, {"topic": "orders", "queueId": "1"}, b"body"), 7)
_BINARY = encode_frame(Command(10, {"topic": "orders", "queueId": "1"}, b"body", serialize_type=1), 7)
_HEADERS = _json(
    {"code": 0, "extFields": {"queueId": "1", "queueOffset": "7", "msgId": "AC"}, "flag": 1, "opaque": 3}
)
_SEND = _json({"producerGroup": "g", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": "1",
               "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "", "reconsumeTimes": 0, "unitMode": "false",
               "maxReconsumeTimes": 16, "batch": False})  # fmt: skip
_PULLED = _json({"suggestWhichBrokerId": "0", "nextBeginOffset": "9", "minOffset": "0", "maxOffset": "10"})
_SENT = _json({"msgId": "0A", "queueId": "1", "queueOffset": "7", "transactionId": "x", "recallHandle": "y"})
_KV_WRITE = Write(5, 6, 7, 1, 2, (Put(b"k", b"v"), ComparePut(b"k", None, b"v")))
_HEARTBEAT = _json({
    "clientID": "id", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [{
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "unitMode": False,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [
            {"topic": "t", "subString": "a||b", "tagsSet": ["a"], "codeSet": [97], "subVersion": 1}
        ]}]})  # fmt: skip


def _name_server(code: int, data: bytes) -> None:
    server = NameServer(lambda: 0)
    answer = server.handle(Command(code, IDENTITY, data), "a peer")
    assert answer is not None and "Error:" not in (answer.remark or ""), answer


IDENTITY = {
    "topic": "t", "clusterName": "c", "brokerName": "broker-a", "brokerId": "0", "brokerAddr": "10.0.0.1:10911",
    "haServerAddr": "10.0.0.1:10912",
}  # fmt: skip
DECODERS: tuple[Decoder, ...] = (
    Decoder(
        "ropewalk.format.sliced_json:loads_in_slices",
        "json",
        (_keyed("a", {"$ref": "$"}), _json(ROUTE)),
        lambda data: finish(loads_in_slices(_dialect(data), 1 << 20)),
    ),
    Decoder(
        "broker.state.heartbeat:HeartbeatData.decode_in_slices",
        "json",
        (_HEARTBEAT,),
        lambda data: finish(HeartbeatData.decode_in_slices(data)),
        (HeartbeatRefused,),
    ),
    Decoder(
        "broker.state.queue_locks:LockRequest.decode_in_slices",
        "json",
        (
            _json(
                {
                    "consumerGroup": "g",
                    "clientId": "c",
                    "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 1}],
                }
            ),
        ),
        lambda data: finish(LockRequest.decode_in_slices(data)),
        (ValueError,),
    ),
    Decoder(
        "ropewalk.member_proof:Asker.challenged",
        "msgpack",
        (Challenge(b"c" * 16, "0", b"n" * 32, "c", "broker-a").encoded(),),
        lambda data: Asker("a secret of twenty", "h:1", "10.0.0.1:1", b"m" * 32, cluster="c").challenged(
            data
        ),
    ),
    Decoder(
        "broker.namesrv.server:NameServer._query_version",
        "json",
        (_json(VERSION),),
        partial(_name_server, RequestCode.QUERY_DATA_VERSION),
    ),
    Decoder(
        "broker.namesrv.server:NameServer._register_topic",
        "json",
        (_json({"queueDatas": ROUTE["queueDatas"]}),),
        partial(_name_server, RequestCode.REGISTER_TOPIC_IN_NAMESRV),
    ),
    Decoder(
        "broker.admin.base:object_of",
        "json",
        (_json(ROUTE),),
        lambda data: object_of(Command(0, body=data)),
        (RequestRefused,),
    ),
    Decoder(
        "broker.replication.dledger.pull_commits:batch_untrusted",
        "json",
        (_json({"offsets": {"t@g": {"0": 5}}, "again": {}}),),
        batch_untrusted,
    ),
    Decoder(
        "ropewalk.format.fastjson:queue_keys",
        "json",
        (_keyed("a", 5),),
        _document(lambda document: fastjson.queue_keys(results.read_table(document, "a"))),
    ),
    Decoder(
        "ropewalk.format.kv.snapshot:decode_columns",
        "bytes",
        (encode_columns("qb", [[1, 2], [b"a", b"bc"]]),),
        lambda data: decode_columns("qb", data),
    ),
    # remoting
    Decoder(
        "ropewalk.client.core.connection:RemotingCore.feed",
        "bytes",
        (_FRAME, _BINARY),
        lambda data: RemotingCore().feed(data),
    ),
    Decoder("ropewalk.format.remoting:decode_frame", "bytes", (_FRAME[4:], _BINARY[4:]), decode_frame),
    Decoder("ropewalk.format.remoting:decode_json_header", "json", (_HEADERS,), decode_json_header),
    Decoder("ropewalk.format.remoting:decode_ext", "json", (_SEND, _PULLED), decode_ext),
    Decoder(
        "ropewalk.format.headers:decode_header",
        "json",
        (_SEND,),
        _ext(lambda ext: decode_header(SendMessageHeader, ext)),
    ),
    Decoder(
        "ropewalk.format.headers:decode_header[kv]",
        "json",
        (_json({"region": "1", "epoch": "2", "session": "3", "seq": 4, "lowest": 1}),),
        _ext(lambda ext: decode_header(KvWriteHeader, ext)),
    ),
    Decoder(
        "ropewalk.format.headers:decode_json_ext",
        "json",
        (_PULLED,),
        lambda data: decode_json_ext(PullResponseHeader, data),
    ),
    Decoder(
        "ropewalk.format.headers:RecallHandle.decode",
        "bytes",
        (b"djEgYnJva2VyIHRvcGljIDEgaWQ=",),
        lambda data: RecallHandle.decode(data.decode("latin-1")),
        (ValueError,),
    ),
    Decoder(
        "ropewalk.format.fastjson:loads",
        "json",
        (_keyed("a", {"$ref": "$"}), _json(ROUTE)),
        lambda data: fastjson.loads(_dialect(data)),
    ),
    Decoder(
        "ropewalk.format.properties:parse_properties",
        "bytes",
        (b"KEYS\x01a\x02TAGS\x01b\x02",),
        parse_properties,
    ),
    # records
    Decoder("ropewalk.format.record:decode_records", "bytes", (RECORD * 2,), decode_records),
    Decoder("ropewalk.format.record:decode_record", "bytes", (RECORD,), decode_record),
    Decoder(
        "ropewalk.format.record:parse_message_id",
        "bytes",
        (b"0A00000100002A9F0000000000000064",),
        lambda data: parse_message_id(data.decode("latin-1")),
        (ValueError,),
    ),
    Decoder(
        "ropewalk.client.core.consume.received:decode_received",
        "bytes",
        (RECORD * 2,),
        lambda data: decode_received(data, SOURCE),
    ),
    Decoder(
        "ropewalk.client.core.tracing.records:decode_trace",
        "bytes",
        (b"Pub\x011\x01r\x01g\x01t\x01id\x02",),
        lambda data: list(decode_trace(data)),
    ),
    # clients
    Decoder("ropewalk.client.core.routes:parse_route", "json", (_json(ROUTE),), parse_route),
    Decoder(
        "ropewalk.client.core.produce.results:read_send_result",
        "json",
        (_SENT,),
        _ext(lambda ext: read_send_result(Command(0, ext), "b", ("k",))),
    ),
    Decoder(
        "ropewalk.client.core.consume.consuming:_member_ids",
        "json",
        (_json({"consumerIdList": ["a", "b"]}),),
        _member_ids,
    ),
    Decoder(
        "ropewalk.client.core.consume.consuming:_granted",
        "json",
        (_json({"lockOKMQSet": [{"topic": "t", "brokerName": "b", "queueId": 1}]}),),
        _granted,
    ),
    Decoder(
        "ropewalk.client.core.admin_requests:reset_offsets",
        "json",
        (
            _keyed("offsetTable", 5),
            _json({"offsetTable": [{"topic": "t", "brokerName": "b", "queueId": 1, "offset": 5}]}),
        ),
        lambda data: reset_offsets(
            Command(220, {"topic": "t", "group": "g", "timestamp": "1", "isForce": "true"}, _dialect(data)),
            "g",
        ),
    ),
    Decoder("ropewalk.client.kv.asking:_regions_in", "json", (_json({"regions": [{"id": 1}]}),), _kv_answer),
    Decoder(
        "ropewalk.format.kv.commands:decode_outcome",
        "bytes",
        (encode_outcome(Outcome(Status(0), (Count(1),))),),
        decode_outcome,
    ),
    Decoder(
        "ropewalk.format.kv.commands:decode_found",
        "bytes",
        (encode_found(Status(0), [b"v", None]),),
        decode_found,
    ),
    Decoder(
        "ropewalk.format.kv.commands:decode_command",
        "bytes",
        (encode_command(_KV_WRITE), encode_command(OpenTerm(1, "h:1"))),
        decode_command,
    ),
    # administrators
    Decoder(
        "ropewalk.client.admin.cluster:document_in",
        "json",
        (_json(CLUSTER),),
        _document(lambda document: document),
    ),
    _documents("read_members", results.read_members, _json(CLUSTER)),
    _documents(
        "read_sinks",
        lambda document: results.read_sinks(MEMBER, document),
        _json(
            {
                "sinks": [
                    {
                        "sinkId": "s",
                        "epoch": 1,
                        "query": "q",
                        "batch": 1,
                        "open": True,
                        "rows": 1,
                        "topics": ["t"],
                        "lastActivity": 1,
                    }
                ]
            }
        ),
    ),
    _documents(
        "read_ledger_status", lambda document: results.read_ledger_status(MEMBER, document), _json(LEDGER)
    ),
    _documents(
        "read_statistics",
        results.read_statistics,
        _json({"statsMinute": {"sum": 1, "tps": 0.5, "avgpt": 0.1}}),
    ),
    _documents("read_topic_config", results.read_topic_config, _json(TOPIC)),
    _documents(
        "read_topic_status",
        lambda document: results.read_topic_status("t", [document]),
        _keyed("offsetTable", {"minOffset": 1, "maxOffset": 5, "lastUpdateTimestamp": 9}),
    ),
    _documents("read_group_config", results.read_group_config, _json(GROUP)),
    _documents(
        "read_progress",
        lambda document: results.read_progress("g", [document]),
        _keyed("offsetTable", {"brokerOffset": 1, "consumerOffset": 5, "lastTimestamp": 9}),
    ),
    _documents(
        "read_clients",
        lambda document: results.read_clients([document]),
        _json({"connectionSet": [{"clientId": "c", "clientAddr": "a", "language": "JAVA", "version": 1}]}),
    ),
    _documents(
        "read_consumers",
        lambda document: results.read_consumers("g", [document]),
        _json({"connectionSet": [], "subscriptionTable": {"t": {"subString": "*"}}}),
    ),
    _documents(
        "read_producers",
        lambda document: results.read_producers([document]),
        _json({"data": {"g": [{"clientId": "c", "remoteIP": "/a", "version": 1}]}}),
    ),
    _documents("read_offsets", lambda document: results.read_offsets([document]), _keyed("offsetTable", 5)),
    _documents(
        "read_member",
        lambda document: results.read_member(CLIENT, document),
        _json(
            {
                "mqTable": {},
                "statusTable": {"t": {"consumeRT": 1.5, "consumeOKTPS": 2}},
                "properties": {"PROP_CONSUMER_START_TIMESTAMP": "17"},
                "subscriptionSet": [{"topic": "t", "subString": "*"}],
            }
        ),
    ),
    _documents(
        "read_texts", lambda document: results.read_texts(document, "groupList"), _json({"groupList": ["a"]})
    ),
    _documents(
        "read_table", lambda document: results.read_table(document, "table"), _json({"table": {"a": "b"}})
    ),
    _documents(
        "read_numbers",
        lambda document: results.read_numbers(document, "offsetTable"),
        _json({"offsetTable": {"1": 5}}),
    ),
    _documents("read_number", lambda document: results.read_number(document, "index"), _json({"index": 5})),
    _documents(
        "read_objects",
        lambda document: results.read_objects(document, "regions"),
        _json({"regions": [{"id": 1}]}),
    ),
    Decoder(
        "ropewalk.client.kv.routes:_route_untrusted",
        "json",
        (_json({"regions": [{"id": 1, "start": "", "end": "6b", "epoch": 3, "leader": "h:1"}]}),),
        _document(lambda document: Routes(()).learn(results.read_objects(document, "regions"))),
    ),
    _documents(
        "read_kv_region",
        results.read_kv_region,
        _json({"region": 1, "firstKey": "6b", "member": "n0", "members": ["n0"], "leads": True, "term": 3}),
    ),
    _documents(
        "read_direct_result",
        results.read_direct_result,
        _json({"consumeResult": "CR_SUCCESS", "spentTimeMills": 5, "order": False}),
    ),
    Decoder(
        "ropewalk.client.admin.results:read_ledger_members",
        "json",
        (_json({"voters": "a,b", "learners": ""}),),
        _ext(results.read_ledger_members),
    ),
    # brokers and name servers
    Decoder(
        "broker.namesrv.answers:broker_addresses",
        "json",
        (_json(CLUSTER),),
        lambda data: broker_addresses(data, "brokerAddrTable", "broker-a"),
    ),
    Decoder(
        "broker.namesrv.answers:group_addresses",
        "json",
        (_json({"brokerMemberGroup": {"brokerAddrs": {"0": "a:1"}}}),),
        group_addresses,
    ),
    Decoder(
        "broker.namesrv.registration:decode_registration",
        "json",
        (
            _json(
                {
                    "topicConfigSerializeWrapper": {
                        "topicConfigTable": {"orders": TOPIC},
                        "dataVersion": VERSION,
                    },
                    "filterServerList": [],
                }
            ),
        ),
        lambda data: decode_registration(data, compressed=False),
        (BadRegistration,),
    ),
    Decoder(
        "broker.namesrv.registration:decode_registration[compressed]",
        "bytes",
        (_section(_json(VERSION)) + (1).to_bytes(4, "big") + _section(b"orders 4 4 6 SINGLE_TAG"),),
        _sections,
        (BadRegistration,),
    ),
    Decoder(
        "broker.state.heartbeat:HeartbeatData.decode",
        "json",
        (_HEARTBEAT,),
        HeartbeatData.decode,
        (HeartbeatRefused,),
    ),
    Decoder(
        "broker.state.queue_locks:LockRequest.decode",
        "json",
        (
            _json(
                {
                    "consumerGroup": "g",
                    "clientId": "c",
                    "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 1}],
                }
            ),
        ),
        LockRequest.decode,
        (ValueError,),
    ),
    Decoder(
        "broker.admin.relay:_offsets_in",
        "json",
        (_keyed("messageQueueTable", 5),),
        lambda data: _offsets_in(_dialect(data)),
    ),
    Decoder(
        "broker.state.data_version:DataVersion.from_json",
        "json",
        (_json(VERSION),),
        lambda data: msgspec.msgpack.encode(DataVersion.from_json(fastjson.loads(data)).next(5).to_json()),
    ),
    Decoder(
        "broker.settings.java_properties:read_properties",
        "bytes",
        (b"brokerName=a\nbrokerClusterName=c\n",),
        lambda data: list(read_properties(data.decode("utf-8", "replace"))),
        (ValueError,),
    ),
    Decoder(
        "store.timer.layout:Checkpoint.decode",
        "bytes",
        (Checkpoint(1, 2, 3).encode(),),
        Checkpoint.decode,
        (ValueError,),
    ),
    # a record of a group's log, which a slave has from its master
    Decoder(
        "broker.sinks.records:decode_claims",
        "json",
        (_json({"sink_id": "s", "query": "q", "batch": 1, "writer": [1, 2, 3], "keys": ["k"]}),),
        decode_claims,
        (ValueError,),
    ),
    # members of a group
    *_messages(
        "ha.group.hello:decode_untrusted",
        Hello(
            "c",
            "broker-a",
            1,
            "10.0.0.2:1",
            "10.0.0.2:5",
            4,
            0,
            900,
            1 << 20,
            [(1, 0)],
            [(0, 900)],
            [5],
            3,
            4,
        ),
        WELCOME,
        RangesRequest([(0, 900)]),
        Sums([5, None]),
        EpochRequest("c", "broker-a", 5, "op", 1, "10.0.0.1:1", POLICY),
        STATUS,
        SyncRequest(
            1,
            "10.0.0.2:1",
            4,
            Seen("run", 1, 1, 1, 1),
            900,
            900,
            3,
            4,
            [("t", "g", 0, 5, 6)],
            (1, 2, 3),
            (1, 2, 3),
            {"topicConfigTable": {"t": TOPIC}},
            None,
        ),
        SyncResponse(
            4,
            Seen("run"),
            900,
            900,
            5,
            POLICY,
            {"topicConfigTable": {"t": TOPIC}},
            {"subscriptionGroupTable": {"g": GROUP}},
            {"1": 5},
            [("t", "g", 0, 5, 6)],
            timers=(1, 2, 3),
        ),
        BlockRequest("c", "broker-a", "a:1", 1 << 20, 0, 6, 5, 900, [(1, 0)]),
        BlockResponse(0, crc32c.crc32c(b"abcdef"), b"abcdef"),
    ),
    Decoder(
        "ha.group.block_repair:block_untrusted",
        "msgpack",
        (encode(BlockResponse(0, crc32c.crc32c(b"abcdef"), b"abcdef")),),
        _span,
    ),
    Decoder("ropewalk.format.ha:Reports.feed", "bytes", (b"\0" * 8,), lambda data: Reports().feed(data)),
    Decoder(
        "ropewalk.format.ha:Frames.feed",
        "bytes",
        (encode_header(0, 6) + b"abcdef",),
        lambda data: list(HaFrames().feed(data)),
    ),
    Decoder(
        "broker.state.topics:TopicTable.adopt",
        "json",
        (_json({"topicConfigTable": {"t": TOPIC}, "dataVersion": VERSION}),),
        lambda data: _read(TopicTable(), "adopt", data),
    ),
    Decoder(
        "broker.state.groups:GroupTable.adopt",
        "json",
        (
            _json(
                {
                    "subscriptionGroupTable": {"g": GROUP},
                    "dataVersion": VERSION,
                    "forbiddenTable": {"g": {"t": 1}},
                }
            ),
        ),
        lambda data: _read(GroupTable(), "adopt", data),
    ),
    # members of a DLedger group
    Decoder(
        "ha.dledger.links.hello:read_introduction",
        "bytes",
        (
            prove(
                Step.HELLO,
                introduction_of(PEER, "n1", Link.CONTROL, b"c" * 32, Membership(3, {"n0": "h:1"}), {0: 5}),
                "",
                b"c" * 32,
            ),
        ),
        _introduction,
    ),
    Decoder(
        "ha.dledger.links.hello:IntroductionFrames.next_message",
        "bytes",
        (
            prove(
                Step.WELCOME,
                introduction_of(PEER, "n1", Link.DATA, b"c" * 32, Membership(-1, {})),
                "",
                b"c" * 32,
            ),
        ),
        _introduction,
    ),
    Decoder(
        "ropewalk.format.dledger.frame:Frames.feed",
        "bytes",
        tuple(
            encode_head(
                kind,
                0,
                0,
                1 if kind is Kind.APPEND else 0,
                (3, 4, 3, 0, 3, 4),
                ENTRY if kind is Kind.APPEND else b"",
            )
            + (ENTRY if kind is Kind.APPEND else b"")
            for kind in Kind
            if kind not in (Kind.FORWARD, Kind.FORWARD_ANSWER, Kind.BLOCK_ANSWER, Kind.SNAPSHOT_CHUNK)
        ),
        _frames,
    ),
    Decoder(
        "ha.dledger.links.frames:from_frame",
        "bytes",
        (encode_head(Kind.HEARTBEAT, 0, 0, 5, (3, 4, 0, 0, 0, 0)),),
        _frames,
    ),
    Decoder(
        "ropewalk.format.dledger.entry:check_run", "bytes", (ENTRY,), lambda data: check_run(5, 1, 3, 0, data)
    ),
    Decoder("ropewalk.format.dledger.entry:decode_head", "bytes", (ENTRY,), decode_head),
    Decoder("ropewalk.format.dledger.entry:decode_index", "bytes", (bytes(32),), decode_index),
    Decoder(
        "ropewalk.format.dledger.configuration:decode_configuration",
        "json",
        (encode_configuration(Configuration(3, "n0", ("n0", "n1"), addresses={"n0": "h:1"})),),
        decode_configuration,
    ),
    Decoder(
        "ropewalk.format.dledger.snapshot:decode_member_snapshot",
        "bytes",
        (encode_member_snapshot(MemberSnapshot(b"{}", [("t", 0, 5)], 4, b"state", ENTRY))[8:],),
        _crc_of(_with_crc, decode_member_snapshot),
    ),
    Decoder(
        "broker.replication.dledger.table_snapshots:decode_snapshot",
        "json",
        (encode_snapshot(TableSnapshot(4, 3, 0, 1, {"topics": {"t": TOPIC}}))[9:],),
        _crc_of(_with_text_crc, decode_snapshot),
    ),
)
