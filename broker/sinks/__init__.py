"""Sinks that write exactly once: the idempotent append of pipelines, Ropewalk's own.

A pipeline writes in batches, and repeats a batch whose end it does not know of: tasks are run twice, and a driver that
comes back runs the whole batch again. The rows of a repeated batch are the same, their order need not be.

    30030 init      a new epoch of the sink; everything of earlier epochs is fenced
    30031 append    rows with keys; those that the batch has already are not appended again
    30032 commit    the batch is complete; its keys are forgotten, and what still comes of it is fenced

Everything that has to outlive a crash or a failover is in the log, so it is replicated with the messages: the state of
a sink as records of a hidden topic, the keys as a property of each row (`ropewalk.client.core.produce.row_identity`).

Read `windows` (the decisions, pure), `records` (the hidden topic, pure), `loading` (at a start and at a promotion),
`service` (the requests). The administrators' requests are `broker.admin.sinks`.
"""
