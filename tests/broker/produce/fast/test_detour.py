"""Runs of sends that wait elsewhere first, half messages and timer messages: stored and answered as one by one."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.intake import ClientTemplates
from ropewalk.codes import RequestCode
from ropewalk.format.headers import RecallHandle
from tests.broker.harness import UNIQ, Client, InProcess, request, send_ext
from tests.broker.send_pairs import Pair, outcome, taken_queues
from tests.support.clocks import START_MS

V2 = RequestCode.SEND_MESSAGE_V2
TIMER, HALF = "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"
HOUR_MS = 3_600_000
_HALF = {"TRAN_MSG": "true", "PGROUP": "pg"}

_usual: st.SearchStrategy[dict[str, str]] = st.sampled_from(
    [_HALF, {"TIMER_DELIVER_MS": "time"}, {"TIMER_DELIVER_MS": "time"}, {"TIMER_DELAY_SEC": "90"}]
)
_asked: st.SearchStrategy[dict[str, str]] = st.sampled_from(
    [
        _HALF,
        {"TRAN_MSG": "true"},
        {**_HALF, "CHECK_IMMUNITY_TIME_IN_SECONDS": "60"},
        {**_HALF, "DELAY": "3"},
        {**_HALF, "TIMER_DELIVER_MS": "time"},
        {"TIMER_DELIVER_MS": "time", "DELAY": "0"},
        {"TIMER_DELIVER_MS": "time", "DELAY": "3"},
        {"TIMER_DELAY_SEC": "90", "TIMER_DELIVER_MS": "time"},
        {"TIMER_DELAY_MS": "90000"},
        {"TIMER_DELAY_MS": "time"},
        {"DELAY": "5"},
        {},
    ]
)
_more: st.SearchStrategy[dict[str, str]] = st.sampled_from(
    [
        {},
        {"TAGS": "A"},
        {"WAIT": "false"},
        {"REAL_QID": "1"},
        {"REAL_TOPIC": "U"},
        {"__transactionId__": "key"},
        {"__transactionId__": "other"},
        {"TIMER_OUT_MS": "time"},
        {"TRANSACTION_CHECK_TIMES": "3"},
        {"KEYS": "time"},
        {"KEYS": "key"},
        {"a%b": "c%d"},
        {"__CRC32#": "123"},
    ]
)
_keys = st.sampled_from(["K{n:04d}", "Cluster", "true"])
_ordinary = st.tuples(
    st.integers(0, 3), st.sampled_from([HOUR_MS, HOUR_MS + 999, 2 * HOUR_MS]), st.just(b"x")
)
_odd = st.tuples(
    st.sampled_from([0, 3, 4]),
    st.sampled_from([HOUR_MS, -1, 0, 1, 1000, 999 * HOUR_MS]),
    st.sampled_from([b"x", b"", b"z" * 400, b"z" * 401]),
)


@settings(max_examples=120)
@given(
    asked=st.one_of(_usual, _usual, _asked),
    more=st.one_of(st.just({}), st.just({"TAGS": "A"}), _more),
    key=st.one_of(st.just(UNIQ[:-4] + "{n:04d}"), _keys),
    key_first=st.booleans(),
    close=st.sampled_from(["", "\x02"]),
    messages=st.lists(_ordinary, min_size=1, max_size=24),
    odd=st.one_of(st.none(), st.tuples(st.integers(0, 24), _odd)),
    flag=st.sampled_from([0, 0, 0, 2]),
)
def test_a_run_of_messages_that_wait_is_stored_and_answered_as_one_by_one(
    pair: Pair,
    asked: dict[str, str],
    more: dict[str, str],
    key: str,
    key_first: bool,
    close: str,
    messages: list[tuple[int, int, bytes]],
    odd: tuple[int, tuple[int, int, bytes]] | None,
    flag: int,
) -> None:
    pair.gate.open()
    outcomes = []
    if odd is not None:
        messages = [*messages[: odd[0]], odd[1], *messages[odd[0] :]]
    for running, client in zip((pair.fast, pair.plain), pair.clients(), strict=True):
        for queue_id in range(4):
            client.send("T", b"warm", queueId=queue_id)
        client.session.fast = ClientTemplates()
        now = running.clock.ms

        def frame(n: int, queue_id: int, ahead_ms: int, body: bytes, now: int = now) -> bytes:
            values = {"time": str(now + ahead_ms), "key": key.format(n=n)}
            own = {"UNIQ_KEY": values["key"]}
            rest = {name: values.get(value, value) for name, value in {**asked, **more}.items()}
            text = "\x02".join(
                f"{name}\x01{value}"
                for name, value in ({**own, **rest} if key_first else {**rest, **own}).items()
            )
            ext: dict[str, Any] = {"queueId": queue_id, "properties": text + close}
            ext |= {"sysFlag": 4 if "TRAN_MSG" in asked else 0, "producerGroup": "pg"}
            return request(V2, send_ext("T", **ext), body, opaque=1000 + n, flag=flag)

        client.feed(frame(0, 0, HOUR_MS, b"x"))  # what the templates are made from
        running.settle()
        client.answers()
        mark, opened = running.broker.store.log.end_offset, dict(running.broker.transactions.halves.by_offset)
        data = b"".join(frame(n, *message) for n, message in enumerate(messages, 1))
        led_to = outcome(running, client, data, mark)
        halves = running.broker.transactions.halves.by_offset
        new = sorted(str(half) for offset, half in halves.items() if offset not in opened)
        outcomes.append((*led_to, taken_queues(running, TIMER), taken_queues(running, HALF), new))
    assert outcomes[0] == outcomes[1]


def send_of(n: int, **asked: str) -> bytes:
    text = "".join(
        f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": UNIQ[:-4] + f"{n:04d}", **asked}.items()
    )
    return request(V2, send_ext("T", queueId=n % 4, properties=text), b"body", opaque=1000 + n)


@pytest.mark.parametrize("asked", [{"TIMER_DELIVER_MS": ""}, {"TIMER_DELAY_SEC": "60"}, _HALF])
def test_of_a_known_header_no_message_is_judged_by_itself(
    client: Client, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]
) -> None:
    running = client.owner
    for n in range(4):
        client.send("T", b"warm", queueId=n)
    client = running.connect()

    def frame(n: int) -> bytes:
        late = {"TIMER_DELIVER_MS": str(START_MS + HOUR_MS + 1500 * n)} if "TIMER_DELIVER_MS" in asked else {}
        return send_of(n, **{**asked, **late})

    client.feed(b"".join(frame(n) for n in range(2)))
    sends = running.broker.processors.sends
    monkeypatch.setattr(sends, "place", None)
    client.feed(b"".join(frame(n) for n in range(2, 42)))
    running.settle()
    assert [c.code for c in client.answers()] == [0] * 42
    records = running.stored(HALF if asked is _HALF else TIMER)
    assert [r.properties["REAL_QID"] for r in records] == [str(n % 4) for n in range(42)]
    assert [r.properties["UNIQ_KEY"] for r in records] == [UNIQ[:-4] + f"{n:04d}" for n in range(42)]


def test_each_timer_of_a_run_has_its_own_slot_and_recall_handle(running: InProcess) -> None:
    client = running.connect()
    for n in range(4):
        client.send("T", b"warm", queueId=n)
    client = running.connect()
    times = [START_MS + HOUR_MS + 700 * n for n in range(30)]
    client.feed(send_of(0, TIMER_DELIVER_MS=str(times[0])))
    client.feed(b"".join(send_of(n, TIMER_DELIVER_MS=str(times[n])) for n in range(1, 30)))
    running.settle()
    slots = [(time - 1) // 1000 * 1000 for time in times]
    assert [int(r.properties["TIMER_OUT_MS"]) for r in running.stored(TIMER)] == slots
    handles = [RecallHandle.decode(answer.ext["recallHandle"]) for answer in client.answers()]
    broker = running.broker.config.broker_name
    assert handles == [
        RecallHandle("T", broker, slot + 1, UNIQ[:-4] + f"{n:04d}") for n, slot in enumerate(slots)
    ]
    running.tick(100)
    running.until(lambda: not running.broker.timers.offset_behind())
    assert running.broker.timers.pending() == 30


@pytest.mark.parametrize(("ahead_ms", "code", "at_once"), [(-1, 0, 1), (0, 0, 1), (999 * HOUR_MS, 13, 0)])
def test_a_time_of_a_run_that_is_past_or_too_far_is_judged_by_itself(
    running: InProcess, ahead_ms: int, code: int, at_once: int
) -> None:
    client = running.connect()
    for n in range(4):
        client.send("T", b"warm", queueId=n)
    client = running.connect()
    client.feed(send_of(0, TIMER_DELIVER_MS=str(START_MS + HOUR_MS)))
    ahead = {**dict.fromkeys(range(1, 30), HOUR_MS), 20: ahead_ms}
    client.feed(b"".join(send_of(n, TIMER_DELIVER_MS=str(START_MS + ms)) for n, ms in ahead.items()))
    running.settle()
    assert {c.opaque: c.code for c in client.answers() if c.code} == ({1020: code} if code else {})
    assert len(running.stored(TIMER)) == 29
    assert [m.body for m in running.stored("T", 0)] == [b"warm"] + [b"body"] * at_once
