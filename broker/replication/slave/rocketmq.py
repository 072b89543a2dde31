"""`RocketMQTables`: the tables of a RocketMQ master, which are fetched as RocketMQ's slaves do it.

Requests 21, 43, 45, 60, 61 and 201, once a second. The logs are not compared: RocketMQ has nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import trio

from broker.replication.slave.peer import CALL_S, NotSame, read_answer, timer_counts
from broker.replication.slave.slave_broker import SlaveBroker
from broker.state.data_version import DataVersion, int_of
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.fastjson import FastjsonError
from ropewalk.format.remoting import Command
from store.timer.layout import Checkpoint
from store.timer.progress import Progress

__all__ = ["RocketMQTables"]

ROCKETMQ_SYNC_S = 1.0


class RocketMQTables:
    """The tables of the master, and the versions in which they were taken."""

    def __init__(self, broker: SlaveBroker, synced: Callable[[], None]) -> None:
        """Begin with nothing taken; `synced` is called each time that all tables are here."""
        self._broker = broker
        self._on_synced = synced
        self._versions: dict[int, DataVersion] = {}

    async def sync(self, link: AsyncConnection, address: str) -> None:
        """Fetch the tables again and again, for as long as this broker follows the master at `address`."""
        broker, context = self._broker, self._broker.context
        host, _, port = address.rpartition(":")
        async with open_connection(f"{host}:{int(port) - 2}", timeout=CALL_S) as fast:
            while broker.follows(address):
                end = context.store.whole_end  # what comes while the master answers may be of newer topics
                topics = await self._table(fast, RequestCode.GET_ALL_TOPIC_CONFIG)
                offsets = await self._table(link, RequestCode.GET_ALL_CONSUMER_OFFSET)
                delays = await self._table(link, RequestCode.GET_ALL_DELAY_OFFSET)
                groups = await self._table(link, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
                timers = await self._timers(fast)
                counts = await timer_counts(fast) if timers is not None else None
                with broker.turn():
                    if timers is not None:
                        context.timers.follow(timers)
                    if counts is not None:
                        context.timers.metrics.adopt(counts)
                if not await broker.in_turns(self._adopt(topics, end, offsets, delays, groups), address):
                    return
                broker.member.lost_ms = -1
                self._on_synced()
                await trio.sleep(ROCKETMQ_SYNC_S)

    async def _timers(self, link: AsyncConnection) -> Progress | None:
        """The progress of a RocketMQ master's timers; None where its wheel is switched off."""
        answer = await link.call(Command(RequestCode.GET_TIMER_CHECK_POINT), CALL_S)
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            found = Checkpoint.decode(answer.body)
        except ValueError as exc:
            raise NotSame(f"{link.address} answered {RequestCode.GET_TIMER_CHECK_POINT}: {exc}") from exc
        return Progress(found.read_ms, found.master_queue_offset)

    async def _table(self, link: AsyncConnection, code: int) -> dict[str, Any] | None:
        """A table of a RocketMQ master; None if it has not moved since it was taken."""
        answer = await link.call(Command(code), CALL_S)
        if answer.code != ResponseCode.SUCCESS:
            raise NotSame(f"{link.address} answered {answer.code} to {code}: {answer.remark}")
        try:
            value = await read_answer(answer)
        except FastjsonError as exc:
            raise NotSame(f"{link.address} answered {code} with what is no JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise NotSame(f"{link.address} answered {code} with what is no object")
        if code in (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET):
            return value  # RocketMQ moves their versions once in hundreds of changes
        version = DataVersion.from_json(value.get("dataVersion"))
        if version != DataVersion() and self._versions.get(code) == version:
            return None
        self._versions[code] = version
        return value

    def _adopt(
        self,
        topics: dict[str, Any] | None,
        end: int,
        offsets: dict[str, Any] | None,
        delays: dict[str, Any] | None,
        groups: dict[str, Any] | None,
    ) -> Generator[None, None, None]:
        context, tables = self._broker.context, self._broker.member.tables
        if topics is not None:
            yield from tables.adopt_topics(topics, end)
        if groups is not None:
            yield from context.groups.adopt_in_slices(groups)
        if offsets is not None:
            # The whole table, also where it goes back: when a commit was made RocketMQ does not say.
            yield from context.offsets.adopt_wrapper(offsets)
        table = (delays or {}).get("offsetTable")
        if isinstance(table, dict):
            found = {int_of(level, 0): int_of(offset, -1) for level, offset in table.items()}
            tables.follow_delays(
                {level: offset for level, offset in found.items() if level > 0 and offset >= 0}
            )
