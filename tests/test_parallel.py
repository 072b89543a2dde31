"""Which worker gets which test, and when; the workers of these stories only write down what they are told to run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from xdist.workermanage import WorkerController

from tests import parallel
from tests.parallel import ALONE, ALONE_PREFIXES, LONG_S, TOGETHER, ByFile, scope_of
from tests.ports import LOW, SHARES, free_ports, my_range

ROOT = Path(__file__).resolve().parent.parent


class Worker:
    """Runs the test that the story has it run; as a real one, it begins one only when it knows what comes next."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.told: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Story:
    """Two workers that have collected the same tests, and the scheduler between them."""

    def __init__(self, *tests: str) -> None:
        self.tests = list(tests)
        option = SimpleNamespace(loadscopereorder=False)
        config = cast(pytest.Config, SimpleNamespace(getvalue=lambda name: ["popen"] * 2, option=option))
        self.scheduler = ByFile(config)
        self.workers = [Worker("gw0"), Worker("gw1")]
        self.ran: list[tuple[str, str]] = []
        for worker in self.workers:
            self.scheduler.add_node(cast(WorkerController, worker))
            self.scheduler.add_node_collection(cast(WorkerController, worker), self.tests)
        self.scheduler.schedule()

    def told(self, number: int) -> list[str]:
        return [self.tests[index] for index in self.workers[number].told]

    def step(self, number: int) -> bool:
        """Have a worker run its next test; False if it cannot yet, or has none."""
        worker = self.workers[number]
        if not worker.told or (len(worker.told) == 1 and not worker.shutting_down):
            return False
        index = worker.told.pop(0)
        self.ran.append((worker.gateway.id, self.tests[index]))
        self.scheduler.mark_test_complete(cast(WorkerController, worker), index)
        return True

    def to_the_end(self) -> None:
        while any([self.step(0), self.step(1)]):
            pass


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ALONE_PREFIXES", ("tests/bench/",))
    monkeypatch.setattr(parallel, "TOGETHER", {"spark": ("tests/spark/",)})
    monkeypatch.setattr(parallel, "LONG_S", {"spark": 90, "tests/long.py": 30})


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


def test_every_line_of_the_tables_names_something() -> None:
    # The names as they were imported: what the stories have instead is in the module alone.
    prefixes = [*ALONE_PREFIXES, *(prefix for group in TOGETHER.values() for prefix in group)]
    for prefix in prefixes:
        path, _, test = prefix.partition("::")
        assert (ROOT / path).exists(), prefix
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
