"""Run the jobs of `ropewalk pipeline` that write nothing: stats, latency, tail, offsets and schema.

`tools.pipeline.cli` has the rest of the family, and puts these into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tools.common.output import UsageError
from tools.pipeline.base import (
    BrokerName,
    Conf,
    Html,
    Json,
    Master,
    MaybeStore,
    Memory,
    NameServer,
    OnCorrupt,
    OnDataLoss,
    Since,
    Topics,
    Until,
    describe_source,
    exit_on_errors,
    finish,
    local_tasks,
    make_source,
    spark_tasks,
    utc_of,
)

if TYPE_CHECKING:
    from ropewalk.spark.jobs.common.report import Report
    from ropewalk.spark.jobs.export.sources import LiveSource, StoreSource

__all__ = ["COMMANDS"]

NearMaster = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Look from a worker of this cluster; without it, from here."
    ),
]


def stats(
    store: MaybeStore = None,
    name_server: NameServer = None,
    topics: Topics = None,
    by: Annotated[str, typer.Option("--by", help="Any of topic, queue, minute, hour, day.")] = "topic",
    top_keys: Annotated[int, typer.Option("--top-keys", min=0, help="Also the commonest keys.")] = 0,
    since: Since = None,
    until: Until = None,
    broker_name: BrokerName = None,
    on_corrupt: OnCorrupt = "fail",
    on_data_loss: OnDataLoss = "fail",
    html: Html = None,
    master: Master = "local[*]",
    conf: Conf = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Count messages, bytes, sizes, tags and keys; find missing numbers and unique keys that come twice.

    Quantiles are at most 3 % too low. Exit code 1: numbers are missing, or unique keys come twice.
    """
    with exit_on_errors(as_json):
        from ropewalk.spark.jobs.stats.job import COLUMNS, stats_report
        from ropewalk.spark.jobs.stats.job import stats as run

        source = make_source(
            store, name_server, topics, COLUMNS, since=since, until=until, broker_name=broker_name,
            on_corrupt=on_corrupt, on_data_loss=on_data_loss, range_bytes="64m", check_crc=False,
        )  # fmt: skip
        groups = tuple(name for name in by.split(",") if name)
        with spark_tasks("stats", master, conf, driver_memory) as tasks:
            done = run(tasks, source, by=groups, top_keys=top_keys)
        finish(stats_report(describe_source(source), done, groups), as_json, html)


