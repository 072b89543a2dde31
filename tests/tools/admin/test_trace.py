"""A message's life, drawn from records as the official clients write them."""

from __future__ import annotations

import pytest

from ropewalk.client.core.tracing.records import decode_trace
from tools.admin.trace import life_of

ID, OTHER = "7F0000010ABC18B4AAC2000000000001", "7F0000010ABC18B4AAC2000000000002"


def record(*fields: object) -> str:
    return "\x01".join(map(str, fields)) + "\x02"


SENT = record(
    "Pub",
    1000,
    "R",
    "shop",
    "orders",
    ID,
    "paid",
    "k1 k2",
    "10.0.0.1:10911",
    7,
    3,
    0,
    "0A",
    "true",
    "10.0.1.1",
)
ENDED = record(
    "EndTransaction",
    1100,
    "R",
    "shop",
    "orders",
    ID,
    "paid",
    "k1",
    "10.0.0.1:10911",
    2,
    "T1",
    "COMMIT_MESSAGE",
    "true",
)
FIRST = record("SubBefore", 1200, "R", "billing", "r1", ID, 0, "k1 k2")
FAILED = record("SubAfter", "r1", ID, 15, "false", "k1 k2", 0, 1215, "billing")
SECOND = record("SubBefore", 11_200, "R", "billing", "r2", ID, 1, "k1 k2")
RECALLED = record("Recall", 1150, "R", "shop", "orders", ID, "false")
STRANGE = "Hello\x01world\x02" + record("SubBefore", "soon", "R", "billing", "r9", ID, 0, "k1")
NEIGHBOUR = record(
    "Pub", 1001, "R", "shop", "orders", OTHER, "", "k3", "10.0.0.1:10911", 7, 3, 0, "0A", "false"
)


@pytest.mark.parametrize("wanted", [ID, "k2"])
def test_a_life_is_drawn_in_order_with_attempts_costs_and_outcomes(wanted: str) -> None:
    body = (SECOND + FAILED + NEIGHBOUR + SENT + STRANGE + FIRST + RECALLED + ENDED + SENT).encode()
    steps = life_of(wanted, decode_trace(body))
    drawn = [
        (step.time_ms, step.event, step.group, step.outcome, step.cost_ms, step.attempt) for step in steps
    ]
    assert drawn == [
        (1000, "sent", "shop", "success", 3, None),
        (1003, "stored", "shop", "success", None, None),
        (1100, "transaction ended", "shop", "COMMIT_MESSAGE, by a check", None, None),
        (1150, "recalled", "shop", "failed", None, None),
        (1200, "delivered", "billing", "failed", 15, 1),
        (11_200, "delivered", "billing", "no answer yet", None, 2),
    ]
    assert steps[0].host == "10.0.1.1" and steps[1].host == "10.0.0.1:10911"


def test_what_happens_in_one_millisecond_is_drawn_in_the_order_of_a_life() -> None:
    ended = ENDED.replace("1100", "1003")
    events = [step.event for step in life_of("k1", decode_trace((ended + SENT).encode()))]
    assert events == ["sent", "stored", "transaction ended"]


def test_a_send_that_failed_was_stored_nowhere() -> None:
    (step,) = life_of("k3", decode_trace(NEIGHBOUR.encode()))
    assert (step.event, step.outcome, step.message_id) == ("sent", "failed", OTHER)
    assert life_of("k4", decode_trace(NEIGHBOUR.encode())) == []
