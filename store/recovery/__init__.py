"""Recovery from a crash: scan the log, judge each sighting by a table, bring the queues to the log's end.

`opening` is the order of a start; `scan` has the table and the reader of single records; `record_runs` takes everyday
records by columns; `recheck` looks at the end twice; `delay_levels` says when delayed records are due.
"""
