"""`ropewalk drill list | run`: parse, run, print.

Exit status 0 means a clean verdict; 1 a broken promise; 2 that there is no verdict, because the drill could not be
carried out or its fault never took effect; 130 that it was stopped by Ctrl-C.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import trio
import typer

from ropewalk.client.core.addresses import parse_address
from tools.admin.base import confirm
from tools.common.options import check_seconds
from tools.common.output import (
    FAILED,
    INTERRUPTED,
    OK,
    USAGE,
    ProgressLine,
    UsageError,
    counted,
    expected_errors,
    note,
    parse_pairs,
    print_json,
    print_line,
    print_table,
    report_error,
)
from tools.drill.drills import ALL_DRILLS, MODES, Drill, drills_of
from tools.drill.outcome import Result
from tools.drill.report import html as report_html
from tools.drill.report import text as report_text
from tools.drill.run import run_drill, run_live_drill
from tools.drill.stage import Options, Progress
from tools.drill.testbed.group import CannotRun

ALL = "all"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Break a cluster on purpose, under load, and read what it cost.",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, one document for each drill.")]


@app.command("list")
def list_drills(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show every drill: its name, what it does, and how many brokers it starts."""
    if as_json:
        rows = [
            {
                "name": d.name,
                "title": d.title,
                "expects": d.expects,
                "members": d.members,
                "live": d.live,
                "mode": d.mode,
            }
            for d in ALL_DRILLS
        ]
        print_json({"drills": rows})
        return
    table = [(d.name, d.mode, d.members, d.title) for d in ALL_DRILLS]
    print_table(("drill", "mode", "brokers", "what is done"), table)


@app.command()
def run(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="Drills to run, one after the other, or `all`.",
            autocompletion=lambda: [*(drill.name for drill in ALL_DRILLS), "all"],
        ),
    ],
    mode: Annotated[
        str,
        typer.Option(
            help="How the group finds its master: by an order (master-slave) or an election (dledger)."
        ),
    ] = MODES[0],
    seconds: Annotated[
        float, typer.Option(min=1.0, callback=check_seconds, help="How long the load lasts.")
    ] = 12.0,
    rate: Annotated[float, typer.Option(min=1.0, help="Messages a second to send.")] = 300.0,
    body_size: Annotated[int, typer.Option(min=1, max=1_000_000, help="Bytes of a message body.")] = 256,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A configuration key for the brokers; may be repeated."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with the timeline drawn; it needs nothing else."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the brokers' files, and say where they are.")
    ] = False,
    command: Annotated[
        str | None,
        typer.Option(
            "--ropewalk", metavar="COMMAND", help="Start the brokers with this command: drill another build."
        ),
    ] = None,
    name_server: Annotated[
        str | None,
        typer.Option(
            "--name-server",
            "-n",
            metavar="HOST:PORT",
            help="Drill the live group that this name server knows: `switch` and `failover` only.",
        ),
    ] = None,
    broker_name: Annotated[
        str | None, typer.Option("--broker", help="Which live group, if there are several.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Drill a live group without asking.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Draw the same chances as an earlier run.")] = None,
    as_json: Json = False,
) -> None:
    """Run drills on a throw-away cluster: real brokers, a measured load, one fault, its repair, and an audit.

    With --name-server a live group is drilled instead, by an administrator's commands and nothing else.

    Exit codes: 0 every verdict is clean, 1 a promise was broken, 2 no verdict (it could not be run, or wrong
    use), 130 stopped by Ctrl-C.

    Examples:

        ropewalk drill run kill-master
        ropewalk drill run all --seconds 20 --report drills.html
    """
    with expected_errors(as_json=as_json):
        options = Options(
            seconds=seconds,
            rate=rate,
            body_size=body_size,
            settings=parse_pairs(settings or (), "--set"),
            command=_words(command) if command else None,
            keep=keep,
            seed=seed,
        )
        chosen = _choose(names, mode)
        live = _live(chosen, name_server, broker_name, options, yes=yes)
        if report is not None:
            _check_writable(report)
        raise typer.Exit(_run_all(chosen, options, report, live, as_json=as_json))


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as exc:
        raise UsageError(f"--ropewalk {command!r} is no command: {exc}") from exc


