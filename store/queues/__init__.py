"""Keep consume queues: the 20-byte entries that lead from a queue offset into the log.

`consume_queue` is one queue; `entry_pool` and `linked_entries` hold fresh entries of very many queues cheaply;
`queue_writer` writes the files; `deleted_topics` remembers whose entries must not come back.
"""
