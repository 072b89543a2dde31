"""`consumer.run()`: a consumer program ends by a signal, and finishes what it handles."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ropewalk import Message, PushConsumer, ReceivedMessage
from ropewalk.testing import RopewalkBroker
from tests.support.processes import checkout_environment

BLOCKING = """
import sys, time
from ropewalk import PushConsumer

def handle(message):
    print("begun", flush=True)
    time.sleep(0.5)
    print("done", flush=True)

PushConsumer(sys.argv[1], {sys.argv[2]: "*"}, handle, consume_from="earliest").run()
print("left", flush=True)
"""
ASYNC = """
import sys, asyncio, trio
from ropewalk import AsyncPushConsumer

async def handle(message):
    print("begun", flush=True)
    await (trio if sys.argv[3] == "trio" else asyncio).sleep(0.5)
    print("done", flush=True)

async def main():
    await AsyncPushConsumer(sys.argv[1], {sys.argv[2]: "*"}, handle, consume_from="earliest").run()
    print("left", flush=True)

trio.run(main) if sys.argv[3] == "trio" else asyncio.run(main())
"""
# As on Windows, where the loops of asyncio know no signals.
WITHOUT_SIGNALS_OF_LOOPS = """
import asyncio

def none(*arguments):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = none
"""
HANGING = """
import sys, time, threading, asyncio, trio
from ropewalk import AsyncPushConsumer, PushConsumer

def handle(message):
    print("begun", flush=True)
    threading.Event().wait()

options = dict(consume_from="earliest", close_timeout=0.5, orderly=sys.argv[4] == "orderly")

def consumer(kind):
    return kind(sys.argv[1], {sys.argv[2]: "*"}, handle, **options)

async def main():
    await consumer(AsyncPushConsumer).run()

loop = sys.argv[3]
if loop == "none":
    consumer(PushConsumer).run()
elif loop == "trio":
    trio.run(main)
else:
    asyncio.run(main())
print("left", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["concurrent", "orderly"])
@pytest.mark.parametrize("loop", ["none", "trio", "asyncio"])
def test_a_signal_ends_a_program_whose_plain_handler_does_not_come_back(
    ropewalk_broker: RopewalkBroker, tmp_path: Path, loop: str, order: str
) -> None:
    """Neither `close` nor the end of the program waits for its thread."""
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    ropewalk_broker.send(topic, Message(b"one"))
    process, output = started(ropewalk_broker, tmp_path, HANGING, group, topic, loop, order)
    try:
        ropewalk_broker.wait_until(lambda: output.read_text().startswith("begun\n"), "a handler at work")
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output.read_text()) == (0, "begun\nleft\n")
    assert "handlers left behind" in (tmp_path / "errors").read_text()
    assert ropewalk_broker.committed(group, topic) == 0, "what it had comes again"


def started(
    broker: RopewalkBroker, folder: Path, program: str, *arguments: str
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a program; return it and the file of its output."""
    output = folder / "output"
    with output.open("wb") as stdout, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=folder,
            env={**checkout_environment(), "NAMESRV_ADDR": broker.namesrv},
            stdout=stdout,
            stderr=errors,
        )
    return process, output


@pytest.mark.slow
@pytest.mark.parametrize(
    "program, loop, number",
    [
        (BLOCKING, "none", signal.SIGTERM),
        (BLOCKING, "none", signal.SIGINT),
        (ASYNC, "trio", signal.SIGTERM),
        (ASYNC, "asyncio", signal.SIGINT),
        (WITHOUT_SIGNALS_OF_LOOPS + ASYNC, "asyncio", signal.SIGTERM),
    ],
)
def test_a_signal_ends_a_program_when_it_has_finished_its_message(
    ropewalk_broker: RopewalkBroker, tmp_path: Path, program: str, loop: str, number: signal.Signals
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    ropewalk_broker.send(topic, Message(b"one"))
    process, output = started(ropewalk_broker, tmp_path, program, group, topic, loop)
    try:
        ropewalk_broker.wait_until(lambda: output.read_text().startswith("begun\n"), "a handler at work")
        process.send_signal(number)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output.read_text()) == (0, "begun\ndone\nleft\n")
    assert ropewalk_broker.committed(group, topic) == 1


def test_run_is_for_the_main_thread(ropewalk_broker: RopewalkBroker) -> None:
    def handle(message: ReceivedMessage) -> None:
        pass

    raised: list[BaseException] = []

    def run() -> None:
        try:
            PushConsumer("g", {"T": "*"}, handle, ropewalk_broker.namesrv).run()
        except RuntimeError as exc:
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert "start() and close()" in str(raised)
