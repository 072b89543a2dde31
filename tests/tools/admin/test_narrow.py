"""The tables of every `ropewalk admin` command on a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import typer

import tools.common.output as output
from ropewalk import Admin, Message, PushConsumer
from ropewalk.client.admin.groups import LATEST
from ropewalk.testing import RopewalkBroker
from tests.support.waiting import until
from tools.admin.cli import app

COLUMNS = 80
LONG_FACT = rf"\w[\w ]*?  .{{{output.WHOLE_CELL + 1},}}"
"""A name and its value, which is longer than what a table keeps whole; the terminal folds the line."""
WITHOUT_TABLE = (
    {
        f"ha {name}": "acts on a group and tells its steps, a line each"
        for name in ("switch", "failover", "promote", "demote", "forget", "watch")
    }
    | {
        "sink forget": "says in a line at which brokers",
        "dledger readmit": "says in a line which members have let it in",
    }
    | {
        f"dledger {name}": "changes the members of a group and tells its steps, a line each"
        for name in ("add", "remove", "replace", "learner", "promote", "force", "trust")
    }
)


def all_commands() -> dict[str, bool]:
    """Return the commands, and whether each needs arguments."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
        children = getattr(command, "commands", None)
        if children is None:
            yield " ".join(path), any(parameter.required for parameter in command.params)
            return
        for name, child in children.items():
            yield from walk(child, (*path, name))

    return dict(walk(typer.main.get_group(app), ()))


def words_of_commands(topic: str, group: str, sent: str, offset_id: str) -> dict[str, str]:
    """Return the arguments with which each command has something to print."""
    return {
        "lag": "",
        "connections": "",
        "topic list": "--all",
        "topic show": topic,
        "topic route": topic,
        "topic create": f"{topic}-2",
        "topic update": f"{topic} --queues 2",
        "topic perm": f"{topic} rw",
        "topic delete": f"{topic}-2 --yes",
        "group list": "--all",
        "group show": group,
        "group status": group,
        "group create": f"{group}-2",
        "group update": f"{group} --retries 5",
        "group lag": group,
        "group clone": f"{group} {group}-2 {topic} --yes",
        "group reset": f"{group}-2 {topic} --to earliest --yes",
        "group skip": f"{group}-2 {topic} --yes",
        "group delete": f"{group}-2 --yes",
        "message show": sent,
        "message trace": sent,
        "message by-id": offset_id,
        "message by-unique-key": f"{topic} {sent}",
        "message by-key": f"{topic} key-of-an-order",
        "message by-offset": f"{topic} 0 0",
        "message by-time": f"{topic} --from 2020-01-01",
        "message send": f"{topic} body",
        "message consume-directly": f"{offset_id} {group}",
        "broker list": "",
        "broker status": "",
        "broker wipe-write-perm": "broker-a --yes",
        "broker restore-write-perm": "broker-a",
        "broker stats": "--all",
        "broker config get": "",
        "broker config set": "maxMessageSize=4194304",
        "cluster list": "",
        "cluster name-servers": "",
        "offset show": f"{group} {topic}",
        "offset search": f"{topic} 2020-01-01",
        "offset set": f"{group} {topic} 0 0 --yes",
        "ha status": "",
    }


Table = tuple[Sequence[str], Sequence[Sequence[object]]]


@pytest.fixture
def narrow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ropewalk_broker: RopewalkBroker
) -> Callable[[str], tuple[str, list[Table]]]:
    """Run a command on a terminal of 80 columns; what it printed, and the tables that it had to print."""
    import sys

    tables: list[Table] = []
    print_table = output.print_table

    def record(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        tables.append((columns, rows))
        print_table(columns, rows)

    for module in ("base", "topic", "group"):
        monkeypatch.setattr(f"tools.admin.{module}.print_table", record)

    def run(words: str) -> tuple[str, list[Table]]:
        tables.clear()
        capsys.readouterr()
        monkeypatch.setenv("COLUMNS", str(COLUMNS))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        app([*words.split(), "-n", ropewalk_broker.namesrv], standalone_mode=False)
        out = capsys.readouterr()
        run.errors = out.err  # type: ignore[attr-defined]
        return re.sub(r"\x1b\[[0-9;]*m", "", out.out), list(tables)

    return run


def test_every_command_prints_times_addresses_and_names_whole_at_80_columns(
    narrow: Callable[[str], tuple[str, list[Table]]], ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = "orders-of-the-shop", "billing-of-orders"
    sent = ropewalk_broker.send(topic, Message(b"body", keys="key-of-an-order", tags="tag"))
    for number in range(12):
        ropewalk_broker.send(topic, Message(b"body %d" % number, keys="key-of-an-order", tags="tag"))
    with (
        Admin(ropewalk_broker.namesrv) as admin,
        PushConsumer(
            group, {topic: "*"}, lambda message: None, ropewalk_broker.namesrv, consume_from="earliest"
        ),
    ):
        until(lambda: admin.progress(group).lag == 0, "the group has not consumed all", pause_s=0.1)
        words = words_of_commands(topic, group, sent.message_id, sent.offset_message_ids[0])
        for command, needs_arguments in all_commands().items():
            if command not in words and command not in WITHOUT_TABLE:
                assert not needs_arguments, f"{command} has no words here"
                words[command] = ""
        with_tables = set()
        for command, arguments in words.items():
            out, tables = narrow(f"{command} {arguments}")
            lines = out.splitlines()
            for columns, rows in tables:
                with_tables.add(command)
                wide = [line.rstrip() for line in lines if len(line.rstrip()) > COLUMNS]
                assert all(re.fullmatch(LONG_FACT, line) for line in wide), (command, out)
                for row in rows:
                    for column, cell in zip(columns, row, strict=True):
                        whole = "" if cell is None else str(cell)
                        short = getattr(cell, "short", whole)
                        if len(whole) <= output.WHOLE_CELL:
                            assert any(whole in line or short in line for line in lines), (
                                command,
                                column,
                                out,
                            )
        assert len(with_tables) > 18, sorted(with_tables)


def test_progress_tells_what_its_times_mean(
    narrow: Callable[[str], tuple[str, list[Table]]], ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = "orders-to-ship", "shipping-of-orders"
    ropewalk_broker.send(topic, b"one")
    with Admin(ropewalk_broker.namesrv) as admin:
        admin.create_group(group)
        admin.reset_offsets(group, topic, LATEST)
    for command in ("lag", f"lag {group}", f"group lag {group}"):
        out, [(_, rows)] = narrow(command)
        if group in command:
            assert len(out.splitlines()) < len(rows) + 8, "a table, and no list of cells"
        told = narrow.errors  # type: ignore[attr-defined]
        assert "read up to: the time at which the last message that the group has consumed was stored" in told
