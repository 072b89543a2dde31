"""A peer that answers every question, and hardly ever as it should.

Its answers are odd neighbours of valid ones (`tests.peers.mutate`), drawn from one seed; now and then it hangs up, or
sends no answer but bytes.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import trio

from ha.group.hello import Sums, encode
from ha.group.metadata import Seen, SyncResponse
from ropewalk.codes import RequestCode as C
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.kv.commands import Outcome, Status, encode_found, encode_outcome
from ropewalk.format.kv.items import Count
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.peers import decoders as samples
from tests.peers.mutate import ODD, mutated

__all__ = ["OddPeer"]

MEMBERS = {"brokerMemberGroup": {"brokerAddrs": {"0": "@", "1": "@", "2": "host:0", "3": "\ud800:1"}}}


_QUEUES = {samples.QUEUE_KEY.decode(): {"minOffset": 0, "maxOffset": 5, "lastUpdateTimestamp": 9}}
ADMINISTRATORS: dict[int, object] = {
    C.GET_TOPIC_CONFIG: samples.TOPIC,
    C.GET_TOPIC_STATS_INFO: {"offsetTable": _QUEUES},
    C.GET_CONSUME_STATS: {
        "offsetTable": {samples.QUEUE_KEY.decode(): {"brokerOffset": 1, "consumerOffset": 5, "lastTimestamp": 9}}
    },
    C.GET_BROKER_CONSUME_STATS: {"consumeStatsList": []},
    C.GET_BROKER_RUNTIME_INFO: {"table": {"brokerVersionDesc": "V5", "runtime": "[ 1 days ]", "bootTimestamp": "1"}},
    C.GET_CONSUMER_CONNECTION_LIST: {
        "connectionSet": [{"clientId": "c", "clientAddr": "a", "language": "JAVA", "version": 1}],
        "subscriptionTable": {"t": {"topic": "t", "subString": "*"}}, "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    },
    C.GET_PRODUCER_CONNECTION_LIST: {
        "connectionSet": [{"clientId": "c", "clientAddr": "a", "language": "JAVA", "version": 1}]
    },
    C.GET_ALL_PRODUCER_INFO: {"data": {"g": [{"clientId": "c", "remoteIP": "/a", "version": 1}]}},
    C.GET_CONSUMER_RUNNING_INFO: {
        "mqTable": {}, "statusTable": {"t": {"consumeRT": 1.5, "consumeOKTPS": 2}},
        "properties": {"PROP_CONSUMER_START_TIMESTAMP": "17"}, "subscriptionSet": [{"topic": "t", "subString": "*"}],
    },
    C.CONSUME_MESSAGE_DIRECTLY: {"consumeResult": "CR_SUCCESS", "spentTimeMills": 5, "order": False},
    C.INVOKE_BROKER_TO_RESET_OFFSET: {"offsetTable": {samples.QUEUE_KEY.decode(): 5}},
    C.QUERY_TOPIC_CONSUME_BY_WHO: {"groupList": ["g"]},
    C.GET_TOPICS_BY_CLUSTER: {"topicList": ["t"]},
    C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: {"topicList": ["t", "%DLQ%g", "%RETRY%g"]},
    C.GET_SYSTEM_TOPIC_LIST_FROM_NS: {"topicList": ["TBW102"]},
    C.VIEW_BROKER_STATS_DATA: {"statsMinute": {"sum": 1, "tps": 0.5, "avgpt": 0.1}},
    C.ROPEWALK_SINK_LIST: {"sinks": [{
        "sinkId": "s", "epoch": 1, "query": "q", "batch": 1, "open": True, "rows": 1, "topics": ["t"],
        "lastActivity": 1,
    }]},
    C.ROPEWALK_LEDGER_STATUS: samples.LEDGER,
    C.ROPEWALK_LEDGER_SNAPSHOT: {"index": 5},
    C.ROPEWALK_KV_REGIONS: {
        "regions": [{"id": 1, "start": "", "end": "", "epoch": 3, "leader": "10.0.0.1:10911", "term": 1}]
    },
    C.ROPEWALK_KV_STATUS: {"regions": [{
        "region": 1, "firstKey": "", "endKey": "", "epoch": 3, "member": "n0", "members": ["n0", "n1"],
        "role": "LEADER", "term": 3, "leads": True, "end": 5, "applied": 5, "keys": 2, "usedBytes": 10,
    }]},
}  # fmt: skip
KV_BODIES = {
    C.ROPEWALK_KV_SESSION: encode_outcome(Outcome(Status(0), (Count(1),))),
    C.ROPEWALK_KV_WRITE: encode_outcome(Outcome(Status(0), (Count(1),))),
    C.ROPEWALK_KV_SPLIT: encode_outcome(Outcome(Status(0), (Count(1),))),
    C.ROPEWALK_KV_GET: encode_found(Status(0), [b"v"]),
    C.ROPEWALK_KV_MULTI_GET: encode_found(Status(0), [b"v", None]),
    C.ROPEWALK_KV_SCAN: encode_found(Status(0), [b"b", b"v"]),
}


class OddPeer:
    """A broker, a slave's master, and a name server in one, at one address."""

    def __init__(self, seed: object, *, right: float = 0.5) -> None:
        """Answer rightly with the probability `right`: questions behind the first ones are asked too."""
        self.address = ""
        self.asked: Counter[int] = Counter()
        self._rng = random.Random(repr(seed))
        self._right = right
        self._progress = trio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[OddPeer]:
        """Serve at a port of this machine."""
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, self._serve, 0)
            host, port = listeners[0].socket.getsockname()[:2]
            self.address = f"127.0.0.1:{port}" if host else ""
            yield self
            nursery.cancel_scope.cancel()

    @contextmanager
    def in_thread(self) -> Iterator[OddPeer]:
        """Serve at a port of this machine from a thread, for those who block."""
        started = threading.Event()
        stop: list[Callable[[], None]] = []

        async def run() -> None:
            async with self.serving():
                over = trio.Event()
                token = trio.lowlevel.current_trio_token()
                stop.append(lambda: token.run_sync_soon(over.set))
                started.set()
                await over.wait()

        thread = threading.Thread(target=trio.run, args=(run,), daemon=True)
        thread.start()
        assert started.wait(20.0)
        try:
            yield self
        finally:
            stop[0]()
            thread.join(20.0)

    async def _serve(self, stream: trio.SocketStream) -> None:
        frames = FrameBuffer()
        try:
            async for data in stream:
                for payload in frames.feed(data):
                    answer = self.answer(decode_frame(payload))
                    if answer is None:
                        return
                    await stream.send_all(answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError, RemoteProtocolError):
            pass  # the last one: it is asked over HTTP, for a page

    async def answered(self, count: int) -> None:
        """Wait until so many questions were answered. Raises `TooSlowError` where nobody asks any more."""
        while self.asked.total() < count:
            with trio.fail_after(20.0):
                await self._progress.wait()

    def answer(self, request: Command) -> bytes | None:
        """Return the bytes of the answer to a request; None to hang up."""
        self.asked[request.code] += 1
        self._progress.set()
        self._progress = trio.Event()
        rng = self._rng
        chance = rng.random()
        if chance < 0.02:
            return None
        form, sample, ext = self._sample(request.code)
        if chance < 0.02 + self._right:
            return encode_frame(request.reply(0, None, ext, sample))
        if chance > 0.97:
            return rng.randbytes(40)
        code = rng.choice((0, 0, 0, 0, 1, 17, 3, 65_000, -1))
        remark = rng.choice((None, "", "no\0way", "x" * 5_000))
        fields = {
            key: str(rng.choice(ODD))[:300] if rng.random() < 0.3 else value for key, value in ext.items()
        }
        fields = {key: value.encode("utf-8", "replace").decode() for key, value in fields.items()}
        return encode_frame(request.reply(code, remark, fields, mutated(rng, form, sample)))

    def _sample(self, code: int) -> tuple[str, bytes, dict[str, str]]:
        """Return the form, the body and the fields of a valid answer."""
        status = msgspec.structs.replace(
            samples.STATUS, cluster="DefaultCluster", address=self.address, ha_address=self.address
        )
        packed = {
            C.ROPEWALK_CHALLENGE: msgspec.msgpack.encode({"challenge": b"", "version": "0"}),
            C.ROPEWALK_SLAVE_HELLO: encode(samples.WELCOME),
            C.ROPEWALK_LOG_SUMS: encode(Sums([5, None])),
            C.ROPEWALK_SYNC: encode(
                SyncResponse(4, Seen("run"), 900, 900, 5, samples.POLICY, delays={"1": 5}, timers=(1, 2, 3))
            ),
            C.ROPEWALK_MEMBER_STATUS: encode(status),
        }
        if code in packed:
            return "msgpack", packed[code], {}
        documents: dict[int, object] = {
            C.GET_ALL_TOPIC_CONFIG: {
                "topicConfigTable": {"t": samples.TOPIC},
                "dataVersion": samples.VERSION,
            },
            C.GET_ALL_CONSUMER_OFFSET: {"offsetTable": {"t@g": {"0": 5}}},
            C.GET_ALL_DELAY_OFFSET: {"offsetTable": {"1": 5}, "dataVersion": samples.VERSION},
            C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {"subscriptionGroupTable": {"g": samples.GROUP}},
            C.GET_TIMER_METRICS: {"timingCount": {"t": {"count": 3, "timeStamp": 1}}},
            C.GET_BROKER_MEMBER_GROUP: MEMBERS,
            C.GET_BROKER_CLUSTER_INFO: samples.CLUSTER,
            C.GET_ROUTEINFO_BY_TOPIC: samples.ROUTE,
            C.GET_CONSUMER_LIST_BY_GROUP: {"consumerIdList": ["a"]},
            C.LOCK_BATCH_MQ: {"lockOKMQSet": []},
            **ADMINISTRATORS,
        }
        ext = {
            "haServerAddr": self.address, "masterAddr": self.address, "changed": "true", "queueId": "0",
            "queueOffset": "7", "msgId": "AC", "offset": "5", "suggestWhichBrokerId": "0", "nextBeginOffset": "9",
            "minOffset": "0", "maxOffset": "10", "transactionId": "x", "value": "broker-a:4", "voters": "n0,n1",
            "learners": "", "leader": "n1", "index": "5", "index_last_update_timestamp": "1", "wipeTopicCount": "1",
        }  # fmt: skip
        if code in documents:
            text = (
                json.dumps(documents[code])
                .replace('@"', f'{self.address}"')
                .replace("10.0.0.1:10911", self.address)
            )
            return "json", text.encode(), ext
        if code in KV_BODIES:
            return "bytes", KV_BODIES[code], {**ext, "session": "5", "leader": self.address}
        body = {
            C.GET_BROKER_CONFIG: b"brokerName=broker-a\nbrokerClusterName=DefaultCluster\n",
            C.GET_NAMESRV_CONFIG: b"rocketmqHome=/x\n",
            C.PULL_MESSAGE: samples.RECORD,
            C.QUERY_MESSAGE: samples.RECORD,
            C.VIEW_MESSAGE_BY_ID: samples.RECORD,
        }
        return "bytes", body.get(code, b""), ext
