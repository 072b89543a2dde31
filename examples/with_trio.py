"""The same under trio: tasks in a nursery send, and a time limit is a cancel scope.

python examples/with_trio.py [NAME_SERVER]
"""

import sys

import trio

from ropewalk import AsyncProducer, AsyncPushConsumer, ReceivedMessage

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
COUNT = 20


async def main() -> None:
    handled: list[bytes] = []
    all_handled = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)
        if len(handled) == COUNT:
            all_handled.set()

    async with AsyncProducer(name_server, group="trio-example") as producer, trio.open_nursery() as nursery:
        for number in range(COUNT):
            nursery.start_soon(producer.send, "trio-example", b"%d" % number)

    topics = {"trio-example": "*"}
    with trio.fail_after(20):
        async with AsyncPushConsumer("trio-readers", topics, handle, name_server, consume_from="earliest"):
            await all_handled.wait()
    print(f"{len(handled)} messages handled")


trio.run(main)
