"""`ropewalk admin ha …`: who is master, how far behind its slaves are, and making another one the master.

`switch` is planned and loses nothing. `failover` is for a master that is gone, and goes on by itself only where every
acknowledged message is on a slave that answers; `--force` says before it acts what may be lost. `watch` does the same
unattended, for groups whose acknowledgements wait for a slave, and for no others.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ha.group.handover import HandoverKind
from ha.group.hello import MemberStatusMessage
from ha.group.roles import SLAVE
from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.addresses import DEFAULT_NAME_SERVER
from ropewalk.client.core.connection import Unreachable
from ropewalk.errors import RopewalkError
from tools.admin import handover as ha_operator
from tools.admin.base import (
    SECRET_VARIABLE,
    TIMEOUT_S,
    BrokerName,
    Sheet,
    Yes,
    administrator,
    confirm,
    fail_in_part,
    secret_hint,
)
from tools.admin.handover import Group, HandoverFailed, Members, Report
from tools.common.interrupts import Interrupts
from tools.common.options import (
    Json,
    NameServers,
    Timeout,
    check_seconds,
    complete_broker,
)
from tools.common.output import (
    UsageError,
    counted,
    note,
    print_json,
    print_line,
)

app = typer.Typer(
    name="ha",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Master and slaves: look, switch, fail over.",
    epilog="Where the group has a `ropewalkSecret`, these commands take it from ROPEWALK_SECRET.",
)

PROBE_TIMEOUT_S = 1.0
WATCH_EVERY_S = 0.2

Target = Annotated[
    str, typer.Option("--to", metavar="HOST:PORT", help="The slave that is to be master, by its broker port.")
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Go on although acknowledged messages may be lost; what is at risk is told."
    ),
]
MemberAddress = Annotated[str, typer.Argument(metavar="HOST:PORT", help="A member, by its broker port.")]
SomeBroker = Annotated[
    str | None,
    typer.Argument(metavar="BROKER", help="Only this broker's group.", autocompletion=complete_broker),
]


@contextmanager
def _operator(name_server: str, timeout: float, *, as_json: bool) -> Iterator[tuple[Admin, Members]]:
    secret = os.environ.get(SECRET_VARIABLE, "")
    with (
        administrator(name_server, timeout, as_json=as_json) as admin,
        Members(secret, min(timeout, PROBE_TIMEOUT_S)) as members,
    ):
        yield admin, members


# -- status ---------------------------------------------------------------------------------------------

COLUMNS = (
    ("broker", "broker"),
    ("id", "brokerId"),
    ("role", "role"),
    ("address", "address"),
    ("epoch", "epoch"),
    ("log end", "maxOffset"),
    ("confirmed", "confirmOffset"),
    ("flushed", "flushOffset"),
    ("lag bytes", "lagBytes"),
    ("lag s", "lagSeconds"),
    ("link", "link"),
)


@app.command("status")
def status(
    broker: SomeBroker = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show each replica: role, id, epoch, how far its log reaches, how far it is behind, and its link.

    Exit code 1 says that a member refuses to answer, or does not.
    """
    with _operator(name_server, timeout, as_json=as_json) as (admin, members):
        names = [broker] if broker else sorted({each.broker_name for each in admin.members()})
        groups = [ha_operator.find_group(admin, members, name) for name in names]
        rows = [row for group in groups for row in status_rows(group)]
        Sheet(COLUMNS, rows).show(as_json=as_json, nothing="no broker is registered")
        silent = [
            why for group in groups for address, why in group.silent.items() if address not in group.electing
        ]
        if silent:
            fail_in_part(silent)


