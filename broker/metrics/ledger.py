"""The metric families of DLedger mode: elections, what is not committed yet, and what each peer lacks.

They are served by every broker, and have values in DLedger mode only.
"""

from __future__ import annotations

from broker.metrics.snapshot import COUNTER, GAUGE, Family
from ha.dledger.status import LedgerStatus

__all__ = ["ledger_families"]


def ledger_families(status: LedgerStatus | None) -> list[Family]:
    """Return the families for a member's status; without values where it is None."""

    def one(name: str, kind: str, help: str, value: float) -> Family:
        return Family(name, kind, help, (), [((), value)] if status is not None else [])

    term = elections = changes = entries = size = 0
    if status is not None:
        term, elections, changes = status.standing.term, status.elections, status.role_changes
        entries = status.end.index - status.commit.index
        size = status.end.pos - status.commit.pos
    peers = status.peers if status is not None else ()
    lag = [
        ((peer.id,), float(status.end.index - peer.match))
        for peer in peers
        if status is not None and peer.state and peer.match >= 0
    ]
    return [
        one("ropewalk_dledger_term", GAUGE, "The term of this member of a DLedger group", term),
        one("ropewalk_dledger_elections", COUNTER, "How often this member became the leader", elections),
        one("ropewalk_dledger_role_changes", COUNTER, "How often this member's role changed", changes),
        one("ropewalk_dledger_uncommitted_entries", GAUGE, "Entries of the log not known to be committed", entries),
        one("ropewalk_dledger_uncommitted_bytes", GAUGE, "Their bytes", size),
        Family(
            "ropewalk_dledger_peer_lag_entries",
            GAUGE,
            "Entries that a peer does not have on its disk yet, as the leader knows",
            ("peer",),
            lag,
        ),
        Family(
            "ropewalk_dledger_peer_linked",
            GAUGE,
            "1 while both links to a peer are up",
            ("peer",),
            [((peer.id,), float(peer.control and peer.data)) for peer in peers],
        ),
    ]  # fmt: skip
