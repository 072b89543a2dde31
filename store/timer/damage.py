"""Damage of pending timers' files: what a start would not read, told without a change of any file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from store.io.disk import Disk
from store.log.commitlog import StoreDamaged
from store.timer.layout import UNIT_SIZE, WHEEL_SIZE, Checkpoint
from store.timer.timer_log import TimerLog

__all__ = ["TimerDamage", "find_damage"]


class TimerDamage(NamedTuple):
    """A file of pending timers that is not as it was written."""

    path: Path
    place: str
    text: str
    advice: str


def find_damage(root: Path, disk: Disk) -> tuple[list[TimerDamage], int]:
    """Return the damage of timer log, wheel and checkpoint, and the number of units that were read. Blocks."""
    found: list[TimerDamage] = []
    wheel, path = root / "timerwheel", root / "config" / "timercheck"
    size = disk.size_of(wheel) if disk.exists(wheel) else 0
    if size not in (0, WHEEL_SIZE):
        text = f"{size} bytes, not {WHEEL_SIZE}"
        found.append(TimerDamage(wheel, "", text, "remove it: the next start builds it again"))
    known = Checkpoint()
    try:
        known = Checkpoint.decode(disk.read_file(path))
    except ValueError as exc:
        advice = (
            "remove it: the next start reads the commit log instead, and delivers again what was delivered"
        )
        found.append(TimerDamage(path, "", str(exc), advice))
    directory = root / "timerlog"
    names = disk.names(directory)
    log = TimerLog(directory, disk.size_of(directory / names[0]) if names else 0, disk)
    try:
        log.load()
    except StoreDamaged as exc:
        return [*found, TimerDamage(directory, "", str(exc), "")], 0
    end, count = log.bases[0] if log.bases else 0, 0
    for position, _unit in log.units(end):
        end, count = position + UNIT_SIZE, count + 1
    if end < known.log_end:
        base = max((base for base in log.bases if base <= end), default=0)
        text = f"there is no unit, and {path} claims units up to position {known.log_end}"
        advice = "the next start enqueues the messages of these units again from the commit log"
        found.append(TimerDamage(directory / f"{base:020d}", f"byte {end - base}", text, advice))
    return found, count
