"""A name server, a master and a slave as processes of their own, and the commands of whoever looks after them."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import Message, SendStatus
from ropewalk.errors import RopewalkError
from tests.support.ports import free_ports
from tests.support.processes import READY_TIMEOUT_S, checkout_command, checkout_environment, first_line
from tests.support.waiting import until
from tools.admin.ha import COLUMNS, status_rows
from tools.admin.handover import HandoverFailed, Members, find_group

SEGMENT_SIZE = 1 << 20
PATIENCE_S = 60.0
BROKER = "broker-a"


@dataclass
class Replica:
    """One broker of the group; it keeps its ports over its lives."""

    name: str
    root: Path
    words: list[str]
    process: subprocess.Popen[bytes] | None = None
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return str(self.ready["broker"])

    def log(self) -> bytes:
        """The commit log as its files are."""
        files = sorted((self.root / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files)


class Group:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replicas: dict[str, Replica] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        process, ready = self._start("namesrv", ["namesrv", "--port", "0"])
        self.namesrv = str(ready["namesrv"])
        self._processes.append(process)

    def _start(self, name: str, words: list[str]) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        errors = self.folder / f"{name}-stderr.txt"
        with errors.open("ab") as stderr:
            process = subprocess.Popen(
                [*checkout_command(), *words, "--json"],
                cwd=self.folder,
                env={**checkout_environment(), "ROPEWALK_METRICS_EXPORTER_TYPE": "DISABLE"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._processes.append(process)
        line = first_line(process, READY_TIMEOUT_S)
        assert line, errors.read_text(errors="replace")
        return process, json.loads(line)

    def start(self, name: str, **settings: object) -> Replica:
        """Start a broker, or start it again."""
        replica = self.replicas.get(name)
        if replica is None:
            root = self.folder / name
            values = {
                "storePathRootDir": root,
                "mappedFileSizeCommitLog": SEGMENT_SIZE,
                "listenPort": free_ports(1)[0],
                "registerNameServerPeriod": 10_000,
                **settings,
            }
            words = ["broker", "-n", self.namesrv]
            for key, value in values.items():
                words += ["--set", f"{key}={value}"]
            replica = self.replicas[name] = Replica(name, root, words)
        replica.process, replica.ready = self._start(name, replica.words)
        return replica

    def kill(self, name: str) -> None:
        process = self.replicas[name].process
        assert process is not None
        process.kill()
        process.wait()

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def admin(self, *words: str, status: int = 0) -> Any:
        """`ropewalk admin ha …`, and the JSON that it printed."""
        ended = subprocess.run(
            [*checkout_command(), "admin", "ha", *words, "-n", self.namesrv, "--json"],
            cwd=self.folder, env=checkout_environment(), capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        assert ended.returncode == status, f"{words}: {ended.stdout}{ended.stderr}\n{self.told()}"
        return json.loads(ended.stdout or ended.stderr.splitlines()[-1])

    def status(self) -> dict[str, dict[str, Any]]:
        """What `ropewalk admin ha status` shows, by address; nothing before anybody is registered."""
        try:
            with Admin(self.namesrv, timeout=2.0) as admin, Members(timeout=2.0) as members:
                rows = status_rows(find_group(admin, members, BROKER))
        except (RopewalkError, HandoverFailed, OSError):
            return {}
        keys = [key for _, key in COLUMNS]
        return {str(row[3]): dict(zip(keys, row, strict=True)) for row in rows}

    def row_of(self, name: str) -> dict[str, Any]:
        """Return the row of one broker in `ropewalk admin ha status`, once it is there."""
        address, rows = self.replicas[name].address, dict[str, dict[str, Any]]()

        def is_shown() -> bool:
            rows.update(self.status())
            return address in rows

        self.until(is_shown, f"the status of {name}")
        return rows[address]

    def told(self) -> str:
        """The end of what every process wrote to standard error."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.folder.glob("*-stderr.txt"))
        )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, lambda: f"{what}\n{self.told()}", pause_s=0.1)

    def until_followed(self, master: str, by: int = 1) -> None:
        """Until so many slaves count for this master and have all it has."""

        def followed() -> bool:
            rows = self.status()
            row = rows.get(self.replicas[master].address)
            slaves = [
                each for each in rows.values() if each["role"] == "SLAVE" and each["link"] == "TRANSFER"
            ]
            return (
                row is not None
                and row["role"].endswith("MASTER")
                and row["link"].endswith(f"{by} counted")
                and len(slaves) >= by
                and all(each["lagBytes"] == 0 for each in slaves)
            )

        self.until(followed, f"{master} is followed by {by}")

    def consume(self, topic: str) -> list[bytes]:
        """Everything in the topic."""
        words = ["consume", topic, "--from", "earliest", "-n", self.namesrv]
        ended = subprocess.run(
            [*checkout_command(), *words],
            cwd=self.folder, env=checkout_environment(), capture_output=True, timeout=180, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr.decode() + self.told()
        return ended.stdout.splitlines()


@contextmanager
def group_of(folder: Path, *slaves: str, **settings: object) -> Iterator[Group]:
    """A SYNC_MASTER `a` with these slaves, ready to acknowledge."""
    group = Group(folder)
    try:
        group.start("a", brokerRole="SYNC_MASTER", **settings)
        for number, name in enumerate(slaves, 1):
            group.start(name, brokerRole="SLAVE", brokerId=number)
        group.until_followed("a", len(slaves))
        yield group
    finally:
        group.close()


class Load:
    """A producer in a thread: numbered messages, one after the other, and which of them were acknowledged."""

    def __init__(self, group: Group, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self.tried = 0
        self._group = group
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        client = Client(self._group.namesrv, timeout=2.0)
        while not self._stop.is_set():
            body = f"{self.tried:06d}".encode()
            self.tried += 1
            try:
                result = client.send(self._topic, Message(body))
            except (RopewalkError, OSError):
                client.close()
                client = Client(self._group.namesrv, timeout=2.0)
                time.sleep(0.02)
                continue
            if result.status is SendStatus.SEND_OK:
                self.acknowledged.append(body)
        client.close()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def until(self, count: int) -> None:
        """Until so many more were acknowledged."""
        wanted = len(self.acknowledged) + count
        self._group.until(lambda: len(self.acknowledged) >= wanted, f"{count} more acknowledged messages")
