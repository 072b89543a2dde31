"""The broker as a process: how it starts, what it says when it cannot, and how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
import trio

from broker.process.broker import BrokerProcess
from broker.process.launch import stop_signals
from broker.process.options import BrokerOptions
from broker.process.stop_signals import EXIT_CUT_SHORT, StopSignals
from broker.remoting.session import Session
from broker.replication.group_member import LogReplaced
from broker.settings.config import METRICS_PORT, METRICS_PORTS, load_config
from broker.state.topics import TopicConfig
from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError
from ropewalk.format.record import decode_records, parse_message_id
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame
from tests.broker.harness import pull_ext, request, send_ext
from tests.support.brokers import PATIENCE_S, address_of, ask, broker, fails, name_server, stderr_of
from tests.support.long_run import ROOM_S
from tests.support.ports import free_ports
from tests.support.processes import (
    checkout_command,
    checkout_environment,
    first_line,
    running_broker,
    stop,
)
from tests.support.waiting import until, until_async

V2 = RequestCode.SEND_MESSAGE_V2


# -- it cannot start ------------------------------------------------------------------------------------


def test_what_keeps_a_broker_from_starting_is_said_clearly(tmp_path: Path) -> None:
    """One broker runs; others are refused its ports and its store, and it never notices."""
    with broker(tmp_path) as running:
        port = address_of(running).rpartition(":")[2]
        other = ("--set", f"storePathRootDir={tmp_path / 'other'}", "--namesrv-port", "0")
        status, text = fails(tmp_path, *other, "--set", f"listenPort={port}")
        assert status not in (0, None)
        assert f":{port}" in text
        assert "in use" in text
        assert "listenPort" in text

        status, text = fails(
            tmp_path,
            "--set", "listenPort=0",
            "--set", f"storePathRootDir={tmp_path / 'other'}",
            "--namesrv-port", running.namesrv.rpartition(":")[2],
        )  # fmt: skip
        assert status != 0
        assert "in use" in text
        assert "namesrv" in text

        status, text = fails(tmp_path, *other, "--set", "listenPort=0", "--set", "brokerIP1=nobody.invalid")
        assert status == 1
        assert "brokerIP1 = nobody.invalid" in text and "looked up" in text

        store = address_of(running, "dataDir")
        status, text = fails(
            tmp_path, "--set", "listenPort=0", "--namesrv-port", "0", "--set", f"storePathRootDir={store}"
        )
        assert status != 0
        assert "in use by another process" in text
        assert store in text
        assert "storePathRootDir" in text

        with Connection(address_of(running)) as connection:
            assert ask(connection, V2, send_ext("T"), b"undisturbed").code == 0


def test_too_few_descriptors_and_a_place_that_takes_no_file_end_in_a_sentence(tmp_path: Path) -> None:
    free = ("--set", "listenPort=0", "--namesrv-port", "0")
    few = ["sh", "-c", 'ulimit -n 127 && exec "$@"', "sh", *checkout_command()]
    status, text = fails(tmp_path, *free, command=few)
    assert status == 1
    assert "may open 127 files at once" in text and "ulimit -n" in text

    (tmp_path / "data" / "abort").mkdir(parents=True)
    status, text = fails(tmp_path, *free, "--set", f"storePathRootDir={tmp_path / 'data'}")
    assert status == 1
    assert "abort" in text and "Is a directory" in text and "storePathRootDir" in text


def test_hundreds_of_queues_are_written_with_few_descriptors(tmp_path: Path) -> None:
    few = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *checkout_command()]
    with broker(tmp_path, command=few) as running:
        with Connection(address_of(running)) as connection:
            for n in range(200):
                assert ask(connection, V2, send_ext(f"T{n}"), b"one of many").code == 0
            time.sleep(1.5)
            for n in range(200):
                assert ask(connection, RequestCode.PULL_MESSAGE, pull_ext(f"T{n}")).code == 0
        assert running.process.poll() is None


def test_a_second_broker_of_a_machine_has_its_metrics_at_the_next_free_port_and_says_so(
    tmp_path: Path,
) -> None:
    """5557 and its neighbours may be others' on this machine: what counts is that the port comes from that row."""
    ports = []
    with ExitStack() as stack:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            listen = free_ports(1)[0]
            running = stack.enter_context(broker(tmp_path / name, "--set", f"listenPort={listen}"))
            ports.append(int(address_of(running, "metrics").rpartition(":")[2]))
        assert all(METRICS_PORT <= port < METRICS_PORT + METRICS_PORTS for port in ports), ports
        assert ports[0] != ports[1]
        later = max(ports)
        told = stderr_of(tmp_path / ("one", "two")[ports.index(later)])
        assert f'"taken": {METRICS_PORT}, "port": {later}' in told

        taken = ("--set", "listenPort=0", "--namesrv-port", "0", "--set", f"metricsPromExporterPort={later}")
        status, text = fails(tmp_path, *taken)
        assert status == 1 and f":{later}" in text and "in use" in text


