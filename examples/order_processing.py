"""Keep the steps of each order in order: one message group per order, and an orderly consumer.

    python examples/order_processing.py [NAME_SERVER]

Messages of one group lie in one queue in the order they were sent, and an orderly consumer handles the messages of a
queue one after the other. Different orders are handled side by side.
"""

import sys
import threading
from collections import defaultdict

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
STEPS = ("created", "paid", "packed", "shipped")
ORDERS = [f"order-{number}" for number in range(8)]

with Producer(name_server, group="shop") as producer:
    for step in STEPS:
        for order in ORDERS:
            producer.send("order-steps", Message(step.encode(), keys=order, group=order))

history: dict[str, list[str]] = defaultdict(list)
done = threading.Event()


def handle(message: ReceivedMessage) -> None:
    (order,) = message.keys
    history[order].append(message.body.decode())
    if sum(map(len, history.values())) == len(ORDERS) * len(STEPS):
        done.set()


with PushConsumer(
    "order-desk", {"order-steps": "*"}, handle, name_server, orderly=True, consume_from="earliest"
):
    done.wait(20)

for order, steps in sorted(history.items()):
    print(order, " ".join(steps))
assert all(steps == list(STEPS) for steps in history.values()) and len(history) == len(ORDERS)
