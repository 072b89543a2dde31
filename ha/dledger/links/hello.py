"""The introduction of two members, before the first frame of a link: challenge, hello, welcome, or a refusal.

    acceptor  ->  CHALLENGE   32 bytes, drawn for this connection
    dialer    ->  HELLO       its cluster, group, id, incarnation, segment size; kind of link; 32 bytes of its own
    acceptor  ->  WELCOME     the same of the acceptor        or  REFUSED  the reason, in words; it hangs up then
    dialer    ->  the first frame of the link                 or  REFUSED

    4 bytes "RWDL" | u8 kind | u8 version 1 | u16 size of the body | body            big-endian
    HELLO and WELCOME: 32 bytes of proof | msgpack of `Introduction`

Either end judges the other before anything that it says can change a state: a member of another group, of another
segment size or with another's id would lead the logs apart. Where the group has a `ropewalkSecret`, either end proves
that it knows it: the proof is HMAC-SHA256(secret, the other's 32 bytes, kind, msgpack), so that an overheard one is
worth nothing on another connection. The secret itself never travels. A member takes two secrets while the secret of a
group is changed, and proves itself under the one that the dialer has proven.

Either end also tells the newest configuration that it knows. A member of whom the newer of the two says nothing is
refused; one that the older says nothing of is linked (`ha.dledger.links.address_book`).

An *incarnation* is drawn when a member's log is made. One that comes back with another has lost its log, and with it
all that it had confirmed: a vote of it could elect a leader that lacks committed entries, so it is refused until an
operator has let it in again. Then it is told that its log was lost, and learns before it votes
(`ha.raft.membership`). One whose log is empty takes the refusal itself for that: two that lost their logs at once know
nothing of what was, and would be a majority that begins anew without the third, which does. Of a member with a log the
refusal changes nothing: the one that refuses may have come with the store of an earlier life.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from enum import Enum, IntEnum
from struct import Struct
from typing import Final, Protocol

import msgspec

from ha.dledger.links.address_book import Membership
from ha.raft.types import Link, MemberId
from ropewalk.errors import RemoteProtocolError

__all__ = [
    "CAME_BACK_EMPTY",
    "CHALLENGE_SIZE",
    "Identity",
    "Introduction",
    "IntroductionConnection",
    "IntroductionFrames",
    "Proof",
    "Step",
    "encode",
    "introduction_of",
    "prove",
    "read_introduction",
    "refusal_of",
    "strangers_refusal",
]

_HEAD: Final = Struct(">4sBBH")
_MAGIC: Final = b"RWDL"
_VERSION: Final = 1
_BODY_MAX: Final = 16 << 10
CHALLENGE_SIZE: Final = 32
_PROOF_SIZE: Final = 32
_NO_PROOF: Final = bytes(_PROOF_SIZE)
NO_MEMBER: Final = " is no member of group"
"""The words by which a refused member knows that its group works without it."""
CAME_BACK_EMPTY: Final = " came back with an empty store"
"""The words by which a refused member knows that another one remembers a log of it."""


class Proof(Enum):
    """The worth of the proof in an introduction, where this member asks for one."""

    RIGHT = "right"
    WRONG = "wrong"
    MISSING = "missing"


class IntroductionConnection(Protocol):
    """A connection, as far as an introduction needs it."""

    def send(self, data: bytes | memoryview) -> None: ...

    def push(self) -> None: ...

    def close(self) -> None: ...


class Step(IntEnum):
    """The steps of an introduction."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSED = 4


class Identity(msgspec.Struct, frozen=True):
    """The identity of a member, which it tells the others."""

    cluster: str
    group: str
    id: MemberId
    incarnation: bytes
    segment_size: int
    software: str = ""
    secret: str = ""
    """`ropewalkSecret`; it is proven and never sent."""
    secret_also: str = ""
    """`ropewalkSecretAlso`: a second secret that a peer may prove, while the secret of a group is changed."""


