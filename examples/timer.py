"""Messages that come at a time: any time up to three days ahead, and taken back until then.

    python examples/timer.py [NAME_SERVER]

The broker has to allow recalls: `ropewalk broker --set recallMessageEnable=true`.
"""

import sys
import threading
from datetime import UTC, datetime, timedelta

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
arrived: list[str] = []
done = threading.Event()


def ring(message: ReceivedMessage) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {message.body.decode()}", flush=True)
    arrived.append(message.body.decode())
    if len(arrived) == 2:
        done.set()


with Producer(name_server, group="alarms") as producer:
    producer.send("alarms", Message(b"get up", deliver_at=datetime.now(UTC) + timedelta(seconds=3)))
    snooze = producer.send("alarms", Message(b"snooze", delay=timedelta(seconds=4)))
    producer.send("alarms", Message(b"leave the house", delay=timedelta(seconds=6)))
    assert snooze.recall_handle is not None
    producer.recall(snooze.recall_handle)

with PushConsumer("sleepers", {"alarms": "*"}, ring, name_server, consume_from="earliest"):
    done.wait(30)
assert arrived == ["get up", "leave the house"], arrived
