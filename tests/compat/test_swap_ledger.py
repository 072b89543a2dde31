"""The judge of the swaps finds each promise that it is there to hold brokers to. No Java is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from ropewalk.format.record import Record, decode_record, encode_host, encode_record
from tests.compat.swap_ledger import LATER, PROMPT, SAVE_S, Commit, Ledger, Sent, Swap, judge
from tests.crash.load import body_of

HOST = encode_host("127.0.0.1", 1)
SWAP_AT = 100.0


def stored(name: str, sent: Sent, queue_offset: int, log_offset: int, at: float) -> Record:
    body = body_of(name, sent.size)
    topic, at_ms, queue_id = sent.topic.encode(), int(at * 1000), sent.queue_id
    return decode_record(
        encode_record(
            topic, queue_id, 0, queue_offset, log_offset, 0, at_ms, HOST, at_ms, HOST, 0, 0, body, b""
        )
    )


def receipt(name: str, sent: Sent, queue_offset: int, at: float) -> dict[str, Any]:
    return {
        "msgId": name,
        "keys": f"key-{name}",
        "topic": sent.topic,
        "queueId": sent.queue_id,
        "queueOffset": queue_offset,
        "wallMs": round(at * 1000),
        "bodySha256": hashlib.sha256(body_of(name, sent.size)).hexdigest(),
    }


class Story:
    """Two prompt messages and a delayed one that waits over a kill at second 100: all as promised."""

    def __init__(self) -> None:
        self.first = Sent(PROMPT, 0, 60, 0, 80.0, (0, 1000))
        self.second = Sent(PROMPT, 0, 60, 0, 81.0, (1, 2000))
        self.late = Sent(LATER, 0, 60, 15, 98.0, (0, 3000))
        self.ledger = Ledger({"M1": self.first, "M2": self.second, "M3": self.late})
        self.ledger.swaps.append(Swap("RocketMQ", True, SWAP_AT, SWAP_AT, 105.0))
        self.ledger.commits += [Commit(90.0, (PROMPT, 0), 1), Commit(97.0, (PROMPT, 0), 2)]
        self.ledger.received += [
            receipt("M1", self.first, 0, 80.1),
            receipt("M2", self.second, 1, 81.1),
            receipt("M3", self.late, 0, 113.0),
        ]
        self.stored = [
            stored("M1", self.first, 0, 1000, 80.0),
            stored("M2", self.second, 1, 2000, 81.0),
            stored("M3", self.late, 0, 4000, 113.0),
        ]

    def verdict(self) -> list[str]:
        return judge(self.ledger, self.stored)


def test_a_story_without_fault_is_not_reproached() -> None:
    story = Story()
    assert story.verdict() == []
    assert story.ledger.pending_at(story.ledger.swaps[0]) == {"M3"}


def test_what_was_committed_for_less_than_five_seconds_may_be_read_again() -> None:
    story = Story()
    story.ledger.received.append(receipt("M2", story.second, 1, 106.0))
    assert story.verdict() == []


def test_what_was_delivered_just_before_a_kill_may_be_delivered_again() -> None:
    story = Story()
    story.late.at = 80.0
    story.stored[2] = stored("M3", story.late, 0, 4000, SWAP_AT - SAVE_S)
    story.stored.append(stored("M3", story.late, 1, 5000, 106.0))
    assert story.verdict() == []


def test_what_a_member_took_back_need_not_be_kept() -> None:
    story = Story()
    story.ledger.commits.append(Commit(99.0, (PROMPT, 0), 0))
    story.ledger.received.append(receipt("M1", story.first, 0, 106.0))
    assert story.verdict() == []


def read_again(story: Story) -> None:
    story.ledger.received.append(receipt("M1", story.first, 0, 106.0))


def never_received(story: Story) -> None:
    del story.ledger.received[1]


def gone_from_its_queue(story: Story) -> None:
    del story.stored[1]


def a_gap(story: Story) -> None:
    story.stored[1] = stored("M2", story.second, 2, 2000, 81.0)


def moved(story: Story) -> None:
    story.stored[1] = stored("M2", story.second, 1, 2500, 81.0)


def twice_in_the_log(story: Story) -> None:
    story.stored.insert(2, stored("M2", story.second, 2, 2500, 106.0))


def refused_and_there(story: Story) -> None:
    story.second.place, story.second.refused = None, True


def received_early(story: Story) -> None:
    story.ledger.received[2]["wallMs"] -= 1000


def delivered_early(story: Story) -> None:
    story.stored[2] = stored("M3", story.late, 0, 4000, 112.0)


def delivered_twice_after_waiting_over_the_swap(story: Story) -> None:
    story.stored.append(stored("M3", story.late, 1, 5000, 113.5))


def delayed_for_ever(story: Story) -> None:
    del story.stored[2], story.ledger.received[2]


def another_body(story: Story) -> None:
    story.ledger.received[0]["bodySha256"] = ""


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (read_again, "was committed 5 s before"),
        (never_received, "no consumer has seen it"),
        (gone_from_its_queue, "and is at []"),
        (a_gap, "has offset 2 where 1 should be"),
        (moved, "was acknowledged at (1, 2000)"),
        (twice_in_the_log, "more than once"),
        (refused_and_there, "was refused, and is at"),
        (received_early, "too early"),
        (delivered_early, "delivered 1.000 s too early"),
        (delivered_twice_after_waiting_over_the_swap, "and not for a kill"),
        (delayed_for_ever, "never delivered"),
        (another_body, "with another body"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_broken_promise_is_named(fault: Callable[[Story], None], text: str) -> None:
    story = Story()
    fault(story)
    assert any(text in line for line in story.verdict()), story.verdict()
