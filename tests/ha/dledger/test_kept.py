"""The bytes of the runs that a leader appended last."""

from __future__ import annotations

import crc32c

from ha.dledger.kept import KeptBytes


def test_runs_that_are_sent_as_one_have_their_bytes_and_one_checksum() -> None:
    kept = KeptBytes()
    kept.add(5, 2, b"five, six")
    kept.add(7, 1, b"seven")
    kept.add(8, 3, b"eight to ten")
    assert kept.get(7, 1) == (b"seven", crc32c.crc32c(b"seven"))
    joined = b"five, sixseveneight to ten"
    assert kept.get(5, 6) == (joined, crc32c.crc32c(joined))
