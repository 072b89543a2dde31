"""Run jobs over stores and topics on Spark, from this machine to a cluster: `ropewalk pipeline …`.

Every command parses, has one job of `ropewalk.spark.jobs` done, and prints its report: as tables, with `--json` as one
object, with `--html FILE` also as a page with plots. Exit codes: 0 fine, 1 there are findings, 2 wrong use, 3 it
failed, 4 data is lost.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tools.common.options import check_seconds
from tools.common.output import UsageError, note
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
    Store,
    Topics,
    Until,
    describe_source,
    exit_on_errors,
    finish,
    make_source,
    spark_tasks,
    times_of,
)
from tools.pipeline.inspect import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ropewalk.spark.jobs.common.report import Report
    from ropewalk.spark.jobs.export.job import ExportOptions
    from ropewalk.spark.jobs.export.sources import Source

app = typer.Typer(
    name="pipeline",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Jobs over stores and topics, on Spark: from this machine (`local[*]`) to a cluster.\n\n"
    "Exit codes: 0 fine, 1 the report has findings, 2 wrong use, 3 it failed, 4 data was gone before it was read.",
)


@app.callback()
def pipeline() -> None:
    """Run jobs over stores and topics, on Spark."""


@app.command()
def audit(
    store: Store,
    replica: Annotated[
        list[str] | None,
        typer.Option("--replica", metavar="DIR", help="Another copy of the same log; may be repeated."),
    ] = None,
    crc: Annotated[
        str, typer.Option("--crc", help="`body`: check every body's checksum; `none`: only compare.")
    ] = "body",
    start: Annotated[int, typer.Option("--from", min=0, help="Log offset to begin at.")] = 0,
    stop: Annotated[int | None, typer.Option("--to", min=1, help="Log offset to stop at.")] = None,
    delay_levels: Annotated[
        str | None, typer.Option("--delay-levels", help="The brokers' messageDelayLevel, if it was changed.")
    ] = None,
    repair: Annotated[
        Path | None,
        typer.Option(
            "--repair", metavar="DIR", help="Write a repaired copy of each damaged store below DIR."
        ),
    ] = None,
    digest: Annotated[
        Path | None,
        typer.Option(
            "--digest",
            metavar="FILE",
            help="Only write digests of the log's blocks, for a copy on another machine.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="Compare with digests that `--digest` wrote beside another copy.",
        ),
    ] = None,
    html: Html = None,
    master: Master = "local[*]",
    conf: Conf = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Compare copies of one log, record by record, and each with its own checksums, queues and index.

    Every fault is named with its file and place, with the copy that is damaged and the one that is right. Exit
    code 1 says that there are some.

    Copies on machines that do not see each other are compared by digests: which MiB of the log differ, and which copy
    ends early.

    Examples:

        ropewalk pipeline audit --store /mnt/a/store --replica /mnt/b/store
        ropewalk pipeline audit --store /var/lib/broker/store --digest a.json
        ropewalk pipeline audit --store /var/lib/broker/store --against a.json
    """
    with exit_on_errors(as_json):
        if crc not in ("body", "none"):
            raise UsageError(f"--crc {crc}: it is body or none")
        if digest is not None or against is not None:
            if (digest is not None and against is not None) or replica or repair is not None or start or stop:
                raise UsageError(
                    "--digest and --against go alone: each looks at all of one store, and compares no other"
                )
            finish(_digests(store, digest, against, master, conf, driver_memory), as_json, html)
            return
        if stop is not None and stop <= start:
            raise UsageError(f"--from {start} --to {stop}: nothing lies between them")
        seen = {os.path.realpath(store)}
        for other in replica or ():
            if os.path.realpath(other) in seen:
                raise UsageError(
                    f"--replica {other}: this directory was named before; it cannot differ from itself"
                )
            seen.add(os.path.realpath(other))
        from ropewalk.spark.jobs.audit.job import AuditOptions
        from ropewalk.spark.jobs.audit.job import audit as run
        from ropewalk.spark.jobs.audit.repair import repair as mend
        from ropewalk.spark.jobs.audit.report import audit_report, repair_table
        from ropewalk.spark.jobs.records.columns import DEFAULT_DELAYS

        options = AuditOptions(
            (store, *(replica or ())),
            crc == "body",
            start,
            stop or 1 << 62,
            delays=delay_levels or DEFAULT_DELAYS,
        )
        with spark_tasks("audit", master, conf, driver_memory) as tasks:
            found = run(tasks, options)
            report = audit_report(found)
            if repair is not None:
                report.tables.append(repair_table(found, mend(tasks, found, str(repair.absolute()))))
        finish(report, as_json, html)


