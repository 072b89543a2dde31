"""The bench's promise: every reply is counted or complained about, and a figure that is void says so."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from ropewalk.client.core.addresses import parse_address
from ropewalk.format.batch import split_batch
from ropewalk.format.properties import parse_properties
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.bench import responder as trivial
from tests.tools.conftest import command_environment, command_line
from tools.bench import app, prepare, report, runner, server
from tools.bench.frames import OPAQUE_FIRST, SendPattern
from tools.bench.link import Link, LoadFailed, parse_replies
from tools.bench.load import run
from tools.bench.pull import count_records, starting_points
from tools.bench.spec import Outcome, ProduceSpec, PullSpec, Serialization

Answer = Callable[[list[Command]], bytes | None]
"""Requests of one read in, bytes to send out; None hangs up."""

RECORD = struct.pack(">i", 40) + bytes(36)


class Responder(threading.Thread):
    """A server on a free port that answers as a test wants it to."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(daemon=True)
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._wake_reader, self._wake_writer = os.pipe()
        self.requests: list[Command] = []

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def run(self) -> None:
        peers: dict[int, tuple[socket.socket, FrameBuffer]] = {}
        listening = self._listener.fileno()
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._wake_reader in ready:
                break
            for fd in ready:
                if fd == listening:
                    sock = self._listener.accept()[0]
                    peers[sock.fileno()] = (sock, FrameBuffer())
                    poll.register(sock.fileno(), select.POLLIN)
                elif not self._serve(*peers[fd]):
                    poll.unregister(fd)
                    peers.pop(fd)[0].close()
        for sock, _ in peers.values():
            sock.close()

    def _serve(self, sock: socket.socket, frames: FrameBuffer) -> bool:
        try:
            data = sock.recv(1 << 16)
            commands = [decode_frame(payload) for payload in frames.feed(data)]
            self.requests += commands
            reply = self._answer(commands) if commands else b""
            if not data or reply is None:
                return False
            sock.sendall(reply)
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.write(self._wake_writer, b"x")
        self.join()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._listener.close()


@contextmanager
def serving(answer: Answer) -> Iterator[Responder]:
    responder = Responder(answer)
    responder.start()
    try:
        yield responder
    finally:
        responder.close()


def accepted(request: Command) -> bytes:
    return encode_frame(request.reply(0, ext={"msgId": "A", "queueId": "0", "queueOffset": "7"}))


def accept_all(requests: list[Command]) -> bytes:
    return b"".join(map(accepted, requests))


class EveryTenth:
    """Accepts all requests but every tenth, whose answer is what `instead` makes of it."""

    def __init__(self, instead: Callable[[Command], bytes], *, once: bool = False) -> None:
        self._instead = instead
        self._once = once
        self._seen = 0

    def __call__(self, requests: list[Command]) -> bytes:
        return b"".join(map(self._one, requests))

    def _one(self, request: Command) -> bytes:
        self._seen += 1
        different = self._seen == 10 if self._once else self._seen % 10 == 0
        return self._instead(request) if different else accepted(request)


def load(
    port: int,
    *,
    connections: int = 2,
    in_flight: int = 8,
    batch: int = 1,
    serialization: Serialization = "json",
    rate: float | None = None,
    duration_s: float = 0.3,
    reply_timeout_s: float = 5.0,
) -> ProduceSpec:
    return ProduceSpec(
        host="127.0.0.1",
        port=port,
        topic="bench",
        connections=connections,
        in_flight=in_flight,
        body_size=64,
        batch=batch,
        serialization=serialization,
        rate=rate,
        warm_up_s=0.0,
        duration_s=duration_s,
        reply_timeout_s=reply_timeout_s,
    )


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("serialization", ["json", "binary"])
def test_a_clean_run_counts_every_reply_and_is_valid(serialization: Serialization, in_flight: int) -> None:
    with serving(accept_all) as responder:
        outcome = run(load(responder.port, serialization=serialization, in_flight=in_flight))
    assert outcome.why_void() is None
    assert outcome.is_valid
    # All that was asked was answered in the window, but for what was in flight at its end.
    assert 0 <= len(responder.requests) - outcome.replies <= 2 * in_flight
    assert outcome.messages == outcome.replies > 0
    assert outcome.body_bytes == outcome.messages * 64
    assert outcome.latency is not None
    assert 0 < outcome.latency.p50 <= outcome.latency.p99 <= outcome.latency.p999 <= outcome.latency.max


