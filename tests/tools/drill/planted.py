"""Planted bugs that drills are there to find: which drill, and what it must say."""

from __future__ import annotations

DRILL_BUGS = {
    "ack-before-slave": ("kill-master", "acknowledged but lost"),
    "forced-cleaning-of-many": ("full-disk-master", "more than needed"),
    "removed-segments-held": ("full-disk-master", "held open"),
}
