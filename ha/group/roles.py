"""Decide one member's role in its broker group: what it has promised, and which request changes its role.

    promised_epoch   the highest epoch this member has accepted: it never again listens to a master of a lower one
    leader_epoch     the epoch in which its present role was given to it; `leader_epoch <= promised_epoch`, always

A member whose promised epoch is ahead of its leader epoch stands between two masters. A slave in that place has
dropped its old master. A master in that place is *fenced*: it takes no message, and what it has not yet acknowledged
it acknowledges only if a slave that still follows it reports the bytes. Both go on when a member is promoted in the new
epoch, or when the operator that asked for it gives up and releases them; no other can release them, because an epoch is
accepted from one operator only. That is what makes it safe to go back: this operator alone could have promoted a
member, and knows that it did not. It knows that of its own epoch and of no other: a promise that a later one
superseded holds again when that one is released.

    free      promised_epoch == leader_epoch                  accept -> promised
    promised  promised_epoch > leader_epoch, promised_to set  promote -> free (a master), follow -> free (a slave)
                                            release -> free, or promised to the operator of the superseded promise

Every record is on disk before it is answered for, so a member that crashes wakes up with the same promises. `RoleCore`
decides and changes nothing in the world: each call returns the record to save and the action that is due. Left to
others: files, links and timers (the caller's), and the rule which member is promoted (`ha.group.handover`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec

__all__ = [
    "ASYNC_MASTER",
    "MASTER_ID",
    "NUMBER_MAX",
    "Number",
    "SLAVE",
    "SYNC_MASTER",
    "RoleAction",
    "RoleDecision",
    "RoleCore",
    "RoleRecord",
    "QuorumPolicy",
]

ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"
MASTER_ID = 0
SLAVES_MAX = 64
BROKER_ID_MAX = (1 << 31) - 1
EPOCH_STEP_MAX = 1_000
"""How far a new epoch may be above the last one: behind one at the end of the numbers no other could follow."""
FIRST_EPOCH_MAX = 1 << 40
"""The highest epoch in which a slave begins that was in none before."""
VERSION_STEP_MAX = 1_000_000
"""How far the version of a policy may be above the one before."""
NUMBER_MAX = (1 << 62) - 1
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=NUMBER_MAX)]
"""An epoch, offset, time, version, id or checksum of a peer: what is made of it still fits 64 bits."""
_SUPERSEDED_MAX = 8
_CUTTING = "the log of this member is being cut to what its master has: ask again when it is open again"


class QuorumPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """The rule of a group's acknowledgements, set by its master and kept by every slave.

    A slave has to know it when the master is gone: how many members there are, and on how many of them an
    acknowledged message is.
    """

    role: str = ASYNC_MASTER
    in_sync_replicas: int = 1
    """Copies of a message, the master's included, before it is acknowledged."""
    version: int = 0
    """Rises with every change; a slave reports which version it has."""
    slaves: dict[str, str] = {}
    """Broker id, as text, -> address on the remoting port, of every slave that was ever accepted under this id.

    An empty address is a former master, whose address no member knew when it was replaced.
    """
    pending_slaves: dict[str, int] = msgspec.field(name="joined", default_factory=dict)
    """Slaves that do not count yet -> the version in which they came, which not every slave has reported to have."""
    previous_acks: int = msgspec.field(name="before", default=0)
    """Slaves to wait for until each has reported that it knows fewer are enough; 0 when every slave does."""

    def __post_init__(self) -> None:
        if self.role not in (ASYNC_MASTER, SYNC_MASTER):
            raise ValueError(f"{self.role!r} is no role of a master")
        if len(self.slaves) > SLAVES_MAX:
            raise ValueError(f"a group has at most {SLAVES_MAX} slaves, and not {len(self.slaves)}")
        for name in (*self.slaves, *self.pending_slaves):
            if not (name.isascii() and name.isdigit() and len(name) <= 10 and 0 < int(name) <= BROKER_ID_MAX):
                raise ValueError(f"{name[:20]!r} is no id of a slave")
        numbers = (self.version, self.previous_acks, *self.pending_slaves.values())
        if not self.in_sync_replicas >= 1 or any(not 0 <= number <= NUMBER_MAX for number in numbers):
            raise ValueError("a policy has no such numbers")

    @property
    def required_acks(self) -> int:
        """Return how many slaves have a message when it is acknowledged."""
        return max(0, self.in_sync_replicas - 1) if self.role == SYNC_MASTER else 0

    @property
    def answers_needed(self) -> int:
        """Return how many slaves have to accept a new epoch, so that each set of acknowledging slaves includes an
        accepting one.

        Where no slave is waited for, no number is enough: any message may be on the lost master alone.
        """
        return max(1, len(self.slaves) - self.required_acks + 1)

    def with_slave(self, broker_id: int, address: str) -> QuorumPolicy:
        """Return the policy with this slave in it. Raises ValueError when there is no room for one more.

        A slave that only has another address counts as before: how many have to answer is a matter of the ids.
        """
        name = str(broker_id)
        if self.slaves.get(name) == address:
            return self
        if name not in self.slaves and len(self.slaves) >= SLAVES_MAX:
            raise ValueError(f"a group has at most {SLAVES_MAX} slaves")
        version, slaves = self.version + 1, {**self.slaves, name: address}
        pending = self.pending_slaves if name in self.slaves else {**self.pending_slaves, name: version}
        return msgspec.structs.replace(self, version=version, slaves=slaves, pending_slaves=pending)

    def without_slave(self, broker_id: int) -> QuorumPolicy:
        """Return the policy without a slave that will not come back."""
        slaves = {name: address for name, address in self.slaves.items() if name != str(broker_id)}
        pending = {name: since for name, since in self.pending_slaves.items() if name in slaves}
        previous = self.previous_acks if slaves else 0  # there is no slave left that could hear of anything
        return msgspec.structs.replace(
            self, version=self.version + 1, slaves=slaves, pending_slaves=pending, previous_acks=previous
        )

    def with_requirement(self, role: str, in_sync_replicas: int) -> QuorumPolicy:
        """Return the policy under which messages are acknowledged as this role and number of copies say."""
        if (self.role, self.in_sync_replicas) == (role, in_sync_replicas):
            return self
        return msgspec.structs.replace(
            self,
            role=role,
            in_sync_replicas=in_sync_replicas,
            version=self.version + 1,
            previous_acks=max(self.previous_acks, self.required_acks) if self.slaves else 0,
        )

    def confirmed_by_all(self, known: int) -> QuorumPolicy:
        """Return the policy when every slave is known to have version `known`, or a newer one: the same version."""
        pending = {name: since for name, since in self.pending_slaves.items() if since > known}
        previous = self.previous_acks if known < self.version else 0
        if (pending, previous) == (self.pending_slaves, self.previous_acks):
            return self
        return msgspec.structs.replace(self, pending_slaves=pending, previous_acks=previous)

    def after_swap(self, winner: int, old_master: str) -> QuorumPolicy:
        """Return the policy of the master that was slave `winner`: its old id now belongs to the master before it.

        The old master stays in it also where its address is not known any more: it has messages that were
        acknowledged, and with one slave fewer too few answers would be enough for the next handover.
        """
        # A policy from before the old master led still has it under the id that another member has by now.
        slaves = {
            name: "" if old_master and address == old_master else address
            for name, address in self.slaves.items()
        }
        slaves[str(winner)] = old_master
        return msgspec.structs.replace(self, version=self.version + 1, slaves=slaves)


class RoleRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The content of `<root>/ropewalk/role.json`."""

    role: str
    broker_id: int
    promised_epoch: int = msgspec.field(name="epoch", default=0)
    leader_epoch: int = msgspec.field(name="reign", default=0)
    promised_to: str = msgspec.field(name="by", default="")
    """The operator to whom this epoch was promised; empty when no promise is open."""
    master: str = ""
    """The address of a slave's master on the remoting port; empty: the one that the name server names."""
    policy: QuorumPolicy = msgspec.field(name="terms", default_factory=QuorumPolicy)
    superseded: tuple[tuple[int, str], ...] = msgspec.field(name="overtaken", default=())
    """Promises that a later one superseded and that were not released: epoch and operator, the oldest first."""

    def __post_init__(self) -> None:
        if self.role not in (ASYNC_MASTER, SYNC_MASTER, SLAVE):
            raise ValueError(f"{self.role!r} is no role")
        if (self.role == SLAVE) != (
            self.broker_id > MASTER_ID
        ) or not 0 <= self.leader_epoch <= self.promised_epoch:
            raise ValueError(
                f"a {self.role} with id {self.broker_id}, promised epoch {self.promised_epoch} and leader epoch "
                f"{self.leader_epoch}"
            )


class RoleAction(enum.Enum):
    """The action that is due when a record changes."""

    NOTHING = "nothing"
    FENCE = "fence"
    """At once: take no message any more. The links to slaves stay."""
    DROP = "drop"
    """At once: hang up on the master; no report leaves any more."""
    RESUME = "resume"
    """When the record is saved: be again what it was."""
    LEAD = "lead"
    """When the record is saved: begin an epoch at the own end, take messages."""
    FOLLOW = "follow"
    """At once: take no message, acknowledge none, hang up on slaves and on an older master; then follow the new one."""