def test_every_mistake_of_a_configuration_file_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "flushDiskTyp = SYNC_FLUSH\nlistenPort = many\nbrokerRole = KING\nenableDLegerCommitLog = true\n"
        "brokerName = a/b\n"
    )
    status, text = fails(tmp_path, "-c", str(file), "--set", "maxMessageSize=-1")
    assert status != 0
    for word in ("flushDiskTyp", "flushDiskType", "listenPort", "brokerRole", "enableDLegerCommitLog"):
        assert word in text
    assert "brokerName" in text
    assert "maxMessageSize" in text


def test_a_configuration_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    status, text = fails(tmp_path, "-c", "nowhere.conf")
    assert status != 0
    assert "nowhere.conf" in text


def test_an_interpreter_that_strips_checks_is_refused(tmp_path: Path) -> None:
    status, text = fails(tmp_path, "--ephemeral", environment={"PYTHONOPTIMIZE": "1"})
    assert status != 0
    assert "-O" in text


# -- it runs ----------------------------------------------------------------------------------------------


def test_two_ports_serve_the_same_codes_but_for_pulls(tmp_path: Path) -> None:
    for attempt in range(
        5
    ):  # the port two below the broker's own may be somebody else's; five times it is not
        home = tmp_path / str(attempt)
        home.mkdir()
        with broker(home) as running:
            fast = running.ready["fast"]
            if fast is None:
                continue
            with Connection(fast) as quick, Connection(address_of(running)) as whole:
                assert ask(quick, V2, send_ext("T"), b"x").code == 0
                refused = ask(quick, RequestCode.PULL_MESSAGE, pull_ext("T"))
                assert (refused.code, refused.remark) == (3, " request type 11 not supported")
                assert ask(whole, RequestCode.PULL_MESSAGE, pull_ext("T")).code == 0
            return
    pytest.fail("the second port never opened")


def test_a_topic_has_its_route_when_its_first_message_is_answered(tmp_path: Path) -> None:
    with (
        broker(tmp_path, "--set", "brokerIP1=localhost") as running,
        Connection(address_of(running)) as connection,
        Connection(running.namesrv) as names,
    ):
        route = {"topic": "young"}
        assert ask(names, RequestCode.GET_ROUTEINFO_BY_TOPIC, dict(route)).code == 17
        sent = ask(connection, V2, send_ext("young"))
        assert sent.code == 0
        found = ask(names, RequestCode.GET_ROUTEINFO_BY_TOPIC, dict(route))
        assert found.code == 0
        assert address_of(running).startswith("localhost:")
        assert address_of(running).encode() in found.body
        assert parse_message_id(sent.ext["msgId"])[0] == "127.0.0.1", "records hold no names"


