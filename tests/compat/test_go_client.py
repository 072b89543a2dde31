"""The official Go client (v2) against a real broker: send, consume in every way it has, wait, retry, ask.

Its expectations are also those against the original: ROPEWALK_COMPAT_TARGET=rocketmq.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ropewalk import Producer, PushConsumer, ReceivedMessage
from tests.compat.conftest import Server, unavailable
from tests.compat.driver import Event, Run
from tests.compat.go_driver import GoBroken, GoMissing, play

pytestmark = [pytest.mark.compat, pytest.mark.slow]

PREFIX = "go"
DELAYS_MS = {1: 1_000, 2: 5_000}
LATE_MS = 2_000
# The original looks at its delay queues ten times a second, by a clock that it reads apart from the store's.
EARLY_MS = 100 if os.environ.get("ROPEWALK_COMPAT_TARGET") == "rocketmq" else 0
SEND_OK = 0


@pytest.fixture(scope="module")
def go(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All scenarios, played once in one process; each test looks at its own."""
    try:
        return play(server.namesrv, tmp_path_factory.mktemp("go"), PREFIX)
    except GoMissing as missing:
        pytest.skip(str(missing))
    except GoBroken as broken:
        unavailable(str(broken))
        raise


def bodies(events: list[Event]) -> list[str]:
    return [event["message"]["body"] for event in events]


def by(events: list[Event], key: str) -> dict[str, list[str]]:
    """The bodies of each member, group or source."""
    table: dict[str, list[str]] = defaultdict(list)
    for event in events:
        table[event[key]].append(event["message"]["body"])
    return table


# -- sending -------------------------------------------------------------------------------------------


def test_every_way_of_sending_is_stored_and_read_back_once(go: Run) -> None:
    expected = {"sync": 8, "async": 20, "oneway": 10, "batch": 5}
    seen = Counter(bodies(go.events("send", "received")))
    assert seen == {f"{kind} {n}": 1 for kind, count in expected.items() for n in range(count)}
    assert [result["status"] for result in go.sent("send")] == [SEND_OK] * 8
    assert [event["status"] for event in go.events("send", "asyncSent")] == [SEND_OK] * 20


def test_an_answer_names_the_message_that_is_read_back(go: Run) -> None:
    by_body = {message["body"]: message for message in go.received("send")}
    for number, result in enumerate(go.sent("send")):
        message = by_body[f"sync {number}"]
        assert (message["msgId"], message["offsetMsgId"]) == (result["msgId"], result["offsetMsgId"])
        assert (message["queueId"], message["queueOffset"]) == (result["queueId"], result["queueOffset"])
        assert (message["tags"], message["keys"]) == ("TagA", f"key-{number} all")
        assert message["properties"]["color"] == "blue"


def test_a_batch_lies_in_one_queue_in_order(go: Run) -> None:
    batch = go.one("send", "batch")
    assert batch["status"] == SEND_OK
    places = {
        message["body"]: (message["queueId"], message["queueOffset"])
        for message in go.received("send")
        if message["body"].startswith("batch")
    }
    first = batch["queueOffset"]
    assert [places[f"batch {n}"] for n in range(5)] == [(batch["queueId"], first + n) for n in range(5)]


def test_a_body_over_the_limit_is_refused(go: Run) -> None:
    assert go.one("send", "tooBig")["refused"] is True


# -- consuming -----------------------------------------------------------------------------------------


def test_a_push_consumer_gets_everything_and_its_successor_goes_on_behind_it(go: Run) -> None:
    seen = by(go.events("push", "received"), "member")
    first = [f"push {n}" for n in range(40)] + [f"held {n}" for n in range(3)]
    assert Counter(seen["first"]) == dict.fromkeys(first, 1)
    assert sorted(seen["second"]) == [f"later {n}" for n in range(6)]
    # Answers to a send and to a held pull leave together; a poll of this test's client may come between.
    assert all(event["ms"] < 2_000 for event in go.events("push", "held"))


def test_only_the_tags_that_were_asked_for_arrive(go: Run) -> None:
    seen = bodies(go.events("push_tags", "received"))
    assert sorted(seen) == sorted(f"{'ABC'[n % 3]}{n}" for n in range(12) if n % 3 != 1)


def test_each_of_two_groups_gets_everything(go: Run) -> None:
    seen = by(go.events("two_groups", "received"), "group")
    everything = {f"both {n}" for n in range(48)}
    assert {group: set(found) for group, found in seen.items()} == {"one": everything, "two": everything}
    # The second member comes while the first is at work: what was handed over unfinished is seen twice.
    assert all(max(Counter(found).values()) <= 2 for found in seen.values())