def test_a_server_may_answer_in_its_own_serialisation_and_in_any_order() -> None:
    def reversed_binary(requests: list[Command]) -> bytes:
        for request in requests:
            request.serialize_type = 1
        return b"".join(map(accepted, reversed(requests)))

    with serving(reversed_binary) as responder:
        outcome = run(load(responder.port))
    assert outcome.is_valid


def test_replies_cut_at_any_byte_and_of_mixed_serialisations_are_put_together() -> None:
    requests = [Command(310, opaque=number, serialize_type=number % 2) for number in range(4)]
    data = accept_all(requests)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        link = Link(ours, 0)
        for cut in range(1, len(data)):
            found: list[int] = []
            for piece in (data[:cut], data[cut:]):
                theirs.sendall(piece)
                frames, count = link.receive()
                found += parse_replies(frames, count)[0] if count else []
            assert found == [0, 1, 2, 3]
        assert link.receive() == (b"", 0)


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("serialization", ["json", "binary"])
def test_a_reply_that_is_not_status_0_is_counted_apart_and_voids_the_rate(
    serialization: Serialization, in_flight: int
) -> None:
    answer = EveryTenth(lambda request: encode_frame(request.reply(2, "broker busy, period in queue: 201ms")))
    with serving(answer) as responder:
        outcome = run(load(responder.port, serialization=serialization, in_flight=in_flight))
    assert not outcome.is_valid
    assert set(outcome.refused) == {"2"}
    # The last requests are refused after the window, and count as refusals all the same.
    assert outcome.refused["2"] == len(responder.requests) // 10
    assert outcome.messages > 0
    assert outcome.replies >= outcome.messages + outcome.refused["2"] - 2 * in_flight
    assert "broker busy, period in queue: 201ms" in (outcome.why_void() or "")


@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_wrong_opaque_ends_the_load(in_flight: int) -> None:
    def wrong(request: Command) -> bytes:
        request.opaque += 5_000
        return accepted(request)

    with serving(EveryTenth(wrong, once=True)) as responder:
        outcome = run(load(responder.port, in_flight=in_flight))
    assert not outcome.is_valid
    assert "wrong opaque" in (outcome.why_void() or "")


def test_a_second_reply_to_one_request_ends_the_load() -> None:
    with serving(EveryTenth(lambda request: accepted(request) * 2, once=True)) as responder:
        outcome = run(load(responder.port))
    assert "second reply" in (outcome.why_void() or "")


def test_a_reply_on_the_wrong_connection_is_noticed() -> None:
    # Both connections ask the same things of the same server, but never with the same opaque.
    with serving(accept_all) as responder:
        run(load(responder.port))
    opaques = Counter(request.opaque for request in responder.requests)
    assert set(opaques.values()) == {1}


def test_a_reply_that_never_comes_is_missed_though_the_others_keep_coming() -> None:
    with serving(EveryTenth(lambda request: b"", once=True)) as responder:
        outcome = run(load(responder.port, reply_timeout_s=0.3))
    assert outcome.messages > 0
    assert outcome.missing == 1
    assert not outcome.is_valid
    assert outcome.why_void() == "1 replies never came"


def test_a_server_that_falls_silent_ends_the_load() -> None:
    with serving(lambda requests: b"") as responder:
        outcome = run(load(responder.port, reply_timeout_s=0.1, duration_s=5.0))
    assert outcome.error == "no reply for 0.1 s with 16 requests unanswered"


def test_a_closed_connection_is_named() -> None:
    with serving(lambda requests: None) as responder:
        outcome = run(load(responder.port, connections=1))
    assert not outcome.is_valid
    assert "connection 0" in (outcome.error or "")


def test_a_port_that_nobody_listens_on_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    outcome = run(load(port))
    assert f"127.0.0.1:{port} does not accept connections" in (outcome.error or "")


