"""Run simulated lives of the shipped code: `python -m tests.sim --seeds 2000`, or one again with `--seed 17`.

Ten worlds: `store` is one store on a disk that forgets, `group` a master and two slaves with producers and an operator,
`stranger` such a group with a secret and a stranger that speaks every code, `shorter` a group whose master comes back
with a shorter log, `deferred` one with timers and transactions, `ledger` three members of DLedger mode with clients
that read, `ledger-stranger` these beside such a stranger, `kv` such members that serve a region of the key-value store,
`regions` four regions and more of it, `damage` one or more of them with flipped bytes in their logs.
`--bug NAME` plants a bug of tests/bugs first, `--mode` chooses the flush (store), the class of promise (group), the
length (regions: 400 or 10,000 calls) or how many regions there are (damage). The exit status is 1 if a promise was
broken, and the line says with which command it can be seen again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

MODES = {
    "store": ("sync", "async"),
    "group": ("A1", "A3"),
    "stranger": ("A1", "A3"),
    "shorter": ("A1",),
    "deferred": ("A1", "A3"),
    "ledger": ("dledger",),
    "ledger-stranger": ("dledger",),
    "kv": ("dledger",),
    "regions": ("short", "long"),
    "damage": ("one", "more"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--world", choices=tuple(MODES), default="store")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument(
        "--mode",
        help="sync, async (store), A1, A3 (groups), short, long (regions), one, more (damage); all if not given",
    )
    parser.add_argument("--bug", help="plant this bug of tests/bugs first")
    parser.add_argument("--verbose", action="store_true", help="tell what happened in each life")
    options = parser.parse_args()
    modes = MODES[options.world]
    if options.mode not in (None, "both", *modes):
        parser.error(f"--mode of the world {options.world} is one of {', '.join(modes)}")
    if options.bug is not None:
        from tests.bugs.plant import install

        install(options.bug)
    live, broken_promise = _world(options.world)
    chosen = modes if options.mode in (None, "both") else (options.mode,)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    else:
        seeds = range(options.first, options.first + options.seeds)
    began = time.monotonic()
    totals: dict[str, int] = {}
    for seed in seeds:
        for mode in chosen:
            try:
                told, events = live(seed, mode)
            except broken_promise as broken:
                bug = f" --bug {options.bug}" if options.bug else ""
                print(f"BROKEN after {time.monotonic() - began:.1f} s: {broken}")
                print(f"again: python -m tests.sim --world {options.world} --seed {seed} --mode {mode}{bug}")
                return 1
            for name, count in told.items():
                totals[name] = totals.get(name, 0) + count
            if options.verbose:
                print("\n".join([f"seed {seed}, {mode}: {told}", *events]))
    lives = len(seeds) * len(chosen)
    told_all = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{lives} lives in {time.monotonic() - began:.1f} s: no promise broken; {told_all}")
    return 0


Live = Callable[[int, str], tuple[dict[str, int], list[str]]]


def _world(name: str) -> tuple[Live, type[AssertionError]]:
    """How a life of this world is lived, and what it raises. Imported late: a bug may have to be planted first."""
    if name == "store":
        from tests.sim import world

        def store(seed: int, mode: str) -> tuple[dict[str, int], list[str]]:
            history = world.run(seed, sync_flush=mode == "sync")
            return {
                "messages lost that nobody was promised": history.lost_unacknowledged,
                "starts refused for a person to decide": history.refused_starts,
            }, []

        return store, world.Broken
    if name == "ledger":
        from tests.sim.ledger import world as ledger

        def of_members(seed: int, mode: str) -> tuple[dict[str, int], list[str]]:
            life = ledger.run(seed)
            return {
                "messages acknowledged": len(life.messages),
                "reads": life.reads,
                "deaths": life.deaths,
                "transfers": life.transfers,
                "elections": len(life.elected),
            }, life.told

        return of_members, ledger.Broken
    if name == "ledger-stranger":
        from tests.sim.ledger import stranger

        def beside_a_stranger(seed: int, mode: str) -> tuple[dict[str, int], list[str]]:
            life = stranger.run(seed)
            return {
                "messages acknowledged": len(life.messages),
                "deaths": life.deaths,
                "elections": len(life.elected),
                "attempts of the stranger": life.stranger.tried,
            }, life.told

        return beside_a_stranger, stranger.Broken
    if name == "kv":
        from tests.sim.kv import world as kv

        def of_regions(seed: int, mode: str) -> tuple[dict[str, int], list[str]]:
            life = kv.run(seed)
            return {
                "writes answered": life.writes,
                "reads": life.reads,
                "deaths": life.deaths,
                "snapshots": life.snapshots,
                "starts from one": life.restored,
                "members given a state": life.installed,
            }, life.told

        return of_regions, kv.Broken
    if name == "regions":
        from tests.sim.kv import regions

        def of_stores(seed: int, mode: str) -> tuple[dict[str, int], list[str]]:
            store = regions.run(seed, regions.LONG if mode == "long" else regions.OPERATIONS)
            return {
                "calls": store.book.operations,
                "unknown": store.book.unknown,
                "results on keys": store.answered,
                "cuts": store.operator.cuts,
                "deaths": store.deaths,
                "snapshots": store.snapshots,
                "starts from one": store.restored,
                "members given a state": store.installed,
            }, store.told

        return of_stores, regions.Broken
    if name == "damage":
        from tests.sim.kv import damaged

        def of_damage(seed: int, mode: str) -> tuple[dict[str, int], list[str]]:
            hurt = damaged.run(seed) if mode == "one" else damaged.run_regions(seed)
            return {
                "bytes flipped": hurt.damages.flips,
                "logs begun anew": hurt.damages.losses,
                "deaths": hurt.deaths,
                "members given a state": hurt.installed,
            }, hurt.told

        return of_damage, damaged.Broken
    if name == "shorter":
        from tests.sim import group_shorter

        def of_masters(seed: int, mode: str) -> tuple[dict[str, int], list[str]]:
            suffered, shorter = group_shorter.live(seed)
            return {
                "messages acknowledged": len(suffered.acknowledged),
                "masters that came back shorter": shorter,
            }, suffered.events

        return of_masters, group_shorter.Broken
    from tests.sim import deferred, group, group_stranger

    run = {"group": group.run, "stranger": group_stranger.live}.get(name, deferred.live)

    def live(seed: int, mode: str) -> tuple[dict[str, int], list[str]]:
        history = run(seed, mode)
        return {
            "messages acknowledged": len(history.acknowledged),
            "answers unknown": history.unknown,
            "deaths": history.deaths,
            "handovers": history.handovers,
            "handovers given up": history.failed_handovers,
            "groups that only a person can bring to rest": bool(history.unfinished),
        }, history.events

    return live, group.Broken


if __name__ == "__main__":
    sys.exit(main())
