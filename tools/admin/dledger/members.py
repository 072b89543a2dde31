"""`ropewalk admin dledger add | remove | replace | learner | promote | force | trust`: the members of a group.

Each is asked of the leader, while the group works; `force` of the one member that is left, and `trust` of a member
whose log is in doubt, where nobody is elected for its sake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from broker.settings.dledger import read_member
from ha.dledger.members.overrides import REGIONS_STAY, refusal_to_go_alone
from ha.raft.types import Config
from ropewalk.client.admin.results import LedgerMembers, LedgerStatus
from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import Rejected
from tools.admin.base import Yes, command, confirm
from tools.admin.dledger.group import SomeBroker, app, one_group
from tools.common.options import check_seconds
from tools.common.output import (
    UsageError,
    note,
    print_json,
    print_line,
)

__all__ = ["app", "split_member"]

NewMember = Annotated[
    str,
    typer.Argument(
        metavar="ID-HOST:PORT", help="The new member as its dLegerPeers names it: n3-192.0.2.4:40911."
    ),
]
MemberId = Annotated[str, typer.Argument(metavar="ID", help="A member, e.g. n2.")]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        min=1,
        callback=check_seconds,
        help="Seconds that may pass without progress of the new member.",
    ),
]
WaitForGroup = Annotated[
    float,
    typer.Option(
        "--wait",
        min=1,
        callback=check_seconds,
        help="Seconds to wait for a leader, and for the regions of a key-value store to follow.",
    ),
]


def split_member(text: str) -> tuple[str, str]:
    """Return id and address of a new member. Raises `UsageError`."""
    try:
        member = read_member(text)
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
    return member.member, f"{member.host}:{member.port}"


@command(app, "add")
def add(
    admin: Admin, member: NewMember, broker: SomeBroker = None, wait: Wait = 30.0, *, as_json: bool
) -> None:
    """Take a new member in: it learns the log, and votes when it has it. Start it before or while this waits."""
    id, address = split_member(member)
    name, _found = one_group(admin, broker)
    members = admin.add_member(name, id, address, wait_s=wait, told=_quiet if as_json else note)
    _show(name, f"{id} votes", members, as_json=as_json)


@command(app, "replace")
def replace(
    admin: Admin,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The voter that leaves, dead or alive.")],
    member: NewMember,
    broker: SomeBroker = None,
    wait: Wait = 30.0,
    *,
    as_json: bool,
) -> None:
    """Put a new member in the place of another one, in one step when it has the log."""
    id, address = split_member(member)
    if id == old:
        raise UsageError(
            f"{old} cannot take its own place: give the new member an id and a number of its own"
        )
    name, found = one_group(admin, broker)
    if found and not any(old in each.members.voters or id in each.members.voters for each in found):
        raise UsageError(f"{old} is no voter of {name}; those are {_ids(_newest(found).members.voters)}")
    members = admin.add_member(
        name, id, address, replacing=old, wait_s=wait, told=_quiet if as_json else note
    )
    _show(name, f"{id} votes in the place of {old}", members, as_json=as_json)


@command(app, "learner")
def learner(admin: Admin, member: NewMember, broker: SomeBroker = None, *, as_json: bool) -> None:
    """Take a new member in that gets the log and serves reads, and does not vote."""
    id, address = split_member(member)
    name, _found = one_group(admin, broker)
    members = admin.change_members(name, "learn", id, address)
    words = f"{id} learns" if id in members.learners else f"{id} votes already"
    _show(name, words, members, as_json=as_json)


@command(app, "promote")
def promote(
    admin: Admin, member: MemberId, broker: SomeBroker = None, wait: Wait = 30.0, *, as_json: bool
) -> None:
    """Have a learner vote that has the log."""
    name, _found = one_group(admin, broker)
    members = admin.promote_member(name, member, wait_s=wait)
    _show(name, f"{member} votes", members, as_json=as_json)


@command(app, "remove")
def remove(
    admin: Admin, member: MemberId, broker: SomeBroker = None, wait: WaitForGroup = 30.0, *, as_json: bool
) -> None:
    """Remove a member, dead or alive. A leader hands over first. Its process goes on: stop it afterwards."""
    name, _found = one_group(admin, broker)
    members = admin.change_members(name, "remove", member, wait_s=wait, told=_quiet if as_json else note)
    _show(name, f"{member} is removed", members, as_json=as_json)
    if not as_json:
        print_line(f"stop the process of {member}, if it still runs: it hears of nothing new")


@command(app, "force")
def force(
    admin: Admin, member: MemberId, broker: SomeBroker = None, yes: Yes = False, *, as_json: bool
) -> None:
    """Have one member go on alone after most have been lost for good. Acknowledged messages may be lost."""
    name, found, chosen = _answering(admin, broker, member)
    if why := why_not_alone(chosen):
        raise Rejected(why)
    for line in at_risk(chosen, found):
        note(line)
    confirm(f"Have {member} go on alone?", yes=yes)
    admin.force_member(name, member)
    if as_json:
        print_json({"broker": name, "member": member})
    else:
        print_line(
            f"{member} goes on alone: `ropewalk admin dledger add` takes in others that begin with empty stores"
        )


@command(app, "trust")
def trust(
    admin: Admin, member: MemberId, broker: SomeBroker = None, yes: Yes = False, *, as_json: bool
) -> None:
    """Have a member count its log as it is, where it is in doubt and no leader comes. Messages may be lost.

    Power can tear the end of a log: the member cuts it, and does not know what it had confirmed behind. As long as all
    others can answer for that, a leader settles it. Where one lost its disk, nobody can, and a person decides.
    """
    name, found, chosen = _answering(admin, broker, member)
    for line in in_doubt(chosen, found):
        note(line)
    confirm(f"Trust the log of {member}?", yes=yes)
    admin.trust_member(name, member)
    if as_json:
        print_json({"broker": name, "member": member})
    else:
        print_line(f"the log of {member} counts as it is: it ends with entry {chosen.end}")


def _answering(
    admin: Admin, broker: str | None, member: str
) -> tuple[str, tuple[LedgerStatus, ...], LedgerStatus]:
    """Return the name of a group, its members that answer, and the one that is asked for, which has to."""
    name, found = one_group(admin, broker)
    chosen = next((each for each in found if each.id == member), None)
    if chosen is None:
        raise UsageError(f"{member} does not answer; of {name} answer {_ids(each.id for each in found)}")
    return name, found, chosen


def in_doubt(chosen: LedgerStatus, found: tuple[LedgerStatus, ...]) -> list[str]:
    """Return sentences about the losses that are possible when a log in doubt counts as it is."""
    if chosen.doubt < 0:
        return []
    lines = [
        f"{chosen.id} has the log through entry {chosen.end}, and had to cut what may have reached entry "
        f"{chosen.doubt}. What it had confirmed of that is lost, unless another member has it that votes"
    ]
    others = {each.id: each for each in found if each.id != chosen.id}
    for id in sorted({*chosen.members.voters} - {chosen.id}):
        if id not in others:
            lines.append(f"{id} does not answer, and may have it: start it first, if its disk can be read")
        elif others[id].is_learner:
            lines.append(f"{id} lost its disk: what it had confirmed can be on no other one")
        else:
            lines.append(f"{id} has the log through entry {others[id].end}")
    return lines


def why_not_alone(chosen: LedgerStatus) -> str | None:
    """Return the reason why a member will refuse to go on alone, as far as its status shows one."""
    if chosen.has_regions:
        return REGIONS_STAY
    members = chosen.members
    linked = [peer.id for peer in chosen.peers if peer.is_linked]
    config = Config(members.voters, members.old, members.learners)
    return refusal_to_go_alone(chosen.id, config, chosen.leader or None, linked, chosen.is_learner)


def at_risk(chosen: LedgerStatus, found: tuple[LedgerStatus, ...]) -> list[str]:
    """Return sentences about the losses, certain and possible ones, when a member goes on alone."""
    others = [id for id in chosen.members.everyone if id != chosen.id]
    lines = [
        f"{chosen.id} has the log through entry {chosen.end}, of which it knows {chosen.committed} to be committed. "
        "What others acknowledged behind its end is lost",
        f"{_ids(others) or 'nobody'} must not be started again with the store of today: together they would be a "
        "group of their own, and both would take messages",
    ]
    longer = [each for each in found if each.end > chosen.end]
    lines += [f"{each.id} answers, and its log is longer: it ends with entry {each.end}" for each in longer]
    return lines


def _newest(found: tuple[LedgerStatus, ...]) -> LedgerStatus:
    return max(found, key=lambda each: (each.leads, each.term))


def _show(name: str, done: str, members: LedgerMembers, *, as_json: bool) -> None:
    """Print the members after a change, and what they survive."""
    if as_json:
        print_json({"broker": name, "voters": list(members.voters), "learners": list(members.learners)})
        return
    count = len(members.voters)
    if count % 2 == 0:
        survived = (count - 1) // 2
        note(f"{count} voters survive the loss of {survived}, as {count - 1} do: an odd number is better")
    print_line(f"{done}; the voters of {name} are {_ids(members.voters)}")


def _ids(members: Iterable[str]) -> str:
    return ", ".join(sorted(members))


def _quiet(text: str) -> None:
    """Tell nobody."""
