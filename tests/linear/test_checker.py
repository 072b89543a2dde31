"""The checker tells what has an order from what has none: by hand, against brute force, and as a mutant of itself."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linear import checker
from tests.linear.brute_force import has_order
from tests.linear.checker import NotLinearizable, Undecided, check, is_linearizable
from tests.linear.histories import HISTORIES, Drawn
from tests.linear.history import UNKNOWN, Call, Operation, Recorder
from tests.linear.models import COUNTER, LOG, REGISTER, Model

Judge = Callable[[Sequence[Call], Model], bool]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.name)
def test_a_history_made_by_hand_is_judged_as_a_person_does(history: Drawn) -> None:
    assert is_linearizable(history.calls, history.model) is history.good


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.name)
def test_a_history_made_by_hand_is_judged_so_by_brute_force(history: Drawn) -> None:
    assert has_order(history.calls, history.model) is history.good


def test_histories_made_by_hand_are_a_hundred_and_of_both_kinds() -> None:
    assert len({history.name for history in HISTORIES}) == len(HISTORIES) >= 100
    assert min(sum(history.good is verdict for history in HISTORIES) for verdict in (True, False)) >= 45


# -- against brute force ---------------------------------------------------------------------------------


def _operations(model: Model) -> st.SearchStrategy[tuple[Operation, Any]]:
    value = st.integers(1, 2)
    found = st.none() | value
    if model is REGISTER:
        return st.one_of(
            st.tuples(st.just(("read",)), found),
            st.tuples(st.tuples(st.just("write"), value), st.none()),
            st.tuples(st.tuples(st.just("compare_and_put"), found, value), st.booleans()),
            st.tuples(st.tuples(st.just("put_if_absent"), value), found),
            st.tuples(st.just(("delete",)), st.booleans()),
        )
    number = st.integers(0, 3)
    if model is COUNTER:
        return st.one_of(
            st.tuples(st.just(("read",)), number),
            st.tuples(st.tuples(st.just("add"), st.integers(1, 2)), number),
        )
    return st.tuples(st.sampled_from([("read",), ("append",)]), number)


@st.composite
def _histories(draw: st.DrawFn) -> tuple[Model, list[Call]]:
    """Draw a history whose results are those of some order, but for a few that may be wrong."""
    model = draw(st.sampled_from([REGISTER, COUNTER, LOG]))
    state: Any = model.initial
    calls = []
    moments = st.integers(0, 9)
    for number in range(draw(st.integers(1, 6))):
        operation, other = draw(_operations(model))
        state, result = model.apply(state, operation)
        begin, span = draw(moments), draw(st.integers(0, 5))
        call = Call("abcdef"[number], "k", operation, begin, begin + span, result)
        fate = draw(st.integers(0, 9))
        if fate == 0:
            call.result = other
        elif fate <= 2:
            call.end, call.result = float("inf"), UNKNOWN
        calls.append(call)
    return model, calls


@settings(max_examples=200, deadline=None)
@given(_histories())
def test_a_small_history_is_judged_as_by_brute_force(drawn: tuple[Model, list[Call]]) -> None:
    model, calls = drawn
    assert is_linearizable(calls, model) is has_order(calls, model)


# -- mutants ---------------------------------------------------------------------------------------------

MUTANTS = {
    "an unknown call has to have the model's result": ("node.call.result is UNKNOWN or ", ""),
    "results are not looked at": ("node.call.result == result", "True"),
    "time is not looked at": (
        "if not stack:\n                return False",
        "if True:\n                return True",
    ),
    "the search never goes back": ("if not stack:", "if True:"),
    "a call that was taken back counts as taken": ("taken &= ~last.bit", "pass"),
    "the state is not taken back": ("last, state = stack.pop()", "last, _ = stack.pop()"),
    "the memo forgets the state": ("place = taken | node.bit, after", "place = taken | node.bit, 0"),
    "the memo forgets which calls were taken": (
        "if place not in seen:",
        "if place[1] not in {each[1] for each in seen}:",
    ),
    "a call is lifted without its end": ("for node in (begin, begin.end):", "for node in (begin,):"),
    "after one call only later ones are tried": (
        "node = head.after\n                    continue",
        "node = node.after\n                    continue",
    ),
    "a call that does not fit ends the search": (
        "node = node.after\n        else:",
        "return False\n        else:",
    ),
    "a call ends when it begins": ("(call.end, True, number", "(call.begin, True, number"),
    "ends stand before begins at one moment": ("(call.end, True, number", "(call.end, False, -1"),
    "the first state is another one": ("state: Any = model.initial", "state: Any = 1"),
    "an operation does not change the state": ("taken, state = place", "taken, _ = place"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_checker_is_seen_by_the_histories_made_by_hand(name: str) -> None:
    old, new = MUTANTS[name]
    source = Path(checker.__file__).read_text()
    assert source.count(old) == 1, name
    module = types.ModuleType("mutant")
    sys.modules["mutant"] = module  # dataclasses look their module up
    try:
        exec(compile(source.replace(old, new), "mutant", "exec"), vars(module))
        judge = module.is_linearizable
        assert any(_verdict(judge, history) is not history.good for history in HISTORIES)
    finally:
        del sys.modules["mutant"]


def _verdict(judge: Callable[..., bool], history: Drawn) -> bool | None:
    try:
        return judge(history.calls, history.model, 0.2)
    except (AssertionError, AttributeError):
        return None


# -- long histories --------------------------------------------------------------------------------------


def _lived(seed: int, count: int, clients: int, *, keys: int = 1, unknown: float = 0.0) -> list[Call]:
    """Return the history of a correct register, each of whose calls takes effect at a moment within it."""
    chance = random.Random(seed)
    free_at = [0.0] * clients
    begun: list[tuple[float, Call]] = []
    for number in range(count):
        client = number % clients
        begin = free_at[client] + chance.random()
        end = free_at[client] = begin + chance.uniform(0.5, 2.0)
        operation = ("read",) if chance.random() < 0.5 else ("write", number)
        call = Call(f"c{client}", number * keys // count, operation, begin, end)
        if chance.random() < unknown and operation != ("read",):
            call.end = float("inf")
        begun.append((chance.uniform(begin, end), call))
    states: dict[Any, Any] = {}
    for _moment, call in sorted(begun, key=lambda each: each[0]):
        states[call.key], call.result = REGISTER.apply(states.get(call.key), call.operation)
        if call.end == float("inf"):
            call.result = UNKNOWN
    return [call for _moment, call in begun]


def test_ten_thousand_calls_are_judged_within_ten_seconds_of_processor_time() -> None:
    assert check(_lived(1, 10_000, 8, keys=50), REGISTER, limit_s=10.0) == 50


def test_a_long_history_with_unknown_outcomes_is_judged() -> None:
    assert check(_lived(2, 2_000, 6, keys=10, unknown=0.05), REGISTER, limit_s=10.0) == 10


def test_forty_appends_of_unknown_outcome_are_taken_in_the_order_in_which_they_began() -> None:
    calls = [Call("u", "k", ("append",), number) for number in range(40)]
    calls += [Call("r", "k", ("read",), 50 + number, 50 + number, number // 2) for number in range(80)]
    assert check(calls, LOG, limit_s=10.0) == 1
    calls.append(Call("r", "k", ("read",), 200, 200, 41))
    with pytest.raises(NotLinearizable):
        check(calls, LOG, limit_s=10.0)


def test_one_stale_read_in_a_long_history_is_found_and_told() -> None:
    calls = _lived(3, 600, 5, keys=3)
    reads = [call for call in calls if call.operation == ("read",) and call.key == 1]
    last, first = reads[-1], next(call for call in reads if call.result is not None)
    last.result = first.result
    with pytest.raises(NotLinearizable, match=f"read -> {first.result}\n"):
        check(calls, REGISTER)


def test_a_search_that_takes_too_long_is_no_verdict() -> None:
    calls = [Call(f"c{n}", "k", ("write", n), 0, 1, None) for n in range(24)]
    calls += [Call("r", "k", ("read",), 2, 3, 99)]
    with pytest.raises(Undecided):
        check(calls, REGISTER, limit_s=0.1)


def test_a_recorder_notes_begin_end_and_what_nobody_knows() -> None:
    moments = iter(range(10))
    recorder = Recorder(lambda: next(moments))
    first = recorder.begin("a", "k", ("write", 1))
    recorder.begin("b", "k", ("write", 2))
    recorder.end(first, None)
    refused = recorder.begin("c", "k", ("read",))
    recorder.forget(refused)
    assert [(call.client, call.begin, call.end, call.result) for call in recorder.calls] == [
        ("a", 0, 2, None),
        ("b", 1, float("inf"), UNKNOWN),
    ]
