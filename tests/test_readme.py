"""The README is run: its tour against a real broker, its map against the files, its commands against the CLI.

The tour's commands are taken word for word. The test stands a small program in the place of
`.venv/bin/ropewalk` that adds the address of the broker it started, on free ports, in a folder of its own.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from tests.processes import ROOT, checkout_command, checkout_environment, running_broker
from tools.cli import app

ROOMS = ("ropewalk", "store", "ha", "broker", "tools")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ANYTHING = "…"  # in an expected line: any text; alone on a line: any number of lines


def section(title: str) -> str:
    """The text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"the README has no section {title!r}"
    return found.group(1)


def tour() -> list[tuple[str, list[str]]]:
    """The commands of the tour in order, each with the output the README shows for it."""
    steps: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", section("Five minutes"), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return steps


def shown(expected: list[str]) -> re.Pattern[str]:
    """A pattern for the whole of an output, from the lines the README shows."""
    parts = [
        r"(?:.*\n)*?" if line == ANYTHING else ".*?".join(map(re.escape, line.split(ANYTHING))) + r" *\n"
        for line in expected
    ]
    return re.compile("".join(parts))


def commands_of_the_cli() -> set[str]:
    """Every command the CLI offers, a group's members as "group member"."""

    def walk(command: object, name: str) -> Iterator[str]:
        members = getattr(command, "commands", None)
        if members is None:
            yield name
        else:
            for member, inner in members.items():
                yield from walk(inner, f"{name} {member}".strip())

    return set(walk(get_command(app), ""))


def stand_in(folder: Path, namesrv: str) -> None:
    """Put a `.venv/bin/ropewalk` into the folder that runs the checkout against this name server."""
    command = shlex.join(checkout_command())
    program = folder / ".venv" / "bin" / "ropewalk"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'  produce|consume|pull) name=$1; shift; exec {command} "$name" -n {namesrv} "$@" ;;\n'
        f'  bench) name=$2; shift 2; exec {command} bench "$name" -n {namesrv} "$@" ;;\n'
        f'  *) exec {command} "$@" ;;\n'
        "esac\n"
    )
    program.chmod(0o755)


@pytest.mark.slow
def test_the_tour_does_what_it_shows(tmp_path: Path) -> None:
    environment = checkout_environment() | {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    with running_broker(checkout_command(), cwd=tmp_path, environment=environment) as broker:
        stand_in(tmp_path, broker.namesrv)
        for command, expected in tour():
            ended = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # the README shows what a terminal shows
                text=True,
                timeout=60,
                check=False,
            )
            told = f"$ {command}\n{ended.stdout}"
            assert ended.returncode == 0, told
            if expected:
                assert shown(expected).fullmatch(ended.stdout), (
                    told + "\nthe README shows:\n" + "\n".join(expected)
                )


def python_blocks() -> list[str]:
    """The programs of the section about Python, in order."""
    return re.findall(r"^```python\n(.*?)^```", section("From Python"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_python_programs_run_one_after_the_other(tmp_path: Path) -> None:
    environment = checkout_environment()
    programs = [text for text in python_blocks() if "def test_" not in text]
    assert len(programs) >= 4
    outputs: list[str] = []
    with running_broker(checkout_command(), "--ephemeral", cwd=tmp_path, environment=environment) as broker:
        for text in programs:
            ended = subprocess.run(
                [sys.executable, "-W", "error", "-c", text.replace("127.0.0.1:9876", broker.namesrv)],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert ended.returncode == 0, text + ended.stdout + ended.stderr
            outputs.append(ended.stdout)
    assert "SEND_OK" in outputs[0] and "acknowledged=4" in outputs[0]
    assert outputs[1] == "orders order-7 b'2 chairs'\n", "only that message has the tag"
    assert "messages, the first of them" in outputs[2]
    assert re.search(r"^10[34] messages in orders$", outputs[5], re.MULTILINE), "one of them is delayed"
    assert re.search(r"^billing is \d+ messages behind$", outputs[5], re.MULTILINE)


@pytest.mark.slow
def test_the_python_test_passes_with_its_program(tmp_path: Path) -> None:
    (test,) = (text for text in python_blocks() if "def test_" in text)
    program = (
        "from ropewalk import Producer\n"
        "def announce(order, *, name_server, topic):\n"
        "    with Producer(name_server) as producer:\n"
        "        producer.send(topic, order.encode())\n"
    )
    (tmp_path / "test_orders.py").write_text(program + test)
    command = [sys.executable, "-m", "pytest", "-q", f"--rootdir={tmp_path}", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, "test_orders.py"],
        cwd=tmp_path,
        env=checkout_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


def test_the_tour_shows_each_command_a_newcomer_needs() -> None:
    words = " ".join(command for command, _ in tour())
    for command in ("produce", "consume", "pull", "store dump", "bench"):
        assert f".venv/bin/ropewalk {command}" in words


def test_every_command_the_readme_names_exists() -> None:
    named = set(re.findall(r"(?:`|\$ |\| )(?:\.venv/bin/)?ropewalk ([a-z]+(?: [a-z]+)?)", README))
    commands = commands_of_the_cli()
    groups = {command.split()[0] for command in commands if " " in command}
    for words in named:
        first = words.split()[0]
        known = any(f"{command} ".startswith(f"{words} ") for command in commands)
        assert known if first in groups else first in commands, f"the README names `ropewalk {words}`"


def test_the_map_names_every_module_and_only_what_exists() -> None:
    named = set(re.findall(r"^\| `([\w./]+)`", section("The map"), re.MULTILINE))
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, f"on the map, not in the house: {missing}"
    folders = tuple(name for name in named if name.endswith("/") and name.strip("/") not in ROOMS)
    modules = (
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.name != "__init__.py"
    )
    unnamed = [name for name in modules if name not in named and not name.startswith(folders)]
    assert not unnamed, f"in the house, not on the map: {unnamed}"


def test_the_map_lists_a_module_once() -> None:
    rows = re.findall(r"^\| `([\w./]+)`", section("The map"), re.MULTILINE)
    assert sorted(rows) == sorted(set(rows))


def test_every_make_target_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)`", README)) <= targets


def test_the_tour_cannot_be_pointed_elsewhere_by_accident() -> None:
    assert not [command for command, _ in tour() if " -n " in command or "localhost" in command]


def test_expected_output_is_matched_line_by_line() -> None:
    assert shown(["sent 1", f"id {ANYTHING}", ANYTHING]).fullmatch("sent 1\nid ABC\nmore\nlines\n")
    assert not shown(["sent 1"]).fullmatch("sent 1\nand more\n")
    assert not shown(["sent 1"]).fullmatch("sent 12\n")
    assert os.linesep == "\n"
