"""A job that one of many machines does: a lock chooses the machine, and its fencing token keeps a late one out.

    python examples/lock.py [NAME_SERVER]

The name server's broker has to be a member of a DLedger group with a key-value store: docs/tour/kv.md starts one.
"""

import sys
import time

from ropewalk import Fenced, Kv, KvLock

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"


def bill(kv: Kv, lock: KvLock, machine: str) -> None:
    """The job: its result is stored only while no other machine was granted the lock."""
    kv.put("billing/last-run-by", machine, guard=lock)
    print(f"{machine} billed, with token {lock.token}", flush=True)


with Kv(name_server) as one, Kv(name_server) as other:
    first = one.acquire("billing", lease=1.0)
    assert first is not None
    assert other.acquire("billing") is None
    print("the second machine waits", flush=True)

    # The first machine stalls: a long garbage collection, a suspended virtual machine. Its lease ends meanwhile.
    time.sleep(1.5)
    with other.lock("billing", wait=5.0) as second:
        assert second.token > first.token
        bill(other, second, "the second machine")

        # It wakes up and believes that it has the lock still. What it is about to change knows better.
        try:
            bill(one, first, "the first machine")
        except Fenced:
            print("the first machine was too late", flush=True)

    assert one.get("billing/last-run-by") == b"the second machine"
