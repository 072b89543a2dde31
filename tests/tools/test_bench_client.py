"""`ropewalk bench --client`: the library's own load, counted as strictly as the raw sender's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.client.fake_cluster import FakeCluster
from tests.tools.conftest import Ended, RunCommand
from tools.bench import report, runner
from tools.bench.client import run_client
from tools.bench.spec import ClientSpec, Outcome

SHORT = ("--warm-up", "0.1", "--duration", "0.4", "--body-size", "200")


@pytest.fixture(autouse=True)
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the bench echoes: it does so past the standard output that a test replaced."""
    lines: list[str] = []
    monkeypatch.setattr("tools.bench.cli.typer.echo", lambda text, err=False: lines.append(text))
    return lines


def bench(
    run: RunCommand, broker: RopewalkBroker, printed: list[str], *words: str
) -> tuple[Ended, dict[str, Any]]:
    """Run a bench; run it again where the machine stood still for all of the short time that is measured."""
    for _ in range(5):
        ended = run("bench", *words, "--json", name_server=broker.namesrv)
        document: dict[str, Any] = json.loads(printed[-1])
        if document["void"] != Outcome().why_void():
            break
    return ended, document


@pytest.mark.parametrize("mode", ["sync", "async", "batched"])
def test_what_producers_get_is_what_the_topic_holds(
    ropewalk: RunCommand, ropewalk_broker: RopewalkBroker, printed: list[str], mode: str
) -> None:
    topic = ropewalk_broker.topic()
    words = ("produce", "--client", mode, "--topic", topic, "--in-flight", "8", *SHORT)
    ended, document = bench(ropewalk, ropewalk_broker, printed, *words)
    assert ended.status == 0 and document["valid"], document
    assert document["sender"] == f"client library, {mode}" and document["command"] == "produce"
    assert document["rate"] > 0 and document["latencyMs"]["p50"] > 0
    held = sum(
        ropewalk_broker.client.max_offset(topic, queue) for queue in ropewalk_broker.client.read_queues(topic)
    )
    # The warm-up's, those that were measured, and those that were on their way at the end.
    assert document["messages"] <= held
    assert document["messages"] == document["replies"]


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_consumers_read_the_backlog_over_and_over(
    ropewalk: RunCommand, ropewalk_broker: RopewalkBroker, printed: list[str], mode: str
) -> None:
    topic = ropewalk_broker.name("backlog")
    words = ("pull", "--client", mode, "--topic", topic, "--backlog", "500", *SHORT)
    ended, document = bench(ropewalk, ropewalk_broker, printed, *words, "--duration", "1.5")
    assert ended.status == 0 and document["valid"], document
    assert document["sender"] == f"client library, {mode}" and document["command"] == "pull"
    assert document["messages"] > 0 and document["spec"]["backlog"] >= 500


def test_a_refusal_voids_the_rate(cluster: FakeCluster) -> None:
    cluster.create_topic("T")
    cluster.answers[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(
        ResponseCode.FLUSH_SLAVE_TIMEOUT, ext={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}
    )
    spec = ClientSpec(name_servers=cluster.address, topic="T", mode="sync", warm_up_s=0, duration_s=0.2)
    outcome = run_client(spec)
    assert not outcome.is_valid and outcome.messages == 0
    assert "FLUSH_SLAVE_TIMEOUT" in (outcome.why_void() or "")
    assert report.as_document(spec, outcome, "")["valid"] is False


def test_nobody_there_is_told_and_ends_the_load() -> None:
    for mode in ("sync", "async"):
        spec = ClientSpec(
            name_servers="127.0.0.1:1", topic="T", mode=mode, warm_up_s=0, duration_s=5, reply_timeout_s=0.5
        )
        outcome = run_client(spec)
        assert outcome.error is not None and "no name server" in outcome.error


def test_the_row_says_that_it_is_the_client_library(cluster: FakeCluster) -> None:
    cluster.create_topic("T")
    spec = ClientSpec(
        name_servers=cluster.address, topic="T", mode="async", in_flight=7, duration_s=0.5, warm_up_s=0
    )
    outcome = runner.run_load(spec)
    assert outcome.is_valid, outcome
    table = report.as_table(spec, outcome, "A0")
    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert "json, client library, async" in cells and "1 process x 7" in cells


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("produce", "--client", "fast"), "none of: sync, async, batched"),
        (("pull", "--client", "sync"), "none of: pull, push"),
        (("produce", "--client", "sync", "--rate", "5"), "the raw sender's"),
        (("produce", "--client", "sync", "--binary"), "the raw sender's"),
        (("pull", "--client", "push", "--connections", "2"), "the raw sender's"),
    ],
)
def test_wrong_use_is_told(ropewalk: RunCommand, words: tuple[str, ...], text: str) -> None:
    ended = ropewalk("bench", *words)
    assert ended.status == 2 and text in ended.errors, ended
