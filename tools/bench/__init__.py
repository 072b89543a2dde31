"""Measure a broker's rate and latency, under a load that is cheap enough not to measure itself.

    cli.py       `ropewalk bench produce|pull`: parse, run, print
    prepare.py   before the load: find the broker, make the topic, fill the backlog
    runner.py    start the load as a process of its own, and hear its one answer
    spec.py      the question and the answer, as they travel between the two processes
    frames.py    requests as patterns, in which only the opaque changes
    load.py      the load itself: one epoll, prebuilt frames, every reply checked
    pull.py      the same for pulls
    client.py    a load by the client library (`--client`)
    server.py    what the operating system says about the server: CPU and memory
    report.py    percentiles, and the table

A rate is void, and the exit code says so, as soon as one reply is not status 0 or is missing: a broker
that answers "busy" quickly would otherwise win every comparison.

The load is a raw sender and no client library: the same program drives Ropewalk and Apache RocketMQ, so a
ratio of two rows is a ratio of two servers. With `--client` it is Ropewalk's client library instead, and the row
says so: what a Python program gets, and not what a server can do.
"""

from tools.bench.cli import app

__all__ = ["app"]
