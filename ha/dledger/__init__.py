"""DLedger mode between the pure core of `ha.raft` and the world: links to the other members, and the log on disk.

To be read in this order:

    storage.py      what the shell asks of a log and of a store
    links/          the links to all members: introduction, address book, frames in and out
    kept.py         bytes of own appends, until they are sent to every peer
    outbox.py       messages to peers, with the bytes of their runs
    callbacks.py    callers that wait for an outcome
    reads.py        reads of the newest state, one question to the core for each turn
    forwards.py     requests of clients that reached a follower
    shown.py        the log through the last entry that consumers may see
    roles.py        the roles that a member has had, as people are told of them
    room.py         a log that waits for room on the disk
    snapshots.py    a snapshot on its way to a member that retention has left behind
    members/        the configurations in the log, and changes of the members
    events.py       events on their way to the core, one after the other
    ledger.py       `LedgerShell`: events in, effects carried out in their order
    status.py       a member as people see it
    tasks.py        the trio tasks of a member: dial, tick

None of it decides anything about terms or roles: that is `ha.raft`.
"""
