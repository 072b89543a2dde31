"""The registry of what asks peers: clients, commands, handovers, Spark's readers and drills, each as a call.

An asker is given the address of a peer that answers oddly, as its name server and as every broker. It raises nothing
but a `RopewalkError` or an OSError, and ends by itself.
"""

from __future__ import annotations

import inspect
import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import trio

from ha.group.handover import HandoverKind
from ropewalk import (
    Admin,
    AsyncAdmin,
    AsyncKv,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    Kv,
    KvLock,
    Message,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    Queue,
    TopicQueue,
    TransactionProducer,
)
from ropewalk.client.admin.results import BrokerMember
from ropewalk.client.aio.connection import open_connection
from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.consume.received import ReceivedMessage, decode_received
from ropewalk.errors import RopewalkError
from tools.admin import handover
from tools.common.output import UsageError

__all__ = ["ASKERS", "Asker"]

TIMEOUT_S: Final = 0.3
EXPECTED: Final = (RopewalkError, OSError)


@dataclass(frozen=True, slots=True)
class Asker:
    """Something that asks peers."""

    name: str
    covers: tuple[str, ...]
    """The modules whose connections it opens."""
    call: Callable[[str, Path], None]
    """Ask the peer at an address; a folder to write to is given, too."""


QUEUE = Queue("broker-a", 1)
SOURCE = TopicQueue("t", QUEUE)


def _received() -> ReceivedMessage:
    from tests.peers.decoders import RECORD

    return decode_received(RECORD, SOURCE)[0]


ARGUMENTS: Final[dict[str, Any]] = {
    "address": "127.0.0.1:1", "at_most": 10, "attributes": None, "begin_ms": 0, "broker": "broker-a",
    "broker_name": "broker-a", "change": "remove", "changes": {"maxMessageSize": "5"}, "client_id": "c", "count": 2,
    "end": b"z", "end_ms": 1 << 41, "expect": b"v", "group": "g", "id": "n1", "key": "k", "keys": ["a", "b"],
    "lock": KvLock(b"l", b"o", 1, 0.2), "max_count": 4, "member": BrokerMember("c", "broker-a", 0, "127.0.0.1:1"),
    "message": Message(b"body"), "messages": [Message(b"a"), Message(b"b")], "moment": 1_700_000_000_000,
    "message_id": "7F00000100002A9F0000000000000064", "name": "n", "offset": 5,
    "offset_id": "7F00000100002A9F0000000000000064", "on_checks": None, "queue": QUEUE, "queues": 4,
    "recall_handle": "djEgYnJva2VyLWEgdCAxIGlk", "sink_id": "s", "source": SOURCE, "start": b"a", "target": "g2",
    "timestamp_ms": 5, "topic": "t", "unique_key": "AC", "value": "v", "told": lambda text: None, "wait_s": 0.1,
    "wait": 0.1, "lease": 0.2, "timeout": TIMEOUT_S, "retry_max_times": 3,
}  # fmt: skip
SPECIAL: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("Admin", "clone_offsets"): {"source": "g"},
    ("Admin", "topic_config"): {},
    ("PullConsumer", "assign"): {"queues": [SOURCE]},
    ("Producer", "reply"): {},
}
LEFT_OUT: Final = {
    "close", "start", "run", "flush", "forget_skipped", "reply", "finish_send", "finish_pull", "read_pull", "rollback",
    "end",
}  # fmt: skip
"""Methods without a request of their own, and the begin and end of a client."""


UNASSIGNED: Final = {("PullConsumer", "position"), ("PullConsumer", "seek")}
"""Methods without a request, which raise `KeyError` for a queue that is not assigned."""


