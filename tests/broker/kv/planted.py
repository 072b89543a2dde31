"""The bugs that histories of a region must find; `python -m tests.broker.kv.planted NAME` plants one and looks."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bugs import plant

BUGS = ("kv-lease-by-local-clock", "kv-outcome-of-another-entry", "kv-read-at-once", "kv-retry-applied-twice")
_SEEDS = 12


def main(name: str) -> int:
    """Return 1 when the bug was found."""
    plant.install(name)
    from tests.broker.kv.history import judge

    os.fsync = os.fdatasync = lambda fd: None  # no power is lost here
    for seed in range(_SEEDS):
        with TemporaryDirectory() as root:
            try:
                judge(Path(root), seed, 3000)
            except (
                AssertionError,
                LookupError,
                TypeError,
                ValueError,
            ) as exc:  # an odd answer may not even be read
                place = traceback.extract_tb(exc.__traceback__)[-1].line
                print(f"{name} was found with seed {seed}, by {place!r}: {str(exc)[:2000]}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
