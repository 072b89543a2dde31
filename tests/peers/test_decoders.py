"""No answer of a peer, however odd, is more than an answer: a value, or an error that has a name.

Each reader of a peer's bytes is given odd neighbours of what peers say. It may take memory by the size of what it was
given and no more, and every value that members read from each other can be written again.
"""

from __future__ import annotations

import ast
import random
import tracemalloc
from collections.abc import Iterator

import pytest

from ropewalk.errors import RopewalkError
from tests.peers.decoders import DECODERS, Decoder
from tests.peers.mutate import mutated
from tests.support.imports import sources
from tests.support.long_run import LONG

COUNT = 1_000_000 // len(DECODERS) if LONG else 60
MEASURED = 20
"""Inputs whose memory is measured, of each decoder: it takes ten times as long."""

LOADERS = {"loads", "decode_untrusted"}
"""A function that calls one of these, or `decode` of msgspec, reads bytes."""
NAMED = (
    "decode_",
    "read_frame",
    "parse_route",
    "parse_properties",
    "parse_message_id",
    "check_run",
    "from_frame",
)
OWN = {
    # What this process or its helpers wrote, or a person did.
    "broker.config_files", "broker.state.json_file", "broker.replication.role_files", "broker.process.launch",
    "broker.replication.dledger.peer_notes", "broker.timers.delay_progress", "broker.timers.timer_copies",
    "ha.dledger.kept", "ropewalk.client.aio.offset_file", "ropewalk.testing", "ropewalk.format.checkpoint",
    "ropewalk.format.index", "ropewalk.format.sidecar", "broker.replication.dledger.state", "ropewalk.format.kv.entry",
}  # fmt: skip
PARTS = {
    # They take what another reader of this list returns, or are one with it: that one is given the odd bytes.
    "ropewalk.format.remoting:_decode_json", "ropewalk.format.remoting:_decode_binary",
    "ropewalk.format.remoting:_decode_binary_ext", "ropewalk.format.remoting:_object",
    "ropewalk.format.sliced_json:_Reader._run", "ropewalk.format.sliced_json:_Reader._small",
    "ropewalk.format.remoting:_read_fields",
    "ropewalk.format.fastjson:_loads", "ropewalk.format.record:_decode_ordinary", "ropewalk.format.record:read_frame",
    "ropewalk.format.record:decode_host", "ropewalk.format.headers:json_decoder",
    "ropewalk.format.kv.items:decode_operations", "ropewalk.format.kv.items:decode_results",
    "ropewalk.format.kv.items:decode_values", "ropewalk.client.core.consume.received:decode_received",
    "ropewalk.client.kv.operations:result_untrusted", "ropewalk.client.kv.reads:_page_untrusted",
    # They ask a peer themselves: `test_odd_answers` plays it.
    "broker.replication.slave.peer:timer_counts", "broker.replication.slave.rocketmq:RocketMQTables._table",
    "ropewalk.format.kv.items:_decode", "broker.namesrv.registration:_json", "ropewalk.client.kv.asking:decoded",
}  # fmt: skip


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_an_odd_answer_is_a_value_or_an_error_that_has_a_name(decoder: Decoder) -> None:
    for sample in decoder.samples:
        decoder.call(sample)
    rng = random.Random(decoder.name)
    allowed: tuple[type[Exception], ...] = (RopewalkError, *decoder.errors)
    for number in range(COUNT):
        data = mutated(rng, decoder.form, rng.choice(decoder.samples))
        try:
            decoder.call(data)
        except allowed:
            pass
        except Exception as exc:
            raise AssertionError(f"input {number} of {decoder.name}: {exc!r} for {data[:300]!r}") from exc


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_an_odd_answer_takes_memory_by_its_own_size(decoder: Decoder) -> None:
    """A number that says how much is to come must reserve nothing before it came."""
    rng = random.Random(f"memory of {decoder.name}")
    allowed: tuple[type[Exception], ...] = (RopewalkError, *decoder.errors)
    decoder.call(decoder.samples[0])  # what is made at the first call and kept
    for _ in range(MEASURED):
        data = mutated(rng, decoder.form, rng.choice(decoder.samples))
        tracemalloc.start()
        try:
            decoder.call(data)
        except allowed:
            pass
        finally:
            _now, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak <= (4 << 20) + 200 * len(data), f"{peak} bytes for {len(data)}: {data[:200]!r}"


def test_the_readers_of_peers_bytes_are_all_in_the_list() -> None:
    listed = {decoder.name.partition("[")[0] for decoder in DECODERS}
    found = {name for name in readers() if name.partition(":")[0] not in OWN and name not in PARTS}
    assert found - listed == set()


def readers() -> Iterator[str]:
    """Yield the functions that read bytes by their names or by what they call: `module:function`."""
    for path, source in sources().items():
        if not path.startswith(("ropewalk/", "broker/", "ha/")) or path.startswith("ropewalk/spark/"):
            continue
        module = path.removesuffix(".py").replace("/", ".")
        for node in ast.parse(source).body:
            inside = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for each in inside:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and _reads(each):
                    yield f"{module}:{prefix}{each.name}"


def _reads(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if function.name.startswith(NAMED) or function.name.endswith("_untrusted"):
        return True
    if any(isinstance(each, ast.Name) and each.id == "_reads_a_peer" for each in function.decorator_list):
        return True
    return any(_loads(node) for node in ast.walk(function) if isinstance(node, ast.Call))


def _loads(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name.rpartition(".")[2] == "loads" or name in ("msgspec.json.decode", "msgspec.msgpack.decode")
