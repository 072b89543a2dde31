"""`ConfigFiles`: which table of the broker lies in which file, how a start reads them and what is left to write.

    config/topics.json              config/subscriptionGroup.json      config/consumerOffset.json
    config/messageRequestMode.json  config/delayOffset.json            config/consumerFilter.json
    config/timermetrics             config/transactionMetrics          ropewalk/offsetTimes.json

All but the last are RocketMQ's. The tables make their texts themselves; `process` asks for `dumps` now and then, and
writes those whose numbers have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from broker.consume.filters import FilterTable
from broker.context import BrokerContext
from broker.state import json_file
from broker.state.json_text import TextSlices, at_once
from broker.timers.deliveries import Deliveries
from broker.transactions.service import TransactionService

log = structlog.get_logger("broker")

_MAY_BE_LOST: Final = frozenset(
    {"messageRequestMode.json", "timermetrics", "offsetTimes.json", "transactionMetrics"}
)
"""Files of counts and conveniences: one that cannot be read stops no start. The next save of it sets it aside."""


class ConfigFiles:
    """The files of one broker's tables."""

    def __init__(
        self,
        context: BrokerContext,
        filters: FilterTable,
        deliveries: Deliveries,
        transactions: TransactionService,
        has_replicas: Callable[[], bool],
    ) -> None:
        self._context = context
        self._filters = filters
        self._deliveries = deliveries
        self._transactions = transactions
        self._has_replicas = has_replicas
        root = context.config.store_path_root_dir
        self._directory = root / "config"
        self._offset_times = root / "ropewalk" / "offsetTimes.json"

    def load(self, now: int) -> None:
        """Read every table. Blocks. Raises `StoreConfigDamaged`."""
        context = self._context
        value, findings = json_file.load(self._directory / "delayOffset.json")
        self._tell("delayOffset.json", [*findings, *self._deliveries.load(value)])
        for name, load in (
            ("topics.json", context.topics.load),
            ("subscriptionGroup.json", context.groups.load),
            ("consumerOffset.json", context.offsets.load),
            ("messageRequestMode.json", context.request_modes.load),
            ("timermetrics", context.timers.metrics.load),
            ("consumerFilter.json", lambda value: self._filters.load(value, now)),
        ):
            value = self._read(self._directory / name)
            self._tell(name, load(value) if value is not None else [])
        context.offsets.load_times(self._read(self._offset_times) or {})
        self._transactions.counts.load(self._read(self._directory / "transactionMetrics") or {})

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return the content of a file, or None if there is none. Raises `StoreConfigDamaged`."""
        try:
            value, findings = json_file.load(path)
        except json_file.StoreConfigDamaged as exc:
            if path.name not in _MAY_BE_LOST:
                raise
            value, findings = None, [f"starting without it: {exc}"]
        self._tell(path.name, findings)
        return value

    def _tell(self, name: str, findings: list[str]) -> None:
        for finding in findings:
            log.warning("config file", file=name, finding=finding)

    def dumps(self) -> dict[Path, tuple[int, Callable[[], TextSlices]]]:
        """Return the files: path -> (a number that changes with the content, how to write the text)."""
        context, directory = self._context, self._directory
        topics, groups, modes = context.topics, context.groups, context.request_modes
        offsets, progress, timers = context.offsets, self._deliveries.progress, context.timers.metrics
        now_ms = context.now_ms
        tables: dict[Path, tuple[int, Callable[[], TextSlices]]] = {
            directory / "topics.json": (topics.generation, topics.dump_in_slices),
            directory / "subscriptionGroup.json": (groups.generation, groups.dump_in_slices),
            directory / "messageRequestMode.json": (modes.generation, modes.dump_in_slices),
            directory / "consumerOffset.json": (offsets.changed, lambda: offsets.dump_in_slices(now_ms())),
            directory / "delayOffset.json": (progress.generation, lambda: at_once(progress.dump(now_ms()))),
        }
        if timers.generation:
            tables[directory / "timermetrics"] = timers.generation, lambda: timers.dump_in_slices(now_ms())
        if self._transactions.changed:
            tables[directory / "transactionMetrics"] = (
                self._transactions.changed,
                self._transactions.dump_in_slices,
            )
        if self._filters.generation:
            tables[directory / "consumerFilter.json"] = self._filters.generation, self._filters.dump_in_slices
        if self._has_replicas():
            tables[self._offset_times] = offsets.changed, offsets.dump_times_in_slices
        return tables

    def save_last(self) -> None:
        """Write the offsets of a log that is flushed for good: all that was delivered is durable. Blocks."""
        now_ms = self._context.now_ms()
        if self._transactions.stop():
            _save(self._directory / "consumerOffset.json", self._context.offsets.dump(now_ms))
        _save(self._directory / "delayOffset.json", self._deliveries.progress.final(now_ms))


def _save(path: Path, data: bytes) -> None:
    """Write a file, or say why not: the one before is whole, and the next start repeats what it does not tell."""
    try:
        json_file.save(path, data)
    except OSError as exc:
        log.error("cannot write a config file", path=str(path), reason=str(exc))
