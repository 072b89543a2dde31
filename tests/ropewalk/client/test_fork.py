"""Clients that cross a fork: the child begins anew or is refused, and the parent never notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from ropewalk.testing import RopewalkBroker
from tests.support.long_run import ROOM_S
from tests.support.processes import checkout_environment

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

PROLOGUE = """
import json, os, sys, time, warnings
from ropewalk import *

namesrv, topic, group = sys.argv[1:4]

def forked(action):
    \"\"\"Run action in a child; return a function that waits for what it returned.\"\"\"
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = {"value": action()}
        except BaseException as exc:
            said = {"error": f"{type(exc).__name__}: {exc}"}
        with os.fdopen(writable, "w") as out:
            json.dump(said, out)
        os._exit(0)
    os.close(writable)
    def wait():
        with os.fdopen(readable) as results:
            said = json.load(results)
        os.waitpid(pid, 0)
        return said.get("value", said.get("error"))
    return wait

def prefix(result):
    return result.message_ids[0][:20]
"""


def run(broker: RopewalkBroker, story: str) -> Any:
    """Run a story in a process of its own, which prints its result as JSON."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROLOGUE + textwrap.dedent(story),
         broker.namesrv, broker.topic("forked"), broker.group("forked")],
        env=checkout_environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_producer_has_connections_ids_and_keys_of_its_own_in_a_child(
    ropewalk_broker: RopewalkBroker,
) -> None:
    told = run(
        ropewalk_broker,
        """
        with Producer(namesrv) as producer:
            first = producer.send(topic, b"first")
            before = producer.client_id

            def send(who):
                results = [producer.send(topic, f"{who} {n}".encode()) for n in range(200)]
                return {"id": producer.client_id, "prefix": prefix(results[0]),
                        "acknowledged": producer.counts.acknowledged,
                        "keys": [result.message_ids[0] for result in results]}

            def child():
                with producer:
                    return send("child")

            wait = forked(child)
            mine = send("parent")
            theirs = wait()
            producer.send(topic, b"last")
            print(json.dumps({"mine": mine, "theirs": theirs, "before": before, "first": prefix(first)}))
        """,
    )
    mine, theirs = told["mine"], told["theirs"]
    assert mine["id"] == told["before"] != theirs["id"]
    assert mine["prefix"] == told["first"] != theirs["prefix"]
    assert not set(mine["keys"]) & set(theirs["keys"])
    assert mine["acknowledged"] == 201 and theirs["acknowledged"] == 200, "each counts its own"
    bodies = [record.body for record in ropewalk_broker.messages(ropewalk_broker.name("forked"), 402)]
    expected = {f"{who} {n}".encode() for who in ("parent", "child") for n in range(200)}
    assert len(bodies) == 402 and set(bodies) == expected | {b"first", b"last"}


def test_what_a_parent_has_gathered_is_sent_once_and_by_the_parent(ropewalk_broker: RopewalkBroker) -> None:
    told = run(
        ropewalk_broker,
        """
        producer = Producer(namesrv, linger=30)
        futures = [producer.send_async(topic, f"parent {n}".encode()) for n in range(10)]

        def child():
            try:
                futures[0].result(5)
                inherited = "a result"
            except Exception as exc:
                inherited = type(exc).__name__
            mine = [producer.send_async(topic, f"child {n}".encode()) for n in range(10)]
            producer.close()
            return [inherited, all(future.done() for future in mine), producer.counts.acknowledged]

        wait = forked(child)
        producer.flush()
        print(json.dumps([wait(), producer.counts.acknowledged]))
        producer.close()
        """,
    )
    assert told == [["OutcomeUnknown", True, 10], 10]
    assert len(ropewalk_broker.messages(ropewalk_broker.name("forked"), 20)) == 20


def test_a_fork_while_another_thread_sends_leaves_no_lock_behind(ropewalk_broker: RopewalkBroker) -> None:
    told = run(
        ropewalk_broker,
        """
        import threading
        producer = Producer(namesrv)
        over = threading.Event()

        def load():
            while not over.is_set():
                producer.send_async(topic, b"x")
        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        waits = []
        for _ in range(10):
            time.sleep(0.02)
            waits.append(forked(lambda: producer.send(topic, b"child").status.name))
        told = [wait() for wait in waits]
        over.set()
        for thread in threads:
            thread.join()
        producer.close()
        print(json.dumps([told, producer.counts.pending]))
        """,
    )
    assert told == [["SEND_OK"] * 10, 0]


@pytest.mark.parametrize(
    ("make", "use"),
    [
        ("Producer(namesrv)", "[client.send_async(topic, b'x'), client.flush(), client.send(topic, b'y')]"),
        ("Admin(namesrv)", "client.topic_config(topic)"),
        ("PullConsumer(group, {topic: '*'}, namesrv)", "[client.poll(timeout=0.1), client.commit()]"),
        ("TransactionProducer(print, namesrv, group=group)", "with client.transaction(topic, b'x'): pass"),
        (
            "PushConsumer(group, {topic: '*'}, seen.append, namesrv, consume_from='first')",
            "while not seen: time.sleep(0.01)",
        ),
    ],
)
def test_a_blocking_client_imports_nothing_while_it_is_used(
    ropewalk_broker: RopewalkBroker, make: str, use: str
) -> None:
    """A child that is forked while another thread imports a module waits for ever when it wants that module."""
    ropewalk_broker.send(ropewalk_broker.topic("forked"), "x")
    told = run(
        ropewalk_broker,
        f"""
        seen = []
        with {make} as client:
            before = set(sys.modules)
            {use}
            print(json.dumps(sorted(set(sys.modules) - before)))
        """,
    )
    assert told == []


