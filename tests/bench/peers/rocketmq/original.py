"""Apache RocketMQ itself, name server and broker, as two processes on free loopback ports.

What the tests and benches call *the original*. Everything it writes stays under one data folder:

    <data_dir>/store/     the broker's store (commitlog, consumequeue, config ...)
    <data_dir>/home/      ROCKETMQ_HOME, with the two configuration files that were used
    <data_dir>/*.out      standard output of both processes
    <data_dir>/logs/      RocketMQ's own log files; of a short-lived one, its warnings

The ports stay the same for the life of one `Original`, so that a broker can be killed and started again
under the feet of its clients. Run as a program it stays in the foreground and prints the addresses as one
line of JSON.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

# Started as a plain file, only its own folder is on the path; the house is four floors up.
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.bench.peers.rocketmq.artifacts import classpath, program
from tests.support.jvm import SHORT_LIVED
from tests.support.ports import free_ports

VERSION = "5.5.0"
POM = Path(__file__).with_name("pom.xml")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
NAMESRV_HEAP = "96m"
GET_ROUTE = 105
SUCCESS = 0

# Enough for tests on a laptop: no thirty-second waits, no gigabyte files, no refusal because a disk is
# three quarters full. A caller's own configuration wins over each of these.
BROKER_DEFAULTS: Mapping[str, str] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": "true",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 50_000),
    "maxHashSlotNum": "20000",
    "maxIndexNum": "80000",
    "diskMaxUsedSpaceRatio": "95",
}

SHORT_LIVED_BROKER: Mapping[str, str] = {"transactionMetricFlushInterval": "200"}
"""The original's TransactionMetricsFlushService asks for the time without a pause until its first interval is over:
with its own ten seconds, each start costs ten seconds of a core."""

SHORT_LIVED_LOGS: Final = """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/logs/warnings.log</file>
    <encoder><pattern>%d %-5level %logger{20} - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""
"""In place of the sixty log files that the original sets up: these cost a sixth of a start's processor time."""

WITHOUT_TLS: Final = "-Dtls.server.mode=disabled"
"""With its own setting, `permissive`, each start makes an RSA key and a certificate: a second of processor time."""


class OriginalFailed(Exception):
    """A process of the original did not come up; the text ends with what it last printed."""


