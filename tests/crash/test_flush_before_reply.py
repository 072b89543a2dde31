"""Under SYNC_FLUSH no SEND_OK leaves the process before the fdatasync that covers its message (strace says so)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.campaign import chosen_seed
from tests.crash.tracing import traced_load
from tests.support.processes import checkout_command

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def test_no_send_ok_leaves_before_the_flush_that_covers_it(
    tmp_path: Path, need_program: Callable[[str], str], long_run: bool
) -> None:
    seed = chosen_seed()
    verdict, ledger = traced_load(
        need_program("strace"), tmp_path, seed, checkout_command(), requests=2_000 if long_run else 150
    )
    assert not verdict.early, f"seed {seed}: {len(verdict.early)} of {verdict.replies}: {verdict.early[:5]}"
    answered = sum(entry.acknowledged for entry in ledger.sent.values())
    assert answered == len(ledger.sent)
    # Each request of each producer was seen, in both directions, or the verdict would say nothing.
    assert verdict.replies + verdict.exempt == 4 * (2_000 if long_run else 150)
    assert verdict.flushes > 50
    # Who asks not to wait is not made to wait: some of those replies are seen to leave early.
    assert 0 < verdict.exempt_early <= verdict.exempt
