"""The members of a DLedger group: the configurations in the log, and changes of them.

To be read in this order:

    configurations.py   the configurations that a member's log names, and the one in force
    records.py          configurations that a leader has still to append
    changes.py          changes of the members, as operators ask for them
    following.py        the steps of a region to the members of the first group
    group_members.py    the members of a group: how it begins, what is in force, how it changes
    readmission.py      the note that a member, which had lost its log, votes again
    overrides.py        decisions that a group leaves to an operator
"""