def test_a_held_pull_is_answered_across_connections_and_at_its_time(tmp_path: Path) -> None:
    with (
        broker(tmp_path) as running,
        Connection(address_of(running)) as producer,
        Connection(address_of(running)) as consumer,
    ):
        ask(producer, V2, send_ext("T"), b"first")
        ext = {k: str(v) for k, v in pull_ext("T", sysFlag=6, queueOffset=1).items()}
        started = time.monotonic()
        pull = consumer.start(Command(RequestCode.PULL_MESSAGE, {**ext, "suspendTimeoutMillis": "300"}))
        assert consumer.wait(pull, PATIENCE_S).code == 19
        assert 0.25 < time.monotonic() - started < 5 + ROOM_S
        pull = consumer.start(Command(RequestCode.PULL_MESSAGE, ext))
        ask(producer, V2, send_ext("T"), b"second")
        answer = consumer.wait(pull, PATIENCE_S)
        assert [r.body for r in decode_records(answer.body)] == [b"second"]


def test_strangers_are_hung_up_on_with_a_reason_in_the_log_and_nobody_else_notices(tmp_path: Path) -> None:
    with broker(tmp_path) as running:
        host, _, port = address_of(running).rpartition(":")
        for hello in (b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff"):
            with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as stranger:
                stranger.sendall(hello)
                assert stranger.recv(100) == b""
        with Connection(address_of(running)) as connection:
            assert ask(connection, V2, send_ext("T")).code == 0
    log = stderr_of(tmp_path)
    assert "TLS" in log
    assert log.count("hung up") == 3


def test_when_connections_take_all_descriptors_newcomers_and_clients_are_served_and_the_store_lives(
    tmp_path: Path,
) -> None:
    few = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *checkout_command()]
    with broker(tmp_path, command=few) as running, ExitStack() as stack:
        inside = stack.enter_context(Connection(address_of(running)))
        assert ask(inside, V2, send_ext("T"), b"before").code == 0
        host, _, port = address_of(running).rpartition(":")
        crowd = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
            for _ in range(160)
        ]
        for n in range(20):
            assert ask(inside, V2, send_ext(f"T{n}"), b"meanwhile").code == 0
        time.sleep(1.5)  # the queues of twenty new topics are written in this time, into files of their own
        assert ask(inside, RequestCode.PULL_MESSAGE, pull_ext("T")).code == 0
        assert running.process.poll() is None
        with Connection(address_of(running)) as late:
            assert ask(late, V2, send_ext("T"), b"after").code == 0
            assert ask(inside, V2, send_ext("T"), b"still here").code == 0
        assert len(crowd) == 160
    said = stderr_of(tmp_path)
    assert "as all places are taken" in said
    assert "cannot accept more connections" not in said
    assert re.search(r"places for connections.*places.*32\b", said)


def test_visitors_of_the_metrics_port_that_only_stay_take_no_descriptors_from_the_broker(
    tmp_path: Path,
) -> None:
    few = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *checkout_command()]
    with broker(tmp_path, command=few) as running, ExitStack() as stack:
        inside = stack.enter_context(Connection(address_of(running)))
        host, _, port = str(running.ready["metrics"]).rpartition(":")
        descriptors = Path(f"/proc/{running.process.pid}/fd")

        def is_ready() -> bool:
            with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as probe:
                probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return probe.recv(64).startswith(b"HTTP/1.1 200")

        until(is_ready)
        before = len(list(descriptors.iterdir()))
        for n in range(160):
            visitor = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
            visitor.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " if n % 2 else b"")
        assert is_ready(), "the last one that comes is let in"
        assert len(list(descriptors.iterdir())) <= before + 60  # 16 visitors, and what starts late
        for n in range(5):
            assert ask(inside, V2, send_ext(f"T{n}"), b"meanwhile").code == 0
        assert running.process.poll() is None
    assert "Traceback" not in stderr_of(tmp_path)


# -- it ends ----------------------------------------------------------------------------------------------