@pytest.mark.parametrize(
    "garbage", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"HTTP/1.1 400 Bad Request\r\n"]
)
def test_bytes_that_cannot_be_a_frame_end_the_load(garbage: bytes) -> None:
    with serving(lambda requests: garbage) as responder:
        outcome = run(load(responder.port))
    assert "frame length" in (outcome.error or "")


def test_a_header_that_cannot_be_read_ends_the_load() -> None:
    with serving(lambda requests: struct.pack(">ii", 8, 4) + b"{oops"[:4]) as responder:
        outcome = run(load(responder.port))
    assert "cannot be read" in (outcome.error or "")


def test_a_batch_counts_as_many_messages_as_it_holds() -> None:
    with serving(accept_all) as responder:
        outcome = run(load(responder.port, batch=5))
    assert outcome.is_valid
    assert outcome.messages == 5 * outcome.replies
    assert {request.code for request in responder.requests} == {320}


def test_a_fixed_rate_sends_what_was_due_and_measures_from_then() -> None:
    stalled = False

    def stall_once(requests: list[Command]) -> bytes:
        nonlocal stalled
        if not stalled:
            stalled = True
            time.sleep(0.2)
        return accept_all(requests)

    with serving(stall_once) as responder:
        outcome = run(load(responder.port, rate=500, duration_s=0.5))
    assert outcome.is_valid
    assert abs(outcome.messages - 250) <= 2
    assert outcome.latency is not None
    # The stall is charged to all 100 requests that were due during it, and not to the first alone.
    assert outcome.latency.max >= 190_000
    assert outcome.latency.p50 < outcome.latency.max
    opened = [request.opaque for request in responder.requests]
    assert len(set(opened)) == len(opened)


@pytest.mark.parametrize("serialization", ["json", "binary"])
@pytest.mark.parametrize("topic", ["bench", "%RETRY%bench"])
@given(
    queues=st.integers(1, 12),
    first_queue=st.integers(0, 11),
    count=st.integers(1, 20),
    number=st.integers(OPAQUE_FIRST, (1 << 31) - 20),
)
def test_every_frame_of_a_pattern_is_what_a_client_would_send(
    serialization: Serialization, topic: str, queues: int, first_queue: int, count: int, number: int
) -> None:
    spec = ProduceSpec(
        host="h", port=1, topic=topic, queues=queues, body_size=100, serialization=serialization
    )
    pattern = SendPattern(spec, 20)
    pattern.stamp(1_700_000_000_123)
    first_queue %= queues
    data = pattern.take(first_queue, range(number, number + count))
    commands = [decode_frame(payload) for payload in FrameBuffer().feed(data)]
    assert [command.opaque for command in commands] == list(range(number, number + count))
    assert [int(command.ext["e"]) for command in commands] == [
        (first_queue + index) % queues for index in range(count)
    ]
    keys = set()
    for command in commands:
        assert (command.code, command.serialize_type) == (310, 1 if serialization == "binary" else 0)
        assert command.ext["b"] == topic
        assert command.ext["g"] == "1700000000123"
        assert len(command.body) == 100
        properties = parse_properties(command.ext["i"])
        assert properties["WAIT"] == "true"
        assert len(properties["UNIQ_KEY"]) == 32
        keys.add(properties["UNIQ_KEY"])
    assert len(keys) == count


