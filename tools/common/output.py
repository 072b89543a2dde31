"""Print results, notes and errors in the same form for every command: results on standard output, everything else on
standard error.

A result is a line, a table, or with `--json` one JSON document. Notes, progress and errors go to
standard error, so that a pipe carries results only. With `--json` an error is JSON as well:
`{"error": ..., "hint": ...}`.

Names, remarks and reasons come from peers, so control characters in any text are printed as escapes. Commands print by
`print_line` and `print_table`, and not by `print` (a rule of the linter).

Exit codes: 0 done, 1 it failed or was done in part (`ropewalk kv`: there is no such value, or another one, and 2 where
it failed), 2 it could not even be tried (wrong use, unreadable input), 130 stopped by Ctrl-C, 141 whoever read the
output had seen enough. Expected errors end in a sentence and what to do next, never in a traceback; an exception that
is not listed here is a bug and shows as one.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import typer

from ropewalk.client.core.addresses import BadAddress
from ropewalk.client.core.connection import NoMaster, Unreachable
from ropewalk.client.core.routes import NOBODY_CREATES_IT
from ropewalk.codes import ResponseCode
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError, RopewalkError, TryElsewhere, TryLater
from ropewalk.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
"""The exit status a shell reports for a program that SIGPIPE ended, as most programs in a pipe are."""

UNFOLDED = 10_000
"""The width of a table for a reader that has none."""
WHOLE_CELL = 40
"""The longest text of a table that is never broken, however narrow the terminal is."""
FOLDED_CELL = 24

PROGRESS_AFTER_S = 1.0
PROGRESS_EVERY_S = 0.1


class UsageError(RopewalkError):
    """A wrong use of a command; the text names a right one."""


class OutputFailed(Exception):
    """Standard output took no more. No `OSError`: nobody between the write and `run` shall take it for theirs."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror or str(cause))
        self.broken_pipe = cause.errno == errno.EPIPE
        self.done: str | None = None
        """The work done until then."""


class _Output(io.FileIO):
    """A descriptor whose failing writes are `OutputFailed`."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            raise OutputFailed(exc) from exc


def open_output() -> None:
    """Open a standard output that fails as `OutputFailed`, and prints unencodable characters as escapes."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    old = sys.stdout
    if old is None:
        # It was closed. Nothing else may get its number, and every write is to fail.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
    else:
        old.flush()
    raw = _Output(1, "w" if old is not None else "wb", closefd=False)
    encoding = old.encoding if old is not None else "utf-8"
    terminal = os.isatty(1)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=terminal
    )


def ended_by_output(exc: OutputFailed, *, as_json: bool = False) -> int:
    """Say that output could not be written, unless its reader had simply seen enough (`| head`). The exit code."""
    # The interpreter flushes standard output once more at exit and would complain there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if exc.broken_pipe:
        return BROKEN_PIPE
    report_error(f"cannot write to standard output: {exc}", exc.done, as_json=as_json)
    return FAILED


@contextmanager
def telling(done: Callable[[], str]) -> Iterator[None]:
    """Report the work done so far with an error of the output."""
    try:
        yield
        sys.stdout.flush()
    except OutputFailed as exc:
        exc.done = done()
        raise


def print_line(text: str = "", *, flush: bool = False) -> None:
    """Print a line, or several, with an escape for each control character of names and remarks in it."""
    print(printable(text, keep="\n\t"), flush=flush)


def print_json(value: Any) -> None:
    """Print a JSON document on one line, in UTF-8 under every locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(json_line(value))
    sys.stdout.buffer.flush()


def json_line(value: Any) -> bytes:
    """Return a JSON document and the end of its line, with escapes for the characters that act on a terminal."""
    text = msgspec.json.encode(value).decode()
    if not text.isprintable():
        text = "".join(char if char.isprintable() else _json_escape(char) for char in text)
    return text.encode() + b"\n"


def _json_escape(char: str) -> str:
    """Return the escape of a character inside a JSON string; JSON's own signs are printable, and never come here."""
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


