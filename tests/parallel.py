"""How `make test` shares the tests out among processes: by file, the longest first, and what is measured alone.

pytest-xdist starts the workers and carries the reports; this decides who runs what, from the names of the tests alone.

- The tests of a file stay together and in order, as module fixtures want it.
- Files that share something costly, a session of Spark or servers of Java, stay together altogether.
- What needs the machine to itself comes first, on one worker, while the others wait; all but the one behind them,
  to which nobody has to give way.
- Then the longest come first, so that no worker is left with a long file when the others have ended, and what is
  promised to a worker beyond the one that it has is short.
- Four more workers, where there are so many (`-n 6`), use what the two leave of the processors. One stands behind all
  others: it has the least priority and gets only tests that do nothing but compute, so that nothing of its own can be
  late. Three stand aside with tests that mostly wait, for JVMs, elections and delays, and are patient themselves: one
  after the other, these take half an hour. What these workers do not come to is left to the two, at the end. They read
  only the files that they may get tests of: no test begins before each worker has collected.

Nothing here is in force in a plain `pytest`, which runs everything in one process in the order of the files.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

BEHIND = "gw2"
"""The worker that stands behind the others, where there are so many."""

ASIDE = ("gw3", "gw4", "gw5")
"""The workers that stand aside, where there are so many."""

ALONE = "alone"
"""The scope of what is run while nothing else is."""

ALONE_PREFIXES: tuple[str, ...] = (
    "tests/bench/",
    "tests/crash/test_flush_before_reply.py",
    "tests/tools/test_bench.py",
)
"""Tests that measure time more finely than a busy machine lets them, or use something that a machine has once."""

TOGETHER: dict[str, tuple[str, ...]] = {
    "spark": (
        "tests/spark/jobs/common/test_tasks.py",
        "tests/spark/jobs/test_commands.py",
        "tests/spark/live/test_spark.py",
        "tests/spark/live/test_tour.py",
        "tests/spark/sink/test_exact_spark.py",
        "tests/spark/store/test_source.py",
        "tests/spark/test_",
    ),
    "compat": (
        "tests/compat/test_everyday.py",
        "tests/compat/test_java_client.py",
        "tests/compat/test_mqadmin.py",
        "tests/compat/test_python_answers.py",
        "tests/compat/test_queries.py",
        "tests/compat/test_sql_filters.py",
        "tests/compat/test_traces.py",
    ),
    "originals": (
        "tests/compat/test_mqadmin_beside.py",
        "tests/compat/test_python_admin.py",
        "tests/compat/test_python_client.py",
        "tests/compat/test_spark_",
    ),
}
"""Scope -> what belongs to it, because it shares a session of Spark, JVMs or a RocketMQ; the first that fits counts."""

APART: tuple[str, ...] = ("tests/sim/", "tests/store/test_damage.py")
"""Long files whose tests share nothing but what is made anew in a moment: each test is a scope."""

COMPUTING: tuple[str, ...] = (
    "tests/ha/raft/",
    "tests/ropewalk/filter/",
    "tests/ropewalk/format/",
    "tests/scenarios/",
    "tests/sim/",
    "tests/store/test_damage.py",
    "tests/store/test_sightings.py",
    "tests/test_documents.py",
    "tests/test_layers.py",
)
"""Tests for the worker behind the others: nothing in these waits, looks at a clock, or uses the disk much."""

WAITING: tuple[str, ...] = (
    "compat",
    "originals",
    "spark",
    "tests/compat/",
    "tests/crash/",
    "tests/ha/test_handover.py",
    "tests/ha/test_pair.py",
    "tests/ha/test_transactions.py",
    "tests/spark/",
    "tests/test_readme",
    "tests/tools/drill/",
)
"""Scopes for the workers aside: these start processes, wait for most of their time, and give each tens of seconds."""

LONG_S: dict[str, int] = {
    "tests/tools/drill/test_run.py": 260,
    "spark": 90,
    "tests/compat/test_replication.py": 85,
    "tests/ha/test_handover.py": 80,
    "compat": 75,
    "tests/compat/test_transactions.py": 75,
    "tests/crash/test_dledger.py": 60,
    "tests/spark/sink/test_kills.py": 60,
    "tests/spark/sink/test_lives.py": 20,
    "tests/compat/test_swaps.py": 58,
    "originals": 55,
    "tests/ha/test_pair.py": 50,
    "tests/ha/test_transactions.py": 50,
    "tests/spark/jobs/export/test_kills.py": 50,
    "tests/compat/test_swap_deferred.py": 47,
    "tests/crash/test_dledger_damage.py": 45,
    "tests/crash/test_kill.py": 45,
    "tests/tools/admin/test_cli.py": 45,
    "tests/test_readme.py": 40,
    "tests/crash/test_kv.py": 40,
    "tests/crash/test_dledger_snapshots.py": 38,
    "tests/spark/jobs/audit/test_audit.py": 35,
    "tests/spark/jobs/test_cluster.py": 35,
    "tests/spark/store/test_read.py": 35,
    "tests/test_readme_group.py": 35,
    "tests/compat/test_ledger_stores.py": 34,
    "tests/broker/process/test_process.py": 32,
    "tests/spark/sink/test_exact_faults.py": 30,
    "tests/compat/test_ledger_clients.py": 30,
    "tests/broker/replication/test_ledger_snapshots.py": 30,
    "tests/crash/test_delay.py": 29,
    "tests/test_docs.py": 28,
    "tests/compat/test_deferred_failover.py": 25,
    "tests/tools/drill/test_live.py": 25,
    "tests/bugs/test_planted.py": 22,
    "tests/compat/test_timer_clients.py": 20,
    "tests/crash/test_ledger_reads.py": 20,
    "tests/sim/ledger/test_ledger_groups.py": 20,
    "tests/crash/test_dledger_members.py": 20,
    "tests/broker/test_fast_path_off.py": 19,
    "tests/ropewalk/client/aio/test_storm.py": 18,
    "tests/ropewalk/client/aio/test_push_consumer.py": 17,
    "tests/ropewalk/client/test_restart.py": 17,
    "tests/crash/test_dledger_timers.py": 16,
    "tests/broker/replication/test_block_repair.py": 15,
    "tests/compat/test_go_client.py": 15,
    "tests/test_wheel.py": 15,
    "tests/tools/messages/test_consume.py": 15,
    "tests/broker/kv/test_regions.py": 15,
    "tests/tools/messages/test_produce.py": 14,
    "tests/crash/test_storm.py": 13,
    "tests/compat/test_index.py": 12,
    "tests/compat/test_replication_metadata.py": 12,
    "tests/sim/test_planted_in_sim.py": 12,
    "tests/spark/live/test_failover.py": 12,
    "tests/store/test_damage.py": 12,
    "tests/test_examples.py": 12,
    "tests/tools/test_cli.py": 12,
    "tests/broker/replication/test_ledger_readmit.py": 12,
    "tests/broker/timers/test_timer_service.py": 12,
    "tests/broker/discovery/test_route_guard.py": 12,
    "tests/tools/test_ordering_and_groups.py": 11,
    "tests/broker/metrics/test_snapshot.py": 10,
    "tests/compat/test_mixed_group.py": 10,
    "tests/ropewalk/test_testing.py": 10,
    "tests/sim/test_group.py": 10,
    "tests/test_readme_dledger.py": 10,
    "tests/test_readme_kv.py": 10,
    "tests/broker/replication/test_ledger_members.py": 10,
    "tests/broker/produce/fast/test_columns.py": 10,
    "tests/sim/test_power_loss.py": 9,
    "tests/spark/jobs/audit/test_repair.py": 9,
    "tests/spark/jobs/export/test_export.py": 9,
    "tests/spark/rows/test_decode.py": 9,
    "tests/tools/admin/test_two_brokers.py": 9,
    "tests/ropewalk/client/test_fork.py": 8,
    "tests/sim/test_deferred.py": 8,
    "tests/tools/storage/test_cli.py": 8,
    "tests/tools/test_bench_client.py": 8,
    "tests/test_layers.py": 7,
}
"""Scope -> about how many seconds it takes; what is not here takes less than eight."""


def scope_of(test: str) -> str:
    """The scope of a test's id: what has one scope is run by one worker, in order."""
    if test.startswith(ALONE_PREFIXES):
        return ALONE
    for scope, prefixes in TOGETHER.items():
        if test.startswith(prefixes):
            return scope
    return test if test.startswith(APART) else test.split("::", 1)[0]


