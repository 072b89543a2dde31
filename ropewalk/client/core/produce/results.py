"""The results of sends: read from brokers' answers, and split for the messages of a batch. Pure."""

from __future__ import annotations

import itertools

from ropewalk.client.core.messages import SEND_STATUSES, SendResult
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.steps import answer_header
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError, error_for
from ropewalk.format.headers import SendResponseHeader
from ropewalk.format.remoting import Command


def read_send_result(
    answer: Command, broker_name: str, keys: tuple[str, ...]
) -> tuple[SendResult, SendResponseHeader]:
    """Read the result of a send, and its header. Raises what the broker answered where nothing was stored.

    Raises `OutcomeUnknown` for an answer that says "stored" and has not what such an answer has.
    """
    status = SEND_STATUSES.get(answer.code)
    if status is None:
        raise error_for(answer.code, answer.remark)
    try:
        header = answer_header(SendResponseHeader, answer)
    except RemoteProtocolError as exc:
        raise OutcomeUnknown(f"the broker says that it was stored: {exc}") from exc
    queue, ids = Queue(broker_name, header.queue_id), tuple(header.msg_id.split(","))
    return SendResult(status, queue, header.queue_offset, ids, keys, header.recall_handle), header


def split_result(result: SendResult) -> list[SendResult]:
    """Split the result of a batch into one for each message."""
    status, queue, ids, keys = result.status, result.queue, result.offset_message_ids, result.message_ids
    if len(keys) == 1:
        return [result]
    return [
        SendResult(status, queue, offset, ids[place : place + 1] if len(ids) > 1 else ids, (key,))
        for place, (offset, key) in enumerate(zip(itertools.count(result.queue_offset), keys))
    ]