class ShortenedText(str):
    """A text of a table with a shorter form, for terminals that are too narrow for the whole table."""

    __slots__ = ("short",)

    def __new__(cls, text: str, short: str) -> ShortenedText:
        made = super().__new__(cls, text)
        made.short = short
        return made

    short: str


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people; on a terminal too narrow for it, one row after the other, a line for each cell.

    Cells are printed as they are, with escapes for control characters: a topic name cannot switch colours on.
    """
    from rich.console import Console

    # Into a file or pipe nothing is folded: a reader there counts columns, not characters.
    console = Console(width=None if sys.stdout.isatty() else UNFOLDED)
    table = fit_table(console, columns, rows)
    if table is None:
        print_line("\n".join(row_lines(columns, rows)))
    else:
        console.print(table)


def _shown(cell: object) -> object:
    """Return a cell with escapes for its control characters; numbers and empty cells stay as they are."""
    if cell is None or isinstance(cell, (int, float)):
        return cell
    text = printable(str(cell))
    return ShortenedText(text, printable(cell.short)) if isinstance(cell, ShortenedText) else text


def fit_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> RenderableType | None:
    """Return a table that fits the console with every number, name and time whole, or None if there is none.

    On a narrow terminal sentences are folded. A number, a name or an address in pieces would be read wrongly and copied
    wrongly: where they do not fit side by side, headings are broken into words, texts take their short form, and the
    values that are the same in all rows stand above the table, as many as need be.
    """
    from rich.console import Group
    from rich.text import Text

    rows = [[_shown(cell) for cell in row] for row in rows]
    table = make_table(columns, rows)
    if console.width >= UNFOLDED:
        return table
    _keep_whole(table, columns, rows)
    above: list[tuple[str, object]] = []
    if not _fits(console, table):
        rows = [[cell.short if isinstance(cell, ShortenedText) else cell for cell in row] for row in rows]
        table = _narrow_table(columns, rows)
    while not _fits(console, table):
        same = [
            at for at in range(len(columns)) if len(rows) > 1 and len({str(row[at]) for row in rows}) == 1
        ]
        if not same:
            return None
        at = min(
            same, key=lambda at: rows[0][at] not in (None, "")
        )  # what is empty first: nothing is said of it
        above.append((columns[at], rows[0][at]))
        columns = [*columns[:at], *columns[at + 1 :]]
        rows = [[*row[:at], *row[at + 1 :]] for row in rows]
        table = _narrow_table(columns, rows)
    told = "\n".join(row_lines([name for name, _ in above], [[cell for _, cell in above]]))
    return Group(Text(told), "", table) if told else table


def _narrow_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    broken = [
        heading.replace(" ", "\n") if len(heading) > max(map(_length, cells), default=0) else heading
        for heading, *cells in zip(columns, *rows, strict=True)
    ]
    table = make_table(broken, rows)
    _keep_whole(table, broken, rows)
    return table


def _fits(console: Console, table: Table) -> bool:
    unbounded = console.options.update(width=UNFOLDED)
    return console.measure(table, options=unbounded).minimum <= console.width


def _length(cell: object) -> int:
    """Return the length of the longest line of a cell."""
    return max(map(len, str("" if cell is None else cell).split("\n")))


def _keep_whole(table: Table, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Keep every number, name and time of a table in one piece; only long sentences may be folded."""
    for column, cells in zip(table.columns, zip(columns, *rows, strict=True), strict=True):
        longest = max(map(_length, cells))
        column.min_width = longest if longest <= WHOLE_CELL else FOLDED_CELL


def row_lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield a line for each cell that is not empty, and an empty line between rows."""
    width = max(map(len, columns), default=0)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for column, cell in zip(columns, row, strict=True):
            if cell not in (None, ""):
                yield f"{column:<{width}}  {_shown(cell)}"


def make_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """The table that `print_table` prints. A cell of None is empty; columns of numbers are set to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        cells = [row[len(table.columns)] for row in rows]
        numeric = any(isinstance(cell, (int, float)) for cell in cells) and all(
            cell is None or isinstance(cell, (int, float)) for cell in cells
        )
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return table


def note(text: str) -> None:
    """Print something to know that is not a result.

    A second line is indented: what a peer's name or remark makes one of cannot pass for a note of its own.
    """
    lines = re.sub(r"\n(?=\S)", "\n  ", printable(text, keep="\n\t"))
    with suppress(OSError):  # who cannot be told is still served
        print(lines, file=sys.stderr, flush=True)


def report_error(text: str, hint: str | None = None, *, as_json: bool = False) -> None:
    """Print an error with its remedy."""
    if as_json:
        document = {"error": text} | ({"hint": hint} if hint else {})
        note(json_line(document).decode().rstrip("\n"))
    else:
        note(f"error: {text}" + (f"\n  {hint}" if hint else ""))


def fail(text: str, hint: str | None = None, *, exit_code: int = FAILED, as_json: bool = False) -> NoReturn:
    """End the command with an error."""
    report_error(text, hint, as_json=as_json)
    raise typer.Exit(exit_code)


