"""Recognize a master that came back with less than its slaves have, as after a loss of power.

A SYNC_MASTER that does not flush first says "acknowledged" of bytes that are in page caches, its own and a slave's.
Without its power it comes back in the same epoch with a shorter log, and then acknowledged messages are on the slave
alone. So two rules hold until a person has decided, by beginning another epoch:

    the slave     cuts nothing that its master's own epoch wrote, and does not follow
    the master    takes no message while a slave has more of its epoch than itself

A tail of an older epoch is another matter: a newer master was chosen so that it has all that was acknowledged. So is a
master that flushes before it acknowledges: what that one lacks was never acknowledged. Left to others: the comparison
of logs (`divergence`), and the change of epoch (`handover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ha.group.divergence import Finding
from ha.group.epochs import Epochs
from ha.group.hello import MemberStatusMessage
from ha.group.roles import SLAVE, QuorumPolicy, RoleRecord

__all__ = ["longer_slaves", "may_be_acknowledged", "way_out"]


def waits_for_slaves(policy: QuorumPolicy) -> bool:
    """Return whether acknowledgements waited for a slave under this policy, or under the one before."""
    return policy.required_acks > 0 or policy.previous_acks > 0


def may_be_acknowledged(
    epochs: Epochs, end: int, leader_epoch: int, policy: QuorumPolicy, *, flushes_first: bool
) -> bool:
    """Return whether bytes that a master lacks of its slave's log may have been acknowledged by that master.

    `epochs`, `end` and `policy` are the slave's; `flushes_first` tells of the master, also of its life before.
    """
    return not flushes_first and waits_for_slaves(policy) and epochs.of_end(end) == leader_epoch


def longer_slaves(
    record: RoleRecord, end: int, known: Mapping[str, int], statuses: Iterable[MemberStatusMessage]
) -> dict[str, int]:
    """Return address and log end of each slave that has more of this master's epoch than the master, up to `end`.

    `known` is what was returned before: a slave that does not answer now still has what it had, until it is forgotten.
    """
    if not waits_for_slaves(record.policy):
        return {}
    slaves = set(record.policy.slaves.values())
    found = {address: its_end for address, its_end in known.items() if address in slaves}
    for each in statuses:
        if each.address not in slaves:
            continue
        found.pop(each.address, None)
        of_this_epoch = each.leader_epoch == each.log_epoch == record.leader_epoch
        if each.role == SLAVE and of_this_epoch and each.end > end:
            found[each.address] = each.end
    return found


def way_out(finding: Finding, broker_name: str, address: str) -> str:
    """Return the command by which a slave that has more becomes the master.

    A master that went on with records of its own is not caught up with: that takes the word of a person.
    """
    if finding is Finding.LONGER:
        return f"`ropewalk admin ha switch {broker_name}`"
    return f"`ropewalk admin ha failover {broker_name} --to {address} --force`"
