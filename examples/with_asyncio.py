"""Produce and consume in one asyncio program: the handler is a coroutine function.

python examples/with_asyncio.py [NAME_SERVER]
"""

import asyncio
import sys

from ropewalk import AsyncProducer, AsyncPushConsumer, ReceivedMessage

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
COUNT = 20


async def main() -> None:
    handled: list[bytes] = []
    all_handled = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)
        if len(handled) == COUNT:
            all_handled.set()

    async with AsyncProducer(name_server, group="asyncio-example") as producer:
        sends = (producer.send("asyncio-example", b"%d" % number) for number in range(COUNT))
        await asyncio.gather(*sends)

    topics = {"asyncio-example": "*"}
    async with AsyncPushConsumer("asyncio-readers", topics, handle, name_server, consume_from="earliest"):
        await asyncio.wait_for(all_handled.wait(), 20)
    print(f"{len(handled)} messages handled")


asyncio.run(main())
