"""`ropewalk store …`: commands over the files of a store that no broker has to serve.

They work on RocketMQ's directories as on ours, and only read, except where an option asks for more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ropewalk.client.core.produce.bodies import decompress_body
from ropewalk.format.properties import P
from ropewalk.format.record import Record
from ropewalk.printable import printable
from store.offline.reader import Damage, UnreadableStore, find_log_files, read_log
from tools.common.interrupts import Interrupts
from tools.common.output import (
    FAILED,
    INTERRUPTED,
    OK,
    USAGE,
    ProgressLine,
    UsageError,
    counted,
    expected_errors,
    fail,
    json_line,
    note,
    print_json,
    print_line,
    print_table,
    telling,
)
from tools.messages.consume import host_text, shortened, time_text

app = typer.Typer(
    name="store",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look into a store's files; nothing needs to be running.",
)


@app.callback()
def store() -> None:
    """Look into a store's files; nothing needs to be running."""
    from broker.process.launch import restrict_files, umask_of_environment

    with expected_errors():
        restrict_files(umask_of_environment())


@app.command()
def dump(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The store's directory, the one that holds `commitlog`.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each message, body in base64 as stored.")
    ] = False,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only messages of this topic.")] = None,
    from_offset: Annotated[
        int,
        typer.Option("--from-offset", min=0, help="Start at the first message at or behind this log offset."),
    ] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="Stop after so many messages.")] = None,
) -> None:
    """Print every message of a commit log, in the order it was written.

    Works on a Ropewalk or Apache RocketMQ store, also while no broker runs. Exit codes: 0 the log is
    clean, 1 damage was found (file and position are on standard error), 2 it cannot be read.
    """
    with expected_errors(as_json=as_json), Interrupts() as interrupts:
        try:
            damages = dump_log(
                directory,
                record_line if as_json else text_line,
                interrupts,
                topic=topic,
                from_offset=from_offset,
                limit=limit,
            )
        except UnreadableStore as exc:
            fail(str(exc), _store_inside(directory), exit_code=USAGE, as_json=as_json)
    raise typer.Exit(INTERRUPTED if interrupts.requested else FAILED if damages else OK)


def dump_log(
    directory: Path,
    line: Callable[[Record], bytes],
    interrupts: Interrupts,
    *,
    topic: str | None = None,
    from_offset: int = 0,
    limit: int | None = None,
) -> int:
    """Write a line for each record to standard output. Returns how many damages were found and noted.

    Ends early at Ctrl-C, with a count.
    """
    files = find_log_files(directory)
    out = sys.stdout.buffer
    printed = damages = 0
    ends_in_damage = False
    with telling(lambda: f"{counted(printed)} handled, of which the last may be missing"):
        for found in read_log(files, from_offset) if limit != 0 else ():
            if interrupts.requested:
                break
            ends_in_damage = isinstance(found, Damage)
            if isinstance(found, Damage):
                damages += 1
                out.flush()  # so that the note stands behind what precedes it
                note(f"damage: {found}")
            elif topic is None or found.topic == topic:
                out.write(line(found))
                printed += 1
                if printed == limit:
                    break
        out.flush()
    if damages:
        rest = "; what follows the last of them could not be read" if ends_in_damage else ""
        note(f"{counted(printed)} printed, {counted(damages, 'damaged place')} found{rest}")
    if interrupts.requested:
        note(f"stopped: {counted(printed)} printed")
    return damages


def record_json(record: Record) -> dict[str, Any]:
    """Return a record with every stored field, under RocketMQ's names."""
    return {
        "offset": record.offset,
        "size": record.size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": host_text(record.born_host),
        "storeTimestamp": record.store_timestamp,
        "storeHost": host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": record.properties,
        "bodyCrc": record.body_crc,
        "body": record.body,  # msgspec writes bytes as base64
        "msgId": record.msg_id,
    }


def record_line(record: Record) -> bytes:
    return json_line(record_json(record))


def text_line(record: Record) -> bytes:
    """Return a record as a line for people: where it lies, where it belongs, when it came, how it begins."""
    body = decompress_body(record.sys_flag, record.body)[0]
    labels = "".join(
        f" {name.lower()}={record.properties[name]}" for name in (P.TAGS, P.KEYS) if name in record.properties
    )
    line = (
        f"{record.offset:>12} {record.size:>7}  {time_text(record.store_timestamp)}  "
        f"{record.topic} queue {record.queue_id} offset {record.queue_offset}{labels}  {shortened(body, 60)}"
    )
    return printable(line).encode() + b"\n"


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The store's directory, the one that holds `commitlog`.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The broker's configuration. Without it sizes are read off the files, and due times are left as they are.",
    ),
]


