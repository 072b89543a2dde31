"""Define the messages of Ropewalk members on the remoting port, and judge a slave's hello.

    CHALLENGE  (30000)   the version of this member, and a number to prove the secret with
    HELLO      (30001)   slave to master, before the first report: its identity and its log    -> Welcome
    LOG_SUMS   (30002)   CRC32C of ranges of the log                                            -> sums
    LOG_BYTES  (30003)   a page of the log                                                      -> raw bytes
    SYNC       (30004)   slave to master, several times a second: metadata and positions        -> SyncAnswer
    MEMBER_STATUS … FOLLOW (30005 to 30009)   a handover's questions (`ha.group.handover`)           -> MemberStatus
    LOG_BLOCK  (30011)   any member to any other: bytes in place of damaged ones (`ha.group.block_repair`)

Bodies are msgpack of the structs below. A stock RocketMQ broker answers 3 to all of it, and is then treated as one.

Where the group has a secret all of it but CHALLENGE is proven, questions and answers (`ropewalk.member_proof`).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec

from ha.group.epochs import EPOCHS_MAX, Epochs
from ha.group.handover import MemberStatus
from ha.group.roles import MASTER_ID, Number, QuorumPolicy, RoleRecord
from ropewalk.errors import RemoteProtocolError

__all__ = [
    "EpochRequest",
    "Hello",
    "RangesRequest",
    "SlaveView",
    "MemberStatusMessage",
    "Sums",
    "Welcome",
    "decode_untrusted",
    "encode",
    "refusal_of",
]

BODY_SIZE_MAX = 8 << 20
CONTAINERS_MAX = 300_000
"""Maps and lists of a message: two for each topic, and one for each of up to 20,000 offsets."""
_NO_CONTAINERS = bytes(sorted({*range(256)} - {*range(0x80, 0xA0), *range(0xDC, 0xE0)}))
"""The bytes of msgpack that begin no map and no list."""
RANGES_MAX = 256
SUMMED_MAX = 72 << 20
"""Bytes that one question may have summed."""
PAGE_MAX = 64 << 10
SLAVES_SHOWN_MAX = 1024
Ranges: TypeAlias = Annotated[list[tuple[Number, Number]], msgspec.Meta(max_length=RANGES_MAX)]
RangeSums: TypeAlias = Annotated[list[Number | None], msgspec.Meta(max_length=RANGES_MAX)]
EpochPairs: TypeAlias = Annotated[list[tuple[Number, Number]], msgspec.Meta(max_length=EPOCHS_MAX)]

_S = TypeVar("_S", bound=msgspec.Struct)


class Hello(msgspec.Struct, frozen=True):
    """The introduction of a slave to its master."""

    cluster: str
    broker_name: str
    broker_id: Number
    address: str
    """Its address on the remoting port."""
    socket: str
    """`ip:port` of its end of the HA connection that this hello is about; empty if it has none open."""
    promised_epoch: Number = msgspec.field(name="epoch")
    """The highest epoch that it has accepted."""
    begin: Number
    end: Number
    segment_size: Number
    epochs: EpochPairs = []
    ranges: Ranges = []
    sums: RangeSums = []
    """CRC32C of each of `ranges`, the last 64 MiB of its log."""
    policy_version: Number = msgspec.field(name="terms_version", default=0)
    """Of the policy on its disk."""
    policy_epoch: Number = msgspec.field(name="terms_of", default=0)
    """The epoch of the master that gave that policy."""


class Welcome(msgspec.Struct, frozen=True):
    """The master's answer: its own log, and the policy of the group's acknowledgements."""

    leader_epoch: Number = msgspec.field(name="epoch")
    begin: Number
    end: Number
    epochs: EpochPairs
    sums: RangeSums
    """Of the hello's ranges, in the master's log; None for what is not all in it."""
    policy: QuorumPolicy = msgspec.field(name="terms", default=QuorumPolicy())
    flushes_first: bool = False
    """Whether it acknowledges nothing that it has not flushed."""
    ha_address: str = ""
    """The address at which it serves its log; empty where that is not known."""


class RangesRequest(msgspec.Struct, frozen=True):
    """The ranges that LOG_SUMS (any number) and LOG_BYTES (exactly one) ask for."""

    ranges: Ranges


class Sums(msgspec.Struct, frozen=True):
    """The answer to LOG_SUMS: a CRC32C for each range, None for one that is not all in the log."""

    sums: RangeSums


class EpochRequest(msgspec.Struct, frozen=True):
    """The body of ACCEPT, RELEASE, PROMOTE and FOLLOW; the last three fields are for those that need them."""

    cluster: str
    broker_name: str
    epoch: Number
    operator: str = msgspec.field(name="by")
    broker_id: Number = 0
    master: str = ""
    policy: QuorumPolicy | None = msgspec.field(name="terms", default=None)


class SlaveView(msgspec.Struct, frozen=True):
    """A connection of a slave, as its master sees it."""

    address: str
    """Its address on the remoting port; its end of the HA connection, if it never said hello."""
    broker_id: Number
    """-1 for a slave that said no hello."""
    acknowledged: Number
    in_sync: bool
    counts: bool
    """Whether its reports make acknowledgements."""
    bytes_per_second: Number = 0


class MemberStatusMessage(msgspec.Struct, frozen=True):
    """A `MemberStatus` on the wire, with the further columns of `admin ha status`."""

    broker_name: str
    broker_id: Number
    address: str
    role: str
    promised_epoch: Number = msgspec.field(name="epoch")
    leader_epoch: Number = msgspec.field(name="reign")
    begin: Number
    end: Number
    log_epoch: Number = 0
    waiting: Number = 0
    policy: QuorumPolicy = msgspec.field(name="terms", default=QuorumPolicy())
    master: str = ""
    master_end: Number = 0
    master_age_ms: Number = -1
    name_server: str = ""
    """Where a name server lives in this very process; empty where none does."""
    ha_address: str = ""
    cluster: str = ""
    flushed: Number = 0
    readable: Number = 0
    stored_ms: Number = 0
    """When the newest record of this log was stored, by its master's clock."""
    has_master: bool = False
    """Of a slave: whether its master answers."""
    link: str = ""
    """Of a slave: the state of its HA connection, and why there is none."""
    slaves: Annotated[list[SlaveView], msgspec.Meta(max_length=SLAVES_SHOWN_MAX)] = []
    damaged: Number = 0
    """Places of its log that do not match their checksums, and are not served."""
    repaired: Number = msgspec.field(name="mended", default=0)
    """Places that it has taken from another member's copy since it started."""
    newest_open_promise: Number = msgspec.field(name="doubt", default=0)
    """The newest epoch that was promised to another operator before, and neither released nor superseded since."""
    fence: str = ""
    """Why this master takes no message for the time being."""

    def status(self) -> MemberStatus:
        return MemberStatus(
            self.address, self.broker_id, self.role, self.promised_epoch, self.leader_epoch, self.end, self.log_epoch,
            self.waiting, self.policy, self.master_end, self.master_age_ms, self.newest_open_promise,
        )  # fmt: skip


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message as msgpack."""
    return msgspec.msgpack.encode(message)


def decode_untrusted(kind: type[_S], body: bytes) -> _S:
    """Read a peer's message. Raises `RemoteProtocolError` for anything else."""
    if len(body) > BODY_SIZE_MAX:
        raise RemoteProtocolError(f"a message of {len(body)} bytes; at most {BODY_SIZE_MAX} are read")
    if len(body) > CONTAINERS_MAX:
        # A byte of an empty table takes seventy of memory: counted before any is built. Bytes of texts count as well,
        # where they are the same; those of names are not.
        count = len(body.translate(None, delete=_NO_CONTAINERS))
        if count > CONTAINERS_MAX:
            raise RemoteProtocolError(f"a message of about {count} tables; at most {CONTAINERS_MAX} are read")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"this is no {kind.__name__}: {exc}") from exc


# -- the master's judgement -------------------------------------------------------------------------------


def refusal_of(
    hello: Hello, cluster: str, broker_name: str, record: RoleRecord, segment_size: int, taken: str
) -> str | None:
    """Return the reason why this slave cannot follow, in words for its owner, or None.

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
    if hello.promised_epoch > record.leader_epoch:
        return f"the slave has accepted epoch {hello.promised_epoch}, and this master leads epoch {record.leader_epoch}"
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
    """Return the reason why these ranges are not summed, or None."""
    if len(ranges) > RANGES_MAX or any(not 0 <= start < end for start, end in ranges):
        return f"{len(ranges)} ranges, or one of them is none"
    if sum(end - start for start, end in ranges) > SUMMED_MAX:
        return f"ranges of more than {SUMMED_MAX} bytes"
    return None
