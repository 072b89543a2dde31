"""The client of name servers and brokers: cores that decide, two shells that carry.

`core/` decides without a socket: which answer belongs to which request (`connection`), what a producer, a consumer or
an administrator says next (conversations, `steps`), where topics live (`directory`), which queue and which member.
`aio/` carries that over anyio, for programs on trio or asyncio and for the broker's own calls; `blocking/` over plain
sockets, for scripts, Spark executors and the command line. `Producer` and `AsyncProducer` are two shells over one core.

`admin/` holds an administrator's conversations. `machine` has this machine's clocks, `fork` what a child process makes
of the clients that it inherits, `log` the client's log lines. `blocking/simple` is a small client without a group.

Nothing is imported here on purpose: a script that needs the blocking client does not pay for anyio.
"""
