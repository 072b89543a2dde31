"""The members of a DLedger group: the configurations in the log, and changes of them.

To be read in this order:

    configurations.py   the configurations that a member's log names, and the one in force
    changes.py          changes of the members, as operators ask for them
"""
