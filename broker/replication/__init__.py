"""Be a member of a broker group: a master that waits for slaves, or a slave that follows.

`master_slave` joins `ha.stream` to this broker's log and loop; `member` keeps the role, on disk before it acts;
`sync` is a slave's conversation with its master; `block_repair` mends damage from another copy; `log_view` shows the
log to a thread that compares copies; `status` is what the rest of the broker may know.
"""
