"""The cut of a machine's state in two, at a key: a function of the state alone, so members that apply it agree.

    values, sequences, locks    go to the side of their keys
    sessions                    are on both sides from now on, with all outcomes that are kept: a write that is sent
                                again after the cut finds its outcome wherever its key went
    clock                       both sides go on from the same moment: no lease gets longer or shorter

The new side needs no file to begin with. It begins where the entry is applied, at every start again, and its own log
begins at index 0; its `origin` has numbers of entries rise on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ha.kv.region import Region
from ha.kv.table import Table

if TYPE_CHECKING:
    from ha.kv.machine import KvMachine

V = TypeVar("V")


def divide(whole: KvMachine, upper: KvMachine) -> None:
    """Move everything from the first key of `upper` on, which is empty, from `whole` to it."""
    region, key = whole.region, upper.region.start
    assert region.may_be_cut_at(key) and upper.region.epoch == region.epoch + 1, (region, upper.region)
    whole.region = Region(region.id, region.start, key, region.epoch + 1)
    upper.clock_ms = whole.clock_ms
    upper.sessions = whole.sessions.copy()
    whole.values, upper.values = _halves(whole.values, key)
    whole.sequences, upper.sequences = _halves(whole.sequences, key)
    whole.locks, upper.locks = _halves(whole.locks, key)
    whole.count_again()
    upper.count_again()


def _halves(whole: Table[V], key: bytes) -> tuple[Table[V], Table[V]]:
    at, keys = whole.bisect_left(key), whole.keys()
    lower, upper = Table[V](), Table[V]()
    for half, part in ((lower, keys[:at]), (upper, keys[at:])):
        half.fill(part, [whole[each] for each in part])
    return lower, upper
