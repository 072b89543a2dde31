"""The long run, `make test-long`: the same tests at the counts meant for a night."""

from __future__ import annotations

import os

import pytest

LONG = os.environ.get("ROPEWALK_LONG") == "1"

long_only = pytest.mark.skipif(not LONG, reason="repetition: `make test-long`")
"""Marks a parameter that repeats, with another seed or another order, what every run shows."""
