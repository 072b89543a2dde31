"""The log of a server process: levels, the two forms, rotation by renaming, and peers that repeat themselves."""

import io
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

import ropewalk
from broker.process.logs import BURST, LogFile, RepeatLimit, configure_logs, render_text, set_log_level
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.support.clocks import Clock
from tests.support.processes import checkout_command, checkout_environment, first_line, running_broker, stop

MINUTE_NS = 60_000_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def logs(stream: io.StringIO, **options: Any) -> Iterator[Any]:
    """Set up the log of this process, and give back structlog's own afterwards."""
    arguments = {"level": "info", "form": "auto", "file": None, "clock_ns": Clock(0).nanoseconds} | options
    configure_logs(**arguments, stderr=stream)
    try:
        yield structlog.get_logger("broker.test")
    finally:
        set_log_level("info")
        structlog.reset_defaults()


def test_a_terminal_gets_text_with_the_time_first() -> None:
    with logs(stream := Terminal()) as log:
        log.warning("hung up", peer="10.0.0.1:5", reason="a TLS hello")
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z") and time[10] == "T"
    assert rest == 'warning  broker.test: hung up peer=10.0.0.1:5 reason="a TLS hello"\n'


@pytest.mark.parametrize(("stream", "form"), [(io.StringIO(), "auto"), (Terminal(), "json")])
def test_elsewhere_each_event_is_one_json_object_with_the_time_first(stream: io.StringIO, form: str) -> None:
    with logs(stream, form=form) as log:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            log.exception("a request failed", code=10)
    [line] = stream.getvalue().splitlines()
    event = json.loads(line)
    assert list(event)[:4] == ["timestamp", "level", "logger", "event"]
    assert (event["level"], event["logger"], event["code"]) == ("error", "broker.test", 10)
    assert "ValueError: two\nlines" in event["exception"]


def test_the_words_of_a_peer_cannot_make_a_second_line() -> None:
    forged = 'x\n2026-01-01T00:00:00Z info  broker: all is well\x1b[2J a="b"'
    text = render_text(None, "info", {"timestamp": "t", "level": "info", "event": forged, "reason": forged})
    assert len(text.splitlines()) == 1 and text.isprintable()


def test_a_level_drops_what_is_less_serious_and_can_change_while_the_process_runs() -> None:
    with logs(stream := io.StringIO(), level="warning") as log:
        log.info("first")
        log.warning("second")
        set_log_level("info")
        log.info("third")
        set_log_level("error")
        log.warning("fourth")
        log.exception("fifth")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "second",
        "third",
        "fifth",
    ]


def test_a_renamed_or_removed_file_is_opened_anew_and_no_line_is_lost(tmp_path: Path) -> None:
    path, errors = tmp_path / "broker.log", io.StringIO()
    file = LogFile(path, errors)
    file.write("one")
    path.rename(tmp_path / "broker.log.1")
    file.write("two")
    path.unlink()
    file.write("three")
    file.close()
    assert (tmp_path / "broker.log.1").read_text() == "one\n"
    assert path.read_text() == "three\n"
    assert path.stat().st_mode & 0o007 == 0, "others cannot read it"
    assert not errors.getvalue()


def test_a_file_that_cannot_be_written_leaves_its_lines_to_standard_error(tmp_path: Path) -> None:
    folder, errors = tmp_path / "logs", io.StringIO()
    folder.mkdir()
    file = LogFile(folder / "broker.log", errors)
    folder.rename(tmp_path / "gone")
    folder.write_text("a file where the folder was")
    file.write("one")
    file.write("two")
    folder.unlink()
    folder.mkdir()
    file.write("three")
    file.close()
    assert errors.getvalue().splitlines() == [
        f"the log file {folder / 'broker.log'} cannot be written: Not a directory",
        "one",
        "two",
    ]
    assert (folder / "broker.log").read_text() == "three\n"


