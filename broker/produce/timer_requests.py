"""Codes 370, 60 and 61: a timer message is recalled, and slaves ask how far timers have come.

A recall is itself a timer message of the same slot, a *marker* with TIMER_DEL_UNIQKEY. The answer says that the marker
is stored; it counts when the slot is due, for the message of its own topic alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.context import BrokerContext
from broker.remoting.large_answers import body_in_steps, written_table
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Handlers, Request, Session, Stepwise
from broker.timers.placement import Placement
from broker.timers.timer_metrics import TimerMetrics
from broker.timers.timer_service import TimerService
from ropewalk.codes import Permission, RequestCode, ResponseCode
from ropewalk.errors import LocalProtocolError
from ropewalk.format.headers import RecallHandle, RecallMessageHeader, json_decoder
from ropewalk.format.properties import P, encode_properties
from ropewalk.format.record import encode_host
from ropewalk.format.remoting import Command
from store.io.disk import DiskFull

__all__ = ["TimerRequests"]

_RECALL_TAG: Final = "_RECALL_TAG_"
_decode = json_decoder(RecallMessageHeader).decode


class TimerRequests:
    """Handlers of requests about timer messages."""

    def __init__(
        self,
        context: BrokerContext,
        timers: TimerService,
        placement: Placement,
        refusal: Callable[[], tuple[int, str] | None],
    ) -> None:
        """`refusal()` returns why no message is taken at the moment."""
        self._broker = context
        self._timers = timers
        self._placement = placement
        self._refusal = refusal
        self.waits: Callable[[], bool] = lambda: False
        """Whether answers wait for the disk, or for slaves."""

    def register(self, handlers: Handlers) -> None:
        """Put the handlers into a session's table."""
        handlers.hot[RequestCode.RECALL_MESSAGE] = self.recall
        handlers.cold[RequestCode.GET_TIMER_CHECK_POINT] = self.checkpoint
        handlers.cold[RequestCode.GET_TIMER_METRICS] = self.metrics

    def checkpoint(self, session: Session, request: Command) -> Command:
        """Return read time and queue offset as 56 bytes; refused where the timer wheel is switched off."""
        if not self._timers.enabled:
            return request.reply(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return request.reply(ResponseCode.SUCCESS, body=self._timers.answer().encode())

    def metrics(self, session: Session, request: Command) -> Command | Stepwise:
        """Return the pending messages of each topic as JSON."""
        if not self._timers.enabled:
            return request.reply(ResponseCode.SYSTEM_ERROR, "The timerMetrics is null")
        metrics = self._timers.metrics
        version = metrics.version_json(self._broker.now_ms())
        counts = written_table(metrics.entries(), TimerMetrics.entry_json)
        return body_in_steps(request, {"dataVersion": version, "timingCount": counts})

    def recall(self, session: Session, request: Request) -> None:
        """Store the marker of a message, and answer when that is as safe as a message would be."""
        ext = {P.MSG_REGION: self._broker.config.region_id}
        try:
            header = request.header(RecallMessageHeader, _decode)
            handle = self._judge(header)
            self._store(session, handle, header.producer_group or "")
        except RequestRefused as exc:
            session.answer(request, exc.code, exc.remark, ext)
            return
        answer = request.reply(ResponseCode.SUCCESS, None, {**ext, "msgId": handle.unique_key})
        owe = session.outbox.after if self.waits() else session.outbox.now
        owe(request, ResponseCode.SUCCESS, answer)

    def _judge(self, header: RecallMessageHeader) -> RecallHandle:
        """Return the handle, if it may be recalled by now and here. Raises `RequestRefused`."""
        broker, config = self._broker, self._broker.config
        if not config.recall_message_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: recallMessageEnable is false on this broker. Set it in the "
                "broker's configuration, or while it runs: ropewalk admin broker config set recallMessageEnable=true",
            )
        if broker.store.follower is not None:
            raise RequestRefused(
                ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, this broker is a slave: ask its master"
            )
        if (refused := self._refusal()) is not None:
            raise RequestRefused(*refused)
        if not config.broker_permission & Permission.WRITE:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, the broker is not writable"
            )
        if broker.topics.get(header.topic) is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except ValueError as exc:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(exc)) from exc
        if handle.topic != header.topic:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, topic not match: the handle is of {handle.topic}, the request of {header.topic}",
            )
        if handle.broker != config.broker_name:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, broker service not available: the message is with broker {handle.broker}, this is "
                f"{config.broker_name}",
            )
        left_ms = handle.time_ms - broker.now_ms()
        if not 0 < left_ms < config.timer_max_delay_sec * 1000:
            why = "it is due already" if left_ms <= 0 else "it lies beyond timerMaxDelaySec"
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, f"recall failed, timestamp invalid: {why}")
        return handle

    def _store(self, session: Session, handle: RecallHandle, group: str) -> None:
        """Append the marker. Raises `RequestRefused`."""
        broker = self._broker
        key = handle.unique_key
        properties = {
            P.TAGS: _RECALL_TAG,
            P.TIMER_DEL_UNIQKEY: (
                f"{handle.topic}+{key}" if broker.config.append_topic_for_timer_delete_key else key
            ),
            P.UNIQ_KEY: key,
            P.TIMER_DELIVER_MS: str(handle.time_ms),
            P.BORN_TIMESTAMP: str(broker.now_ms()),
            P.PGROUP: group,
        }
        queue, tag_code = self._placement.place(broker.store.queue(handle.topic, 0), properties)
        try:
            message = queue, b"0", encode_properties(properties), 0, 0, broker.now_ms(), 0, 0, tag_code
            stored = broker.store.put([message], encode_host(*session.link.peer))
        except (LocalProtocolError, DiskFull) as exc:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"recall failed, execute error: {exc}") from exc
        if not stored:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"recall failed: {broker.store.shortage}")
        sizes = broker.store.sizes
        broker.statistics.put(queue.topic, broker.store.now, 1, sum(sizes), sizes=sizes)
