"""Record what the official clients and Apache RocketMQ say to each other: tests/compat/vectors/*.json.

A proxy stands before the original's name server and broker and keeps every frame of both directions. The
broker is told to advertise 127.0.0.2, where the proxy listens on the broker's own port number, so not one
byte has to be changed on the way. Of all frames one of each kind is kept: who sent it, for which request
code, with which answer code, and whether its header leaves ASCII. What a frame means is told by the
client's own decoder (java/src/Frames.java), never by ours.

    python -m tests.compat.record        records all of them anew; needs java and mvn

Two recordings differ in times, ports and identifiers, so record again only to change what is recorded.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers.rocketmq.original import VERSION, Original
from tests.compat.driver import SERIALIZATIONS, VERSIONS, Driver, Event

VECTORS = Path(__file__).with_name("vectors")
PROXY_IP = "127.0.0.2"
# Longer frames teach a decoder nothing more, and make the files unreadable.
FRAME_SIZE_KEPT = 2_500
# Those without megabytes; between them they use every request an ordinary client sends.
SCENARIOS = (
    *(
        "push_pair",
        "push",
        "pull_held",
        "lite_assign",
        "lite_seek",
        "lite_subscribe",
        "pull_old",
        "tag_filter",
    ),
    *("offsets", "view_by_id", "send_sync", "send_async", "send_oneway", "send_batch", "send_selected"),
    *("auto_create", "round_trip"),
)
IS_RESPONSE = 1


@dataclass(frozen=True)
class Recorded:
    """One frame as it passed: `connection` is the server and a number, `payload` begins after the length."""

    sender: str
    connection: str
    payload: bytes


class RecordingProxy:
    """Forwards connections to one server, and remembers the frames of both directions in order."""

    def __init__(
        self, name: str, listen: tuple[str, int], target: tuple[str, int], into: list[Recorded]
    ) -> None:
        self._name = name
        self._target = target
        self._into = into
        self._lock = threading.Lock()
        self._connections = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(listen)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # A thread that sits in accept or recv is only woken by a shutdown, not by a close.
        with self._lock:
            for connection in (self._listener, *self._open):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._connections += 1
                self._open += [client, server]
                number = f"{self._name} {self._connections}"
            for source, sink, sender in ((client, server, "client"), (server, client, self._name)):
                threading.Thread(target=self._pump, args=(source, sink, sender, number), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, sender: str, number: str) -> None:
        pending = bytearray()
        with suppress(OSError):
            while data := source.recv(65_536):
                pending += data
                with self._lock:
                    for payload in _complete(pending):
                        self._into.append(Recorded(sender, number, payload))
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _complete(pending: bytearray) -> Iterator[bytes]:
    while len(pending) >= 4:
        (length,) = struct.unpack_from(">I", pending)
        if len(pending) < 4 + length:
            return
        yield bytes(pending[4 : 4 + length])
        del pending[: 4 + length]


@contextmanager
def _recorded_original(folder: Path, serialization: str, into: list[Recorded]) -> Iterator[str]:
    """The original behind proxies; the value is the name server address to use."""
    # The original answers in the serialisation of its own JVM, whatever it was asked in. To see both,
    # the broker is given the client's; the name server stays with JSON.
    options = [f"-Drocketmq.serialize.type={serialization}"]
    config = {"brokerIP1": PROXY_IP, "waitTimeMillsInSendQueue": "10000"}
    peer = Original(folder, heap="256m", broker_config=config, java_options=options)
    broker_port = int(peer.broker_config["listenPort"])
    namesrv_port = int(peer.namesrv.rpartition(":")[2])
    broker = RecordingProxy("broker", (PROXY_IP, broker_port), ("127.0.0.1", broker_port), into)
    namesrv = RecordingProxy("namesrv", (PROXY_IP, 0), ("127.0.0.1", namesrv_port), into)
    try:
        with peer:
            yield f"{PROXY_IP}:{namesrv.port}"
    finally:
        broker.close()
        namesrv.close()


def one_of_each_kind(frames: list[Recorded], decoded: list[Event]) -> list[dict[str, object]]:
    """The vectors: the first short frame of each kind, with the request code it belongs to."""
    asked: dict[tuple[str, bool, int], int] = {}
    kept: dict[tuple[object, ...], dict[str, object]] = {}
    for frame, meaning in zip(frames, decoded, strict=True):
        is_response = bool(meaning["flag"] & IS_RESPONSE)
        from_client = frame.sender == "client"
        if is_response:
            request = asked.get((frame.connection, not from_client, meaning["opaque"]))
        else:
            request = meaning["code"]
            asked[(frame.connection, from_client, meaning["opaque"])] = meaning["code"]
        if request is None or len(frame.payload) > FRAME_SIZE_KEPT:
            continue
        ascii_only = all(text.isascii() for pair in meaning["ext"].items() for text in pair)
        kind = (request, is_response, frame.sender, meaning["code"], meaning["flag"], ascii_only)
        vector = {
            "sender": frame.sender,
            "request": request,
            "frame": (struct.pack(">I", len(frame.payload)) + frame.payload).hex(),
            "decoded": {name: meaning[name] for name in meaning if name not in ("scenario", "event", "atMs")},
        }
        kept.setdefault(kind, vector)
    return [kept[kind] for kind in sorted(kept, key=repr)]


def record(driver: Driver) -> dict[str, object]:
    """All of one client's vectors, from a fresh server."""
    frames: list[Recorded] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _recorded_original(folder / "original", driver.serialization, frames) as namesrv:
            run = driver.run(namesrv, folder / "java", *SCENARIOS)
            for scenario in SCENARIOS:
                run.events(scenario)
        taken = list(frames)
        decoded = driver.decode_frames([frame.payload for frame in taken], folder / "java")
    return {
        "client": driver.version,
        "server": VERSION,
        "serialization": driver.serialization,
        "vectors": one_of_each_kind(taken, decoded),
    }


def main() -> None:
    VECTORS.mkdir(exist_ok=True)
    for version in VERSIONS:
        for serialization in SERIALIZATIONS:
            recording = record(Driver(version, serialization))
            path = VECTORS / f"client-{version}-{serialization}.json"
            path.write_text(json.dumps(recording, indent=1, ensure_ascii=False) + "\n")
            vectors = recording["vectors"]
            assert isinstance(vectors, list)
            print(f"{path.name}: {len(vectors)} vectors", file=sys.stderr)


if __name__ == "__main__":
    main()
