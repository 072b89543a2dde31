"""Sentences about a member of a group: refusals for clients, remarks for administrators, its share of the ready line.

They depend on the standing of the member and on the configuration in force, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.replication.group_member import ReadyWords
from ha.raft.node import TRANSFERRING
from ha.raft.types import Config, MemberId, Role, Standing
from ropewalk.codes import ResponseCode

__all__ = ["leader_refusal", "membership_notes", "place_of", "ready_words"]


def place_of(me: MemberId, standing: Standing, master_address: str, refusals: Iterable[str]) -> str:
    """Return in words why a member with this standing is not the one to send to; `refusals`: those of its peers."""
    if standing.role is Role.LEADER:
        return f"this member was elected in term {standing.term} and opens it"
    if standing.leader is not None:
        return f"this member follows {standing.leader}, at {master_address or 'an address yet unknown'}"
    refused = sorted({each for each in refusals if each})
    return "; ".join([f"the group has no leader in term {standing.term}, as far as {me} knows", *refused])


def leader_refusal(me: MemberId, standing: Standing) -> tuple[int, str] | None:
    """Return a leader's answer to a send under this standing, or None where it is taken."""
    if standing.may_append:
        return None
    if standing.why == TRANSFERRING:
        why = f"{me} hands the lead over to another member"
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"[REJECTREQUEST]{why}: nothing was stored"
    return ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]{standing.why}: followers are too far behind"


def membership_notes(me: MemberId, config: Config, log_is_empty: bool) -> tuple[str, ...]:
    """Return remarks about members that learn, have left, or are being changed."""
    notes = []
    if me in config.learners:
        notes.append(f"{me} learns, and does not vote")
    elif me not in config.members and not log_is_empty:
        notes.append(f"{me} is no member of the group any more; {', '.join(config.voters)} vote")
    if config.old:
        change = f"from {', '.join(config.old)} to {', '.join(config.voters)}"
        notes.append(f"the voters change {change}: majorities of both are needed")
    return tuple(notes)


def ready_words(
    me: MemberId, address: str, group: str, config: Config, quorum: int, log_is_empty: bool
) -> ReadyWords:
    """Return the member's share of the ready line; `address` is where peers reach it."""
    voters = len(config.voters)
    if voters == 1:
        promise = "fsynced on one machine: there is no other that votes"
        if config.voters == (me,):
            promise = "fsynced on this machine, the only member"
    else:
        lost = voters - quorum
        promise = f"fsynced on {quorum} of {voters} members, the leader among them: survives the loss of " + (
            "any one" if lost == 1 else f"any {lost}" if lost else "none"
        )
    place = f"group {group}"
    if voters > 1 and log_is_empty:
        place += (
            f"; its log is empty: members of a new group elect a leader by themselves, one that joins a group waits "
            f"for `ropewalk admin dledger add {me}-{address}`, and one that lost its disk for `ropewalk admin dledger "
            f"readmit {me}`"
        )
    members = f"{voters} + {len(config.learners)} learning" if config.learners else str(voters)
    return ReadyWords(f"DLEDGER {me} of {members}", promise, True, place)
