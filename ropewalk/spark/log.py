"""The log of readers and writers in Spark's processes: structlog's, which is imported with the first event.

Spark has a process for each plan, commit and task that runs at a time, and most of these have nothing to say. structlog
brings rich and asyncio: their import was a third of what such a process did before its work.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LazyLogger", "log"]


class LazyLogger:
    """The logger `ropewalk.spark` of structlog."""

    def info(self, event: str, **fields: object) -> None:
        """Log an event at level info."""
        import structlog

        structlog.get_logger("ropewalk.spark").info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event at level warning."""
        import structlog

        structlog.get_logger("ropewalk.spark").warning(event, **fields)


log: Final = LazyLogger()
