"""Run simulated lives of the shipped store: `python -m tests.sim --seeds 2000`, or one again with `--seed 17`.

`--bug NAME` plants a bug of tests/bugs in the store first, `--mode` chooses the flush. The exit status is 1 if a
promise was broken, and the line says with which command it can be seen again.
"""

from __future__ import annotations

import argparse
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--mode", choices=("sync", "async", "both"), default="both")
    parser.add_argument("--bug", help="plant this bug of tests/bugs first")
    options = parser.parse_args()
    if options.bug is not None:
        from tests.bugs.plant import install

        install(options.bug)
    from tests.sim.world import Broken, run

    seeds = (
        [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    )
    modes = {"sync": (True,), "async": (False,), "both": (True, False)}[options.mode]
    began = time.monotonic()
    refused = lost = 0
    for seed in seeds:
        for sync_flush in modes:
            mode = "sync" if sync_flush else "async"
            try:
                history = run(seed, sync_flush=sync_flush)
            except Broken as broken:
                bug = f" --bug {options.bug}" if options.bug else ""
                print(f"BROKEN after {time.monotonic() - began:.1f} s: {broken}")
                print(f"again: python -m tests.sim --seed {seed} --mode {mode}{bug}")
                return 1
            refused += history.refused_starts
            lost += history.lost_unacknowledged
    print(
        f"{len(seeds) * len(modes)} lives in {time.monotonic() - began:.1f} s: no promise broken; "
        f"{lost} messages lost that nobody was promised, {refused} starts refused for a person to decide"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
