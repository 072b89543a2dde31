"""The Java side of tests/compat as Python objects: one JVM, many scenarios, a list of what each saw.

`Driver` is one client version with one serialisation; `run` plays scenarios against a name server and
returns a `Run`, in which a test looks up its scenario. A scenario that failed in Java fails in the test
that asks for it, with Java's stack trace, and leaves the others alone.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from tests.bench.peers.rocketmq.artifacts import classpath, compiled, program
from tests.support.jvm import SHORT_LIVED

JAVA_DIR = Path(__file__).with_name("java")
SOURCES = sorted((JAVA_DIR / "src").glob("*.java"))
VERSIONS = ("5.5.0", "4.9.8")
SERIALIZATIONS = ("JSON", "ROCKETMQ")
HEAP = "128m"
AT_A_TIME = 4
PATIENCE_S = 90.0
RUN_TIMEOUT_S = 400.0

Event = dict[str, Any]


@dataclass
class Run:
    """What one JVM reported, by scenario."""

    name: str
    stderr: str
    scenarios: dict[str, list[Event]] = field(default_factory=dict)

    def events(self, scenario: str, kind: str | None = None) -> list[Event]:
        """The events of a scenario that came to its end, all or those of one kind."""
        events = self.scenarios.get(scenario, [])
        for event in events:
            assert event["event"] != "failed", f"{self.name}, {scenario}: {event}\n{event.get('trace', '')}"
        assert events and events[-1]["event"] == "done", (
            f"{self.name}, {scenario} did not end; last events: {events[-3:]}\n{self.stderr[-3000:]}"
        )
        return [event for event in events if kind is None or event["event"] == kind]

    def one(self, scenario: str, kind: str) -> Event:
        """The only event of its kind."""
        events = self.events(scenario, kind)
        assert len(events) == 1, events
        return events[0]

    def sent(self, scenario: str) -> list[Event]:
        """The SendResults, as Java describes them."""
        return [event["result"] for event in self.events(scenario, "sent")]

    def received(self, scenario: str) -> list[Event]:
        """The MessageExts, as Java describes them."""
        return [event["message"] for event in self.events(scenario, "received")]


class Driver:
    """The official client `version`, speaking `serialization` (JSON or ROCKETMQ)."""

    def __init__(self, version: str, serialization: str) -> None:
        self.version = version
        self.serialization = serialization
        jars = classpath(JAVA_DIR / f"client-{version}.xml")
        self._classpath = f"{compiled(SOURCES, jars)}:{jars}"

    @property
    def name(self) -> str:
        return f"client {self.version} {self.serialization}"

    @property
    def prefix(self) -> str:
        """Topics and groups of this driver begin so; drivers do not meet on one server."""
        return f"c{self.version.replace('.', '')}{self.serialization.lower()}"

    def run(self, namesrv: str, home: Path, *scenarios: str, prefix: str = "") -> Run:
        """Play the scenarios (none named: all) against the name server; `home` takes Java's log files.

        The topic of a scenario is the prefix (by default the driver's own), a hyphen, and its name.
        """
        arguments = [namesrv, prefix or self.prefix, str(AT_A_TIME), *scenarios]
        try:
            done = subprocess.run(
                [*self._java(home), "Driver", *arguments],
                capture_output=True,
                text=True,
                encoding="utf-8",
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
            stdout, stderr = done.stdout, done.stderr
        except subprocess.TimeoutExpired as timeout:
            stdout = (timeout.stdout or b"").decode(errors="replace")
            stderr = f"killed after {RUN_TIMEOUT_S:.0f} s\n" + (timeout.stderr or b"").decode(
                errors="replace"
            )
        by_scenario: dict[str, list[Event]] = defaultdict(list)
        for line in stdout.splitlines():
            if line.startswith("{") and line.endswith("}"):
                event = json.loads(line)
                by_scenario[event["scenario"]].append(event)
        return Run(self.name, stderr, dict(by_scenario))

    def start(
        self, namesrv: str, home: Path, scenario: str, *, prefix: str, stderr: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Play one scenario that takes commands on standard input; its events come on standard output."""
        return subprocess.Popen(
            [*self._java(home), "Driver", namesrv, prefix, "1", scenario],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )

    def decode_frames(self, frames: list[bytes], home: Path) -> list[Event]:
        """How this client's own decoder reads each frame (bytes after the length field)."""
        done = subprocess.run(
            [*self._java(home), "Frames"],
            input="".join(frame.hex() + "\n" for frame in frames),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=True,
        )
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def _java(self, home: Path) -> list[str]:
        options = [f"-Xmx{HEAP}", *SHORT_LIVED]
        options += [f"-Duser.home={home}", "-Dfile.encoding=UTF-8", "-Drocketmq.client.logLevel=WARN"]
        options += ["-Dio.netty.eventLoopThreads=2", "-Drocketmq.client.logRoot=" + str(home / "logs")]
        options += [f"-Drocketmq.serialize.type={self.serialization}"]
        return [program("java"), *options, "-cp", self._classpath]


class Starts(Protocol):
    """The program of an official client."""

    def start(
        self, namesrv: str, home: Path, scenario: str, *, prefix: str, stderr: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Play one scenario that takes commands on standard input; its events come on standard output."""


class LastingScenario:
    """A scenario that goes on until it is closed. A thread reads its events; commands go to its standard input."""

    def __init__(self, driver: Starts, namesrv: str, home: Path, scenario: str, *, prefix: str) -> None:
        home.mkdir(exist_ok=True)
        self._stderr = home / f"{scenario}-stderr.txt"
        with self._stderr.open("wb") as stderr:
            self._process = driver.start(namesrv, home, scenario, prefix=prefix, stderr=stderr)
        self._news = threading.Condition()
        self._events: list[Event] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(json.loads(line))

    def _take(self, event: Event) -> None:
        with self._news:
            self._events.append(event)
            self._news.notify_all()

    def tell(self, command: str) -> None:
        """Send one command."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def wait_until(
        self, condition: Callable[[list[Event]], bool], what: str, patience_s: float = PATIENCE_S
    ) -> None:
        """Wait until the events so far fulfil a condition."""
        with self._news:
            came = self._news.wait_for(lambda: condition(self._events), patience_s)
            assert came, (what, self._events[-10:], self._tail())

    def events(self) -> list[Event]:
        """Return the events so far."""
        with self._news:
            return list(self._events)

    def messages(self) -> list[Event]:
        """Return the messages that were received."""
        return [event["message"] for event in list(self._events) if event["event"] == "received"]

    def _tail(self) -> str:
        return self._stderr.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        """End the process, which commits what it has consumed. Idempotent."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._process.stdin.closed:
            return
        with contextlib.suppress(OSError):
            self.tell("end")
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        self._process.stdout.close()
