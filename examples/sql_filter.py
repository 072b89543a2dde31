"""A group that wants only some messages says so in SQL92, and the broker leaves the others out.

    python examples/sql_filter.py [NAME_SERVER]

The broker has to allow it: `ropewalk broker --set enablePropertyFilter=true`, or while it runs
`ropewalk admin broker config set enablePropertyFilter=true`.
"""

import sys
import threading

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
WANTED = "amount > 100 AND region IN ('eu', 'uk')"
ORDERS = [(50, "eu"), (150, "eu"), (500, "us"), (120, "uk"), (99, "uk"), (101, "eu")]

seen: list[str] = []
done = threading.Event()


def review(message: ReceivedMessage) -> None:
    seen.append(message.body.decode())
    print(f"to be reviewed: {seen[-1]}", flush=True)
    if len(seen) == 3:
        done.set()


with Producer(name_server, group="shop") as producer:
    for number, (amount, region) in enumerate(ORDERS):
        properties = {"amount": str(amount), "region": region}
        producer.send("big-orders", Message(f"order-{number}".encode(), properties=properties))

with PushConsumer("reviewers", {}, review, name_server, sql={"big-orders": WANTED}, consume_from="earliest"):
    done.wait(60)
print(f"{len(seen)} of {len(ORDERS)} orders reviewed: {' '.join(sorted(seen))}")
