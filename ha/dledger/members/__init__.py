"""The members of a DLedger group: the configurations in the log, and changes of them.

To be read in this order:

    configurations.py   the configurations that a member's log names, and the one in force
    records.py          configurations that a leader has still to append
    changes.py          changes of the members, as operators ask for them
    following.py        the steps of a region to the members of the first group
    overrides.py        decisions that a group leaves to an operator
"""
