"""The official Go client as a Python object: one program, built once, which plays scenarios and reports what it saw.

Go is a guest: where it is not installed the tests are skipped, with that reason. Where it is, a program that cannot be
built fails a run with CI=true, as for Java.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import IO

from tests.bench.peers.rocketmq.artifacts import cache_dir
from tests.compat.driver import Event, Run

SOURCES = Path(__file__).with_name("go")
BUILD_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 120.0


class GoMissing(Exception):
    """There is no Go on this machine."""


class GoBroken(Exception):
    """There is one, and the program cannot be built with it; the text says why."""


def built() -> Path:
    """The program, built from `tests/compat/go` with the modules that its go.sum names; kept between runs."""
    go = shutil.which("go")
    if go is None:
        raise GoMissing("go is not installed")
    hasher = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        hasher.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    target = cache_dir() / f"go-client-{hasher.hexdigest()[:16]}"
    if target.exists():
        return target
    partial = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-o", str(partial), "."],
        cwd=SOURCES,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise GoBroken(f"go build answered {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    partial.replace(target)
    return target


def play(namesrv: str, home: Path, prefix: str, *scenarios: str) -> Run:
    """Play the scenarios (none named: all) against the name server; topics are the prefix, a hyphen and the name."""
    command = [str(built()), namesrv, prefix, *scenarios]
    environment = _environment(home)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, env=environment
        )
        stdout, stderr = done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        stdout = (late.stdout or b"").decode(errors="replace")
        stderr = f"killed after {RUN_TIMEOUT_S:.0f} s\n" + (late.stderr or b"").decode(errors="replace")
    by_scenario: dict[str, list[Event]] = defaultdict(list)
    for line in stdout.splitlines():
        if line.startswith("{") and line.endswith("}"):
            event = json.loads(line)
            by_scenario[event["scenario"]].append(event)
    return Run("Go client 2.1.2", stderr, dict(by_scenario))


class GoDriver:
    """The official Go client, for a scenario that lasts until it is told to end."""

    def start(
        self, namesrv: str, home: Path, scenario: str, *, prefix: str, stderr: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Play one scenario that takes commands on standard input; its events come on standard output."""
        return subprocess.Popen(
            [str(built()), namesrv, prefix, scenario],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=_environment(home),
        )


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of the program; progress of broadcasting is kept in its HOME."""
    return {**os.environ, "HOME": str(home), "GOMAXPROCS": "2"}
