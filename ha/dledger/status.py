"""A member of a group as it sees itself and the others: for administrators, metrics and logs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ha.dledger.links.peers import Peers
from ha.raft.dispatcher import EntryDispatcher
from ha.raft.types import MemberId, Point, Standing


class PeerView(Struct, frozen=True):
    """A peer, as this member sees it."""

    id: MemberId
    address: str
    control: bool
    """Whether the link for votes and heartbeats is up."""
    data: bool
    """Whether the link for entries is up."""
    heard_ms: int
    """How long ago it was heard; -1: never."""
    state: str
    """Of a leader's dispatcher: PROBE, REPLICATE or SNAPSHOT; empty if this member does not lead."""
    match: int
    """The index through which it has the log on its disk; -1 if this member does not lead, or does not know."""
    why: str
    """The reason why a link is down, as far as it is known."""
    counts: bool
    """False of a member that lost its log and has not caught up, as its leader knows."""


class LedgerStatus(Struct, frozen=True):
    """A member, with its view of the others."""

    id: MemberId
    group: str
    standing: Standing
    end: Point
    durable: int
    """The index through which the log is on this disk."""
    commit: Point
    shown: Point
    """The log through the last entry that consumers may see."""
    elections: int
    """How often this member became the leader since it started."""
    role_changes: int
    peers: tuple[PeerView, ...]
    is_learner: bool
    """Whether this member lost its log, and does not vote before it has caught up."""
    unmet: tuple[MemberId, ...]
    """The members that have still to let this learner in."""
    stuck: bool
    """Whether its disk has no room for its log: it cannot lead."""
    voters: tuple[MemberId, ...]
    """The members that vote, by the newest configuration in its log."""
    old: tuple[MemberId, ...]
    """The voters before, while a change is under way: both majorities are needed. Empty else."""
    learners: tuple[MemberId, ...]
    """The members that get the log and do not vote."""
    doubt: Point | None
    """The furthest entry that a start had to cut and may have confirmed; None once a leader has settled that."""


def peer_views(
    peers: Peers, dispatchers: Mapping[MemberId, EntryDispatcher], now: int
) -> tuple[PeerView, ...]:
    """Return the peers as their links, and a leader's dispatchers, show them."""
    views = []
    for peer, status in sorted(peers.status.items()):
        dispatcher = dispatchers.get(peer)
        views.append(
            PeerView(
                peer,
                status.address,
                status.control,
                status.data,
                now - status.heard_at if status.heard_at >= 0 else -1,
                dispatcher.state.value if dispatcher is not None else "",
                dispatcher.match if dispatcher is not None else -1,
                status.refusal or status.why,
                dispatcher.counts if dispatcher is not None else True,
            )
        )
    return tuple(views)
