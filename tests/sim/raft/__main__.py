"""Run lives of Raft groups: `python -m tests.sim.raft --seeds 2000`, or one again with `--seed 17`.

`--bug NAME` plants a bug of tests/bugs first. The exit status is 1 if a promise was broken, and the line says with
which command it can be seen again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ha.raft.types import MemberId
    from tests.sim.raft.member import Member
    from tests.sim.raft.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.raft", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--bug", help="plant this bug of tests/bugs first")
    parser.add_argument(
        "--store", action="store_true", help="members with the shipped shell and store, no model"
    )
    parser.add_argument(
        "--lost-logs", action="store_true", help="members lose their disks, and are let in again"
    )
    parser.add_argument("--retention", action="store_true", help="members remove the beginning of their logs")
    parser.add_argument("--verbose", action="store_true", help="tell every event of each life")
    options = parser.parse_args()
    if options.bug is not None:
        from tests.bugs.plant import install

        install(options.bug)
    from tests.sim.raft import world  # late: a bug may have to be planted first
    from tests.sim.raft.model_member import ModelMember

    make_member: Callable[[World, MemberId], Member] = ModelMember
    if options.store:
        import structlog  # with the shipped shell and store: nothing else logs

        from tests.sim.raft.store_member import StoreMember

        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        make_member = StoreMember
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    began = time.process_time()
    events = messages = terms = readmissions = installed = 0
    simulated = 0.0
    for seed in seeds:
        try:
            life = world.run(seed, options.verbose, make_member, options.lost_logs, options.retention)
            readmissions += life.readmissions
            installed += life.installed
        except AssertionError as broken:
            bug = f" --bug {options.bug}" if options.bug else ""
            bug += " --store" if options.store else " --lost-logs" if options.lost_logs else ""
            bug += " --retention" if options.retention else ""
            print(f"BROKEN after {time.process_time() - began:.1f} s, seed {seed}: {broken}")
            print(f"again: python -m tests.sim.raft --seed {seed}{bug}")
            if options.seed is not None:
                print("\n".join(broken.__notes__))
                raise
            return 1
        events += life.events
        messages += len(life.checks.acknowledged)
        terms += max(life.checks.leaders)
        simulated += life.time / 1000
        if options.verbose:
            print(f"seed {seed}: {', '.join(life.storm.kinds)}\n{world.tell(life, 1 << 60)}")
    spent = time.process_time() - began
    print(
        f"{len(seeds)} lives in {spent:.1f} s: no promise broken; {events} events, {events / spent:.0f} a second,"
        f" {simulated / spent:.0f} x real time; {messages} messages acknowledged, {terms} terms"
        + (f", {readmissions} readmissions" if readmissions else "")
        + (f", {installed} snapshots installed" if installed else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
