"""Programs in sessions of their own, so that nothing of them survives a test: Spark starts many processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PATIENCE_S = 300


class SessionProcess:
    """A command, with everything that it starts."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                list(command),
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=None if env is None else dict(env),
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def members(self, *words: str) -> list[int]:
        """Processes of this command's session whose command line has all of these words."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError):
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if session == self.process.pid and all(word in line for word in words):
                    found.append(int(entry.name))
        return found

    def wait_for(self, happened: Callable[[], bool], what: str) -> bool:
        """False if the command ended first."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            if self.ended:
                return False
            assert time.monotonic() < deadline, f"{what} did not happen: {self.log.read_text()[-3000:]}"
            time.sleep(0.02)
        return True

    def kill_all(self) -> None:
        """SIGKILL the command and whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 10
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.05)
