"""Shared parts of every `ropewalk pipeline` job: a Spark session, a progress line, the source of rows, the report."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk import __version__
from ropewalk.errors import RopewalkError
from tools.common.output import (
    INTERRUPTED,
    ProgressLine,
    UsageError,
    fail,
    note,
    parse_pairs,
    print_json,
    print_line,
    print_table,
)

if TYPE_CHECKING:
    from ropewalk.spark.jobs.common.report import Report
    from ropewalk.spark.jobs.common.tasks import SparkTasks, Tasks
    from ropewalk.spark.jobs.export.sources import LiveSource, Source, StoreSource

FAILED = 3
USAGE = 2
DATA_LOSS = 4
_EXTRA = ("pyspark", "pyarrow", "numpy", "py4j")
_USAGE_ERRORS = (
    "BadOption",
    "SchemaMismatch",
    "BadExport",
    "BadSinkExport",
    "BadStats",
    "BadDelayLevels",
    "BadReplay",
    "BadCondition",
    "BadGroup",
    "LakeMismatch",
    "BadDigests",
    "JournalMismatch",
)


_SPOKEN = {
    r"(?:option )?startingTimestamp": "--since",
    r"(?:option )?endingTimestamp": "--until",
    r"(?:option )?splitBytes": "--target-file-bytes",
    r"(?:option )?nameServer": "--name-server",
    r"option path": "--store",
    r"onCorrupt=skip": "--on-corrupt skip",
    r"failOnDataLoss=false": "--on-data-loss skip",
}
"""The words of commands for options of the data source. Advice that names another option is left out."""
_COLUMNS = {"brokerName"}
"""Options that a column has its name from."""
_PLAIN = ("assign", "brokers", "topic", "vip")
"""Options whose names are words of the language too: a text means one of them if it says so."""


class NoSession(RopewalkError):
    """A Spark session that could not be started."""


Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Where Spark runs: `local[4]`, `spark://host:7077`, `yarn` …"
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated."),
]
Memory = Annotated[
    str,
    typer.Option("--driver-memory", metavar="SIZE", help="Heap of the JVM that runs beside this command."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write the report as a page with plots, in one file."),
]
Store = Annotated[str, typer.Option("--store", metavar="DIR", help="A store's directory, on every worker.")]
MaybeStore = Annotated[
    str | None, typer.Option("--store", metavar="DIR", help="Read a store's directory, on every worker.")
]
NameServer = Annotated[
    str | None,
    typer.Option(
        "--name-server", "-n", metavar="HOST:PORT[;HOST:PORT]", help="Read live topics of these brokers."
    ),
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Stored at or after: ISO 8601 (UTC unless it says), or ms."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Stored before.")]
OnCorrupt = Annotated[
    str, typer.Option("--on-corrupt", help="Damaged messages: `fail`, or `skip` and leave them out.")
]
OnDataLoss = Annotated[
    str,
    typer.Option(
        "--on-data-loss",
        help="Messages of live topics that were removed before they were read: `fail`, or `skip` and go on.",
    ),
]
BrokerName = Annotated[
    str | None,
    typer.Option(
        "--broker-name",
        help="The store's broker; else as the store tells, or its directory.",
    ),
]


def make_source(
    store: str | None,
    name_server: str | None,
    topics: Sequence[str] | None,
    columns: Sequence[str],
    *,
    preset: str = "default",
    since: str | None = None,
    until: str | None = None,
    broker_name: str | None = None,
    on_corrupt: str = "fail",
    on_data_loss: str = "fail",
    range_bytes: str | None = None,
    check_crc: bool = True,
    fixed: bool = True,
) -> StoreSource | LiveSource:
    """Make the source of rows: one of a store and live topics. `range_bytes` is how much one task reads."""
    from ropewalk.spark.jobs.export.sources import LiveSource, StoreSource, default_broker_name, selection_for
    from ropewalk.spark.options import parse_options

    if (store is None) == (name_server is None):
        raise UsageError("say where to read: --store DIR or --name-server HOST:PORT, and not both")
    selection = selection_for(tuple(columns), preset)
    times = {"startingTimestamp": utc_of(since), "endingTimestamp": utc_of(until)}
    given = {name: value for name, value in times.items() if value is not None}
    for option, word in (("--on-corrupt", on_corrupt), ("--on-data-loss", on_data_loss)):
        if word not in ("fail", "skip"):
            raise UsageError(f"{option} {word}: it is fail or skip")
    if store is not None:
        if on_data_loss != "fail":
            raise UsageError("--on-data-loss goes with --name-server: a store has lost what its files lack")
        options = parse_options(
            {"mode": "store", "path": store, "onCorrupt": on_corrupt, **given}
            | ({"splitBytes": range_bytes} if range_bytes else {}),
            "read",
        )
        path = os.path.abspath(store)
        return StoreSource(
            path, tuple(topics or ()), selection, broker_name or default_broker_name(path), on_corrupt,
            options.starting_timestamp, options.ending_timestamp, options.split_bytes, check_crc,
        )  # fmt: skip
    if not topics:
        raise UsageError("say which topics: --topic TOPIC, as often as needed")
    raw = {"nameServer": str(name_server), "topic": ",".join(topics), "onCorrupt": on_corrupt, **given}
    if on_data_loss == "skip":
        raw["failOnDataLoss"] = "false"
    parse_options(raw, "read")
    # A message takes about a kilobyte, for want of better knowledge.
    size = parse_options(
        {"mode": "store", "path": "-", "splitBytes": range_bytes or "256m"}, "read"
    ).split_bytes
    return LiveSource(raw, selection, fixed, max(size >> 10, 1000))


def utc_of(text: str | None) -> str | None:
    """Return a time with its zone: UTC where none is given, as the help of `--since` says."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return text  # milliseconds, or nothing that options know
    return text if moment.tzinfo is not None else moment.replace(tzinfo=UTC).isoformat()


