"""Rounds of load and kill -9 on one directory, all chances drawn from one seed.

A seed fixes what is sent, when the kill comes, and how often a start is killed too. The processes race as
processes do, so a seed brings back the schedule and not the instruction; `ROPEWALK_CRASH_SEED` sets it.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.audit import Audit
from tests.crash.load import Ledger, join_load, start_load, stop_load
from tests.crash.server import NoStart, Place, Server, kill
from tests.support.long_run import LONG
from tests.support.processes import checkout_command

MIB = 1024 * 1024
QUICK_SEED = 11
SAVE_INTERVAL_S = 0.3
_SHOWN = 12
_LONG_ROUND_S = 3.2  # longer than SAVE_INTERVAL_S and the audit's slack: here committed offsets are at stake


def chosen_seed() -> int:
    """Return `ROPEWALK_CRASH_SEED`, or a new seed in the long run, or the one that gives each commit one verdict."""
    given = os.environ.get("ROPEWALK_CRASH_SEED")
    if given:
        return int(given)
    return random.SystemRandom().randrange(1 << 32) if LONG else QUICK_SEED


@dataclass(frozen=True, slots=True)
class Setup:
    """How the broker under test is configured."""

    flush: str = "ASYNC_FLUSH"
    segment_size: int | None = MIB
    """Bytes; None keeps the default of 1 GiB."""

    def settings(self) -> dict[str, str | int]:
        settings: dict[str, str | int] = {
            "flushDiskType": self.flush,
            "flushConsumerOffsetInterval": round(SAVE_INTERVAL_S * 1000),
            "maxTransferCountOnMessageInMemory": 1024,
            "maxTransferBytesOnMessageInMemory": 2 * MIB,
        }
        if self.segment_size is not None:
            settings["mappedFileSizeCommitLog"] = self.segment_size
        return settings


class Campaign:
    """One store directory and everything that happens to it."""

    def __init__(self, root: Path, seed: int, setup: Setup, *, command: Sequence[str] | None = None) -> None:
        self.seed = seed
        self.ledger = Ledger()
        self.audit = Audit(self.ledger)
        self.place = Place(root, command or checkout_command(), setup.settings())
        self.kills = 0
        self._setup = setup
        self._rng = random.Random(f"{seed} {setup}")
        self._start_s = 1.0
        self._killed_at: float | None = None

    # -- the parts -----------------------------------------------------------------------------------

    def start(self) -> Server | None:
        """The next incarnation; None if it does not start, which is a violation."""
        began = time.monotonic()
        try:
            server = Server(self.place)
        except NoStart as exc:
            self.audit.report("start", str(exc))
            return None
        self._start_s = time.monotonic() - began
        return server

    def interrupted_start(self) -> None:
        """Start, and kill -9 somewhere between the first instruction and the ready line or shortly after it."""
        process = self.place.launch()
        try:
            process.wait(self._rng.uniform(0.4, 1.1) * self._start_s)
        except subprocess.TimeoutExpired:
            pass
        else:
            self.audit.report("start", f"it ended by itself:\n{self.place.errors()}")
        kill(process)
        self.kills += 1

    def look(self, server: Server, *, again: bool = False) -> None:
        """Audit a running broker; what the last kill may have cost is known from when it came."""
        self.audit.pull(server.address, server.namesrv, again=again)
        self.audit.commits(server.address, self._killed_at, SAVE_INTERVAL_S)

    def load_and_kill(self, server: Server, *, seconds: float, quiet: float = 0.0) -> None:
        """Load for some time, fall silent for some more, and kill -9."""
        threads = start_load(server.address, self.ledger, self.place.incarnations, self._rng)
        time.sleep(seconds)
        if quiet:
            stop_load(threads)
            time.sleep(quiet)
        self._killed_at = time.monotonic()
        server.kill()
        self.kills += 1
        join_load(threads)

    def load_and_terminate(self, server: Server, *, seconds: float) -> None:
        """SIGTERM under load; the rest of a graceful stop is looked at too."""
        threads = start_load(server.address, self.ledger, self.place.incarnations, self._rng)
        time.sleep(seconds)
        self.terminate(server)
        join_load(threads)

    def terminate(self, server: Server) -> None:
        try:
            status = server.terminate()
        except subprocess.TimeoutExpired:
            self.audit.report("stop", "it does not end after SIGTERM")
            return
        self._killed_at = None
        if status != 0:
            self.audit.report("stop", f"exit status {status} after SIGTERM:\n{self.place.errors()}")
        if (self.place.store / "abort").exists():
            self.audit.report("stop", "the file `abort` is still there after a graceful stop")

    # -- the whole -----------------------------------------------------------------------------------

    def run(self, kills: int) -> None:
        """Rounds until the broker was killed so often, then one look at everything. Ends at a violation."""
        while self.kills < kills and not self.audit.violations:
            server = self.start()
            if server is None:
                return
            with server:
                self.look(server)
                if self.audit.violations:
                    return
                self._round(server)
            if self.kills < kills and self._rng.random() < 0.4:
                for _ in range(min(self._rng.randint(1, 2), kills - self.kills)):
                    self.interrupted_start()
        self.finish()

    def _round(self, server: Server) -> None:
        chance = self._rng.random()
        if chance < 0.15:
            self.load_and_kill(server, seconds=_LONG_ROUND_S)
        elif chance < 0.4:
            self.load_and_kill(
                server, seconds=self._rng.uniform(0.2, 1.0), quiet=self._rng.uniform(0.15, 0.6)
            )
        else:
            self.load_and_kill(server, seconds=self._rng.uniform(0.1, 1.5))

    def finish(self) -> None:
        """Start once more, read everything again, stop in good order, and read the files."""
        if self.audit.violations:
            return
        server = self.start()
        if server is None:
            return
        with server:
            self.look(server, again=True)
            self.terminate(server)
        self.audit.offline(self.place.store)

    def verdict(self) -> str:
        """What was found, for people; empty if nothing was broken."""
        troubles = [f"load: {text}" for text in self.ledger.troubles]
        found = [*map(str, self.audit.violations), *troubles]
        if not found:
            return ""
        more = [f"... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        return "\n".join(
            [
                f"seed {self.seed}, {self._setup}, kills {self.kills}, acknowledged "
                f"{self.ledger.acknowledged_count} (again: ROPEWALK_CRASH_SEED={self.seed})",
                *found[:_SHOWN],
                *more,
                f"files: {self.place.root}",
            ]
        )
