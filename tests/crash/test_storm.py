"""Eight members of a group join, leave and die as processes: nothing is lost, order is kept, little comes twice."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ropewalk.testing import RopewalkBroker
from tests.crash.storm import CONCURRENT, ORDERLY, Line, Plan, Report, judge, read
from tests.support.processes import ROOT, checkout_environment

QUEUES = 16


@pytest.mark.crash
@pytest.mark.slow
def test_a_storm_of_rebalances_is_survived(
    ropewalk_broker: RopewalkBroker, tmp_path: Path, long_run: bool
) -> None:
    topic = ropewalk_broker.topic(queues=QUEUES)
    plan = Plan(
        namesrv=ropewalk_broker.namesrv,
        topic=topic,
        folder=str(tmp_path),
        seconds=120.0 if long_run else 12.0,
        seed=1,
        orderly_deaths=long_run,
        settle_s=120.0 if long_run else 40.0,
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.storm", json.dumps(asdict(plan))],
        cwd=ROOT, env=checkout_environment(), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = Report(**json.loads(done.stdout))
    assert report.sent > 50, "the producer was hardly heard"
    assert report.joins >= 2 * 8 and report.leaves > 3 and report.deaths > 2, report
    assert set(report.exits) == {0}, done.stderr
    for group in (ORDERLY, CONCURRENT):
        verdict = judge(read(tmp_path, group), report.sent, report.killed, orderly=group == ORDERLY)
        assert not verdict.wrong, "\n".join([f"{group}:", *verdict.wrong[:10]])
        if group == ORDERLY and not plan.orderly_deaths:
            assert verdict.again == 0
        print(f"{group}: {report.sent} messages, {verdict.again} handled again")
    print(f"{report.joins} joined, {report.leaves} left, {report.deaths} were killed")


# -- the judge itself ------------------------------------------------------------------------------------


def story(*steps: str) -> list[Line]:
    """Lines of one queue: "a b 0" is member a beginning offset 0, "a e 0" its end."""
    lines = []
    for at, step in enumerate(steps, 1):
        member, what, offset = step.split()
        kind = {"b": "begin", "e": "end"}[what]
        lines.append(Line(at * 1_000_000_000, member, kind, 0, int(offset), int(offset)))
    return lines


@pytest.mark.parametrize(
    ("steps", "killed", "complaint"),
    [
        (["a b 0", "a e 0", "b b 1", "b e 1"], {}, ""),
        (["a b 0", "a e 0"], {}, "1 of 2 messages"),
        (["a b 0", "b b 0", "a e 0", "b e 0", "b b 1", "b e 1"], {}, "while a was at work"),
        (["a b 0", "a e 0", "b b 0", "b e 0", "b b 1", "b e 1"], {}, "a had not died"),
        (["a b 1", "a e 1", "a b 0", "a e 0"], {}, "began 1 after -1"),
        (["a b 0", "b b 0", "b e 0", "b b 1", "b e 1"], {"a": 1_500_000_000}, ""),
        (["a b 0", "a e 0", "b b 0", "b e 0", "b b 1", "b e 1"], {"a": 2_500_000_000}, ""),
        (["a b 0", "a e 0", "a b 1", "a e 1", "b b 0", "b e 0", "b b 1", "b e 1"], {"a": 4_500_000_000}, ""),
        (["a b 0", "a e 0", "a b 0", "a e 0", "a b 1", "a e 1"], {}, "after its own 0"),
    ],
)
def test_the_judge_of_an_orderly_group_sees_what_is_wrong(
    steps: list[str], killed: dict[str, int], complaint: str
) -> None:
    wrong = judge(story(*steps), 2, killed, orderly=True).wrong
    assert complaint in " ".join(wrong) if complaint else not wrong


def test_the_judge_of_a_concurrent_group_wants_repeats_to_be_near_a_change() -> None:
    near = story("a b 0", "a e 0", "b b 0", "b e 0")
    verdict = judge(near, 1, {}, orderly=False)
    assert (verdict.wrong, verdict.again) == ([], 1)
    late = [*near[:2], Line(30_000_000_000, "b", "begin", 0, 0, 0), Line(31_000_000_000, "b", "end", 0, 0, 0)]
    assert "came again 28.0 s after" in judge(late, 1, {}, orderly=False).wrong[0]
    assert judge(late, 1, {"a": 25_000_000_000}, orderly=False).wrong == []
