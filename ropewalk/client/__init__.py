"""Talking to name servers and brokers: one core that decides, two shells that carry.

`core.py` holds everything that can be decided without a socket: which answer belongs to which
request, what to do with an answer nobody waits for any more. `blocking.py` carries its bytes over
a plain socket, for scripts and the command line; `anyio_shell.py` does the same inside a trio or
asyncio program, the broker included. `addresses.py`, `routes.py`, `ids.py` and `bodies.py` are
pure helpers. `simple.py` is a small client over the blocking shell.

Nothing is imported here on purpose: a script that needs the blocking client does not pay for anyio.
"""
