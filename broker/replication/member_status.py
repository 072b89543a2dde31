"""The status of a member of a group, for the other members, an operator's handover and `admin ha status`."""

from __future__ import annotations

from broker.context import BrokerContext
from broker.replication.master_slave import Replication
from broker.replication.member import HaMember
from ha.group.hello import MemberStatusMessage, SlaveView
from ha.group.roles import SLAVE

__all__ = ["member_status"]


def member_status(member: HaMember, broker: BrokerContext, replication: Replication) -> MemberStatusMessage:
    """Return the status of a member as its group and `admin ha status` get it."""
    record = member.core.record
    store, heard = broker.store, member.heard
    end = store.whole_end
    age = -1
    if heard is not None:
        age = (member.lost_ms if member.lost_ms >= 0 else broker.monotonic_ms()) - member.heard_ms
    return MemberStatusMessage(
        broker_name=broker.config.broker_name,
        broker_id=record.broker_id,
        address=member.address,
        role=record.role,
        newest_open_promise=record.superseded[-1][0] if record.superseded else 0,
        promised_epoch=record.promised_epoch,
        leader_epoch=record.leader_epoch,
        begin=store.log.min_offset,
        end=end,
        log_epoch=member.epochs.of_end(end),
        waiting=len(broker.acks) if record.role != SLAVE else 0,
        policy=record.policy,
        master=record.master or replication.master_address if record.role == SLAVE else member.address,
        master_end=heard.end if heard is not None else 0,
        master_age_ms=age,
        name_server=member.name_server,
        ha_address=member.ha_address,
        cluster=broker.config.broker_cluster_name,
        flushed=store.log.flushed_offset,
        readable=store.readable_offset,
        stored_ms=store.last_store_ms,
        has_master=member.lost_ms < 0 and heard is not None,
        link=_link(replication),
        slaves=_slaves(member, replication, store.log.end_offset) if record.role != SLAVE else [],
        damaged=len(store.damage) if store.damage is not None else 0,
        repaired=store.damage.mended if store.damage is not None else 0,
        fence=replication.fence or "",
    )


def _link(replication: Replication) -> str:
    client = replication.client
    if client is None:
        return ""
    if client.link is None and client.why:
        return f"{client.state.value}: {client.why}"
    return (
        f"{client.state.value}, {client.copy_progress.text}"
        if client.copy_progress.text
        else client.state.value
    )


def _slaves(member: HaMember, replication: Replication, end: int) -> list[SlaveView]:
    service = replication.service
    counted = service.counted()
    views = []
    for connection in service.connections:
        replica = service.replica_of(connection)
        views.append(
            SlaveView(
                replica.address if replica is not None else ":".join(map(str, connection.link.peer)),
                replica.broker_id if replica is not None else -1,
                connection.acknowledged,
                connection.is_in_sync(end),
                connection in counted and member.counts(connection),
                connection.rate,
            )
        )
    return views
