"""DLedger mode between the pure core of `ha.raft` and the world: links to the other members, and the log on disk.

To be read in this order:

    storage.py      what the shell asks of a log and of a store
    hello.py        the introduction of one member to another: challenge, hello, welcome; every refusal in words
    address_book.py the members that this one is linked to, and where they are
    peers.py        the links to all members: a control and a data link each; frames in and out
    kept.py         bytes of own appends, until they are sent to every peer
    snapshots.py    a snapshot on its way to a member that retention has left behind
    changes.py      changes of the members, as operators ask for them
    ledger.py       `LedgerShell`: events in, effects carried out in their order
    status.py       a member as people see it
    tasks.py        the trio tasks of a member: dial, tick

None of it decides anything about terms or roles: that is `ha.raft`.
"""