def still_answers(address: str) -> bool:
    try:
        with Connection(address, 1.0) as connection:
            return ask(connection, 9999).code == 3
    except RopewalkError:
        return False


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_graceful_stop_answers_what_it_took_and_keeps_what_it_answered(tmp_path: Path, flush: str) -> None:
    codes: list[int] = []
    offsets: set[int] = set()
    data = ("--set", f"storePathRootDir={tmp_path / 'store'}", "--set", f"flushDiskType={flush}")
    with broker(tmp_path, *data) as running:
        host, _, port = address_of(running).rpartition(":")
        with Connection(address_of(running)) as consumer:
            assert ask(consumer, V2, send_ext("T")).code == 0
            assert ask(consumer, RequestCode.PULL_MESSAGE, pull_ext("T")).code == 0
            commit = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "commitOffset": 1}
            assert ask(consumer, RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as producer:

            def send_for_ever() -> None:
                try:
                    for n in range(1_000_000):
                        producer.sendall(request(V2, send_ext("T"), b"%d" % n, opaque=n))
                except OSError:
                    pass

            sender = threading.Thread(target=send_for_ever, daemon=True)
            sender.start()
            frames = FrameBuffer()
            try:
                while data_ := producer.recv(1 << 16):
                    for payload in frames.feed(data_):
                        answer = decode_frame(payload)
                        codes.append(answer.code)
                        if answer.code == 0:
                            offsets.add(int(answer.ext["queueOffset"]))
                    if len(codes) > 500 and running.process.poll() is None:
                        running.process.send_signal(signal.SIGTERM)
                        break
                while data_ := producer.recv(1 << 16):
                    for payload in frames.feed(data_):
                        answer = decode_frame(payload)
                        codes.append(answer.code)
                        if answer.code == 0:
                            offsets.add(int(answer.ext["queueOffset"]))
            except ConnectionResetError:
                pass
            sender.join(PATIENCE_S)
        assert running.process.wait(PATIENCE_S) == 0
    assert set(codes) <= {0, 14}
    assert not (tmp_path / "store" / "abort").exists()
    with broker(tmp_path, *data) as running, Connection(address_of(running)) as consumer:
        end = int(ask(consumer, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}).ext["offset"])
        assert end > max(offsets), "no acknowledged message is missing"
        kept = ask(
            consumer, RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "cg", "topic": "T", "queueId": 0}
        )
        assert (kept.code, kept.ext) == (0, {"offset": "1"})
    assert "recovery" not in stderr_of(tmp_path), "a store closed in good order has nothing to repair"