@app.command()
def rebuild(
    store: Store,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="A new directory for what is rebuilt.")],
    what: Annotated[
        str, typer.Option("--what", help="consumequeue, index, or both with a comma.")
    ] = "consumequeue,index",
    topics: Topics = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with the store's own files; its broker must be stopped.")
    ] = False,
    index_slots: Annotated[
        int | None,
        typer.Option("--index-slots", min=1, help="maxHashSlotNum, if the store has no index to ask."),
    ] = None,
    index_items: Annotated[
        int | None, typer.Option("--index-items", min=2, help="maxIndexNum, likewise.")
    ] = None,
    delay_levels: Annotated[
        str | None, typer.Option("--delay-levels", help="The broker's messageDelayLevel, if it was changed.")
    ] = None,
    html: Html = None,
    master: Master = "local[*]",
    conf: Conf = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Write consume queues and key index anew from the log, byte by byte as the broker would.

    The store is only read. Exit code 1: the log has damage or holes, or (with `--verify`) the store's own files differ.
    """
    with exit_on_errors(as_json):
        from ropewalk.format.index import Geometry
        from ropewalk.spark.jobs.rebuild.job import RebuildOptions, rebuild_report
        from ropewalk.spark.jobs.rebuild.job import rebuild as run
        from ropewalk.spark.jobs.records.columns import DEFAULT_DELAYS

        if (index_slots is None) != (index_items is None):
            raise UsageError("--index-slots and --index-items go together")
        geometry = Geometry(index_slots, index_items) if index_slots and index_items else None
        options = RebuildOptions(
            os.path.abspath(store), os.path.abspath(out), tuple(what.split(",")), tuple(topics or ()), verify,
            delay_levels or DEFAULT_DELAYS, geometry,
        )  # fmt: skip
        with spark_tasks("rebuild", master, conf, driver_memory) as tasks:
            done = run(tasks, options)
        finish(rebuild_report(options, done), as_json, html)


@app.command()
def export(
    lake: Annotated[
        str, typer.Option("--lake", metavar="DIR", help="The lake's directory, on every worker.")
    ],
    store: MaybeStore = None,
    name_server: NameServer = None,
    topics: Topics = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="`catchup`: what there is now; `stream`: go on until Ctrl-C; `range`: a fixed part.",
        ),
    ] = "catchup",
    since: Since = None,
    until: Until = None,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Columns, with commas between them.")
    ] = None,
    preset: Annotated[str, typer.Option("--preset", help="Or a set of them: default, full, kafka.")] = "full",
    partition_by: Annotated[
        str, typer.Option("--partition-by", help="Directories by `dt`, or by `dt,hour`.")
    ] = "dt",
    codec: Annotated[str, typer.Option("--codec", help="zstd, snappy, gzip, lz4 or none.")] = "zstd",
    max_per_trigger: Annotated[
        int | None, typer.Option("--max-per-trigger", min=1, help="Messages in one batch, about.")
    ] = None,
    target_file_bytes: Annotated[
        str,
        typer.Option(
            "--target-file-bytes", help="How much of the log goes into one task, and so into a file."
        ),
    ] = "128m",
    interval: Annotated[
        float,
        typer.Option(
            "--interval", min=0.1, callback=check_seconds, help="With stream: seconds between two looks."
        ),
    ] = 5.0,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="`direct`: tasks write the files; `spark`: Spark's file sink does, for readers that go by its "
            "`_spark_metadata`.",
        ),
    ] = "direct",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="DIR", help="With --engine spark: its checkpoint; else below the lake."
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Read nothing new: merge small files of the lake to --target-file-bytes.",
        ),
    ] = False,
    broker_name: BrokerName = None,
    on_corrupt: OnCorrupt = "fail",
    on_data_loss: OnDataLoss = "fail",
    html: Html = None,
    master: Master = "local[*]",
    conf: Conf = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Write a store, or live topics, into a lake of Parquet files: every row once, whatever dies in between.

    Run it again to add what has come since; after a crash it first completes the batch that was begun. The manifest
    under DIR/_ropewalk says which files count. `--mode range` needs --since or --until.

    Examples:

        ropewalk pipeline export --store /var/lib/broker/store --lake /data/lake
        ropewalk pipeline export -n localhost:9876 -t orders --lake /data/lake --mode stream
        ropewalk pipeline export --lake /data/lake --compact --target-file-bytes 256m
    """
    with exit_on_errors(as_json):
        if merge:
            if store or name_server or topics or since or until or mode != "catchup":
                raise UsageError("--compact goes alone: it merges files that --lake has, and reads no source")
            finish(_compacted(lake, target_file_bytes, codec, master, conf, driver_memory), as_json, html)
            return
        from ropewalk.spark.jobs.export.job import ExportOptions, export_report
        from ropewalk.spark.jobs.export.job import export as run

        if mode not in ("catchup", "stream", "range"):
            raise UsageError(f"--mode {mode}: it is catchup, stream or range")
        if mode == "range" and not (since or until):
            raise UsageError("--mode range needs --since, --until, or both")
        if until and mode != "range":
            raise UsageError(
                f"--until goes with --mode range: with {mode}, there is no telling when it is reached"
            )
        names = [name.strip() for name in columns.split(",")] if columns else []
        source = make_source(
            store, name_server, topics, names, preset=preset, since=since, until=until, broker_name=broker_name,
            on_corrupt=on_corrupt, on_data_loss=on_data_loss, range_bytes=target_file_bytes, fixed=mode == "range",
        )  # fmt: skip
        options = ExportOptions(os.path.abspath(lake), codec, tuple(partition_by.split(",")), max_per_trigger)
        if engine not in ("direct", "spark"):
            raise UsageError(f"--engine {engine}: it is direct or spark")
        if checkpoint is not None and engine != "spark":
            raise UsageError(
                "--checkpoint goes with --engine spark: the direct engine keeps its place in the lake"
            )
        if engine == "spark" and mode == "range":
            raise UsageError("--engine spark goes on from a checkpoint: there is catchup and stream")

        def wait() -> bool:
            if mode == "stream":
                time.sleep(interval)
            return mode == "stream"

        def on_batch(batch: int, rows: int) -> None:
            if mode == "stream":
                note(f"batch {batch}: {rows} rows")

        if engine == "spark":
            every = interval if mode == "stream" else None
            report = _by_sink(source, options, checkpoint, every, on_batch, (master, conf, driver_memory))
            finish(report, as_json, html)
            return
        with spark_tasks("export", master, conf, driver_memory) as tasks:
            done = run(tasks, source, options, wait=wait, on_batch=on_batch)
        finish(export_report(options, done), as_json, html)


