"""`ropewalk pipeline …`: jobs over stores and topics that run on Spark, from this machine to a cluster.

Every command parses, has one job of `ropewalk.spark.jobs` done, and prints its report: as tables, with `--json` as one
object, with `--html FILE` also as a page with plots. Exit codes: 0 fine, 1 there are findings, 2 wrong use, 3 it
failed, 4 data is lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk import __version__
from ropewalk.errors import RopewalkError
from tools.output import (
    INTERRUPTED,
    ProgressLine,
    UsageError,
    fail,
    note,
    parse_pairs,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from ropewalk.spark.jobs.report import Report
    from ropewalk.spark.jobs.tasks import SparkTasks

FAILED = 3
USAGE = 2
DATA_LOSS = 4
_EXTRA = ("pyspark", "pyarrow", "numpy", "py4j")

app = typer.Typer(
    name="pipeline",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Jobs over stores and topics, on Spark: from this machine (`local[*]`) to a cluster.",
)

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
Stores = Annotated[str, typer.Option("--store", metavar="DIR", help="A store's directory, on every worker.")]


@app.callback()
def pipeline() -> None:
    """Jobs over stores and topics, on Spark."""


@app.command()
def audit(
    store: Stores,
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
    html: Html = None,
    master: Master = "local[*]",
    conf: Conf = None,
    driver_memory: Memory = "1g",
    as_json: Json = False,
) -> None:
    """Compare copies of one log, record by record, and each with its own checksums, queues and index.

    Every fault is named with its file and place, with the copy that is damaged and the one that is right. Exit
    code 1 says that there are some.
    """
    with _expected(as_json):
        if crc not in ("body", "none"):
            raise UsageError(f"--crc {crc}: it is body or none")
        from ropewalk.spark.jobs.audit_job import AuditOptions
        from ropewalk.spark.jobs.audit_job import audit as run
        from ropewalk.spark.jobs.audit_report import audit_report, repair_table
        from ropewalk.spark.jobs.columns import DEFAULT_DELAYS
        from ropewalk.spark.jobs.repair import repair as mend

        options = AuditOptions(
            (store, *(replica or ())),
            crc == "body",
            start,
            stop or 1 << 62,
            delays=delay_levels or DEFAULT_DELAYS,
        )
        with _tasks("audit", master, conf, driver_memory) as tasks:
            found = run(tasks, options)
            report = audit_report(found)
            if repair is not None:
                report.tables.append(repair_table(found, mend(tasks, found, str(repair.absolute()))))
        _finish(report, as_json, html)


# -- around every job --------------------------------------------------------------------------------


@contextmanager
def _tasks(job: str, master: str, conf: Sequence[str] | None, driver_memory: str) -> Iterator[SparkTasks]:
    """A session and who does the pieces, with a progress line; the session is stopped if it was ours."""
    from pyspark.sql import SparkSession

    from ropewalk.spark.jobs.tasks import SparkTasks
    from ropewalk.spark.session import session

    settings = {
        "spark.app.name": f"ropewalk {job}",
        "spark.driver.memory": driver_memory,
        "spark.log.level": "ERROR",
    }
    settings |= parse_pairs(conf or (), "--conf")
    running = SparkSession.getActiveSession()
    with warnings.catch_warnings(), ProgressLine(job, None) as line:
        warnings.simplefilter("ignore")  # of Spark's own, about interpreters to come

        def progress(label: str, done: int, of: int) -> None:
            line.set_total(of)
            line.update(done, f"{label} {done}/{of}")

        line.update(0, "starting Spark")
        spark = running or session(master, **settings)
        try:
            yield SparkTasks(spark, progress)
        finally:
            if running is None:
                spark.stop()


@contextmanager
def _expected(as_json: bool) -> Iterator[None]:
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
            "from a checkout: pip install '.[spark]'",
            exit_code=FAILED,
            as_json=as_json,
        )
    except RopewalkError as exc:
        fail(str(exc), exit_code=FAILED, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _finish(report: Report, as_json: bool, html: Path | None) -> None:
    """Print a report and leave with its exit code."""
    if html is not None:
        from ropewalk.spark.jobs.page import render

        try:
            html.write_text(
                render(report, made_by=f"ropewalk {__version__}, ropewalk pipeline {report.job}"), "utf-8"
            )
        except OSError as exc:
            fail(f"cannot write {html}: {exc.strerror or exc}", exit_code=FAILED, as_json=as_json)
    if as_json:
        print_json(report.document())
    else:
        print(report.title)
        for table in report.tables:
            if table.rows:
                print(f"\n{table.title}")
                print_table(
                    table.columns, [tuple("" if cell is None else cell for cell in row) for row in table.rows]
                )
        if html is not None:
            note(f"wrote {html}")
    if report.exit_code:
        raise typer.Exit(report.exit_code)
