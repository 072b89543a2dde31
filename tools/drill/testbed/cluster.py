"""A throw-away cluster of real processes: a name server and members of one broker group, with the proxy in every link.

Everything has an address of its own on the loopback network (127.a.b.c with a and b drawn for this cluster): a process
listens on its own address, and advertises another one, its door in the proxy, with the same port. So the brokers, the
name server and every client find each other as they always do, and all that they say passes the proxy.

    node-1   127.a.b.11   door 127.a.b.101        name server   127.a.b.1   door 127.a.b.100
    node-2   127.a.b.12   door 127.a.b.102

Members are called by the names of their processes, node-1 and node-2, because roles change and these do not. Whatever
happens to the drill, its processes end with it: they are killed when it leaves, and by the kernel if it cannot.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from ropewalk.errors import RopewalkError
from store.io.helper_process import module_path
from tools.drill.testbed.group import SECRET_VARIABLE, CannotRun, Group, Member
from tools.drill.testbed.peers import who_connected
from tools.drill.testbed.proxy import Proxy

GROUP = "drill"
"""The broker name of the group."""
CLIENTS = "clients"
"""Whoever is no process of the cluster: the load, and the operator."""
NAME_SERVER = "namesrv"
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
SLAVE_TIMEOUT_MS = 1000
SEGMENT_SIZE = 4 * 1024 * 1024

_PORTS = (20_000, 29_000)
_POLL_S = 0.005
_TAIL_LINES = 12
_PR_SET_PDEATHSIG = 1


class Ended(RopewalkError):
    """A process that should have been there has ended."""


def this_command() -> list[str]:
    """The words that start this build's `ropewalk`."""
    return [sys.executable, "-m", "ropewalk"]


def _end_with_parent() -> None:
    """Runs in the child before it becomes a broker: the kernel kills it should the drill die without a word."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_LIBC = ctypes.CDLL(None)


@dataclass
class Process:
    """A process of the cluster: started, watched, signalled, ended."""

    name: str
    command: Sequence[str]
    folder: Path
    """Where it runs, and where its output goes."""
    environment: Mapping[str, str]
    starts: int = 0
    ready: dict[str, Any] = field(default_factory=dict)
    _child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status of the last incarnation; a signal as its negative number."""
        return None if self._child is None else self._child.poll()

    def launch(self) -> None:
        """Start it, and do not wait. Raises `CannotRun` for a command that is none."""
        assert not self.running, f"{self.name} is running already"
        self.starts += 1
        with self._file("out").open("wb") as out, self._file("err").open("wb") as err:
            # From the main thread, and so from the one that lives as long as the drill: the kernel's promise to end
            # the child is tied to the thread that made it.
            try:
                self._child = subprocess.Popen(
                    self.command,
                    cwd=self.folder,
                    env=dict(self.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    process_group=0,  # a Ctrl-C of the terminal is the drill's alone
                    preexec_fn=_end_with_parent,  # noqa: PLW1509 - one call of a library that is loaded already
                )
            except OSError as exc:
                raise CannotRun(f"cannot run {self.command[0]}: {exc.strerror or exc}") from exc

    async def start(self) -> None:
        """Start it and wait until it says that it is ready. Raises `Ended` with its own words if it does not."""
        self.launch()
        with trio.move_on_after(READY_TIMEOUT_S):
            while self.running:
                line, newline, _ = self._file("out").read_bytes().partition(b"\n")
                if newline:
                    self.ready = json.loads(line)
                    return
                await trio.sleep(_POLL_S)
        if self.running:
            self.kill()
            raise Ended(f"{self.name} did not become ready in {READY_TIMEOUT_S:g} s:\n{self.last_words()}")
        raise Ended(f"{self.name} ended with status {self.status}:\n{self.last_words()}")

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()

    def pause(self) -> None:
        """SIGSTOP, and wait until the kernel says that it stands still."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._child is not None
        self._child.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        """SIGTERM, and its exit status. One that does not end is killed, and -9 returned."""
        if self._child is None:
            return 0
        if self.running:
            self._child.send_signal(signal.SIGTERM)
            with trio.move_on_after(STOP_TIMEOUT_S):
                while self.running:  # noqa: ASYNC110 - a child without a thread that waits for it
                    await trio.sleep(_POLL_S)
        self.kill()
        assert self.status is not None
        return self.status

    def has_said(self, words: str) -> bool:
        """Return whether the last incarnation wrote this, to standard output or error."""
        return any(words in self._file(kind).read_text(errors="replace") for kind in ("out", "err"))

    def last_words(self) -> str:
        """Return the end of the last incarnation's standard error."""
        lines = self._file("err").read_text(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self.name}-{self.starts}.{kind}"


class Node(Process, Member):
    """A member of the group: a process that the drill may do anything to."""

    def __init__(
        self,
        number: int,
        root: Path,
        command: Sequence[str],
        settings: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        name = f"node-{number}"
        self.number = number
        self.settings = dict(settings)
        self.store = Path(settings["storePathRootDir"])
        self.config_file = root / f"{name}.conf"
        self.own_address = f"{settings['bindAddress']}:{settings['listenPort']}"
        """Where it listens: behind the proxy's back."""
        self.address = f"{settings['brokerIP1']}:{settings['listenPort']}"
        """The address that it advertises: its door."""
        super().__init__(
            name, [*command, "broker", "--json", "--config", str(self.config_file)], root, environment
        )

    def write_config(self) -> None:
        self.config_file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))


