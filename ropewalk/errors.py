"""What callers can catch, arranged by whose fault it is and what to do next.

`ProtocolError` hangs up, `Refused` had an answer and stored nothing, `OutcomeUnknown` may have stored something,
`Corrupt` means bytes at rest are not what they were. Anything that is not a `RopewalkError` is a bug in this library.

"Stored, but a slave was slow" is not here: it is the status of a send. `error_for` still has a row for those three
codes, because a peer can answer anything to anything; there they mean that the outcome is unknown.
"""

from __future__ import annotations

from typing import Final

from ropewalk.codes import ResponseCode, response_name


class RopewalkError(Exception):
    """Raised on purpose; anything else is a bug in this library."""

    code: int | None = None
    """The response code that led here, where there was a response."""
    remark: str | None = None
    """What the peer said about it, in its own words."""


class ProtocolError(RopewalkError):
    """The ends disagree about the bytes; hang up."""


class LocalProtocolError(ProtocolError):
    """We nearly said something illegal: look in our code."""


class RemoteProtocolError(ProtocolError):
    """The peer did: look in its code, or its network."""


class MalformedBatch(RopewalkError):
    """A batch body whose items cannot be told apart; the message is illegal, the connection is fine."""


class Corrupt(RopewalkError):
    """Bytes at rest, or bytes of a record on their way, are not what their writer wrote."""


class CorruptRecord(Corrupt):
    """No whole and undamaged record lies at this position."""


class CorruptCheckpoint(Corrupt):
    """The checkpoint file is shorter than its fields."""


class Refused(RopewalkError):
    """The broker answered, the answer was no, and nothing was stored."""


class Rejected(Refused):
    """The same request will get the same answer."""


class TryLater(Refused):
    """The same broker may say yes in a moment."""


class TryElsewhere(Refused):
    """Another member of the group is the one to ask."""


class OutcomeUnknown(RopewalkError):
    """It left, no answer came. A retry may store it twice."""


def error_for(code: int, remark: str | None = None) -> RopewalkError:
    """The error to raise for a response that was not what the caller wanted.

    Its class comes from the table below and plain `Refused` is the class of codes that say nothing about a second
    attempt. `code` and `remark` stay readable on it; the text names both.
    """
    assert code != ResponseCode.SUCCESS, "a success is not an error"
    error = _CLASSES.get(code, Refused)(f"{response_name(code)} ({code}): {remark or 'no remark'}")
    error.code = code
    error.remark = remark
    return error


def class_for(code: int) -> type[RopewalkError]:
    """The class `error_for` would use."""
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
