"""Check in tasks that their worker carries the driver's Ropewalk.

Classes of an installed module travel by reference, so a worker with another version would decode with other code than
the driver planned for, and nobody would notice. Every partition, and every pickled writer, holds a `stamp()` made on
the driver; `check_stamp` is the first thing its task does.
"""

from __future__ import annotations

import gc
import sys
from typing import Final, NamedTuple

from ropewalk import __version__
from ropewalk.errors import RopewalkError

__all__ = ["FORMAT_VERSION", "Stamp", "VersionMismatch", "check_stamp", "stamp"]

FORMAT_VERSION: Final = 1
"""Of the partitions, offsets and commit messages that driver and tasks exchange; raised when one changes."""


class VersionMismatch(RopewalkError):
    """Different versions of Ropewalk on driver and worker."""


class Stamp(NamedTuple):
    """The version of Ropewalk that made a partition."""

    version: str
    format_version: int


def stamp() -> Stamp:
    """Return the stamp of this process."""
    return Stamp(__version__, FORMAT_VERSION)


def check_stamp(made_by: Stamp) -> None:
    """Reject work that another version planned. Raises VersionMismatch."""
    _freeze_imports()
    here = stamp()
    if made_by != here:
        raise VersionMismatch(
            f"the driver runs ropewalk {made_by.version} (format {made_by.format_version}), this worker has "
            f"{here.version} (format {here.format_version}): install the same version on all machines, or ship it "
            f"by the setting spark.submit.pyFiles"
        )


_frozen_modules = 0
"""How many modules were loaded when this worker last put its objects aside."""


def _freeze_imports() -> None:
    """Keep what is imported out of garbage collections, in a worker of Spark's.

    A worker collects after every task, over 70,000 objects that its imports made: 35 ms each time, a tenth of what a
    read of a gigabyte costs. It has just done so, and what is left stays as long as the process.
    """
    global _frozen_modules
    if "pyspark.worker" in sys.modules and len(sys.modules) != _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)