def times_of(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Parse times as the data source's options are parsed, in ms."""
    from ropewalk.spark.options import parse_options

    given = {"startingTimestamp": utc_of(since), "endingTimestamp": utc_of(until)}
    options = parse_options(
        {"mode": "store", "path": "-", **{name: value for name, value in given.items() if value is not None}},
        "read",
    )
    return options.starting_timestamp, options.ending_timestamp


def describe_source(source: Source) -> str:
    """Describe a source in a few words."""
    from ropewalk.spark.jobs.export.sources import LiveSource

    if isinstance(source, LiveSource):
        return f"{source.options['topic']} at {source.options['nameServer']}"
    return str(source.path)  # type: ignore[attr-defined] # a store or a lake


@contextmanager
def spark_tasks(
    job: str, master: str, conf: Sequence[str] | None, driver_memory: str
) -> Iterator[SparkTasks]:
    """Yield a runner on a Spark session, with a progress line; the session is stopped if it was ours."""
    from pyspark.sql import SparkSession

    from ropewalk.spark.jobs.common.tasks import SparkTasks, error_text
    from ropewalk.spark.quiet import quiet_jvm
    from ropewalk.spark.spark_session import session

    settings = {"spark.app.name": f"ropewalk {job}", "spark.driver.memory": driver_memory}
    settings |= parse_pairs(conf or (), "--conf")
    running = SparkSession.getActiveSession()
    quiet = nullcontext(settings) if running is not None else quiet_jvm(settings)
    with warnings.catch_warnings(), ProgressLine(job, None) as line, quiet as settings:
        warnings.simplefilter("ignore")  # of Spark's own, about interpreters to come

        def progress(label: str, done: int, of: int) -> None:
            line.set_total(of)
            line.update(done, f"{label} {done}/{of}")

        line.update(0, "starting Spark")
        try:
            spark = running or session(master, **settings)
        except RopewalkError:
            raise
        except Exception as exc:
            raise NoSession(f"Spark did not start at --master {master}: {error_text(exc)}") from exc
        try:
            yield SparkTasks(spark, progress)
        finally:
            if running is None:
                spark.stop()


@contextmanager
def exit_on_errors(as_json: bool) -> Iterator[None]:
    """Turn the errors a user can meet into sentences and exit codes."""
    try:
        yield
    except UsageError as exc:
        fail(str(exc), exit_code=USAGE, as_json=as_json)
    except ModuleNotFoundError as exc:
        if (exc.name or "").split(".")[0] not in _EXTRA:
            raise
        fail(
            f"`ropewalk pipeline` needs {exc.name}, which is not installed",
            "in a checkout: pip install -e '.[spark]'",
            exit_code=FAILED,
            as_json=as_json,
        )
    except RopewalkError as exc:
        kind = getattr(exc, "kind", "") or type(exc).__name__
        code = USAGE if kind in _USAGE_ERRORS else DATA_LOSS if kind == "DataLoss" else FAILED
        fail(with_cli_names(str(exc)), exit_code=code, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def with_cli_names(text: str) -> str:
    """Return an error of the data source as a command's user would say it.

    A clause that advises an option which no command has is left out.
    """
    from ropewalk.spark.options import option_names

    for option, word in _SPOKEN.items():
        text = re.sub(rf"\b{option}\b", word, text)
    foreign = re.compile(rf"\b(?:options? (?:{'|'.join(_PLAIN)})|{'|'.join(_foreign(option_names()))})\b")
    text = re.sub(r" \([^()]*\)", lambda found: "" if foreign.search(found[0]) else found[0], text)
    if not foreign.search(text):
        return text
    clauses = re.split(r"((?:[.;:,]) |$)", text)
    kept = [
        (clause, end)
        for clause, end in zip(clauses[::2], clauses[1::2], strict=False)
        if not foreign.search(clause)
    ]
    return "".join(clause + end for clause, end in kept).rstrip(" .;:,") or text


def _foreign(names: Iterable[str]) -> list[str]:
    """Return the names of options that are nothing else, so that a text with one of them means the option."""
    return sorted(
        {*(name for name in names if re.search(r"[a-z][A-Z]", name)), "checkpointLocation"} - _COLUMNS
    )


def finish(report: Report, as_json: bool, html: Path | None) -> None:
    """Print a report and leave with its exit code."""
    if html is not None:
        from ropewalk.spark.jobs.common.page import render

        try:
            html.write_text(
                render(report, made_by=f"ropewalk {__version__}, ropewalk pipeline {report.job}"), "utf-8"
            )
        except OSError as exc:
            fail(f"cannot write {html}: {exc.strerror or exc}", exit_code=FAILED, as_json=as_json)
    if as_json:
        print_json(report.document())
    else:
        print_line(report.title)
        for table in report.tables:
            if table.rows:
                print_line(f"\n{table.title}")
                print_table(
                    table.columns, [tuple("" if cell is None else cell for cell in row) for row in table.rows]
                )
        if html is not None:
            note(f"wrote {html}")
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def local_tasks(master: str | None) -> Tasks | None:
    """Return a runner in this process for small jobs, unless a cluster was named."""
    from ropewalk.spark.jobs.common.tasks import LocalTasks

    return LocalTasks() if master is None else None
