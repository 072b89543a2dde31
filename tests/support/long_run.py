"""The long run, `make test-long`: the same tests at the counts meant for a night."""

from __future__ import annotations

import os

import pytest

LONG = os.environ.get("ROPEWALK_LONG") == "1"

ROOM_S = 0.0 if LONG else 30.0
"""Added to a limit of the wall clock: beside other tests, a process may wait for a processor or the disk."""

long_only = pytest.mark.skipif(not LONG, reason="repetition: `make test-long`")
"""Marks a parameter that repeats, with another seed or another order, what every run shows."""
