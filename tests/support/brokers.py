"""Brokers as processes, started and asked in one line each; also a name server, and a broker that must not start."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.client.blocking.connection import Connection
from ropewalk.format.remoting import Command
from tests.support.processes import (
    RunningBroker,
    checkout_command,
    checkout_environment,
    running_broker,
)

PATIENCE_S = 30.0


@contextmanager
def broker(cwd: Path, *arguments: str, command: list[str] | None = None) -> Iterator[RunningBroker]:
    words = command or checkout_command()
    with running_broker(words, *arguments, cwd=cwd, environment=checkout_environment()) as running:
        yield running


def ask(
    connection: Connection, code: int, ext: dict[str, object] | None = None, body: bytes = b""
) -> Command:
    fields = {name: str(value) for name, value in (ext or {}).items()}
    return connection.call(Command(code, fields, body), PATIENCE_S)


def address_of(running: RunningBroker, what: str = "broker") -> str:
    return str(running.ready[what])


def fails(
    cwd: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    command: list[str] | None = None,
) -> tuple[int, str]:
    """Start a broker that must not start; its exit code and what it wrote."""
    ended = subprocess.run(
        [*(command or checkout_command()), "broker", *arguments],
        cwd=cwd,
        env={**checkout_environment(), **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    text = (ended.stdout + ended.stderr).decode()
    assert "Traceback" not in text
    return ended.returncode, " ".join(text.replace("\u2502", " ").split())


def stderr_of(cwd: Path) -> str:
    return (cwd / "broker-stderr.txt").read_text()


@contextmanager
def name_server(cwd: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [*checkout_command(), "namesrv", "--port", "0", "--json"],
        cwd=cwd,
        env=checkout_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["namesrv"]
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
