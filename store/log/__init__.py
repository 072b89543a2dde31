"""Keep the commit log: segments in a row, the zeros ahead of the writer, and how far it is durable.

`segment` is one file, `commitlog` the row of them, `preallocate` and `page_prefault` prepare what is written next,
`durable_bound` remembers what is known to be flushed.
"""
