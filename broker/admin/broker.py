"""Administrators' requests about the broker itself (25, 26, 28, 315, 321, 306).

Code 25 changes an allow-list of typed keys and nothing else; what it may not change is refused as RocketMQ refuses its
blacklisted keys, and nothing of a request that holds one is applied. A change counts from the next request on, and is
kept in the configuration file if the broker was started with one.
"""

from __future__ import annotations

from typing import Any, Final

import structlog

from broker.admin.base import AdminContext, Handler, body_of
from broker.admin.runtime_info import DiskFacts, runtime_info
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session
from broker.settings.config import ConfigError, change, nearest_key
from broker.settings.java_properties import PropertiesError, read_properties, write_properties
from broker.settings.keys import KEYS
from broker.state.data_version import DataVersion
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.headers import BrokerStatsHeader, QueryConsumeQueueHeader, decode_header
from ropewalk.format.remoting import Command
from store.read.store_times import oldest_store_time

__all__ = ["CHANGEABLE", "AdminBroker"]

log = structlog.get_logger("broker.admin")

CHANGEABLE: Final = frozenset(
    {
        "accessMessageInMemoryMaxRatio",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "catchUpReadRatio",
        "cleanFileForciblyEnable",
        "enablePropertyFilter",
        "fileReservedTime",
        "filterDataCleanTimeSpan",
        "filterIgnoreTrailingText",
        "filterSupportRetry",
        "flushConsumerOffsetInterval",
        "flushIntervalCommitLog",
        "litePullMessageEnable",
        "logLevel",
        "longPollingEnable",
        "maxMessageSize",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory",
        "recallMessageEnable",
        "shortPollingTimeMills",
        "syncFlushTimeout",
        "timerMaxDelaySec",
        "traceOn",
    }
)
"""The keys that code 25 may change: each is typed and bounded, and none of them reaches a path, a process or a peer."""

CONFIG_BODY_MAX: Final = 16 * 1024
_NAMED_MAX: Final = 3
"""Unknown keys that a refusal names."""
ENTRIES_MAX: Final = 1000
"""Of one look into a queue (321)."""


class AdminBroker:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._broker = context.broker
        self._version = DataVersion(timestamp=context.broker.now_ms())

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.view_stats,
            RequestCode.QUERY_CONSUME_QUEUE: self.queue_entries,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
        }

    # -- configuration -------------------------------------------------------------------------------

    def config(self, session: Session, request: Command) -> Command:
        rows = self._broker.config.describe(every_key=True)
        text = write_properties({row.key: row.value for row in rows})
        version = fastjson.dumps(self._version.to_json()).decode()
        return request.reply(ResponseCode.SUCCESS, ext={"version": version}, body=text.encode())

    def update_config(self, session: Session, request: Command) -> Command:
        broker = self._broker
        changes = _changes(request.body)
        unknown = sorted(changes.keys() - KEYS.keys())
        if unknown:
            # A search for the nearest key takes a millisecond.
            named = "; ".join(f"there is no key {key!r}{nearest_key(key)}" for key in unknown[:_NAMED_MAX])
            if len(unknown) > _NAMED_MAX:
                named += f"; and {len(unknown) - _NAMED_MAX} more"
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"Can not update config: {named}")
        fixed = sorted(changes.keys() - CHANGEABLE)
        if fixed:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"Can not update config {', '.join(fixed)}: while the broker runs only these can be changed: "
                f"{', '.join(sorted(CHANGEABLE))}",
            )
        ip, port = session.link.peer
        try:
            config = change(broker.config, changes, f"administrator at {ip}:{port}")
        except ConfigError as exc:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        log.info("configuration changed", peer=f"{ip}:{port}", **changes)
        self._context.reconfigure(config)
        self._version = self._version.next(broker.now_ms())
        self._context.settings_changed(changes)
        return request.reply(ResponseCode.SUCCESS)

    # -- how it is -----------------------------------------------------------------------------------

    def info(self, session: Session, request: Command) -> None:
        broker = self._broker
        store, disk = broker.store, broker.disk
        root = broker.config.store_path_root_dir

        def look() -> DiskFacts:
            log_space, root_space = disk.space(store.log.directory), disk.space(root)
            return DiskFacts(log_space, root_space, oldest_store_time(store.log))

        def answer(facts: DiskFacts) -> Command:
            return body_of(request, {"table": runtime_info(broker, facts, broker.now_ms())})

        self._context.later(session, request, look, answer)

    def view_stats(self, session: Session, request: Command) -> Command:
        header = decode_header(BrokerStatsHeader, request.ext)
        broker = self._broker
        found = broker.statistics.view(header.stats_name, header.stats_key, broker.now_ms())
        if found is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        return body_of(request, {name: snapshot.to_json() for name, snapshot in found.items()})

    # -- queues --------------------------------------------------------------------------------------

    def queue_entries(self, session: Session, request: Command) -> Command | None:
        """The raw entries of a queue, and which of them a group's subscription lets through."""
        header = decode_header(QueryConsumeQueueHeader, request.ext)
        broker = self._broker
        queue = broker.store.find_queue(header.topic, header.queue_id)
        if queue is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"{header.topic}@{header.queue_id}: there is no such queue"
            )
        wish = broker.clients.subscription(header.consumer_group or "", header.topic)
        body: dict[str, Any] = {"maxQueueIndex": queue.readable, "minQueueIndex": queue.min_offset}
        if wish is not None:
            body["subscriptionData"] = wish.to_json()
        if not queue.min_offset <= header.index < queue.readable:
            return body_of(request, {**body, "queueData": []})
        count = min(max(header.count, 1), ENTRIES_MAX, queue.readable - header.index)
        frozen = queue.frozen()

        def look() -> list[tuple[int, int, int]]:
            return [frozen.read(header.index + n) for n in range(count)]

        def answer(entries: list[tuple[int, int, int]]) -> Command:
            body["queueData"] = [
                {
                    "eval": wish is None or wish.matches(tags_code),
                    "physicOffset": offset,
                    "physicSize": size,
                    "tagsCode": tags_code,
                }
                for offset, size, tags_code in entries
            ]
            return body_of(request, body)

        self._context.later(session, request, look, answer)
        return None

    def clean_queues(self, session: Session, request: Command) -> Command:
        """Nothing is left to clean: a queue lets go of its oldest entries when their records go."""
        return request.reply(ResponseCode.SUCCESS)


def _changes(body: bytes) -> dict[str, str]:
    """The keys and values of a properties text. Raises `RequestRefused`."""
    if len(body) > CONFIG_BODY_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"a configuration text of {len(body)} bytes is too long"
        )
    try:
        changes = {entry.key: entry.value for entry in read_properties(body.decode())}
    except (PropertiesError, UnicodeDecodeError) as exc:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not a properties text: {exc}") from exc
    if not changes:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "string2Properties error: the body names no key")
    return changes