class Cluster(Group):
    """A name server, members, and the proxy. Use it as an asynchronous context; leaving it kills everything."""

    def __init__(
        self,
        root: Path,
        members: int,
        *,
        settings: Mapping[str, str],
        command: Sequence[str] | None = None,
        rng: random.Random,
        spares: int = 0,
    ) -> None:
        """`settings` are configuration keys for every member; `command` starts another build than this one.

        `spares` are members that a drill may start later: `start` leaves them out.
        """
        self.root = root
        words = list(command or this_command())
        self.secret = settings.get("ropewalkSecret", "")
        environment = child_environment() | ({SECRET_VARIABLE: self.secret} if self.secret else {})
        self._net, self.port = _free_network(rng)
        self.name_server = f"{self._net}.100:{self.port + 10}"
        """The name server's door."""
        self._name_server = Process(
            NAME_SERVER,
            [*words, "namesrv", "--json", "--host", f"{self._net}.1", "--port", str(self.port + 10)],
            root,
            environment,
        )
        self.nodes = [
            Node(number, root, words, self._settings(number, members, settings), environment)
            for number in range(1, members + spares + 1)
        ]
        self.spares = self.nodes[members:]
        self.helpers: list[Process] = []
        """Other programs that a drill has started beside the brokers."""
        self._words = words
        self._environment = environment
        self.members = list(self.nodes)
        self.broker_name = GROUP
        self.proxy: Proxy
        self._nursery_manager: Any = None
        self._nursery: trio.Nursery

    def _settings(self, number: int, members: int, settings: Mapping[str, str]) -> dict[str, str]:
        role = "ASYNC_MASTER" if members == 1 else "SYNC_MASTER" if number == 1 else "SLAVE"
        own = dict(settings)
        if number > 1:
            own.pop("brokerRole", None)  # what is said of the role is said of the first master's
        return {
            "brokerClusterName": GROUP,
            "brokerName": GROUP,
            "brokerId": str(number - 1),
            "brokerRole": role,
            "bindAddress": f"{self._net}.{10 + number}",
            "brokerIP1": f"{self._net}.{100 + number}",
            "brokerIP2": f"{self._net}.{100 + number}",
            "listenPort": str(self.port),
            "namesrvAddr": self.name_server,
            "storePathRootDir": str(self.root / f"node-{number}"),
            "mappedFileSizeCommitLog": str(SEGMENT_SIZE),
            "slaveTimeout": str(SLAVE_TIMEOUT_MS),
            "metricsExporterType": "DISABLE",
            **own,
        }

    def pids(self) -> list[int]:
        return [process.pid for process in (self._name_server, *self.nodes) if process.pid is not None]

    def last_words(self) -> str:
        """Return the last output of every process, for people in search of a reason."""
        return "\n".join(
            f"--- {process.name}:\n{process.last_words()}" for process in (self._name_server, *self.nodes)
        )

    async def __aenter__(self) -> Cluster:
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        try:
            self.proxy = Proxy(self._nursery, self._identify)
            await self._add_doors()
            await self._name_server.start()
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in (*self.helpers, *self.nodes, self._name_server):
            process.kill()
        self._nursery.cancel_scope.cancel()
        await self._nursery_manager.__aexit__(None, None, None)

    async def _add_doors(self) -> None:
        name_server_port = self.port + 10
        await self.proxy.add_door(
            (f"{self._net}.100", name_server_port), (f"{self._net}.1", name_server_port), NAME_SERVER
        )
        for node in self.nodes:
            inside, outside = node.settings["bindAddress"], node.settings["brokerIP1"]
            for port in (self.port - 2, self.port, self.port + 1):
                await self.proxy.add_door((outside, port), (inside, port), node.name)

    def _identify(self, source: tuple[str, int], door: tuple[str, int]) -> str:
        pid = who_connected(source, door, self.pids())
        return next((node.name for node in self.nodes if node.pid == pid and pid is not None), CLIENTS)

    async def start(self) -> None:
        """Start all members but the spares, the master first."""
        for node in self.nodes:
            node.write_config()
            if node not in self.spares:
                await node.start()
        self.mode = str(self.nodes[0].ready.get("mode", ""))
        self.promise = str(self.nodes[0].ready.get("sendOk", ""))

    def launch(self, name: str, *arguments: str) -> Process:
        """Start a `ropewalk` command beside the brokers; it ends with the cluster."""
        helper = Process(name, [*self._words, *arguments], self.root, self._environment)
        self.helpers.append(helper)
        helper.launch()
        return helper

    async def stop(self, last: str = "") -> None:
        """Have every member end in good order, the one named `last` after the others, and keep the files."""
        for helper in self.helpers:
            await helper.stop()
        for node in sorted(self.nodes, key=lambda node: node.name == last):
            await node.stop()


def child_environment() -> dict[str, str]:
    """Return this process's environment, without variables that would reconfigure a broker: it goes before a
    configuration file."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ROPEWALK_") and name != "NAMESRV_ADDR"
    }
    return kept | {"PYTHONPATH": module_path()}


def _free_network(rng: random.Random) -> tuple[str, int]:
    """A part of the loopback network, and a port that is free on it. Raises `CannotRun`."""
    trouble: OSError | None = None
    for _ in range(50):
        net = f"127.{rng.randint(10, 250)}.{rng.randint(1, 250)}"
        port = rng.randrange(*_PORTS)
        try:
            for host in (f"{net}.1", f"{net}.11", f"{net}.101"):
                for each in (port - 2, port, port + 1, port + 10):
                    with socket.socket() as probe:
                        probe.bind((host, each))
        except OSError as exc:
            trouble = exc
            continue
        return net, port
    raise CannotRun(f"no free addresses on the loopback network: {trouble}")
