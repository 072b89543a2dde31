"""Errors that callers can catch, arranged by fault and by remedy.

`ProtocolError` hangs up, `Refused` had an answer and stored nothing, `OutcomeUnknown` may have stored something,
`Corrupt` means bytes at rest are not what they were. Anything that is not a `RopewalkError` is a bug in this library.

"Stored, but a slave was slow" is not here: it is the status of a send. `error_for` still has a row for those three
codes, because a peer can answer anything to anything; there they mean that the outcome is unknown.
"""

from __future__ import annotations

from typing import Final

from ropewalk.codes import ResponseCode, response_name
from ropewalk.printable import printable


class RopewalkError(Exception):
    """An error raised on purpose; any other exception is a bug in this library."""

    code: int | None = None
    """The response code that led here, where there was a response."""
    remark: str | None = None
    """The peer's remark, in its own words."""

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickles and copies are made of, whatever the constructor of a class takes: process pools do."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[RopewalkError], args: tuple[object, ...]) -> RopewalkError:
    return kind.__new__(kind, *args)


class ProtocolError(RopewalkError):
    """A disagreement of both ends about the bytes; hang up."""


class LocalProtocolError(ProtocolError):
    """A request of ours that would have been illegal: look in our code."""


class RemoteProtocolError(ProtocolError):
    """A peer's violation of the protocol: look in its code, or its network."""


class MalformedBatch(RopewalkError):
    """A batch body whose items cannot be told apart; the message is illegal, the connection is fine."""


class Corrupt(RopewalkError):
    """A difference between bytes, at rest or of a record on its way, and the bytes that their writer wrote."""


class CorruptRecord(Corrupt):
    """A position without a whole and undamaged record."""


class CorruptCheckpoint(Corrupt):
    """A checkpoint file that is shorter than its fields."""


class Refused(RopewalkError):
    """A broker's refusal: the broker answered, and nothing was stored."""


class Rejected(Refused):
    """A refusal for good: the same request will get the same answer."""


class TryLater(Refused):
    """A refusal for a moment: the same broker may accept the request soon."""


class TryElsewhere(Refused):
    """A refusal by this broker: another member of the group may accept the request."""


class OutcomeUnknown(RopewalkError):
    """A request that left and got no answer. A retry may store the message twice."""


class BodyUnreadable(RopewalkError):
    """A compressed body that cannot be unpacked; `ReceivedMessage.wire_body` has it as it was sent."""


class BodyTooLarge(BodyUnreadable):
    """A compressed body that unpacks to more bytes than its reader allows; the text names the option to increase."""


def error_for(code: int, remark: str | None = None) -> RopewalkError:
    """Return the error to raise for a response that refuses a request.

    Its class comes from the table below and plain `Refused` is the class of codes that say nothing about a second
    attempt. `code` and `remark` stay readable on it; the text names both, the remark with escapes for what would act on
    a terminal.
    """
    assert code != ResponseCode.SUCCESS, "a success is not an error"
    said = printable(remark, keep="\n\t") if remark else "no remark"
    error = _CLASSES.get(code, Refused)(f"{response_name(code)} ({code}): {said}")
    error.code = code
    error.remark = remark
    return error


def class_for(code: int) -> type[RopewalkError]:
    """Return the class of error that `error_for` would make."""
    return _CLASSES.get(code, Refused)


# SYSTEM_ERROR is missing on purpose: the original uses it for everything from a misspelt expression to too few
# replicas, so it promises neither that a retry helps nor that it does not.
_CLASSES: Final[dict[int, type[RopewalkError]]] = {
    ResponseCode.SYSTEM_BUSY: TryLater,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Rejected,
    ResponseCode.TRANSACTION_FAILED: Rejected,
    ResponseCode.FLUSH_DISK_TIMEOUT: OutcomeUnknown,
    ResponseCode.SLAVE_NOT_AVAILABLE: OutcomeUnknown,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: OutcomeUnknown,
    ResponseCode.MESSAGE_ILLEGAL: Rejected,
    ResponseCode.SERVICE_NOT_AVAILABLE: TryElsewhere,
    ResponseCode.VERSION_NOT_SUPPORTED: Rejected,
    ResponseCode.NO_PERMISSION: Rejected,
    ResponseCode.TOPIC_NOT_EXIST: Rejected,
    ResponseCode.TOPIC_EXIST_ALREADY: Rejected,
    ResponseCode.PULL_NOT_FOUND: TryLater,
    ResponseCode.PULL_RETRY_IMMEDIATELY: TryLater,
    ResponseCode.PULL_OFFSET_MOVED: Rejected,
    ResponseCode.QUERY_NOT_FOUND: Rejected,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Rejected,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: Rejected,
    # The subscription travels with heartbeats; the next one brings it up to date.
    ResponseCode.SUBSCRIPTION_NOT_LATEST: TryLater,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Rejected,
    ResponseCode.FILTER_DATA_NOT_EXIST: Rejected,
    ResponseCode.FILTER_DATA_NOT_LATEST: TryLater,
    ResponseCode.INVALID_PARAMETER: Rejected,
    ResponseCode.NO_BUYER_ID: Rejected,
    ResponseCode.NOT_IN_CURRENT_UNIT: TryElsewhere,
    ResponseCode.CONSUMER_NOT_ONLINE: TryLater,
    # The broker passed the request on to a client that then said nothing.
    ResponseCode.CONSUME_MSG_TIMEOUT: OutcomeUnknown,
    ResponseCode.NO_MESSAGE: Rejected,
    ResponseCode.POLLING_FULL: TryLater,
    ResponseCode.POLLING_TIMEOUT: TryLater,
    ResponseCode.BROKER_NOT_EXIST: Rejected,
    ResponseCode.BROKER_DISPATCH_NOT_COMPLETE: TryLater,
    ResponseCode.BROADCAST_CONSUMPTION: Rejected,
    ResponseCode.FLOW_CONTROL: TryLater,
    ResponseCode.NOT_LEADER_FOR_QUEUE: TryElsewhere,
    ResponseCode.ILLEGAL_OPERATION: Rejected,
    ResponseCode.GO_AWAY: TryElsewhere,
    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE: TryLater,
    ResponseCode.CONTROLLER_NOT_LEADER: TryElsewhere,
    ResponseCode.USER_NOT_EXIST: Rejected,
    ResponseCode.POLICY_NOT_EXIST: Rejected,
}
