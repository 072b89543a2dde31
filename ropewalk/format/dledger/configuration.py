"""The configuration of a group as a record of its log: who votes, who learns, and where each is reached.

A record of topic `rmq_sys_ROPEWALK_TERM` has this body in JSON. It opens a term, or changes the configuration:

    {"term": 7, "leader": "n0", "voters": ["n0", "n1", "n2"], "old": ["n0", "n1"], "learners": ["n3"],
     "addresses": {"n0": "10.0.0.1:40911", ...}, "incarnations": {"n0": "<base64 of 16 bytes>", ...}}

`old` are the voters before, while the configuration is joint. What is empty may be left out: before members could
change there were `term`, `leader` and `voters` only.

A group that has a key-value store says `"store": true` from some entry on: region 0 begins with the members that the
first such entry names. In the log of a region, `follows` is the index of the entry of the group's log whose members
these are, `serves` the address at which clients reach the leader, and `stamp_ms` the time for the region's machine.
"""

from __future__ import annotations

import msgspec

from ropewalk.errors import CorruptRecord

__all__ = ["Configuration", "decode_configuration", "encode_configuration"]


class Configuration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a record that opens a term or changes the configuration."""

    term: int
    leader: str = ""
    """The member that wrote the record."""
    voters: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    addresses: dict[str, str] = {}
    """`host:port` of each member, as far as it was known."""
    incarnations: dict[str, bytes] = {}
    store: bool = False
    """Whether the group has a key-value store."""
    follows: int = -1
    """Of a region: the index of the entry of the group's log that these members follow; -1: they began with it."""
    serves: str = ""
    """Of a region: the address at which clients reach the leader."""
    stamp_ms: int = 0
    """Of a region: when the record was written, by the leader's clock."""

    def says_the_same(self, other: Configuration) -> bool:
        """Return whether the two differ in their terms and leaders at most."""
        return self._members == other._members

    @property
    def _members(self) -> tuple[object, ...]:
        return (
            self.voters, self.old, self.learners, self.addresses, self.incarnations, self.store, self.follows
        )  # fmt: skip


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the body of the record."""
    return msgspec.json.encode(configuration)


def decode_configuration(body: bytes) -> Configuration:
    """Return the configuration in a record's body. Raises `CorruptRecord` for a body that holds none."""
    try:
        found = msgspec.json.decode(body, type=Configuration)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise CorruptRecord(f"no configuration of a group: {exc}") from exc
    if not found.voters:
        raise CorruptRecord(f"a configuration of term {found.term} without voters")
    return found
