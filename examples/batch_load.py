"""Load many messages fast, and account for every one: what came in at standard input goes out, a message a line.

    seq 100000 | python examples/batch_load.py [NAME_SERVER]

`send_async` lets messages wait up to 10 ms for company and sends those together that go to one queue. It blocks when
too many are pending, so the input may be of any size.
"""

import sys
import time

from ropewalk import Producer

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"

began = time.monotonic()
with Producer(name_server, group="batch-load", linger=0.01, batch_bytes=256 * 1024) as producer:
    for line in sys.stdin.buffer:
        producer.send_async("batch-load", line.rstrip(b"\n"))
    producer.flush()
seconds = time.monotonic() - began

counts = producer.counts
print(f"{counts.acknowledged} of {counts.submitted} messages acknowledged in {seconds:.2f} s")
if counts.acknowledged != counts.submitted:
    sys.exit(
        f"{counts.reserved} stored with a reservation, {counts.refused} refused, {counts.unknown} unknown"
    )
