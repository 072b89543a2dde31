"""What Ropewalk members say to each other on the remoting port, and what a master makes of a slave's hello.

    CHALLENGE  (30000)   who is there, and a number to prove the secret with
    HELLO      (30001)   slave to master, before the first report: who I am, what my log is     -> Welcome
    LOG_SUMS   (30002)   CRC32C of ranges of the log                                            -> sums
    LOG_BYTES  (30003)   a page of the log                                                      -> raw bytes
    SYNC       (30004)   slave to master, several times a second: metadata and positions        -> SyncAnswer
    LOOK … FOLLOW (30005 to 30009)   a handover's questions (`ha.group.handover`)                    -> Standing
    LOG_BLOCK  (30011)   any member to any other: bytes in place of damaged ones (`ha.group.block_repair`)

Bodies are msgpack of the structs below. A stock RocketMQ broker answers 3 to all of it, and is then treated as one.

Where the group has a secret every request but CHALLENGE carries `proof` = HMAC-SHA256(secret, challenge, code, body)
in hex: the challenge was drawn for this very connection, so what somebody overheard is worth nothing on another one.
The secret itself never travels.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TypeVar

import msgspec

from ha.group.epochs import Epochs
from ha.group.handover import Standing
from ha.group.roles import MASTER_ID, RoleRecord, Terms
from ropewalk.errors import RemoteProtocolError

__all__ = [
    "Challenge",
    "EpochAsk",
    "Hello",
    "RangesAsk",
    "SlaveView",
    "StandingMessage",
    "Sums",
    "Welcome",
    "decode_untrusted",
    "encode",
    "proof_of",
    "proves",
    "refusal_of",
]

BODY_SIZE_MAX = 8 << 20
RANGES_MAX = 256
SUMMED_MAX = 72 << 20
"""Bytes that one question may have summed."""
PAGE_MAX = 64 << 10

_S = TypeVar("_S", bound=msgspec.Struct)


class Challenge(msgspec.Struct, frozen=True):
    """The answer to a challenge: a number for proofs on this connection, empty where none are asked for."""

    challenge: bytes = b""
    version: str = ""


class Hello(msgspec.Struct, frozen=True):
    """A slave introduces itself."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    """Where it is reached on the remoting port."""
    socket: str
    """`ip:port` of its end of the HA connection that this hello is about; empty if it has none open."""
    epoch: int
    """The highest that it has accepted."""
    begin: int
    end: int
    segment_size: int
    epochs: list[tuple[int, int]] = []
    ranges: list[tuple[int, int]] = []
    sums: list[int | None] = []
    """CRC32C of each of `ranges`, the last 64 MiB of its log."""
    terms_version: int = 0
    """Of the terms on its disk."""
    terms_of: int = 0
    """The epoch of the master that gave them."""


class Welcome(msgspec.Struct, frozen=True):
    """The master's answer: what its own log is, and what the group's acknowledgements rest on."""

    epoch: int
    begin: int
    end: int
    epochs: list[tuple[int, int]]
    sums: list[int | None]
    """Of the hello's ranges, in the master's log; None for what is not all in it."""
    terms: Terms = Terms()


class RangesAsk(msgspec.Struct, frozen=True):
    """LOG_SUMS: any number of ranges; LOG_BYTES: exactly one."""

    ranges: list[tuple[int, int]]


class Sums(msgspec.Struct, frozen=True):
    sums: list[int | None]


class EpochAsk(msgspec.Struct, frozen=True):
    """ACCEPT, RELEASE, PROMOTE and FOLLOW; the last three fields are for those that need them."""

    cluster: str
    broker_name: str
    epoch: int
    by: str
    broker_id: int = 0
    master: str = ""
    terms: Terms | None = None


class SlaveView(msgspec.Struct, frozen=True):
    """A connection of a slave, as its master sees it."""

    address: str
    """Where it is reached on the remoting port; its end of the HA connection, if it never said."""
    broker_id: int
    """-1 for a slave that said no hello."""
    acknowledged: int
    in_sync: bool
    counts: bool
    """Whether its reports make acknowledgements."""
    bytes_per_second: int = 0


class StandingMessage(msgspec.Struct, frozen=True):
    """A `Standing` on the wire, with what people like to know besides."""

    broker_name: str
    broker_id: int
    address: str
    role: str
    epoch: int
    reign: int
    begin: int
    end: int
    log_epoch: int = 0
    waiting: int = 0
    terms: Terms = Terms()
    master: str = ""
    master_end: int = 0
    master_age_ms: int = -1
    name_server: str = ""
    """Where a name server lives in this very process; empty where none does."""
    ha_address: str = ""
    cluster: str = ""
    flushed: int = 0
    readable: int = 0
    stored_ms: int = 0
    """When the newest record of this log was stored, by its master's clock."""
    has_master: bool = False
    """Of a slave: whether its master answers."""
    link: str = ""
    """Of a slave: the state of its HA connection, and why there is none."""
    slaves: list[SlaveView] = []
    damaged: int = 0
    """Places of its log that do not match their checksums, and are not served."""
    mended: int = 0
    """Places that it has taken from another member's copy since it started."""
    doubt: int = 0
    """The newest epoch that was promised to somebody else before, and neither released nor heard of again."""

    def standing(self) -> Standing:
        return Standing(
            self.address, self.broker_id, self.role, self.epoch, self.reign, self.end, self.log_epoch,
            self.waiting, self.terms, self.master_end, self.master_age_ms, self.doubt,
        )  # fmt: skip


