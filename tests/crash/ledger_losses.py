"""Leader after leader of a real DLedger group is killed or stopped under load: `python -m tests.crash.ledger_losses`.

Producers send all the time, each to a queue of its own. The leader is lost to kill -9 or SIGSTOP, in an order drawn
from a seed; another one has to lead, the lost one comes back, and so on. At the end every acknowledged message must be
there, in the order of its producer, and the files of all members must hold the same bytes.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.ledger_group import LedgerGroup
from tests.crash.ledger_load import SteadySender, read
from tests.support.waiting import until
from tools.drill.reading import compare_logs

PRODUCERS = 3
QUIET_S = 60.0


@dataclass
class Verdict:
    """The outcome: what was promised against what is there."""

    kills: int
    stops: int
    acknowledged: int = 0
    repeated: int = 0
    """Messages that stand in the log more than once: sent again behind an unknown answer."""
    faults: list[str] = field(default_factory=list)
    compared: str = ""

    def __str__(self) -> str:
        words = (
            f"{self.kills} kills and {self.stops} stops of the leader: {self.acknowledged:,} messages acknowledged, "
            f"{self.repeated} of them stored again; {self.compared}"
        )
        return "\n".join([words, *self.faults])


def lose_leaders(
    group: LedgerGroup, kills: int, stops: int, draw: random.Random, told: Callable[[str], None]
) -> Verdict:
    """Lose the leader so often, and judge. Ends the processes of all members."""
    ways = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
    draw.shuffle(ways)
    verdict = Verdict(kills, stops)
    with ExitStack() as stack:
        senders = [stack.enter_context(SteadySender(group, queue)) for queue in range(PRODUCERS)]
        for number, way in enumerate(ways, 1):
            leader = group.leader()
            time.sleep(draw.uniform(0.1, 0.8))
            before = [len(sender.acknowledged) for sender in senders]
            leader.signal(way)
            successor = group.leader([member for member in group.members if member is not leader])
            time.sleep(draw.uniform(0.0, 0.4))
            if way is signal.SIGKILL:
                leader.kill()
                leader.start()
            else:
                leader.signal(signal.SIGCONT)
            told(f"{number} of {len(ways)}: {way.name} {leader.id}, then {successor.id} leads")
            until(
                lambda senders=senders, before=before: all(  # type: ignore[misc]
                    len(sender.acknowledged) > count for sender, count in zip(senders, before, strict=True)
                ),
                f"nothing is acknowledged after {way.name} of {leader.id}",
            )
    until(lambda: _is_quiet(group), "the members do not agree on the end of the log", patience_s=QUIET_S)
    leader = group.leader()
    for sender in senders:
        found = read(leader, sender.queue_id)
        once = list(dict.fromkeys(found))
        verdict.acknowledged += len(sender.acknowledged)
        verdict.repeated += len(found) - len(once)
        lost = sorted(set(sender.acknowledged) - set(found))
        if lost:
            verdict.faults.append(f"queue {sender.queue_id}: {len(lost)} acknowledged are lost: {lost[:5]}")
        if once != sorted(once):
            verdict.faults.append(f"queue {sender.queue_id} is out of its producer's order")
    for member in group.members:
        member.kill()
    first, *others = group.members
    for other in others:
        compared = compare_logs(first.store, other.store)
        verdict.compared = f"the members' logs: {compared.text}"
        if not compared.equal:
            verdict.faults.append(f"{first.id} and {other.id}: {compared.text}")
    return verdict


def _is_quiet(group: LedgerGroup) -> bool:
    """Whether all members are there, and all that one has is committed and on the disks of all."""
    found = group.status()
    return (
        len(found) == len(group.members)
        and len({end for each in found for end in (each.end, each.durable, each.committed)}) == 1
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kill -9 of the leader (default: 100)")
    parser.add_argument("--stops", type=int, default=50, help="SIGSTOP of the leader (default: 50)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ropewalk-losses-") as folder, LedgerGroup(Path(folder)) as group:
        verdict = lose_leaders(
            group,
            options.kills,
            options.stops,
            random.Random(options.seed),
            lambda words: print(words, flush=True),
        )
    print(verdict)
    return bool(verdict.faults)


if __name__ == "__main__":
    sys.exit(main())
