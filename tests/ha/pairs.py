"""A master and its slave as processes of their own, beside a name server that outlives both."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import RopewalkError
from tests.crash.server import Place, Server
from tests.support.processes import checkout_command, checkout_environment, first_line, stop
from tests.support.waiting import until

SEGMENT_SIZE = 256 << 10
PATIENCE_S = 60.0
SETTINGS: dict[str, str | int] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": SEGMENT_SIZE,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "diskMaxUsedSpaceRatio": 95,
}


class Pair:
    """Two places, `master` and `slave`, and whoever runs in them at the moment."""

    def __init__(self, root: Path, **settings: str | int) -> None:
        self.root = root
        self.namesrv = ""
        self._settings = {**SETTINGS, **settings}
        self._stack = contextlib.ExitStack()
        self.places: dict[str, Place] = {}
        self.servers: dict[str, Server] = {}

    def __enter__(self) -> Pair:
        with contextlib.ExitStack() as stack:
            process = subprocess.Popen(
                [*checkout_command(), "namesrv", "--port", "0", "--json"],
                env=checkout_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(stop, process)
            self.namesrv = json.loads(first_line(process, PATIENCE_S))["namesrv"]
            stack.callback(self._kill_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _kill_all(self) -> None:
        for name in list(self.servers):
            self.kill(name)

    def start(self, name: str, **settings: str | int) -> Server:
        """Start who is called `name`, with settings that stay for all its later starts."""
        place = self.places.get(name)
        if place is None:
            (self.root / name).mkdir()
            every = self._settings | {"namesrvAddr": self.namesrv} | settings
            place = self.places[name] = Place(self.root / name, checkout_command(), every)
        else:
            place.settings.update(settings)
        server = self.servers[name] = Server(place)
        return server

    def kill(self, name: str) -> None:
        self.servers.pop(name).kill()

    def end(self, name: str) -> None:
        """Stop it in good order."""
        server = self.servers.pop(name)
        with server:
            assert server.terminate() == 0, self.places[name].errors()

    def errors(self) -> str:
        return "\n".join(f"--- {name}\n{place.errors()[-3000:]}" for name, place in self.places.items())

    def log_of(self, name: str) -> Path:
        return self.places[name].store / "commitlog"

    def until_equal(self, *names: str) -> None:
        """Wait until the segments are equal, byte for byte."""
        directories = [self.log_of(name) for name in names or ("master", "slave")]
        until(
            lambda: not difference(*directories),
            lambda: f"{difference(*directories)}\n{self.errors()}",
            pause_s=0.1,
        )


class Traffic(threading.Thread):
    """A producer that keeps a few messages under way, until it is told to stop; every answer is counted."""

    def __init__(self, address: str, topic: str = "T", size: int = 900, gap_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.codes: Counter[int] = Counter()
        self.acknowledged: list[str] = []
        self.stopping = threading.Event()
        self._topic, self._size, self._gap_s = topic, size, gap_s
        self._number = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with Connection(self.address, 5.0) as connection:
                    while not self.stopping.is_set():
                        self._send(connection)
            except (RopewalkError, OSError):
                self.stopping.wait(0.05)

    def _send(self, connection: Connection) -> None:
        self._number += 1
        code = send(connection, self._number, self._topic, self._size)
        self.codes[code] += 1
        if code == ResponseCode.SUCCESS:
            self.acknowledged.append(f"K{self._number:06}")
        if self._gap_s:
            time.sleep(self._gap_s)

    def end(self) -> None:
        self.stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


def send(connection: Connection, number: int, topic: str = "T", size: int = 900) -> int:
    """One message whose unique key is its number; the answer's code."""
    name = f"K{number:06}"
    body = name.encode().ljust(size, b".")
    request = send_request(topic, Queue("broker-a", number % 4), Message(body), name, _now_ms())
    return connection.call(request).code


def until_acknowledged(address: str, topic: str = "warm-up") -> None:
    """Send until the first 0: the slave is there, and counts."""

    def sent() -> bool:
        with contextlib.suppress(RopewalkError, OSError), Connection(address, 5.0) as connection:
            return send(connection, 0, topic, 10) == ResponseCode.SUCCESS
        return False

    until(sent, lambda: "no message was acknowledged")


def difference(one: Path, other: Path) -> str:
    """How two logs differ; "" if they have the same files with the same bytes in them."""
    try:
        # A spare segment that nobody has begun is no difference.
        data = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (one, other)]
    except FileNotFoundError as gone:  # who starts has not made its folder yet, or gives a file its name
        return f"{gone.filename} is not there"
    for name in sorted(data[0].keys() | data[1].keys()):
        first, second = (found.get(name, b"").rstrip(b"\0") for found in data)
        if first != second:
            at = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), -1)
            return f"{name}: {len(first)} and {len(second)} bytes, first difference at {at}"
    return ""


def bytes_in(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.iterdir()))


def missing(directory: Path, keys: list[str]) -> list[str]:
    """Which unique keys stand nowhere in a log."""
    found = set(re.findall(rb"K[0-9]{6}", bytes_in(directory)))
    return [key for key in keys if key.encode() not in found]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
