"""Changes of a group's members: what an operator asks for, as the configuration that the group is to have.

    LEARN      a new member gets the log, and does not vote
    PROMOTE    a learner votes; with `replacing`, a voter leaves in the same step
    REMOVE     a voter or a learner leaves

One that is to vote learns first, so an addition is LEARN and PROMOTE, and so is a replacement: the group has never a
voter that lacks the log. How the group goes from one configuration to the next is the core's affair (`ha.raft`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from ha.raft.types import Config, MemberId
from ropewalk.errors import RopewalkError

__all__ = ["Change", "ChangeKind", "ChangeRefused", "next_step", "target_of"]


class ChangeKind(Enum):
    """The kind of a change."""

    LEARN = "learn"
    PROMOTE = "promote"
    REMOVE = "remove"


class Change(Struct, frozen=True):
    """A change that an operator asks for."""

    kind: ChangeKind
    member: MemberId
    address: str = ""
    """`host:port` of a member that is to learn."""
    replacing: MemberId = ""
    """The voter that leaves when a learner is promoted."""


class ChangeRefused(RopewalkError):
    """The change makes no sense in this group; the text tells the reason."""


def target_of(change: Change, config: Config, addresses: Mapping[MemberId, str]) -> Config:
    """Return the configuration that the group is to have. Raises `ChangeRefused`.

    It equals `config` where there is nothing to change. `addresses` are those of the members of `config`.
    """
    member, members = change.member, sorted(config.members)
    match change.kind:
        case ChangeKind.LEARN:
            _refuse_other_place(change, addresses, members)
            if member in members:
                return config
            return Config(config.voters, config.old, tuple(sorted({*config.learners, member})))
        case ChangeKind.PROMOTE:
            left = change.replacing
            if member in config.voters and left not in config.voters:
                return config
            if member in config.voters:
                raise ChangeRefused(
                    f"{member} votes already, and takes nobody's place: to have {left} leave, "
                    f"`ropewalk admin dledger remove {left}`"
                )
            if member not in config.learners:
                raise ChangeRefused(
                    f"{member} is no learner of this group, whose members are {', '.join(members)}: first "
                    f"`ropewalk admin dledger learner {member}-HOST:PORT`"
                )
            if left and left not in config.voters:
                raise ChangeRefused(_unknown(left, config))
            return Config(
                tuple(sorted({*config.voters, member} - {left})),
                config.old,
                tuple(each for each in config.learners if each != member),
            )
        case ChangeKind.REMOVE:
            if member not in members:
                raise ChangeRefused(_unknown(member, config))
            voters = tuple(each for each in config.voters if each != member)
            if not voters:
                raise ChangeRefused(f"{member} is the only voter: a group without one decides nothing")
            return Config(voters, config.old, tuple(each for each in config.learners if each != member))


def next_step(config: Config, target: Config) -> Config:
    """Return the configuration that a group has next on its way from one to another: a new voter learns first."""
    fresh = {*target.voters} - {*config.voters, *config.learners}
    if fresh:
        return Config(config.voters, (), tuple(sorted({*config.learners, *fresh})))
    return Config(tuple(sorted(target.voters)), (), tuple(sorted(target.learners)))


def _refuse_other_place(change: Change, addresses: Mapping[MemberId, str], members: list[MemberId]) -> None:
    """Refuse an id that is at another address already, and an address or a number that is another member's."""
    member, address = change.member, change.address
    if member in members:
        if addresses.get(member, address) != address:
            raise ChangeRefused(
                f"{member} is a member already, at {addresses[member]} and not at {address}: give the new one an id "
                "of its own"
            )
        return
    for other in members:
        if addresses.get(other) == address:
            raise ChangeRefused(f"{address} is the address of {other}")
        if int(other[1:]) == int(member[1:]):
            raise ChangeRefused(
                f"{member} and {other} have the same number, and followers would share a broker id"
            )


def _unknown(member: MemberId, config: Config) -> str:
    learners = f"; {', '.join(config.learners)} learn" if config.learners else ""
    return f"{member} is no member of this group, where {', '.join(sorted(config.voters))} vote{learners}"
