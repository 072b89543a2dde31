"""Full load on a DLedger group for minutes, and the elections meanwhile: `python -m tests.bench.ledger_load`.

Three brokers and a name server run as processes on this machine; `ropewalk bench produce` keeps 4 x 256 messages of
128 B in flight at the leader. The term before and after tells whether anyone stood for election. Retention
keeps the stores small, as on a disk that is full enough. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from tests.crash.ledger_group import LedgerGroup
from tests.support.processes import checkout_command, checkout_environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument(
        "--data-dir", type=Path, help="where the stores go: on the disk that is to be measured"
    )
    options = parser.parse_args()
    settings: dict[str, str | int] = {
        "mappedFileSizeCommitLog": 256 << 20,
        "diskMaxUsedSpaceRatio": 10,
        "cleanResourceInterval": 2000,
    }
    with (
        tempfile.TemporaryDirectory(prefix="ropewalk-load-", dir=options.data_dir) as folder,
        LedgerGroup(Path(folder), settings=settings) as group,
    ):
        leader = group.leader()
        before = {each.id: each.term for each in group.status()}
        load = ["bench", "produce", f"--broker={leader.address}", "-c4", "-f256", "--body-size=128", "--json"]
        done = subprocess.run(
            [*checkout_command(), *load, f"--duration={60 * options.minutes}"],
            env=checkout_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        after = {each.id: each.term for each in group.status()}
        print(
            f"{leader.id} led; terms before {before}, after {after}; the load ended with status {done.returncode}"
        )
        print(json.dumps(json.loads(done.stdout), indent=1) if done.stdout else done.stderr)


if __name__ == "__main__":
    main()