def encode(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_untrusted(kind: type[_S], body: bytes) -> _S:
    """Read a peer's message. Raises `RemoteProtocolError` for anything else."""
    if len(body) > BODY_SIZE_MAX:
        raise RemoteProtocolError(f"a message of {len(body)} bytes; at most {BODY_SIZE_MAX} are read")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"this is no {kind.__name__}: {exc}") from exc


# -- the secret -------------------------------------------------------------------------------------------


def proof_of(secret: str, challenge: bytes, code: int, body: bytes) -> str:
    """What shows that the sender of this body knows the secret."""
    words = challenge + code.to_bytes(4, "big") + body
    return hmac.new(secret.encode(), words, hashlib.sha256).hexdigest()


def proves(proof: str, secret: str, challenge: bytes, code: int, body: bytes) -> bool:
    """Whether it does. A connection that was given no challenge proves nothing."""
    return bool(challenge) and hmac.compare_digest(
        proof_of(secret, challenge, code, body).encode(), proof.encode()
    )


# -- the master's judgement -------------------------------------------------------------------------------


def refusal_of(
    hello: Hello, cluster: str, broker_name: str, record: RoleRecord, segment_size: int, taken: str
) -> str | None:
    """Why this slave cannot follow, in words for its owner, or None.

    `taken` is the address of another slave that is connected under the same id, or empty.
    """
    group = f"{broker_name} of cluster {cluster}"
    if (hello.cluster, hello.broker_name) != (cluster, broker_name):
        return f"this broker belongs to {group}, and not to {hello.broker_name} of cluster {hello.cluster}"
    if hello.broker_id <= MASTER_ID:
        return f"brokerId {hello.broker_id} is no slave's: give each slave of {group} a brokerId above 0 of its own"
    if record.role == "SLAVE":
        where = f"; its master is {record.master}" if record.master else ""
        return f"this broker is a slave itself, with id {record.broker_id}{where}"
    if hello.epoch > record.reign:
        return f"the slave has accepted epoch {hello.epoch}, and this master reigns in epoch {record.reign}"
    if taken and taken != hello.address:
        return (
            f"{taken} is connected as slave {hello.broker_id} already: give each slave a brokerId of its own"
        )
    if hello.segment_size != segment_size:
        return (
            f"mappedFileSizeCommitLog is {hello.segment_size} at the slave and {segment_size} here: a copy has files "
            "of the same size"
        )
    try:
        Epochs.of(hello.epochs)
    except ValueError as exc:
        return f"the slave's list of epochs makes no sense: {exc}"
    return ranges_refusal(hello.ranges)


def ranges_refusal(ranges: list[tuple[int, int]]) -> str | None:
    """Why these ranges are not summed, or None."""
    if len(ranges) > RANGES_MAX or any(not 0 <= start < end for start, end in ranges):
        return f"{len(ranges)} ranges, or one of them is none"
    if sum(end - start for start, end in ranges) > SUMMED_MAX:
        return f"ranges of more than {SUMMED_MAX} bytes"
    return None
