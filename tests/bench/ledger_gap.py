"""Time without a stored message when a DLedger group changes its leader: `python -m tests.bench.ledger_gap`.

Three brokers and a name server run as processes. A sender that tries the members in turn, one message after the other,
stores all the time. Four ways to change the leader:

    SIGKILL, SIGSTOP  the gap is the time from the signal to the next SEND_OK of another member; the lost one comes
                      back and catches up before the next trial
    transfer          an administrator's command; the gap is the longest time between two SEND_OK around it
    restart           a rolling restart, the leader last: each member in turn gets SIGTERM and is started again. A
                      trial is the whole round; the gap of each of its steps is the longest between two SEND_OK

Nothing is asserted.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import Message, send_request
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import RopewalkError
from tests.crash.ledger_group import LedgerGroup, Member
from tests.support.waiting import until

BEFORE_S = 1.0
PAUSE_S = 0.002
CALL_S = 1.0
GIVE_UP_S = 30.0
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
WAYS = (*sorted(SIGNALS), "restart", "transfer")


class Sender:
    """One connection at a time, to whichever member stores."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._command = send_request("gap", Queue("", 0), Message(b"x" * 128), "K", 0)

    def stores(self, member: Member) -> bool:
        """Return whether the member answers one message with SEND_OK."""
        try:
            if self._connection is None or str(self._connection.address) != member.address:
                self.close()
                self._connection = Connection(member.address, CALL_S)
            return self._connection.call(self._command, CALL_S).code == ResponseCode.SUCCESS
        except (RopewalkError, OSError):
            self.close()
            return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def gap_s(group: LedgerGroup, number: signal.Signals) -> float:
    """Lose the leader once; return the seconds until another member stores a message."""
    leader, sender = group.leader(), Sender()
    others = [member for member in group.members if member is not leader]
    began = time.monotonic()
    while time.monotonic() < began + BEFORE_S:
        sender.stores(leader)
    sender.close()
    lost = time.monotonic()
    leader.signal(number)
    try:
        while not any(sender.stores(member) for member in others):
            time.sleep(PAUSE_S)
            if time.monotonic() > lost + GIVE_UP_S:
                raise SystemExit(f"no other member stores {GIVE_UP_S:g} s after {number.name} of {leader.id}")
        return time.monotonic() - lost
    finally:
        sender.close()
        if number == signal.SIGKILL:
            leader.kill()
            leader.start()
        else:
            leader.signal(signal.SIGCONT)
        until(lambda: _is_whole(group), "the lost member does not catch up", patience_s=60.0, pause_s=0.1)


class SteadySender:
    """A sender in a thread of its own, which notes when each of its messages was stored."""

    def __init__(self, group: LedgerGroup) -> None:
        self.stored: list[float] = []
        self._group = group
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SteadySender:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        sender, at = Sender(), 0
        while not self._ends.is_set():
            if sender.stores(self._group.members[at % len(self._group.members)]):
                self.stored.append(time.monotonic())
            else:
                at += 1
                self._ends.wait(PAUSE_S)
        sender.close()

    def longest_gap_s(self, step: Callable[[], None]) -> float:
        """Take a step; return the longest time between two stored messages around it."""
        first = len(self.stored)
        until(lambda: len(self.stored) > first, "nothing is stored")
        step()
        then = len(self.stored)
        until(lambda: len(self.stored) > then + 1, "nothing is stored any more")
        return max(later - earlier for earlier, later in pairwise(self.stored[first:]))


def transfer_gap_s(group: LedgerGroup) -> float:
    """Transfer the lead once; return the longest time without a stored message."""

    def transfer() -> None:
        with Admin(group.name_server) as admin:
            admin.transfer_lead("broker-a")

    with SteadySender(group) as sender:
        time.sleep(BEFORE_S)
        gap = sender.longest_gap_s(transfer)
    until(lambda: _is_whole(group), "the members do not agree", patience_s=60.0, pause_s=0.1)
    return gap


def restart_gaps_s(group: LedgerGroup) -> dict[str, float]:
    """Restart each member, the leader last; return the longest gap of each step."""
    leader = group.leader()
    gaps: dict[str, float] = {}
    for member in [*(each for each in group.members if each is not leader), leader]:

        def restart(member: Member = member) -> None:
            member.signal(signal.SIGTERM)
            member.process.wait(60)
            member.kill()
            member.start()
            until(lambda: _follows_closely(group), "the restarted member does not catch up", pause_s=0.1)

        with SteadySender(group) as sender:
            time.sleep(BEFORE_S)
            name = "leader" if member is leader else f"follower {len(gaps) + 1}"
            gaps[name] = sender.longest_gap_s(restart)
    until(lambda: _is_whole(group), "the members do not agree", patience_s=60.0, pause_s=0.1)
    return gaps


def _is_whole(group: LedgerGroup) -> bool:
    found = group.status()
    leads = [each for each in found if each.leads]
    return len(found) == len(group.members) and len(leads) == 1 and len({each.end for each in found}) == 1


def _follows_closely(group: LedgerGroup) -> bool:
    """Whether all members are there, and lack no more than what is on its way under this load."""
    found = group.status()
    ends = [each.end for each in found]
    return (
        len(found) == len(group.members) and any(each.leads for each in found) and max(ends) - min(ends) < 100
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="how often each way (default: 20)")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ropewalk-gap-") as folder, LedgerGroup(Path(folder)) as group:
        for way in options.way or WAYS:
            if way in SIGNALS:
                show(way, [gap_s(group, SIGNALS[way]) for _ in range(options.trials)])
            elif way == "transfer":
                group.leader()
                show(way, [transfer_gap_s(group) for _ in range(options.trials)])
            else:
                rounds = [restart_gaps_s(group) for _ in range(options.trials)]
                for step in rounds[0]:
                    show(f"{way}, {step}", [gaps[step] for gaps in rounds])


def show(name: str, gaps: list[float]) -> None:
    """Print the gaps of one way."""
    print(
        f"{name}  {len(gaps)} trials  p50 {statistics.median(gaps):.3f} s  max {max(gaps):.3f} s  "
        f"all {' '.join(f'{gap:.3f}' for gap in sorted(gaps))}",
        flush=True,
    )


if __name__ == "__main__":
    main()