def _calls(kind: str, client: object) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield every public method of a client, with arguments."""
    for name, method in inspect.getmembers(type(client), callable):
        if name.startswith("_") or name in LEFT_OUT or (kind, name) in UNASSIGNED:
            continue
        given = dict(SPECIAL.get((kind, name), {}))
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            wanted = parameter.default is parameter.empty or parameter.name in (
                "timeout",
                "wait_s",
                "told",
                "wait",
            )
            if wanted and parameter.name not in given and parameter.kind is not parameter.VAR_KEYWORD:
                given[parameter.name] = (
                    _message(kind, name) if parameter.name == "message" else _of(parameter.name)
                )
        yield name, partial(getattr(client, name), **given)


def _message(kind: str, name: str) -> Any:
    return _received() if kind == "Admin" else Message(b"body")


def _of(name: str) -> Any:
    return (lambda message: Outcome.COMMIT) if name == "local" else ARGUMENTS[name]


def _blocking(kind: str, make: Callable[[str, Path], Any]) -> Callable[[str, Path], None]:
    def run(address: str, folder: Path) -> None:
        with suppress(*EXPECTED), make(address, folder) as client:
            for _name, call in _calls(kind, client):
                with suppress(*EXPECTED):
                    found = call()
                    if hasattr(found, "result"):
                        found.result(10.0)
                    elif hasattr(found, "__enter__"):
                        with found:
                            pass

    return run


def _async(kind: str, make: Callable[[str, Path], Any]) -> Callable[[str, Path], None]:
    async def main(address: str, folder: Path) -> None:
        with suppress(*EXPECTED):
            async with make(address, folder) as client:
                for _name, call in _calls(kind, client):
                    with suppress(*EXPECTED):
                        found = call()
                        if inspect.isawaitable(found):
                            await found
                        elif hasattr(found, "__aenter__"):
                            async with found:
                                pass

    def run(address: str, folder: Path) -> None:
        with _leaves_of_groups():
            trio.run(main, address, folder)

    return run


@contextmanager
def _leaves_of_groups() -> Iterator[None]:
    """Take an exception group that holds nothing but expected errors for one of them."""
    try:
        yield
    except* EXPECTED:
        pass


def _asyncio(make: Callable[[str, Path], Any]) -> Callable[[str, Path], None]:
    """Return the asker of an async client under asyncio, whose loop reads the same answers."""
    import asyncio

    async def main(address: str, folder: Path) -> None:
        with suppress(*EXPECTED):
            async with make(address, folder) as client:
                for _name, call in itertools.islice(_calls("Producer", client), 20):
                    with suppress(*EXPECTED):
                        found = call()
                        if inspect.isawaitable(found):
                            await found

    def run(address: str, folder: Path) -> None:
        with _leaves_of_groups():
            asyncio.run(main(address, folder))

    return run


def _push(address: str, folder: Path, **options: Any) -> PushConsumer:
    return PushConsumer(
        "g", {"t": "*"}, lambda message: None, address, consume_from="earliest", suspend=0.1, rebalance_interval=0.1,
        commit_interval=0.1, close_timeout=1.0, offsets_folder=folder, **options,
    )  # fmt: skip


def _consume(address: str, folder: Path) -> None:
    """Consume for a moment, in each of the forms."""
    import time

    for options in ({}, {"orderly": True}, {"broadcasting": True}):
        with suppress(*EXPECTED), _push(address, folder, **options):
            time.sleep(0.4)  # of its own accord it asks again and again


async def _consume_async(address: str, folder: Path) -> None:
    async def handle(message: ReceivedMessage) -> None:
        return None

    async with AsyncPushConsumer(
        "g", {"t": "*"}, handle, address, suspend=0.1, rebalance_interval=0.1, offsets_folder=folder
    ):
        await trio.sleep(0.4)


def _run_async(main: Callable[[str, Path], Any]) -> Callable[[str, Path], None]:
    def run(address: str, folder: Path) -> None:
        with _leaves_of_groups():
            trio.run(main, address, folder)

    return run


def _pull(address: str, _folder: Path) -> PullConsumer:
    return PullConsumer("g", {"t": "*"}, address)


def _simple(address: str, _folder: Path) -> None:
    with Client(address, timeout=TIMEOUT_S) as client:
        for _name, call in _calls("Client", client):
            with suppress(*EXPECTED):
                found = call()
                if inspect.isgenerator(found):
                    list(itertools.islice(found, 10))


def commands(*lines: str) -> Callable[[str, Path], None]:
    """Return a call of the command line with each of these lines, in this process; a bug shows as its exception."""

    def run(address: str, folder: Path) -> None:
        from tools.cli import app

        for line in lines:
            words = [word.replace("@F", str(folder)).replace("@", address) for word in line.split()]
            out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    app(args=[*words, "-n", address], prog_name="ropewalk")
                except SystemExit as ended:
                    assert ended.code in (None, 0, 1, 2), (line, ended.code)

    return run


# --- operators ---------------------------------------------------------------------------------------


def _handovers(address: str, _folder: Path) -> None:
    for secret, kind, force in itertools.product(("", "s" * 20), HandoverKind, (False, True)):
        with (
            suppress(*EXPECTED),
            Admin(address, timeout=TIMEOUT_S) as admin,
            handover.Members(secret, TIMEOUT_S) as members,
        ):
            group = handover.find_group(admin, members, "broker-a")
            handover.at_risk(group)
            with suppress(*EXPECTED):
                handover.forget_slave(members, group, 1)
            handover.hand_over(members, group, kind, "op", force=force, catch_up_s=0.2)


def _watch(address: str, _folder: Path) -> None:
    """Look at a group as `ropewalk admin ha watch` does, until it is failed over."""
    from tools.admin.ha import Watcher, _look

    with Admin(address, timeout=TIMEOUT_S) as admin, handover.Members("", TIMEOUT_S) as members:
        watcher, known = Watcher(0.0, itertools.count().__next__), dict[str, handover.Group]()
        for _ in range(10):
            with suppress(*EXPECTED, UsageError):
                _look("broker-a", known, admin, members, watcher, address, lambda name, text: None)


# --- Spark -------------------------------------------------------------------------------------------


def _spark_options(address: str, use: str, **given: str) -> Any:
    from ropewalk.spark.options import parse_options

    return parse_options({"nameServer": address, "topic": "t", **given}, use, {})  # type: ignore[arg-type]


def _spark_batch(address: str, _folder: Path) -> None:
    from ropewalk.spark.live.source import LiveReader

    for given in ({}, {"startingTimestamp": "5"}, {"failOnDataLoss": "false"}):
        options = _spark_options(address, "read", pullTimeoutMs="1000", **given)
        reader = LiveReader(options, options.selection())
        with suppress(*EXPECTED):
            for part in itertools.islice(reader.partitions(), 8):
                with suppress(*EXPECTED):
                    for _batch in itertools.islice(reader.read(part), 8):
                        pass


def _spark_stream(address: str, _folder: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from ropewalk.spark.live.source import LiveStreamReader

    options = _spark_options(address, "stream", pullTimeoutMs="1000", groupId="g", commitOffsets="true")
    reader = LiveStreamReader(options, options.selection())
    try:
        for _ in range(3):
            with suppress(*EXPECTED):
                start = reader.initialOffset()
                end = reader.latestOffset(start, ReadAllAvailable())
                reader.reportLatestOffset()
                for part in itertools.islice(reader.partitions(start, end), 8):
                    with suppress(*EXPECTED):
                        for _batch in itertools.islice(reader.read(part), 8):
                            pass
                reader.commit(end)
    finally:
        reader.stop()


def _spark_sink(address: str, _folder: Path) -> None:
    from ropewalk.spark.sink.exact import SinkDriver
    from ropewalk.spark.sink.rows import Outgoing
    from ropewalk.spark.sink.send import Sender

    options = _spark_options(address, "write", sendTimeoutMs="500", sinkId="s", delivery="exactly-once")
    driver = SinkDriver(options)
    with suppress(*EXPECTED):
        driver.begin()
    driver.close()
    sender = Sender(_spark_options(address, "write", sendTimeoutMs="500"))
    with suppress(*EXPECTED):
        for number in range(5):
            sender.add(Outgoing("t", Message(b"%d" % number), 20))
        sender.finish()
    sender.close()


def _completions(address: str, _folder: Path) -> None:
    """Complete names as a shell has them completed."""
    from tools.common import options

    context = cast(Any, SimpleNamespace(params={"name_server": address}))
    for complete in (
        options.complete_topic, options.complete_group, options.complete_cluster, options.complete_broker
    ):  # fmt: skip
        complete(context, "t")


# --- drills ------------------------------------------------------------------------------------------


async def _drill(address: str, _folder: Path) -> None:
    from tools.drill import dledger, full_disk, load, operate, reading, run
    from tools.drill.operate import Failed
    from tools.drill.testbed import group as drill_group
    from tools.drill.timeline import Timeline

    for name in (None, "broker-a"):
        with suppress(*EXPECTED):
            await drill_group.find_live_group(address, name)
    for _ in range(4):
        with suppress(*EXPECTED):
            with trio.fail_after(5.0):
                await reading.pull_all(address, "t", "run", 4)
    live = drill_group.LiveGroup(address, "broker-a", {0: address, 1: address})
    for kind in HandoverKind:
        with suppress(*EXPECTED, Failed):
            await operate.hand_over(live, kind)
    for ask in (
        partial(dledger._ask_for_transfer, address, "broker-a"),
        partial(full_disk._ask_page, address, "/"),
    ):
        with suppress(*EXPECTED):
            await trio.to_thread.run_sync(ask)
    with suppress(*EXPECTED):
        await load.create_topic(address, "t", 4)
    await load.remove_topic(address, [address], "t")
    router = load.Router(address, "t", "broker-a")
    work = load.Load(
        load.LoadSpec(run="run", topic="t", broker_name="broker-a", lanes=2),
        router,
        Timeline(trio.current_time),
        lambda address: address,
    )
    with trio.move_on_after(0.7):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.run)
            nursery.start_soon(work.run)
            for _ in range(10):
                with suppress(*EXPECTED):
                    await work.probe(address)
                with suppress(*EXPECTED):
                    async with open_connection(address, timeout=TIMEOUT_S) as connection:
                        await run._log_end(connection)


ADMIN = (
    "admin topic list", "admin topic show t", "admin topic route t", "admin topic create t2",
    "admin topic update t --queues 4", "admin topic perm t r", "admin topic delete t --yes", "admin lag", "admin lag g",
    "admin connections g", "admin group list", "admin group show g", "admin group status g", "admin group create g",
    "admin group delete g --yes", "admin group lag g", "admin group reset g t --to earliest --yes",
    "admin broker list", "admin broker status", "admin broker stats --all", "admin broker config get",
    "admin broker config set traceOn=true --yes", "admin cluster list", "admin cluster name-servers",
    "admin offset show g t", "admin offset search t 2026-01-31T12:00:00",
    "admin message by-id 7F00000100002A9F0000000000000064", "admin message by-unique-key t AC",
    "admin message by-key t k", "admin message trace AC", "admin message by-offset t 0 0 --broker broker-a",
    "admin message by-time t --from 2026-01-31T12:00:00", "admin sink list", "admin sink forget s --yes",
)  # fmt: skip
OPERATORS = (
    "admin ha status", "admin ha switch broker-a", "admin ha failover broker-a --force --yes", "admin ha promote @",
    "admin ha demote @", "admin ha forget broker-a 1", "admin dledger status", "admin dledger transfer",
    "admin dledger readmit n1", "admin dledger snapshot", "admin dledger add n5-127.0.0.1:1 --wait 1",
    "admin dledger remove n1 --wait 1", "admin dledger promote n1 --wait 1", "admin dledger force n0 --yes",
    "admin dledger trust n0 --yes", "admin dledger learner n5-127.0.0.1:1",
)  # fmt: skip
MESSAGES = (
    "produce t body", "consume t --from earliest --count 3 --timeout 1", "pull t --queue 0 --offset 0",
    "produce t body --delay 10s", "consume t --group g --count 1 --timeout 1", "admin message send t body",
    "kv status", "kv get k", "kv put k v", "kv scan", "kv delete k", "kv split k",
)  # fmt: skip

ASKERS: Final = (
    Asker("Client", ("ropewalk.client.blocking.simple",), _simple),
    Asker(
        "Admin",
        ("ropewalk.client.blocking.links", "ropewalk.client.blocking.admin"),
        _blocking("Admin", lambda a, _f: Admin(a, timeout=TIMEOUT_S)),
    ),
    Asker(
        "AsyncAdmin",
        ("ropewalk.client.aio.links", "ropewalk.client.aio.connection"),
        _async("Admin", lambda a, _f: AsyncAdmin(a, timeout=TIMEOUT_S)),
    ),
    Asker("Kv", ("ropewalk.client.blocking.kv",), _blocking("Kv", lambda a, _f: Kv(a, timeout=TIMEOUT_S))),
    Asker("AsyncKv", (), _async("Kv", lambda a, _f: AsyncKv(a, timeout=TIMEOUT_S))),
    Asker(
        "Producer",
        ("ropewalk.client.blocking.producer", "ropewalk.client.blocking.trace_thread"),
        _blocking("Producer", lambda a, _f: Producer(a, timeout=TIMEOUT_S, trace=True)),
    ),
    Asker(
        "AsyncProducer", (), _async("Producer", lambda a, _f: AsyncProducer(a, timeout=TIMEOUT_S, trace=True))
    ),
    Asker("AsyncProducer under asyncio", (), _asyncio(lambda a, _f: AsyncProducer(a, timeout=TIMEOUT_S))),
    Asker(
        "TransactionProducer",
        ("ropewalk.client.blocking.transaction_producer",),
        _blocking(
            "Transaction",
            lambda a, _f: TransactionProducer(
                lambda message: Outcome.COMMIT, a, group="g", topics=["t"], timeout=TIMEOUT_S
            ),
        ),
    ),
    Asker(
        "AsyncTransactionProducer",
        (),
        _async(
            "Transaction",
            lambda a, _f: AsyncTransactionProducer(
                lambda message: Outcome.COMMIT, a, group="g", topics=["t"], timeout=TIMEOUT_S
            ),
        ),
    ),
    Asker("PullConsumer", ("ropewalk.client.blocking.pull_consumer",), _blocking("PullConsumer", _pull)),
    Asker(
        "AsyncPullConsumer", (), _async("PullConsumer", lambda a, _f: AsyncPullConsumer("g", {"t": "*"}, a))
    ),
    Asker("PushConsumer", ("ropewalk.client.blocking.push_consumer",), _consume),
    Asker("AsyncPushConsumer", (), _run_async(_consume_async)),
    Asker("ropewalk admin", ("tools.admin.base", "tools.admin.message"), commands(*ADMIN)),
    Asker("ropewalk admin ha and dledger", ("tools.admin.ha",), commands(*OPERATORS)),
    Asker(
        "ropewalk produce, consume, pull and kv",
        ("tools.messages.commands", "tools.messages.delay", "tools.messages.consume_group", "tools.kv.cli"),
        commands(*MESSAGES),
    ),
    Asker("handover", ("tools.admin.handover",), _handovers),
    Asker("watch", (), _watch),
    Asker("completions", ("tools.common.options",), _completions),
    Asker("Spark batch", ("ropewalk.spark.live.cluster", "ropewalk.spark.live.read"), _spark_batch),
    Asker("Spark stream", (), _spark_stream),
    Asker("Spark sink", (), _spark_sink),
    Asker(
        "drill",
        (
            "tools.drill.reading",
            "tools.drill.load",
            "tools.drill.run",
            "tools.drill.testbed.group",
            "tools.drill.operate",
            "tools.drill.dledger",
            "tools.drill.full_disk",
        ),
        _run_async(_drill),
    ),
)
