"""A broker as a process of its own, for tests that must see what a user sees.

It is started on free ports of the loopback interface and found through its ready line, which `--json`
makes one JSON object. Whatever happens in the test, the process is gone at its end.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FREE_PORTS = ("--set", "listenPort=0", "--namesrv-port", "0")
READY_KEYS = {"version", "broker", "namesrv", "ha", "dataDir", "mode", "sendOk"}
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class RunningBroker:
    """A broker that has printed its ready line."""

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]

    @property
    def namesrv(self) -> str:
        """The address of its embedded name server, as clients take it with `-n`."""
        return str(self.ready["namesrv"])


def checkout_environment() -> dict[str, str]:
    """This process's environment, with the checkout importable from any working directory."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def checkout_command() -> list[str]:
    """The words that start `ropewalk` from the checkout under the interpreter of the tests."""
    return [sys.executable, "-m", "ropewalk"]


def first_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """The first line of standard output, or b"" at its end or after the timeout.

    The thread goes on to drain the pipe, so that a talkative process never blocks on it.
    """
    assert process.stdout is not None
    stream = process.stdout
    lines: queue.Queue[bytes] = queue.Queue(maxsize=1)

    def read() -> None:
        lines.put(stream.readline())
        while stream.read(65_536):
            pass

    threading.Thread(target=read, daemon=True).start()
    try:
        return lines.get(timeout=timeout_s)
    except queue.Empty:
        return b""


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ask the process to end and return its status; kill it when it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
    return process.returncode


@contextmanager
def running_broker(
    command: Sequence[str],
    *arguments: str,
    cwd: Path,
    environment: Mapping[str, str],
) -> Iterator[RunningBroker]:
    """Start `<command> broker <arguments>` on free ports in `cwd`; stop it at the end.

    Raises AssertionError with what it wrote to standard error when no ready line comes.
    """
    errors = cwd / "broker-stderr.txt"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "broker", *FREE_PORTS, "--json", *arguments],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        line = first_line(process, READY_TIMEOUT_S)
        assert line, f"no ready line; standard error was:\n{errors.read_text(errors='replace')}"
        yield RunningBroker(process, json.loads(line))
    finally:
        stop(process)
