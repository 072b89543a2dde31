"""`GroupMember`: a broker's group as the broker itself sees it, whatever keeps the copies of the log equal.

    MasterSlaveMember   a master and slaves that follow its log (`master_slave_member`)
    LedgerMember        a member of a Raft group: DLedger mode (`dledger.member`)

The broker asks its member three kinds of things: what this turn may do (`limits`), how far producers may be
answered (`confirmed`), and to do its share at the turn's begin and end. The process asks it for its identity at name
servers, for the words of the ready line, and to run. Nobody asks how. All methods are called on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from broker.remoting.connection import Connection, ConnectionHandler
from broker.remoting.shell import Shell
from broker.state.ha_status import GroupLimits, HaStatus
from store.log.commitlog import StoreDamaged
from store.offline.diverged import About

__all__ = ["GroupMember", "LogCut", "LogReplaced", "OwnGroup", "ReadyWords", "Turns"]


class Turns(Protocol):
    """The brackets around every change of the broker's state."""

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LogCut:
    """The part of a closed store's log that has to go before this broker can follow its master."""

    about: About
    everything: bool
    """Whether nothing of the log can be kept."""


class LogReplaced:
    """The store is to be closed and opened again: a snapshot takes the place of its log then."""


@dataclass(frozen=True, slots=True)
class ReadyWords:
    """The member's share of the ready line."""

    mode: str
    send_ok: str
    """The promise of an acknowledgement."""
    takes_messages: bool
    place: str = ""
    """Identity and epoch, and the file that they come from; empty for what the configuration says."""


class GroupMember(Protocol):
    """The part of a broker in its group. The loop owns it."""

    on_role: Callable[[], None]
    """Called when the role of the broker has changed: the broker itself listens."""
    on_identity: Callable[[], None]
    """Called when id or epoch at the name servers have changed: the process listens."""
    on_abandoned: Callable[[], None]
    """Called when producers wait for more members than there are."""

    # -- identity

    @property
    def role(self) -> str:
        """Return the role's name, as metrics and logs show it."""

    @property
    def is_leader(self) -> bool:
        """Return whether this member takes messages, schedules deliveries and settles transactions."""

    @property
    def broker_id(self) -> int:
        """Return the id to register with."""

    @property
    def epoch(self) -> int:
        """Return the epoch or term under which this member has its role."""

    @property
    def ha_address(self) -> str:
        """Return the `host:port` that other members connect to."""

    @property
    def has_replicas(self) -> bool:
        """Return whether there is, or ever was, another member that keeps offsets of consumers."""

    # -- what name servers say (`Registrar`)

    @property
    def seeks_master(self) -> bool:
        """Return whether the broker is a slave that does not know its master."""

    @property
    def seeks_slaves(self) -> bool:
        """Return whether the broker is a master that needs the number of registered slaves."""

    def set_master(self, ha_address: str, master_address: str) -> None:
        """Take the master's addresses."""

    def set_registered(self, slaves: Mapping[str, int]) -> None:
        """Take the numbers of registered slaves, by IP."""

    # -- limits of a turn

    @property
    def limits(self) -> GroupLimits:
        """Return the limits, always the same object."""

    @property
    def confirmed(self) -> int:
        """Return the log offset through which producers may be acknowledged, as far as other members matter."""

    @property
    def covers_flush(self) -> bool:
        """Return whether `confirmed` tells of flushed bytes, those of this broker included."""

    def peer_awaited(self, answers_wait: bool, sync_flush: bool) -> bool:
        """Return whether the next event is likely to be a message from another member."""

    # -- turns

    def begin_turn(self) -> None:
        """Judge the limits of this turn."""

    def replicate_early(self) -> None:
        """Send appended bytes on within a turn, so that others work on them while it goes on. HOT."""

    def apply_reports(self) -> None:
        """Count the reports of other members within a turn. HOT."""

    def end_turn(self) -> None:
        """Send appended bytes on, and begin to wait for them."""

    def tick(self) -> None:
        """Do the work of time, several times a second, inside a turn."""

    def status(self, before: HaStatus, wall_ms: int) -> HaStatus | None:
        """Return the status of replication; None where nothing is replicated and nothing was."""

    # -- life

    def bound(self, ha_port: int, name_server: str) -> None:
        """Take the port for other members, and the address of the name server in this process ("" without one)."""

    def accept(self, link: Connection) -> ConnectionHandler:
        """Return the session of a connection to the port for other members."""

    def load(self) -> None:
        """Read this member's files before the store is opened. Blocks."""

    def open(self) -> None:
        """Take up the role; the store and the tables are loaded."""

    async def run(self, turns: Turns, shell: Shell) -> LogCut | LogReplaced:
        """Be a member until cancelled; return the cut that the closed log needs before this goes on."""

    async def mend(self, shell: Shell, why: StoreDamaged) -> None:
        """Mend the log, which could not be opened, from other members. Raises `StoreDamaged` where that is no way."""

    async def settle(self) -> None:
        """Wait until this member knows its role after a start: before that the ready line would tell an old one."""

    async def hand_over(self) -> None:
        """Have another member lead, where members decide that by themselves, before this broker stops."""

    def leave(self) -> None:
        """Tell the group that this broker is about to stop."""

    def stop(self) -> None:
        """Hang up, and end helper threads. Blocks for a moment."""

    def ready_words(self) -> ReadyWords:
        """Return the member's share of the ready line."""


class OwnGroup:
    """The group as the registrar sees it, of the member that there is at the moment."""

    def __init__(self, member: Callable[[], GroupMember]) -> None:
        self._member = member

    @property
    def seeks_master(self) -> bool:
        return self._member().seeks_master

    @property
    def seeks_slaves(self) -> bool:
        return self._member().seeks_slaves

    def set_master(self, ha_address: str, master_address: str) -> None:
        self._member().set_master(ha_address, master_address)

    def set_registered(self, slaves: Mapping[str, int]) -> None:
        self._member().set_registered(slaves)
