"""`RequestRefused`: the answer to a request is no.

Raised by whatever judges a request, caught where its answer is made. It carries a code of the protocol and the words
that the user reads, and never a stack trace.
"""

from __future__ import annotations

__all__ = ["RequestRefused"]


class RequestRefused(Exception):
    """The refusal of one request: a response code, and the reason in words for whoever asked.

    `ext` holds extFields of the answer, for refusals that tell more than words (the new end of a queue, say).
    """

    def __init__(self, code: int, remark: str, ext: dict[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext
