"""The key-value store as a pure machine: the committed commands of a region's log in, results out.

    region.py     a region: the keys that it has, and the epoch of its cut; the ids of regions
    sessions.py   the sessions of clients, which have a write that is sent again applied once
    table.py      items in the order of their keys, which a snapshot can read while they change
    machine.py    `KvMachine`: values, sequences and locks, and the one clock that they know
    snapshot.py   the whole state as bytes, some rows a turn, and a machine out of them

Members that have applied the same entries have the same state: nothing here reads a clock, or draws.
"""
