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
    output = tmp_path / "output"
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-c", program, group, topic, loop],
            cwd=tmp_path,
            env={**checkout_environment(), "NAMESRV_ADDR": ropewalk_broker.namesrv},
            stdout=stdout,
        )
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