def test_a_name_server_of_its_own_is_told_at_start_of_new_topics_and_at_the_end(tmp_path: Path) -> None:
    with name_server(tmp_path) as address:

        def brokers_of(topic: str) -> int:
            with Connection(address) as names:
                return ask(names, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code

        with broker(tmp_path, "-n", address) as running:
            assert running.namesrv == address
            until(lambda: brokers_of("TBW102") == 0)
            with Connection(address_of(running)) as connection:
                assert ask(connection, V2, send_ext("T")).code == 0
            until(lambda: brokers_of("T") == 0)
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(PATIENCE_S) == 0
            assert brokers_of("T") == 17, "it said good-bye before it went"


@pytest.fixture
def hears_hangup() -> Iterator[None]:
    """Have processes that are started here hear SIGHUP, also where these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hears_hangup")
def test_a_terminal_that_is_closed_stops_it_in_good_order(tmp_path: Path) -> None:
    with broker(tmp_path, "--set", f"storePathRootDir={tmp_path / 'store'}") as running:
        with Connection(address_of(running)) as connection:
            assert ask(connection, V2, send_ext("T"), b"kept").code == 0
        assert (tmp_path / "store" / "abort").exists()
        running.process.send_signal(signal.SIGHUP)
        assert running.process.wait(PATIENCE_S) == 0
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.usefixtures("hears_hangup")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_name_server_stops_with_its_terminal_unless_nohup_keeps_it(ignored: bool) -> None:
    hidden = ["nohup"] if ignored else []
    process = subprocess.Popen(
        [*hidden, *checkout_command(), "namesrv", "--port", "0", "--json"],
        env=checkout_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        first_line(process, PATIENCE_S)
        process.send_signal(signal.SIGHUP)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
        else:
            assert process.wait(PATIENCE_S) == 0
    finally:
        stop(process)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # A name server that takes connections and says nothing makes the good-bye last.
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for _ in range(
            3
        ):  # the good-bye is given up after a while, which a busy machine may take for the signals
            with broker(tmp_path, "-n", address) as running:
                with Connection(address_of(running)) as connection:
                    assert ask(connection, V2, send_ext("T"), b"kept").code == 0
                running.process.send_signal(signal.SIGTERM)
                time.sleep(0.2)
                running.process.send_signal(signal.SIGTERM)
                status = running.process.wait(PATIENCE_S)
            if status == 130:
                break
        assert status == 130
    with broker(tmp_path) as running, Connection(address_of(running)) as connection:
        answer = ask(connection, RequestCode.PULL_MESSAGE, pull_ext("T"))
        assert {r.body for r in decode_records(answer.body)} == {b"kept"}


@pytest.mark.parametrize("gap_s", [0.0, 0.005, 0.02])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_close_together_end_in_a_sentence_and_no_failure(
    tmp_path: Path, second: signal.Signals, gap_s: float
) -> None:
    with broker(tmp_path) as running:
        running.process.send_signal(signal.SIGINT)
        time.sleep(gap_s)
        running.process.send_signal(second)
        assert running.process.wait(PATIENCE_S) in (0, EXIT_CUT_SHORT)
    assert "Traceback" not in stderr_of(tmp_path)
    assert "critical" not in stderr_of(tmp_path)


def test_a_name_server_that_hears_two_signals_ends_in_a_sentence_and_no_failure() -> None:
    for second in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(
            [*checkout_command(), "namesrv", "--port", "0", "--json"],
            env=checkout_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            first_line(process, PATIENCE_S)
            process.send_signal(signal.SIGINT)
            process.send_signal(second)
            _out, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            stop(process)
        assert process.returncode in (0, EXIT_CUT_SHORT)
        assert b"Traceback" not in errors


def test_a_signal_after_the_first_ends_a_process_at_once_whatever_it_is_about(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = {number: signal.getsignal(number) for number in stop_signals()}
    ended: list[int] = []

    async def stopped() -> None:
        signals = StopSignals(ended.append)
        signal.raise_signal(signal.SIGTERM)
        assert await signals.wait() is signal.SIGTERM

    try:
        trio.run(stopped)
        assert not ended
        signal.raise_signal(signal.SIGINT)  # the loop is over, and what it leaves is being closed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended == [EXIT_CUT_SHORT]
    assert capfd.readouterr().err.startswith("SIGINT while stopping for SIGTERM: ended at once")


def test_an_ephemeral_broker_leaves_nothing_behind(tmp_path: Path) -> None:
    with broker(tmp_path, "--ephemeral") as running:
        directory = Path(address_of(running, "dataDir"))
        assert directory.is_dir()
        running.process.terminate()
        assert running.process.wait(PATIENCE_S) == 0
    assert not directory.exists()


def test_a_broker_that_cannot_flush_stops_and_leaves_the_rest_to_recovery(tmp_path: Path) -> None:
    """The one failure after which nothing may be claimed: fdatasync said no."""
    patch = tmp_path / "sitecustomize.py"
    patch.write_text(
        "import os\n"
        "real = os.fdatasync\n"
        "def fdatasync(fd):\n"
        "    if os.path.exists(os.environ['NO_FLUSH']):\n"
        "        raise OSError(5, 'Input/output error')\n"
        "    real(fd)\n"
        "os.fdatasync = fdatasync\n"
    )
    flag = tmp_path / "no-flush"
    environment = {**checkout_environment(), "NO_FLUSH": str(flag)}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    with running_broker(
        [sys.executable, "-m", "ropewalk"],
        "--set",
        "flushDiskType=SYNC_FLUSH",
        cwd=tmp_path,
        environment=environment,
    ) as running:
        with Connection(address_of(running)) as connection:
            assert ask(connection, V2, send_ext("T"), b"safe").code == 0
            flag.touch()
            with pytest.raises(RopewalkError):
                ask(connection, V2, send_ext("T"), b"lost")
        assert running.process.wait(PATIENCE_S) not in (0, None)
        assert (Path(address_of(running, "dataDir")) / "abort").exists()
    text = stderr_of(tmp_path)
    assert "the broker ends: its disk failed" in text
    assert "Input/output error" in text and "commitlog/00000000000000000000" in text
    assert "Traceback" not in text
    assert not still_answers(address_of(running))


def test_a_broker_that_may_not_write_its_files_any_more_ends_with_the_name_of_one_and_no_traceback(
    tmp_path: Path,
) -> None:
    """Of the next segment, say, whose name a directory has taken."""
    with running_broker(
        [sys.executable, "-m", "ropewalk"],
        "--set",
        "mappedFileSizeCommitLog=65536",
        cwd=tmp_path,
        environment=checkout_environment(),
    ) as running:
        taken = Path(address_of(running, "dataDir")) / "commitlog" / f"{4 * 65536:020d}"
        taken.mkdir()
        with Connection(address_of(running)) as connection:

            def send() -> bool:
                try:
                    ask(connection, V2, send_ext("T"), bytes(30_000))
                except RopewalkError:
                    return True
                return running.process.poll() is not None

            until(send, "it has ended")
        assert running.process.wait(PATIENCE_S) == 70
    text = stderr_of(tmp_path)
    assert "the broker ends: its disk failed" in text and f"commitlog/{taken.name}" in text
    assert "Traceback" not in text


def test_a_member_that_opens_its_store_again_is_linked_to_others_when_it_is_open(tmp_path: Path) -> None:
    """Until then the groups of the store that is closed would answer: on a link that the new ones cannot see."""
    (port,) = free_ports(1)
    settings = (
        f"storePathRootDir={tmp_path}",
        "enableDLegerCommitLog=true",
        f"dLegerPeers=n0-127.0.0.1:{port}",
        "dLegerSelfId=n0",
        "mappedFileSizeCommitLog=1048576",
        "listenPort=0",
        "namesrvPort=0",
        "metricsExporterType=DISABLE",
    )
    process = BrokerProcess(
        load_config(settings=settings, environ={}, local_ip=lambda: "127.0.0.1"), BrokerOptions()
    )
    process.start()
    greetings = []

    def dial() -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as link:
            greetings.append(link.recv(1))

    close = process.broker.store.close

    def close_and_dial() -> None:
        close()
        dial()

    process.broker.store.close = close_and_dial  # type: ignore[method-assign]

    async def open_again() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.shell.run)
            await process._cut(process.broker, LogReplaced())
            await trio.to_thread.run_sync(dial)
            nursery.cancel_scope.cancel()

    trio.run(open_again)
    process.close()
    refused, welcome = greetings
    assert refused == b"" and welcome != b""


def started(folder: Path) -> BrokerProcess:
    """Start a broker in this process, without its loop, on free ports."""
    settings = (
        f"storePathRootDir={folder}",
        "mappedFileSizeCommitLog=1048576",
        "listenPort=0",
        "haListenPort=0",
        "namesrvPort=0",
        "metricsExporterType=DISABLE",
    )
    config = load_config(settings=settings, environ={}, local_ip=lambda: "127.0.0.1")
    process = BrokerProcess(config, BrokerOptions())
    process.start()
    return process


def test_a_broker_that_opened_its_store_again_announces_new_topics_and_measures_the_delays_of_its_loop(
    tmp_path: Path,
) -> None:
    process = started(tmp_path)

    def is_measured() -> bool:
        return sum(process.broker.metrics.loop_delays.counts) > 0

    async def open_again() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.shell.run)
            nursery.start_soon(process._tick)
            await until_async(is_measured)
            await process._cut(process.broker, LogReplaced())
            broker = process.broker
            broker.topics.update(TopicConfig("New", 1, 1), broker.context.now_ms())
            broker.topic_changes.note()
            await until_async(lambda: not broker.topics.unannounced)
            await until_async(is_measured)
            nursery.cancel_scope.cancel()

    trio.run(open_again)
    process.close()


def test_the_shell_hears_as_a_turn_ends_that_pulls_were_put_off(tmp_path: Path) -> None:
    process = started(tmp_path)
    session = cast("Session", object())
    for put_off in (True, False):
        if put_off:
            process.broker.catch_up_pulls.add(session, lambda: None)
        else:
            process.broker.catch_up_pulls.release(session)
        process.end_turn()
        assert (process.next_turn_s is not None) is put_off
    process.close()
