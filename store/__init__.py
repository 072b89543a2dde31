"""The store: messages on disk, and what may be said about them after a crash.

A store is one directory. Its truth is the commit log, a row of fixed-size segments that together
form one long address space; everything else in the directory can be rebuilt from it. Consume queues
are the index a consumer walks: one 20-byte entry for each message of a queue, pointing into the log.

Three promises are kept apart here, because three kinds of waiting hang on them:

*append*     the bytes have an offset and can be read back by this process;
*readable*   consumers may see them, which is never earlier than their producer's answer is decided;
*flush*      the disk has confirmed them, and a power loss no longer takes them.

A failed flush ends the process: after it the page cache cannot be trusted to tell what the disk has,
and a retry that reports success would be a lie. Recovery reads what a crash left behind and decides
by a table what to keep, what to cut and when to stop and ask a person. Bytes that were acknowledged
are never cut silently.

The byte layouts come from `ropewalk.format`, and the directory is one that RocketMQ can open. What
RocketMQ has no place for lies in a folder of its own, which can be deleted at the price of checks and
never of messages.

Left to others: copies on other machines (`ha`), the meaning of topics and groups, who is connected,
and what is answered to whom (`broker`). There are no sockets in this room.
"""
