"""Transactional messages: half messages, their commit or rollback, and checks of those that nobody decided.

    send, TRAN_MSG    ->  half record in RMQ_SYS_TRANS_HALF_TOPIC queue 0, which no consumer reads
    END_TRANSACTION   ->  commit: the message in its own topic
                          commit and rollback: an operation record in RMQ_SYS_TRANS_OP_HALF_TOPIC
    every 30 s        ->  undecided halves: CHECK_TRANSACTION_STATE to a producer of the group, which answers with 37

Topics, properties and operation records are RocketMQ's, so that a directory changes hands in the middle of a
transaction. The bookkeeping is not: what is open is known in memory (`open_halves`) and read from the log once, at a
start or a promotion (`loading`), so a check costs no second look at everything that was decided.

Read `records` (the formats, pure), `open_halves` (the bookkeeping, pure), `loading`, `service` (checks, operation
records, progress), `end` (code 37), `producers` (which connection is asked), `counts` (`transactionMetrics`).
"""
