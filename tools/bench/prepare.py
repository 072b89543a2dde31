"""Prepare a load: find the broker, let it create the topic, fill the backlog that is to be pulled.

A backlog is laid as many producers lay it: one message to each queue in turn (round-robin), so that neighbours in the
commit log belong to different queues. Nothing here is measured. It uses the ordinary blocking client, and the
automatic creation of topics that every producer relies on: a first message to each queue, with `TBW102` as the topic
to inherit from.
"""

from __future__ import annotations

import time

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.addresses import Address, parse_address, parse_address_list
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.directory import NoNameServer
from ropewalk.client.core.routes import parse_route
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RopewalkError, error_for
from ropewalk.format.remoting import Command
from tools.bench.frames import OPAQUE_FIRST, SendPattern
from tools.bench.link import POLL_S, Links, LoadFailed, now_us, parse_replies
from tools.bench.spec import ProduceSpec

INHERITED_TOPIC = "TBW102"
# A broker that has just started refuses for a moment: "busy", or "not available".
START_PATIENCE_S = 10.0
RETRY_S = 0.1
_TRANSIENT = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
FILL_IN_FLIGHT = 512
FILL_FRAMES = 64
"""Frames that leave in one piece."""
FILL_BYTES = 16 << 20
"""Bodies in flight, whatever their size."""


def find_broker(name_servers: str, topic: str) -> Address:
    """Return the master that serves `topic`, or would create it: the first one by name.

    Raises `RopewalkError` when no name server answers, or none knows a master.
    """
    trouble: RopewalkError | None = None
    for address in parse_address_list(name_servers):
        try:
            with Connection(address) as connection:
                for name in (topic, INHERITED_TOPIC):
                    reply = connection.call(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}))
                    if reply.code != ResponseCode.SUCCESS:
                        trouble = error_for(reply.code, f"{address}: {reply.remark or 'no route'}")
                        continue
                    brokers = parse_route(reply.body).brokers
                    masters = [broker.master for _, broker in sorted(brokers.items()) if broker.master]
                    if masters:
                        return parse_address(masters[0])
        except (Unreachable, OutcomeUnknown) as exc:
            trouble = NoNameServer(f"no name server at {address}: {exc}")
        except RopewalkError as exc:
            trouble = exc
    raise trouble or RopewalkError(f"no broker with id 0 is known to {name_servers}")


def create_topic(broker: Address, topic: str, queues: int) -> None:
    """Send one small message to every queue, so that the topic exists and has that many.

    Raises `RopewalkError` with the broker's own words when it refuses; a topic that exists with fewer
    queues is such a case.
    """
    deadline = time.monotonic() + START_PATIENCE_S
    with Connection(broker) as connection:
        queue_id = 0
        while queue_id < queues:
            reply = connection.call(_first_message(topic, queues, queue_id))
            if reply.code == ResponseCode.SUCCESS:
                queue_id += 1
            elif reply.code in _TRANSIENT and time.monotonic() < deadline:
                time.sleep(RETRY_S)
            else:
                raise error_for(
                    reply.code,
                    f"{broker} refused a first message to queue {queue_id} of {topic}: "
                    f"code {reply.code}, {reply.remark or 'no remark'}",
                )


def backlog(broker: Address, topic: str, queues: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first and the next offset of every queue."""
    with Connection(broker) as connection:
        return (
            tuple(_offset(connection, RequestCode.GET_MIN_OFFSET, topic, queue) for queue in range(queues)),
            tuple(_offset(connection, RequestCode.GET_MAX_OFFSET, topic, queue) for queue in range(queues)),
        )


def ensure_backlog(
    broker: Address, topic: str, queues: int, count: int, body_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Fill the topic up to `count` messages, and return `backlog` of it."""
    begin, end, _ = lay_backlog(broker, topic, queues, count, body_size)
    return begin, end


def lay_backlog(
    broker: Address, topic: str, queues: int, count: int, body_size: int
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Fill the topic up to `count` messages; return `backlog` of it, and whether all of it was laid here."""
    create_topic(broker, topic, queues)
    begin, end = backlog(broker, topic, queues)
    held = sum(end) - sum(begin)
    if held < count:
        fill(broker, topic, queues, count - held, body_size)
        begin, end = _settled(broker, topic, queues, sum(begin) + count)
    return begin, end, held <= queues


def _settled(broker: Address, topic: str, queues: int, total: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # A stored message shows in its queue a moment later: the original's dispatch is a thread of its own.
    deadline = time.monotonic() + START_PATIENCE_S
    while True:
        begin, end = backlog(broker, topic, queues)
        if sum(end) >= total or time.monotonic() > deadline:
            return begin, end
        time.sleep(RETRY_S)


def fill(broker: Address, topic: str, queues: int, count: int, body_size: int, *, batch: int = 1) -> None:
    """Store at least `count` messages round-robin over the queues, `batch` of them in each request.

    The messages of a batch stand side by side in one queue; a batch of 1 is a message of its own, and a round of
    `queues` requests is complete. Raises `LoadFailed` when the broker refuses a request or falls silent.
    """
    spec = ProduceSpec(
        host=broker.host,
        port=broker.port,
        topic=topic,
        queues=queues,
        connections=1,
        in_flight=max(1, min(FILL_IN_FLIGHT // batch, FILL_BYTES // (batch * body_size))),
        body_size=body_size,
        batch=batch,
    )
    frames = -(-count // batch)
    frames += -frames % queues
    pattern = SendPattern(spec, FILL_FRAMES)
    pattern.stamp(time.time_ns() // 1_000_000)
    links = Links(spec)
    link = links.all[0]
    try:
        sent = answered = 0
        last_us = now_us()
        while answered < frames:
            while (step := min(frames - sent, spec.in_flight - (sent - answered), FILL_FRAMES)) > 0:
                numbers = range(OPAQUE_FIRST + sent, OPAQUE_FIRST + sent + step)
                link.sent_at.update(dict.fromkeys(numbers, last_us))
                links.send(link, pattern.take(sent % queues, numbers))
                sent += step
            for ready in links.ready(POLL_S):
                data, arrived = ready.receive()
                if not arrived:
                    continue
                opaques, refusals = parse_replies(data, arrived)
                ready.answered(opaques)
                answered += arrived
                last_us = now_us()
                if refusals:
                    _, code, remark = refusals[0]
                    raise LoadFailed(f"{broker} refused to take the backlog: code {code}, {remark}")
            if now_us() - last_us > spec.reply_timeout_s * 1e6:
                raise LoadFailed(f"{broker} fell silent while it was given the backlog")
    finally:
        links.close()


def _first_message(topic: str, queues: int, queue_id: int) -> Command:
    header = {
        "producerGroup": "ropewalk-bench",
        "topic": topic,
        "defaultTopic": INHERITED_TOPIC,
        "defaultTopicQueueNums": str(queues),
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": str(time.time_ns() // 1_000_000),
        "flag": "0",
        "properties": "WAIT\x01true\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    return Command(RequestCode.SEND_MESSAGE, header, b"first")


def _offset(connection: Connection, code: int, topic: str, queue_id: int) -> int:
    reply = connection.call(Command(code, {"topic": topic, "queueId": str(queue_id)}))
    if reply.code != ResponseCode.SUCCESS:
        raise error_for(reply.code, f"{connection.address}: {reply.remark or 'no offset'}")
    return int(reply.ext["offset"])
