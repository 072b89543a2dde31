"""Send a few messages and read them back, with nothing but blocking calls.

python examples/blocking.py [NAME_SERVER]
"""

import sys

from ropewalk import Message, Producer, PullConsumer

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"

with Producer(name_server, group="blocking-example") as producer:
    for number in range(10):
        result = producer.send("blocking-example", Message(b"message %d" % number, keys=f"key-{number}"))
        print(result.status.name, result.queue.queue_id, result.queue_offset)

with PullConsumer(
    "blocking-readers", {"blocking-example": "*"}, name_server, consume_from="earliest"
) as consumer:
    consumer.assign_topics()
    count = 0
    while messages := consumer.poll(timeout=0.5):
        for message in messages:
            print(message.keys, message.body.decode())
            count += 1
        consumer.commit()  # only now: what was printed need not be printed again
print(f"{count} messages read")
