"""Request and reply over topics: the messages that ask, the messages that answer, and what a broker pushes. Pure.

    requester  --message with CORRELATION_ID, REPLY_TO_CLIENT, TTL-->  topic  -->  responder
    requester  <--326, pushed by the broker--  broker  <--325 to <cluster>_REPLY_TOPIC--  responder

A broker finds the requester by its client id, which it knows from heartbeats: so the requester announces itself at
every broker of its clusters that a responder might send to, before it asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message
from ropewalk.client.core.produce.bodies import decompress_body
from ropewalk.errors import LocalProtocolError, OutcomeUnknown, RemoteProtocolError, RopewalkError
from ropewalk.format.headers import ReplyMessageHeader, decode_header
from ropewalk.format.names import REPLY_TOPIC_POSTFIX
from ropewalk.format.properties import P, parse_properties, split_keys
from ropewalk.format.remoting import Command

REPLY = "reply"
"""The value of MSG_TYPE in an answer."""


class NoReply(OutcomeUnknown):
    """The request was stored and no reply came in time; a consumer may still handle it."""


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """The answer to a request."""

    body: bytes
    properties: Mapping[str, str]
    note: str | None = None
    """Why the body is shown as it was sent, when it could not be unpacked."""

    @property
    def keys(self) -> list[str]:
        """The keys of the answer; empty if it has none."""
        return split_keys(self.properties.get(P.KEYS, ""))

    @property
    def tags(self) -> str | None:
        return self.properties.get(P.TAGS)


def request_message(message: Message, client_id: str, correlation_id: str, timeout_s: float) -> Message:
    """Return the message as a request of this client."""
    asked = {
        P.CORRELATION_ID: correlation_id,
        P.REPLY_TO_CLIENT: client_id,
        P.TTL: str(round(timeout_s * 1000)),
    }
    return msgspec.structs.replace(message, properties={**message.properties, **asked})


def reply_topic(cluster: str) -> str:
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def reply_message(request: ReceivedMessage, answer: Message) -> tuple[str, Message]:
    """Return the topic to answer a request at, and the answer. Raises `LocalProtocolError` for what is no request."""
    if not isinstance(request, ReceivedMessage):
        raise TypeError(f"a reply is to a message that was received, and not to {request!r}")
    asked = request.properties
    missing = [name for name in (P.CLUSTER, P.CORRELATION_ID, P.REPLY_TO_CLIENT) if not asked.get(name)]
    if missing:
        raise LocalProtocolError(
            f"this message asks for no reply: it has no {' and no '.join(missing)}; send it with `request`"
        )
    told = {P.MSG_TYPE: REPLY, P.TTL: asked.get(P.TTL, "0")}
    told |= {name: asked[name] for name in (P.CORRELATION_ID, P.REPLY_TO_CLIENT)}
    told_answer = msgspec.structs.replace(answer, properties={**answer.properties, **told})
    return reply_topic(asked[P.CLUSTER]), told_answer


def pushed_reply(push: Command) -> tuple[str, ReplyMessage]:
    """Decode a pushed reply (326): the correlation id of the request, and its answer. Raises `RemoteProtocolError`."""
    try:
        header = decode_header(ReplyMessageHeader, push.ext)
        properties = parse_properties(header.properties or "")
        body, note = decompress_body(header.sys_flag, push.body)
    except (RopewalkError, ValueError) as exc:
        raise RemoteProtocolError(f"a pushed reply cannot be read: {exc}") from exc
    return properties.get(P.CORRELATION_ID, ""), ReplyMessage(body, properties, note)
