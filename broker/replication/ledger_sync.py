"""Copy the leader's tables to a follower of a DLedger group: topics, groups, offsets, progress of delays and timers.

Once a second, over the remoting port, with the requests that RocketMQ's slaves send to their master (21, 201, 43, 45,
61). How far timers are delivered stands in the leader's status (30040), with the end of the log that has the copies.
Name servers tell where the leader is; it counts only if it says that it leads in the very term in which this member
follows. So a follower that becomes the leader goes on where consumers were a second ago, and delivers no delayed
message again that was delivered before that. What is not copied yet when a leader dies is consumed or delivered twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import trio

from broker.context import BrokerContext
from broker.remoting.shell import Shell
from broker.replication.group_member import Turns
from broker.state.data_version import int_of
from ha.dledger.ledger import LedgerShell
from ha.raft.types import Role
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError, RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from store.timer.progress import Progress

__all__ = ["LedgerSync"]

SYNC_S = 1.0
CALL_S = 2.0
_REST = 20
"""The loop has so many times as long for everything else."""


class LedgerSync:
    """The task of one member."""

    def __init__(
        self,
        context: BrokerContext,
        ledger: LedgerShell,
        turns: Turns,
        shell: Shell,
        follow_delays: Callable[[dict[int, int]], None],
    ) -> None:
        self._context = context
        self._ledger = ledger
        self._turns = turns
        self._shell = shell
        self._follow_delays = follow_delays
        self._seen: dict[int, bytes] = {}
        """Request code -> the answer that was adopted last."""
        self._busy_s = 0.0
        """How long the loop was kept busy by the last copy; large tables are copied less often."""

    async def run(self) -> None:
        """Copy until cancelled. A leader that is away is asked again; the log says nothing of that."""
        while True:
            await trio.sleep(max(SYNC_S, _REST * self._busy_s))
            self._busy_s = 0.0
            if self._follows:
                with trio.move_on_after(5 * CALL_S):
                    try:
                        await self._copy()
                    except* (RopewalkError, OSError):
                        self._seen.clear()

    @property
    def _follows(self) -> bool:
        standing = self._ledger.standing
        return standing.role is Role.FOLLOWER and standing.leader is not None

    async def _copy(self) -> None:
        context, address = self._context, await self._leader_address()
        if not address or address == ":".join(map(str, context.address)):
            return
        async with open_connection(address, timeout=CALL_S) as link:
            term = self._ledger.standing.term
            status = await _ask(link, RequestCode.ROPEWALK_LEDGER_STATUS)
            said = status[0].get("standing")
            if not status[0].get("leads") or not isinstance(said, dict) or said.get("term") != term:
                return  # a leader that was, or one that this member has not heard of
            tables = {RequestCode.ROPEWALK_LEDGER_STATUS: status} if status[0].get("timers") else {}
            for code in (
                RequestCode.GET_ALL_TOPIC_CONFIG,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                RequestCode.GET_ALL_CONSUMER_OFFSET,
                RequestCode.GET_ALL_DELAY_OFFSET,
                *((RequestCode.GET_TIMER_METRICS,) if tables and context.timers.enabled else ()),
            ):
                table, data = await _ask(link, code)
                if self._seen.get(code) != data:
                    tables[code] = table, data
        if tables and self._follows and self._ledger.standing.term == term:
            self.adopt(tables)

    async def _leader_address(self) -> str:
        config = self._context.config
        ext = {"clusterName": config.broker_cluster_name, "brokerName": config.broker_name}
        for name_server in config.namesrv_addr:
            found: dict[str, Any] = {}
            try:
                async with open_connection(name_server, timeout=CALL_S) as link:
                    found, _data = await _ask(link, RequestCode.GET_BROKER_MEMBER_GROUP, ext)
            except* (RopewalkError, OSError):
                pass  # the next one may know
            group = found.get("brokerMemberGroup")
            addresses = group.get("brokerAddrs") if isinstance(group, dict) else None
            address = addresses.get("0") if isinstance(addresses, dict) else None
            if isinstance(address, str):
                return address
        return ""

    def adopt(self, tables: Mapping[int, tuple[dict[str, Any], bytes]]) -> None:
        """Be a copy of the leader's tables, in a turn of its own."""
        context, began = self._context, time.perf_counter()
        self._turns.begin_turn()
        try:
            for code, (table, data) in tables.items():
                match code:
                    case RequestCode.GET_ALL_TOPIC_CONFIG:
                        context.topics.adopt(table)
                        context.topics_changed()
                    case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                        context.groups.adopt(table)
                    case RequestCode.GET_ALL_CONSUMER_OFFSET:
                        self._adopt_offsets(table)
                    case RequestCode.ROPEWALK_LEDGER_STATUS:
                        self._hear_timers(table.get("timers"))
                    case RequestCode.GET_TIMER_METRICS:
                        context.timers.metrics.adopt(table)
                    case _:
                        self._adopt_delays(table)
                self._seen[code] = data
        finally:
            self._turns.end_turn()
            self._shell.flush()
            self._busy_s = 2 * (time.perf_counter() - began)  # to read it took about as long

    def _hear_timers(self, found: object) -> None:
        """Hear how far the leader has delivered timers for good; an older leader does not tell."""
        if isinstance(found, list) and len(found) == 4 and all(isinstance(number, int) for number in found):
            end, *progress = found
            self._context.timers.hear(end, Progress(*progress))

    def _adopt_offsets(self, table: dict[str, Any]) -> None:
        offsets = self._context.offsets
        fresh = type(offsets)()
        fresh.load(table)
        for (topic, group, queue_id), _time_ms in fresh.journal.since(0, 1 << 30)[0]:
            offset = fresh.query(group, topic, queue_id)
            if offset is not None:
                offsets.commit(group, topic, queue_id, offset)

    def _adopt_delays(self, table: dict[str, Any]) -> None:
        found = table.get("offsetTable")
        if isinstance(found, dict):
            delays = {int_of(level, 0): int_of(offset, -1) for level, offset in found.items()}
            self._follow_delays({level: offset for level, offset in delays.items() if level > 0 <= offset})


async def _ask(
    link: AsyncConnection, code: int, ext: dict[str, str] | None = None
) -> tuple[dict[str, Any], bytes]:
    """Return the JSON object in an answer, and its bytes. Raises `RemoteProtocolError`."""
    answer = await link.call(Command(code, ext or {}), CALL_S)
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteProtocolError(f"{link.address} answered {answer.code} to {code}: {answer.remark}")
    try:
        value = fastjson.loads(answer.body)
    except fastjson.FastjsonError as exc:
        raise RemoteProtocolError(f"{link.address} answered {code} with no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{link.address} answered {code} with no object")
    return value, bytes(answer.body)
