"""One member's part in its group: what it is, what it has promised, and what it does when somebody asks for more.

    epoch   the highest epoch this member has accepted: it never again listens to a master of a lower one
    reign   the epoch in which its present role was given to it; `reign <= epoch`, always

A member whose epoch is ahead of its reign stands between two masters. A slave in that place has dropped its old
master. A master in that place is *fenced*: it takes no message, and what it has not yet acknowledged it acknowledges
only if a slave that still follows it reports the bytes. Both go on when somebody is promoted in the new epoch, or
when whoever asked for it gives up and releases them; nobody else can, because an epoch is accepted from one asker
only. That is what makes it safe to go back: the asker alone could have promoted somebody, and knows that it did not.
It knows that of its own epoch and of no other: a promise that a later one overtook holds again when that is released.

    free      epoch == reign                accept -> promised
    promised  epoch > reign, `by` is set    promote -> free (a master), follow -> free (a slave)
                                            release -> free, or promised to whoever asked before and has not released

Everything here is on disk before anybody hears of it, so a member that crashes wakes up with the same promises.
`RoleCore` decides and changes nothing in the world: each call returns the record to save and the act that is due.
Left to others: files, links and timers (`broker.replication.sync`), and the rule who is promoted (`promotion`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

__all__ = [
    "ASYNC_MASTER",
    "MASTER_ID",
    "SLAVE",
    "SYNC_MASTER",
    "Act",
    "Outcome",
    "RoleCore",
    "RoleRecord",
    "Terms",
]

ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"
MASTER_ID = 0
SLAVES_MAX = 64
_OVERTAKEN_MAX = 8


class Terms(msgspec.Struct, frozen=True, rename="camel"):
    """What the acknowledgements of a group rest on, as its master says and every slave remembers.

    A slave has to know it when the master is gone: how many members there are, and on how many of them an
    acknowledged message is.
    """

    role: str = ASYNC_MASTER
    in_sync_replicas: int = 1
    """Copies of a message, the master's included, before it is acknowledged."""
    version: int = 0
    """Rises with every change; a slave says which one it has."""
    slaves: dict[str, str] = {}
    """Broker id, as text, -> address on the remoting port, of every slave that was ever accepted under this id.

    An empty address is a master of before, which nobody who was asked knew the address of.
    """
    joined: dict[str, int] = {}
    """Slaves that do not count yet -> the version in which they came, which not every slave was heard to have."""
    before: int = 0
    """How many slaves are waited for until each has heard that fewer are enough; 0 where that is settled."""

    @property
    def required_acks(self) -> int:
        """How many slaves have a message when it is acknowledged."""
        return max(0, self.in_sync_replicas - 1) if self.role == SYNC_MASTER else 0

    @property
    def answers_needed(self) -> int:
        """How many slaves have to accept a new epoch, so that each set of acknowledging slaves has one among them.

        Where no slave is waited for, no number is enough: any message may be on the lost master alone.
        """
        return max(1, len(self.slaves) - self.required_acks + 1)

    def with_slave(self, broker_id: int, address: str) -> Terms:
        """With this slave on the roll. Raises ValueError when there is no room for one more.

        One that only has another address counts as before: how many have to answer is a matter of the ids.
        """
        name = str(broker_id)
        if self.slaves.get(name) == address:
            return self
        if name not in self.slaves and len(self.slaves) >= SLAVES_MAX:
            raise ValueError(f"a group has at most {SLAVES_MAX} slaves")
        version, slaves = self.version + 1, {**self.slaves, name: address}
        joined = self.joined if name in self.slaves else {**self.joined, name: version}
        return msgspec.structs.replace(self, version=version, slaves=slaves, joined=joined)

    def without_slave(self, broker_id: int) -> Terms:
        """A slave that will not come back is not counted on any more."""
        slaves = {name: address for name, address in self.slaves.items() if name != str(broker_id)}
        joined = {name: since for name, since in self.joined.items() if name in slaves}
        before = self.before if slaves else 0  # there is nobody left who could hear of anything
        return msgspec.structs.replace(
            self, version=self.version + 1, slaves=slaves, joined=joined, before=before
        )

    def with_promise(self, role: str, in_sync_replicas: int) -> Terms:
        if (self.role, self.in_sync_replicas) == (role, in_sync_replicas):
            return self
        return msgspec.structs.replace(
            self,
            role=role,
            in_sync_replicas=in_sync_replicas,
            version=self.version + 1,
            before=max(self.before, self.required_acks) if self.slaves else 0,
        )

    def settled(self, known: int) -> Terms:
        """With every slave known to have this version, or a newer one: the version does not rise by it."""
        joined = {name: since for name, since in self.joined.items() if since > known}
        before = self.before if known < self.version else 0
        if (joined, before) == (self.joined, self.before):
            return self
        return msgspec.structs.replace(self, joined=joined, before=before)

    def after_swap(self, winner: int, old_master: str) -> Terms:
        """The terms of the master that was slave `winner`: its old id now belongs to the master before it.

        That one stays on the roll also where nobody knows its address any more: it has messages that were
        acknowledged, and with one slave fewer too few answers would be enough for the next handover.
        """
        slaves = {**self.slaves, str(winner): old_master}
        return msgspec.structs.replace(self, version=self.version + 1, slaves=slaves)


class RoleRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What `<root>/ropewalk/role.json` holds."""

    role: str
    broker_id: int
    epoch: int = 0
    reign: int = 0
    by: str = ""
    """Who was promised this epoch; empty when nobody waits for anything."""
    master: str = ""
    """Whom a slave follows, by its address on the remoting port; empty: whoever the name server names."""
    terms: Terms = msgspec.field(default_factory=Terms)
    overtaken: tuple[tuple[int, str], ...] = ()
    """Promises that a later one overtook and nobody released: epoch and asker, the oldest first."""

    def __post_init__(self) -> None:
        if self.role not in (ASYNC_MASTER, SYNC_MASTER, SLAVE):
            raise ValueError(f"{self.role!r} is no role")
        if (self.role == SLAVE) != (self.broker_id > MASTER_ID) or not 0 <= self.reign <= self.epoch:
            raise ValueError(
                f"a {self.role} with id {self.broker_id}, epoch {self.epoch} and reign {self.reign}"
            )


class Act(enum.Enum):
    """What the world has to do about a change of the record."""

    NOTHING = "nothing"
    FENCE = "fence"
    """At once: take no message any more. The links to slaves stay."""
    DROP = "drop"
    """At once: hang up on the master; no report leaves any more."""
    RESUME = "resume"
    """When the record is saved: be again what it was."""
    LEAD = "lead"
    """When the record is saved: begin a reign at the own end, take messages."""
    FOLLOW = "follow"
    """At once: take no message, acknowledge none, hang up on slaves and on an older master; then follow the new one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request comes to: yes with a record and an act, or no with a reason."""

    record: RoleRecord
    act: Act = Act.NOTHING
    refusal: str | None = None


class RoleCore:
    """The decisions of one member. `record` is what is true; the caller saves it before it answers."""

    def __init__(self, record: RoleRecord) -> None:
        self.record = record

    @property
    def is_master(self) -> bool:
        return self.record.role != SLAVE

    @property
    def is_fenced(self) -> bool:
        """Whether this is a master that may take no message."""
        return self.is_master and self.record.epoch > self.record.reign

    def listens_to(self, epoch: int) -> bool:
        """Whether a master of this epoch may be followed."""
        return not self.is_master and epoch >= self.record.epoch

    # -- an epoch is asked for -------------------------------------------------------------------------

    def accept(self, epoch: int, by: str) -> Outcome:
        """Promise not to listen to anybody below `epoch`. Asked twice by the same, the promise holds once."""
        record = self.record
        if not by:
            return self._refused("who asks for an epoch has to say who it is")
        if epoch == record.epoch > record.reign and by == record.by:
            return Outcome(record)
        if epoch <= record.epoch:
            return self._refused(f"epoch {record.epoch} is accepted already, and {epoch} is not above it")
        overtaken = record.overtaken
        if record.epoch > record.reign:
            overtaken = (*overtaken, (record.epoch, record.by))
        if len(overtaken) > _OVERTAKEN_MAX:
            # The two oldest become one that nobody releases: that is more than was promised, and never less.
            overtaken = ((overtaken[1][0], ""), *overtaken[2:])
        act = Act.FENCE if self.is_master else Act.DROP
        return self._change(msgspec.structs.replace(record, epoch=epoch, by=by, overtaken=overtaken), act)

    def release(self, epoch: int, by: str) -> Outcome:
        """The asker gives up: nobody was promoted in this epoch, and nobody will be."""
        record, overtaken = self.record, self.record.overtaken
        if by and (epoch, by) in overtaken:
            rest = tuple(each for each in overtaken if each != (epoch, by))
            return self._change(msgspec.structs.replace(record, overtaken=rest), Act.NOTHING)
        if epoch != record.epoch or by != record.by or record.epoch == record.reign:
            return self._refused(f"epoch {epoch} was not promised to {by or 'nobody'}")
        if overtaken:
            # Somebody else was promised an epoch before, and may have promoted a master in it by now.
            before, asker = overtaken[-1]
            new = msgspec.structs.replace(record, epoch=before, by=asker, overtaken=overtaken[:-1])
            return self._change(new, Act.NOTHING)
        return self._change(msgspec.structs.replace(record, epoch=record.reign, by=""), Act.RESUME)

    # -- a role is given -------------------------------------------------------------------------------

    def promote(self, epoch: int, by: str, *, old_master: str = "", terms: Terms | None = None) -> Outcome:
        """Be the master of `epoch`, which was promised to this asker.

        `old_master` is the address of the one before, which gets this member's id when it comes back; `terms` are the
        newest that anybody who accepted knows: a slave that was cut off for a while may have older ones.
        """
        record = self.record
        if self.is_master and epoch == record.epoch == record.reign and by == record.by:
            return Outcome(record)  # the answer was lost, and the question came again
        if epoch != record.epoch or by != record.by or record.epoch == record.reign:
            return self._refused(f"epoch {epoch} was not promised to {by or 'nobody'}")
        terms = record.terms if terms is None or self.is_master else terms
        if not self.is_master:
            terms = terms.after_swap(record.broker_id, old_master)
        new = RoleRecord(terms.role, MASTER_ID, epoch, epoch, by, "", terms)
        return self._change(new, Act.LEAD)

    def follow(self, epoch: int, broker_id: int, master: str, terms: Terms | None = None) -> Outcome:
        """Be a slave of the master of `epoch`: told by whoever promoted it, or by itself on contact.

        `terms` are that master's: under those of an older reign this member would think that other answers are enough.
        """
        record = self.record
        if epoch < record.epoch:
            return self._refused(f"epoch {record.epoch} is accepted here, and {epoch} is below it")
        if self.is_master and epoch == record.reign:
            return self._refused(f"this is the master of epoch {epoch}")
        if broker_id <= MASTER_ID:
            return self._refused(f"a slave cannot have the id {broker_id}")
        if terms is None or (epoch == record.reign and terms.version <= record.terms.version):
            terms = record.terms
        new = RoleRecord(SLAVE, broker_id, epoch, epoch, "", master, terms)
        if new == record:
            return Outcome(record)
        return self._change(new, Act.FOLLOW)

    # -- what the terms become -------------------------------------------------------------------------

    def learn(self, terms: Terms) -> Outcome:
        """A slave takes its master's terms over."""
        if self.is_master or terms == self.record.terms:
            return Outcome(self.record)
        return self._change(msgspec.structs.replace(self.record, terms=terms), Act.NOTHING)

    def enrol(self, broker_id: int, address: str) -> Outcome:
        """A master puts a slave on its roll. Raises ValueError when there is no room."""
        assert self.is_master
        terms = self.record.terms.with_slave(broker_id, address)
        if terms is self.record.terms:
            return Outcome(self.record)
        return self._change(msgspec.structs.replace(self.record, terms=terms), Act.NOTHING)

    def settle(self, known: int) -> Outcome:
        """A master has heard that each of its slaves has the terms of version `known`."""
        terms = self.record.terms.settled(known) if self.is_master else self.record.terms
        if terms is self.record.terms:
            return Outcome(self.record)
        return self._change(msgspec.structs.replace(self.record, terms=terms), Act.NOTHING)

    def forget(self, broker_id: int) -> Outcome:
        """A master strikes a slave off its roll: the caller has seen that the others have everything."""
        record = self.record
        if not self.is_master or self.is_fenced:
            return self._refused("only a master that reigns changes the roll")
        if str(broker_id) not in record.terms.slaves:
            known = ", ".join(sorted(record.terms.slaves, key=int)) or "none"
            return self._refused(f"no slave {broker_id} is on the roll; there are: {known}")
        return self._change(
            msgspec.structs.replace(record, terms=record.terms.without_slave(broker_id)), Act.NOTHING
        )

    def _change(self, record: RoleRecord, act: Act) -> Outcome:
        assert record.epoch >= self.record.reign, "an accepted epoch is never forgotten below the reign"
        self.record = record
        return Outcome(record, act)

    def _refused(self, why: str) -> Outcome:
        return Outcome(self.record, refusal=why)


@dataclass(slots=True)
class Roll:
    """Whose reports may count, as a master sees it.

    A slave that is new on the roll must not count before every other slave knows of it: one that does not would,
    with the master gone, think that fewer answers are enough. Who waits for that is in the terms, on disk and with
    whoever is promoted: a master that starts again, or another one, must not count it either.
    """

    terms: Terms
    taken: dict[str, int] = field(default_factory=dict)
    """Broker id -> the version of the terms that this slave said it has."""

    @property
    def required_acks(self) -> int:
        """How many slaves to wait for. While one has not heard that fewer are enough, they are not."""
        return max(self.terms.required_acks, self.terms.before)

    def has(self, broker_id: int, version: int) -> int:
        """A slave says which terms it has, on its disk; returns the version that every one has, or a newer one."""
        name = str(broker_id)
        self.taken[name] = max(version, self.taken.get(name, 0))
        return min((self.taken.get(each, 0) for each in self.terms.slaves), default=self.terms.version)

    def counts(self, broker_id: int) -> bool:
        """Whether the reports of this slave count for acknowledgements."""
        name = str(broker_id)
        return name in self.terms.slaves and name not in self.terms.joined
