"""Which worker gets which test, and when; the workers of these stories only write down what they are told to run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from xdist.workermanage import WorkerController

from tests import parallel
from tests.parallel import (
    ALONE,
    ALONE_PREFIXES,
    APART,
    ASIDE,
    COMPUTING,
    LONG_S,
    TOGETHER,
    WAITING,
    ByFile,
    collects,
    scope_of,
    seconds_of,
    stand_behind,
)
from tests.support.ports import LOW, SHARES, free_ports, my_range

ROOT = Path(__file__).resolve().parent.parent


class Worker:
    """Runs the test that the story has it run; as a real one, it begins one only when it knows what comes next."""

    def __init__(self, name: str, tests: Sequence[str]) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.collected = [test for test in tests if collects(name, test.split("::")[0])]
        self.told: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Story:
    """Workers that have collected all tests, or those of their own, and the scheduler between them."""

    def __init__(self, *tests: str, workers: tuple[str, ...] = ("gw0", "gw1"), strange: str = "") -> None:
        self.tests = list(tests)
        self.differ: list[str] = []
        option = SimpleNamespace(loadscopereorder=False)
        hook = SimpleNamespace(pytest_collectreport=lambda report: self.differ.append(report.nodeid))
        tx = ["popen"] * len(workers)
        config = cast(pytest.Config, SimpleNamespace(getvalue=lambda name: tx, option=option, hook=hook))
        self.scheduler = ByFile(config)
        self.workers = [Worker(name, tests) for name in workers]
        self.ran: list[tuple[str, str]] = []
        for worker in self.workers:
            worker.collected += ["tests/z.py::t"] if worker.gateway.id == strange else []
            self.scheduler.add_node(cast(WorkerController, worker))
            self.scheduler.add_node_collection(cast(WorkerController, worker), worker.collected)
        self.scheduler.schedule()

    def told(self, number: int) -> list[str]:
        worker = self.workers[number]
        return [worker.collected[index] for index in worker.told]

    def step(self, number: int) -> bool:
        """Have a worker run its next test; False if it cannot yet, or has none."""
        worker = self.workers[number]
        if not worker.told or (len(worker.told) == 1 and not worker.shutting_down):
            return False
        index = worker.told.pop(0)
        self.ran.append((worker.gateway.id, worker.collected[index]))
        self.scheduler.mark_test_complete(cast(WorkerController, worker), index)
        return True

    def to_the_end(self) -> None:
        while sum(self.step(number) for number in range(len(self.workers))):
            pass

    def ran_by(self, name: str) -> list[str]:
        return [test for worker, test in self.ran if worker == name]


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ALONE_PREFIXES", ("tests/bench/",))
    monkeypatch.setattr(parallel, "TOGETHER", {"spark": ("tests/spark/",)})
    monkeypatch.setattr(parallel, "LONG_S", {"spark": 90, "tests/long.py": 30})
    monkeypatch.setattr(parallel, "APART", ("tests/sim/",))
    monkeypatch.setattr(parallel, "COMPUTING", ("tests/sim/", "tests/format/"))
    monkeypatch.setattr(parallel, "WAITING", ("spark", "tests/crash/"))


def test_every_test_is_run_once() -> None:
    tests = [f"tests/{name}.py::test_{n}" for name in ("one", "two", "three", "four") for n in range(3)]
    story = Story(*tests, "tests/bench/test_a.py::test_1", "tests/spark/test_a.py::test_1")
    story.to_the_end()
    assert sorted(test for _, test in story.ran) == sorted(story.tests)
    assert all(worker.shutting_down for worker in story.workers)
    assert {worker for worker, _ in story.ran} == {"gw0", "gw1"}


def test_a_file_is_run_by_one_worker_in_order() -> None:
    story = Story(*(f"tests/{name}.py::test_{n}" for name in "abcdef" for n in range(5)))
    story.to_the_end()
    for name in "abcdef":
        ran = [(worker, test) for worker, test in story.ran if scope_of(test) == f"tests/{name}.py"]
        assert len({worker for worker, _ in ran}) == 1
        assert [test for _, test in ran] == [f"tests/{name}.py::test_{n}" for n in range(5)]


def test_the_longest_come_first() -> None:
    story = Story("tests/a.py::t", "tests/long.py::t[a::b]", "tests/spark/x.py::t", "tests/spark/y.py::t")
    assert story.told(0)[:2] == ["tests/spark/x.py::t", "tests/spark/y.py::t"]
    assert story.told(1)[:1] == ["tests/long.py::t[a::b]"]


def test_no_long_one_is_promised_behind_another(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {f"tests/{name}.py": seconds for name, seconds in zip("abcd", (60, 50, 40, 30), strict=True)}
    monkeypatch.setattr(parallel, "LONG_S", lengths)
    story = Story(
        *(f"{scope}::t" for scope in lengths), "tests/e.py::t", "tests/f.py::t", "tests/bench/x.py::t"
    )
    assert story.step(0)
    for number in (0, 1):
        while len(story.told(number)) > 1:
            assert seconds_of(story.told(number)[1]) < 50, story.told(number)
            assert story.step(number)
    story.to_the_end()
    assert sorted(test for _, test in story.ran) == sorted(story.tests)


def test_while_one_measures_the_other_waits() -> None:
    short = [f"tests/{name}.py::t" for name in "abcd"]
    story = Story(*short, "tests/bench/x.py::t[1]", "tests/bench/x.py::t[2]", "tests/bench/y.py::t")
    assert not story.told(1)
    for _ in range(3):
        assert not story.told(1)
        assert story.step(0)
    assert story.told(1), "the last of them has ended"
    story.to_the_end()
    assert [test for _, test in story.ran[:3]] == story.tests[4:]
    assert sorted(test for _, test in story.ran[3:]) == short


def test_the_other_takes_over_when_a_worker_dies_while_it_measures() -> None:
    story = Story("tests/a.py::t", "tests/b.py::t", "tests/bench/x.py::t[1]", "tests/bench/x.py::t[2]")
    dead = story.workers[0]
    assert story.scheduler.remove_node(cast(WorkerController, dead)) == "tests/bench/x.py::t[1]"
    assert story.told(1)[:2] == ["tests/bench/x.py::t[1]", "tests/bench/x.py::t[2]"]


LIVES = [f"tests/sim/x.py::t[{number}]" for number in range(12)]
ORDERS = list(itertools.permutations(("gw0", "gw1", "gw2")))
"""In which the workers may come."""


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_the_worker_behind_the_others_only_computes_and_they_come_to_that_last(
    order: tuple[str, ...],
) -> None:
    waiting = [f"tests/{name}.py::t" for name in "abcdef"]
    story = Story(*LIVES, *waiting, "tests/format/a.py::t", workers=order)
    story.to_the_end()
    assert sorted(test for _, test in story.ran) == sorted(story.tests)
    assert not set(story.ran_by("gw2")) & set(waiting)
    assert len(story.ran_by("gw2")) > len(LIVES) // 3
    for name in ("gw0", "gw1"):
        ran = story.ran_by(name)
        assert ran == sorted(ran, key=lambda test: test not in waiting) and ran[-1] not in waiting
    assert all(worker.shutting_down for worker in story.workers)


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_only_the_worker_behind_the_others_goes_on_while_one_measures(order: tuple[str, ...]) -> None:
    story = Story("tests/a.py::t", "tests/bench/x.py::t[1]", "tests/bench/x.py::t[2]", *LIVES, workers=order)
    behind = order.index("gw2")
    (measuring,) = [number for number in range(3) if story.told(number) and number != behind]
    for _ in range(2):
        assert story.step(behind)
        assert [bool(story.told(number)) for number in range(3)].count(True) == 2
        assert story.step(measuring)
    assert {*story.ran_by("gw2")} <= {*LIVES}
    story.to_the_end()
    assert sorted(test for _, test in story.ran) == sorted(story.tests)


def test_where_nothing_only_computes_nobody_stands_behind() -> None:
    story = Story("tests/a.py::t", "tests/b.py::t", "tests/c.py::t", workers=("gw2", "gw0", "gw1"))
    assert story.workers[0].shutting_down and not story.told(0)
    story.to_the_end()
    assert len(story.ran) == 3


SIX = ("gw0", "gw1", "gw2", "gw3", "gw4", "gw5")


@pytest.mark.parametrize("order", [SIX, SIX[::-1], ("gw3", "gw0", "gw2", "gw5", "gw4", "gw1")], ids=" ".join)
def test_the_workers_aside_only_wait_and_the_others_come_to_that_when_nothing_else_is_left(
    order: tuple[str, ...],
) -> None:
    waits = [f"tests/crash/test_{name}.py::t" for name in "abcdefgh"] + ["tests/spark/a.py::t"]
    others = [f"tests/{name}.py::t" for name in "abcd"]
    story = Story(*LIVES, *waits, *others, "tests/bench/x.py::t[1]", "tests/bench/x.py::t[2]", workers=order)
    measuring = [worker for number, worker in enumerate(order) if story.told(number) and worker != "gw2"]
    assert measuring == ["gw0"] or measuring == ["gw1"], "the others wait while it measures"
    story.to_the_end()
    assert sorted(test for _, test in story.ran) == sorted(story.tests)
    assert {test for name in ASIDE for test in story.ran_by(name)} <= {*waits}
    assert set(story.ran_by("gw2")) <= {*LIVES}
    for name in ("gw0", "gw1"):
        ran = [test in (*waits, *LIVES) for test in story.ran_by(name)]
        assert ran == sorted(ran), "what is meant for them comes first"
    assert all(len(story.ran_by(name)) >= 2 for name in ASIDE)


def test_where_nothing_waits_nobody_stands_aside() -> None:
    story = Story("tests/a.py::t", "tests/b.py::t", *LIVES, workers=SIX)
    assert [worker.shutting_down for worker in story.workers] == [False] * 3 + [True] * 3
    story.to_the_end()
    assert len(story.ran) == 2 + len(LIVES)


@pytest.mark.parametrize("test", ["tests/bench/x.py::t", "tests/a.py::t", "tests/sim/x.py::t"])
def test_where_one_worker_is_enough_one_stays_that_has_collected_everything(test: str) -> None:
    story = Story(test, workers=("gw2", "gw1", "gw0"))
    story.to_the_end()
    assert story.ran == [("gw1", test)], "the others were sent home: one scope is for one worker"


def test_a_worker_with_work_of_its_own_has_collected_nothing_else() -> None:
    assert [collects(name, "tests/sim/x.py") for name in SIX] == [True, True, True, False, False, False]
    assert [collects(name, "tests/spark/x.py") for name in SIX] == [True, True, False, True, True, True]
    assert [collects(name, "tests/a.py") for name in SIX] == [True, True, False, False, False, False]


@pytest.mark.parametrize("name", SIX)
def test_no_test_is_run_where_a_worker_has_collected_what_the_others_do_not_know(name: str) -> None:
    story = Story(*LIVES, "tests/crash/test_a.py::t", "tests/a.py::t", workers=SIX, strange=name)
    assert story.differ and not any(worker.told for worker in story.workers)


def test_only_the_worker_behind_the_others_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(os, "nice", given.append)
    for name in SIX:
        stand_behind(name)
    assert given == [19]


def test_every_line_of_the_tables_names_something() -> None:
    # The names as they were imported: what the stories have instead is in the module alone.
    prefixes = [
        *ALONE_PREFIXES,
        *APART,
        *COMPUTING,
        *(prefix for prefix in WAITING if prefix not in TOGETHER),
        *(prefix for group in TOGETHER.values() for prefix in group),
    ]
    for prefix in prefixes:
        path, _, test = prefix.partition("::")
        assert any(ROOT.glob(f"{path.rstrip('/')}*")), prefix
        assert not test or f"def {test.partition('[')[0]}" in (ROOT / path).read_text(), prefix
    for scope in LONG_S:
        assert scope in {ALONE, *TOGETHER} or (ROOT / scope).is_file(), scope


def test_workers_draw_their_ports_from_ranges_of_their_own() -> None:
    ranges = [my_range(f"gw{number}") for number in range(SHARES)]
    assert my_range("") == my_range("gw0") == my_range(f"gw{SHARES}")
    assert ranges[0].start == LOW
    assert len(set[int]().union(*ranges)) == sum(map(len, ranges)), "no two share a port"
    ports = free_ports(5)
    assert len(set(ports)) == 5 and set(ports) <= set(my_range())
