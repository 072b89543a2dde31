"""The parts of replication that the rest of the broker sees.

HaStatus      one frozen snapshot, replaced whole when anything moves. Metrics, readiness and tools (907) read it
              and nothing else of replication; a broker that replicates to nobody keeps the default
GroupLimits   what a group lets its member do, judged for each turn: sends, pulls and answers go by it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["GroupLimits", "HaStatus", "MasterLink", "SlaveLink"]


@dataclass(frozen=True, slots=True)
class SlaveLink:
    """A slave's connection, as its master sees it."""

    address: str
    """`ip:port` of the slave's end."""
    acknowledged: int
    """The log offset that it last reported."""
    in_sync: bool
    bytes_per_second: int = 0
    streamed_from: int = 0
    """The log offset up to which bytes have been sent to it."""


@dataclass(frozen=True, slots=True)
class MasterLink:
    """A slave's connection to its master, as the slave sees it."""

    address: str
    bytes_per_second: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    master_flushed: int = 0


@dataclass(frozen=True, slots=True)
class HaStatus:
    """Role, epoch and peers of this broker at one moment."""

    is_master: bool = True
    epoch: int = 0
    slaves: Sequence[SlaveLink] = ()
    master: MasterLink | None = None
    lag_bytes: int = 0
    """Of a slave: how far its log is behind what its master last published."""
    fence: str | None = None
    """Why this broker must not take messages for the moment, in words."""
    quorum_missing: str | None = None
    """Which slaves an acknowledgement would wait for and are not there, in words."""
    refused: str | None = None
    """Why this slave does not follow its master, although that is there: one of the two refuses the other, in words."""
    notes: tuple[str, ...] = ()
    """Remarks about the group's members, a sentence each; messages are taken all the same."""

    @property
    def has_members(self) -> bool:
        """Return whether this broker has, or had, other members in its group."""
        return bool(self.slaves) or not self.is_master or self.epoch > 0

    def runtime_body(self, end_offset: int) -> dict[str, Any]:
        """The body of code 907 for a log that ends at `end_offset`."""
        client = self.master
        return {
            "haClientRuntimeInfo": {
                "lastReadTimestamp": client.last_read_ms if client else 0,
                "lastWriteTimestamp": client.last_write_ms if client else 0,
                "masterAddr": client.address if client else None,
                "masterFlushOffset": client.master_flushed if client else 0,
                "maxOffset": 0 if self.is_master else end_offset,
                "transferredByteInSecond": client.bytes_per_second if client else 0,
            },
            "haConnectionInfo": [
                {
                    "addr": slave.address,
                    "diff": end_offset - slave.acknowledged,
                    "inSync": slave.in_sync,
                    "slaveAckOffset": slave.acknowledged,
                    "transferFromWhere": slave.streamed_from,
                    "transferredByteInSecond": slave.bytes_per_second,
                }
                for slave in self.slaves
            ],
            "inSyncSlaveNums": sum(slave.in_sync for slave in self.slaves),
            "master": self.is_master,
            "masterCommitLogMaxOffset": end_offset if self.is_master else 0,
        }


@dataclass(slots=True)
class GroupLimits:
    """The limits that a group sets to its member. The member writes them, `begin_turn` at the latest; others read."""

    is_leader: bool = False
    """Whether this member takes messages, schedules deliveries and settles transactions."""
    has_master: bool = False
    """Whether this is a slave with a living master, to which consumers may be sent."""
    waits: bool = False
    """Whether producers are answered when other members have their messages, and not before."""
    available: bool = True
    """Whether there are enough members to wait for."""
    patience_ms: int = 0
    """How long an answer waits for other members."""
    refused: tuple[int, str] | None = None
    """Code and text of why no message is taken, or None."""
    unread: str | None = None
    """Text of why consumers are not served, or None."""
