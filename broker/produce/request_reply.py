"""Request-reply (324, 325): an answer goes straight to the client that asked, and into the log besides.

The requester is a producer, known by the client id of its heartbeat; the answer names it in `REPLY_TO_CLIENT`. It is
pushed to the requester's connection (326) and the responder hears the outcome: 0 when the requester took it within
ten seconds, 1 when it is not here, refused it, or kept silent. With `storeReplyMessageEnable` the answer is stored as
well, whatever became of the push; its place is then in the responder's answer.

A requester is known to the broker that got its heartbeat. The responder finds the right broker by `CLUSTER` and the
reply topic's route, which is why every broker registers that topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from broker.produce.send import SendProcessor
from broker.remoting.outbox import Owed
from broker.remoting.rpc_times import Kind
from broker.remoting.session import Request, Session
from broker.state.clients import ClientRegistry
from broker.waiting.client_calls import ClientCalls
from broker.waiting.pending_acks import AckQueue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.headers import (
    ReplyMessageHeader,
    SendMessageHeader,
    SendMessageHeaderV2,
    encode_header,
    json_decoder,
)
from ropewalk.format.properties import P, encode_properties, parse_properties
from ropewalk.format.remoting import Command
from store.message_store import MessageStore

PUSH_TIMEOUT_MS = 10_000

_decode_v2 = json_decoder(SendMessageHeaderV2).decode
_decode_v1 = json_decoder(SendMessageHeader).decode


class ReplyProcessor:
    def __init__(
        self,
        sends: SendProcessor,
        store: MessageStore,
        clients: ClientRegistry,
        asks: ClientCalls,
        acks: AckQueue,
        *,
        keep: bool,
        address: tuple[str, int],
        wait: Callable[[Sequence[Owed], float, Sequence[Kind]], None],
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        """`keep`: whether answers are stored; `address`: what clients know this broker by.

        `wait` has frames wait for what is appended so far.
        """
        self._sends = sends
        self._store = store
        self._clients = clients
        self._asks = asks
        self._acks = acks
        self._keep = keep
        self._address = f"{address[0]}:{address[1]}"
        self._wait = wait
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def reply(self, session: Session, request: Request) -> None:
        """Handle the answer of a responder: stored, pushed, and its fate told when it is known."""
        header: SendMessageHeader | SendMessageHeaderV2
        if request.code == RequestCode.SEND_REPLY_MESSAGE:
            header = request.header(SendMessageHeader, _decode_v1)
        else:
            header = request.header(SendMessageHeaderV2, _decode_v2)
        taken = self._sends.take_reply(session, request, header, keep=self._keep)
        if taken is None:
            return  # refused, and answered
        ext, through = taken
        answer = partial(self._answer, session, request, ext, through)
        properties = parse_properties(header.properties or "")
        client_id = properties.get(P.REPLY_TO_CLIENT)
        if client_id is None:
            answer(f"reply message properties[{P.REPLY_TO_CLIENT}] is null")
            return
        requester = self._clients.producer(client_id)
        if not isinstance(requester, Session):
            answer(f"push reply message fail, channel of <{client_id}> not found.")
            return
        if requester.link.congested:
            answer(f"push reply message to {client_id} fail: it does not take what it is owed already")
            return

        def answered(response: Command | None) -> None:
            if response is None:
                answer(f"push reply message to {client_id} fail: no answer from it")
            elif response.code != ResponseCode.SUCCESS:
                answer(f"push reply message to {client_id} fail: {response.code} {response.remark or ''}")
            else:
                answer(None)

        now = self._now_ms()
        properties[P.PUSH_REPLY_TIME] = str(now)
        push = self._push(session, header, properties, now)
        deadline = self._monotonic_ms() + PUSH_TIMEOUT_MS
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        body = request.body
        request.forget()
        if not self._asks.ask(requester, code, encode_header(push), body, deadline, answered):
            answer(f"push reply message to {client_id} fail: too many pushes wait, or it is gone")

    def _push(
        self,
        session: Session,
        header: SendMessageHeader | SendMessageHeaderV2,
        properties: dict[str, str],
        now: int,
    ) -> ReplyMessageHeader:
        ip, port = session.link.peer
        return ReplyMessageHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=f"{ip}:{port}",
            store_host=self._address,
            store_timestamp=now,
            properties=encode_properties(properties).decode(),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=header.unit_mode,
        )

    def _answer(
        self, session: Session, request: Request, ext: dict[str, str], through: int, failure: str | None
    ) -> None:
        """Tell the responder; success only when its answer is as safe through `through` as is promised."""
        if failure is not None:
            frame = request.reply(ResponseCode.SYSTEM_ERROR, failure, ext)
            session.outbox.send_frame(request, ResponseCode.SYSTEM_ERROR, frame)
        elif through <= self._acks.through or request.is_oneway or not session.is_open:
            frame = request.reply(ResponseCode.SUCCESS, None, ext)
            session.outbox.send_frame(request, ResponseCode.SUCCESS, frame)
        else:
            # Behind everything that waits already: the queue is in the order of the log.
            kind = request.code, ResponseCode.SUCCESS
            self._wait(
                [(session.outbox, [request.reply(ResponseCode.SUCCESS, None, ext)])], request.read_at, [kind]
            )
