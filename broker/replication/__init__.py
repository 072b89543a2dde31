"""Be a member of a broker group: a master that waits for slaves, or a slave that follows.

`group_member` is the group as the broker sees it, `master_slave_member` the one of a master and slaves,
`dledger.member` the one that elects its leader. Behind the first, `master_slave` joins `ha.stream` to this broker's log
and loop; `member` keeps the role, on disk before it acts (`role_files`), and shares tables with the others
(`table_sync`); `slave` is a slave's conversation with its master; `block_repair` mends damage from another copy;
`log_view` shows the log to a thread that compares copies.
"""
