"""Timer messages in a DLedger group: the next leader goes on where the last one was, for good and for what was cut."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from broker.remoting.shell import Shell
from broker.replication.ledger_sync import LedgerSync
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format import fastjson
from tests.support.ledger_brokers import STEP_MS, LedgerBrokers, Member
from tests.support.long_run import LONG

SEEDS = range(40 if LONG else 2)
ERAS = 4
CODES = (RequestCode.ROPEWALK_LEDGER_STATUS, RequestCode.GET_TIMER_METRICS)


class FlushedShell:
    """A shell that owes nobody anything."""

    def flush(self) -> None: ...


def bodies(member: Member) -> list[bytes]:
    return [record.body for record in member.stored("T")]


def copy_tables(leader: Member, follower: Member) -> int:
    """Have a follower hear of its leader's timers, as it does once a second; return where the copies end."""
    broker = follower.broker
    sync = LedgerSync(
        broker.context, follower.member.ledger, broker, cast(Shell, FlushedShell()), broker.delays.follow
    )
    client = leader.connect()
    tables = {}
    for code in CODES:
        data = client.call(code).body
        value = fastjson.loads(data)
        assert isinstance(value, dict)
        tables[code] = value, data
    sync.adopt(tables)
    end = tables[RequestCode.ROPEWALK_LEDGER_STATUS][0]["timers"][0]
    assert isinstance(end, int)
    return end


def send(leader: Member, body: bytes, seconds: int) -> None:
    answer = leader.connect().send("T", body, queueId=0, properties={"TIMER_DELAY_SEC": str(seconds)})
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_a_follower_that_leads_delivers_no_timer_again_that_was_delivered_for_good(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = group.leader()
        for seconds, body in ((1, b"early"), (2, b"soon"), (10, b"later")):
            send(old, body, seconds)
        timers = old.broker.timers
        group.until(lambda: bodies(old) == [b"early", b"soon"])
        group.until(lambda: timers.committed_progress()[1] == timers.timers.read_ms)
        followers = group.followers()
        for follower in followers:
            copy_tables(old, follower)
        group.until(lambda: all(each.broker.timers.timers.queue_offset == 3 for each in followers))
        group.stop(int(old.id[1]))
        new = group.leader()
        group.until(lambda: b"later" in bodies(new))
        assert bodies(new) == [b"early", b"soon", b"later"]
        assert new.broker.timers.pending() == 0


def until_shown(group: LedgerBrokers, end: int) -> None:
    """Wait until all followers show the log up to `end`, and have had a tick since."""
    group.until(lambda: all(each.broker.store.readable_offset >= end for each in group.followers()))
    group.turn()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_timer_is_lost_or_early_or_repeated_that_followers_had_heard_of(seed: int, tmp_path: Path) -> None:
    """Leaders are cut off and stopped while timers are due; what a follower had heard of never comes again."""
    chance = random.Random(seed)
    due_ms: dict[bytes, int] = {}
    settled: Counter[bytes] = Counter()
    with LedgerBrokers(tmp_path) as group:
        for era in range(ERAS):
            leader = group.leader()
            for number in range(6):
                body, seconds = b"%d.%d" % (era, number), chance.randrange(1, 5)
                try:
                    send(leader, body, seconds)
                except (RopewalkError, AssertionError):
                    continue
                due_ms[body] = leader.clock.ms + seconds * 1_000
            for _ in range(chance.randrange(2, 5)):
                for _ in range(1_000 // STEP_MS):
                    group.turn()
                end = min([copy_tables(leader, follower) for follower in group.followers()])
                until_shown(group, end)
                settled |= Counter(record.body for record in leader.stored("T") if record.offset < end)
            index = int(leader.id[1])
            for _ in range(chance.randrange(50)):
                group.turn()  # delivers what nobody hears of
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
        group.until(
            lambda: due_ms.keys() <= set(bodies(group.leader())), lambda: f"{due_ms} {bodies(group.leader())}"
        )
        for _ in range(2_000 // STEP_MS):
            group.turn()
        records = group.leader().stored("T")
    counts = Counter(record.body for record in records)
    assert {body for body, count in settled.items() if counts[body] != count} == set()
    assert max(counts.values()) <= 1 + ERAS
    assert [record.body for record in records if record.store_timestamp < due_ms.get(record.body, 0)] == []
