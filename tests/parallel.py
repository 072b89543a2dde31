"""How `make test` shares the tests out among processes: by file, the longest first, and what is measured alone.

pytest-xdist starts the workers and carries the reports; this decides who runs what, from the names of the tests alone.

- The tests of a file stay together and in order, as module fixtures want it.
- Folders that share something costly, a session of Spark or servers of Java, stay together altogether.
- What needs the machine to itself comes first, on one worker, while the others wait.
- Then the longest come first, so that no worker is left with a long file when the others have ended.
- A third worker, where there is one (`-n 3`), stands behind the others: it has the least priority, and computes while
  they wait for a clock, a disk or a JVM. It gets only tests that do nothing but compute, so that nothing of its own can
  be late; what it does not come to is left to the others, at the end.

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

ALONE = "alone"
"""The scope of what is run while nothing else is."""

ALONE_PREFIXES: tuple[str, ...] = (
    "tests/bench/",
    "tests/crash/test_flush_before_reply.py",
    "tests/tools/test_bench.py",
)
"""Tests that measure time more finely than a busy machine lets them, or use something that a machine has once."""

TOGETHER: dict[str, tuple[str, ...]] = {
    "spark": ("tests/spark/", "tests/compat/test_spark_live.py"),
    "compat": ("tests/compat/",),
}
"""Scope -> what belongs to it; the first that fits counts."""

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

LONG_S: dict[str, int] = {
    "compat": 420,
    "spark": 300,
    "tests/tools/drill/test_run.py": 75,
    "tests/crash/test_dledger.py": 60,
    "tests/crash/test_kill.py": 45,
    "tests/ha/test_handover.py": 42,
    "tests/sim/test_group.py": 30,
    "tests/sim/test_planted_in_group.py": 25,
    "tests/broker/test_process.py": 32,
    "tests/sim/test_power_loss.py": 9,
    "tests/crash/test_delay.py": 26,
    "tests/store/test_damage.py": 12,
    "tests/sim/raft/test_raft_groups.py": 9,
    "tests/ha/test_pair.py": 24,
    "tests/bugs/test_planted.py": 22,
    "tests/ropewalk/client/aio/test_storm.py": 18,
    "tests/ropewalk/client/aio/test_push_consumer.py": 17,
    "tests/ropewalk/client/test_restart.py": 17,
    "tests/tools/drill/test_live.py": 16,
    "tests/broker/replication/test_block_repair.py": 15,
    "tests/broker/test_fast_path_off.py": 13,
    "tests/crash/test_storm.py": 13,
    "tests/sim/test_planted_in_sim.py": 12,
    "tests/test_examples.py": 12,
    "tests/tools/admin/test_cli.py": 12,
    "tests/tools/test_cli.py": 12,
    "tests/tools/test_ordering_and_groups.py": 11,
    "tests/broker/metrics/test_snapshot.py": 10,
    "tests/ropewalk/test_testing.py": 10,
    "tests/test_readme.py": 40,
    "tests/test_readme_group.py": 35,
    "tests/sim/test_planted_in_deferred.py": 15,
    "tests/test_readme_dledger.py": 10,
    "tests/test_wheel.py": 15,
    "tests/ropewalk/client/test_fork.py": 8,
    "tests/test_docs.py": 20,
    "tests/tools/test_bench_client.py": 8,
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


class ByFile(LoadScopeScheduling):  # type: ignore[misc] # it comes without types
    """Scopes as `scope_of` has them, handed out by length."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        quiet = self._holder() is not None
        super().mark_test_complete(node, item_index, duration)
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

    def _is_behind(self, node: WorkerController) -> bool:
        """Whether this is the worker behind the others, and there are others."""
        return node.gateway.id == BEHIND and any(
            other is not node and not other.shutting_down for other in self.nodes
        )

    def _computing(self) -> bool:
        """Whether something is left that only computes."""
        return any(scope.startswith(COMPUTING) for scope in self.workqueue)

    def _reschedule(self, node: WorkerController) -> None:
        if self._is_behind(node) and not self._computing():
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._holder() not in (None, node):
            return
        behind = self._is_behind(node)
        if behind and (ALONE in self.workqueue or not self._computing()):
            return
        if ALONE in self.workqueue:
            first = ALONE
        else:
            # Each takes first what is its own; the others come to what only computes when nothing else is left.
            fitting = [scope for scope in self.workqueue if scope.startswith(COMPUTING) == behind]
            first = max(fitting or self.workqueue, key=seconds_of)
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """The scheduler of this run; None, which is pytest-xdist's own, if the command line names another `--dist`."""
    return ByFile(config, log) if config.getvalue("dist") == "load" else None