@contextmanager
def expected_errors(
    *, as_json: bool = False, failed: int = FAILED, unanswered: str | None = None
) -> Iterator[None]:
    """Turn the errors a user can meet into sentences and exit codes; `failed`: where 1 says something else.

    `unanswered` is the remedy where no answer came to what changes nothing.
    """
    try:
        yield
    except (UsageError, BadAddress) as exc:
        fail(str(exc), exit_code=USAGE, as_json=as_json)
    except RopewalkError as exc:
        is_unanswered = unanswered is not None and isinstance(exc, OutcomeUnknown)
        fail(str(exc), unanswered if is_unanswered else hint_for(exc), exit_code=failed, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def hint_for(exc: RopewalkError) -> str | None:
    """Return the remedy of an error."""
    from ropewalk.client.blocking.simple import NoNameServer
    from ropewalk.format.kv.commands import KNOWS_NO_LEADER
    from ropewalk.member_proof import NotProven

    if isinstance(exc, NoNameServer):
        return "start one with `ropewalk namesrv` or `ropewalk broker`, or name another one with -n HOST:PORT"
    if isinstance(exc, NoMaster):
        group = exc.brokers[0] if len(exc.brokers) == 1 else "GROUP"
        return (
            f"a slave becomes the master by `ropewalk admin ha failover {group}`, if the master is gone for good; a "
            "DLedger group elects its leader by itself, within seconds (`ropewalk admin dledger status`)"
        )
    if isinstance(exc, Unreachable):
        return "is it still running, and can it be reached from here?"
    if exc.code == ResponseCode.TOPIC_NOT_EXIST and (exc.remark or "").endswith(NOBODY_CREATES_IT):
        return (
            "a broker registers when it is up, a DLedger group when it has a leader: `ropewalk admin broker list` "
            "shows who is there; where autoCreateTopicEnable=false, `ropewalk admin topic create` makes topics"
        )
    if exc.code == ResponseCode.TOPIC_NOT_EXIST:
        return "a topic is created by the first message: `ropewalk produce TOPIC MESSAGE`"
    if exc.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return "-n wants a name server (usually port 9876); a broker answers elsewhere and knows no routes"
    if isinstance(exc, OutcomeUnknown):
        return "it may or may not have been done; look before you repeat it"
    if isinstance(exc, TryLater):
        return "the broker is busy: try again in a moment"
    if KNOWS_NO_LEADER in (exc.remark or ""):
        return "most members have to run and to hear each other: `ropewalk admin dledger status` shows them"
    if isinstance(exc, TryElsewhere):
        return "this broker cannot serve the request at the moment; its log says why"
    if isinstance(exc, RemoteProtocolError) and not isinstance(exc, NotProven):
        return "is this really a RocketMQ-compatible name server or broker?"
    return None


def show_flags_bare(command: Any) -> None:
    """Have the help of a command, and of all below it, say `--json` and not `--json <bool>`.

    What stands behind an option is what is to be written there, and behind a flag nothing is.
    """
    for parameter in parameters_of(command):
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""


def parameters_of(command: Any, parent: typer.Context | None = None) -> Iterator[Any]:
    """Yield the parameters of a command and of all below it."""
    context = typer.Context(command, parent=parent, **command.context_settings)
    yield from command.get_params(context)
    for inner in getattr(command, "commands", {}).values():
        yield from parameters_of(inner, context)


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Read repeated `name=value` options. Raises `UsageError`."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} {pair!r} is not name=value")
        parsed[name] = value
    return parsed


def counted(number: int, noun: str = "message") -> str:
    """`1 message`, `2 messages`, `12,345 messages`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


class ProgressLine:
    """A progress line on standard error, for people only, and only once it has taken a while."""

    def __init__(self, label: str, total: int | None, *, enabled: bool = True) -> None:
        self._label = label
        self._total = total
        self._enabled = enabled and sys.stderr.isatty()
        self._started = time.monotonic()
        self._last = self._started
        self._progress: Progress | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def set_total(self, total: int) -> None:
        """Set the total, once it is known; it may change from stage to stage."""
        if total != self._total:
            self._total = total
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], total=total)

    def update(self, completed: int, text: str) -> None:
        """`completed` of the total, and a few words; cheap to call often."""
        if not self._enabled:
            return
        now = time.monotonic()
        if now - self._started < PROGRESS_AFTER_S or now - self._last < PROGRESS_EVERY_S:
            return
        self._last = now
        if self._progress is None:
            self._progress = self._start()
        self._progress.update(self._progress.task_ids[0], completed=completed, text=text)

    def _start(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        progress.add_task(self._label, total=self._total, text="")
        progress.start()
        return progress