@dataclass(frozen=True, slots=True)
class RoleDecision:
    """The answer to a request: yes with a record and an action, or no with a reason."""

    record: RoleRecord
    action: RoleAction = RoleAction.NOTHING
    refusal: str | None = None


class RoleCore:
    """The decisions of one member. `record` is what is true; the caller saves it before it answers."""

    def __init__(self, record: RoleRecord) -> None:
        self.record = record
        self.is_cutting = False
        """Whether the log is about to be cut to what the followed master has: no role is promised or changed before."""

    @property
    def is_master(self) -> bool:
        return self.record.role != SLAVE

    @property
    def is_fenced(self) -> bool:
        """Return whether this is a master that may take no message."""
        return self.is_master and self.record.promised_epoch > self.record.leader_epoch

    def listens_to(self, epoch: int) -> bool:
        """Return whether a master of this epoch may be followed."""
        return not self.is_master and epoch >= self.record.promised_epoch

    # -- an epoch is asked for -------------------------------------------------------------------------

    def accept(self, epoch: int, operator: str) -> RoleDecision:
        """Promise not to listen to any master below `epoch`. Asked twice by one operator, the promise holds once."""
        record = self.record
        if self.is_cutting:
            return self._refused(_CUTTING)
        if not operator:
            return self._refused("a request for an epoch has to name its operator")
        if epoch == record.promised_epoch > record.leader_epoch and operator == record.promised_to:
            return RoleDecision(record)
        if epoch <= record.promised_epoch:
            return self._refused(
                f"epoch {record.promised_epoch} is accepted already, and {epoch} is not above it"
            )
        if (why := self._too_high(epoch)) is not None:
            return self._refused(why)
        superseded = record.superseded
        if record.promised_epoch > record.leader_epoch:
            superseded = (*superseded, (record.promised_epoch, record.promised_to))
        if len(superseded) > _SUPERSEDED_MAX:
            # The two oldest become one that no operator releases: that is more than was promised, and never less.
            superseded = ((superseded[1][0], ""), *superseded[2:])
        new = msgspec.structs.replace(
            record, promised_epoch=epoch, promised_to=operator, superseded=superseded
        )
        return self._change(new, RoleAction.FENCE if self.is_master else RoleAction.DROP)

    def release(self, epoch: int, operator: str) -> RoleDecision:
        """Take a promise back, because its operator gave up: no member was promoted in this epoch, nor will be."""
        record, superseded = self.record, self.record.superseded
        if operator and (epoch, operator) in superseded:
            rest = tuple(each for each in superseded if each != (epoch, operator))
            return self._change(msgspec.structs.replace(record, superseded=rest), RoleAction.NOTHING)
        if not self._is_promised(epoch, operator):
            return self._refused(f"epoch {epoch} was not promised to {operator or 'nobody'}")
        if superseded:
            # Another operator was promised an epoch before, and may have promoted a master in it by now.
            before, its_operator = superseded[-1]
            new = msgspec.structs.replace(
                record, promised_epoch=before, promised_to=its_operator, superseded=superseded[:-1]
            )
            return self._change(new, RoleAction.NOTHING)
        new = msgspec.structs.replace(record, promised_epoch=record.leader_epoch, promised_to="")
        return self._change(new, RoleAction.RESUME)

    def _is_promised(self, epoch: int, operator: str) -> bool:
        record = self.record
        return epoch == record.promised_epoch > record.leader_epoch and operator == record.promised_to

    # -- a role is given -------------------------------------------------------------------------------

    def promote(
        self, epoch: int, operator: str, *, old_master: str = "", policy: QuorumPolicy | None = None
    ) -> RoleDecision:
        """Become the master of `epoch`, which was promised to this operator.

        `old_master` is the address of the one before, which gets this member's id when it comes back; `policy` is the
        newest that any member that accepted knows: a slave that was cut off for a while may have an older one.
        """
        record = self.record
        done = epoch == record.promised_epoch == record.leader_epoch and operator == record.promised_to
        if self.is_master and done:
            return RoleDecision(record)  # the answer was lost, and the question came again
        if self.is_cutting:
            return self._refused(_CUTTING)
        if not self._is_promised(epoch, operator):
            return self._refused(f"epoch {epoch} was not promised to {operator or 'nobody'}")
        policy = record.policy if policy is None or self.is_master else policy
        if (why := self._too_new(policy)) is not None:
            return self._refused(why)
        if not self.is_master:
            try:
                policy = policy.after_swap(record.broker_id, old_master)
            except ValueError as exc:
                return self._refused(str(exc))
        new = RoleRecord(policy.role, MASTER_ID, epoch, epoch, operator, "", policy)
        return self._change(new, RoleAction.LEAD)

    def follow(
        self, epoch: int, broker_id: int, master: str, policy: QuorumPolicy | None = None
    ) -> RoleDecision:
        """Become a slave of the master of `epoch`: on the operator's word, or by itself on contact.

        `policy` is that master's: under one of an older epoch this member would think that other answers are enough.
        """
        record = self.record
        if self.is_cutting:
            return self._refused(_CUTTING)
        if epoch < record.promised_epoch:
            return self._refused(f"epoch {record.promised_epoch} is accepted here, and {epoch} is below it")
        if self.is_master and epoch == record.leader_epoch:
            return self._refused(f"this is the master of epoch {epoch}")
        if not MASTER_ID < broker_id <= BROKER_ID_MAX:
            return self._refused(f"a slave cannot have the id {broker_id}")
        if (why := self._too_high(epoch)) is not None:
            return self._refused(why)
        if policy is not None and (why := self._too_new(policy)) is not None:
            return self._refused(why)
        if policy is None or (epoch == record.leader_epoch and policy.version <= record.policy.version):
            policy = record.policy
        new = RoleRecord(SLAVE, broker_id, epoch, epoch, "", master, policy)
        if new == record:
            return RoleDecision(record)
        return self._change(new, RoleAction.FOLLOW)

    # -- the policy changes ----------------------------------------------------------------------------

    def adopt_policy(self, policy: QuorumPolicy) -> RoleDecision:
        """Take over the master's policy, as a slave."""
        if self.is_master:
            return RoleDecision(self.record)
        if (why := self._too_new(policy)) is not None:
            return self._refused(why)
        return self._with_policy(policy)

    def adopt_master(self, address: str) -> RoleDecision:
        """Keep the address of the master, as a slave that had none in its record."""
        if self.is_master or self.record.master:
            return RoleDecision(self.record)
        return self._change(msgspec.structs.replace(self.record, master=address), RoleAction.NOTHING)

    def add_slave(self, broker_id: int, address: str) -> RoleDecision:
        """Add a slave to the policy, as a master. Raises ValueError when there is no room."""
        assert self.is_master
        return self._with_policy(self.record.policy.with_slave(broker_id, address))

    def confirm_policy(self, known: int) -> RoleDecision:
        """Note, as a master, that each of its slaves has the policy of version `known`."""
        policy = self.record.policy
        return self._with_policy(policy.confirmed_by_all(known) if self.is_master else policy)

    def remove_slave(self, broker_id: int) -> RoleDecision:
        """Remove a slave from the policy, as a master: the caller has seen that the others have everything."""
        policy = self.record.policy
        if not self.is_master or self.is_fenced:
            return self._refused("only a master that is not fenced removes a slave")
        if str(broker_id) not in policy.slaves:
            known = ", ".join(sorted(policy.slaves, key=int)) or "none"
            return self._refused(f"the group has no slave {broker_id}; there are: {known}")
        return self._with_policy(policy.without_slave(broker_id))

    def _with_policy(self, policy: QuorumPolicy) -> RoleDecision:
        if policy == self.record.policy:
            return RoleDecision(self.record)
        return self._change(msgspec.structs.replace(self.record, policy=policy), RoleAction.NOTHING)

    def _change(self, record: RoleRecord, action: RoleAction) -> RoleDecision:
        assert record.promised_epoch >= self.record.leader_epoch, (
            "a promise is never forgotten below the leader epoch"
        )
        self.record = record
        return RoleDecision(record, action)

    def _too_high(self, epoch: int) -> str | None:
        """Return the reason why no group can have come to this epoch, or None."""
        last = self.record.promised_epoch
        bound = FIRST_EPOCH_MAX if not self.is_master and not last else last + EPOCH_STEP_MAX
        if epoch <= bound:
            return None
        return (
            f"epoch {epoch} is more than {bound - last} above the last one, {last}: no group comes that far. If a "
            "member has taken it, lower it there: `ropewalk store epoch` (docs/operate/store-care.md)"
        )

    def _too_new(self, policy: QuorumPolicy) -> str | None:
        """Return the reason why no group can have come to the version of this policy, or None."""
        last = self.record.policy.version
        if policy.version <= last + VERSION_STEP_MAX:
            return None
        return f"version {policy.version} of the policy is far above the last one, {last}"

    def _refused(self, why: str) -> RoleDecision:
        return RoleDecision(self.record, refusal=why)


@dataclass(slots=True)
class SlaveRoster:
    """The slaves whose reports may count, as a master sees them.

    A slave that is new must not count before every other slave knows of it: one that does not would, with the master
    gone, think that fewer answers are enough. Which slaves wait for that is in the policy, on disk and with the
    member that is promoted: a master that starts again, or another one, must not count them either.
    """

    policy: QuorumPolicy
    known_versions: dict[str, int] = field(default_factory=dict)
    """Broker id -> the version of the policy that this slave reported to have."""

    @property
    def required_acks(self) -> int:
        """Return how many slaves to wait for: not fewer before each has heard that fewer are enough."""
        return max(self.policy.required_acks, self.policy.previous_acks)

    def record_version(self, broker_id: int, version: int) -> int:
        """Record which policy a slave has on its disk; return the version that every slave has, or a newer one."""
        name = str(broker_id)
        self.known_versions[name] = max(version, self.known_versions.get(name, 0))
        known = (self.known_versions.get(each, 0) for each in self.policy.slaves)
        return min(known, default=self.policy.version)

    def counts(self, broker_id: int) -> bool:
        """Return whether the reports of this slave count for acknowledgements."""
        name = str(broker_id)
        return name in self.policy.slaves and name not in self.policy.pending_slaves