def seconds_of(scope: str) -> int:
    """About how long a scope takes; for one test of a file, how long the file does."""
    return LONG_S.get(scope.split("::", 1)[0], 0)


def stand_behind(worker: str) -> None:
    """Give way to every other process, if this is the worker for it."""
    if worker == BEHIND:
        os.nice(19)


def part_of(scope: str) -> tuple[str, ...]:
    """The workers that a scope is meant for; () are those that stand nowhere."""
    if scope.startswith(COMPUTING):
        return (BEHIND,)
    return ASIDE if scope.startswith(WAITING) else ()


def collects(worker: str, file: str) -> bool:
    """Return whether a worker is to collect the tests of a file, whose path is given from the root."""
    return worker not in (BEHIND, *ASIDE) or worker in part_of(scope_of(file))


class ByFile(LoadScopeScheduling):  # type: ignore[misc] # it comes without types
    """Scopes as `scope_of` has them, handed out by length."""

    registered_collections: dict[WorkerController, list[str]]
    assigned_work: dict[WorkerController, dict[str, dict[str, bool]]]

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def schedule(self) -> None:
        """Begin, with the workers first that have collected everything: where there is little to do, they stay."""
        if self.collection is None:
            collected = sorted(
                self.registered_collections.items(),
                key=lambda each: (-len(each[1]), each[0].gateway.id in (BEHIND, *ASIDE)),
            )
            self.registered_collections = dict(collected)
            self.assigned_work = {node: self.assigned_work[node] for node in self.registered_collections}
        super().schedule()

    def _check_nodes_have_same_collection(self) -> bool:
        """Compare what was collected, but for the rest of the tests at workers that collect only their own."""
        collected = self.registered_collections
        everything = next(iter(collected.values()))
        self.registered_collections = {
            node: tests
            for node, tests in collected.items()
            if node.gateway.id not in (BEHIND, *ASIDE) or tests != _part_of(everything, tests)
        }
        same: bool = len(self.registered_collections) < 2 or super()._check_nodes_have_same_collection()
        self.registered_collections = collected
        return same

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        quiet = self._holder() is not None
        super().mark_test_complete(node, item_index, duration)
        work = self.assigned_work[node]
        scope = scope_of(self.registered_collections[node][item_index])
        if all(work[scope].values()):
            del work[scope]  # what is done would be counted again after each test
        if quiet and self._holder() is None:
            for waiting in self.nodes:
                # Twice: a worker begins a test when it knows the next one, and a scope may have but one.
                self._reschedule(waiting)
                self._reschedule(waiting)

    def _holder(self) -> WorkerController | None:
        """The worker that has the machine to itself, while one has."""
        for node, work in self.assigned_work.items():
            if not all(work.get(ALONE, {}).values()):
                return node
        return None

    def _is_one_more(self, node: WorkerController) -> bool:
        """Whether this worker stands behind the others or aside, and there are others."""
        more = (BEHIND, *ASIDE)
        return node.gateway.id in more and any(
            other.gateway.id not in more and not other.shutting_down for other in self.nodes
        )

    def _meant_for(self, node: WorkerController) -> list[str]:
        """The scopes left that a worker is to take; what is meant for one more comes to the others last."""
        name = node.gateway.id
        if name in (BEHIND, *ASIDE):  # it may have collected nothing else
            return [scope for scope in self.workqueue if scope != ALONE and name in part_of(scope)]
        more = {other.gateway.id for other in self.nodes}
        return [s for s in self.workqueue if more.isdisjoint(part_of(s))] or list(self.workqueue)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not self._meant_for(node):
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_one_more = self._is_one_more(node)
        gives_way = is_one_more and node.gateway.id == BEHIND
        if self._holder() not in (None, node) and not gives_way:
            return
        meant = self._meant_for(node)
        if not meant or (is_one_more and ALONE in self.workqueue and not gives_way):
            return
        # A worker begins a test when it knows the next one. Behind a long scope that is a short one: the next long one
        # is for the worker that is free first.
        is_long = any(
            seconds_of(scope) and not all(tests.values()) for scope, tests in self.assigned_work[node].items()
        )
        is_measured = ALONE in self.workqueue and not is_one_more
        first = ALONE if is_measured else (min if is_long else max)(meant, key=seconds_of)
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def _part_of(everything: list[str], some: list[str]) -> list[str]:
    """Return the members of the second list in the order of the first."""
    known = {*some}
    return [each for each in everything if each in known]


def make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """The scheduler of this run; None, which is pytest-xdist's own, if the command line names another `--dist`."""
    return ByFile(config, log) if config.getvalue("dist") == "load" else None
