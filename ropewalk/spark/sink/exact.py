"""The driver's side of `delivery=exactly-once`: which way, over which brokers, and the end of each batch.

    begin      before the tasks of a batch: find the brokers, and what each of them knows of the sink
    tasks      `Run` travels to them; each row has a key (`row_keys`), which is the same whenever its task is repeated
    commit     after all of them: the batch is complete, at every broker

Spark cuts a batch that is repeated into other tasks as it likes. So rows are known by their content and by how many
equal ones there are in the whole batch.

Two ways, and the brokers decide which. Ropewalk's append a row only if none of its content is left of earlier attempts,
and fence what is late (`idempotent`). Apache RocketMQ's store all they are sent, so tasks read back what is stored
(`resume`): rows that an earlier run of the batch stored are held back by all tasks alike, and the commit counts them.
That leaves one gap, an executor that is cut off and goes on sending after its successor has read.

Rows are spread over brokers by their content, so the list of brokers must not change while a batch is open. It is kept
at each of them, and a broker of the list that is not there is waited for. The list grows in `commit`, new brokers
first: they know the batch as committed before the first row of the next could reach them. It never shrinks.

A repeated batch must have the same rows. Its number of rows and the sum of their digests are kept with a commit, and
brokers compare how many rows they have; a difference says that the plan is not deterministic, and fails the query.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import SEND_STATUSES, command_of
from ropewalk.client.core.produce.row_identity import BATCH_WRITE, KEY_VERSION
from ropewalk.client.core.routes import TopicRoute
from ropewalk.client.core.steps import answer_header, require_success
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Refused, RopewalkError, TryElsewhere, TryLater
from ropewalk.format.headers import SinkCommitHeader, SinkInitHeader, SinkStateHeader
from ropewalk.format.remoting import Command
from ropewalk.spark.live.cluster import ConnectionCache
from ropewalk.spark.log import log
from ropewalk.spark.options import Options
from ropewalk.spark.sink.reading_back import COPIES_PARTITION, ReadingBackSender
from ropewalk.spark.sink.resume import commit_anchors, create_anchors, digest_number, read_anchors
from ropewalk.spark.sink.routes import TopicRoutes, WriteFailed
from ropewalk.spark.sink.row_keys import RowDigest
from ropewalk.spark.sink.run import Committed, Run, TaskIdentity, TaskResult

__all__ = ["Committed", "Run", "SinkDriver", "TaskIdentity", "TaskResult"]


_RETRY_S = 0.2
_NUMBER_BITS = 48
_REGISTRATION_S = 2.0
"""After so long a topic that was created is known to the name servers."""
_MOMENTARY = (Unreachable, OutcomeUnknown, TryLater, TryElsewhere)
_said: set[tuple[str, bool]] = set()
"""Sinks whose way was told by this process."""

T = TypeVar("T")


class SinkDriver:
    """The driver of one sink. Blocking; belongs to one thread."""

    def __init__(
        self,
        options: Options,
        *,
        is_new: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[int], int] = secrets.randbits,
    ) -> None:
        """`draw(n)` returns n random bits.

        `is_new`: no batch was written yet, so a topic without a route does not exist, and is not away."""
        assert options.sink_id is not None
        self._options = options
        self._sink_id = options.sink_id
        (self._topic,) = options.topics
        self._timeout_s = options.send_timeout_ms / 1000
        self._links = ConnectionCache(min(3.0, self._timeout_s))
        self._routes = TopicRoutes(options, self._links)
        self._is_new = is_new
        self._monotonic = monotonic
        self._sleep = sleep
        self._draw = draw
        self._missing_since: float | None = None

    def close(self) -> None:
        self._links.close()

    # -- before a batch ------------------------------------------------------------------------------

    def begin(self) -> Run:
        """Begin a batch at every broker of the topic. Raises WriteFailed."""
        run = self._patiently("begin a batch", self._begin)
        if (key := (self._sink_id, run.anchors is None)) not in _said:
            _said.add(key)
            if run.anchors is None:
                log.info("writes exactly once: brokers append each row once", sink=self._sink_id)
            else:
                log.warning(
                    "writes exactly once by reading back, as brokers of Apache RocketMQ compare no keys: an executor "
                    "that is cut off from Spark and not from them can still repeat rows",
                    sink=self._sink_id,
                )
        return run

    def _begin(self) -> Run:
        route = self._route()
        names = _writable(route)
        states: dict[str, SinkStateHeader] = {}
        away: dict[str, RopewalkError] = {}
        for name in names:
            try:
                state = self._init(route, name, "")
            except _MOMENTARY as exc:
                away[name] = exc
                continue
            if state is None:
                return self._begin_resume(route, names)
            states[name] = state
        # Lists only grow, and the broker that was told last is the one that has the list of the open batch.
        lists = [state.brokers for state in states.values() if state.brokers]
        brokers = tuple(min(lists, key=len).split(",")) if lists else names
        for name in brokers:
            if name in away:
                raise away[name]
            if name not in names:
                raise Unreachable(self._missing(brokers, names))
        if not lists:
            for name in brokers:
                state = self._init(route, name, ",".join(brokers))
                assert state is not None, "the broker was Ropewalk's a moment ago"
                states[name] = state
        return Run(
            self._sink_id,
            self._topic,
            brokers,
            {name: state.epoch for name, state in states.items()},
            {name: Committed(state.query, state.batch, state.digest) for name, state in states.items()},
            tuple(sorted({state.owner for state in states.values()} - {""})),
            number=self._draw(_NUMBER_BITS),
        )

    def _init(self, route: TopicRoute, name: str, brokers: str) -> SinkStateHeader | None:
        """Begin an epoch at one broker; None where it knows no sinks."""
        header = SinkInitHeader(self._sink_id, self._topic, brokers, KEY_VERSION)
        answer = self._links.call_all(
            _master(route, name), [command_of(RequestCode.ROPEWALK_SINK_INIT, header)]
        )[0]
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        state = answer_header(SinkStateHeader, self._require_stored(answer))
        if state.key_version != KEY_VERSION:
            raise WriteFailed(
                f"broker {name} is of version 0.1 of Ropewalk, which knows rows by their task: give it this version. "
                f"Let the query end its batch with version 0.1 of both first. Nothing was stored"
            )
        return state

    def _require_stored(self, answer: Command) -> Command:
        """Return an answer that counts as stored; with requireReplication=false also one with a reservation."""
        if self._options.require_replication is False and answer.code in SEND_STATUSES:
            return answer
        return require_success(answer)

    def _begin_resume(self, route: TopicRoute, names: tuple[str, ...]) -> Run:
        if self._options.require_replication:
            raise WriteFailed(
                "requireReplication=true cannot be kept by delivery=exactly-once against Apache RocketMQ: a row whose "
                "slave was slow cannot be sent again. Leave the option out"
            )
        addresses = {name: _master(route, name) for name in names}
        # A topic that was made smaller may have rows of the batch in queues that take no more.
        every = {*route.write_queues(), *route.read_queues()}
        queues = [queue for queue in sorted(every) if queue.broker_name in addresses]
        anchors = read_anchors(self._links, self._sink_id, self._topic, addresses, queues)
        if not anchors.covers_brokers(names):
            raise Unreachable(self._missing((), names))
        anchors.check_topic(self._sink_id)
        anchors = create_anchors(self._links, anchors, self._sink_id, addresses)
        return Run(self._sink_id, self._topic, names, anchors=anchors, number=self._draw(_NUMBER_BITS))

    def _route(self) -> TopicRoute:
        route = self._routes.existing(self._topic)
        if route is None:  # also while its only broker is away, so that is waited for
            reason = (
                f"topic {self._topic} does not exist, and delivery=exactly-once creates none: "
                f"`ropewalk admin topic create {self._topic}` does"
            )
            if self._is_new and self._routes.has_brokers():
                now = self._monotonic()
                self._missing_since = now if self._missing_since is None else self._missing_since
                if now - self._missing_since >= _REGISTRATION_S:
                    raise WriteFailed(reason)
            raise Unreachable(reason)
        if not _writable(route):
            raise Unreachable(f"no broker with queues of topic {self._topic} can be written to")
        return route

    def _missing(self, brokers: Iterable[str], names: Iterable[str]) -> str:
        listed = f"writes to brokers {', '.join(brokers)}" if brokers else "wrote to more brokers before"
        return (
            f"sink {self._sink_id} {listed}, and topic {self._topic} can be written to at {', '.join(names)} only: a "
            f"batch has to end where it began. Bring the broker back, or begin anew with another sinkId and checkpoint"
        )

    # -- after a batch -------------------------------------------------------------------------------

    def commit(self, results: list[TaskResult]) -> None:
        """End a batch whose tasks are all done. Raises WriteFailed."""
        if results:
            self._patiently("commit a batch", lambda: self._commit(results))

    def _commit(self, results: list[TaskResult]) -> None:
        run = results[0].run
        query, batch = results[0].identity[:2]
        digest = RowDigest()
        rows: dict[str, int] = {}
        ends: dict[tuple[str, int], int] = {}
        for result in results:
            digest.add(result.rows, result.total)
            for name, count in result.by_broker.items():
                rows[name] = rows.get(name, 0) + count
            for key, end in result.ends.items():
                ends[key] = max(end, ends.get(key, 0))
        route = self._route()
        if run.anchors is not None:
            known = run.anchors.committed_digest(query, batch)
            if known not in (None, -1, digest_number(digest)):
                raise WriteFailed(self._other_rows(query, batch))
            if known is None:
                self._settle(results, ends)
            addresses = {name: _master(route, name) for name in run.brokers}
            commit_anchors(self._links, run.anchors, self._sink_id, addresses, query, batch, digest, ends)
            return
        finished = run.finished_brokers(query, batch)
        is_repeated = finished == frozenset(run.brokers)
        if not is_repeated:
            self._compare(run, finished, query, batch, str(digest))
        names = tuple(sorted({*run.brokers, *(name for name in _writable(route) if name in run.epochs)}))
        added = [name for name in names if name not in run.brokers]
        for name in (*added, *run.brokers):
            header = SinkCommitHeader(
                self._sink_id,
                run.epochs[name],
                query,
                batch,
                rows.get(name, 0),
                self._topic,
                str(digest),
                ",".join(names),
            )
            command = command_of(RequestCode.ROPEWALK_SINK_COMMIT, header)
            self._require_stored(self._links.call_all(_master(route, name), [command])[0])
        if is_repeated:  # which wrote nothing, and now is closed whatever it was
            self._compare(run, finished, query, batch, str(digest))

    def _settle(self, results: list[TaskResult], ends: dict[tuple[str, int], int]) -> None:
        """Compare the rows that tasks held back with those that earlier runs stored; send equal rows that are missing.

        Raises WriteFailed.
        """
        run, task = results[0].run, results[0].identity
        assert run.anchors is not None
        if not run.anchors.has_rows:
            return
        held: Counter[bytes] = Counter()
        for result in results:
            held.update(result.held)
        copies = TaskIdentity(task.query, task.batch, COPIES_PARTITION)
        sender = ReadingBackSender(self._options, run, copies, monotonic=self._monotonic, sleep=self._sleep)
        try:
            stored = sender.stored_before()
            left = sum(max(len(places) - held[content], 0) for content, places in stored.items())
            if left:
                raise WriteFailed(
                    f"{left} rows of batch {task.batch} of sink {self._sink_id} were stored by an earlier run, and "
                    f"this one has none like them: the plan is not deterministic (rand(), uuid() and the like)"
                )
            for content, count in held.items():
                sender.copy(stored[content][0], count - len(stored[content]))
            sender.finish()
            for key, end in sender.result().ends.items():
                ends[key] = max(end, ends.get(key, 0))
        finally:
            sender.close()

    def _compare(self, run: Run, finished: Iterable[str], query: str, batch: int, digest: str) -> None:
        """Compare the rows with those of the commit before. Raises WriteFailed."""
        for name in finished:
            before = run.committed[name]
            if batch == before.batch and digest != before.digest:
                raise WriteFailed(
                    f"{self._other_rows(query, batch)} (count and sum: {before.digest} then, {digest} now)"
                )

    def _other_rows(self, query: str, batch: int) -> str:
        if query == BATCH_WRITE:
            return (
                f"sink {self._sink_id} has done its batch write, with other rows than this one has. A write that "
                f"is not the one of before needs a sinkId of its own. If it is to be the same, its plan is not "
                f"deterministic: take rand(), uuid(), current_timestamp() and the like out of it"
            )
        return (
            f"batch {batch} of sink {self._sink_id} was committed with other rows than it has now. The plan of a "
            f"streaming query has to be deterministic: take rand(), uuid() and the like out of it. In foreachBatch "
            f"each write needs a sinkId of its own"
        )

    # -- patience ------------------------------------------------------------------------------------

    def _patiently(self, what: str, step: Callable[[], T]) -> T:
        """Try again while brokers are away for a moment. Raises WriteFailed."""
        deadline = self._monotonic() + self._timeout_s
        while True:
            try:
                return step()
            except _MOMENTARY as exc:
                if self._monotonic() >= deadline:
                    raise WriteFailed(
                        f"sink {self._sink_id} could not {what} within {self._options.send_timeout_ms} ms "
                        f"(sendTimeoutMs): {exc}"
                    ) from None
            except Refused as exc:
                raise WriteFailed(f"sink {self._sink_id} could not {what}: {exc}") from None
            self._sleep(_RETRY_S)


def _writable(route: TopicRoute) -> tuple[str, ...]:
    return tuple(sorted({queue.broker_name for queue in route.write_queues()}))


def _master(route: TopicRoute, name: str) -> str:
    broker = route.brokers.get(name)
    if broker is None or broker.master is None:
        raise Unreachable(f"the name server knows no master of broker {name}")
    return broker.master