def status_rows(group: Group) -> list[tuple[object, ...]]:
    """Return a row for each member: the master first, silent members last."""
    master = ha_operator.master_of(group)
    rows: list[tuple[object, ...]] = []
    for each in sorted(
        group.statuses.values(), key=lambda one: (one is not master, one.broker_id, one.address)
    ):
        behind = master.end - each.end if master is not None and each is not master else 0
        lag = ha_operator.lag_s(master, each) if master is not None else 0.0
        rows.append(
            (
                group.broker_name,
                each.broker_id,
                each.role
                if each.promised_epoch == each.leader_epoch
                else f"{each.role} (promised epoch {each.promised_epoch})",
                each.address,
                each.leader_epoch,
                each.end,
                each.readable,
                each.flushed,
                behind,
                round(lag, 3),
                _link(each, master) + _damage(each),
            )
        )
    for address, why in sorted(group.silent.items()):
        broker_id = {member.address: member.broker_id for member in group.members()}.get(address)
        nothing = (None,) * 6
        link = f"{'refuses' if address in group.refusing else 'no answer'}: {why}"
        if address in group.electing:
            link = ha_operator.ELECTS
        rows.append((group.broker_name, broker_id, "unknown", address, *nothing, link))
    return rows


def _link(each: MemberStatusMessage, master: MemberStatusMessage | None) -> str:
    if each.role != SLAVE:
        counting = sum(slave.counts for slave in each.slaves)
        fence = f"; it takes no messages: {each.fence}" if each.fence else ""
        return f"{counted(len(each.slaves), 'slave')}, {counting} counted{fence}"
    if master is None:
        return "no master" if not each.has_master else f"{each.link}, of a master that does not answer here"
    return each.link


def _damage(each: MemberStatusMessage) -> str:
    """Return the damage of its log, present and repaired."""
    damaged = f", {counted(each.damaged, 'damaged place')} in its log" if each.damaged else ""
    return damaged + (f", {counted(each.repaired, 'place')} repaired from others" if each.repaired else "")


# -- handovers ------------------------------------------------------------------------------------------


def _by(kind: str) -> str:
    return f"{kind}-{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(6)}"


def show_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = asdict(report)
        print_json(
            {
                "kind": document["kind"],
                "broker": document["broker"],
                "epoch": document["epoch"],
                "oldMaster": document["old_master"] or None,
                "newMaster": document["new_master"],
                "gapMs": document["gap_ms"],
                "tookMs": document["took_ms"],
                "atRisk": document["at_risk"] or None,
                "events": [{"ms": ms, "event": text} for ms, text in report.events],
            }
        )
        return
    gap = f"no message was taken for {report.gap_ms:.0f} ms" if report.gap_ms is not None else ""
    told = gap or f"promoted {report.took_ms:.0f} ms after the command began to ask"
    print_line(f"{report.broker}: {report.new_master} is the master of epoch {report.epoch}; {told}")


def _hand_over(
    kind: HandoverKind,
    broker: str,
    name_server: str,
    timeout: float,
    *,
    as_json: bool,
    target: str = "",
    force: bool = False,
    yes: bool = False,
    catch_up_s: float = 10.0,
) -> None:
    with _operator(name_server, timeout, as_json=as_json) as (admin, members):
        group = ha_operator.find_group(admin, members, broker)
        if force and not yes:
            risk = ha_operator.at_risk(group, target) if kind is HandoverKind.FAILOVER else ""
            confirm(
                f"Acknowledged messages of {broker} may be lost{f': {risk}' if risk else ''}. Go on?", yes=yes
            )
            ha_operator.refresh_group(members, group)  # whoever was asked may have taken an hour over it
        report = ha_operator.hand_over(
            members,
            group,
            kind,
            _by(kind.value),
            target=target,
            force=force,
            catch_up_s=catch_up_s,
            told=(lambda text: None) if as_json else note,
        )
        show_report(report, as_json=as_json)


