"""The bugs that the simulation of power loss must find, one patch in tests/bugs each, with the seeds to search."""

from __future__ import annotations

SEEDS = 1000
"""Where a change of the store gives all seeds other lives, this makes a test longer and not red."""


BUGS = {
    "acknowledged-bytes-cut": 0,
    "bound-ahead-of-flush": 20,
    "checkpoint-before-data": 0,
    "checkpoint-not-lowered": 0,
    "crc-skipped-on-recovery": 0,
    "dead-bytes-left": 35,
    "entry-before-its-record": 0,
    "flush-error-ignored": 0,
    "flush-skipped": 0,
    "inherited-files-not-synced": 509,
    "newest-seal-counts-as-durable": 0,
    "queue-start-believed": 0,
    "readable-before-flush": 0,
    "recovery-claims-flushed": 0,
    "segment-removal-not-synced": 5330,  # only a start that loses power between two removals shows it
}
"""Each with a seed shortly before one that finds it; the long run searches from 0."""
