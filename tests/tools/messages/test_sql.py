"""`ropewalk consume --sql` and `pull --sql`: what is refused before a broker is asked, and what a broker gives."""

from __future__ import annotations

import subprocess

import pytest

from ropewalk.client.blocking.producer import Producer
from ropewalk.client.core.messages import Message
from ropewalk.testing import BrokerProcess
from tests.ropewalk.client.fake_cluster import FakeCluster
from tests.tools.conftest import RunCommand, command_environment, command_line


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--sql", "a >"), "the end where a property"),
        (("--sql", "a > 5", "--tags", "x"), "--tags and --sql do not go together"),
        (("--tags", "a = 5"), "an expression over properties is --sql"),
    ],
)
def test_what_no_broker_would_take_is_wrong_use(
    ropewalk: RunCommand, cluster: FakeCluster, words: tuple[str, ...], problem: str
) -> None:
    for command in ("consume", "pull"):
        ended = ropewalk(command, "T", *words)
        assert ended.status == 2
        assert problem in " ".join(ended.errors.split())
    assert not cluster.requests


@pytest.mark.slow
def test_messages_are_chosen_by_an_expression() -> None:
    with BrokerProcess({"enablePropertyFilter": "true"}) as process:
        with Producer(process.namesrv, group="shop") as producer:
            for number in range(20):
                producer.send("orders", Message(b"%d" % number, properties={"amount": str(number)}))

        def lines(*words: str) -> list[str]:
            ended = subprocess.run(
                command_line(*words, "-n", process.namesrv),
                env=command_environment(), capture_output=True, text=True, timeout=180, check=True,
            )  # fmt: skip
            return ended.stdout.splitlines()

        wanted = ("--sql", "amount BETWEEN 4 AND 6 OR amount = 19")
        assert sorted(lines("consume", "orders", *wanted)) == ["19", "4", "5", "6"]
        assert sorted(lines("consume", "orders", *wanted, "--group", "audit")) == ["19", "4", "5", "6"]
        assert "1 message" in lines("pull", "orders", "--sql", "amount = 0 OR amount IS NULL", "-q", "0")[
            0
        ] or ("0 messages" in lines("pull", "orders", "--sql", "amount = 0", "-q", "0")[0])
