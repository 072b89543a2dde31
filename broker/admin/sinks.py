"""Requests about sinks that write exactly once (30033, 30034)."""

from __future__ import annotations

from broker.admin.base import AdminContext, Handler, body_of
from broker.remoting.session import Session
from broker.sinks.service import SinkService
from broker.sinks.windows import Sink
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.headers import SinkHeader, decode_header
from ropewalk.format.remoting import Command

__all__ = ["AdminSinks"]


class AdminSinks:
    def __init__(self, context: AdminContext, sinks: SinkService) -> None:
        self._broker = context.broker
        self._sinks = sinks

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ROPEWALK_SINK_LIST: self.list,
            RequestCode.ROPEWALK_SINK_FORGET: self.forget,
        }

    def list(self, session: Session, request: Command) -> Command:
        """List the sinks, with the batch that was committed last and the rows of the open one."""
        self._sinks.check_serving()
        known = (sink for sink in self._sinks.table.sinks.values() if not sink.is_forgotten)
        sinks = sorted(known, key=lambda sink: sink.sink_id)
        return body_of(request, {"sinks": [_row(sink) for sink in sinks]})

    def forget(self, session: Session, request: Command) -> Command:
        """Forget a sink: its next batch is written as if it were the first."""
        sink_id = decode_header(SinkHeader, request.ext).sink_id
        if not self._sinks.forget(sink_id):
            return request.reply(ResponseCode.QUERY_NOT_FOUND, f"there is no sink {sink_id} here")
        return request.reply(ResponseCode.SUCCESS)


def _row(sink: Sink) -> dict[str, object]:
    return {
        "sinkId": sink.sink_id,
        "epoch": sink.announced,
        "query": sink.owner,
        "batch": sink.batch,
        "topics": list(sink.topics),
        "open": sink.is_open,
        "rows": sink.rows,
        "brokers": sink.brokers,
        "lastActivity": sink.touched_ms,
    }
