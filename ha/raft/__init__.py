"""The Raft core of DLedger mode: a member of a group as a state machine. Pure: events in, effects out.

The theory. One log, equal on all members through its *commit index*. In each *term* at most one member leads: a
majority voted for it, each at most once, and each had a log that was no longer than its own. Only the leader appends.
It sends every entry with the index and term of the one before, so that a follower whose log differs notices, and cuts
what differs. An entry is committed when a majority has it on disk and one of the leader's own term is there too; every
later leader then has it, because any two majorities share a member that would not vote for less. All of it is in
`tests/ha/raft/test_paper.py`, section by section.

What differs from the paper is there for a disk and a loop that are not free. Entries are seen as *runs*. A leader sends
a run beside its own flush, and counts itself when that flush is done. Nothing in the effects of a step waits for a
write of the same step, so a shell never waits and a simulation may delay every write: what depends on a write stays in
here until the write is reported. DLedger's names are kept where its operators meet them (EntryDispatcher,
EntryHandler, QuorumAckChecker, the vote results), its rules where they are safe.

To be read in this order:

    types.py        the nouns, what a core is told and what it asks for
    terms.py        which term an index has: the log in a few rows
    quorum.py       what a majority is, for one configuration or a joint one; which one is in force
    log_state.py    end, durable, commit; why a flush and a cut may cross
    election.py     pre-vote, vote, ballots; the table of vote results
    handler.py      a follower: match, conflict, commit
    dispatcher.py   a leader: what each peer is sent
    leadership.py   what a leader has and loses with its term
    reads.py        when a state may be read as the newest there is
    transfer.py     how a leader hands over, and to whom
    membership.py   how members come and go: learners, joint configurations, a member that lost its log
    node.py         where the parts meet: `step`
    rules.py        what is asserted after every step

`draft.py` collects the effects of a step. A place is left open: the event of an installed snapshot enters in
`RaftNode.step` and has a part of its own (snapshot.py).
"""