@app.command()
def replay(
    to_topic: Annotated[str, typer.Option("--to-topic", metavar="TOPIC", help="Where the messages go.")],
    to_name_server: Annotated[
        str, typer.Option("--to-name-server", metavar="HOST:PORT", help="Of the cluster they go to.")
    ],
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="topic|lake|store",
            help="What is read; else told by which of --name-server, --lake and --store there is.",
        ),
    ] = None,
    store: MaybeStore = None,
    name_server: NameServer = None,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="DIR", help="Read a lake that an export has written.")
    ] = None,
    topics: Topics = None,
    since: Since = None,
    until: Until = None,
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal", metavar="FILE", help="Note progress here, so that the next run goes on from it."
        ),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, help="Messages per second, over all tasks.")
    ] = None,
    keep_queues: Annotated[
        bool, typer.Option("--keep-queues", help="Keep messages of one queue in one queue, in their order.")
    ] = False,
    preserve_time: Annotated[
        bool,
        typer.Option(
            "--preserve-time",
            help="Copies say that they were made when the original was; when they are stored is the broker's to say.",
        ),
    ] = False,
    key_filter: Annotated[
        str | None,
        typer.Option(
            "--key-filter",
            metavar="SQL",
            help="Only messages for which this holds: a condition of Spark's SQL over topic, brokerName, queueId, "
            "queueOffset, tags, keys, body, properties, flag, bornTimestamp and storeTimestamp.",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("--max-per-batch", min=1, help="Messages between two notes in the journal, about.")
    ] = 100_000,
    on_corrupt: OnCorrupt = "fail",
    on_data_loss: OnDataLoss = "fail",
    html: Html = None,
    master: Master = "local[*]",
    conf: Conf = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Send messages of a store, of live topics or of a lake to a topic again, at least once.

    Each carries where it came from: property `RW_ORIGIN`, broker/topic/queue/offset. With `--journal`, a run that was
    stopped is gone on with, and repeats at most the batch it was at.

    Examples:

        ropewalk pipeline replay --from lake --lake /data/lake -t orders --since 2026-01-31 \\
            --to-topic orders-again --to-name-server localhost:9876 --journal replay.json

        ropewalk pipeline replay -n localhost:9876 -t orders --to-topic orders-eu --to-name-server localhost:9876 \\
            --key-filter "keys LIKE 'order-1%' AND properties['region'] = 'eu'"
    """
    with exit_on_errors(as_json):
        from ropewalk.spark.jobs.export.lake_source import LakeSource
        from ropewalk.spark.jobs.replay.job import ReplayOptions, replay_report
        from ropewalk.spark.jobs.replay.job import replay as run

        options = ReplayOptions(
            to_name_server, to_topic, os.path.abspath(journal) if journal else None, rate, keep_queues, batch,
            preserve_time, key_filter,
        )  # fmt: skip
        _check_origin(origin, {"topic": name_server, "lake": lake, "store": store})
        source: Source
        if lake is not None and on_data_loss != "fail":
            raise UsageError("--on-data-loss goes with --name-server: a lake has lost nothing that it had")
        if lake is not None:
            source = LakeSource(
                os.path.abspath(lake), tuple(topics or ()), *times_of(since, until), options.columns
            )
        else:
            source = make_source(
                store, name_server, topics, options.columns, since=since, until=until, on_corrupt=on_corrupt,
                on_data_loss=on_data_loss,
                range_bytes="32m", fixed=until is not None,
            )  # fmt: skip
        with spark_tasks("replay", master, conf, driver_memory) as tasks:
            done = run(tasks, source, options)
        finish(replay_report(describe_source(source), options, done), as_json, html)


for _look in COMMANDS:
    app.command()(_look)


def _check_origin(kind: str | None, places: dict[str, str | None]) -> None:
    """That a replay has one place to read, and of the kind that was said."""
    options = {"topic": "--name-server HOST:PORT", "lake": "--lake DIR", "store": "--store DIR"}
    if kind is not None and kind not in options:
        raise UsageError(f"--from {kind}: it is topic, lake or store")
    found = [name for name, place in places.items() if place is not None]
    if kind is None and len(found) != 1:
        raise UsageError(f"say where to read: one of {', '.join(options.values())}")
    if kind is not None and found != [kind]:
        others = " and ".join(options[name].split()[0] for name in found if name != kind)
        raise UsageError(f"--from {kind} reads {options[kind]}" + (f", and not {others}" if others else ""))


def _by_sink(
    source: Any,
    options: ExportOptions,
    checkpoint: str | None,
    interval: float | None,
    on_batch: Callable[[int, int], None],
    where: tuple[str, list[str] | None, str],
) -> Report:
    """Have Spark's own sink write a lake."""
    from ropewalk.spark.jobs.export.file_sink import SinkOptions, export_by_sink, sink_report

    options.check()
    lake = options.lake
    note(
        "--engine spark: rows are there once for Spark's reader, which goes by _spark_metadata; others may see files "
        "that a run left behind when it was killed"
    )
    place = os.path.abspath(checkpoint) if checkpoint else os.path.join(lake, "_checkpoint")
    wanted = SinkOptions(lake, place, options.codec, options.partition_by, options.max_per_batch, interval)
    with spark_tasks("export", *where) as tasks:
        return sink_report(wanted, export_by_sink(tasks, source, wanted, on_batch=on_batch))


def _compacted(
    lake: str, target: str, codec: str, master: str, conf: list[str] | None, memory: str
) -> Report:
    """Merge small files of a lake."""
    from ropewalk.spark.jobs.export.compact import compact, compact_report
    from ropewalk.spark.jobs.export.job import ExportOptions
    from ropewalk.spark.options import parse_options

    path = os.path.abspath(lake)
    ExportOptions(path, codec).check()
    size = parse_options({"mode": "store", "path": "-", "splitBytes": target}, "read").split_bytes
    with spark_tasks("export", master, conf, memory) as tasks:
        return compact_report(path, compact(tasks, path, target_bytes=size, codec=codec))


def _digests(
    store: str, digest: Path | None, against: Path | None, master: str, conf: list[str] | None, memory: str
) -> Report:
    """Write digests of a store, or compare it with those of another."""
    from ropewalk.spark.jobs.audit import digest as digests
    from ropewalk.spark.jobs.common.files import write_file

    other = None
    if against is not None:
        try:
            other = digests.Digests.decode(against.read_bytes(), str(against))
        except OSError as exc:
            raise digests.BadDigests(f"cannot read {against}: {exc.strerror}") from exc
    with spark_tasks("audit", master, conf, memory) as tasks:
        if other is not None:
            return digests.comparison_report(digests.compare_digests(tasks, os.path.abspath(store), other))
        assert digest is not None, "one of both was asked for"
        made = digests.compute_digests(tasks, os.path.abspath(store))
        data = made.encode()
        write_file(digest, [(0, data)], len(data))
        return digests.digests_report(made, str(digest))
