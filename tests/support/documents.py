"""Documents under test: their sections and blocks, and consoles run word for word against processes of the checkout.

The commands of a page are taken as they stand. A small program in the place of `.venv/bin/ropewalk` runs the checkout
instead, and adds addresses where a test has other ports than the page.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command, get_group

from tests.support.processes import ROOT, checkout_command
from tools.cli import FAMILIES, app

ANYTHING = "…"
"""In an expected line: any text; alone on a line: any number of lines."""

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
TERMINAL = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def section(document: str, title: str) -> str:
    """Return the text under a heading of the second level."""
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text_of(document), re.MULTILINE | re.DOTALL
    )
    assert found, f"{document} has no section {title!r}"
    return found.group(1)


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page's consoles, with the output that the page shows for it."""

    words: str
    expected: tuple[str, ...]


def commands(text: str) -> list[Command]:
    """Return the commands of the `console` blocks in order."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(text, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return [Command(words, tuple(expected)) for words, expected in found]


def shown(expected: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for the whole of an output, from the lines that a page shows."""
    parts = [
        r"(?:.*\n)*?" if line == ANYTHING else ".*?".join(map(re.escape, line.split(ANYTHING))) + r" *\n"
        for line in expected
    ]
    return re.compile("".join(parts))


def squeezed(lines: Sequence[str]) -> list[str]:
    """Return lines with runs of spaces made one, for tables whose columns are as wide as a test's paths."""
    return [re.sub(r" +", " ", line).rstrip() for line in lines]


def run(command: Command, folder: Path, environment: Mapping[str, str], *, timeout_s: float = 60) -> str:
    """Run one command in a shell in `folder` and return what a terminal would show; it has to end with status 0."""
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.words],
        cwd=folder,
        env={**environment, **TERMINAL},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode == 0, f"$ {command.words}\n{ended.stdout}"
    return ended.stdout


def check_shown(command: Command, output: str) -> None:
    """Compare an output with what the page shows, apart from the width of columns."""
    if command.expected:
        wanted = shown(squeezed(command.expected))
        seen = "".join(f"{line}\n" for line in squeezed(output.splitlines()))
        assert wanted.fullmatch(seen), "\n".join(
            (f"$ {command.words}", output, "the page shows:", *command.expected)
        )


def program(folder: Path, cases: str) -> None:
    """Put a `.venv/bin/ropewalk` into the folder: a shell script with these cases of its first word, then the rest."""
    path = folder / ".venv" / "bin" / "ropewalk"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\n{cases}\nexec {shlex.join(checkout_command())} "$@"\n')
    path.chmod(0o755)


def run_python(text: str, folder: Path, environment: Mapping[str, str], *, timeout_s: float = 60) -> str:
    """Run a program of a page, warnings being errors, and return its standard output."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode == 0, text + ended.stdout + ended.stderr
    return ended.stdout


@cache
def cli() -> Mapping[str, frozenset[str]]:
    """Return every command of `ropewalk`, groups included, with its options; a group's members as "group member"."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, frozenset[str]]]:
        if name in FAMILIES:
            from importlib import import_module

            command = get_group(import_module(FAMILIES[name]).app)
        options = [text for one in command.params for text in (*one.opts, *one.secondary_opts)]
        yield name, frozenset(["-h", "--help", *options])
        for member, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{name} {member}".strip())

    return dict(walk(get_command(app), ""))