@pytest.mark.parametrize("serialization", ["json", "binary"])
def test_every_message_of_a_batch_frame_has_a_key_of_its_own(serialization: Serialization) -> None:
    spec = ProduceSpec(host="h", port=1, topic="t", batch=3, body_size=7, serialization=serialization)
    pattern = SendPattern(spec, 2)
    pattern.stamp(1_700_000_000_123)
    data = pattern.take(3, range(OPAQUE_FIRST, OPAQUE_FIRST + 2))
    frames = [decode_frame(payload) for payload in FrameBuffer().feed(data)]
    items = [item for frame in frames for item in split_batch(frame.body)]
    assert [frame.ext["m"] for frame in frames] == ["true", "true"]
    assert len(items) == 6
    assert {item.body for item in items} == {b"ropewalk-"[:7]}
    assert len({parse_properties(item.properties)["UNIQ_KEY"] for item in items}) == 6


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.floats(0.001, 1.0))
def test_a_percentile_is_the_value_at_its_rank(values: list[int], fraction: float) -> None:
    rank = max(1, -(-len(values) * fraction // 1))
    expected = sorted(values)[int(rank) - 1]
    below = sorted(values)[max(0, int(rank) - 2)]
    assert report.percentiles(Counter(values), (fraction,))[0] in (expected, below)


def test_percentiles_of_a_thousand_distinct_values_are_exact() -> None:
    histogram = dict.fromkeys(range(1, 1001), 1)
    assert report.percentiles(histogram, (0.5, 0.99, 0.999, 1.0)) == [500, 990, 999, 1000]


def test_an_outcome_with_refusals_gives_its_rate_and_calls_it_void() -> None:
    outcome = Outcome(messages=1000, seconds=2.0, refused={"2": 3}, server_cpu_s=0.01)
    document = report.as_document(load(1), outcome, "A0")
    assert (document["rate"], document["valid"]) == (500.0, False)
    assert document["void"] == "3 replies with code 2"
    assert document["serverCpuSecondsPerMillion"] == 10.0


def test_nothing_acknowledged_is_no_rate() -> None:
    assert Outcome().why_void() == "nothing was acknowledged in the measured time"


@pytest.mark.parametrize(
    "wrong", [{"queues": 0}, {"in_flight": 0}, {"body_size": 0}, {"rate": 0.0}, {"duration_s": 0.0}]
)
def test_a_load_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ProduceSpec(host="h", port=1, topic="t", **wrong)  # type: ignore[arg-type]


def test_connections_that_share_a_queue_begin_spread_over_it() -> None:
    spec = PullSpec(host="h", port=1, topic="t", begin=(0, 10), end=(90, 40), connections=5)
    assert starting_points(spec) == [(0, 0), (1, 10), (0, 30), (1, 25), (0, 60)]


def test_records_are_counted_by_walking_their_sizes() -> None:
    assert count_records(RECORD * 3, 0, 120) == 3
    for damaged in (RECORD * 3 + b"\0", struct.pack(">i", 0), struct.pack(">i", -4), RECORD[:-1]):
        with pytest.raises(LoadFailed, match="pulled body"):
            count_records(damaged, 0, len(damaged))


@pytest.mark.parametrize(
    ("sizes", "count"),
    [((40, 40, 40), 3), ((40, 20, 60), 3), ((20, 60, 40), 3), ((30, 90), 2), ((60, 60, 60, 60, 40, 40), 6)],
)
def test_records_of_several_sizes_are_counted_one_by_one(sizes: tuple[int, ...], count: int) -> None:
    """Also where as many of the first one's size would fill the body as well."""
    data = b"head" + b"".join(struct.pack(">i", size) + bytes(size - 4) for size in sizes)
    assert count_records(data, 4, len(data)) == count
    wrong = data[: -sizes[-1]] + struct.pack(">i", sizes[-1] - 4) + bytes(sizes[-1] - 4)
    with pytest.raises(LoadFailed, match="pulled body"):
        count_records(wrong, 4, len(wrong))


def pulled(request: Command, *, code: int = 0, records: bytes = RECORD * 4, behind: int = 4) -> bytes:
    following = int(request.ext["queueOffset"]) + behind
    ext = {"nextBeginOffset": str(following), "minOffset": "0", "maxOffset": "8"}
    return encode_frame(request.reply(code, "told", ext, records if code == 0 else b""))


def pull_load(port: int) -> PullSpec:
    return PullSpec(
        host="127.0.0.1",
        port=port,
        topic="t",
        begin=(0, 0),
        end=(8, 8),
        connections=3,
        warm_up_s=0.0,
        duration_s=0.3,
    )


def test_pulls_go_round_the_backlog_and_count_its_records() -> None:
    with serving(lambda requests: b"".join(map(pulled, requests))) as responder:
        outcome = run(pull_load(responder.port))
    assert outcome.is_valid
    assert outcome.messages == 4 * outcome.replies
    assert outcome.body_bytes == 40 * outcome.messages
    assert {request.ext["queueOffset"] for request in responder.requests} == {"0", "4"}
    assert {request.ext["sysFlag"] for request in responder.requests} == {"4"}
    assert {request.ext["queueId"] for request in responder.requests} == {"0", "1"}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda request: pulled(request, records=RECORD[:-1]), "pulled body"),
        (lambda request: pulled(request, records=b""), "no record"),
        (lambda request: pulled(request, behind=5), "next offset is said to be"),
        (lambda request: pulled(request, code=19), "code 19 (told)"),
    ],
)
def test_a_pull_that_is_answered_wrongly_voids_the_rate(
    answer: Callable[[Command], bytes], complaint: str
) -> None:
    with serving(lambda requests: b"".join(map(answer, requests))) as responder:
        outcome = run(pull_load(responder.port))
    assert not outcome.is_valid
    assert complaint in (outcome.why_void() or "")


