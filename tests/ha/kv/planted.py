"""The bugs that the model of a region must find; `python -m tests.ha.kv.planted NAME` plants one and looks for it."""

from __future__ import annotations

import sys

from tests.bugs import plant

BUGS = ("kv-retry-applied-twice", "kv-split-counts-anew", "kv-split-without-sessions", "kv-token-given-twice")


def main(name: str) -> int:
    """Return 1 when the bug was found."""
    plant.install(name)
    from tests.ha.kv.model import check_model

    try:
        check_model(100)
    except AssertionError as exc:
        print(f"{name} was found: {exc}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