def test_every_member_of_a_broadcasting_group_gets_everything_that_comes(go: Run) -> None:
    seen = by(go.events("broadcast", "received"), "member")
    later = [f"all {n}" for n in range(20)]
    for member in ("ann", "bob"):
        assert sorted(set(seen[member]) - {"before"}) == sorted(later)
        assert len(seen[member]) == len(set(seen[member]))


def test_messages_of_one_key_come_in_order_also_when_one_is_put_off(go: Run) -> None:
    events = go.events("orderly", "received")
    by_order: dict[str, list[int]] = defaultdict(list)
    for event in events:
        _order, number, _step, step = event["message"]["body"].split()
        by_order[number].append(int(step))
    again = [event["message"]["body"] for event in events if event["try"] > 1]
    assert again == ["order 2 step 3"]
    for number, steps in by_order.items():
        if number == "2":
            steps.remove(3)
        assert steps == list(range(8)), number


def test_the_pull_consumer_polls_as_a_member_and_reads_at_a_place(go: Run) -> None:
    seen = by(go.events("pull", "received"), "how")
    assert Counter(seen["poll"]) == {f"pull {n}": 1 for n in range(12)}
    pulled = go.one("pull", "pulled")
    assert (pulled["min"], pulled["next"], pulled["max"]) == (0, 3, 3)
    at_place = [e["message"]["queueOffset"] for e in go.events("pull", "received") if e["how"] == "place"]
    assert at_place == [1, 2]


# -- waiting, failing, asking --------------------------------------------------------------------------


def test_a_delayed_message_arrives_after_its_level_and_not_much_later(go: Run) -> None:
    asked = {event["level"]: event for event in go.events("delay", "asked")}
    seen = {event["message"]["body"]: event for event in go.events("delay", "received")}
    assert len(go.events("delay", "received")) == len(seen) == 3
    for level, delay_ms in DELAYS_MS.items():
        arrived_ms = seen[f"level {level}"]["clockMs"]
        assert arrived_ms >= asked[level]["beforeMs"] + delay_ms - EARLY_MS
        assert arrived_ms <= asked[level]["afterMs"] + delay_ms + LATE_MS


def test_what_no_consumer_could_handle_is_tried_again_and_then_a_dead_letter(go: Run) -> None:
    events = [event for event in go.events("retry_dlq", "received") if "from" in event]
    tries = [event["message"] for event in events if event["from"] == "listener"]
    assert [message["reconsumeTimes"] for message in tries] == [0, 1]
    (dead,) = [event["message"] for event in events if event["from"] == "dlq"]
    assert (dead["body"], dead["tags"], dead["keys"]) == ("hopeless", "TagA", "key-1")
    assert dead["reconsumeTimes"] == 2
    assert dead["properties"]["RETRY_TOPIC"] == f"{PREFIX}-retry_dlq"


def test_a_request_is_answered_and_one_without_an_answer_times_out(go: Run) -> None:
    answers = [event["body"] for event in go.events("request_reply", "answered")]
    assert answers == [f"re: question {n}" for n in range(3)]
    assert not go.events("request_reply", "replyFailed")
    assert "timeout" in go.one("request_reply", "unanswered")["error"]


# -- half in Go, half in Python ------------------------------------------------------------------------


@pytest.fixture
def other_half(go: Run, server: Server, tmp_path: Path) -> Iterator[ThreadPoolExecutor]:
    """Somewhere to play the Go half meanwhile; what is needed for it is known to be there."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


def test_a_python_program_answers_a_go_program(
    other_half: ThreadPoolExecutor, server: Server, tmp_path: Path
) -> None:
    with Producer(server.namesrv) as responder:

        def answer(message: ReceivedMessage) -> None:
            if not message.body.startswith(b"silence"):
                responder.reply(message, b"re: " + message.body)

        topic = f"{PREFIX}-asker"
        with PushConsumer(f"{topic}-python", {topic: "*"}, answer, server.namesrv, consume_from="first"):
            run = other_half.submit(play, server.namesrv, tmp_path, PREFIX, "asker").result()
    assert [event["body"] for event in run.events("asker", "answered")] == [
        f"re: question {n}" for n in range(3)
    ]


def test_a_go_program_answers_a_python_program(
    other_half: ThreadPoolExecutor, server: Server, tmp_path: Path
) -> None:
    played = other_half.submit(play, server.namesrv, tmp_path, PREFIX, "answerer")
    topic = f"{PREFIX}-answerer"
    with Producer(server.namesrv) as asker:
        wake = threading.Event()
        for _ in range(400):
            if len(asker.queues(topic)) == 4:  # the Go half has begun the topic, and will be there
                break
            wake.wait(0.05)
        bodies_found = [asker.request(topic, b"question %d" % n, timeout=20).body for n in range(3)]
    assert bodies_found == [b"re: question %d" % n for n in range(3)]
    assert not played.result().events("answerer", "replyFailed")
