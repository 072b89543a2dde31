"""A log of entries: DLedger's files on the store's segments, with a ballot, a commit index and a cut while it is open.

To be read in this order:

    files.py        the small files beside the log: ballot, checkpoint, notes of commit, doubt and cut, identity
    recovery.py     a start: which entries are whole, where the log ends, what is in doubt
    cut.py          the end of an open log moved back, redone by the next start after a crash at any step
    reads.py        runs of entries for members that lag, read off the loop
    entry_log.py    `EntryLog`: one storage queue for all of it

Nothing here knows queues, roles or members.
"""
