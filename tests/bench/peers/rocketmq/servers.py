"""Start the servers of the comparison: one broker, a master and its slave, or the three members of a DLedger group.

In DLedger mode the load goes to the leader, and processor time and memory are the leader's. The original acknowledges
what two of three have in their page caches; Ropewalk acknowledges what two of three have synced.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ropewalk.client.core.addresses import Address, parse_address
from ropewalk.client.core.routes import parse_route
from ropewalk.errors import RopewalkError
from tests.bench.peers.rocketmq.artifacts import JavaUnavailable
from tests.bench.peers.rocketmq.original import Original, OriginalFailed, route_of
from tests.bench.peers.rocketmq.rows import Mode
from tests.crash.ledger_group import LedgerGroup
from tests.ha.pairs import until_acknowledged
from tests.ha.process_group import Group
from tests.support.ports import free_ports
from tests.support.processes import checkout_command, checkout_environment, running_broker
from tests.support.waiting import until
from tools.bench.link import LoadFailed

HEAP = "1g"
MEMBERS = 3
BROKER = "broker-a"
_ANY_TOPIC = "TBW102"

# The starter's defaults are small, for tests; here the original gets back what RocketMQ itself defaults to.
ORIGINAL_SIZES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "maxHashSlotNum": str(5_000_000),
    "maxIndexNum": str(5_000_000 * 4),
}


@dataclass(frozen=True, slots=True)
class Running:
    """A server that takes messages at `broker`, and whose CPU and memory are those of `pid`."""

    broker: Address
    pid: int


FAILURES = (RopewalkError, LoadFailed, OriginalFailed, JavaUnavailable, AssertionError)
"""How a server says that it did not start, or would not do what was asked of it."""

Starter = Callable[[Path], AbstractContextManager[Running]]
"""Starts a server whose data lie in the given empty folder."""


def start_original(mode: Mode) -> Starter:
    if mode.is_ledger:
        return _start_original_ledger(mode)

    @contextmanager
    def start(folder: Path) -> Iterator[Running]:
        settings = {"flushDiskType": mode.flush, **ORIGINAL_SIZES}
        with ExitStack() as stack:
            own = {"brokerRole": mode.role, "inSyncReplicas": "2"} if mode.has_slave else {}
            master = stack.enter_context(Original(folder / "master", HEAP, {**settings, **own}))
            if mode.has_slave:
                own = {"brokerRole": "SLAVE", "brokerId": "1"}
                slave = Original(folder / "slave", HEAP, {**settings, **own}, namesrv=master.namesrv)
                stack.enter_context(slave)
                until_acknowledged(master.broker)
            yield Running(parse_address(master.broker), master.broker_pid)

    return start


def start_ropewalk(mode: Mode, settings: Sequence[str] = ()) -> Starter:
    if mode.is_ledger:
        return _start_ledger(settings)
    return _start_group(mode, settings) if mode.has_slave else _start_one(mode, settings)


def _start_one(mode: Mode, settings: Sequence[str]) -> Starter:
    @contextmanager
    def start(folder: Path) -> Iterator[Running]:
        pairs = [f"storePathRootDir={folder / 'store'}", f"flushDiskType={mode.flush}", *settings]
        arguments = [word for pair in pairs for word in ("--set", pair)]
        with running_broker(
            checkout_command(), *arguments, cwd=folder, environment=checkout_environment()
        ) as broker:
            try:
                yield Running(parse_address(str(broker.ready["broker"])), broker.process.pid)
            except FAILURES as exc:
                raise LoadFailed(f"{exc}{_last_words(broker.process, folder)}") from exc

    return start


def _start_group(mode: Mode, settings: Sequence[str]) -> Starter:
    @contextmanager
    def start(folder: Path) -> Iterator[Running]:
        sizes = {"mappedFileSizeCommitLog": ORIGINAL_SIZES["mappedFileSizeCommitLog"]}
        own = {"flushDiskType": mode.flush, **sizes, **dict(pair.split("=", 1) for pair in settings)}
        group = Group(folder)
        try:
            master = group.start("a", brokerRole=mode.role, **own)
            after_flush = str(mode.waits_for_disk).lower()
            group.start("b", brokerRole="SLAVE", brokerId=1, ackAfterFlush=after_flush, **own)
            until_acknowledged(master.address)
            assert master.process is not None
            yield Running(parse_address(master.address), master.process.pid)
        except FAILURES as exc:
            raise LoadFailed(f"{exc}; {group.told()}") from exc
        finally:
            group.close()

    return start


def _last_words(process: subprocess.Popen[bytes], folder: Path) -> str:
    """How a broker ended that should still be there, before its folder goes too."""
    if process.poll() is None:
        return ""
    written = (folder / "broker-stderr.txt").read_text(errors="replace")
    return f"; the broker had ended with status {process.returncode}: {written[-2000:]}"


def _start_original_ledger(mode: Mode) -> Starter:
    @contextmanager
    def start(folder: Path) -> Iterator[Running]:
        peers = ";".join(f"n{each}-127.0.0.1:{port}" for each, port in enumerate(free_ports(MEMBERS)))
        members: list[Original] = []
        with ExitStack() as stack:
            for number in range(MEMBERS):
                own = {
                    **ORIGINAL_SIZES,
                    "flushDiskType": mode.flush,
                    "enableDLegerCommitLog": "true",
                    "dLegerGroup": BROKER,
                    "dLegerPeers": peers,
                    "dLegerSelfId": f"n{number}",
                    "brokerId": "-1",  # the original sets it so until an election has ended
                }
                name_server = members[0].namesrv if members else None
                members.append(Original(folder / f"n{number}", HEAP, own, namesrv=name_server))
                stack.enter_context(members[-1])
            leaders: list[Original] = []

            def led() -> bool:
                address = _leader(members[0].namesrv)
                leaders[:] = [member for member in members if member.broker == address]
                return bool(leaders)

            until(led, "no leader is at the name server", patience_s=60.0)
            until_acknowledged(leaders[0].broker)
            yield Running(parse_address(leaders[0].broker), leaders[0].broker_pid)

    return start


def _leader(name_server: str) -> str:
    """Return the address of the broker that leads, as the name server has it; empty while there is none."""
    body = route_of(name_server, _ANY_TOPIC)
    broker = parse_route(body).brokers.get(BROKER) if body else None
    return broker.addresses.get(0, "") if broker is not None else ""


def _start_ledger(settings: Sequence[str]) -> Starter:
    @contextmanager
    def start(folder: Path) -> Iterator[Running]:
        own: dict[str, str | int] = {
            "mappedFileSizeCommitLog": ORIGINAL_SIZES["mappedFileSizeCommitLog"],
            **dict(pair.split("=", 1) for pair in settings),
        }
        with LedgerGroup(folder, settings=own) as group:
            leader = group.leader()
            until_acknowledged(leader.address)
            try:
                yield Running(parse_address(leader.address), leader.process.pid)
            except FAILURES as exc:
                told = "; ".join(
                    f"{each.id}: {each.errors.read_text(errors='replace')[-1500:]}" for each in group.members
                )
                raise LoadFailed(f"{exc}; {told}") from exc

    return start
