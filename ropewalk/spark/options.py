"""The options of format "ropewalk": a table, and how text becomes values.

Spark hands options over as text under lower-cased names. `parse_options` turns them into one `Options`, or raises
`BadOption`, which names the option, what was wrong with it and, for a name nobody knows, the nearest right one.
An option that exists but means nothing here (a sink's option in a read, a broker's beside `mode=store`) is refused
too: whoever wrote it expects something of it. Names that start with `x-` are the caller's own and pass.

Times are milliseconds since 1970 or ISO 8601 with a zone. One without is refused: it would be of the session's zone for
most users of Spark, which a data source does not know. `ropewalk.spark.read` knows it and takes them.
Sizes may end in k, m or g (of 1024), durations in ms, s, m or h.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, Literal

from ropewalk.client.core.consume.consume_from import EARLIEST as EARLIEST_WORDS
from ropewalk.client.core.consume.consume_from import LATEST as LATEST_WORDS
from ropewalk.errors import RopewalkError
from ropewalk.spark.rows.schema import BODY_BYTES_MAX, PRESETS, Selection, chosen_columns, nearest

__all__ = ["EARLIEST", "LATEST", "BadOption", "Offsets", "Options", "Use", "fits", "parse_options"]

EARLIEST: Final = -2
LATEST: Final = -1

Use = Literal["read", "stream", "write"]
"""The use of the options: a batch read, a streaming read, or a write of either kind."""

Offsets = int | Mapping[str, Mapping[str, Mapping[str, int]]]
"""`EARLIEST`, `LATEST`, or a number for each topic, broker name and queue id (as text, as in JSON)."""


class BadOption(RopewalkError):
    """An option that does not exist, does not fit here, or cannot have this value."""


class _InvalidValue(Exception):
    """A value that its option cannot have; the text says what would do."""


def _option(name: str, uses: str, parse: Callable[[str], Any], default: Any, **more: Any) -> Any:
    """One row of the table. `uses`: letters of read, stream, write; then b or p for one mode only (broker, path)."""
    metadata = {"name": name, "uses": uses, "parse": parse, "aliases": more.pop("aliases", ())}
    if isinstance(default, dict | list):
        return field(default_factory=lambda: default, metadata=metadata, **more)
    return field(default=default, metadata=metadata, **more)


def _text(value: str) -> str:
    if not value.strip():
        raise _InvalidValue("it must not be empty")
    return value.strip()


def _words(value: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in re.split("[,;]", value) if word.strip())
    if not words:
        raise _InvalidValue("expected names with commas between them")
    return words


def _bool(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise _InvalidValue("expected true or false")
    return value.strip().lower() == "true"


def _whole(least: int = 1) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", value) or int(value) < least:
            raise _InvalidValue(f"expected a whole number from {least} on")
        return int(value)

    return parse


_SCALES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _size(value: str) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", value, re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise _InvalidValue("expected a size in bytes, such as 4194304 or 4m")
    return int(found[1]) * _SCALES[found[2].lower()]


def _duration_ms(value: str) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value, re.IGNORECASE)
    if found is None or found[2].lower() not in _UNITS_MS:
        raise _InvalidValue("expected a duration in ms, or such as 30s or 15m")
    return int(found[1]) * _UNITS_MS[found[2].lower()]


def _time_ms(value: str) -> int:
    if re.fullmatch(r"\s*\d+\s*", value):
        return int(value)
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise _InvalidValue(
            "expected milliseconds since 1970 or a time with its zone, such as 2025-06-01T12:00:00Z or "
            "2025-06-01T14:00:00+02:00"
        ) from None
    if moment.tzinfo is None:
        raise _InvalidValue(
            f"it has no zone, and which one is meant? Write {value.strip()}Z for UTC, an offset such as +02:00, or "
            f"milliseconds since 1970; ropewalk.spark.read(spark, since=...) takes times of the session's zone"
        )
    return round(moment.timestamp() * 1000)


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        for word in allowed:
            if value.strip().lower() == word.lower():
                return word
        raise _InvalidValue(f"expected one of {', '.join(allowed)}")

    return parse


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as exc:
        raise _InvalidValue(f"it is no regular expression: {exc}") from None
    return _text(value)


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as exc:
        raise _InvalidValue(f"it is no JSON: {exc}") from None


_ASSIGN_SHAPE: Final = 'expected JSON such as {"topic": {"broker-a": [0, 1]}}'
_OFFSETS_SHAPE: Final = 'JSON such as {"topic": {"broker-a": {"0": 1200, "1": -2}}} (-2 earliest, -1 latest)'
_TIMES_SHAPE: Final = 'expected JSON such as {"topic": {"broker-a": {"0": 1718000000000}}}'


def _assign(value: str) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    given = _json(value)
    if not isinstance(given, dict) or not given:
        raise _InvalidValue(_ASSIGN_SHAPE)
    result: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, brokers in given.items():
        if not isinstance(brokers, dict) or not brokers:
            raise _InvalidValue(_ASSIGN_SHAPE)
        for broker, queues in brokers.items():
            if not isinstance(queues, list) or not queues or not all(_is_queue(queue) for queue in queues):
                raise _InvalidValue(_ASSIGN_SHAPE)
            result.setdefault(topic, {})[broker] = tuple(sorted(set(queues)))
    return result


def _is_queue(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numbers(value: str, least: int, shape: str) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    given = _json(value)
    if not isinstance(given, dict) or not given:
        raise _InvalidValue(shape)
    for brokers in given.values():
        for queues in brokers.values() if isinstance(brokers, dict) and brokers else ({},):
            if not isinstance(queues, dict) or not queues:
                raise _InvalidValue(shape)
            for queue, number in queues.items():
                if (
                    not (queue.isascii() and queue.isdigit())
                    or isinstance(number, bool)
                    or not isinstance(number, int)
                ):
                    raise _InvalidValue(shape)
                if number < least:
                    raise _InvalidValue(shape)
    result: Mapping[str, Mapping[str, Mapping[str, int]]] = given
    return result


def _offsets(value: str) -> Offsets:
    word = value.strip().lower()
    if word in EARLIEST_WORDS:
        return EARLIEST
    if word in LATEST_WORDS:
        return LATEST
    shape = f"expected earliest (or first), latest (or last), or {_OFFSETS_SHAPE}"
    if not value.lstrip().startswith("{"):
        near = get_close_matches(word, (*EARLIEST_WORDS, *LATEST_WORDS), 1, 0.6)
        times = "; for a time there is startingTimestamp or endingTimestamp" if word[:4].isdigit() else ""
        raise _InvalidValue(shape + (f"; did you mean {near[0]}?" if near else times))
    return _numbers(value, EARLIEST, shape)


def _times(value: str) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    return _numbers(value, 0, _TIMES_SHAPE)


def _end_at(value: str) -> str | int:
    word = value.strip().lower()
    if word in ("safe", "scan"):
        return word
    if word.isascii() and word.isdigit():
        return int(word)
    raise _InvalidValue("expected safe, scan, or an offset in the log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The values of all options. Attribute names are the options' names in Python's spelling."""

    # Where from
    mode: str = _option("mode", "rsw", _choice("broker", "store"), "broker")
    name_server: str | None = _option("nameServer", "rswb", _text, None, aliases=("namesrvAddr",))
    brokers: tuple[str, ...] = _option("brokers", "rswb", _words, ())
    vip: bool = _option("vip", "rswb", _bool, False)
    access_key: str | None = _option("accessKey", "rswb", _text, None)
    secret_key: str | None = _option("secretKey", "rswb", _text, None, repr=False)
    secret_key_file: str | None = _option("secretKeyFile", "rswb", _text, None)
    security_token: str | None = _option("securityToken", "rswb", _text, None, repr=False)
    path: str | None = _option("path", "rsp", _text, None)
    broker_name: str | None = _option("brokerName", "rsp", _text, None)

    # What
    topic: str | None = _option("topic", "rsw", _text, None, aliases=("subscribe",))
    subscribe_pattern: str | None = _option("subscribePattern", "rs", _pattern, None)
    assign: Mapping[str, Mapping[str, tuple[int, ...]]] | None = _option("assign", "rs", _assign, None)
    include_system_topics: bool = _option("includeSystemTopics", "rs", _bool, False)
    filter_tags: str = _option("filterTags", "rs", _text, "*")

    # From where to where
    starting_timestamp: int | None = _option("startingTimestamp", "rs", _time_ms, None, aliases=("since",))
    starting_offsets_by_timestamp: Mapping[str, Mapping[str, Mapping[str, int]]] | None = _option(
        "startingOffsetsByTimestamp", "rs", _times, None
    )
    starting_offsets: Offsets | None = _option("startingOffsets", "rs", _offsets, None)
    starting_offsets_by_timestamp_strategy: str = _option(
        "startingOffsetsByTimestampStrategy", "rs", _choice("error", "latest"), "error"
    )
    ending_timestamp: int | None = _option("endingTimestamp", "r", _time_ms, None, aliases=("until",))
    ending_offsets_by_timestamp: Mapping[str, Mapping[str, Mapping[str, int]]] | None = _option(
        "endingOffsetsByTimestamp", "r", _times, None
    )
    ending_offsets: Offsets | None = _option("endingOffsets", "r", _offsets, None)
    fail_on_data_loss: bool = _option("failOnDataLoss", "rs", _bool, True)

    # How much at a time
    max_offsets_per_trigger: int | None = _option("maxOffsetsPerTrigger", "s", _whole(), None)
    max_bytes_per_trigger: int | None = _option("maxBytesPerTrigger", "s", _size, None)
    min_offsets_per_trigger: int | None = _option("minOffsetsPerTrigger", "s", _whole(), None)
    max_trigger_delay_ms: int = _option("maxTriggerDelay", "s", _duration_ms, 900_000)
    min_partitions: int | None = _option("minPartitions", "rs", _whole(), None)
    max_records_per_partition: int = _option("maxRecordsPerPartition", "rs", _whole(), 1_000_000)
    route_refresh_ms: int = _option("routeRefreshMs", "rsb", _duration_ms, 10_000)
    fetch_offset_num_retries: int = _option("fetchOffset.numRetries", "rsb", _whole(0), 3)
    fetch_offset_retry_interval_ms: int = _option("fetchOffset.retryIntervalMs", "rsb", _duration_ms, 10)
    pull_batch_size: int = _option("pullBatchSize", "rsb", _whole(), 1024)
    pull_max_bytes: int = _option("pullMaxBytes", "rsb", _size, 4 << 20)
    pull_in_flight: int = _option("pullInFlight", "rsb", _whole(), 8)
    pull_timeout_ms: int = _option("pullTimeoutMs", "rsb", _duration_ms, 30_000)
    read_from: str = _option("readFrom", "rsb", _choice("master", "slave", "any"), "master")
    arrow_batch_bytes: int = _option("arrowBatchBytes", "rs", _size, 4 << 20)
    arrow_batch_rows: int = _option("arrowBatchRows", "rs", _whole(), 4096)

    # In which form
    preset: str = _option("preset", "rs", _choice(*PRESETS), "default")
    columns: tuple[str, ...] = _option("columns", "rs", _words, ())
    properties_format: str = _option("propertiesFormat", "rs", _choice("map", "raw"), "map")
    include_headers: bool = _option("includeHeaders", "rs", _bool, False, aliases=("includeProperties",))
    decompress: bool = _option("decompress", "rs", _bool, True)
    body_max_bytes: int = _option("bodyMaxBytes", "rs", _size, BODY_BYTES_MAX)
    unwrap_batch: bool = _option("unwrapBatch", "rs", _bool, True)
    on_corrupt: str = _option("onCorrupt", "rs", _choice("fail", "skip", "keep"), "fail")
    check_crc: bool | None = _option("checkCrc", "rs", _bool, None)
    """None: bodies that came over the network are checked, those of a store that is read in place are not."""

    # Committing back
    commit_offsets: bool = _option("commitOffsets", "sb", _bool, False)
    group_id: str | None = _option("groupId", "rsb", _text, None)
    group_id_prefix: str = _option("groupIdPrefix", "rsb", _text, "ropewalk-spark")

    # Store directories
    split_bytes: int = _option("splitBytes", "rsp", _size, 128 << 20)
    split_mode: str = _option("splitMode", "rsp", _choice("resync", "queue", "chain"), "resync")
    io: str = _option("io", "rsp", _choice("auto", "mmap", "pread"), "auto")
    log_format: str = _option("logFormat", "rsp", _choice("auto", "plain", "dledger"), "auto")
    end_at: str | int = _option("endAt", "rsp", _end_at, "safe")

    # Writing
    delivery: str = _option("delivery", "wb", _choice("at-least-once", "exactly-once"), "at-least-once")
    sink_id: str | None = _option("sinkId", "wb", _text, None)
    routing: str = _option("routing", "wb", _choice("key", "any"), "key")
    batch_messages: int = _option("batchMessages", "wb", _whole(), 64)
    batch_bytes: int = _option("batchBytes", "wb", _size, 256 << 10)
    send_in_flight: int = _option("sendInFlight", "wb", _whole(), 16)
    send_timeout_ms: int = _option("sendTimeoutMs", "wb", _duration_ms, 10_000)
    wait_store_ok: bool = _option("waitStoreOk", "wb", _bool, True)
    require_replication: bool | None = _option("requireReplication", "wb", _bool, None)
    """None: true where the topic's broker is a SYNC_MASTER."""
    ignore_extra_columns: bool = _option("ignoreExtraColumns", "wb", _bool, False)

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics of `topic`, which may name several with commas between them."""
        return tuple(name.strip() for name in (self.topic or "").split(",") if name.strip())

    def selection(self) -> Selection:
        """Return the columns that these options choose. Raises SchemaMismatch."""
        raw = self.properties_format == "raw"
        return chosen_columns(self.preset, self.columns, raw_properties=raw, headers=self.include_headers)


_FIELDS: Final = {item.metadata["name"]: item for item in fields(Options)}
_NAMES: Final[dict[str, str]] = {
    spelling.lower(): name for name, item in _FIELDS.items() for spelling in (name, *item.metadata["aliases"])
}
_SPELLINGS: Final = {
    spelling.lower(): spelling
    for name, item in _FIELDS.items()
    for spelling in (name, *item.metadata["aliases"])
}
_USE_TEXT: Final[dict[str, str]] = {"read": "batch reads", "stream": "streaming reads", "write": "writes"}
# What Spark itself puts beside a source's options.
_OF_SPARK: Final = frozenset(("checkpointlocation", "queryname", "outputmode", "serialization.format"))
_NOTHING: Final = (
    "no options were given. A table whose columns are listed has none when it is used: leave the columns out "
    "(CREATE TABLE name USING ropewalk OPTIONS (...); option columns chooses some)"
)
_SECRETS: Final[dict[str, tuple[str, str]]] = {
    "access_key": ("accessKey", "ROPEWALK_ACCESS_KEY"),
    "secret_key": ("secretKey", "ROPEWALK_SECRET_KEY"),
    "security_token": ("securityToken", "ROPEWALK_SECURITY_TOKEN"),
}


def parse_options(raw: Mapping[str, str], use: Use, environment: Mapping[str, str] = os.environ) -> Options:
    """Parse and check the options that a caller of Spark gave. Raises BadOption.

    Credentials that are not given come from the environment, so that they need not stand in a plan.
    """
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    if not raw:
        raise BadOption(_NOTHING)
    for spelling, text in raw.items():
        low = spelling.lower()
        if low.startswith("x-") or low in _OF_SPARK:
            continue
        name = _NAMES.get(low)
        if name is None:
            raise BadOption(_unknown(low))
        if name in given:
            raise BadOption(
                f"options {_SPELLINGS[given[name]]} and {_SPELLINGS[low]} mean the same: give one"
            )
        given[name] = low
        item = _FIELDS[name]
        try:
            values[item.name] = item.metadata["parse"](text)
        except _InvalidValue as exc:
            shown = "..." if not item.repr else repr(text)
            raise BadOption(f"option {_SPELLINGS[low]} is {shown}: {exc}") from None
    mode = values.get("mode", "broker")
    for name in given:
        _check_use(name, use, mode)
    if mode == "broker":
        for attribute, (_, variable) in _SECRETS.items():
            if attribute not in values and environment.get(variable):
                values[attribute] = environment[variable]
    options = Options(**values)
    _check_combinations(options, given, use)
    return options


def option_names() -> frozenset[str]:
    """Return the names of all options."""
    return frozenset(_FIELDS)


def fits(spelling: str, use: Use) -> bool:
    """Return whether an option exists and has a meaning in a use; `x-…` always has."""
    low = spelling.lower()
    if low.startswith("x-"):
        return True
    return low in _NAMES and use[0] in _FIELDS[_NAMES[low]].metadata["uses"]


def _unknown(name: str) -> str:
    if name.startswith("tls."):
        return f"option {name}: TLS is not supported yet"
    near = nearest(name, (*_FIELDS, *(spelling for spelling in _SPELLINGS.values())))
    hint = f"did you mean {near}?" if near else "options of your own start with x-"
    return f"there is no option {name!r}; {hint}"


def _check_use(name: str, use: Use, mode: str) -> None:
    uses: str = _FIELDS[name].metadata["uses"]
    if use[0] not in uses:
        fit = " and ".join(text for key, text in _USE_TEXT.items() if key[0] in uses)
        raise BadOption(f"option {name} is for {fit} and has no meaning in {_USE_TEXT[use]}")
    only = "broker" if "b" in uses else "store" if "p" in uses else mode
    if only != mode:
        raise BadOption(
            f"option {name} is for mode={only}, and the mode here is {mode}"
            + (" (option mode=store reads directories)" if only == "store" else "")
        )


def _check_combinations(options: Options, given: Mapping[str, str], use: Use) -> None:
    if options.mode == "store":
        if use == "write":
            raise BadOption("mode=store only reads: a store belongs to its broker; write with mode=broker")
        if options.path is None:
            raise BadOption("mode=store needs the directory of a store: .load(DIRECTORY), or option path")
    elif options.name_server is None and not options.brokers:
        raise BadOption(
            "option nameServer is missing: HOST:PORT of a name server (or brokers=NAME@HOST:PORT)"
        )
    if use == "write":
        if options.delivery == "exactly-once" and options.sink_id is None:
            raise BadOption(
                "delivery=exactly-once needs option sinkId, a name that stays the same over restarts"
            )
        if options.sink_id is not None and options.delivery != "exactly-once":
            raise BadOption(
                "option sinkId is for delivery=exactly-once, and without it rows are written at least once: "
                "give both, or leave sinkId out"
            )
        return
    chosen = [name for name in ("topic", "subscribePattern", "assign") if name in given]
    if len(chosen) > 1:
        raise BadOption(f"options {' and '.join(chosen)} exclude each other: give one")
    if not chosen and options.mode == "broker":
        raise BadOption("which topics? give one of the options topic, subscribePattern, assign")
    if "columns" in given and "preset" in given:
        raise BadOption("options columns and preset exclude each other: give one")
    if use == "read":
        _check_range(options)
    if options.commit_offsets and options.group_id is None:
        raise BadOption("commitOffsets=true needs option groupId, the group whose offsets are to be moved")


def _check_range(options: Options) -> None:
    start, end = options.starting_offsets, options.ending_offsets
    if start == LATEST or _holds(start, LATEST):
        raise BadOption(
            "option startingOffsets: a batch read cannot start at latest (-1), it would read nothing"
        )
    if end == EARLIEST or _holds(end, EARLIEST):
        raise BadOption(
            "option endingOffsets: a batch read cannot end at earliest (-2), it would read nothing"
        )
    since, until = options.starting_timestamp, options.ending_timestamp
    if since is not None and until is not None and until < since:
        raise BadOption("option endingTimestamp lies before startingTimestamp")


def _holds(offsets: Offsets | None, number: int) -> bool:
    return isinstance(offsets, Mapping) and any(
        number in queues.values() for brokers in offsets.values() for queues in brokers.values()
    )