def test_a_peer_that_repeats_itself_gets_a_few_lines_a_minute_and_is_counted() -> None:
    clock = Clock(0)
    with logs(stream := io.StringIO(), clock_ns=clock.nanoseconds) as log:
        for port in range(BURST + 7):
            log.warning("hung up", peer=f"10.0.0.1:{port}", reason="a TLS hello")
        log.warning("hung up", peer="10.0.0.2:1", reason="a TLS hello")
        log.warning("hung up", peer="10.0.0.1:1", reason="silence")
        clock.ms = 60_000
        log.warning("hung up", peer="10.0.0.1:1", reason="a TLS hello")
        log.warning("hung up", peer="10.0.0.1:1", reason="a TLS hello")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(events) == BURST + 4
    assert [event.get("left_out", 0) for event in events] == [0] * (BURST + 2) + [7, 0]


def test_strangers_without_number_take_no_memory_without_bound() -> None:
    limit = RepeatLimit(Clock(0).nanoseconds)
    for number in range(2_000):
        limit(None, "info", {"level": "info", "event": "hung up", "peer": f"10.0.{number % 256}.{number}:1"})
    assert len(limit._windows) <= 512


# -- the processes ---------------------------------------------------------------------------------------


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_broker_logs_its_life_to_a_file_that_can_be_rotated(tmp_path: Path) -> None:
    path, old = tmp_path / "broker.log", tmp_path / "broker.log.1"
    with running_broker(
        checkout_command(), "--log-file", str(path), cwd=tmp_path, environment=checkout_environment()
    ) as running:
        path.rename(old)
        host, _, port = str(running.ready["broker"]).rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(100) == b""
    assert events_of(old)[0]["event"] == "starting"
    events = events_of(path)
    assert [event["event"] for event in events if event["level"] == "warning"] == ["hung up"]
    assert events[-1]["event"] == "stopped"
    assert next(event for event in events if event["event"] == "stopping")["signal"] == "SIGTERM"
    assert not (tmp_path / "broker-stderr.txt").read_text()


def test_the_level_of_a_running_broker_changes_by_an_administrators_word(tmp_path: Path) -> None:
    environment = checkout_environment() | {"ROPEWALK_LOG_LEVEL": "warning"}
    with (
        running_broker(checkout_command(), cwd=tmp_path, environment=environment) as running,
        Connection(str(running.ready["broker"])) as connection,
    ):
        for level in ("error", "info"):
            answer = connection.call(
                Command(RequestCode.UPDATE_BROKER_CONFIG, {}, f"logLevel={level}".encode()), 30
            )
            assert answer.code == 0
        refused = connection.call(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"logLevel=loud"), 30)
    assert "must be one of debug, info" in (refused.remark or "")
    events = [event["event"] for event in events_of(tmp_path / "broker-stderr.txt")]
    assert "stopping" in events and "registered" not in events


def ended(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [*checkout_command(), *arguments],
        env=environment or checkout_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_what_is_wrong_about_a_log_is_said_before_anything_starts(tmp_path: Path) -> None:
    for command in (("broker", "--ephemeral"), ("namesrv", "--port", "0")):
        status, text = ended(*command, "--log-level", "loud")
        assert status == 2 and "must be one of debug, info, warning, error, critical" in text
        status, text = ended(*command, "--log-file", str(tmp_path / "no" / "such" / "folder"))
        assert status not in (0, 2) and "cannot append to the log file" in text and "Traceback" not in text


def test_a_name_server_takes_its_log_from_options_and_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.log"
    environment = checkout_environment() | {"ROPEWALK_LOG_FILE": str(path), "ROPEWALK_LOG_FORMAT": "text"}
    process = subprocess.Popen(
        [*checkout_command(), "namesrv", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert first_line(process, 30)
    finally:
        stop(process)
    assert f"starting version={ropewalk.__version__} pid={process.pid}" in path.read_text()
    assert os.path.getsize(path)
