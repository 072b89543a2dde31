"""The command reference: every command of `ropewalk` with the first line of its help."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from typer.main import get_command, get_group

from tools.cli import FAMILIES, app
from tools.common.mqadmin import COUNTERPARTS
from tools.documents.markdown import cell, code, head, table

__all__ = ["commands", "page"]

_INTRODUCTION: Final = """
Every command explains itself with `--help`, takes `--json` for scripts, and ends cleanly at Ctrl-C. Results go to
standard output and everything else to standard error. [cli.md](cli.md) shows the usual ones at work.
""".strip()


_MQADMIN: Final = """
RocketMQ's `mqadmin` works on Ropewalk's brokers, and `ropewalk admin` on RocketMQ's. The same by other names:
""".strip()


def page() -> str:
    """Return a table of commands for each word behind `ropewalk`."""
    families: dict[str, list[tuple[str, str]]] = {}
    for name, text in commands():
        families.setdefault(name.split()[0], []).append((code(f"ropewalk {name}"), cell(text)))
    single = [rows[0] for name, rows in families.items() if len(rows) == 1]
    parts = [
        head("Commands", "the help of `ropewalk`", _INTRODUCTION),
        table(("command", "what it does"), single),
    ]
    for name, rows in families.items():
        if len(rows) > 1:
            parts.append(f"## ropewalk {name}\n\n{table(('command', 'what it does'), rows)}")
    counterparts = [
        (code(name), ", ".join(code(f"ropewalk admin {each}") for each in words))
        for name, words in sorted(COUNTERPARTS.items(), key=lambda item: item[0].lower())
    ]
    parts.append(f"## mqadmin\n\n{_MQADMIN}\n\n{table(('mqadmin', 'here'), counterparts)}")
    return "\n".join(parts)


def commands() -> Iterator[tuple[str, str]]:
    """Yield every command as its words behind `ropewalk` and the first paragraph of its help."""

    for name, member in _members(get_command(app)):
        family = FAMILIES.get(name)
        yield from _walk(member if family is None else get_group(import_module(family).app), name)


def _walk(command: Any, name: str) -> Iterator[tuple[str, str]]:
    members = _members(command)
    if not members:
        yield name, (command.help or "").split("\n\n")[0]
    for member, inner in members:
        yield from _walk(inner, f"{name} {member}")


def _members(command: Any) -> list[tuple[str, Any]]:
    return list(getattr(command, "commands", {}).items())
