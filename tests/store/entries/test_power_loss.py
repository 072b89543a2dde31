"""Power loss at any moment of a log of entries: what was reported as synced is there, and so is the last ballot."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from tests.sim.disk import PowerLoss, SimDisk
from tests.store.entries.host import NOTHING, Entry, Host, bodies, place, point_of, run_behind

ROOT = Path("/ledger")


class Life:
    """A log that is used at random until the power goes, with what its next start has to find."""

    def __init__(self, disk: SimDisk, draw: random.Random, model: list[Entry], term: int) -> None:
        self.draw = draw
        self.host = Host(ROOT, disk)
        self.model = model
        self.term = term
        self.safe = len(model) - 1
        """The index through which the log must be found."""
        self.commit = self.host.entries.commit[0]
        self.ballot = self.host.entries.ballot
        self.gone: list[Entry] = []
        """Entries whose cut was reported as done: no start may find them."""
        self.floors: dict[int, int] = {}
        self.cuts = 0

    def act(self) -> None:
        draw, host = self.draw, self.host
        what = draw.random()
        if what < 0.3:
            entries = run_behind(self.model[-1] if self.model else None, self.term, bodies(draw))
            place(host, entries)
            self.model += entries
        elif what < 0.33 and self.model:
            keep = max(self.commit, len(self.model) - draw.randrange(1, 8))
            if keep < len(self.model) - 1:
                cut = self.model[keep + 1 :]
                del self.model[keep + 1 :]
                self.cuts += 1
                self.floors[self.cuts] = keep
                self.safe = min(self.safe, keep)
                host.entries.cut(
                    *(point_of(self.model[keep]) if keep >= 0 else NOTHING), lambda: self.gone.extend(cut)
                )
                self.vote()
        elif what < 0.36:
            self.vote()
        elif what < 0.5:
            host.entries.flush(self.flushed)
        else:
            host.step(draw.randrange(5))

    def vote(self) -> None:
        self.term += 1
        ballot = self.term, self.draw.choice(("", "n0", "n1"))
        self.host.entries.save(*ballot, lambda: self.voted(ballot))

    def voted(self, ballot: tuple[int, str]) -> None:
        self.ballot = ballot

    def flushed(self, point: tuple[int, int, int], cuts: int) -> None:
        index = min([point[0], *(floor for number, floor in self.floors.items() if number > cuts)])
        self.safe = max(self.safe, index)
        if index > self.commit and self.draw.random() < 0.4:
            self.commit = index
            self.host.entries.committed(*point_of(self.model[index]))


@pytest.mark.parametrize("seed", range(40))
def test_what_was_reported_as_synced_outlives_any_loss_of_power(seed: int) -> None:
    draw = random.Random(seed)
    model: list[Entry] = []
    disk, term = SimDisk(draw), 1
    Host(ROOT, disk).entries.save(1, "n0", lambda: None)
    for _ in range(4):
        life = Life(disk, draw, model, max(term, 1))
        disk.crash_after = draw.randrange(60, 400)
        try:
            life.vote()
            for _ in range(200):
                life.act()
        except PowerLoss:
            pass
        disk = disk.power_loss(draw)
        found = Host(ROOT, disk)
        entries = found.read_all()
        assert entries[: life.safe + 1] == life.model[: life.safe + 1], (
            life.safe,
            len(entries),
            len(life.model),
        )
        assert not [entry[:3] for entry in entries if entry in life.gone]
        assert life.commit <= len(entries) - 1 and found.entries.commit[0] <= life.commit
        assert found.entries.ballot[0] >= life.ballot[0]
        if found.entries.ballot[0] == life.ballot[0]:
            assert found.entries.ballot == life.ballot or life.term > life.ballot[0]
        found.entries.save(life.term + 1, "", lambda: None)
        found.close()
        model, term = entries, life.term + 1


def test_a_cut_is_whole_or_not_at_all_whatever_step_the_power_goes_in() -> None:
    keep, steps = 9, 0
    ends: set[int] = set()
    while True:
        steps += 1
        draw = random.Random(steps)
        disk = SimDisk(draw)
        host = Host(ROOT, disk)
        host.entries.save(1, "n0", lambda: None)
        model: list[Entry] = []
        for _ in range(60):
            entries = run_behind(model[-1] if model else None, 1, [bytes(range(200))])
            place(host, entries)
            host.settle()
            model += entries
        host.entries.flush(lambda _point, _cuts: None)
        host.settle()
        assert len(host.log.segments) > 3
        done: list[bool] = []
        disk.crash_after = steps
        try:
            host.entries.cut(*point_of(model[keep]), partial(done.append, True))
            host.settle()
        except PowerLoss:
            pass
        disk = disk.power_loss(draw)
        found = Host(ROOT, disk)
        ends.add(found.entries.end[0])
        assert found.entries.end[0] in ((keep,) if done else (keep, 59)), (steps, found.found.findings)
        assert found.read_all() == model[: found.entries.end[0] + 1]
        assert found.entries.doubt is None and not disk.exists(ROOT / "ropewalk" / "dledger" / "cut")
        found.close()
        if done:
            break
    assert ends == {keep, 59} and steps > 5
