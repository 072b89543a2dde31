"""SQL92 filters beside Apache RocketMQ: its clients on our broker, and its evaluator on our rows."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from ropewalk.filter.sql92 import SqlSyntaxError, compile_filter
from ropewalk.filter.sql92.tokens import NAME_SIZE_MAX
from tests.bench.peers.rocketmq.artifacts import compiled, program
from tests.compat.driver import Driver, Run
from tests.ropewalk.filter.sql92.rows import ALL_ROWS, REFUSED, TRAILING

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SOURCE = Path(__file__).with_name("java") / "filter" / "Evaluate.java"
SUBSCRIPTION_PARSE_FAILED = 23


def by_member(run: Run, scenario: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for event in run.events(scenario, "received"):
        found[event["member"]].append(event["message"]["body"])
    return {member: sorted(bodies) for member, bodies in found.items()}


def test_two_groups_of_one_topic_get_what_their_expressions_let_through(run: Run) -> None:
    assert by_member(run, "sql_push") == {
        "large": sorted(f"{when} {n}" for when in ("early", "late") for n in range(30, 40)),
        "odd": sorted(f"{when} {n}" for when in ("early", "late") for n in range(1, 10, 2)),
    }


def test_a_retried_message_comes_back_to_an_sql_group(run: Run) -> None:
    assert run.one("sql_retry", "seen")["bodies"] == ["m 7/0", "m 7/1"]


def test_pull_consumers_of_both_kinds_filter(run: Run, driver: Driver) -> None:
    assert by_member(run, "sql_pull") == {
        "old": ["pull 42", "pull 44", "pull 46", "pull 48"],
        "lite": ["pull 3", "pull 33"],
    }
    none = run.one("sql_pull", "none")
    assert (none["status"], none["next"]) == ("NO_MATCHED_MSG", none["end"])


def test_a_consumer_with_a_bad_expression_does_not_start(run: Run) -> None:
    assert run.one("sql_refused", "refused")["code"] == SUBSCRIPTION_PARSE_FAILED


def test_rocketmqs_own_evaluator_says_the_same_of_every_row(tools_classpath: str) -> None:
    texts = [text for text, _ in REFUSED if "\ud800" not in text]
    questions = [
        "\x01".join([text, *[part for pair in properties.items() for part in pair]])
        for text, properties, _ in ALL_ROWS
    ]
    questions += texts + [text for text, _, _ in TRAILING]
    done = subprocess.run(
        [
            program("java"),
            "-Xmx128m",
            "-cp",
            f"{compiled([SOURCE], tools_classpath)}:{tools_classpath}",
            "Evaluate",
        ],
        input="".join(f"{question.encode().hex()}\n" for question in questions),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answers = done.stdout.split()
    assert len(answers) == len(questions)
    rows = zip(ALL_ROWS, answers, strict=False)
    assert [row for row, answer in rows if (answer == "true") is not row[2]] == []
    for text, answer in zip(texts, answers[len(ALL_ROWS) :], strict=False):
        if len(text) > NAME_SIZE_MAX and "'" not in text and "9" not in text:
            continue  # our own bound
        try:
            compile_filter(text)
            refused = False
        except SqlSyntaxError:
            refused = True
        assert refused is (answer == "refused"), (text, answer)
    assert "refused" not in answers[-len(TRAILING) :], "the original ignores what follows"