class Original:
    """One name server and one broker of Apache RocketMQ 5.5.0.

    `heap` is the broker's -Xms and -Xmx. `broker_config` adds to, or replaces, BROKER_DEFAULTS; ports and
    storePathRootDir are chosen here unless it names them. `java_options` go to the broker's JVM alone.
    Give `namesrv` (an address) to register with a running name server instead of starting one: a second
    broker, a slave. `short_lived` has the JVMs start with a third of the processor time, run slower and speak no TLS:
    for tests that look at answers, never for figures.
    """

    def __init__(
        self,
        data_dir: Path,
        heap: str = "512m",
        broker_config: Mapping[str, str] | None = None,
        *,
        java_options: Sequence[str] = (),
        namesrv: str | None = None,
        short_lived: bool = False,
    ) -> None:
        self._short_lived = short_lived
        self.data_dir = data_dir.resolve()
        self.heap = heap
        self._java_options = tuple(java_options)
        self._own_namesrv = namesrv is None
        namesrv_port, broker_port = free_ports(2)
        config = {**BROKER_DEFAULTS, **(SHORT_LIVED_BROKER if short_lived else {})}
        config["listenPort"] = str(broker_port)
        config["storePathRootDir"] = str(self.store_dir)
        config.update(broker_config or {})
        config.setdefault("storePathCommitLog", str(Path(config["storePathRootDir"]) / "commitlog"))
        config.setdefault("haListenPort", str(int(config["listenPort"]) + 1))
        self.broker_config = config
        self.namesrv = namesrv or f"127.0.0.1:{namesrv_port}"
        # What clients are told, through the name server and in message ids.
        self.broker = f"{config['brokerIP1']}:{config['listenPort']}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def store_dir(self) -> Path:
        return self.data_dir / "store"

    @property
    def broker_pid(self) -> int:
        """The broker's process id, for measuring it; an error when it is not running."""
        return self._processes["broker"].pid

    def addresses(self) -> dict[str, str | int]:
        """The ready line, in the words of `ropewalk broker --json`."""
        ha = f"127.0.0.1:{self.broker_config['haListenPort']}"
        store = self.broker_config["storePathRootDir"]
        return {
            "version": VERSION,
            "broker": self.broker,
            "namesrv": self.namesrv,
            "ha": ha,
            "dataDir": store,
            "pid": self.broker_pid,
        }

    def start(self) -> None:
        """Start both, and return when the broker's routes can be asked for at the name server."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        atexit.register(self._abandon)
        try:
            if self._own_namesrv:
                self.start_namesrv()
            self.start_broker()
        except BaseException:
            self._abandon()
            raise

    def start_namesrv(self) -> None:
        home = self._home()
        config = {
            "listenPort": self.namesrv.rpartition(":")[2],
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.data_dir / "namesrv" / "kvConfig.json"),
            "configStorePath": str(self.data_dir / "namesrv" / "namesrv.properties"),
        }
        path = _write_properties(home / "conf" / "namesrv.conf", config)
        main = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(path)]
        self._launch("namesrv", [f"-Xmx{NAMESRV_HEAP}", *self._kind("-XX:+UseSerialGC")], main)
        self._await("namesrv", lambda: _accepts(self.namesrv))

    def start_broker(self) -> None:
        """Start the broker alone: the first time, or after `kill9` and `stop_broker`."""
        home = self._home()
        path = _write_properties(home / "conf" / "broker.conf", self.broker_config)
        options = [f"-Xms{self.heap}", f"-Xmx{self.heap}", *self._kind("-XX:+UseG1GC")]
        options += ["-XX:-OmitStackTraceInFastThrow"]
        options += ["-XX:MaxDirectMemorySize=512m", "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98"]
        main = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(path), "-n", self.namesrv]
        self._launch("broker", [*options, *self._java_options], main)
        self._await("broker", self._registered)

    def stop(self, *, orderly: bool = True) -> None:
        """Stop both, broker first. Idempotent.

        An orderly stop leaves a store without its `abort` file, and takes the broker about twenty seconds
        of waiting for its own threads; whoever throws the store away need not wait for that.
        """
        atexit.unregister(self._abandon)
        self.stop_broker(orderly=orderly)
        self._stop("namesrv", orderly=False)

    def stop_broker(self, *, orderly: bool = True) -> None:
        self._stop("broker", orderly=orderly)

    def kill9(self) -> None:
        """Kill the broker as `kill -9` does. The name server lives on; `start_broker` brings it back."""
        process = self._processes.pop("broker")
        process.kill()
        process.wait()

    def __enter__(self) -> Original:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self.stop(orderly=False)

    def _home(self) -> Path:
        home = self.data_dir / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        return home

    def _kind(self, collector: str) -> tuple[str, ...]:
        """Return the options of a JVM that lives for seconds, or of one with this collector."""
        if not self._short_lived:
            return (collector,)
        logs = self._home() / "conf" / "short-lived.logback.xml"
        logs.write_text(SHORT_LIVED_LOGS)
        return (*SHORT_LIVED, WITHOUT_TLS, f"-Drmq.logback.configurationFile={logs}")

    def _launch(self, name: str, options: list[str], main: list[str]) -> None:
        assert name not in self._processes, f"{name} is already running"
        # Its RocksDB unpacks a library of 12 MB into the temporary folder, which a JVM that is killed leaves there.
        folders = [f"-Duser.home={self.data_dir}", f"-Djava.io.tmpdir={self.data_dir}"]
        command = [program("java"), *options, *folders, "-cp", classpath(POM), *main]
        environment = {**os.environ, "ROCKETMQ_HOME": str(self._home())}
        with open(self.data_dir / f"{name}.out", "ab") as output:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.data_dir,
            )

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            code = self._processes[name].poll()
            if code is None and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            tail = (self.data_dir / f"{name}.out").read_text(errors="replace")[-3000:]
            what = "did not get ready" if code is None else f"ended with {code}"
            raise OriginalFailed(f"{name} {what}:\n{tail}")

    def _registered(self) -> bool:
        # The broker's port opens before its routes are at the name server, and a client that comes
        # between the two is told that there is no such topic.
        if int(self.broker_config["brokerId"]) != 0:
            return _accepts(self.broker)
        name = self.broker_config["brokerName"]
        topic = "TBW102" if self.broker_config["autoCreateTopicEnable"] == "true" else name
        return _accepts(self.broker) and self.broker.encode() in route_of(self.namesrv, topic)

    def _stop(self, name: str, *, orderly: bool) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        if orderly:
            process.terminate()
        else:
            process.kill()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _write_properties(path: Path, config: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    return path


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False


def route_of(namesrv: str, topic: str) -> bytes:
    """The body of the name server's answer to "where is this topic", empty when it knows of none.

    Spelled out here rather than borrowed from Ropewalk: a starter of the original that used our own
    framing would fail with it.
    """
    head = {"code": GET_ROUTE, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0}
    header = json.dumps({**head, "extFields": {"topic": topic}}).encode()
    host, _, port = namesrv.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3.0) as connection:
            connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
            with connection.makefile("rb") as answer:
                length, header_length = struct.unpack(">II", answer.read(8))
                reply = json.loads(answer.read(header_length & 0xFFFFFF))
                body = answer.read(length - 4 - (header_length & 0xFFFFFF))
                return body if reply["code"] == SUCCESS else b""
    except (OSError, struct.error):
        return b""


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="rocketmq-original-") as name:
        yield Path(name)


def main() -> None:
    """Run the original in the foreground until SIGINT or SIGTERM.

    A store in a folder that was asked for is closed in an orderly way; a temporary one is dropped.
    """
    parser = argparse.ArgumentParser(description=f"Apache RocketMQ {VERSION}: name server and broker.")
    parser.add_argument("--heap", default="512m", help="the broker's -Xms and -Xmx")
    parser.add_argument("--data-dir", type=Path, help="default: a temporary one, removed at exit")
    parser.add_argument("--namesrv", help="register there instead of starting a name server")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="broker configuration"
    )
    parser.add_argument("--java-option", action="append", default=[], help="for the broker's JVM")
    options = parser.parse_args()
    config = dict(pair.split("=", 1) for pair in options.set)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with _folder(options.data_dir) as folder:
        peer = Original(
            folder, options.heap, config, java_options=options.java_option, namesrv=options.namesrv
        )
        with peer:
            print(json.dumps(peer.addresses()), flush=True)
            ended.wait()
            peer.stop(orderly=options.data_dir is not None)


if __name__ == "__main__":
    main()