@app.command()
def verify(directory: Directory, config: ConfigFile = None, as_json: Json = False) -> None:
    """Verify every byte that a broker or a reader relies on: records, queue entries, index, checksums, configuration.

    Of pending timers it verifies log, wheel and checkpoint, and of the key-value store's regions logs, notes and
    snapshots.

    Changes nothing, and works on a Ropewalk or Apache RocketMQ store whose broker is stopped. Exit codes: 0 the store
    is clean, 1 damage was found, 2 it cannot be read, or a broker has it open.
    """
    from tools.storage import maintenance as store_care

    with _about_stores(directory, as_json=as_json), ProgressLine(f"verify {directory}", None) as progress:
        layout = store_care.find_store(directory, config, takes_entries=True)
        verification, findings = store_care.verify_store(layout, _shown(progress))
    damages = sum(finding.damage for finding in findings)
    if as_json:
        print_json(store_care.verify_json(layout, verification, findings))
    else:
        for found in findings:
            place = f" at {found.place}" if found.place else ""
            print_line(f"{'damage' if found.damage else 'note'}: {found.path}{place}: {found.text}")
            if found.advice:
                print_line(f"  {found.advice}")
        looked = verification.counts
        regions = (
            f", and of the key-value store at {counted(looked.region_entries, 'record')} and "
            f"{counted(looked.snapshots, 'snapshot')} in {counted(looked.regions, 'region')}"
            if looked.regions
            else ""
        )
        print_line(
            f"{counted(damages, 'damaged place')}; looked at {counted(looked.records, 'record')} in "
            f"{counted(looked.segments, 'segment')}, {counted(looked.queues, 'queue')}, "
            f"{counted(looked.items, 'index item')} and {counted(looked.blocks, 'checksum')}{regions}"
        )
    raise typer.Exit(FAILED if damages else OK)


