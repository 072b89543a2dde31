"""Administrators' requests to a consumer, relayed by brokers, and the documents that answer them. Pure.

    220  go on elsewhere: the offsets that a reset has chosen; nobody waits for an answer
    221  where are you: the offset of every queue of a topic
    307  what are you doing: queues, subscriptions, rates, and the stacks of all threads if they are wanted
    309  handle this message now, and say what became of it

Names and forms are those of RocketMQ's Java client, because `mqadmin` and the dashboard parse them. What came over the
wire and is not what it should be is answered with code 1 and the reason.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.client.core.consume.membership import Subscription
from ropewalk.client.core.consume.received import ReceivedMessage, RetryLater, TopicQueue, received
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.headers import ConsumerStatusHeader, RelayHeader, decode_header
from ropewalk.format.record import decode_record
from ropewalk.format.remoting import Command

VERSION = "V5_5_0"
"""The client version that tools print. The number in the frames is older: 479 is 5.3.3."""


class RequestFailed(RopewalkError):
    """The request cannot be done; the text says why."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of one queue of this consumer. Times are milliseconds since 1970, 0 for never."""

    queue: TopicQueue
    committable: int
    next_offset: int
    count: int
    size: int
    locked: bool
    locked_ms: int
    pulled_ms: int
    consumed_ms: int

    def document(self) -> dict[str, Any]:
        """RocketMQ's ProcessQueueInfo."""
        return {
            "cachedMsgCount": self.count,
            "cachedMsgMaxOffset": self.next_offset - 1 if self.count else 0,
            "cachedMsgMinOffset": self.committable if self.count else 0,
            "cachedMsgSizeInMiB": self.size >> 20,
            "commitOffset": self.committable,
            "droped": False,  # so spelt
            "lastConsumeTimestamp": self.consumed_ms,
            "lastLockTimestamp": self.locked_ms,
            "lastPullTimestamp": self.pulled_ms,
            "locked": self.locked,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


def _key(queue: TopicQueue) -> fastjson.QueueKey:
    return fastjson.QueueKey(queue.topic, queue.queue.broker_name, queue.queue.queue_id)


# -- 220 and 221 -----------------------------------------------------------------------------------------


def reset_offsets(request: Command, group: str) -> dict[TopicQueue, int]:
    """Return the offsets that a reset (220) has chosen. Empty if it is another group's, or no reset at all."""
    try:
        header = decode_header(ConsumerStatusHeader, request.ext)
        table = fastjson.loads(request.body).get("offsetTable")
        if header.group != group:
            return {}
        if isinstance(table, list):  # the form for clients that cannot read objects as keys
            rows = [
                (fastjson.QueueKey(row["topic"], row["brokerName"], int(row["queueId"])), int(row["offset"]))
                for row in table
            ]
        else:
            rows = [(key, int(offset)) for key, offset in fastjson.queue_keys(table or {}).items()]
        return {
            TopicQueue(key.topic, Queue(key.broker_name, key.queue_id)): offset
            for key, offset in rows
            if key.topic == header.topic and offset >= 0
        }
    except (RopewalkError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}


def offsets_document(states: Iterable[QueueState], topic: str) -> bytes:
    """Return the body of an answer to 221."""
    table = fastjson.QueueKeys(
        {_key(state.queue): state.committable for state in states if state.queue.topic == topic}
    )
    return fastjson.dumps({"messageQueueTable": table})


# -- 307 -------------------------------------------------------------------------------------------------


def running_document(
    states: Iterable[QueueState],
    subscriptions: Sequence[Subscription],
    statuses: Mapping[str, Mapping[str, float | int]],
    *,
    name_servers: str,
    concurrency: int,
    orderly: bool,
    started_ms: int,
    with_stacks: bool,
) -> bytes:
    """Return the body of an answer to 307: RocketMQ's ConsumerRunningInfo."""
    document: dict[str, Any] = {
        "mqPopTable": fastjson.QueueKeys(),
        "mqTable": fastjson.QueueKeys({_key(state.queue): state.document() for state in states}),
        "properties": {
            "PROP_CLIENT_VERSION": VERSION,
            "PROP_CONSUMEORDERLY": "true" if orderly else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": name_servers,
            "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
        },
        "statusTable": {topic: dict(status) for topic, status in statuses.items()},
        "subscriptionSet": [subscription.document() for subscription in subscriptions],
    }
    if with_stacks:
        document["jstack"] = stacks()
    return fastjson.dumps(document)


def stacks() -> str:
    """Return the stacks of all threads of this program, in the manner of Python's tracebacks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame))
        parts.append(f'"{names.get(ident, "?")}" id={ident}\n{lines}')
    return "\n".join(parts)


# -- 309 -------------------------------------------------------------------------------------------------


def message_to_handle(request: Command, group: str) -> ReceivedMessage:
    """Return the message in 309. Raises `RequestFailed`."""
    try:
        header = decode_header(RelayHeader, request.ext)
        record = decode_record(request.body)
    except (RopewalkError, ValueError) as exc:
        raise RequestFailed(f"this is no message to consume: {exc}") from exc
    require_group(header, group)
    broker = request.ext.get("brokerName", "")
    return received(record, TopicQueue(record.topic, Queue(broker, record.queue_id)))


def require_group(header: RelayHeader, group: str) -> None:
    if header.consumer_group != group:
        raise RequestFailed(f"The Consumer Group <{header.consumer_group}> not exist in this consumer")


def handled_document(failure: Exception | None, *, orderly: bool, took_s: float) -> bytes:
    """Return the body of an answer to 309: RocketMQ's ConsumeMessageDirectlyResult."""
    match failure:
        case None:
            result = "CR_SUCCESS"
        case RetryLater():
            result = "CR_SUSPEND_CURRENT_QUEUE_A_MOMENT" if orderly else "CR_LATER"
        case _:
            result = "CR_THROW_EXCEPTION"
    return fastjson.dumps(
        {
            "autoCommit": True,
            "consumeResult": result,
            "order": orderly,
            "remark": None if failure is None else f"{type(failure).__name__}: {failure}",
            "spentTimeMills": round(took_s * 1000),
        }
    )


def answered(request: Command, body: Callable[[], bytes]) -> Command:
    """Return a reply with this body, or with the reason why there is none."""
    try:
        return request.reply(ResponseCode.SUCCESS, body=body())
    except RequestFailed as exc:
        return request.reply(ResponseCode.SYSTEM_ERROR, str(exc))
    except RopewalkError as exc:
        return request.reply(ResponseCode.SYSTEM_ERROR, f"the request cannot be read: {exc}")
