"""Whatever a peer answers, a client, command, handover, reader or drill ends with a value or an error that has a name.

The peer is name server and every broker at once (`tests.peers.odd_peer`): it cuts answers, sends other types, enormous
counts and other codes. Time and memory have a bound.
"""

from __future__ import annotations

import ast
import resource
import threading
from pathlib import Path

import pytest

from tests.peers.askers import ASKERS, Asker
from tests.peers.odd_peer import OddPeer
from tests.support.long_run import LONG
from tests.support.processes import ROOT

SEEDS = range(40 if LONG else 2)
PATIENCE_S = 120.0
GROWTH_KIB = 256 << 10


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("asker", ASKERS, ids=lambda asker: asker.name)
def test_odd_answers_end_in_a_value_or_an_error_that_has_a_name(
    asker: Asker, seed: int, tmp_path: Path
) -> None:
    failures: list[BaseException] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def run(address: str) -> None:
        try:
            asker.call(address, tmp_path)
        except BaseException as exc:
            failures.append(exc)

    with OddPeer((asker.name, seed), right=0.7).in_thread() as peer:
        thread = threading.Thread(target=run, args=(peer.address,), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"it never ends: {peer.asked.most_common(5)}"
        assert peer.asked.total() > 0
    if failures:
        raise failures[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


OPENERS = {
    "Connection", "open_connection", "AsyncConnection", "BlockingLinks", "AsyncLinks", "HTTPConnection", "Client",
    "Admin", "AsyncAdmin", "Producer", "AsyncProducer", "TransactionProducer", "AsyncTransactionProducer",
    "PullConsumer", "AsyncPullConsumer", "PushConsumer", "AsyncPushConsumer", "Kv", "AsyncKv", "Members",
}  # fmt: skip
"""Functions and classes by which a module asks a peer."""
ROOMS = ("ropewalk", "ha", "broker", "tools")
ELSEWHERE = {
    # `test_odd_answers` plays the peers of brokers, and `tests/bench` those of load generators: their own brokers.
    "broker.discovery.registrar", "broker.discovery.route_guard", "broker.discovery.route_finder",
    "broker.replication.block_repair", "broker.replication.slave.sync", "broker.replication.slave.master_search",
    "broker.replication.slave.rocketmq", "broker.replication.slave.hello",
    "tools.bench.client", "tools.bench.prepare",
    # The connections of brokers' own port, and a test's own broker.
    "broker.remoting.shell", "broker.processors", "ropewalk.testing",
}  # fmt: skip


def test_everything_that_asks_a_peer_is_in_the_registry() -> None:
    covered = {module for asker in ASKERS for module in asker.covers}
    found = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if any(
            isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in OPENERS
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert found - covered - ELSEWHERE == set(), "put them behind the odd peer: `tests.peers.askers`"
    assert (covered | ELSEWHERE) - found == set(), "these ask nobody any more"
