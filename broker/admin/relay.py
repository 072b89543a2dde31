"""Administrators' requests that a consumer answers, not the broker (307, 309, 223).

307 (what a client is doing) and 309 (consume this message now) go to one client and its answer goes back as it came;
the broker adds to 309 the message that it alone can read. 223 asks every client of a group for its offsets (221) and
waits for all of them. Who does not answer in time is no reason to keep the administrator waiting for ever.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from functools import partial

from broker.admin.base import AdminContext, Handler
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session, Stepwise
from broker.state.clients import Member
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.headers import ConsumerStatusHeader, RelayHeader, decode_header
from ropewalk.format.record import parse_message_id
from ropewalk.format.remoting import Command
from ropewalk.format.sliced_json import loads_in_slices

RELAY_TIMEOUT_MS = 10_000
"""Administrators wait for twelve seconds; those of RocketMQ for fifteen and fifty."""
ASKED_PER_STEP = 50
OFFSETS_PER_STEP = 10
KEY_SIZE_MAX = 1 << 10
"""Characters of the text that names a queue."""
ANSWER_SIZE_MAX = 1 << 20
"""Bytes of a client's answer about its offsets; a larger one counts as an empty one."""
ANSWERS_SIZE_MAX = 8 << 20
"""Bytes of the answers of all clients of a group; what comes beyond counts as empty."""
STATUS_TIMEOUT_MS = 3_000
"""Administrators wait for five seconds: they get what the other clients said before they give up."""


class AdminRelay:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._broker = context.broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    def running_info(self, session: Session, request: Command) -> None:
        self._relay(session, request, request.body)

    def consume_directly(self, session: Session, request: Command) -> None:
        """Hand a client the message it shall consume now, read from the log by its offset id."""
        header = decode_header(RelayHeader, request.ext)
        try:
            _ip, _port, offset = parse_message_id(header.msg_id or "")
        except ValueError as exc:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"msgId {header.msg_id!r}: {exc}") from exc

        def found(record: bytes | None) -> None:
            try:
                if record is None:
                    raise RequestRefused(
                        ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
                    )
                self._relay(session, request, record)
            except RequestRefused as refused:
                self._context.send(session, request, request.reply(refused.code, str(refused)))

        def busy(_result: None) -> None:
            remark = "[OVERLOAD]system busy, too many reads from disk"
            self._context.send(session, request, request.reply(ResponseCode.SYSTEM_BUSY, remark))

        self._broker.reader.look_up(offset, self._broker.store.find_queue, found, busy)

    def _relay(self, session: Session, request: Command, body: bytes) -> None:
        """Ask the client that the request names, and hand its answer back."""
        header = decode_header(RelayHeader, request.ext)
        group, client_id = header.consumer_group, header.client_id
        ext = {**request.ext, "brokerName": self._broker.config.broker_name}
        # The client may take seconds to answer, and nothing of this is needed for its answer.
        request.body, request.ext, request.language = b"", {}, ""

        def answered(answer: Command | None) -> None:
            if answer is None:
                reply = request.reply(
                    ResponseCode.CONSUME_MSG_TIMEOUT,
                    f"consumer <{group}> <{client_id}> Timeout: no answer within {RELAY_TIMEOUT_MS} ms",
                )
            else:
                reply = request.reply(answer.code, answer.remark, answer.ext, answer.body)
            self._context.send(session, request, reply)

        deadline = self._broker.monotonic_ms() + RELAY_TIMEOUT_MS
        client = self._client(group, client_id)
        if client is None or not self._broker.client_calls.ask(
            client, request.code, ext, body, deadline, answered
        ):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )

    def _client(self, group: str, client_id: str) -> Session | None:
        """The connection of one client of a group; of two under one id the later one, which is the live one."""
        found = None
        for peer, member in self._members(group):
            if member.client_id == client_id:
                found = peer
        return found

    def _members(self, group: str) -> list[tuple[Session, Member]]:
        info = self._broker.clients.consumer_group(group)
        members = info.members.items() if info is not None else ()
        return [(peer, member) for peer, member in members if isinstance(peer, Session)]

    def consumer_status(self, session: Session, request: Command) -> Stepwise:
        """Return the position of each client of a group, by its own account."""
        header = decode_header(ConsumerStatusHeader, request.ext)
        broker = self._broker
        if header.topic not in broker.topics:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the topic {header.topic} does not exist")
        asked = [
            (peer, member.client_id)
            for peer, member in self._members(header.group)
            if not header.client_addr or member.client_id == header.client_addr
        ]
        if not asked:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        bodies: dict[str, bytes] = {}
        left, free = len(asked), ANSWERS_SIZE_MAX

        def answered(client_id: str, answer: Command | None) -> None:
            nonlocal left, free
            left -= 1
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                size = len(answer.body)
                is_small = size <= min(ANSWER_SIZE_MAX, free)
                bodies[client_id] = answer.body if is_small else b""
                free -= size if is_small else 0
            if left == 0:
                session.answer_in_steps(request, self._status_of(request, bodies))

        deadline = broker.monotonic_ms() + STATUS_TIMEOUT_MS
        ext = {"topic": header.topic, "group": header.group}
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        for count, (peer, client_id) in enumerate(asked, 1):
            if not broker.client_calls.ask(peer, code, ext, b"", deadline, partial(answered, client_id)):
                answered(client_id, None)
            if count % ASKED_PER_STEP == 0:
                yield
        return None

    def _status_of(self, request: Command, bodies: dict[str, bytes]) -> Stepwise:
        tables = []
        for client_id, body in bodies.items():
            offsets = yield from _offsets_in(body)
            tables.append(fastjson.dumps(client_id) + b":{" + offsets + b"}")
            yield
        body = b'{"consumerTable":{%b},"messageQueueTable":{}}' % b",".join(tables)
        return request.reply(ResponseCode.SUCCESS, body=body)


def _offsets_in(body: bytes) -> Generator[None, None, bytes]:
    """Return the entries of the offset table in a client's answer to 221, as they are written in the broker's.

    A body that is not one counts as an empty one.
    """
    try:
        document = (yield from loads_in_slices(body, ANSWER_SIZE_MAX)) if body else None
    except fastjson.FastjsonError:
        document = None
    table = document.get("messageQueueTable") if isinstance(document, dict) else None
    texts = []
    for count, (key, offset) in enumerate(table.items() if isinstance(table, dict) else (), 1):
        if len(key) <= KEY_SIZE_MAX and isinstance(offset, int):
            with suppress(fastjson.FastjsonError):
                texts.append(fastjson.dumps(fastjson.queue_keys({key: offset}))[1:-1])
        if count % OFFSETS_PER_STEP == 0:
            yield
    return b",".join(texts)
