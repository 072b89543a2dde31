"""The loop's time for the worst frames of each request code: `python -m tests.bench.large_frames [--codes 34,41]`.

Starts a broker with an embedded name server as a process, sends it the frames that cost most (of every code: a body of
plain JSON and one of fastjson's dialect, both as large as a frame may be, and headers with thousands of fields; then
frames made for single codes), and prints for each

    cpu ms    the longest turn of the loop, by the processor time of its thread
    wall ms   the longest turn, by the clock: more than `cpu ms` where the machine is busy
    other ms  the worst wait of another client's send beside it

The process measures its own turns: this module is its entrance too (`--serve`), and wraps `Shell.turn`. The figures
lie in a file that both map. Nothing is asserted: tests count work instead (`tests/broker/test_large_frames.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import runpy
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, request_name
from ropewalk.format.remoting import Command, encode_frame
from tests.broker.harness import send_ext
from tests.support.brokers import address_of, broker

MIB = 1 << 20
FIGURES = struct.Struct("dd")
"""The longest turn so far: processor time and wall time, in seconds."""
BODY = 15 * MIB + MIB // 2
PATIENCE_S = 60.0
CONNECTIONS = 20
"""Connections that send at once, where a frame is small."""


# -- the process ---------------------------------------------------------------------------------------


def serve(figures: str, arguments: list[str]) -> None:
    """Run the command with turns that are measured."""
    from broker.remoting.shell import Shell

    with Path(figures).open("r+b") as file:
        shared = mmap.mmap(file.fileno(), FIGURES.size)
    turn: Callable[..., None] = Shell.turn

    def measured(shell: Shell, *rest: object) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        turn(shell, *rest)
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        before_cpu, before_wall = FIGURES.unpack_from(shared)
        if cpu > before_cpu or wall > before_wall:
            FIGURES.pack_into(shared, 0, max(cpu, before_cpu), max(wall, before_wall))

    Shell.turn = measured  # type: ignore[method-assign,assignment]
    sys.argv = ["ropewalk", *arguments]
    runpy.run_module("ropewalk", run_name="__main__")


# -- the frames ----------------------------------------------------------------------------------------


@dataclass
class Attack:
    """Frames that are sent at once, each over a connection of its own."""

    code: int
    what: str
    frames: list[bytes]
    waits: bool = field(default=True)
    """Whether an answer or the end of the connection is waited for."""


def repeat(open_: bytes, entry: bytes, close: bytes, size: int) -> bytes:
    """Return as many equal entries as fit a size."""
    return open_ + entry * ((size - len(open_) - len(close)) // len(entry)) + close


def numbered(open_: bytes, entry: bytes, close: bytes, size: int) -> bytes:
    """Return entries with numbers in them, as many as fit a size."""
    parts, left, number = [open_], size - len(open_) - len(close), 0
    while left > len(entry) + 8:
        parts.append(entry % number)
        left -= len(parts[-1])
        number += 1
    return b"".join((*parts[:-1], parts[-1].rstrip(b","), close))


NAMES = {
    "topic": "T", "group": "g", "consumerGroup": "g", "groupName": "g", "queueId": "0", "queueOffset": "0",
    "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "brokerName": "x", "brokerAddr": "10.0.0.9:1", "clusterName": "c", "brokerId": "0", "haServerAddr": "",
    "producerGroup": "p", "clientID": "c", "namespace": "n", "key": "k", "value": "v", "cluster": "c",
    "offset": "0", "timestamp": "0", "msgId": "7F00000100002A9F0000000000000000", "a": "p", "b": "T", "e": "0",
    "timeStamp": "0", "isForce": "true", "srcGroup": "g", "destGroup": "h", "perm": "6", "readQueueNums": "4",
    "writeQueueNums": "4", "topicFilterType": "SINGLE_TAG", "order": "false", "defaultTopic": "TBW102",
    "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9000000000000000000", "statsName": "a", "statsKey": "b",
    "clientId": "c", "consumerId": "c", "bornTimestamp": "0", "flag": "0",
}  # fmt: skip
IDENTITY = {
    name: NAMES[name] for name in ("brokerName", "brokerAddr", "clusterName", "brokerId", "haServerAddr")
}


def frame(code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    return encode_frame(Command(int(code), ext or {}, body, opaque=1))


def texts(fields: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


def raw(header: bytes, kind: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


PLAIN = repeat(b"[", b"[],", b"[]]", BODY)
DIALECT = repeat(b"{", b"a:'b',", b"}", BODY)


def of_every_code(code: int) -> Iterator[Attack]:
    """Yield the frames that any code may be sent."""
    yield Attack(code, "body 15.5 MiB, plain", [frame(code, NAMES, PLAIN)])
    yield Attack(code, "body 15.5 MiB, dialect", [frame(code, NAMES, DIALECT)])
    many = {**NAMES, **{f"x{n}": "" for n in range(5_000)}}
    yield Attack(code, f"header of 5,000 fields x {CONNECTIONS}", [frame(code, many)] * CONNECTIONS)


def of_headers() -> Iterator[Attack]:
    code = int(RequestCode.HEART_BEAT)
    for size in (7_900, 258_000):
        header = repeat(b"{code:34,extFields:{", b"a:'b',", b"}}", size)
        yield Attack(code, f"dialect header {size} x {CONNECTIONS}", [raw(header)] * CONNECTIONS)
        many = raw(header) * (250_000 // size)
        yield Attack(code, f"dialect headers {size}, a read of them x {CONNECTIONS}", [many] * CONNECTIONS)
    plain = numbered(b'{"code":34,"extFields":{', b'"%d":"",', b"}}", 2 * MIB - 100)
    yield Attack(code, "plain header of 2 MiB of fields", [raw(plain)])
    text = b'{"code":34,"extFields":{"a":"%b"}}' % (b"\\u00e4" * 340_000)
    yield Attack(code, f"plain header of a 2 MiB text x {CONNECTIONS}", [raw(text)] * CONNECTIONS)
    binary = struct.pack(">hBhiii", 34, 0, 1, 1, 0, 0)
    fields = b"\x00\x01a\x00\x00\x00\x00" * 37_000
    yield Attack(
        code, "binary header of 37,000 fields", [raw(binary + struct.pack(">i", len(fields)) + fields, 1)]
    )
    yield Attack(code, "brackets 15.5 MiB", [raw(b"[" * BODY)])


def of_names() -> Iterator[Attack]:
    """Yield frames for the name server's codes."""
    code = int(RequestCode.REGISTER_BROKER)

    def sections(count: int, entries: int) -> bytes:
        text = b"t%07d 4 4 6 SINGLE_TAG"
        plain = struct.pack(">i", 2) + b"{}" + struct.pack(">i", count)
        return plain + b"".join(
            struct.pack(">i", 26) + (text % n).ljust(26) for n in range(entries)
        )  # fmt: skip

    def zipped(plain: bytes, name: str) -> bytes:
        ext = {**IDENTITY, "brokerName": name, "compressed": "true", "brokerAddr": f"10.0.0.{len(name)}:1"}
        return frame(code, ext, zlib.compress(plain))

    yield Attack(code, "zip of 800,000 topics", [zipped(sections(800_000, 800_000), "a")])
    yield Attack(code, "zip of 30 MiB of zeros", [zipped(bytes(30 * MIB), "b")])
    yield Attack(code, "zip of 50,000 topics", [zipped(sections(50_000, 50_000), "cc")])
    yield Attack(code, "the same again", [zipped(sections(50_000, 50_000), "cc")])
    topics = {
        f"topic-{n}": {
            "attributes": {}, "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
            "topicName": f"topic-{n}", "topicSysFlag": 0, "writeQueueNums": 8,
        }
        for n in range(50_000)
    }  # fmt: skip
    wrapper = {"dataVersion": {"counter": 1}, "topicConfigTable": topics}
    plain = json.dumps({"topicConfigSerializeWrapper": wrapper}, separators=(",", ":")).encode()
    for text, what in ((plain, "plain"), (plain[:-1] + b",x:{0:1}}", "dialect")):
        ext = {**IDENTITY, "brokerName": what, "brokerAddr": f"10.0.1.{len(what)}:1"}
        yield Attack(code, f"50,000 topics, {what}", [frame(code, ext, text)])
    yield Attack(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER, "of 50,000 topics", [frame(205, {"brokerName": "plain"})]
    )
    for names_code in (206, 224, 311, 312, 313):
        ext = {"cluster": "c"}
        yield Attack(names_code, "with 100,000 topics", [frame(names_code, ext)])
    gone = {**IDENTITY, "brokerName": "plain", "brokerAddr": "10.0.1.5:1"}
    yield Attack(RequestCode.UNREGISTER_BROKER, "of 50,000 topics", [frame(104, gone)])
    for size in (16_000, 4 * MIB):
        text = numbered(b"", b"a%d=b\n", b"", size)
        yield Attack(RequestCode.UPDATE_NAMESRV_CONFIG, f"{size} bytes of properties", [frame(318, {}, text)])
    pairs = [frame(100, {"namespace": "n", "key": f"{n}", "value": ""}) for n in range(9_000)]
    yield Attack(RequestCode.PUT_KV_CONFIG, "9,000 pairs in a read", [b"".join(pairs)])
    big = {"namespace": "big", "key": "k", "value": "\x01" * 330_000}
    yield Attack(
        RequestCode.PUT_KV_CONFIG,
        "a value of 330,000",
        [frame(100, {**big, "key": f"k{n}"}) for n in range(9)],
    )
    for namespace in ("n", "big"):
        yield Attack(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace, [frame(219, {"namespace": namespace})])


