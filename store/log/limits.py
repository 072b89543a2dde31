"""`NO_LIMIT`: an offset behind every log, and a time after every deadline.

One value for everything that has no bound, so that bounds can be compared and the least of them taken, whoever set
them.
"""

from __future__ import annotations

from typing import Final

NO_LIMIT: Final = 1 << 62
"""Behind any log offset, in bytes, and after any time, in ms; sums of it with either still fit 64 bits."""
