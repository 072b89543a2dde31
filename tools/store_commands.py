"""`ropewalk store …`: commands over the files of a store that no broker has to serve.

They only read, and they work on RocketMQ's directories as on ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ropewalk.client.bodies import readable_body
from ropewalk.format.properties import P
from ropewalk.format.record import Record
from store.offline import Damage, UnreadableStore, find_log_files, read_log
from tools.consume import host_text, shortened, time_text
from tools.output import FAILED, USAGE, counted, expected_errors, fail, leave_quietly, note

app = typer.Typer(
    name="store",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look into a store's files; nothing needs to be running.",
)


@app.callback()
def store() -> None:
    """Look into a store's files; nothing needs to be running."""


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
    with expected_errors(as_json=as_json):
        try:
            damages = dump_log(
                directory,
                json_line if as_json else text_line,
                topic=topic,
                from_offset=from_offset,
                limit=limit,
            )
        except UnreadableStore as exc:
            fail(str(exc), exit_code=USAGE, as_json=as_json)
        except BrokenPipeError:
            leave_quietly()
        if damages:
            raise typer.Exit(FAILED)


def dump_log(
    directory: Path,
    line: Callable[[Record], bytes],
    *,
    topic: str | None = None,
    from_offset: int = 0,
    limit: int | None = None,
) -> int:
    """Write a line for each record to standard output. Returns how many damages were found and noted."""
    files = find_log_files(directory)
    out = sys.stdout.buffer
    printed = damages = 0
    for found in read_log(files, from_offset) if limit != 0 else ():
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
        note(f"{counted(printed)} printed, {counted(damages, 'damaged place')} found")
    return damages


def record_json(record: Record) -> dict[str, Any]:
    """One record with every stored field, under RocketMQ's names."""
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


def json_line(record: Record) -> bytes:
    return msgspec.json.encode(record_json(record)) + b"\n"


def text_line(record: Record) -> bytes:
    """One record for people: where it lies, where it belongs, when it came, how it begins."""
    body = readable_body(record.sys_flag, record.body)[0]
    labels = "".join(
        f" {name.lower()}={record.properties[name]}" for name in (P.TAGS, P.KEYS) if name in record.properties
    )
    return (
        f"{record.offset:>12} {record.size:>7}  {time_text(record.store_timestamp)}  "
        f"{record.topic} queue {record.queue_id} offset {record.queue_offset}{labels}  "
        f"{shortened(body, 60)}\n"
    ).encode()
