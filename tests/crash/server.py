"""A broker that is meant to die: started on one directory again and again, killed, and asked to stop.

`Server` is one incarnation. Its standard error is kept per incarnation, since what a start says about the
crash before it is evidence. `launch` starts one without waiting for its ready line, to be killed meanwhile.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes import FREE_PORTS, READY_TIMEOUT_S, checkout_environment, first_line

STOP_TIMEOUT_S = 30.0


class NoStart(AssertionError):
    """The broker ended, or said nothing, instead of printing its ready line."""


@dataclass
class Place:
    """Where incarnations follow each other: one directory, one command, one list of settings."""

    root: Path
    """Holds `store` and the standard error of each incarnation."""
    command: Sequence[str]
    """What stands before `broker`: the words that start `ropewalk`, with a planted bug or a tracer, or without."""
    settings: dict[str, str | int] = field(default_factory=dict)
    incarnations: int = 0

    @property
    def store(self) -> Path:
        return self.root / "store"

    def launch(self) -> subprocess.Popen[bytes]:
        """Start an incarnation and return at once."""
        self.incarnations += 1
        arguments = [f"--set={key}={value}" for key, value in self.settings.items()]
        with self.errors_path.open("wb") as errors:
            return subprocess.Popen(
                [
                    *self.command,
                    "broker",
                    "--json",
                    *FREE_PORTS,
                    f"--set=storePathRootDir={self.store}",
                    *arguments,
                ],
                cwd=self.root,
                env=checkout_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    @property
    def errors_path(self) -> Path:
        return self.root / f"stderr-{self.incarnations:03}.txt"

    def errors(self) -> str:
        """What the newest incarnation wrote to standard error."""
        return self.errors_path.read_text(errors="replace")


class Server:
    """One incarnation that has become ready. Leaving the context kills it if nobody else has ended it."""

    def __init__(self, place: Place) -> None:
        """Start it and wait. Raises `NoStart`, with what it wrote to standard error."""
        self.place = place
        self.process = place.launch()
        try:
            line = first_line(self.process, READY_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        if not line:
            self.kill()
            raise NoStart(f"no ready line; exit status {self.process.returncode}:\n{place.errors()}")
        self.ready: dict[str, Any] = json.loads(line)
        self.address = str(self.ready["broker"])
        self.namesrv = str(self.ready["namesrv"])

    def kill(self) -> None:
        """kill -9, and wait until the kernel has taken everything back."""
        kill(self.process)

    def terminate(self) -> int:
        """SIGTERM, and the exit status. Raises `subprocess.TimeoutExpired` when it does not end."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 one process and reap it; one that has ended already is only reaped."""
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
