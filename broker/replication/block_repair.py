"""Repair damaged places of this broker's log from another member's copy, while the broker runs.

A task asks every few tenths of a second whether there are any. One place at a time: the members that may have it are
asked in turn (`ha.group.block_repair`), and the first bytes that are right are put back by a thread
(`store.integrity.block_repair`). Then it rests as long as the scrubber would take for as many bytes, so that neither
disk nor network notices. A place that no member can repair stays unserved, is told with the command that a person can
run, and is tried again, ever more rarely.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog
import trio

from broker.context import BrokerContext
from broker.replication.master_slave import Replication
from broker.replication.member import HaMember
from broker.replication.slave.peer import Peer, Trust, reading_answers
from broker.replication.slave.slave_broker import master_address
from ha.group.block_repair import (
    BlockRequest,
    RepairRefused,
    RepairSchedule,
    Span,
    block_untrusted,
    repair_bytes,
    repair_sources,
)
from ropewalk.client.aio.connection import open_connection
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError
from ropewalk.format.sidecar import BLOCK_SIZE
from store.integrity.block_repair import Damage, Damaged, NotDurable, NotWhole, probe_place, put_back
from store.integrity.scrubber import check_of
from store.log.remedy import bytes_from_a_copy
from store.log.segment import Segment

__all__ = ["BlockRepair", "BlockSource", "Fetch", "GroupBlocks"]

log = structlog.get_logger("broker.block_repair")

PROBE_S = 0.25
CONNECT_S = 2.0
ASK_S = 10.0
RATE_MIN = 1 << 20
"""Bytes a second, where no scrubber says more."""


Fetch = Callable[[Span], Awaitable[bytes]]
"""Fetches bytes of the log from a member. Raises `RepairRefused`, `RopewalkError` or OSError."""


class BlockSource(Protocol):
    """The members of a group from which bytes can be had."""

    def members(self, place: Damaged) -> tuple[str, ...]:
        """Return the members to ask, the likeliest first."""

    def asking(self, member: str) -> AbstractAsyncContextManager[Fetch]:
        """Return a conversation with a member. Raises as `Fetch` does."""


class BlockRepair:
    """The repair task of a broker."""

    def __init__(self, broker: BrokerContext, source: BlockSource) -> None:
        self._broker = broker
        self._source = source
        self._core = RepairSchedule()
        self._rate = max(broker.config.scrub_bytes_per_second, RATE_MIN)

    async def run(self) -> None:
        """Until cancelled."""
        damage = self._broker.store.damage
        while damage is not None:
            await trio.sleep(PROBE_S)
            place = self._core.due(damage.places(), self._broker.monotonic_ms()) if len(damage) else None
            segment = damage.hold(place) if place is not None else None
            if place is None or segment is None:
                continue
            try:
                await self._mend(damage, place, segment)
            finally:
                segment.pins -= 1
            await trio.sleep((place.stop - place.start) / self._rate)

    async def _mend(self, damage: Damage, place: Damaged, segment: Segment) -> None:
        root, disk = self._broker.config.store_path_root_dir, self._broker.disk
        where = f"{segment.file.path} at byte {place.start} to {place.stop} (log offset {place.offset} to {place.end})"
        reasons: list[str] = []
        try:
            is_whole, before = await trio.to_thread.run_sync(probe_place, segment, place)
            anew = self._core.is_uncertain(place)
            if is_whole and not anew:
                damage.is_whole(place, mended=False)
                return
            for address in self._source.members(place):
                data = await self._ask(address, segment, place, before, reasons)
                if data is not None:
                    whole = replace(place, stop=place.start + len(data))
                    job = partial(put_back, segment, whole, data, root, disk, anew=anew)
                    kept = await trio.to_thread.run_sync(job)
                    damage.is_whole(place, mended=True)
                    log.warning("store", finding=f"{where} was repaired from {address}", kept=str(kept))
                    return
        except NotDurable as exc:
            self._core.not_durable(place)
            reasons.append(str(exc))
        except (OSError, NotWhole) as exc:
            reasons.append(f"it cannot be written here: {exc}")
        if (told := self._core.failed(place, reasons, self._broker.monotonic_ms())) is not None:
            log.error(
                "store",
                finding=f"{where} is damaged, is not served, and cannot be repaired from another member: {told}",
                remedy=bytes_from_a_copy(segment.placing, root),
            )

    async def _ask(
        self, member: str, segment: Segment, place: Damaged, before: bytes, reasons: list[str]
    ) -> bytes | None:
        """Ask this member for the bytes that belong there; None if it could not help, with the cause in `reasons`."""
        search = repair_bytes(place, before, segment.size, BLOCK_SIZE, check_of(segment.placing))
        try:
            with reading_answers(member):
                async with self._source.asking(member) as fetch:
                    span = next(search)
                    while True:
                        try:
                            span = search.send(await fetch(span))
                        except StopIteration as end:
                            found: bytes = end.value
                            return found
        except (RepairRefused, RopewalkError, OSError) as exc:
            text = str(exc)
            reasons.append(text if member in text else f"{member}: {text}")
            return None


class GroupBlocks:
    """The other members of a group of master and slaves, asked on their remoting ports."""

    def __init__(self, broker: BrokerContext, member: HaMember, replication: Replication) -> None:
        self._broker = broker
        self._member = member
        self._replication = replication
        config = broker.config
        self._trust = Trust(
            config.ropewalk_secret, config.broker_cluster_name, config.broker_name, member.known_addresses,
            takes_version1=False,
        )  # fmt: skip

    def members(self, place: Damaged) -> tuple[str, ...]:
        """Return the members to ask, the likeliest first."""
        member, replication = self._member, self._replication
        configured = self._broker.config.ropewalk_master_address
        master = "" if member.core.is_master else master_address(member.record, replication, configured)
        acknowledged = {
            replica.address: connection.acknowledged
            for connection in replication.service.connections
            if (replica := replication.service.replica_of(connection)) is not None
        }
        return repair_sources(member.record, member.address, master, acknowledged, place.end)

    @asynccontextmanager
    async def asking(self, member: str) -> AsyncIterator[Fetch]:
        """Connect to a member."""
        async with open_connection(member, timeout=CONNECT_S) as link:
            peer = await Peer.of(link, self._trust)
            if peer is None:
                raise RepairRefused(f"{member} is a RocketMQ broker, which has no checksums of its log")

            async def fetch(span: Span) -> bytes:
                body = await peer.ask(RequestCode.ROPEWALK_LOG_BLOCK, self._question(span), ASK_S)
                return await trio.to_thread.run_sync(block_untrusted, span, body)

            yield fetch

    def _question(self, span: Span) -> BlockRequest:
        broker = self._broker
        return BlockRequest(
            cluster=broker.config.broker_cluster_name,
            broker_name=broker.config.broker_name,
            address=self._member.address,
            segment_size=broker.store.log.segment_size,
            start=span.start,
            end=span.end,
            wanted=span.wanted,
            log_end=broker.store.whole_end,
            epochs=self._member.epochs.pairs(),
        )
