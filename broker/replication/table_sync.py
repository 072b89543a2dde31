"""`TableSync`: the tables that a slave shares with its master: topics, groups, offsets, and progress of deliveries.

    master   answers a slave's question with the tables that moved since the last one (`answer`)
    slave    takes them over (`apply`), and brings the offsets that its consumers committed with its next question

*Progress* (of delayed messages, timers and transactions) is told together with the end of the master's log, and taken
over when this log reaches as far: deliveries whose copies are not here would be lost else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator
from typing import Any, Protocol

import msgspec
import structlog

from broker.context import BrokerContext
from broker.replication.master_slave import Replication
from broker.state.data_version import DataVersion, int_of
from broker.transactions.records import CONSUMER_GROUP, HALF_QUEUE
from ha.group.metadata import Commit, Seen, SyncRequest, SyncResponse, TableChanges
from ha.group.roles import QuorumPolicy
from ha.stream.client import ClientState
from ropewalk.format.names import HIDDEN_TOPICS
from store.timer.progress import Progress

__all__ = ["TableSync"]

log = structlog.get_logger("broker.ha")

_PROGRESS_WAITING_MAX = 256
TABLES_MS = 800
"""A table that is large travels no more often: to write it out costs the loop a tenth of a second."""
_LARGE = 1_000
_COMMITS_PER_STEP = 500


class TableSync:
    """The exchange of tables between a master and its slaves, at either end. The loop owns it."""

    def __init__(
        self,
        broker: BrokerContext,
        replication: Replication,
        run: str,
        follow_delays: Callable[[dict[int, int]], None],
    ) -> None:
        """`follow_delays` has a slave keep how far its master has delivered delayed messages.

        `run` names this process to slaves: the generations of another process's tables mean nothing.
        """
        self._broker = broker
        # Between two questions a master can have deleted a topic, with the commits for it, and created it again.
        broker.store.dispatcher.began_anew = broker.offsets.remove_before
        self._replication = replication
        self._run = run
        self.follow_delays = follow_delays
        self.seen = Seen()
        """The versions of its master's tables that a slave has."""
        self.adopted_topics = self.adopted_groups = DataVersion()
        """The versions of the master's tables that a slave took over, whatever it has added since for its consumers."""
        self._own = -1, -1
        """The generations of the own tables of topics and groups when they were the master's."""
        self.delays_known: dict[int, int] = {}
        """The progress of delayed messages that was told last, or heard last."""
        self._delays_generation = 0
        self._tables_ms: dict[int, int] = {}
        """Broker id -> time at which a large table was last sent to this slave."""
        self._delays: deque[tuple[int, dict[int, int]]] = deque(maxlen=_PROGRESS_WAITING_MAX)
        self._timers: deque[tuple[int, Progress]] = deque(maxlen=_PROGRESS_WAITING_MAX)
        self._transactions: deque[tuple[int, dict[str, int]]] = deque(maxlen=_PROGRESS_WAITING_MAX)
        """How far the queues of transactions are worked through, by topic, and the end of the master's log then."""
        self._asks_progress = False
        """Whether the master has to tell all its progress again."""

    # -- as a master ---------------------------------------------------------------------------------

    def answer(
        self, ask: SyncRequest, leader_epoch: int, policy: QuorumPolicy
    ) -> Generator[None, None, SyncResponse]:
        """Return, in steps, the tables that moved since a slave's last question, and the end of this master's log."""
        broker = self._broker
        known = ask.seen if ask.seen.run == self._run else Seen()
        delays, timers = broker.delays.offsets(), broker.timers.progress()
        if delays != self.delays_known:
            self.delays_known = delays
            self._delays_generation += 1
        changed, sequence = broker.offsets.journal.since(known.offsets)
        commits = [
            (topic, group, queue_id, offset, time_ms)
            for (topic, group, queue_id), time_ms in changed
            if (offset := broker.offsets.query(group, topic, queue_id)) is not None
        ]
        if ask.topics is not None or ask.groups is not None:
            self._restore_tables(ask)
            known = Seen(self._run, -1, -1, known.offsets, known.delays)
        wants = ask.topics is None and self._has_forgotten(ask)
        topics, groups = broker.topics.generation, broker.groups.generation
        topic_changes = group_changes = None
        if ask.takes_changes and not wants:
            topic_changes = _changes_of(broker.topics, known.topics, HIDDEN_TOPICS)
            if broker.groups.forbidden_generation <= known.groups:
                group_changes = _changes_of(broker.groups, known.groups)
        whole_topics = topics != known.topics and topic_changes is None
        whole_groups = groups != known.groups and group_changes is None
        if wants or ((whole_topics or whole_groups) and not self._may_travel(ask.broker_id)):
            topics = known.topics if whole_topics else topics
            groups = known.groups if whole_groups else groups
            whole_topics = whole_groups = False
        seen = Seen(self._run, topics, groups, sequence, self._delays_generation)
        answer = SyncResponse(
            leader_epoch=leader_epoch,
            seen=seen,
            end=broker.store.log.end_offset,
            readable=broker.store.readable_offset,
            time_ms=broker.now_ms(),
            policy=policy,
            topic_changes=topic_changes,
            group_changes=group_changes,
            delays={str(level): offset for level, offset in delays.items()}
            if known.delays != seen.delays
            else None,
            timers=None if broker.timers.is_behind else (timers.read_ms, timers.queue_offset, timers.done),
            commits=commits,
            more=sequence < broker.offsets.journal.sequence,
            wants_tables=wants,
        )
        # After all else: what changes between two steps is in the next answer, too.
        if whole_topics:
            answer = msgspec.structs.replace(answer, topics=(yield from broker.topics.to_wrapper_in_slices()))
        if whole_groups:
            answer = msgspec.structs.replace(answer, groups=(yield from broker.groups.to_wrapper_in_slices()))
        return answer

    def _has_forgotten(self, ask: SyncRequest) -> bool:
        """Return whether the slave's tables are newer: this master was killed before it had saved its last changes."""
        topics, groups = self._broker.topics.data_version, self._broker.groups.data_version
        return DataVersion(*ask.topics_version) > topics or DataVersion(*ask.groups_version) > groups

    def _restore_tables(self, ask: SyncRequest) -> None:
        broker, now = self._broker, self._broker.now_ms()
        if ask.topics is not None and DataVersion(*ask.topics_version) > broker.topics.data_version:
            self._log_restored("topics", broker.topics.supplement(ask.topics, now), ask.address)
            broker.topics_changed()
        if ask.groups is not None and DataVersion(*ask.groups_version) > broker.groups.data_version:
            self._log_restored("groups", broker.groups.supplement(ask.groups, now), ask.address)

    def _log_restored(self, what: str, names: list[str], address: str) -> None:
        if names:
            log.warning(
                "taken back from a slave", what=what, names=names[:20], count=len(names), slave=address
            )

    def _may_travel(self, broker_id: int) -> bool:
        """Return whether the tables of topics and groups may be sent to this slave now."""
        if len(self._broker.topics) + len(self._broker.groups) < _LARGE:
            return True
        now = self._broker.monotonic_ms()
        if now - self._tables_ms.get(broker_id, now - TABLES_MS) < TABLES_MS:
            return False
        self._tables_ms[broker_id] = now
        return True

    # -- as a slave ----------------------------------------------------------------------------------

    def apply(self, answer: SyncResponse) -> Generator[None, None, None]:
        """Take over, in steps, the tables in the master's answer, and how far its consumers may read."""
        broker = self._broker
        has_topics, _ = self._are_masters()
        if answer.topics is not None:
            yield from self.adopt_topics(answer.topics, min(answer.end, broker.store.whole_end))
            self.adopted_topics = broker.topics.data_version
        elif answer.topic_changes is not None:
            changes = answer.topic_changes
            gone = broker.topics.apply_changes(changes.changed, changes.gone, DataVersion(*changes.version))
            self._remove_topics(gone, min(answer.end, broker.store.whole_end))
            self.adopted_topics = broker.topics.data_version
        if has_topics or answer.topics is not None:
            self._own = broker.topics.generation, self._own[1]
        _, has_groups = self._are_masters()
        gone = []
        if answer.groups is not None:
            gone = yield from broker.groups.adopt_in_slices(answer.groups)
            self.adopted_groups = broker.groups.data_version
        elif answer.group_changes is not None:
            changes = answer.group_changes
            gone = broker.groups.apply_changes(changes.changed, changes.gone, DataVersion(*changes.version))
            self.adopted_groups = broker.groups.data_version
        if gone:
            log.warning(
                "groups that the master does not have are removed here", groups=gone[:20], count=len(gone)
            )
        if has_groups or answer.groups is not None:
            self._own = self._own[0], broker.groups.generation
        yield from self.merge_in_slices(answer.commits)
        worked = {
            topic: offset for topic, group, _queue, offset, _ in answer.commits if group == CONSUMER_GROUP
        }
        if worked:
            before = self._transactions[-1][1] if self._transactions else {}
            self._transactions.append((answer.end, before | worked))
        if answer.delays is not None:
            levels = {int_of(level, 0): offset for level, offset in answer.delays.items()}
            delays = {level: offset for level, offset in levels.items() if level > 0 and offset >= 0}
            self._delays.append((answer.end, delays))
            self._asks_progress = False
        if answer.timers is not None:
            self._timers.append((answer.end, Progress(*answer.timers)))
        self.seen = answer.seen
        if self._asks_progress:
            self.seen = msgspec.structs.replace(answer.seen, offsets=0, delays=-1)
        self.apply_progress()
        broker.store.limit_readable(answer.readable)

    @property
    def takes_changes(self) -> bool:
        """Return whether topics and groups are as the master has told them: else it has to tell all of them again."""
        return all(self._are_masters())

    def _are_masters(self) -> tuple[bool, bool]:
        broker, (topics, groups) = self._broker, self._own
        return broker.topics.generation == topics, broker.groups.generation == groups

    def adopt_topics(self, value: dict[str, object], end: int) -> Generator[None, None, None]:
        """Replace the table of topics by the master's, and remove topics of this broker alone.

        The master's log was `end` bytes long then, or longer: messages behind that are of a topic created since.
        """
        gone = yield from self._broker.topics.adopt_in_slices(value)
        self._remove_topics(gone, end)

    def _remove_topics(self, gone: list[str], end: int) -> None:
        broker = self._broker
        for name in gone:
            broker.offsets.remove_topic(name)
            broker.store.delete_topic(name, lambda _done: None, end)
        if gone:
            log.warning(
                "topics that the master does not have are removed here", topics=gone[:20], count=len(gone)
            )
        broker.topics_changed()

    def merge_in_slices(self, commits: list[Commit]) -> Generator[None, None, None]:
        """Merge consumer offsets as `merge_commits` does, some at each step."""
        for start in range(0, len(commits), _COMMITS_PER_STEP):
            if start:
                yield
            self.merge_commits(commits[start : start + _COMMITS_PER_STEP])

    def merge_commits(self, commits: list[tuple[str, str, int, int, int]]) -> None:
        """Merge consumer offsets of another replica: the later commit wins.

        But for the progress of transactions, which is of one log: with another's, halves that are open here were lost.
        """
        offsets = self._broker.offsets
        for topic, group, queue_id, offset, time_ms in commits:
            if group == CONSUMER_GROUP:
                continue
            try:
                offsets.merge(group, topic, queue_id, offset, time_ms)
            except ValueError as exc:
                log.warning(
                    "an offset of another replica is not taken", topic=topic, group=group, reason=str(exc)
                )

    def apply_progress(self) -> None:
        """Adopt the progress of deliveries and transactions whose copies are in the own log: others would be lost.

        A log that is as long as the master's has other bytes, until it is compared with it and follows it.
        """
        client = self._replication.client
        if client is None or client.state is not ClientState.TRANSFER:
            return
        end, found = self._broker.store.whole_end, None
        while self._delays and self._delays[0][0] <= end:
            found = self._delays.popleft()[1]
        if found is not None:
            self.delays_known = found
            self.follow_delays(found)
        timers = None
        while self._timers and self._timers[0][0] <= end:
            timers = self._timers.popleft()[1]
        if timers is not None:
            self._broker.timers.follow(timers)
        worked: dict[str, int] = {}
        while self._transactions and self._transactions[0][0] <= end:
            worked = self._transactions.popleft()[1]
        for topic, offset in worked.items():
            self._broker.offsets.commit(CONSUMER_GROUP, topic, HALF_QUEUE, offset)

    def forget_progress(self) -> None:
        """Forget the progress that is not adopted yet: it was told of another log, or before a comparison."""
        self._delays.clear()
        self._timers.clear()
        self._transactions.clear()
        self._asks_progress = True


class _Entry(Protocol):
    def to_json(self) -> dict[str, Any]: ...


class _Table(Protocol):
    """The topics or the groups of a broker."""

    @property
    def generation(self) -> int: ...
    @property
    def data_version(self) -> DataVersion: ...
    def get(self, name: str) -> _Entry | None: ...
    def changed_since(self, generation: int) -> list[str] | None: ...


def _changes_of(table: _Table, generation: int, hidden: Collection[str] = ()) -> TableChanges | None:
    """Return the changes of a table since a generation; None without any, and where all of it has to be told."""
    changed = table.changed_since(generation)
    if changed is None or table.generation == generation:
        return None
    version = table.data_version
    entries = {name: table.get(name) for name in changed if name not in hidden}
    return TableChanges(
        (version.state_version, version.counter, version.timestamp),
        {name: entry.to_json() for name, entry in entries.items() if entry is not None},
        [name for name, entry in entries.items() if entry is None],
    )
