"""Quick conversion of the words of a command line: it says what typer says, of right words and of wrong ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from tests.tools.conftest import ROOT, command_environment
from tools.common.values import convert_plain_values

WORDS = (
    "0", "7", "007", "-3", "+5", "12", "1_000", " 4 ", "1e3", "2.5", "2.50", ".5", "5.", "nan", "inf", "", "x",
    "9" * 15, "9" * 30, "\u0663", "true", "/", "/no/such/file", "-", "a b", "ä",
)  # fmt: skip


def one(word: Annotated[str, typer.Option()]) -> None: ...
def texts(word: Annotated[list[str] | None, typer.Option()] = None) -> None: ...
def many(word: Annotated[list[str], typer.Argument()]) -> None: ...
def number(word: Annotated[int, typer.Option()]) -> None: ...
def numbers(word: Annotated[list[int] | None, typer.Option()] = None) -> None: ...
def bounded(word: Annotated[int, typer.Option(min=1, max=9)] = 3) -> None: ...
def clamped(word: Annotated[int, typer.Option(min=1, max=9, clamp=True)] = 3) -> None: ...
def real(word: Annotated[float | None, typer.Option(min=0.5)] = None) -> None: ...
def path(word: Annotated[Path | None, typer.Option()] = None) -> None: ...
def file(word: Annotated[Path | None, typer.Option(exists=True, dir_okay=False)] = None) -> None: ...
def flag(word: Annotated[bool | None, typer.Option("--word/--no-word")] = None) -> None: ...
def parsed(word: Annotated[int, typer.Option(parser=lambda text: int(str(text), 16))] = 0) -> None: ...


FUNCTIONS = (one, texts, many, number, numbers, bounded, clamped, real, path, file, flag, parsed)


def given(function: Any, words: list[str], *, quickly: bool) -> object:
    """Return the parameters that a command is run with, or the reason why it is not run."""
    app = typer.Typer()
    app.command()(function)
    command = typer.main.get_command(app)
    if quickly:
        convert_plain_values(command)
    try:
        parameters = command.make_context("command", [*words]).params
    except Exception as exc:
        return type(exc), str(exc)
    return {name: (type(value), value) for name, value in parameters.items()}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_value_is_what_typer_makes_of_it(function: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = [
        [],
        *([word] if function is many else [f"--word={word}"] for word in (*WORDS, str(tmp_path / "file"))),
    ]
    words += [["--word=1", "--word=2"], ["1", "2"], ["--word"], ["--no-word"], ["--help=1"]]
    for each in words:
        assert given(function, each, quickly=True) == given(function, each, quickly=False), each


def test_what_is_plain_is_converted_without_pydantic() -> None:
    words = ["produce", "t", "x", "-n", "127.0.0.1:1", "--timeout", "0.1", "-p", "a=b", "-f", "/no/such"]
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('pydantic' in sys.modules))\n"
        f"sys.argv[1:] = {words!r}\n"
        "from ropewalk.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=command_environment(), capture_output=True, check=False
    )
    assert ended.stdout.split()[-1:] == [b"False"], ended
