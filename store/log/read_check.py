"""A check of bytes before they are served: what a segment asks of whoever knows what was written.

The log places bytes and knows nothing of checksums. `store.integrity.checksums` has the implementation; readers call
it through the segment that they read.
"""

from __future__ import annotations

from typing import Protocol


class ReadCheck(Protocol):
    """A check of one segment's bytes that an earlier process wrote. For any thread."""

    @property
    def end(self) -> int:
        """The position in the segment up to which bytes need a check."""

    def is_checked(self, position: int, size: int) -> bool:
        """Tell whether these bytes can be read without a check."""

    def check(self, position: int, size: int) -> None:
        """Check bytes that are whole records. Blocks; raises OSError for bytes that are not what was written."""

    def check_blocks(self, position: int, size: int) -> None:
        """Check bytes that begin and end anywhere. Blocks; raises OSError as `check` does."""
