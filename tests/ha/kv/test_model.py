"""A region beside its model, and the bugs that the model finds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.ha.kv.model import check_model
from tests.ha.kv.planted import BUGS
from tests.support.processes import checkout_environment


def test_a_region_is_what_plain_dictionaries_are() -> None:
    check_model(40)


@pytest.mark.parametrize("name", BUGS)
def test_the_model_finds_the_bug(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ha.kv.planted", name],
        env=checkout_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and f"{name} was found" in done.stdout, done.stdout + done.stderr
