"""Store runs of alike sends by columns. Deleting this folder costs only speed.

`header_template` learns the header of a client's sends, `runs` gathers the sends of one read, `columns` appends a run
of equal size, `many_topics` one that goes to many queues.
"""
