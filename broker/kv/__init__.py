"""The replicated key-value store in a member's process: one region, a Raft group of its own over the members' links.

region.py      `KvRegion`: the region's log, its `LedgerShell` and its machine, and who waits for an entry
requests.py    codes 30100 to 30107: writes at the region's leader, linearizable reads at every member
"""
