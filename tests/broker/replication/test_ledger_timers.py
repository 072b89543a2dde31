"""Timer messages in a DLedger group: the next leader goes on where the last one was, and delivers what that did not."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.headers import RecallHandle
from tests.support.ledger_brokers import STEP_MS, LedgerBrokers, Member
from tests.support.long_run import LONG

SEEDS = range(40 if LONG else 2)


def bodies(member: Member) -> list[bytes]:
    return [record.body for record in member.stored("T")]


def send(leader: Member, body: bytes, seconds: int) -> str:
    """Send a timer message; return its recall handle."""
    properties = {
        "TIMER_DELAY_SEC": str(seconds),
        "UNIQ_KEY": f"7F0000010ABC18B4AAC2{body.hex().upper():0>12}",
    }
    answer = leader.connect().send("T", body, queueId=0, properties=properties)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext["recallHandle"]


def test_the_next_leader_repeats_no_timer_and_hears_recalls(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, recallMessageEnable=True) as group:
        old = group.leader()
        handles = [
            send(old, body, seconds) for seconds, body in ((1, b"1"), (2, b"2"), (10, b"10"), (11, b"11"))
        ]
        group.until(lambda: bodies(old) == [b"1", b"2"])
        followers = group.followers()
        group.until(lambda: all(bodies(each) == [b"1", b"2"] for each in followers))
        group.stop(int(old.id[1]))
        new = group.leader()
        assert RecallHandle.decode(handles[2]).topic == "T"
        ext = {"producerGroup": "g", "topic": "T", "recallHandle": handles[2]}
        group.until(lambda: new.connect().call(RequestCode.RECALL_MESSAGE, ext).code == ResponseCode.SUCCESS)
        group.until(lambda: b"11" in bodies(new))
        assert bodies(new) == [b"1", b"2", b"11"]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_timer_is_lost_or_early_and_only_the_last_turn_of_a_leader_repeats(
    seed: int, tmp_path: Path
) -> None:
    """Leaders are cut off and stopped while timers are due."""
    chance = random.Random(seed)
    due_ms: dict[bytes, int] = {}
    settled: Counter[bytes] = Counter()
    with LedgerBrokers(tmp_path) as group:
        for era in range(4):
            leader = group.leader()
            for number in range(6):
                body, seconds = b"%d.%d" % (era, number), chance.randrange(1, 5)
                send(leader, body, seconds)
                due_ms[body] = leader.clock.ms + seconds * 1_000
            for _ in range(chance.randrange(50, 250)):
                group.turn()
            # Every member shows these, and the progress that was logged behind them.
            settled |= Counter(bodies(leader))
            end = leader.broker.store.log.end_offset
            until_shown(group, end)
            index = int(leader.id[1])
            for _ in range(chance.randrange(50)):
                group.turn()
            if chance.random() < 0.5:
                group.stop(index)
                group.leader()
                started = group.start(index)
                started.clock.ms = group.leader().clock.ms
            else:
                group.apart.add(index)
                leader.cut_off()
                group.leader()
                for _ in range(chance.randrange(100)):
                    group.turn()
                group.apart.discard(index)
            before = Counter(bodies(group.leader()))
            assert {body for body, count in settled.items() if before[body] < count} == set(), "cut"
        group.until(lambda: due_ms.keys() <= set(bodies(group.leader())), lambda: f"{due_ms}")
        for _ in range(2_000 // STEP_MS):
            group.turn()
        records = group.leader().stored("T")
    counts = Counter(record.body for record in records)
    assert {body: (count, counts[body]) for body, count in settled.items() if counts[body] != count} == {}
    assert [record.body for record in records if record.store_timestamp < due_ms[record.body]] == []


def until_shown(group: LedgerBrokers, end: int) -> None:
    """Wait until all followers show the log up to `end`, and have had a tick since."""
    group.until(lambda: all(each.broker.store.readable_offset >= end for each in group.followers()))
    group.turn()