def of_clients() -> Iterator[Attack]:
    """Yield frames for the codes of producers and consumers."""
    beat = int(RequestCode.HEART_BEAT)

    def heartbeat(groups: bytes, client: bytes = b"c") -> bytes:
        return frame(beat, {}, b'{"clientID":"%b","consumerDataSet":[%b]}' % (client, groups))

    wishes = b",".join(b'{"topic":"t%d"}' % n for n in range(4_990))
    yield Attack(
        beat,
        "one group, 4,990 subscriptions",
        [heartbeat(b'{"groupName":"one","subscriptionDataSet":[%b]}' % wishes)],
    )
    groups = b",".join(b'{"groupName":"g%d","subscriptionDataSet":[{"topic":"t"}]}' % n for n in range(1_000))
    yield Attack(beat, "1,000 groups", [heartbeat(groups)])
    yield Attack(beat, "1,000 groups again", [heartbeat(groups)])
    yield Attack(
        beat, f"1,000 groups x {CONNECTIONS}", [heartbeat(groups, b"c%d" % n) for n in range(CONNECTIONS)]
    )
    tags = b"||".join(b"%d" % n for n in range(100_000))
    yield Attack(
        beat,
        "100,000 tags",
        [heartbeat(b'{"groupName":"g","subscriptionDataSet":[{"topic":"t","subString":"%b"}]}' % tags)],
    )
    producers = b",".join(b'{"groupName":"p%d"}' % n for n in range(1_000))
    yield Attack(
        beat,
        "1,000 producer groups",
        [frame(beat, {}, b'{"clientID":"p","producerDataSet":[%b]}' % producers)],
    )
    yield Attack(beat, "1 MiB of []", [frame(beat, {}, repeat(b"[", b"[],", b"[]]", MIB))])
    yield Attack(
        beat,
        f"8 KiB of dialect, a read of them x {CONNECTIONS}",
        [frame(beat, {}, repeat(b"{", b"a:'b',", b"}", 8_190)) * 30] * CONNECTIONS,
    )
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        queues = numbered(
            b'{"clientId":"c","consumerGroup":"g","mqSet":[',
            b'{"brokerName":"b","queueId":%d,"topic":"T"},',
            b"]}",
            4 * MIB,
        )
        yield Attack(code, "4 MiB of queues", [frame(code, {}, queues)])
    for code, name, key in ((18, b"topicName", b"topicConfigList"), (225, b"groupName", b"groupConfigList")):
        body = numbered(
            b'{"' + key + b'":[',
            b'{"' + name + b'":"n%d","readQueueNums":1,"writeQueueNums":1,"perm":6},',
            b"]}",
            MIB,
        )
        yield Attack(code, "a list of 1 MiB", [frame(code, {}, body)])
    sql = "(" + " or ".join(f"a{n} = {n}" for n in range(2_400)) + ")"
    check = json.dumps(
        {"subscriptionData": {"expressionType": "SQL92", "subString": sql, "topic": "T"}}
    ).encode()
    yield Attack(RequestCode.CHECK_CLIENT_CONFIG, "SQL92 of 30 KiB", [frame(46, {}, check)])
    pull = {
        **NAMES,
        "expressionType": "TAG",
        "subscription": "||".join(str(n) for n in range(9_000)),
        "subVersion": "0",
    }
    yield Attack(RequestCode.PULL_MESSAGE, "9,000 tags", [frame(11, pull)])
    pulls = b"".join(
        frame(11, {**pull, "subscription": "||".join(str(n) for n in range(k, k + 4_500))}) for k in range(8)
    )
    yield Attack(
        RequestCode.PULL_MESSAGE, f"4,500 tags, a read of them x {CONNECTIONS}", [pulls] * CONNECTIONS
    )
    posted = {**pull, "expressionType": "SQL92", "subscription": sql}
    yield Attack(RequestCode.PULL_MESSAGE, "SQL92 of 30 KiB", [frame(11, posted)])
    others = [frame(11, {**posted, "subscription": sql.replace("a1 ", f"b{n} ")}) for n in range(8)]
    yield Attack(RequestCode.PULL_MESSAGE, "SQL92 of 30 KiB, 8 of them", [b"".join(others)])
    yield Attack(RequestCode.GET_CONSUMER_LIST_BY_GROUP, "a group", [frame(38, {"consumerGroup": "g"})])
    for code in (21, 43, 45, 51, 200, 201, 203, 204, 28, 26, 202, 208, 300, 307, 343, 401, 402, 328, 61, 60):
        yield Attack(code, "with what was made before", [frame(code, {**NAMES, "topic": "T"})])
    for size in (16_000, 4 * MIB):
        text = numbered(b"", b"a%d=b\n", b"", size)
        yield Attack(RequestCode.UPDATE_BROKER_CONFIG, f"{size} bytes of properties", [frame(25, {}, text)])
    ext = texts(send_ext("T"))
    ext["m"] = "true"
    inner = struct.pack(">iiiii", 4 + 4 + 4 + 4 + 4 + 1 + 2, 0, 0, 0, 1) + b"x" + struct.pack(">h", 0)
    unlike = b"".join(
        struct.pack(">iiiii", 22 + n % 3 + 7, 0, 0, 0, n % 3) + b"x" * (n % 3) + b"\x00\x07TAGS\x01a\x02"
        for n in range(10_000)
    )
    yield Attack(
        RequestCode.SEND_BATCH_MESSAGE, "a batch of 10,000, of several sizes", [frame(320, ext, unlike)]
    )
    for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        yield Attack(
            code,
            "a batch of 4 MiB of one byte each",
            [frame(code, ext, repeat(b"", inner, b"", 4 * MIB - 100))],
        )
    props = "\x02".join(f"k{n}\x01v" for n in range(3_500))
    ext = {**texts(send_ext("T")), "i": props}
    yield Attack(RequestCode.SEND_MESSAGE_V2, "3,500 properties, a read of them", [frame(310, ext, b"x") * 8])
    keys = {**texts(send_ext("T")), "i": "KEYS\x01" + " ".join(str(n) for n in range(5_000)) + "\x02"}
    yield Attack(RequestCode.SEND_MESSAGE_V2, "5,000 keys, a read of them", [frame(310, keys, b"x") * 8])
    commits = b"".join(frame(15, {**NAMES, "queueId": str(n % 4)}) for n in range(600))
    yield Attack(
        RequestCode.UPDATE_CONSUMER_OFFSET, f"600 in a read x {CONNECTIONS}", [commits] * CONNECTIONS
    )
    create = {**NAMES, "attributes": ",".join(f"+a{n}=b" for n in range(6_000))}
    yield Attack(RequestCode.UPDATE_AND_CREATE_TOPIC, "6,000 attributes", [frame(17, create)])
    yield Attack(RequestCode.QUERY_MESSAGE, "a key", [frame(12, NAMES)])


