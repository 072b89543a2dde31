"""`ropewalk admin dledger …`: groups of brokers that elect their leader.

A member tells what it knows itself; what the others have on their disks only the leader knows. So the rows of one
group come from all of its members that answer, and those that do not are told by the ones that do.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from ha.dledger.links.hello import CAME_BACK_EMPTY
from ropewalk.client.admin.results import LedgerMembers, LedgerPeerStatus, LedgerStatus
from ropewalk.client.blocking.admin import Admin
from tools.admin.base import Sheet, command, fail_in_part, tell_skipped
from tools.common.options import complete_broker
from tools.common.output import (
    UsageError,
    print_json,
    print_line,
)

__all__ = ["SomeBroker", "app", "one_group", "status_rows"]

app = typer.Typer(
    name="dledger",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Groups that elect their leader (DLedger mode): look, move the lead, change the members.",
    epilog="Where the group has a `ropewalkSecret`, these commands take it from ROPEWALK_SECRET.",
)

COLUMNS = (
    ("broker", "broker"),
    ("member", "member"),
    ("role", "role"),
    ("term", "term"),
    ("address", "address"),
    ("log end", "endIndex"),
    ("flushed", "flushedIndex"),
    ("committed", "committedIndex"),
    ("behind", "behind"),
    ("elections", "elections"),
    ("state", "state"),
)

_STATE_WIDTH: Final = 80
"""A longer state is cut in the table, and stands whole beneath it."""

SomeBroker = Annotated[
    str | None,
    typer.Argument(
        metavar="BROKER", help="The group, by the broker name of its members.", autocompletion=complete_broker
    ),
]


@command(app, "status")
def status(admin: Admin, broker: SomeBroker = None, *, as_json: bool) -> None:
    """Show each member: role, term, how far its log reaches, what of it is committed, and its links.

    Exit code 1 says that a member refuses to answer, or does not.
    """
    found = admin.ledger_status(broker=broker)
    rows = status_rows(found)
    nothing = "no member of a DLedger group is registered"
    if as_json:
        Sheet(COLUMNS, rows).show(as_json=True, nothing=nothing)
    else:
        Sheet(COLUMNS, [(*row[:-1], _cut(str(row[-1]))) for row in rows]).show(as_json=False, nothing=nothing)
        long = [row for row in rows if len(str(row[-1])) > _STATE_WIDTH]
        for number, row in enumerate(long):
            print_line(f"{'' if number else chr(10)}{row[1]}: {row[-1]}")
    _fail_if_silent(admin, found)


@command(app, "transfer")
def transfer(
    admin: Admin,
    broker: SomeBroker = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ID", help="The member that is to lead; else the one that lacks least."),
    ] = None,
    *,
    as_json: bool,
) -> None:
    """Have the leader hand over to another member. Nothing is lost; producers wait for some milliseconds."""
    name, _found = one_group(admin, broker)
    leader = admin.transfer_lead(name, to or "")
    if as_json:
        print_json({"broker": name, "leader": leader})
    else:
        print_line(f"{leader} leads {name}")


@command(app, "readmit")
def readmit(
    admin: Admin,
    member: Annotated[str, typer.Argument(metavar="ID", help="The member that lost its disk, e.g. n2.")],
    broker: SomeBroker = None,
    *,
    as_json: bool,
) -> None:
    """Let a member in that lost its disk. It learns the log from the leader, and votes when it has all of it.

    Every other member has to let it in; repeat the command when one that did not answer is back. No message is lost by
    it, whatever ID is given.
    """
    name, _found = one_group(admin, broker)
    answers = admin.readmit(name, member)
    refused = sorted((other, why) for other, why in answers.items() if why)
    if as_json:
        print_json({"broker": name, "member": member, "answers": answers})
    else:
        let_in = sorted(other for other, why in answers.items() if not why)
        if let_in:
            print_line(f"{', '.join(let_in)} let {member} in")
        for _other, why in refused:
            print_line(why)
    if refused:
        raise typer.Exit(1)


@command(app, "snapshot")
def snapshot(admin: Admin, broker: SomeBroker = None, *, as_json: bool) -> None:
    """Have every member keep a snapshot of topics, groups and offsets now: retention may go as far as two of them.

    Members make one by themselves whenever the log has grown by a segment, or by 64 MiB.
    """
    name, statuses = one_group(admin, broker)
    found = admin.snapshot_tables(name)
    if as_json:
        print_json({"broker": name, "snapshots": found})
    else:
        for member, index in sorted(found.items()):
            print_line(
                f"{member} has a snapshot through entry {index}"
                if index >= 0
                else f"{member} has no snapshot"
            )
    _fail_if_silent(admin, statuses)


def _fail_if_silent(admin: Admin, found: tuple[LedgerStatus, ...]) -> None:
    """End with exit code 1 where a registered member was left out, or a member of a group did not answer at all."""
    tell_skipped(admin)
    groups: dict[tuple[str, str], set[str]] = {}
    for each in found:
        groups.setdefault((each.member.broker_name, each.group), set()).update(each.members.everyone)
    answered = {(each.member.broker_name, each.group, each.id) for each in found}
    missing = [
        f"{id} of {name} does not answer"
        for (name, group), ids in sorted(groups.items())
        for id in sorted(ids)
        if (name, group, id) not in answered
    ]
    if missing or admin.skipped:
        fail_in_part([*missing, *admin.skipped.values()])


def one_group(admin: Admin, broker: str | None) -> tuple[str, tuple[LedgerStatus, ...]]:
    """Return the group that is meant, and its members that answer. Raises `UsageError` where none or several are."""
    found = admin.ledger_status(broker=broker)
    names = {each.member.broker_name for each in found}
    if not names:
        raise UsageError("no member of a DLedger group is registered")
    if len(names) > 1:
        raise UsageError(f"there are several groups: name the BROKER of one ({', '.join(sorted(names))})")
    return names.pop(), found


def status_rows(found: tuple[LedgerStatus, ...]) -> list[tuple[object, ...]]:
    """Return a row for each member of each group: the leader first, silent members last."""
    rows: list[tuple[object, ...]] = []
    groups: dict[tuple[str, str], list[LedgerStatus]] = {}
    for each in found:
        groups.setdefault((each.member.broker_name, each.group), []).append(each)
    for (broker, _group), members in sorted(groups.items()):
        leader = max((each for each in members if each.leads), key=lambda each: each.term, default=None)
        for each in sorted(members, key=lambda each: (each is not leader, each.id)):
            rows.append(
                (
                    broker,
                    each.id,
                    each.role,
                    each.term,
                    each.member.address,
                    each.end,
                    each.durable,
                    each.committed,
                    max(leader.end - each.durable, 0) if leader is not None else 0,
                    each.elections,
                    _state(each),
                )
            )
        rows += _silent(broker, members, leader)
    return rows


def _cut(state: str) -> str:
    return state if len(state) <= _STATE_WIDTH else state[: _STATE_WIDTH - 1].rstrip() + "…"


def _silent(
    broker: str, members: list[LedgerStatus], leader: LedgerStatus | None
) -> list[tuple[object, ...]]:
    """Return the rows of members that did not answer themselves."""
    teller = leader or max(members, key=lambda each: each.term)
    answered, those = {each.id for each in members}, teller.members
    return [
        (
            broker,
            peer.id,
            "?",
            *[""] * 3,
            peer.match if peer.match >= 0 else "",
            *[""] * 3,
            _link(peer, those),
        )
        for peer in teller.peers
        if peer.id not in answered
    ]


def _state(each: LedgerStatus) -> str:
    doubt = f"; its log is in doubt through entry {each.doubt}" if each.doubt >= 0 and not each.leader else ""
    return _place(each) + doubt + ("; its disk has no room for the log" if each.stuck else "")


def _place(each: LedgerStatus) -> str:
    members = each.members
    if each.leads and members.old:
        change = f"{', '.join(members.old)} to {', '.join(members.voters)}"
        return f"{_own_place(each)}; the voters change from {change}: majorities of both are needed"
    if each.id not in members.everyone and each.end >= 0:
        return f"is no member any more: {', '.join(members.voters)} vote"
    if each.id in members.learners:
        return f"{_own_place(each)}; learns, and does not vote"
    return _own_place(each)


def _own_place(each: LedgerStatus) -> str:
    if each.leads:
        down = [
            f"{peer.id} ({peer.why})" if peer.why else peer.id
            for peer in each.peers
            if not peer.is_linked and peer.id in each.members.everyone
        ]
        behind = [f"; {peer.id} is sent a snapshot" for peer in each.peers if peer.state == "SNAPSHOT"]
        return "takes messages" + (f"; no link to {', '.join(down)}" if down else "") + "".join(behind)
    if each.is_learner and (each.leader or not any(CAME_BACK_EMPTY in peer.why for peer in each.peers)):
        waits = f"; {', '.join(each.unmet)} must let it in too" if each.unmet else ""
        return f"follows {each.leader or 'nobody'}, and does not vote before it has caught up{waits}"
    if each.role == "LEADER":
        return f"opens its term: {each.why}"
    if each.leader:
        return f"follows {each.leader}"
    parted: dict[str, list[str]] = {}
    for peer in each.peers:
        if not peer.is_linked:
            parted.setdefault(peer.why, []).append(peer.id)
    missing = parted.pop("", [])
    words = [f"no link to {', '.join(ids)} ({why})" for why, ids in parted.items()] or [_why(each)]
    words += [f"no link to {', '.join(missing)}"] if missing else []
    return f"knows no leader: {'; '.join(words)}"


def _why(each: LedgerStatus) -> str:
    return "it has heard of none since its start" if each.why == "started" else each.why


def _link(peer: LedgerPeerStatus, members: LedgerMembers) -> str:
    if peer.id not in members.everyone:
        return "is no member any more; it is forgotten when all have let it go"
    heard = "never heard" if peer.heard_ms < 0 else f"heard {peer.heard_ms / 1000:.1f} s ago"
    return f"silent, {heard}; the others dial {peer.address}" + (f": {peer.why}" if peer.why else "")
