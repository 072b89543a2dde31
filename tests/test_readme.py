"""The README is run: its tour against a real broker, its programs one after the other, its commands against the CLI."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import (
    ANYTHING,
    Command,
    blocks,
    check_shown,
    commands,
    program,
    run,
    run_python,
    section,
    shown,
    text_of,
)
from tests.support.processes import ROOT, checkout_command, checkout_environment, running_broker

LINES_MAX = 250
README, PYTHON, CLI = "README.md", "docs/tour/python.md", "docs/tour/cli.md"


def run_tour(tour: list[Command], folder: Path) -> None:
    """Run a page's commands against a broker on free ports, which they find by the stand-in's environment."""
    environment = checkout_environment()
    with running_broker(checkout_command(), cwd=folder, environment=environment) as broker:
        program(folder, f"export NAMESRV_ADDR={broker.namesrv}")
        for command in tour:
            check_shown(command, run(command, folder, environment))


def run_programs(text: str, folder: Path) -> list[str]:
    """Run the programs of a page one after the other, against one broker; return what each printed."""
    environment = checkout_environment()
    with running_broker(checkout_command(), "--ephemeral", cwd=folder, environment=environment) as broker:
        return [
            run_python(one.replace("127.0.0.1:9876", broker.namesrv), folder, environment)
            for one in blocks(text, "python")
            if "def test_" not in one
        ]


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(text_of(README).splitlines()) <= LINES_MAX


@pytest.mark.slow
def test_the_tour_does_what_it_shows(tmp_path: Path) -> None:
    run_tour(commands(section(README, "Five minutes")), tmp_path)


@pytest.mark.slow
def test_the_tour_of_the_command_line_does_what_it_shows(tmp_path: Path) -> None:
    run_tour(commands(text_of(CLI)), tmp_path)


@pytest.mark.slow
def test_the_programs_of_the_readme_run_one_after_the_other(tmp_path: Path) -> None:
    sent, consumed = run_programs(section(README, "From Python"), tmp_path)
    assert "SEND_OK" in sent
    assert consumed == "orders order-7 b'2 chairs'\n"


@pytest.mark.slow
def test_the_programs_of_the_tour_of_python_run_one_after_the_other(tmp_path: Path) -> None:
    outputs = run_programs(text_of(PYTHON), tmp_path)
    assert "SEND_OK" in outputs[0] and "acknowledged=4" in outputs[0]
    assert outputs[1].startswith("djEg"), "the handle of a message that waits"
    assert outputs[2] == "orders order-7 b'2 chairs'\n", "only that message has the tag"
    assert "messages, the first of them" in outputs[3]
    assert outputs[6] == "COMMIT True\n"
    assert re.search(r"^10[34] messages in orders$", outputs[8], re.MULTILINE), "one of them is delayed"
    assert re.search(r"^billing is \d+ messages behind$", outputs[8], re.MULTILINE)


@pytest.mark.slow
def test_the_python_tests_pass_with_their_program(tmp_path: Path) -> None:
    tests = [text for text in blocks(text_of(PYTHON), "python") if "def test_" in text]
    tested = (
        "from ropewalk import Producer\n"
        "def announce(order, *, name_server, topic):\n"
        "    with Producer(name_server) as producer:\n"
        "        producer.send(topic, order.encode())\n"
    )
    (tmp_path / "test_orders.py").write_text(tested + "\n".join(tests))
    words = [sys.executable, "-m", "pytest", "-q", f"--rootdir={tmp_path}", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*words, "test_orders.py"],
        cwd=tmp_path,
        env=checkout_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert f"{len(tests)} passed" in ended.stdout


@pytest.mark.parametrize(("document", "title"), [(README, "Five minutes"), (CLI, "")])
def test_a_tour_shows_each_command_a_newcomer_needs(document: str, title: str) -> None:
    tour = commands(section(document, title) if title else text_of(document))
    words = " ".join(command.words for command in tour)
    for command in ("produce", "consume", "pull", "store dump", "bench"):
        assert f".venv/bin/ropewalk {command}" in words
    assert not [one for one in tour if " -n " in one.words or "localhost" in one.words]


def test_programs_that_stand_on_two_pages_are_the_same() -> None:
    for title, page in (("From Python", PYTHON), ("Spark", "docs/tour/spark.md")):
        there = text_of(page)
        for one in blocks(section(README, title), "python"):
            lines = [line for line in one.splitlines() if line.strip()]
            assert all(line in there for line in lines), one


def test_make_run_installs_the_broker_alone_and_make_test_the_tools_beside_it() -> None:
    def told(target: str) -> str:
        words = ["make", "--dry-run", "--always-make", target]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "pip install" in told("run") and "spark" not in told("run")
    assert "-e .\n" in told("run") and "-e '.[dev,spark]'" in told("test")


def test_every_make_target_the_documents_name_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    for document in (README, "CONTRIBUTING.md"):
        assert set(re.findall(r"(?:`|^)make ([\w-]+)", text_of(document), re.MULTILINE)) <= targets


def test_expected_output_is_matched_line_by_line() -> None:
    assert shown(["sent 1", f"id {ANYTHING}", ANYTHING]).fullmatch("sent 1\nid ABC\nmore\nlines\n")
    assert not shown(["sent 1"]).fullmatch("sent 1\nand more\n")
    assert not shown(["sent 1"]).fullmatch("sent 12\n")