@app.command()
def recover(
    directory: Directory,
    apply: Annotated[bool, typer.Option("--apply", help="Do it, instead of only saying it.")] = False,
    cut: Annotated[
        bool,
        typer.Option(
            "--cut",
            help="End the log at a place that cannot be read, although whole records follow it. Only behind what was "
            "promised to be durable; everything that is cut is copied aside.",
        ),
    ] = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show the changes that a broker's start would make to this store; with --apply make them.

    Judged by the stricter rule, that of SYNC_FLUSH. Exit codes: 0 a start goes well, 1 it is refused, 2 the store
    cannot be read, or a broker has it open.
    """
    from tools.storage import maintenance as store_care

    with _about_stores(directory, as_json=as_json):
        layout = store_care.find_store(directory, config)
        outcome, other = store_care.recover(layout, apply=apply, cut=cut)
    if as_json:
        document = asdict(outcome) | {"applied": apply and outcome.refusal is None}
        print_json(document | {"cut": asdict(other) if other is not None and other.refusal is None else None})
    else:
        applied = apply and outcome.refusal is None
        for line in store_care.outcome_lines(layout, outcome, other, applied=applied):
            print_line(line)
    raise typer.Exit(OK if outcome.refusal is None else FAILED)


@app.command()
def repair(
    directory: Directory,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="COPY", help="Repair a copy, which is made in this new directory."),
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Repair the store itself.")] = False,
    other: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="OTHER",
            help="A replica's directory or a backup to take bytes from; may be repeated.",
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Where nobody has the bytes, end the log there; what stands behind is copied aside.",
        ),
    ] = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Make a damaged store whole: bytes of the log from another copy, queue files and index from the log.

    Without --in-place DIR is only read. Exit codes: 0 the result is whole, 1 something is lost and is named, 2 the
    store cannot be read, or a broker has it open.
    """
    from tools.storage import maintenance as store_care

    with _about_stores(directory, as_json=as_json), ProgressLine(f"repair {directory}", None) as progress:
        if (to is None) != in_place:
            raise UsageError("say where: --to COPY for a copy, or --in-place for the store itself")
        layout = store_care.find_store(directory, config, other or ())
        shown = _shown(progress)
        target, done = store_care.repair_store(
            layout, to, other or (), accept_loss=accept_loss, copied=shown, looked=shown
        )
    if as_json:
        print_json({"directory": str(target.root)} | asdict(done))
    else:
        for line in done.taken:
            print_line(f"restored: {line}")
        for line in done.lost:
            print_line(f"lost: {line}")
        for line in done.cut:
            print_line(f"given up: {line}")
        if done.rebuilt:
            index = " and the index" if target.index is not None else ""
            print_line(
                f"{target.root} is whole: the log ends at offset {done.end}, and "
                f"{counted(done.queues, 'queue')}{index} were built from {counted(done.records, 'record')}"
            )
            if to is not None:
                note(f"start its broker with storePathRootDir={target.root}, or put it where {directory} is")
        else:
            note(
                f"{target.root} is not whole: `ropewalk store repair {target.root} --in-place --from OTHER` goes on "
                f"with another copy of the log, and with --accept-loss it ends where nobody has the bytes"
            )
    raise typer.Exit(OK if done.rebuilt and not done.lost else FAILED)


@app.command()
def info(directory: Directory, config: ConfigFile = None, as_json: Json = False) -> None:
    """Show the content of a store: sizes, offsets, times, topics and queues, and how it was left."""
    from tools.storage import maintenance as store_care

    with _about_stores(directory, as_json=as_json):
        document = store_care.store_info(store_care.find_store(directory, config, takes_entries=True))
    if as_json:
        print_json(document)
        return
    if document["inUse"]:
        note("a broker has this store open: what is shown may be older than what it serves")
    for name, text in store_care.info_facts(document):
        print_line(f"{name:<15} {text}")
    if document["topics"]:
        print_line()
        print_table(
            ("topic", "queue", "from", "to", "last stored", "problem"),
            [
                (
                    row["topic"],
                    row["queue"],
                    row.get("min"),
                    row.get("next"),
                    time_text(row["lastStored"]) if row.get("lastStored") else None,
                    row.get("problem"),
                )
                for row in document["topics"]
            ],
        )


def _shown(progress: ProgressLine) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        progress.set_total(total)
        progress.update(done, f"{done >> 20} of {total >> 20} MiB")

    return show


@app.command()
def diverged(
    directory: Directory,
    messages: Annotated[
        str | None,
        typer.Option(
            "--messages",
            "-m",
            metavar="NAME",
            help="Print the messages of this one, or of `all`, as JSON lines.",
        ),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only messages of this topic.")] = None,
    as_json: Json = False,
) -> None:
    """List the tails that this copy of the log had and its master had not: kept aside when the slave was cut.

    The lines of `--messages` can be sent again: `| ropewalk produce TOPIC --json-lines`. `ropewalk store dump` reads
    the directories too.
    """
    from tools.storage import diverged as store_diverged

    with _about_stores(directory, as_json=as_json):
        if messages is not None:
            for line in store_diverged.messages_of(directory, messages, topic):
                print_json(line)
            return
        tails = store_diverged.tails_of(directory)
        if as_json:
            print_json({"tails": [store_diverged.kept_json(kept) for kept in tails]})
        elif tails:
            print_table(store_diverged.COLUMNS, [store_diverged.kept_row(kept) for kept in tails])
        else:
            note("this store keeps no diverged tail")


@app.command()
def epoch(
    directory: Directory,
    lower_to: Annotated[
        int | None,
        typer.Option(
            "--lower-to",
            metavar="EPOCH",
            min=0,
            help="Set every epoch of this store that is higher to this one: of a promise, of its role, of its log.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the epochs of a stopped member of a group; with --lower-to mend a member that took one far too high.

    Safe only while every member of the group is stopped, and if each is lowered to the same epoch. Exit codes: 0 it is
    shown or lowered; 2 the store cannot be read, a broker has it open, or no epoch can be lowered to this one.
    """
    from tools.storage import epochs as store_epochs

    with _about_stores(directory, as_json=as_json):
        found = (
            store_epochs.epochs_of(directory)
            if lower_to is None
            else store_epochs.lower_epochs(directory, lower_to)
        )
    if as_json:
        print_json(found)
        return
    if words := store_epochs.without_epochs(found):
        print_line(words)
    for name, value in found.items():
        if name != "kind":
            print_line(f"{name:<14} {value}")
    if lower_to is not None:
        note("lower every other member of the group to the same epoch before any of them starts")


def _store_inside(directory: Path) -> str | None:
    """Return the advice for a path that is the folder above the folders of brokers."""
    try:
        stores = sorted(path for path in directory.iterdir() if (path / "commitlog").is_dir())
    except OSError:
        return None
    if not stores or (directory / "commitlog").is_dir():
        return None
    return f"it holds stores of brokers: try {', or '.join(map(str, stores[:3]))}"


@contextmanager
def _about_stores(directory: Path, *, as_json: bool) -> Iterator[None]:
    """Exit with code 2 for a store that cannot be read or that another process has open."""
    from store.io.disk import DiskFull, StoreLocked
    from store.log.commitlog import StoreDamaged

    with expected_errors(as_json=as_json):
        try:
            yield
        except (UnreadableStore, StoreLocked) as exc:
            fail(str(exc), _store_inside(directory), exit_code=USAGE, as_json=as_json)
        except (StoreDamaged, DiskFull) as exc:
            fail(str(exc), as_json=as_json)
        except OSError as exc:
            fail(f"{exc.filename or 'the store'}: {exc.strerror or exc}", exit_code=USAGE, as_json=as_json)
