"""Read the two properties that every send asks for from the text, without parsing the rest where that is certain."""

from __future__ import annotations

from typing import Final

from ropewalk.format.properties import P, parse_properties, tags_code

__all__ = ["NO_WAIT", "tags_code_of", "waits_for"]

NO_WAIT: Final = P.WAIT + "\x01false"
_TAGS: Final = P.TAGS + "\x01"


def waits_for(properties: dict[str, str]) -> bool:
    """Tell whether the answer waits for the flush; only the word that clients write says no."""
    return properties.get(P.WAIT) != "false"


def tags_code_of(text: str) -> int:
    """Return the tag hash of a property text, without parsing the rest."""
    at = text.rfind(_TAGS)
    if at < 0:
        return 0
    if at and text[at - 1] != "\x02":
        return tags_code(parse_properties(text).get(P.TAGS))
    end = text.find("\x02", at)
    tag = text[at + 5 : end] if end > 0 else text[at + 5 :]
    # A name without a value counts as absent, and an earlier one as the last.
    return tags_code(tag or parse_properties(text).get(P.TAGS))
