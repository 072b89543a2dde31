"""Code 12: messages by key, by unique key or by tag, found through the key index.

The answer comes later, from a reader thread. A client asks every broker of a topic and merges, so a broker that finds
nothing has to say 22; an empty success would count as an answer. While the index is behind the log, and was not built
within the time that a query waits, nothing found is "busy" and not 22: the message may be there.

Whatever is found, the answer tells how far the index has come. Only messages that really have the key are sent,
although clients look again: the index knows only hashes.
"""

from __future__ import annotations

from broker.context import BrokerContext
from broker.remoting.session import Handlers, Session
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.headers import (
    QueryMessageHeader,
    QueryMessageResponseHeader,
    decode_header,
    encode_header,
)
from ropewalk.format.remoting import Command
from store.index.search import Found, Query

_BY_TAG = "T"
_NOTHING = Found([], 0, 0)


class Queries:
    """The handler over the broker's store and reader."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def register(self, handlers: Handlers) -> None:
        handlers.cold[RequestCode.QUERY_MESSAGE] = self.query_message

    def query_message(self, session: Session, request: Command) -> Command | None:
        header = decode_header(QueryMessageHeader, request.ext)
        broker, config = self._broker, self._broker.config
        if header.unique_key_query:
            count = config.default_query_max_num
        else:
            count = min(header.max_num, config.max_msgs_num_batch)
        index = broker.store.upkeep.index
        if index is None or count <= 0:
            return _answer(request, _NOTHING)
        query = Query(
            header.topic,
            header.key,
            count,
            header.begin_timestamp,
            header.end_timestamp,
            by_tag=header.index_type == _BY_TAG and not header.unique_key_query,
        )

        through = broker.store.readable_offset

        def done(found: Found | None) -> None:
            behind = through - index.position
            if found is None:
                answer = _busy(request, "too many reads from disk")
            elif not found.records and behind > 0:
                what_next = index.trouble or "ask again in a moment"
                answer = _busy(request, f"the key index is {behind} bytes behind the log: {what_next}")
            else:
                answer = _answer(request, found)
            session.outbox.send(request, answer)

        broker.reader.query(index, through, query, done)
        return None


def _busy(request: Command, why: str) -> Command:
    return request.reply(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy, {why}")


def _answer(request: Command, found: Found) -> Command:
    ext = encode_header(QueryMessageResponseHeader(found.last_timestamp, found.last_offset))
    if not found.records:
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", ext
        )
    return request.reply(ResponseCode.SUCCESS, None, ext, b"".join(found.records))
