"""Three brokers of one DLedger group and a name server as processes of their own, on free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from ropewalk.client.admin.results import LedgerStatus
from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import RopewalkError
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment, first_line, stop

ELECT_S = 60.0
SEGMENT_SIZE = 1 << 20


class Member:
    """A member through all of its incarnations."""

    def __init__(
        self, group: LedgerGroup, number: int, command: Sequence[str], port: int, peers: str
    ) -> None:
        """`peers` are those that it is told of, itself among them."""
        self.id = f"n{number}"
        self.number = number
        self.port = port
        self.peers = peers
        self.address = f"127.0.0.1:{port}"
        self.store = group.root / self.id
        self.process: subprocess.Popen[bytes]
        self._group = group
        self._command = command

    def launch(self) -> None:
        """Start an incarnation, and do not wait until it is ready."""
        settings = {
            "enableDLegerCommitLog": "true",
            "dLegerPeers": self.peers,
            "dLegerSelfId": self.id,
            "listenPort": self.port,
            "storePathRootDir": self.store,
            "mappedFileSizeCommitLog": SEGMENT_SIZE,
            "metricsExporterType": "DISABLE",
            **self._group.settings,
        }
        words = [f"--set={key}={value}" for key, value in settings.items()]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*self._command, "broker", "--json", "-n", self._group.name_server, *words],
                cwd=self._group.root,
                env=checkout_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    @property
    def errors(self) -> Path:
        """Where its standard error is kept."""
        return self._group.root / f"{self.id}.err"

    def wait(self) -> None:
        """Wait for the ready line."""
        line = first_line(self.process, 60.0)
        assert line, f"{self.id} does not start:\n{self.errors.read_text()[-3000:]}"

    def start(self) -> None:
        """Start an incarnation, and wait until it is ready."""
        self.launch()
        self.wait()

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)


class LedgerGroup:
    """Use it as a context: leaving it ends everything."""

    def __init__(
        self,
        root: Path,
        *,
        tracer: Sequence[str] = (),
        settings: dict[str, str | int] | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        """`tracer` is put in front of the command of n0; `command` are the words that start `ropewalk` for members."""
        self.root = root
        self.settings = settings or {}
        self.ports = free_ports(7)
        self.name_server = f"127.0.0.1:{self.ports[6]}"
        self.peers = ";".join(f"n{each}-127.0.0.1:{self.ports[3 + each]}" for each in range(3))
        command = command or checkout_command()
        self.members = [
            Member(self, each, [*tracer, *command] if not each else command, self.ports[each], self.peers)
            for each in range(3)
        ]
        self._name_server: subprocess.Popen[bytes]
        self._log: IO[bytes]

    def __enter__(self) -> LedgerGroup:
        self._log = (self.root / "namesrv.err").open("wb")
        port = str(self.ports[6])
        self._name_server = subprocess.Popen(
            [*checkout_command(), "namesrv", "--json", "--port", port],
            env=checkout_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            assert json.loads(first_line(self._name_server, 30.0))
            for member in self.members:
                member.launch()
            for member in self.members:
                member.wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            if hasattr(member, "process") and member.process.poll() is None:
                member.process.kill()
                member.process.wait()
            if hasattr(member, "process") and member.process.stdout is not None:
                member.process.stdout.close()
        stop(self._name_server)
        self._log.close()

    def kill(self) -> None:
        """kill -9 all members at once: one that lives on for a moment would be elected, and append to its log."""
        for member in self.members:
            member.process.kill()
        for member in self.members:
            member.kill()

    def newcomer(self, number: int) -> tuple[Member, str]:
        """Start a member that the group does not have yet; return it and its raft address."""
        port, raft_port = free_ports(2)
        address = f"127.0.0.1:{raft_port}"
        command = checkout_command()
        self.peers += f";n{number}-{address}"  # the next one may find none of the first members any more
        member = Member(self, number, command, port, self.peers)
        self.members.append(member)
        member.start()
        return member, address

    def status(self) -> tuple[LedgerStatus, ...]:
        """Return what the members that answer say of themselves; nothing while there is no telling."""
        try:
            with Admin(self.name_server, timeout=2.0) as admin:
                return tuple(admin.ledger_status())
        except (RopewalkError, OSError):
            return ()

    def leader(self, among: Sequence[Member] | None = None) -> Member:
        """Wait until one of these members leads, and the name server tells so; return it."""
        wanted = {member.id: member for member in among or self.members}
        until = time.monotonic() + ELECT_S
        while time.monotonic() < until:
            found = self.status()
            leaders = [each.id for each in found if each.leads]
            if len(leaders) == 1 and leaders[0] in wanted:
                return wanted[leaders[0]]
            time.sleep(0.05)
        words = "\n".join(f"{each.id}: {each.errors.read_text()[-1500:]}" for each in self.members)
        raise AssertionError(f"no leader among {sorted(wanted)} within {ELECT_S} s\n{words}")
