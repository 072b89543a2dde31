"""Texts of `ropewalk pipeline`: help, errors and documents name options that the command has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
import typer.main

from ropewalk.spark.options import option_names
from tools.pipeline.base import with_cli_names
from tools.pipeline.cli import app

ROOT: Final = Path(__file__).parents[2]
COMMANDS: Final = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS: Final[Mapping[str, set[str]]] = {
    name: {text for parameter in command.params for text in parameter.opts} | {"--help"}
    for name, command in COMMANDS.items()
}
WITH_SOURCE: Final = ("export", "latency", "replay", "stats", "tail")
JOBS: Final[Mapping[str, tuple[str, ...]]] = {
    "audit/": ("audit",),
    "common/": tuple(OPTIONS),
    "export/lake.py": ("export",),
    "export/lake_source.py": ("replay",),
    "export/sources.py": WITH_SOURCE,
    "export/": ("export",),
    "inspect.py": ("offsets", "schema", "tail"),
    "latency/": ("latency",),
    "rebuild/": ("rebuild",),
    "records/": ("audit", "rebuild", *WITH_SOURCE),
    "replay/": ("replay",),
    "stats/": ("stats",),
}
"""The commands that can show an error of each module of `ropewalk/spark/jobs`, by the first prefix that fits."""
UNSEEN: Final = ("jvm.py", "options.py", "tables.py", "writer.py")
"""Modules of `ropewalk/spark` whose texts no command shows, or of which it shows but the pieces below."""
LONG: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
NAMED: Final = re.compile(rf"\b({'|'.join(OPTIONS)}) (--[a-z][a-z0-9-]*)")


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a module that its user can see: all but docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            hidden |= {id(value) for value in node.values}
            yield "".join(
                str(value.value) if isinstance(value, ast.Constant) else "WORD" for value in node.values
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.value


def is_a_sentence(text: str) -> bool:
    return len(re.findall(r"\b[a-z]+\b", text)) > 3


def commands_of(path: Path) -> tuple[str, ...]:
    name = path.relative_to(ROOT / "ropewalk/spark/jobs").as_posix()
    return next(commands for prefix, commands in JOBS.items() if name.startswith(prefix))


def modules(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if path.name != "__init__.py"]


def test_the_help_of_each_command_names_options_that_it_has() -> None:
    for name, command in COMMANDS.items():
        help_texts = [command.help or "", *(getattr(one, "help", None) or "" for one in command.params)]
        for text in help_texts:
            if "`ropewalk" not in text:
                assert not set(LONG.findall(text)) - OPTIONS[name], (name, text)
            for other, option in NAMED.findall(text):
                assert option in OPTIONS[other], (name, text)


def test_errors_of_jobs_name_options_of_every_command_that_shows_them() -> None:
    for path in modules("ropewalk/spark/jobs"):
        for text in texts_of(path):
            if text.lstrip().startswith((":root", "<", "body {")) or "var(--" in text:
                continue  # a style sheet
            named = NAMED.findall(text)
            for other, option in named:
                assert option in OPTIONS[other], (path, text)
            for option in set(LONG.findall(text)) - {option for _, option in named}:
                for command in commands_of(path):
                    assert option in OPTIONS[command], (path.name, command, text)


def test_errors_of_the_command_line_name_options_of_some_command() -> None:
    every = set().union(*OPTIONS.values())
    for path in modules("tools/pipeline"):
        for text in texts_of(path):
            assert not set(LONG.findall(text)) - every, (path.name, text)


def test_documents_name_options_that_the_commands_have() -> None:
    every = set().union(*OPTIONS.values())
    checked = 0
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        for line in re.sub(r"\\\n", " ", text).splitlines():
            for command, rest in re.findall(r"ropewalk pipeline (\w+)([^`|&;#]*)", line):
                if command in OPTIONS:
                    checked += 1
                    assert not set(LONG.findall(rest)) - OPTIONS[command], (path.name, line)
    jobs = (ROOT / "docs/tour/spark.md").read_text(encoding="utf-8").partition("## Jobs")[2]
    assert not set(LONG.findall(jobs)) - every
    for title, section in re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", jobs, re.MULTILINE | re.DOTALL):
        assert not set(LONG.findall(section)) - OPTIONS[title.lower()], title
    assert checked > 10


def test_errors_of_the_data_source_name_options_of_commands_and_no_others() -> None:
    """The data source has options of its own; a command has a word for some of them, and is silent about the others."""
    foreign = {name for name in option_names() if re.search("[a-z][A-Z]", name)} | {"checkpointLocation"}
    foreign -= {"brokerName"}  # a column too
    changed = 0
    for path in modules("ropewalk/spark"):
        if "jobs" not in path.parts:
            for text in texts_of(path):
                if not is_a_sentence(text) or path.name in UNSEEN:
                    continue
                whole = f"this failed. {text}"
                spoken = with_cli_names(whole)
                changed += spoken != whole
                assert not foreign & set(re.findall(r"\w+", spoken)), (path.name, spoken)
                every = set().union(*(OPTIONS[name] for name in WITH_SOURCE))
                assert not set(LONG.findall(spoken)) - every, (path.name, spoken)
    assert changed > 20


@pytest.mark.parametrize(
    ("said", "spoken"),
    [
        (
            "100 messages are gone. Set failOnDataLoss=false to go on without them, or start anew with a fresh "
            "checkpointLocation",
            "100 messages are gone. Set --on-data-loss skip to go on without them",
        ),
        (
            "queue 1: bad body. onCorrupt=skip leaves such messages out, onCorrupt=keep shows their bodies as stored",
            "queue 1: bad body. --on-corrupt skip leaves such messages out",
        ),
        (
            "broker a has not answered for 30 s (pullTimeoutMs is 30000): refused",
            "broker a has not answered for 30 s: refused",
        ),
        (
            "a has no queues, so nothing says where its log safely ends: use endAt=scan for a log, or endAt=OFFSET",
            "a has no queues, so nothing says where its log safely ends",
        ),
        ("option nameServer: h: no port", "--name-server: h: no port"),
        ("option startingTimestamp is 'x'", "--since is 'x'"),
        ("option endingTimestamp lies before startingTimestamp", "--until lies before --since"),
        (
            "option path is empty: it names the directory of a store",
            "--store is empty: it names the directory of a store",
        ),
        ("splitMode=queue is for batch reads", "splitMode=queue is for batch reads"),
        ("topic orders does not exist", "topic orders does not exist"),
        ("it is no condition over topic, brokerName", "it is no condition over topic, brokerName"),
    ],
)
def test_an_error_is_said_in_the_words_of_the_command(said: str, spoken: str) -> None:
    assert with_cli_names(said) == spoken
