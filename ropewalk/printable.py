"""Escapes for foreign text: names, remarks and bodies that a person sees on a terminal, a page or in a log.

A client id or the reason in a peer's answer may hold escape sequences, which move the cursor, fill the clipboard or
hide the rest of a table, and signs that turn the direction of writing. They are shown as `\\x1b` and the like.
"""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with an escape for each character that is no visible one, but those in `keep`.

    Visible is what `str.isprintable` says: no control and format characters, no halves of a surrogate pair, no space
    but the ordinary one. The escapes are Python's, `\x1b`, `\u202e` or `\U000e0001`.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