def test_the_load_runs_in_a_process_of_its_own() -> None:
    with serving(accept_all) as responder:
        outcome = runner.run_load(load(responder.port))
    assert outcome.is_valid


def test_what_the_trivial_responder_answers_is_what_it_was_asked() -> None:
    spec = load(1)
    pattern = SendPattern(spec, 4)
    pattern.stamp(1_700_000_000_123)
    data = pattern.take(0, range(OPAQUE_FIRST, OPAQUE_FIRST + 4))
    replies, rest = trivial.answer(data[:-1])
    assert rest == data[len(data) * 3 // 4 : -1]
    opaques, refusals = parse_replies(replies, 3)
    assert list(opaques) == [OPAQUE_FIRST, OPAQUE_FIRST + 1, OPAQUE_FIRST + 2]
    assert not refusals


def test_the_listener_of_a_port_is_found_and_measured() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert server.find_listener("127.0.0.1", port) == os.getpid()
    assert server.find_listener("127.0.0.1", port) is None
    assert (server.cpu_seconds(os.getpid()) or 0) > 0
    resident = server.memory(os.getpid())
    assert resident is not None
    assert min(resident) > 1_000_000
    assert server.cpu_seconds(2**22 + 1) is None
    assert server.memory(2**22 + 1) is None


def test_the_broker_is_learned_from_a_name_server() -> None:
    route = {
        "brokerDatas": [
            {"brokerName": "b", "cluster": "c", "brokerAddrs": {"1": "127.0.0.1:2", "0": "127.0.0.1:3"}}
        ],
        "queueDatas": [],
    }

    def answer(requests: list[Command]) -> bytes:
        # A topic that does not exist yet will be made where the topic it inherits from is.
        return b"".join(
            encode_frame(request.reply(0, body=json.dumps(route).encode()))
            if request.ext["topic"] == "TBW102"
            else encode_frame(request.reply(17, "No topic route info"))
            for request in requests
        )

    with serving(answer) as responder:
        broker = prepare.find_broker(f"127.0.0.1:{responder.port}", "new-topic")
    assert (broker.host, broker.port) == ("127.0.0.1", 3)


def test_the_command_makes_the_topic_and_prints_one_object() -> None:
    with serving(accept_all) as responder:
        arguments = ["produce", "--broker", f"127.0.0.1:{responder.port}", "--queues", "3", "--json"]
        arguments += ["--warm-up", "0", "--duration", "0.3", "--label", "A0", "--binary", "--batch", "2"]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["label"], document["valid"], document["void"]) == ("A0", True, None)
    assert document["rate"] > 0
    assert [request.ext["queueId"] for request in responder.requests[:3]] == ["0", "1", "2"]
    assert {request.ext["defaultTopic"] for request in responder.requests[:3]} == {"TBW102"}


def test_a_void_rate_shows_in_the_table_and_in_the_exit_status() -> None:
    refuse = EveryTenth(lambda request: encode_frame(request.reply(2, "[TIMEOUT_CLEAN_QUEUE]broker busy")))
    with serving(refuse) as responder:
        arguments = ["produce", "--broker", f"127.0.0.1:{responder.port}", "--queues", "1"]
        result = CliRunner().invoke(app, [*arguments, "--warm-up", "0", "--duration", "0.3"])
    assert result.exit_code == 1
    assert "VOID" in result.stdout
    assert "code 2" in result.stdout


