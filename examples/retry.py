"""What fails comes again: first by itself after a delay, and in the end as a dead letter that a person looks at.

    python examples/retry.py [NAME_SERVER]

With RocketMQ's own delays the first retry comes after 10 s and the whole story takes a minute.
"""

import sys
import threading

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage, RetryLater

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
settled: set[str] = set()
done = threading.Event()


def charge(message: ReceivedMessage) -> None:
    customer = message.body.decode()
    tries = message.reconsume_times
    print(f"{customer}: try {tries + 1}", flush=True)
    if customer == "bank is down" and tries == 0:
        raise RetryLater(delay_level=1)  # we know that it will be better soon
    if customer == "no such account":
        if tries < 1:
            raise RetryLater
        settled.add(customer)
        raise RetryLater(delay_level=-1)  # never: a dead letter
    settled.add(customer)
    if len(settled) == 3:
        done.set()


with Producer(name_server, group="charges") as producer:
    for customer in ("fine", "bank is down", "no such account"):
        producer.send("charges", Message(customer.encode()))

with PushConsumer("cashiers", {"charges": "*"}, charge, name_server, consume_from="earliest"):
    while len(settled) < 3 and not done.wait(0.1):
        pass
print(f"{len(settled)} messages settled; dead letters lie in %DLQ%cashiers")
