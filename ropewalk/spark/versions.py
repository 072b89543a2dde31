"""Tasks run where they were not written: each checks that its worker carries the driver's Ropewalk.

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
    """Driver and worker carry different versions of Ropewalk."""


class Stamp(NamedTuple):
    """What made a partition."""

    version: str
    format_version: int


def stamp() -> Stamp:
    """This process's own."""
    return Stamp(__version__, FORMAT_VERSION)


def check_stamp(made_by: Stamp) -> None:
    """Refuse to work on what another version planned. Raises VersionMismatch."""
    _settle()
    here = stamp()
    if made_by != here:
        raise VersionMismatch(
            f"the driver runs ropewalk {made_by.version} (format {made_by.format_version}), this worker has "
            f"{here.version} (format {here.format_version}): install the same version on all machines, or ship it "
            f"with --py-files"
        )


_settled_with = 0
"""How many modules were loaded when this worker last put its objects aside."""


def _settle() -> None:
    """Keep what is imported out of garbage collections, in a worker of Spark's.

    A worker collects after every task, over 70,000 objects that its imports made: 35 ms each time, a tenth of what a
    read of a gigabyte costs. It has just done so, and what is left stays as long as the process.
    """
    global _settled_with
    if "pyspark.worker" in sys.modules and len(sys.modules) != _settled_with:
        gc.freeze()
        _settled_with = len(sys.modules)
