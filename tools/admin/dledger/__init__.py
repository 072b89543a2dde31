"""Look after groups of brokers that elect their leader: `ropewalk admin dledger …`.

Read `group.py` for the family and what it shows, then `members.py` for the commands that change a group.
"""
