"""The replicated key-value store in a member's process: its regions, Raft groups of their own over the members' links.

regions.py     `KvRegions`: all regions, and how one is cut in two
region.py      `KvRegion`: a region's log, its `LedgerShell` and its machine, and who waits for an entry
members.py     `RegionMembers`: regions follow the members of the group of the messages
requests.py    codes 30100 to 30107: writes at a region's leader, linearizable reads at every member
"""
