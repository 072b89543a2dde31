"""Reports of what goes wrong: the client's log lines, what was skipped, and what ended a consumer.

    python examples/troubles.py [NAME_SERVER]

The client logs to the standard library's logger `ropewalk.client`. Warnings are shown without any configuration; here
a handler of our own prints the event and two of its fields. Nothing that a handler does ends consumption: `failure`
says what does, if anything, and `closed` that it is over.
"""

import logging
import sys
import threading

from ropewalk import Admin, Producer, PushConsumer, ReceivedMessage, Skipped

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"


class Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)["fields"]
        print(record.levelname, vars(record)["event"], fields.get("topic"), fields.get("reason"), flush=True)


logging.getLogger("ropewalk.client").addHandler(Lines())
logging.getLogger("ropewalk.client").propagate = False  # not on standard error as well

handled = threading.Event()
skipped = threading.Event()


def handle(message: ReceivedMessage) -> None:
    match message.body:
        case b"careless":
            sys.exit("a handler that wants to end the program")  # fails like any other, and comes again later
        case b"slow":
            skipped.wait(30)
        case b"last":
            handled.set()


def on_skipped(gap: Skipped) -> None:
    print(f"skipped {gap.count} of {gap.queue.topic}: {gap.reason}", flush=True)
    skipped.set()


with Admin(name_server) as admin, Producer(name_server, group="troubles") as producer:
    admin.create_topic("troubles", queues=1)
    for body in (b"careless", b"slow", b"overtaken", b"overtaken"):
        producer.send("troubles", body)
    consumer = PushConsumer(
        "watchers",
        {"troubles": "*", "no-such-topic": "*"},
        handle,
        name_server,
        consume_from="earliest",
        concurrency=1,
        on_skipped=on_skipped,
    )
    consumer.start()
    queue = producer.queues("troubles")[0]
    while not consumer.queues:
        threading.Event().wait(0.05)
    threading.Event().wait(0.5)  # the slow one is at work, and two wait behind it
    admin.reset_offset("watchers", "troubles", queue, 3)  # an administrator sends the group past some
    skipped.wait(30)
    producer.send("troubles", b"last")
    handled.wait(30)
    print(f"still consuming: {not consumer.closed}, failure: {consumer.failure}, skipped: {consumer.skipped}")
    consumer.close()