@app.command("switch")
def switch(
    broker: BrokerName,
    target: Target = "",
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0.1,
            callback=check_seconds,
            help="Seconds that the slave may take to reach the master's end.",
        ),
    ] = 10.0,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make a slave the master while the master is there: it stops taking messages, the slave gets the rest, they swap.

    No acknowledged message is lost. It prints for how long no message was taken. If the slave does not come in time
    everything stays as it was.
    """
    _hand_over(
        HandoverKind.SWITCH, broker, name_server, timeout, as_json=as_json, target=target, catch_up_s=wait
    )


@app.command("failover")
def failover(
    broker: BrokerName,
    target: Target = "",
    force: Force = False,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Promote the slave with the longest log, because the master is gone.

    Without `--force` only if so many slaves answer that every acknowledged message is on one of them. The old master
    becomes a slave by itself when it comes back, and keeps what only it had.
    """
    _hand_over(
        HandoverKind.FAILOVER,
        broker,
        name_server,
        timeout,
        as_json=as_json,
        target=target,
        force=force,
        yes=yes,
    )


@app.command("promote")
def promote(
    member: MemberAddress,
    force: Force = False,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make this slave the master: a switch where the master is there, a failover where it is gone."""
    with _operator(name_server, timeout, as_json=as_json) as (admin, members):
        group, address = _group_of(admin, members, member)
        master = ha_operator.master_of(group)
        if master is not None and master.address == address:
            raise UsageError(f"{member} is the master of {group.broker_name} already")
    kind = HandoverKind.SWITCH if master is not None else HandoverKind.FAILOVER
    _hand_over(
        kind, group.broker_name, name_server, timeout, as_json=as_json, target=address, force=force, yes=yes
    )


@app.command("demote")
def demote(
    member: MemberAddress,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make this master a slave: a switch to whichever of its slaves has most of its log."""
    with _operator(name_server, timeout, as_json=as_json) as (admin, members):
        group, address = _group_of(admin, members, member)
        master = ha_operator.master_of(group)
        if master is None or master.address != address:
            raise UsageError(f"{member} is not the master of {group.broker_name}")
    _hand_over(HandoverKind.SWITCH, group.broker_name, name_server, timeout, as_json=as_json)


def _group_of(admin: Admin, members: Members, address: str) -> tuple[Group, str]:
    """The group of the member at this address, and the address by which the group knows it."""
    try:
        member_status = members.status_of(address)
    except Unreachable as exc:
        raise HandoverFailed(f"{exc}. Only a member that answers can be given another role") from exc
    return ha_operator.find_group(admin, members, member_status.broker_name), member_status.address


@app.command("forget")
def forget(
    broker: BrokerName,
    slave_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="The broker id of the slave.")],
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Strike a slave that will not come back off the roll, so that no failover waits for its promise.

    Refused while another slave lacks something: acknowledged messages might be on the lost one alone. A replacement
    that is started under the same id needs no such command.
    """
    with _operator(name_server, timeout, as_json=as_json) as (admin, members):
        group = ha_operator.find_group(admin, members, broker)
        member_status = ha_operator.forget_slave(members, group, slave_id)
        slaves = ", ".join(
            f"{name} at {address}" for name, address in sorted(member_status.policy.slaves.items())
        )
        if as_json:
            print_json({"broker": broker, "forgotten": slave_id, "slaves": member_status.policy.slaves})
        else:
            print_line(f"{broker}: slave {slave_id} is forgotten; on the roll: {slaves or 'none'}")


# -- watch ----------------------------------------------------------------------------------------------


class Watcher:
    """Watch groups and decide when a master is gone; the remedy is handed in."""

    def __init__(self, after_s: float, clock: Callable[[], float]) -> None:
        """`after_s`: how long a master may be silent."""
        self._after_s = after_s
        self._clock = clock
        self._silent_since: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def refuse_inside(self, group: Group, name_servers: str) -> None:
        """Raise `UsageError` for a name server that dies with a member of the group: nobody would find the others."""
        for each in group.statuses.values():
            for address in name_servers.split(";") if each.name_server else ():
                if address.strip() and ha_operator.same_place(address, each.name_server):
                    raise UsageError(
                        f"the name server {address.strip()} lives inside the member {each.address} of "
                        f"{group.broker_name} and dies with it: start `ropewalk namesrv` as a process of its own, give "
                        "it to the brokers (-n), and watch with that one"
                    )

    def trouble(self, group: Group) -> str | None:
        """Why this group is never failed over from here, or None."""
        if group.statuses and not ha_operator.waits_for_slaves(group):
            return (
                "its acknowledgements wait for no slave (ASYNC_MASTER): only a person fails such a group over"
            )
        return None

    def is_gone(self, group: Group) -> bool:
        """Return whether the master was silent for long enough, and no slave has contact with it either."""
        name, now = group.broker_name, self._clock()
        slaves = [each for each in group.statuses.values() if each.role == SLAVE]
        if ha_operator.master_of(group) is not None or not slaves or any(each.has_master for each in slaves):
            self._silent_since.pop(name, None)
            return False
        return now - self._silent_since.setdefault(name, now) >= self._after_s

    def again(self, group: Group) -> None:
        """An attempt was made: look anew before the next one."""
        self._silent_since.pop(group.broker_name, None)

    def news(self, name: str, text: str) -> str | None:
        """Return the text, if it is not the last one that was told about this group."""
        if self._told.get(name) == text:
            return None
        self._told[name] = text
        return text


@app.command("watch")
def watch(
    broker: SomeBroker = None,
    after: Annotated[
        float,
        typer.Option("--after", min=0.1, callback=check_seconds, help="Seconds that a master may be silent."),
    ] = 1.0,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Fail groups over by itself, until Ctrl-C: only groups whose acknowledgements wait for a slave, only by the rule.

    A master counts as gone when it answers neither here nor to its slaves. A name server that lives inside a member is
    refused, because it would be gone together with its master.
    """
    watcher = Watcher(after, time.monotonic)

    def say(name: str, text: str) -> None:
        if (news := watcher.news(name, text)) is None:
            return
        if as_json:
            print_json({"timeMs": time.time_ns() // 1_000_000, "broker": name, "event": news})
        else:
            print_line(f"{name}: {news}", flush=True)

    with _operator(name_server, timeout, as_json=as_json) as (admin, members), Interrupts() as interrupts:
        known: dict[str, Group] = {}
        while not interrupts.requested:
            try:
                names = {broker} if broker else {each.broker_name for each in admin.members()}
            except RopewalkError as exc:
                say("name server", str(exc))  # groups that are known are watched all the same
                names = set()
            for name in sorted(names | known.keys()):
                try:
                    _look(name, known, admin, members, watcher, name_server, say)
                except UsageError:
                    raise
                except (RopewalkError, OSError) as exc:
                    say(name, str(exc))
            time.sleep(WATCH_EVERY_S)


def _look(
    name: str,
    known: dict[str, Group],
    admin: Admin,
    members: Members,
    watcher: Watcher,
    name_server: str,
    say: Callable[[str, str], None],
) -> None:
    """One look at one group, and a failover if it is time for one."""
    group = known.get(name)
    try:
        fresh = ha_operator.find_group(admin, members, name)
        if group is not None:  # a member that died is not registered any more
            fresh.registered = {**group.registered, **fresh.registered}
            ha_operator.refresh_group(members, fresh)
        group = fresh
    except RopewalkError:
        if group is None:
            raise
        ha_operator.refresh_group(members, group)
    known[name] = group
    if group.refusing and not group.statuses:
        say(name, f"not watched: {ha_operator.refused_by_all(group)}. {secret_hint()}")
        return
    watcher.refuse_inside(group, name_server)
    if (trouble := watcher.trouble(group)) is not None:
        say(name, f"not watched: {trouble}")
        return
    master = ha_operator.master_of(group)
    if master is not None:
        slaves = sum(each.role == SLAVE and each.has_master for each in group.statuses.values())
        say(name, f"the master is {master.address}, epoch {master.leader_epoch}, followed by {slaves}")
    if not watcher.is_gone(group):
        return
    say(name, "the master is gone: failing over")
    try:
        report = ha_operator.hand_over(members, group, HandoverKind.FAILOVER, _by("watch"))
        say(name, f"{report.new_master} is the master of epoch {report.epoch}, {report.took_ms:.0f} ms")
    except HandoverFailed as exc:
        say(name, f"no failover: {exc}")
    watcher.again(group)