def test_a_topic_with_too_few_queues_is_refused_in_the_brokers_words() -> None:
    def narrow(requests: list[Command]) -> bytes:
        return b"".join(
            accepted(request)
            if int(request.ext.get("queueId", "0")) < 2
            else encode_frame(request.reply(29, "request queueId[2] is illegal"))
            for request in requests
        )

    with serving(narrow) as responder:
        arguments = ["produce", "--broker", f"127.0.0.1:{responder.port}", "--json"]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "request queueId[2] is illegal" in json.loads(result.stdout)["void"]


def test_a_missing_backlog_is_stored_before_it_is_pulled() -> None:
    stored = 0

    def broker(requests: list[Command]) -> bytes:
        nonlocal stored
        replies = []
        for request in requests:
            if request.code == 11:
                replies.append(pulled(request))
            elif request.code in (30, 31):
                offset = stored if request.code == 30 else 0
                replies.append(encode_frame(request.reply(0, ext={"offset": str(offset)})))
            else:
                stored += len(split_batch(request.body)) if request.code == 320 else 1
                replies.append(accepted(request))
        return b"".join(replies)

    with serving(broker) as responder:
        arguments = ["pull", "--broker", f"127.0.0.1:{responder.port}", "--queues", "1", "--json"]
        arguments += ["--backlog", "100", "--body-size", "10", "--warm-up", "0", "--duration", "0.3"]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert stored == 100, "the first message, which makes the topic, is one of them"
    document = json.loads(result.stdout)
    assert document["valid"]
    assert document["spec"]["layout"] == "laid round-robin"


def test_a_backlog_is_laid_one_message_to_each_queue_in_turn() -> None:
    laid: list[int] = []

    def broker(requests: list[Command]) -> bytes:
        laid.extend(int(request.ext["e"]) for request in requests if request.code == 310)
        return accept_all(requests)

    with serving(broker) as responder:
        prepare.fill(parse_address(f"127.0.0.1:{responder.port}"), "T", 3, 1000, 10)
    assert laid == [0, 1, 2] * 334


def test_a_pull_tells_where_its_messages_lie() -> None:
    spec = PullSpec(host="h", port=1, topic="T", begin=(0, 5), end=(10, 25), layout="laid round-robin")
    console = Console(width=120)
    with console.capture() as shown:
        console.print(report.as_table(spec, Outcome(), ""))
    assert "30 messages in 2 queues, laid round-robin" in shown.get()


@pytest.mark.parametrize("command", ["produce", "pull"])
def test_the_name_server_comes_from_the_environment_as_for_every_client(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:{port}")
    result = CliRunner().invoke(app, [command])
    assert result.exit_code == 1
    assert f"127.0.0.1:{port}" in result.output


@pytest.mark.parametrize("words", [("--body-size", "4194305"), ("--body-size", "1048577", "--batch", "4")])
def test_a_request_that_no_broker_takes_is_refused_before_anything_is_sent(words: tuple[str, ...]) -> None:
    with serving(accept_all) as responder:
        result = CliRunner().invoke(app, ["produce", "--broker", f"127.0.0.1:{responder.port}", *words])
    assert result.exit_code == 2
    assert "4,194,304" in result.output
    assert not responder.requests


def test_a_result_that_cannot_be_printed_is_told_with_its_count() -> None:
    with serving(accept_all) as responder, open("/dev/full", "w") as full:
        words = ("--broker", f"127.0.0.1:{responder.port}", "--warm-up", "0", "--duration", "0.3")
        ended = subprocess.run(
            command_line("bench", "produce", *words),
            stdout=full,
            stderr=subprocess.PIPE,
            env=command_environment(),
            check=False,
        )
    assert ended.returncode == 1
    assert b"cannot write to standard output" in ended.stderr and b" messages acknowledged" in ended.stderr


def test_ctrl_c_ends_a_load_with_a_count() -> None:
    with serving(accept_all) as responder:
        words = ("--broker", f"127.0.0.1:{responder.port}", "--warm-up", "0.1", "--duration", "60")
        process = subprocess.Popen(
            command_line("bench", "produce", *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=command_environment(),
        )
        deadline = time.monotonic() + 60
        while len(responder.requests) < 1000 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert b"stopped by Ctrl-C" in out
    assert errors.startswith(b"stopped: ") and b" messages acknowledged" in errors