def _choose(names: Sequence[str], mode: str) -> list[Drill]:
    if mode not in MODES:
        raise UsageError(f"there is no mode {mode!r}; there are: {', '.join(MODES)}")
    drills = {drill.name: drill for drill in drills_of(mode)}
    if ALL in names:
        return list(drills.values())
    if unknown := [name for name in names if name not in drills]:
        other = next((drill.mode for drill in ALL_DRILLS if drill.name in unknown), None)
        hint = f" (that is one of --mode {other})" if other is not None else ""
        raise UsageError(f"there is no drill {unknown[0]!r}{hint}; there are: {', '.join(drills)}")
    return [drills[name] for name in names]


def _live(
    chosen: Sequence[Drill], name_server: str | None, broker_name: str | None, options: Options, *, yes: bool
) -> Live | None:
    """Which live group to drill, None for a throw-away cluster; told and asked before anything happens."""
    if name_server is None:
        if broker_name is not None:
            raise UsageError("--broker names a live group: give its name server with --name-server")
        return None
    address = str(parse_address(name_server))
    refused = [drill.name for drill in chosen if not drill.live]
    if refused:
        allowed = ", ".join(drill.name for drill in ALL_DRILLS if drill.live)
        raise UsageError(f"on a live group there are only {allowed}; not {', '.join(refused)}")
    if options.settings or options.command or options.keep:
        raise UsageError(
            "--set, --ropewalk and --keep are for throw-away clusters: a live group is taken as it is"
        )
    confirm(
        f"Drill the live group {broker_name or 'that'} {address} knows? It will change its master, and store "
        f"about {options.rate * options.seconds:,.0f} messages in a topic of the drill's own.",
        yes=yes,
    )
    return Live(address, broker_name)


def _check_writable(report: Path) -> None:
    """Told now, and not after a minute of drilling."""
    try:
        with report.open("a"):
            pass
    except OSError as exc:
        raise UsageError(f"cannot write {report}: {exc.strerror or exc}") from exc


class Live(NamedTuple):
    """A group that is at work."""

    name_server: str
    broker_name: str | None


class _Line(Progress):
    """The progress line of one drill."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._text = ""
        self._second = 0

    def stage(self, text: str) -> None:
        self._text = text
        self._line.update(self._second, text)

    def tick(self, second: float, total: float, acknowledged: int) -> None:
        self._second = min(int(second * 10), int(total * 10))
        self._line.set_total(int(total * 10))
        self._line.update(self._second, f"{self._text}, {counted(acknowledged)} acknowledged")


def _run_all(
    drills: Sequence[Drill], options: Options, report: Path | None, live: Live | None, *, as_json: bool
) -> int:
    results: list[Result] = []
    without_verdict = 0
    for drill in drills:
        if results and not as_json:
            print_line()
        try:
            with ProgressLine(f"drill {drill.name}", int(options.seconds * 10)) as line:
                result = trio.run(_interruptible, drill, options, _Line(line), live)
        except CannotRun as exc:
            report_error(f"{drill.name}: no verdict: {exc}", as_json=as_json)
            without_verdict += 1
            continue
        if result is None:
            note(
                f"stopped: {counted(len(results), 'drill')} finished, everything that was started has been ended"
            )
            return INTERRUPTED
        results.append(result)
        if as_json:
            print_json(msgspec.to_builtins(result))
        else:
            for text in report_text.lines(result):
                print_line(text)
            if result.folder:
                note(f"files: {result.folder}")
    if report is not None and results:
        report.write_text(report_html.page(results), encoding="utf-8")
        note(f"report: {report}")
    if any(result.verdict == "broken" for result in results):
        return FAILED
    return USAGE if without_verdict else OK


async def _interruptible(
    drill: Drill, options: Options, progress: Progress, live: Live | None
) -> Result | None:
    """Run a drill; None if a signal ended it. Whatever ends it, nothing is left running."""
    result: Result | None = None

    async def work() -> None:
        nonlocal result
        if live is None:
            result = await run_drill(drill, options, progress)
        else:
            result = await run_live_drill(drill, options, progress, *live)
        nursery.cancel_scope.cancel()

    reason: BaseException | None = None
    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                async for _ in signals:
                    break
                nursery.cancel_scope.cancel()
    except* CannotRun as group:
        reason = _first(group)
    if reason is not None:
        raise reason  # in the clause above some Pythons, Debian 12's too, would make a group of it again
    return result


def _first(group: BaseException) -> BaseException:
    """The one exception that a group, or a group in a group, is about."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
