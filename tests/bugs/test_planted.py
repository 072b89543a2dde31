"""Every planted bug is found by the checker that is there for it; a checker nobody has seen fail proves nothing."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.broker.kv.planted import BUGS as REGION_BUGS
from tests.bugs import plant
from tests.bugs.found_by_tests import BUGS as TEST_BUGS
from tests.crash.campaign import Campaign, Setup, chosen_seed
from tests.crash.torn_tail import SETTINGS, SETUP, tear_and_look
from tests.crash.tracing import traced_load
from tests.ha.kv.planted import BUGS as KV_BUGS
from tests.sim.kv.planted import BUGS as KV_WORLD_BUGS
from tests.sim.kv.planted import DAMAGE_BUGS, RARE_BUGS, REGIONS_BUGS
from tests.sim.ledger.planted import BUGS as LEDGER_BUGS
from tests.sim.ledger.planted import STRANGER_BUGS as LEDGER_STRANGER_BUGS
from tests.sim.planted_in_deferred import BUGS as DEFERRED_BUGS
from tests.sim.planted_in_group import BUGS as GROUP_BUGS
from tests.sim.planted_in_group import SHORTER_BUGS, STRANGER_BUGS
from tests.sim.planted_in_store import BUGS as SIMULATION_BUGS
from tests.sim.raft.planted import BUGS as RAFT_BUGS
from tests.sim.raft.planted import STORE_BUGS as RAFT_STORE_BUGS
from tests.support.processes import checkout_environment
from tests.tools.drill.planted import DRILL_BUGS

FLUSH_BUGS = ["ack-before-flush", "flush-overclaims", "flush-skipped"]


@dataclass(frozen=True, slots=True)
class CrashBug:
    """How the audit finds it."""

    kinds: frozenset[str]
    """The violations that may tell of it: it can show itself in more than one way, and any other would be luck."""
    kills: int = 8
    """Kills after which everything is read, files too."""


def found_as(*kinds: str, kills: int = 8) -> CrashBug:
    return CrashBug(frozenset(kinds), kills)


CRASH_BUGS = {
    "acknowledged-bytes-cut": found_as("lost", "gap", "damaged"),
    "bound-ahead-of-queues": found_as("lost", "gap", "twice", "changed", "topic"),
    "committed-offsets-forgotten": found_as("commit"),
    "crc-skipped-on-recovery": found_as("damaged", "lost", "unknown"),
    "dispatch-forgotten-after-restart": found_as("lost", "gap", "twice", "topic"),
    # After a kill the entries are taken from the log again; the files tell it after a stop in good order.
    "queue-entry-lost": found_as("lost", "gap", "queue-file", "damaged", kills=1),
}


def planted(name: str) -> list[str]:
    return [sys.executable, "-m", "tests.bugs.plant", name]


def tell(name: str, seed: int, began: float, found: str) -> None:
    print(f"patch {name}, seed {seed}, {time.monotonic() - began:.1f} s: {found}")


def test_every_planted_bug_has_a_checker_that_must_find_it() -> None:
    assert plant.names() == sorted(
        {*FLUSH_BUGS, *CRASH_BUGS, *SIMULATION_BUGS, *GROUP_BUGS, *SHORTER_BUGS, *STRANGER_BUGS}
        | {*DEFERRED_BUGS}
        | {*RAFT_BUGS, *RAFT_STORE_BUGS, *LEDGER_BUGS, *DRILL_BUGS, *KV_BUGS, *REGION_BUGS}
        | {*LEDGER_STRANGER_BUGS, *TEST_BUGS, *KV_WORLD_BUGS, *REGIONS_BUGS, *RARE_BUGS, *DAMAGE_BUGS}
    )


@pytest.mark.parametrize("name", plant.names())
def test_the_patch_still_applies_and_what_it_makes_is_python(name: str) -> None:
    for path, source in plant.patched_sources(name).items():
        assert source != (plant.ROOT / path).read_text()
        compile(source, path, "exec")


def test_a_patch_that_does_not_fit_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stale.patch").write_text(
        "--- a/broker/waiting/pending_acks.py\n+++ b/broker/waiting/pending_acks.py\n@@\n-no such line\n+x\n"
    )
    monkeypatch.setattr(plant, "BUGS", tmp_path)
    with pytest.raises(plant.StalePatch, match="0 times"):
        plant.patched_sources("stale")


def test_an_unknown_bug_starts_nothing() -> None:
    done = subprocess.run(
        [*planted("no-such-bug"), "broker"],
        env=checkout_environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == b""


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("name", FLUSH_BUGS)
def test_a_reply_that_does_not_wait_for_its_flush_is_seen_by_strace(
    name: str, tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    """One of them shows only where a request comes while a flush runs: a load or two can miss that."""
    first, began = chosen_seed(), time.monotonic()
    for seed in range(first, first + 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        verdict, _ledger = traced_load(need_program("strace"), folder, seed, planted(name), requests=100)
        if verdict.early:
            break
    assert verdict.early, (
        f"seeds {first} to {seed}: {verdict.replies} replies in the last and no one was early"
    )
    tell(name, seed, began, f"{len(verdict.early)} of {verdict.replies} replies were early")


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("name", CRASH_BUGS)
def test_a_bug_in_what_survives_a_crash_is_found_by_the_audit(name: str, tmp_path: Path) -> None:
    seed, began = chosen_seed(), time.monotonic()
    setup = SETUP if name == "crc-skipped-on-recovery" else Setup("ASYNC_FLUSH")
    campaign = Campaign(tmp_path, seed, setup, command=planted(name))
    # The second look at the log's end would heal what some of these bugs break, and hide them.
    campaign.place.settings["checkAtStartBytes"] = 0
    if name == "crc-skipped-on-recovery":
        campaign.place.settings.update(SETTINGS)
        tear_and_look(campaign)
    else:
        hunt(campaign, CRASH_BUGS[name].kills)
    kinds = campaign.audit.kinds
    assert f"planted bug: {name}" in campaign.place.errors()
    assert kinds, f"seed {seed}: {campaign.kills} kills, and the audit is content"
    assert kinds <= CRASH_BUGS[name].kinds, campaign.verdict()
    tell(name, seed, began, str(campaign.audit.violations[0]))


def hunt(campaign: Campaign, kills: int) -> None:
    """Short rounds, each ended by one of the ways in which a broker ends, until a violation shows."""
    while campaign.kills < kills and not campaign.audit.violations:
        server = campaign.start()
        if server is None:
            return
        with server:
            campaign.look(server)
            if campaign.audit.violations:
                return
            ending = campaign.place.incarnations % 3
            if ending == 0:
                campaign.load_and_terminate(server, seconds=0.3)
            else:
                campaign.load_and_kill(server, seconds=0.3, quiet=0.2 if ending == 1 else 0.0)
    campaign.finish()