class Introduction(msgspec.Struct, frozen=True):
    """The body of HELLO and WELCOME."""

    cluster: str
    group: str
    id: MemberId
    to: MemberId
    """The member that the sender takes the other end for."""
    incarnation: bytes
    segment_size: int
    kind: int
    """The `Link` that this connection is to be."""
    challenge: bytes
    """The other end's proof is made with these bytes."""
    software: str = ""
    terms: dict[int, int] = {}
    """The term that the sender is in, by the number of the group: several may share the link."""
    lost: bool = False
    """Whether the sender knows that the other end had lost its log, and was let in again."""
    index: int = -1
    """Of the entry with the newest configuration that the sender knows; -1: it has none but its `dLegerPeers`."""
    members: dict[MemberId, str] = {}
    """The members of that configuration, and their addresses."""


def introduction_of(
    me: Identity,
    to: MemberId,
    kind: Link,
    challenge: bytes,
    newest: Membership,
    terms: Mapping[int, int] | None = None,
    *,
    lost: bool = False,
) -> Introduction:
    """Return the introduction of a member to another one; `newest` is the newest configuration that it knows."""
    told = newest.addresses if newest.index >= 0 else {}
    return Introduction(
        me.cluster, me.group, me.id, to, me.incarnation, me.segment_size, kind, challenge, me.software,
        dict(terms or {}), lost, newest.index, told,
    )  # fmt: skip


def encode(step: Step, body: bytes) -> bytes:
    """Return a message of an introduction."""
    assert len(body) <= _BODY_MAX, f"a {step.name} of {len(body)} bytes"
    return _HEAD.pack(_MAGIC, step, _VERSION, len(body)) + body


def _proof(secret: str, challenge: bytes, step: Step, body: bytes) -> bytes:
    return hmac.new(secret.encode(), challenge + bytes((step,)) + body, hashlib.sha256).digest()


def prove(step: Step, introduction: Introduction, secret: str, challenge: bytes) -> bytes:
    """Return a HELLO or WELCOME, with the proof for the challenge of the other end."""
    body = msgspec.msgpack.encode(introduction)
    return encode(step, (_proof(secret, challenge, step, body) if secret else _NO_PROOF) + body)


