"""The client of name servers and brokers: cores that decide, two shells that carry.

A connection: `core.py` holds everything that can be decided without a socket (which answer belongs to which
request, what to do with an answer nobody waits for any more). `blocking.py` carries its bytes over a plain socket,
for scripts and the command line; `anyio_shell.py` does the same inside a trio or asyncio program, the broker
included.

Above it, conversations (`steps.py`): generators that say what to ask whom and are resumed with the answer. They hold
the rules of producers (`sending.py`, with `choice.py` and `batcher.py`) and of everybody's routes (`directory.py`),
and are carried by `blocking_links.py` and `anyio_links.py`. `Producer` in `blocking_producer.py` and `AsyncProducer`
in `producer.py` are shells over one core.

An administrator's conversations are in `admin_cluster.py` and the `admin_*` files that stand on it; `Admin` in
`blocking_admin.py` and `AsyncAdmin` in `admin.py` carry them.

`addresses.py`, `routes.py`, `ids.py`, `bodies.py` and `membership.py` are pure helpers, `machine.py` this machine's
clocks. `simple.py` is a small client over the blocking shell.

Nothing is imported here on purpose: a script that needs the blocking client does not pay for anyio.
"""
