"""The note that a member, which had lost its log, votes again: of each group by itself, and of this log only."""

from __future__ import annotations

import random
from collections.abc import Mapping

from ha.dledger.links.hello import Identity
from ha.dledger.links.peers import Peers
from ha.dledger.members.readmission import Readmission


class Links:
    """Links without connections, whose owner counts what it is told to write down."""

    def __init__(self, incarnation: bytes = b"i" * 16, known: Mapping[str, bytes] | None = None) -> None:
        self.notes = 0
        me = Identity("c", "g", "n0", incarnation, 1 << 16)
        rng = random.Random(1)
        self.peers = Peers(
            me, {"n0": "h:1"}, known or {}, (), self, lambda: 0, rng.randbytes  # type: ignore[arg-type]
        )  # fmt: skip

    def noted(self) -> None:
        self.notes += 1


def test_a_readmission_that_ended_is_noted_once_and_told() -> None:
    links = Links()
    readmission = Readmission(links.peers, 0)
    told = []
    readmission.on_ended = lambda: told.append(readmission.is_noted)
    assert not readmission.is_noted and readmission.through == -1
    readmission.ended(17)
    assert told == [True] and links.notes == 1 and readmission.through == 17


def test_each_group_has_a_note_of_its_own() -> None:
    links = Links()
    Readmission(links.peers, 2).note()
    assert [group for group in range(4) if Readmission(links.peers, group).is_noted] == [2]


def test_the_note_of_a_log_that_was_lost_since_counts_for_nothing() -> None:
    links = Links()
    Readmission(links.peers, 0).note()
    assert Readmission(Links(known=links.peers.known).peers, 0).is_noted
    assert not Readmission(Links(b"j" * 16, links.peers.known).peers, 0).is_noted
