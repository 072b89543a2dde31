"""Errors and results cross processes: a pool pickles what its workers return and raise."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import ropewalk
from ropewalk import Admin, KvLock, Message, Outcome, Producer, PullConsumer, Queue, Skipped
from ropewalk.client.blocking.bulk import RangeLost
from ropewalk.errors import RopewalkError
from ropewalk.testing import RopewalkBroker


def error_classes() -> list[type[BaseException]]:
    found: set[type[BaseException]] = set()
    for module in pkgutil.walk_packages(ropewalk.__path__, "ropewalk."):
        if module.name.rpartition(".")[2] != "__main__":
            members = vars(importlib.import_module(module.name)).values()
            found.update(
                each
                for each in members
                if inspect.isclass(each)
                and issubclass(each, Exception)
                and each.__module__.startswith("ropewalk.")
            )
    return sorted(found, key=lambda each: (each.__module__, each.__name__))


def made(kind: type[BaseException]) -> BaseException:
    """Make an error with a value for each parameter of its constructor."""
    if kind.__init__ in (Exception.__init__, ValueError.__init__, RuntimeError.__init__):
        return kind("what was wrong", 7)
    values = {"str": "text", "int": 3, "bool": True, "Iterable[str]": ("a", "b")}
    positional, named = [], {}
    for each in list(inspect.signature(kind).parameters.values()):
        value = values.get(str(each.annotation), "what was wrong")
        if each.kind is each.KEYWORD_ONLY:
            named[each.name] = value
        elif each.kind is not each.VAR_KEYWORD:
            positional.append(value)
    return kind(*positional, **named)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_behind_a_pickle_and_a_copy(kind: type[BaseException]) -> None:
    error = made(kind)
    if isinstance(error, RopewalkError):
        error.code, error.remark = 14, "the broker's own words"
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind and str(again) == str(error) and again.args == error.args
        assert vars(again) == vars(error)


def fail() -> None:
    raise RangeLost("gone", wanted=1, minimum=2, maximum=3)


def test_an_error_of_a_worker_process_is_raised_by_its_pool() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(RangeLost, match="gone"):
            pool.submit(fail).result(60)
        assert pool.submit(len, "it goes on").result(60) == 10


def test_results_are_the_same_behind_a_pickle(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    results: list[Any] = [
        Message(b"x", tags="a", keys=("k",)),
        KvLock(b"n", b"o", 1, 2.0),
        Outcome.COMMIT,
        Queue("a", 1),
    ]
    with Producer(ropewalk_broker.namesrv) as producer:
        results.append(producer.send(topic, Message(b"x" * 5000)))
        results.append(producer.send_async(topic, Message(b"y")).result(60))
    with PullConsumer(group, {topic: "*"}, ropewalk_broker.namesrv, consume_from="earliest") as consumer:
        received: list[Any] = []
        while len(received) < 2:
            received += consumer.poll()
        consumer.commit()
        results += [*received, consumer.assignment, Skipped(consumer.assignment[0], 1, 2, "reset")]
    with Admin(ropewalk_broker.namesrv) as admin:
        results += [admin.topics(), admin.topic_route(topic), admin.topic_status(topic), admin.members()]
        results += [admin.progress(group), admin.masters()]
        results += [admin.messages_by_unique_key(topic, received[0].message_id), admin.group_config(group)]
    for result in results:
        again = pickle.loads(pickle.dumps(result))
        assert type(again) is type(result) and again == result, result
    assert [each.body for each in pickle.loads(pickle.dumps(received))] == [each.body for each in received]
