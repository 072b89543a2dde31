"""Time without a stored message when a DLedger group loses its leader: `python -m tests.bench.ledger_gap`.

Three brokers and a name server run as processes. A sender that tries the members in turn, one message after the other,
stores all the time; the leader is killed (SIGKILL) or stopped (SIGSTOP), and the gap is the time from that signal to
the next SEND_OK of another member. The lost one comes back and catches up before the next trial. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from pathlib import Path

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
WAYS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}


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


def _is_whole(group: LedgerGroup) -> bool:
    found = group.status()
    leads = [each for each in found if each.leads]
    return len(found) == len(group.members) and len(leads) == 1 and len({each.end for each in found}) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="how often each way (default: 20)")
    parser.add_argument("--way", choices=sorted(WAYS), action="append", help="only this one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ropewalk-gap-") as folder, LedgerGroup(Path(folder)) as group:
        for way in options.way or sorted(WAYS):
            gaps = sorted(gap_s(group, WAYS[way]) for _ in range(options.trials))
            print(
                f"{way}  {len(gaps)} trials  p50 {statistics.median(gaps):.3f} s  max {gaps[-1]:.3f} s  "
                f"all {' '.join(f'{gap:.3f}' for gap in gaps)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
