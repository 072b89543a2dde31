"""Act as the operator during a drill: the commands of `ropewalk admin ha`, and of `ropewalk store`."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import trio

from ha.group.handover import HandoverKind
from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import RopewalkError
from tools.admin import handover as ha_operator
from tools.common.output import counted
from tools.drill.testbed.group import Group
from tools.storage import maintenance as store_care


class Failed(RopewalkError):
    """The command ended with an error; the text is its own."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The outcome of a handover."""

    new_master: str
    """Its address."""
    told: str


async def hand_over(group: Group, kind: HandoverKind, *, force: bool = False) -> Handover:
    """`ropewalk admin ha switch` or `failover` for the group. Raises `Failed` with what the command would say."""
    # In a thread, because the proxy that carries its questions runs in this one.
    return await trio.to_thread.run_sync(_hand_over, group, kind, force, abandon_on_cancel=True)


def _hand_over(group: Group, kind: HandoverKind, force: bool) -> Handover:
    try:
        with Admin(group.name_server) as admin, ha_operator.Members(group.secret) as members:
            found = ha_operator.find_group(admin, members, group.broker_name)
            report = ha_operator.hand_over(members, found, kind, f"drill-{secrets.token_hex(8)}", force=force)
    except (RopewalkError, OSError) as exc:
        raise Failed(str(exc)) from exc
    told = f"{group.name_of(report.new_master)} is the master of epoch {report.epoch}"
    if report.gap_ms is not None:
        told += f", no message was taken for {report.gap_ms:.0f} ms"
    if report.at_risk:
        told += f"; at risk: {report.at_risk}"
    return Handover(report.new_master, told)


async def find_damage(store: Path) -> str:
    """Return the findings of `ropewalk store verify` in a stopped member's files. Raises `Failed` if it finds
    nothing."""
    _verification, findings = await trio.to_thread.run_sync(
        lambda: store_care.verify_store(store_care.find_store(store), _nobody_watches)
    )
    damages = [finding for finding in findings if finding.damage]
    if not damages:
        raise Failed(f"`store verify` finds no damage in {store}")
    return f"`store verify` finds it: {damages[0].place} of {Path(damages[0].path).name}: {damages[0].text}"


async def repair_store(store: Path, other: Path) -> str:
    """Make a stopped member's files whole from another one's, as `ropewalk store repair` does. Raises `Failed`."""
    _layout, done = await trio.to_thread.run_sync(
        lambda: store_care.repair_store(
            store_care.find_store(store),
            None,
            [other],
            accept_loss=False,
            copied=_nobody_watches,
            looked=_nobody_watches,
        )
    )
    if done.lost:
        raise Failed(f"`store repair` cannot mend: {done.lost[0]}")
    return f"`store repair` has mended {counted(len(done.taken), 'place')} from {other.name}"


def _nobody_watches(done: int, total: int) -> None:
    pass
