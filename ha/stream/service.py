"""HAService: a master's slaves, what they have, and which of them count.

A report is worth nothing before it is known whose it is. Three kinds of peers come to the port:

    a Ropewalk slave    has said hello and is known by its broker id: its newest connection counts, one
    a RocketMQ slave    says nothing; of one IP as many connections count as slaves of this group are registered
                        from there, the newest first
    anybody else        is sent bytes, if the rules let unknown peers in, and never counts

Where a slave begins is judged here too. A report of 0 is a slave without a log: it gets everything there is. Any
other number has to lie inside this log. And it has to be one that a slave can have got from here: behind what this
master found at its start and has sent to that address since, a slave's bytes are of some other history, and it is
refused before a byte flows. (Peers that have said hello were compared byte by byte, and need no such guess.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from ha.stream.connection import HaConnection, HaRules, Link, Source, State
from ropewalk.errors import RemoteProtocolError

log = structlog.get_logger("ha.service")

_ADDRESSES_MAX = 1024
_CONNECTIONS_MAX = 256
_HELLO_KEPT_MS = 10_000


class MasterSource(Source, Protocol):
    @property
    def last_segment(self) -> int:
        """Return the offset at which the newest segment begins."""


@dataclass(frozen=True, slots=True)
class Replica:
    """The identity of a peer, from its hello."""

    broker_id: int
    address: str
    """Where it is reached on the remoting port."""


class HaService:
    """All connections of slaves to this broker, as long as it is a master."""

    def __init__(
        self,
        source: MasterSource,
        rules: HaRules,
        now_ms: Callable[[], int],
        on_report: Callable[[], None],
    ) -> None:
        """`on_report`: what counts may have changed."""
        self.rules = rules
        self.connections: list[HaConnection] = []
        """Oldest first."""
        self.on_leave: Callable[[], None] = lambda: None
        """Called when a slave has hung up, while its last report still counts."""
        self.member_hosts: Callable[[], Container[str]] = frozenset
        """The hosts of the slaves that are in the group's policy."""
        self.secret_required = False
        """Whether peers that have not said hello are refused."""
        self.found_at_start = source.end
        """Where the log ended when this broker became master."""
        self._source = source
        self._now_ms = now_ms
        self._on_report = on_report
        self._open = False
        self._replicas: dict[tuple[str, int], tuple[Replica, int]] = {}
        """By the address of the slave's end of the socket, from hellos, with the time; they may overtake the socket."""
        self._counted: list[HaConnection] | None = None
        """The cached result of `counted`; None when it has to count again."""
        self._registered: Mapping[str, int] = {}
        self._sent_to: dict[str, int] = {}

    # -- life ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Be a master from now on, with the log as it is."""
        self._open = True
        self.found_at_start = self._source.end
        self._sent_to.clear()

    def end(self) -> None:
        """Be none any more: every slave is hung up on."""
        self._open = False
        self._replicas.clear()
        self._counted = None
        for connection in list(self.connections):
            self._hang_up(connection)

    def accept(self, link: Link) -> HaConnection:
        """A peer has connected."""
        connection = HaConnection(link, self._source, self.rules, self._start_of, self._changed, self._now_ms)
        connection.on_leave = self.on_leave
        self.connections.append(connection)
        if not self._open:
            log.info("refused on the HA port: this broker is no master", peer=_name(link))
            self._hang_up(connection)
        elif len(self.connections) > _CONNECTIONS_MAX:
            self._make_room()
        return connection

    def _make_room(self) -> None:
        """Hang up on one of too many: strangers must not keep a slave out by being here.

        Who has said hello stays, and who counts. Of the others those go first that are from no member's address, then
        those from where no slave is registered, then those that have not asked for anything, then those from the
        address that has most of them, and the oldest of these.
        """
        kept = [*self.counted(), *(each for each in self.connections if each.link.peer in self._replicas)]
        others = [each for each in self.connections[:-1] if each not in kept] or self.connections[-1:]
        count = Counter(each.link.peer[0] for each in others)
        hosts = self.member_hosts()

        def order(each: HaConnection) -> tuple[bool, bool, bool, int]:
            host = each.link.peer[0]
            return host in hosts, host in self._registered, each.state is not State.SILENT, -count[host]

        goes = min(others, key=order)
        log.warning("hung up on the HA port: there are too many connections", peer=_name(goes.link))
        self._hang_up(goes)

    def _hang_up(self, connection: HaConnection) -> None:
        connection.state = State.SHUTDOWN
        connection.link.close()
        self._changed(connection)

    def _changed(self, connection: HaConnection) -> None:
        if connection.state is State.SHUTDOWN:
            if connection in self.connections:
                self.connections.remove(connection)
                self._replicas.pop(connection.link.peer, None)
                self._note_sent(connection)
                self._counted = None
        self._on_report()

    def _note_sent(self, connection: HaConnection) -> None:
        ip = connection.link.peer[0]
        if connection.next_offset > self._sent_to.get(ip, -1):
            while len(self._sent_to) >= _ADDRESSES_MAX:
                self._sent_to.pop(next(iter(self._sent_to)))
            self._sent_to[ip] = connection.next_offset

    # -- where a slave begins ------------------------------------------------------------------------

    def _start_of(self, connection: HaConnection, reported: int) -> int:
        source, peer = self._source, connection.link.peer
        known = peer in self._replicas
        if self.secret_required and not known:
            raise RemoteProtocolError(
                "this group has a ropewalkSecret, and the peer has not proven that it knows it"
            )
        self._counted = None
        if reported == 0:
            start = source.last_segment if self.rules.from_last_file else source.begin
            log.info("an empty slave begins", peer=_name(connection.link), at=start)
            return start
        if not source.begin <= reported <= source.end:
            raise RemoteProtocolError(
                f"it reports log offset {reported}, but this log has {source.begin} to {source.end}: "
                + (
                    "what it has more was never this master's; compare the two before one of them goes on"
                    if reported > source.end
                    else "what it lacks is removed here; empty its store to have it begin anew"
                )
            )
        if not known:
            self._note_all_sent()
            given = max(self.found_at_start, self._sent_to.get(peer[0], 0))
            if reported > given:
                raise RemoteProtocolError(
                    f"it reports log offset {reported}, but nothing behind {given} was ever sent to {peer[0]} since "
                    f"this broker became master: from there on its log must be another one's. (If the slave only "
                    f"changed its address, restart this broker.)"
                )
        log.info("a slave begins", peer=_name(connection.link), at=reported)
        return reported

    def _note_all_sent(self) -> None:
        for connection in self.connections:
            self._note_sent(connection)

    # -- who counts ----------------------------------------------------------------------------------

    def set_registered(self, slaves: Mapping[str, int]) -> None:
        """Take the numbers of this group's slaves at the name servers, by IP."""
        if slaves != self._registered:
            self._registered = dict(slaves)
            self._counted = None
            self._on_report()

    def identify(self, peer: tuple[str, int], replica: Replica) -> None:
        """A hello has told whose connection it is that comes, or came, from this address."""
        self._forget_hellos(0 if len(self._replicas) >= _ADDRESSES_MAX else _HELLO_KEPT_MS)
        self._replicas[peer] = replica, self._now_ms()
        self._counted = None
        for connection in list(self.connections):
            other = self.replica_of(connection)
            if connection.link.peer != peer and other is not None and other.broker_id == replica.broker_id:
                log.info("a slave came back: its older connection goes", peer=_name(connection.link))
                self._hang_up(connection)
        self._on_report()

    def replica_of(self, connection: HaConnection) -> Replica | None:
        found = self._replicas.get(connection.link.peer)
        return found[0] if found is not None else None

    def _forget_hellos(self, kept_ms: int) -> None:
        """A port that no slave of ours has any more may be anybody's next."""
        now, here = self._now_ms(), {connection.link.peer for connection in self.connections}
        for at, (_replica, since_ms) in list(self._replicas.items()):
            if at not in here and now - since_ms >= kept_ms:
                del self._replicas[at]

    def counted(self) -> list[HaConnection]:
        """The connections whose reports count, newest first: each a slave of its own."""
        if self._counted is None:
            self._counted = self._count()
        return self._counted

    def _count(self) -> list[HaConnection]:
        found: list[HaConnection] = []
        ids: set[int] = set()
        left = dict(self._registered)
        for connection in reversed(self.connections):
            if connection.state is not State.TRANSFER:
                continue
            replica = self.replica_of(connection)
            if replica is not None:
                if replica.broker_id in ids:
                    continue
                ids.add(replica.broker_id)
                ip = replica.address.rpartition(":")[0]
                left[ip] = left.get(ip, 0) - 1  # its registration vouches for no one else
            found.append(connection)
        counted = []
        for connection in found:
            if connection.link.peer not in self._replicas:
                ip = connection.link.peer[0]
                if left.get(ip, 0) <= 0:
                    continue
                left[ip] -= 1
            counted.append(connection)
        return counted

    def in_sync(self) -> Sequence[HaConnection]:
        """The slaves that count and are close to the end of the log."""
        end = self._source.end
        return [connection for connection in self.counted() if connection.is_in_sync(end)]

    # -- turns and time ------------------------------------------------------------------------------

    def advance(self) -> None:
        """Owe every slave the bytes that were appended."""
        for connection in self.connections:
            connection.advance()

    def replicate_early(self) -> None:
        """Have appended bytes leave now, and not only when the turn ends."""
        for connection in self.connections:
            connection.advance()
            connection.link.push()

    def tick(self) -> None:
        """The work of time, several times a second."""
        if self._replicas:
            self._forget_hellos(_HELLO_KEPT_MS)
        for connection in list(self.connections):
            try:
                connection.tick()
            except RemoteProtocolError as exc:
                log.warning("hung up on a slave", peer=_name(connection.link), reason=str(exc))
                self._hang_up(connection)


def _name(link: Link) -> str:
    return f"{link.peer[0]}:{link.peer[1]}"
