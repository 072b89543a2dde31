"""Messages that come later: a delay level says when.

    python examples/delay.py [NAME_SERVER]

Levels are numbers into the broker's table, by default 1 s, 5 s, 10 s, 30 s, 1 min and so on up to 2 h.
"""

import sys
import threading
import time

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
arrived: list[str] = []
done = threading.Event()
began = time.monotonic()


def remind(message: ReceivedMessage) -> None:
    print(f"{time.monotonic() - began:4.1f} s  {message.body.decode()}", flush=True)
    arrived.append(message.body.decode())
    if len(arrived) == 3:
        done.set()


with Producer(name_server, group="reminders") as producer:
    producer.send("reminders", Message(b"in a while", delay_level=2))
    producer.send("reminders", Message(b"in a second", delay_level=1))
    producer.send("reminders", Message(b"now"))

with PushConsumer("people", {"reminders": "*"}, remind, name_server, consume_from="earliest"):
    done.wait(30)
assert sorted(arrived) == ["in a second", "in a while", "now"], arrived