def latency(
    store: MaybeStore = None,
    name_server: NameServer = None,
    topics: Topics = None,
    window: Annotated[str, typer.Option("--window", help="How long a window is: 10s, 1m, 1h …")] = "1m",
    quantiles: Annotated[
        str, typer.Option("--quantiles", help="Shares, with commas between them.")
    ] = ".5,.99,.999",
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Measure from the store to this consumer group instead, by watching its offsets.",
        ),
    ] = None,
    watch: Annotated[
        str, typer.Option("--watch", help="With --group: for how long it is watched: 30s, 5m …")
    ] = "30s",
    trace_topic: Annotated[
        str | None,
        typer.Option(
            "--trace-topic",
            metavar="TOPIC",
            help="With --group: do not watch, take the times from what its consumers traced to this topic, which "
            "mostly is RMQ_SYS_TRACE_TOPIC.",
        ),
    ] = None,
    limit_ms: Annotated[
        int | None,
        typer.Option("--limit-ms", min=0, help="A finding if the highest quantile of a topic is above this."),
    ] = None,
    since: Since = None,
    until: Until = None,
    broker_name: BrokerName = None,
    on_corrupt: OnCorrupt = "fail",
    on_data_loss: OnDataLoss = "fail",
    html: Html = None,
    master: Master = "local[*]",
    conf: Conf = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Measure how long messages took from their producer into the store, by topic and window.

    Messages that were stored before they were made show that two clocks disagree: they are counted apart. Exit code
    1: a topic is above `--limit-ms`.

    With `--group`, how long messages lay in live topics before the group had consumed them, as exactly as it commits
    its offsets (RocketMQ's clients do every 5 seconds), and what waits for it at the end. With `--trace-topic` as well,
    how long they lay there before its consumers first began on them, of a store or of live topics, by what they traced.

    Examples:

        ropewalk pipeline latency --store /var/lib/broker/store --window 10s
        ropewalk pipeline latency -n localhost:9876 -t orders --group billing --watch 2m --limit-ms 10000
    """
    with exit_on_errors(as_json):
        from ropewalk.spark.jobs.common.report import Table
        from ropewalk.spark.jobs.export.sources import LiveSource
        from ropewalk.spark.jobs.latency.group import COLUMNS as GROUP_COLUMNS
        from ropewalk.spark.jobs.latency.group import group_latency, waiting_rows
        from ropewalk.spark.jobs.latency.job import COLUMNS, latency_report
        from ropewalk.spark.jobs.latency.job import latency as run

        shares = _shares(quantiles)
        if trace_topic is not None:
            if group is None:
                raise UsageError(
                    "--trace-topic goes with --group GROUP: the traces of one group are looked at"
                )
            where = (broker_name, on_corrupt, on_data_loss, master, conf, driver_memory)
            report = _by_traces(
                (store, name_server, topics, since, until),
                trace_topic,
                group,
                window,
                shares,
                limit_ms,
                where,
            )
            finish(report, as_json, html)
            return
        window_ms = _duration_ms(window)
        if group is not None:
            if store is not None or since is not None or until is not None:
                raise UsageError(
                    "--group watches live topics from now on: give --name-server, no --store and no time"
                )
            live = make_source(
                None,
                name_server,
                topics,
                GROUP_COLUMNS,
                on_corrupt=on_corrupt,
                on_data_loss=on_data_loss,
                fixed=False,
            )
            assert isinstance(live, LiveSource), "no store was named"
            watch_ms = _duration_ms(watch, "--watch")
            with spark_tasks("latency", master, conf, driver_memory) as tasks:
                consumed, watched = group_latency(
                    tasks, live, group, watch_s=watch_ms / 1000, interval_s=min(1.0, watch_ms / 10_000),
                    window_ms=window_ms,
                )  # fmt: skip
            waits = Table(
                "waiting", ("topic", "broker", "queue", "messages", "oldest ms"), waiting_rows(watched)
            )
            way = f"from store to group {group}"
            finish(
                latency_report(
                    describe_source(live),
                    consumed,
                    shares,
                    limit_ms,
                    window_ms=window_ms,
                    way=way,
                    more=[waits],
                ),
                as_json,
                html,
            )
            return
        source = make_source(
            store, name_server, topics, COLUMNS, since=since, until=until, broker_name=broker_name,
            on_corrupt=on_corrupt, on_data_loss=on_data_loss, range_bytes="64m", check_crc=False,
        )  # fmt: skip
        with spark_tasks("latency", master, conf, driver_memory) as tasks:
            found = run(tasks, source, window_ms=window_ms)
        finish(
            latency_report(describe_source(source), found, shares, limit_ms, window_ms=window_ms),
            as_json,
            html,
        )


def _by_traces(
    what: tuple[str | None, str | None, list[str] | None, str | None, str | None],
    trace_topic: str,
    group: str,
    window: str,
    shares: tuple[float, ...],
    limit_ms: int | None,
    where: tuple[str | None, str, str, str, list[str] | None, str],
) -> Report:
    """Measure a group by what its consumers traced."""
    from ropewalk.spark.jobs.common.report import Table
    from ropewalk.spark.jobs.latency.job import latency_report
    from ropewalk.spark.jobs.latency.trace import MESSAGE_COLUMNS, TRACE_COLUMNS, trace_latency

    store, name_server, topics, since, until = what
    broker_name, on_corrupt, on_data_loss, master, conf, memory = where
    window_ms = _duration_ms(window)

    def source(
        names: list[str] | None, columns: tuple[str, ...], end: str | None
    ) -> StoreSource | LiveSource:
        return make_source(
            store, name_server, names, columns, since=since, until=end, broker_name=broker_name,
            on_corrupt=on_corrupt, on_data_loss=on_data_loss, range_bytes="64m", check_crc=False,
        )  # fmt: skip

    # What is traced of a message comes later than the message.
    messages, traces = source(topics, MESSAGE_COLUMNS, until), source([trace_topic], TRACE_COLUMNS, None)
    with spark_tasks("latency", master, conf, memory) as tasks:
        found, traced = trace_latency(tasks, messages, traces, group, window_ms=window_ms)
    counts = Table(
        "traces",
        ("messages", "begun", "without a trace", "traced, not read"),
        [(traced.messages, traced.begun, traced.messages - traced.begun, traced.others)],
    )
    way = f"from store to consumers of {group}, by their traces"
    return latency_report(
        describe_source(messages), found, shares, limit_ms, window_ms=window_ms, way=way, more=[counts]
    )


def tail(
    store: MaybeStore = None,
    name_server: NameServer = None,
    topics: Topics = None,
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="How many.")] = 20,
    on_corrupt: OnCorrupt = "fail",
    on_data_loss: OnDataLoss = "fail",
    master: NearMaster = None,
    conf: Conf = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Print the newest messages of a store or of live topics."""
    with exit_on_errors(as_json):
        from ropewalk.spark.jobs.inspect import TAIL_COLUMNS, newest, tail_report

        source = make_source(
            store,
            name_server,
            topics,
            TAIL_COLUMNS,
            on_corrupt=on_corrupt,
            on_data_loss=on_data_loss,
            range_bytes="16m",
        )
        near = local_tasks(master)
        if near is not None:
            rows = newest(near, source, count)
        else:
            with spark_tasks("tail", master or "", conf, driver_memory) as tasks:
                rows = newest(tasks, source, count)
        finish(tail_report(describe_source(source), rows), as_json, None)


def offsets(
    store: MaybeStore = None,
    name_server: NameServer = None,
    topics: Topics = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Also the offset at which each queue has this time."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="Where a Spark query over live topics stands."),
    ] = None,
    lake: Annotated[str | None, typer.Option("--lake", metavar="DIR", help="Where an export stands.")] = None,
    as_json: Json = False,
) -> None:
    """Print where queues begin and end, which offset a time has, or where a checkpoint or a lake stands."""
    with exit_on_errors(as_json):
        from ropewalk.spark.jobs import inspect as jobs
        from ropewalk.spark.options import BadOption, parse_options

        if sum(each is not None for each in (store, name_server, checkpoint, lake)) != 1:
            raise UsageError("say what to look at: one of --store, --name-server, --checkpoint and --lake")
        at_ms = None
        if at is not None:
            option = {"mode": "store", "path": "-", "startingTimestamp": str(utc_of(at))}
            try:
                at_ms = parse_options(option, "read").starting_timestamp
            except BadOption as exc:
                raise UsageError(str(exc).replace("option startingTimestamp ", "--at ")) from None
        rows: list[tuple[Any, ...]]
        if checkpoint is not None:
            rows, what = jobs.checkpoint_offsets(checkpoint), checkpoint
        elif lake is not None:
            rows, what = jobs.lake_offsets(lake), lake
        elif store is not None:
            rows, what = jobs.store_offsets((store, tuple(topics or ()), at_ms)), store
        else:
            source = make_source(None, name_server, topics, jobs.TAIL_COLUMNS)
            rows, what = jobs.live_offsets(source, at_ms), describe_source(source)  # type: ignore[arg-type] # no store was named
        finish(jobs.offsets_report(what, rows, at), as_json, None)


def schema(as_json: Json = False) -> None:
    """Print the columns that a read can have, their types, and the presets they are in."""
    with exit_on_errors(as_json):
        from ropewalk.spark.jobs.inspect import schema_report

        finish(schema_report(), as_json, None)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(sorted(float(word) for word in text.split(",")))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share <= 1 for share in shares):
        raise UsageError(f"--quantiles {text}: shares between 0 and 1, as in .5,.99")
    return shares


def _duration_ms(text: str, option: str = "--window") -> int:
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    number = text.rstrip("smhd")
    unit = text[len(number) :]
    if not number.isdigit() or unit not in units or int(number) == 0:
        raise UsageError(f"{option} {text}: a number and ms, s, m, h or d, as in 1m")
    return int(number) * units[unit]


COMMANDS = (stats, latency, tail, offsets, schema)
"""In the order of the help."""