@pytest.mark.parametrize(
    ("make", "use"),
    [
        ("Admin(namesrv)", "sorted(client.topic_config(topic)) != []"),
        ("PullConsumer(group, {topic: '*'}, namesrv, consume_from='first')", "poll(client)"),
        (
            "__import__('ropewalk.client.blocking.simple', fromlist=['Client']).Client(namesrv)",
            "pull(client)",
        ),
    ],
)
def test_a_reader_gets_its_own_answers_in_a_child(
    ropewalk_broker: RopewalkBroker, make: str, use: str
) -> None:
    topic = ropewalk_broker.topic("forked")
    for number in range(100):
        ropewalk_broker.send(topic, f"{number}")
    told = run(
        ropewalk_broker,
        f"""
        def poll(client):
            client.assign_topics()
            client.seek_to_begin()
            found = 0
            while messages := client.poll(7, timeout=0.3):
                found += len(messages)
            return found

        def pull(client):
            return sum(len(client.pull(topic, queue, 0).records) for queue in client.read_queues(topic))

        with {make} as client:
            use = lambda: {use}
            first = use()
            wait = forked(lambda: [[use() for _ in range(6)], client.close()][0])
            mine = [use() for _ in range(6)]
            print(json.dumps([first, mine, wait(), use()]))
        """,
    )
    first, mine, theirs, last = told
    assert first in (True, 100)
    assert mine == theirs == [first] * 6 and last == first


def test_a_push_consumer_stays_with_its_parent_and_may_be_started_anew(
    ropewalk_broker: RopewalkBroker,
) -> None:
    told = run(
        ropewalk_broker,
        """
        seen = []
        consumer = PushConsumer(group, {topic: "*"}, lambda message: seen.append(message.body.decode()), namesrv,
                                consume_from="first")
        consumer.start()
        with Producer(namesrv) as producer:
            producer.send(topic, b"before")
            while not seen:
                time.sleep(0.01)

            def child():
                queues, began, name = len(consumer.queues), time.monotonic(), consumer.client_id
                consumer.close()
                closed = time.monotonic() - began
                consumer.start()
                consumer.close()
                return [queues, closed, name]

            queues, closed, name = forked(child)()
            producer.send(topic, b"after")
            deadline = time.monotonic() + 60
            while "after" not in seen and time.monotonic() < deadline:
                time.sleep(0.01)
            print(json.dumps([queues, closed, name != consumer.client_id, seen]))
        consumer.close()
        """,
    )
    queues, closed_s, is_another, seen = told
    assert (queues, is_another, seen) == (0, True, ["before", "after"]) and closed_s < 2 + ROOM_S


def test_an_async_client_is_refused_in_a_child_and_goes_on_in_its_parent(
    ropewalk_broker: RopewalkBroker,
) -> None:
    told = run(
        ropewalk_broker,
        """
        import asyncio

        async def main():
            async with AsyncProducer(namesrv) as producer, AsyncPullConsumer(group, {topic: "*"}, namesrv) as consumer:
                async with AsyncAdmin(namesrv) as admin:
                    await producer.send(topic, b"one")
                    await admin.topics()

                    def child():
                        async def use():
                            said = []
                            for action in (lambda: producer.send(topic, b"x"), lambda: consumer.poll(timeout=0),
                                           lambda: admin.topics(), lambda: producer.close()):
                                try:
                                    await action()
                                    said.append("done")
                                except NotOpen as exc:
                                    said.append("forked" in str(exc))
                            return said
                        return drive(use())

                    def drive(coroutine):
                        try:
                            coroutine.send(None)
                        except StopIteration as end:
                            return end.value

                    told = forked(child)()
                    for _ in range(20):
                        await producer.send(topic, b"two")
                    await consumer.assign_topics()
                    print(json.dumps([told, producer.counts.acknowledged]))

        asyncio.run(main())
        """,
    )
    assert told == [[True, True, True, "done"], 21]


def test_an_async_producer_that_was_not_open_has_ids_and_keys_of_its_own(
    ropewalk_broker: RopewalkBroker,
) -> None:
    told = run(
        ropewalk_broker,
        """
        import asyncio
        producer = AsyncProducer(namesrv)
        named = AsyncPushConsumer(group, {topic: "*"}, print, namesrv, client_id="the-one")

        async def main():
            async with producer:
                return [producer.client_id, prefix(await producer.send(topic, b"x")), named.client_id]

        wait = forked(lambda: asyncio.run(main()))
        print(json.dumps([asyncio.run(main()), wait()]))
        """,
    )
    mine, theirs = told
    assert not set(mine) & set(theirs), "not even a name that was given"
    assert mine[2] == "the-one" and theirs[2].startswith("the-one#")


def test_a_connection_is_closed_in_the_child_alone(ropewalk_broker: RopewalkBroker) -> None:
    told = run(
        ropewalk_broker,
        """
        from ropewalk.client.blocking.connection import Connection
        from ropewalk.client.core.messages import route_request
        connection = Connection(namesrv)
        opaque = connection.start(route_request(topic))

        def child():
            try:
                connection.wait(opaque, 1)
            except OutcomeUnknown as exc:
                return [connection.closed, "forked" in str(exc)]

        told = forked(child)()
        print(json.dumps([told, connection.wait(opaque, 5).code, connection.call(route_request(topic)).code]))
        """,
    )
    assert told == [[True, True], 0, 0]