def of_rows(queues: int) -> Iterator[Attack]:
    """Yield frames whose answers grow with queues, and those that make the topics for them."""
    topics = [f"Wide{n}" for n in range(8)]
    for topic in topics:
        ext = {**NAMES, "topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues)}
        yield Attack(RequestCode.UPDATE_AND_CREATE_TOPIC, f"{topic} of {queues} queues", [frame(17, ext)])
    yield Attack(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "a group", [frame(200, {}, b'{"groupName":"rows"}')]
    )
    beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"rows","subscriptionDataSet":[]}]}'
    yield Attack(RequestCode.HEART_BEAT, "its member", [frame(34, {}, beat)])
    asked = {**NAMES, "group": "rows", "consumerGroup": "rows", "srcGroup": "rows", "destGroup": "others"}
    for topic in topics:
        ext = {**asked, "topic": topic, "queueId": "-1", "offset": "-1", "timestamp": "0"}
        yield Attack(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, f"{topic}: all queues", [frame(222, ext)])
    whole = {name: value for name, value in asked.items() if name != "topic"}
    for code in (202, 208, 303, 308, 300):
        yield Attack(code, f"a topic of {queues} queues", [frame(code, {**asked, "topic": "Wide0"})])
    ext = {**asked, "topic": "Wide0"}
    yield Attack(208, f"the same x {CONNECTIONS}", [frame(208, ext)] * CONNECTIONS)
    for code in (43, 208, 314, 317, 343):
        yield Attack(code, "all of them", [frame(code, {**whole, "isOrder": "false", "offline": "true"})])
    for model in ("BROADCASTING", "CLUSTERING"):
        wish = {
            "topic": "Wide0",
            "consumerGroup": "rows",
            "clientId": "c",
            "strategyName": "AVG",
            "messageModel": model,
        }
        yield Attack(RequestCode.QUERY_ASSIGNMENT, model, [frame(400, {}, json.dumps(wish).encode())])
    yield Attack(
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        "with its offsets",
        [frame(207, {**asked, "groupName": "rows", "cleanOffset": "true"})],
    )
    for topic in topics:
        yield Attack(RequestCode.DELETE_TOPIC_IN_BROKER, topic, [frame(215, {"topic": topic})])


