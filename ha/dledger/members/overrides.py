"""Decisions that a group leaves to an operator: let in a member that lost its log, trust a log in doubt, go on alone.

Each rule returns the reason in words why it is not to be, or None. What a member does then that goes on alone is the
shell's; the core with which it begins is made here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from ha.dledger.links.peers import Peers
from ha.raft.node import RaftNode
from ha.raft.quorum import QuorumAckChecker
from ha.raft.types import Ballot, Config, MemberId, Settings

__all__ = [
    "LEADERLESS_MS",
    "REGIONS_STAY",
    "core_alone",
    "is_writing",
    "readmit",
    "refusal_to_go_alone",
    "refusal_to_readmit",
    "refusal_to_trust",
]

log = structlog.get_logger("ha.dledger")

FORCED_TERMS: Final = 100
"""By how much a member that goes on alone raises its term: what others did without it must not look newer."""
LEADERLESS_MS: Final = 5_000
"""How long a member must have known no leader before its log in doubt is trusted: elections take less."""
REGIONS_STAY: Final = (
    "the group has a key-value store (ropewalkKvRegions), and its regions do not go on with one member: start most of "
    "the others. A member that lost its disk is let in again by `ropewalk admin dledger readmit` "
    "(docs/operate/dledger.md)"
)
"""Why no member of such a group goes on alone."""


def readmit(peer: MemberId, peers: Peers, leader: MemberId | None) -> str | None:
    """Let in the next log with which a member comes; return in words why not, if it is not let in."""
    status = peers.status.get(peer)
    is_linked = status is not None and (status.control or status.data)
    why = refusal_to_readmit(peer, peers.members, is_linked, peers.me.id, leader)
    if why is None:
        peers.readmit(peer)
        log.warning("a member that lost its log is let in again", peer=peer)
    return why


def refusal_to_readmit(
    peer: MemberId, members: Collection[MemberId], is_linked: bool, me: MemberId, leader: MemberId | None
) -> str | None:
    """Return the reason why the next log with which a member comes is not let in; `members` are the other ones.

    It learns before it votes, so this loses nothing even of a member that has its log. Without a leader among the
    others, so many could become learners that nobody is left to elect one.
    """
    if peer not in members:
        return f"{peer} is no other member of this group; those are {', '.join(sorted(members))}"
    if is_linked:
        return f"{peer} is linked to {me}: it has not lost its log, or was let in already"
    if leader in (None, peer):
        return f"{me} knows no leader: most members have to be there, and to have their logs"
    return None


def refusal_to_trust(
    me: MemberId, is_in_doubt: bool, leader: MemberId | None, leaderless_ms: int | None
) -> str | None:
    """Return the reason why a log is not to count as it is; `leaderless_ms`: for how long no leader was known.

    What the member had confirmed behind the end is lost, unless a majority that elects has it.
    """
    if not is_in_doubt:
        return f"the log of {me} is not in doubt: this member votes and leads as every other"
    if leaderless_ms is None:
        return f"{leader} leads: the doubt of {me} ends when it has what that leader has committed"
    if leaderless_ms < LEADERLESS_MS:
        return (
            f"{me} knew a leader less than {LEADERLESS_MS / 1000:g} s ago: wait, members that hear all others "
            "elect one although a log is in doubt"
        )
    return None


def refusal_to_go_alone(
    me: MemberId, config: Config, leader: MemberId | None, linked: Collection[MemberId], lost_log: bool
) -> str | None:
    """Return the reason why a member may not go on alone, linked to these others; None where it may."""
    voters = ", ".join(config.voters)
    if config.voters == (me,) and not config.old:
        return f"{me} is the only voter already"
    if me not in (*config.voters, *config.old):
        return f"{me} is no voter, so its log may lack what was acknowledged: choose one of {voters}"
    if lost_log:
        return f"{me} lost its log, and has not caught up: choose another of {voters}"
    if leader is not None:
        return f"{leader} leads: the group works, and its members can be changed"
    if QuorumAckChecker(config).is_majority([me, *linked]):
        return (
            f"{me} is linked to {', '.join(sorted(linked))}: together they are a majority, and elect a leader"
        )
    return None


def is_writing(core: RaftNode) -> bool:
    """Return whether the log or the ballot of a member is not on its disk yet, or waits to be cut or for room."""
    election, found = core.election, core.log
    is_idle = found.durable == found.end.index and not found.is_cutting and not election.stuck
    return not is_idle or election.saved != election.ballot


def core_alone(core: RaftNode, me: MemberId, settings: Settings) -> RaftNode:
    """Return a core that goes on where another one stopped, with a configuration of this member only.

    Its first election writes the configuration down.
    """
    return RaftNode(
        me,
        Config((me,)),
        settings,
        ballot=Ballot(core.term + FORCED_TERMS),
        rows=core.log.terms.rows,
        end=core.log.end,
        commit=core.log.commit,
        readmitted=True,
    )