def read_introduction(
    step: Step, data: bytes, me: Identity, challenge: bytes
) -> tuple[Introduction, Proof, str]:
    """Return an introduction, the worth of its proof, and the secret that is proven: "" where none is.

    Raises `RemoteProtocolError` for bytes that are none.
    """
    proof, body = data[:_PROOF_SIZE], data[_PROOF_SIZE:]
    try:
        introduction = msgspec.msgpack.decode(body, type=Introduction)
        kind = Link(introduction.kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise RemoteProtocolError(f"this is no {step.name} of a DLedger member: {exc}") from exc
    if len(introduction.challenge) != CHALLENGE_SIZE or len(introduction.incarnation) != 16:
        raise RemoteProtocolError(f"a {step.name} for a {kind.name} link without challenge or incarnation")
    if not me.secret:
        return introduction, Proof.RIGHT, ""
    if proof == _NO_PROOF:
        return introduction, Proof.MISSING, ""
    secrets = [secret for secret in (me.secret, me.secret_also) if secret]
    right = [hmac.compare_digest(proof, _proof(secret, challenge, step, body)) for secret in secrets]
    return (
        (introduction, Proof.RIGHT, secrets[right.index(True)])
        if any(right)
        else (introduction, Proof.WRONG, "")
    )


def refusal_of(
    introduction: Introduction,
    proof: Proof,
    me: Identity,
    known: bytes | None,
    *,
    is_named: bool = True,
) -> str | None:
    """Return the reason why this peer has not the identity that it should have, in words for its owner, or None.

    `known` is the incarnation with which the member of that id was heard first; None if it never was, or was let in.
    `is_named`: whether the id is that of a member, and no stranger's word.
    """
    here = f"{me.id} of group {me.group} in cluster {me.cluster}"
    if proof is not Proof.RIGHT:
        peer = f"the peer that says it is {introduction.id}" if is_named else "the peer"
        wrong = f"the ropewalkSecret of {peer} differs from that of {here}"
        missing = f"{here} has a ropewalkSecret, and {peer} has none"
        return f"{wrong if proof is Proof.WRONG else missing}: all members of a group have the same one"
    if (introduction.cluster, introduction.group) != (me.cluster, me.group):
        return (
            f"here is {here}, and not group {introduction.group} in cluster {introduction.cluster}: "
            "compare brokerClusterName, dLegerGroup and dLegerPeers of the two"
        )
    if introduction.id == me.id:
        return f"{me.id} is this member itself: give each member a dLegerSelfId of its own"
    if introduction.to != me.id:
        return f"here is {here}, and not {introduction.to}: compare the addresses in dLegerPeers"
    if introduction.segment_size != me.segment_size:
        return (
            f"mappedFileSizeCommitLog is {introduction.segment_size} at {introduction.id} and {me.segment_size} at "
            f"{me.id}: the members of a group have files of the same size"
        )
    if known is not None and known != introduction.incarnation:
        return (
            f"{introduction.id}{CAME_BACK_EMPTY}, and its vote could elect a leader that lacks what it "
            f"had confirmed. If its disk was lost: `ropewalk admin dledger readmit {introduction.id}` "
            "(docs/operate/dledger.md). If its store is not empty, it is of another group or an earlier life of "
            f"{introduction.id}: stop it, move that store away, and start it with its own one"
        )
    return None


def strangers_refusal(stranger: MemberId, me: Identity, newest: Membership) -> str:
    """Return the reason why one that is no member is not linked, in words for its owner."""
    if newest.index < 0 and stranger in newest.addresses:
        return f"{me.id} and {stranger} are both new to group {me.group}, which works without them: it has to add them"
    if newest.index < 0:
        names = ", ".join(sorted(newest.addresses.keys() - {me.id}))
        return f"dLegerPeers of {me.id} of group {me.group} in cluster {me.cluster} names {names}, and not {stranger}"
    return (
        f"{stranger}{NO_MEMBER} {me.group}, which {', '.join(sorted(newest.addresses))} are. To take it in: "
        f"`ropewalk admin dledger add {stranger}-HOST:PORT` (docs/operate/dledger.md)"
    )


class IntroductionFrames:
    """The messages of an introduction out of the pieces in which they arrive; a stranger is told by eight bytes."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    @property
    def rest(self) -> bytes:
        """Return the bytes that were fed and belong to no message yet."""
        return self._data

    @property
    def are_of_a_link(self) -> bool:
        """Return True if the bytes that were fed are a frame's, and no message of an introduction."""
        return not _MAGIC.startswith(self._data[:4])

    def feed(self, data: bytes) -> None:
        """Add bytes that arrived."""
        self._data += data

    def next_message(self) -> tuple[Step, bytes] | None:
        """Return the next complete message; None until it is there. Raises `RemoteProtocolError` for a stranger's."""
        data = self._data
        head = data[: _HEAD.size]
        if not _MAGIC.startswith(head[:4]):
            raise RemoteProtocolError(f"no DLedger member of Ropewalk begins with {bytes(head)!r}")
        if len(head) < _HEAD.size:
            return None
        _magic, step, version, size = _HEAD.unpack(head)
        if version != _VERSION:
            raise RemoteProtocolError(
                f"the peer speaks version {version} of the introduction, here is {_VERSION}"
            )
        if size > _BODY_MAX or step not in set(Step):
            raise RemoteProtocolError(f"no introduction has a step {step} of {size} bytes")
        if len(data) < _HEAD.size + size:
            return None
        self._data = data[_HEAD.size + size :]
        return Step(step), data[_HEAD.size : _HEAD.size + size]