def pull_frame(opaque: int, topic: str, tag: str, queue_id: int = 0) -> bytes:
    ext = {
        "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "110000", "subscription": tag, "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return encode_frame(Command(11, ext, opaque=opaque))


# -- measuring -----------------------------------------------------------------------------------------


class Bench:
    """A running broker, its figures, and a client that sends beside whatever else is sent."""

    def __init__(self, main: str, names: str, figures: Path) -> None:
        self.main, self.names = _address(main), _address(names)
        self._main = main
        with figures.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), FIGURES.size)
        self._worst = 0.0
        self._topics = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send_all_the_time, daemon=True)
        self._thread.start()
        time.sleep(0.5)

    def _send_all_the_time(self) -> None:
        with Connection(self._main) as connection:
            while not self._is_over.is_set():
                began = time.perf_counter()
                connection.call(Command(310, texts(send_ext("Beside")), b"x"), PATIENCE_S)
                self._worst = max(self._worst, time.perf_counter() - began)
                time.sleep(0.0005)

    def begin(self) -> None:
        FIGURES.pack_into(self._shared, 0, 0.0, 0.0)
        self._worst = 0.0

    def row(self, code: int, what: str) -> None:
        time.sleep(0.02)
        cpu, wall = FIGURES.unpack_from(self._shared)
        name = request_name(code) if code else "-"
        row = f"{code:6} {name:34} {what:52} {cpu * 1e3:9.2f} {wall * 1e3:9.2f} {self._worst * 1e3:9.2f}"
        print(row, flush=True)

    def attack(self, attack: Attack, address: tuple[str, int]) -> None:
        sockets = [socket.create_connection(address) for _ in attack.frames]
        threads = [
            threading.Thread(target=_send_and_wait, args=(sock, data, attack.waits))
            for sock, data in zip(sockets, attack.frames, strict=True)
        ]
        self.begin()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(0.1)
        self.row(int(attack.code), attack.what)
        for sock in sockets:
            sock.close()

    def holds(
        self, count: int, connections: int, what: str, tag: Callable[[int], str], queues: int = 1
    ) -> None:
        """Have pulls held, and send a message to their queue."""
        self._topics += 1
        topic = f"Held{self._topics}"
        with Connection(self._main) as producer:
            ext = texts(send_ext(topic))
            producer.call(
                Command(
                    17,
                    {**NAMES, "topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues)},
                ),
                PATIENCE_S,
            )
            sockets = [socket.create_connection(self.main) for _ in range(connections)]
            for sock in sockets:
                threading.Thread(target=_drain, args=(sock,), daemon=True).start()
            for n in range(count):
                sockets[n % connections].sendall(pull_frame(n, topic, tag(n), n % queues))
            time.sleep(3)
            ext["i"] = "TAGS\x01yes\x02"
            self.begin()
            for _ in range(20):
                producer.call(Command(310, ext, b"x"), PATIENCE_S)
                time.sleep(0.01)
            time.sleep(2)
            self.row(11, what)
            self.begin()
            for sock in sockets:
                sock.close()
            time.sleep(1)
            self.row(0, "... and the end of their connections")

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


def codes_of(names: type) -> list[int]:
    return sorted(value for name, value in vars(names).items() if name.isupper() and isinstance(value, int))


def _address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


def _drain(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(1 << 16):
            pass


def _send_and_wait(sock: socket.socket, data: bytes, waits: bool) -> None:
    sock.settimeout(PATIENCE_S)
    with contextlib.suppress(OSError):
        sock.sendall(data)
        if waits and (head := sock.recv(4, socket.MSG_WAITALL)):
            left = int.from_bytes(head, "big")
            while left > 0 and (found := len(sock.recv(min(left, 1 << 20)))):
                left -= found


def main() -> None:
    """Run all attacks and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codes", help="only these, with commas between them")
    parser.add_argument("--only", default="every,headers,names,clients,rows,holds", help="kinds of attacks")
    parser.add_argument("--queues", type=int, default=1024, help="queues of a topic that is made large")
    parser.add_argument("--holds", type=int, default=10_000)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], options.serve[1:])
        return
    codes = {int(code) for code in options.codes.split(",")} if options.codes else None
    kinds = options.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        figures.write_bytes(bytes(FIGURES.size))
        command = [sys.executable, "-m", "tests.bench.large_frames", "--serve", str(figures)]
        settings = ("--set", "enablePropertyFilter=true", "--set", "mappedFileSizeCommitLog=67108864")
        with broker(Path(folder), *settings, command=command) as running:
            bench = Bench(address_of(running), running.namesrv, figures)
            print(f"{'code':>6} {'':34} {'frame':52} {'cpu ms':>9} {'wall ms':>9} {'other ms':>9}")
            attacks: list[Attack] = []
            if "headers" in kinds:
                attacks += of_headers()
            if "every" in kinds:
                attacks += [attack for code in codes_of(RequestCode) for attack in of_every_code(int(code))]
            if "names" in kinds:
                attacks += of_names()
            if "clients" in kinds:
                attacks += of_clients()
            if "rows" in kinds:
                attacks += of_rows(options.queues)
            from broker.namesrv.server import NameServer

            names = NameServer(lambda: 0).codes
            for attack in attacks:
                if codes is None or int(attack.code) in codes:
                    bench.attack(attack, bench.names if attack.code in names else bench.main)
            if "holds" in kinds:
                bench.holds(
                    options.holds, 100, f"{options.holds} held pulls that never match", lambda n: "no"
                )
                bench.holds(
                    options.holds, 100, f"{options.holds} held pulls, each of another tag", lambda n: f"no{n}"
                )
                bench.holds(options.holds, 100, f"{options.holds} held pulls that match", lambda n: "yes")
                bench.holds(options.holds, 1, f"{options.holds} held pulls of one connection", lambda n: "no")
                bench.holds(
                    10 * options.holds,
                    200,
                    f"{10 * options.holds} held pulls on 100 queues",
                    lambda n: "yes",
                    100,
                )
            bench.close()
    sys.stdout.flush()
    os._exit(0)  # threads that drain sockets are still there


if __name__ == "__main__":
    main()
