"""A name server and a broker in a thread, of one topic table and no durability: what a client can meet.

It speaks the wire through `ropewalk.format` only and keeps messages as encoded records, so that what a
client gets back went through the same bytes as with a real broker. `answers` replaces the answer to a
request code; `requests` keeps what came.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.batch import BatchItem, split_batch
from ropewalk.format.properties import P, parse_properties
from ropewalk.format.record import Record, decode_record, encode_host, encode_record, message_id
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.support.waiting import until

BROKER_NAME = "fake-broker"
Answer = Callable[[Command], Command | None]


@dataclass
class FakeQueue:
    min_offset: int = 0
    records: list[bytes] = field(default_factory=list)

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.records)


class FakeCluster:
    """Serves the codes the client uses, on one free port that is name server and broker at once."""

    def __init__(self, *, auto_create: bool = True, clock: Callable[[], int] | None = None) -> None:
        self.auto_create = auto_create
        self.topics: dict[str, list[FakeQueue]] = {}
        self.requests: list[Command] = []
        self.answers: dict[int, Answer] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.log: list[bytes] = []
        self._log_end = 0
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> FakeCluster:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), thread

    def hang_up(self) -> None:
        """Cut every connection there is."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def create_topic(self, topic: str, queue_count: int = 4) -> None:
        with self._changed:
            self.topics.setdefault(topic, [FakeQueue() for _ in range(queue_count)])

    def put(
        self, topic: str, queue_id: int, body: bytes, *, sys_flag: int = 0, properties: bytes = b""
    ) -> int:
        """Store a message as if a producer had sent it; its queue offset."""
        with self._changed:
            return self._append(topic, queue_id, BatchItem(0, body, properties), sys_flag, self._clock())

    def records(self, topic: str) -> list[Record]:
        """Everything a topic holds, in the order of arrival."""
        with self._changed:
            return [record for record in map(decode_record, self.log) if record.topic == topic]

    def codes(self) -> list[int]:
        return [request.code for request in self.requests]

    def wait_for_request(self, code: int, count: int = 1) -> None:
        """Return once so many requests of this code have come."""
        until(lambda: self.codes().count(code) >= count, f"no request with code {code}")

    def push(self, command: Command) -> None:
        """Ask something of every client that is connected."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.sendall(encode_frame(command))

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameBuffer()
        write = threading.Lock()
        with connection:
            while True:
                try:
                    data = connection.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                for payload in frames.feed(data):
                    request = decode_frame(payload)
                    if not request.is_response:
                        self.requests.append(request)
                        self._handle(connection, write, request)

    def _handle(self, connection: socket.socket, write: threading.Lock, request: Command) -> None:
        custom = self.answers.get(request.code)
        if custom is not None:
            reply = custom(request)
        elif request.code == RequestCode.PULL_MESSAGE:
            reply = self._pull(request)
            if reply.code == ResponseCode.PULL_NOT_FOUND and int(request.ext["sysFlag"]) & 2:
                self._start(self._hold, connection, write, request)
                return
        else:
            with self._changed:
                reply = self._answer(request)
                self._changed.notify_all()
        self._write(connection, write, request, reply)

    def _write(
        self, connection: socket.socket, write: threading.Lock, request: Command, reply: Command | None
    ) -> None:
        if reply is not None and not request.is_oneway:
            with write, contextlib.suppress(OSError):
                connection.sendall(encode_frame(reply))

    def _hold(self, connection: socket.socket, write: threading.Lock, request: Command) -> None:
        deadline = time.monotonic() + int(request.ext["suspendTimeoutMillis"]) / 1000
        while True:
            reply = self._pull(request)
            with self._changed:
                waiting = reply.code == ResponseCode.PULL_NOT_FOUND and time.monotonic() < deadline
                if not waiting or self._stopping:
                    break
                self._changed.wait(0.02)
        self._write(connection, write, request, reply)

    def _answer(self, request: Command) -> Command:
        ext = request.ext
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self._route(request)
            case RequestCode.SEND_MESSAGE_V2:
                item = BatchItem(int(ext["h"]), request.body, ext.get("i", "").encode())
                return self._send(request, [item])
            case RequestCode.SEND_BATCH_MESSAGE:
                return self._send(request, split_batch(request.body))
            case RequestCode.GET_MIN_OFFSET:
                return self._offset(request, self._queue(ext).min_offset)
            case RequestCode.GET_MAX_OFFSET:
                return self._offset(request, self._queue(ext).max_offset)
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                queue = self._queue(ext)
                times = (decode_record(record).store_timestamp for record in queue.records)
                earlier = sum(stored < int(ext["timestamp"]) for stored in times)
                return self._offset(request, queue.min_offset + earlier)
            case RequestCode.QUERY_CONSUMER_OFFSET:
                offset = self.committed.get((ext["consumerGroup"], ext["topic"], int(ext["queueId"])))
                if offset is None:
                    return request.reply(ResponseCode.QUERY_NOT_FOUND, "Not found")
                return self._offset(request, offset)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
                self.committed[key] = int(ext["commitOffset"])
                return request.reply(ResponseCode.SUCCESS)
            case RequestCode.VIEW_MESSAGE_BY_ID:
                for record in self.log:
                    if decode_record(record).offset == int(ext["offset"]):
                        return request.reply(ResponseCode.SUCCESS, body=record)
                return request.reply(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    def _route(self, request: Command) -> Command:
        topic = request.ext["topic"]
        queues = len(self.topics.get(topic, ()))
        if topic == "TBW102" and self.auto_create:
            queues = 8
        if not queues:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info for {topic}")
        return request.reply(ResponseCode.SUCCESS, body=route_body(BROKER_NAME, self.address, queues))

    def _queue(self, ext: dict[str, str]) -> FakeQueue:
        return self.topics[ext["topic"]][int(ext["queueId"])]

    def _offset(self, request: Command, offset: int) -> Command:
        return request.reply(ResponseCode.SUCCESS, ext={"offset": str(offset)})

    def _send(self, request: Command, items: list[BatchItem]) -> Command:
        topic, queue_id = request.ext["b"], int(request.ext["e"])
        if topic not in self.topics:
            self.topics[topic] = [FakeQueue() for _ in range(int(request.ext["d"]))]
        born = int(request.ext["g"])
        first = self.topics[topic][queue_id].max_offset
        ids = []
        for item in items:
            ids.append(message_id(encode_host("127.0.0.1", self.port), self._log_end))
            self._append(topic, queue_id, item, int(request.ext["f"]), born)
        return request.reply(
            ResponseCode.SUCCESS,
            ext={"msgId": ",".join(ids), "queueId": str(queue_id), "queueOffset": str(first)},
        )

    def _append(self, topic: str, queue_id: int, item: BatchItem, sys_flag: int, born: int) -> int:
        queue = self.topics[topic][queue_id]
        record = encode_record(
            topic.encode(),
            queue_id,
            item.flag,
            queue.max_offset,
            self._log_end,
            sys_flag,
            born,
            encode_host("127.0.0.1", 1),
            self._clock(),
            encode_host("127.0.0.1", self.port),
            0,
            0,
            item.body,
            item.properties,
        )
        queue.records.append(record)
        self.log.append(record)
        self._log_end += len(record)
        return queue.max_offset - 1

    def _pull(self, request: Command) -> Command:
        ext = request.ext
        offset, count = int(ext["queueOffset"]), int(ext["maxMsgNums"])
        with self._changed:
            queue = self._queue(ext)
            low, high = queue.min_offset, queue.max_offset
            records = queue.records[max(0, offset - low) :][:count]
        if offset < low or offset > high:
            code, records, following = ResponseCode.PULL_OFFSET_MOVED, [], low if offset < low else high
        elif records:
            code, following = ResponseCode.SUCCESS, offset + len(records)
            wanted = {tag.strip() for tag in ext.get("subscription", "*").split("||")}
            if wanted != {"*"}:
                records = [record for record in records if tag_of(record) in wanted]
                code = ResponseCode.SUCCESS if records else ResponseCode.PULL_RETRY_IMMEDIATELY
        else:
            code, following = ResponseCode.PULL_NOT_FOUND, offset
        header = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(following),
            "minOffset": str(low),
            "maxOffset": str(high),
        }
        return request.reply(code, ext=header, body=b"".join(records))


def tag_of(record: bytes) -> str | None:
    return parse_properties(decode_record(record).raw_properties).get(P.TAGS)


def route_body(broker: str, address: str, queues: int, *, perm: int = 6, broker_id: int = 0) -> bytes:
    """Route data as a name server writes it for one broker."""
    return fastjson.dumps(
        {
            "brokerDatas": [
                {"brokerAddrs": {str(broker_id): address}, "brokerName": broker, "cluster": "DefaultCluster"}
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": broker,
                    "perm": perm,
                    "readQueueNums": queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": queues,
                }
            ],
        }
    )
