"""High availability: the same log on more than one machine.

A slave connects to its master and reports how far its log reaches; the master sends the bytes that
follow. The report doubles as the heartbeat and as the acknowledgement, so one number per slave is all
a master needs to decide whether a waiting producer may be answered.

*Replicate* is a promise of its own beside append and flush. This room counts who has kept it, and
hands the counts to the ordered queue of waiting answers that group flush and long polling use too.

Left to others: bytes on disk, on either end (`store`); clients, topics and roles as an operator sees
them (`broker`). Decisions are made in cores that take events and return effects; only the shells
around them touch a stream.
"""
