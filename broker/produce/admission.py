"""Admission: what a message asks for besides being stored, and what becomes of that. The one rule, as rows.

    rule             found by                          a single message        in a batch
    half             TRAN_MSG, the PREPARED bits       the half topic          refused
    decided half     other transaction bits            refused                 refused
    timed            TIMER_DELAY_*, TIMER_DELIVER_MS   waits in timer topic    refused
    inner batch      INNER_NUM, flag bits              refused                 refused
    light queues     INNER_MULTI_DISPATCH              refused                 refused
    delayed          DELAY                             waits in its level      refused

Two views are made of the same rows. `classify` reads parsed properties and names the rule that decides. `is_plain`
looks for the rows' words in the raw text and reads nothing: a text that has none of them asks for nothing, so the fast
ways store it as it is; one that has any, anywhere, is parsed and judged. A test holds that for every set of rows the
second implies the first. A new feature is a new row here, and no fast way can miss it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final, TypeAlias, cast

from ropewalk.codes import MessageSysFlag, ResponseCode
from ropewalk.format.properties import P

__all__ = [
    "FLAG_BITS",
    "HALF",
    "OWN_PROPERTIES",
    "PLAIN",
    "ROWS",
    "STRIPPED_PROPERTIES",
    "Refusal",
    "Row",
    "classify",
    "has_time",
    "is_delayed",
    "is_plain",
    "is_plain_batch",
    "refusal_in_batch",
    "refusal_of_half",
]

Properties: TypeAlias = Mapping[str, str]
Refusal: TypeAlias = tuple[int, str]
"""A response code, and the reason in words."""

CRC_PROPERTY: Final = "__CRC32#"
STRIPPED_PROPERTIES: Final = (P.POP_CK, CRC_PROPERTY)
"""Properties of other brokers' and consumers' making, which a message that is sent does not keep."""
OWN_PROPERTIES: Final = (P.CLUSTER,)
"""Properties that the broker writes itself, and that no client sends: with one, texts are merged and not joined."""

_INNER_BITS: Final = MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH
_NO_DELAY: Final = re.compile(r"[+-]?0+|-[0-9]+")
_TIMES: Final = (P.TIMER_DELAY_SEC, P.TIMER_DELAY_MS, P.TIMER_DELIVER_MS)
_IN_BATCH: Final = "a message of a batch can be neither delayed nor transactional"


def is_delayed(properties: Properties) -> bool:
    """Tell whether a delay level is asked for.

    Zero and less is none; what is no number at all was meant as one, and is never stored as if plain.
    """
    return not _NO_DELAY.fullmatch(properties.get(P.DELAY, "0"))


def _is_half(properties: Properties, sys_flag: int, reconsume_times: int) -> bool:
    prepared = sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_PREPARED
    if not prepared and properties.get(P.TRAN_MSG, "").lower() != "true":
        return False
    # A message that is sent back keeps property and bits of the transaction that it once was part of, but is no half.
    return not _is_sent_back(properties, reconsume_times)


def _is_sent_back(properties: Properties, reconsume_times: int) -> bool:
    return reconsume_times > 0 and is_delayed(properties)


def has_time(properties: Properties) -> bool:
    """Tell whether a time of delivery is named, be it one that has passed."""
    return any(name in properties for name in _TIMES)


def _is_timed(properties: Properties, sys_flag: int, reconsume_times: int) -> bool:
    return has_time(properties) and P.TIMER_OUT_MS not in properties and not is_delayed(properties)


@dataclass(frozen=True, slots=True)
class Row:
    """A wish that a message can have besides being stored."""

    name: str
    words: tuple[str, ...]
    """Property names, or beginnings of some, one of which stands in every text that asks for it."""
    flags: int
    """The bits of sysFlag that ask for it."""
    applies: Callable[[Properties, int, int], bool]
    """By properties, sysFlag and reconsume times."""
    refusal: Refusal | None
    """The answer to a single message, None where it is admitted."""


_MESSAGE_ILLEGAL: Final = ResponseCode.MESSAGE_ILLEGAL
HALF: Final = Row("half", (P.TRAN_MSG,), MessageSysFlag.TRANSACTION_MASK, _is_half, None)
ROWS: Final = (
    HALF,
    Row(
        "decided half",
        (),
        MessageSysFlag.TRANSACTION_MASK,
        lambda properties, sys_flag, times: (
            bool(sys_flag & MessageSysFlag.TRANSACTION_MASK) and not _is_sent_back(properties, times)
        ),
        (_MESSAGE_ILLEGAL, "a message cannot be sent as a committed or rolled back transaction"),
    ),
    Row("timed", ("TIMER_",), 0, _is_timed, None),
    Row(
        "inner batch",
        (P.INNER_NUM,),
        _INNER_BITS,
        lambda properties, sys_flag, _times: bool(sys_flag & _INNER_BITS) or P.INNER_NUM in properties,
        (_MESSAGE_ILLEGAL, "inner batches need a BatchCQ topic; this broker has none"),
    ),
    Row(
        "light queues",
        (P.INNER_MULTI_DISPATCH,),
        0,
        lambda properties, _flag, _times: P.INNER_MULTI_DISPATCH in properties,
        (_MESSAGE_ILLEGAL, "light queues (INNER_MULTI_DISPATCH) are not supported"),
    ),
    Row("delayed", (P.DELAY,), 0, lambda properties, _flag, _times: is_delayed(properties), None),
)
PLAIN: Final = Row("plain", (), 0, lambda properties, sys_flag, times: True, None)

FLAG_BITS: Final = reduce(or_, (row.flags for row in ROWS))
"""The bits of sysFlag that no plain message has."""


def refusal_of_half(properties: Properties, sys_flag: int) -> Refusal | None:
    """Return the refusal of a feature that a half message cannot have; None if all are allowed.

    A delay or a time is allowed: it begins to count at the commit.
    """
    return next(
        (
            row.refusal
            for row in ROWS
            if row.refusal and row.applies(properties, sys_flag & ~MessageSysFlag.TRANSACTION_MASK, 0)
        ),
        None,
    )


def _covering(words: tuple[str, ...]) -> tuple[str, ...]:
    """The fewest of the words that stand in every text which holds one of them."""
    return tuple(word for word in words if not any(other != word and other in word for other in words))


_BATCH_WORDS: Final = _covering(tuple(word for row in ROWS for word in row.words))
_WORDS: Final = _covering((*_BATCH_WORDS, *STRIPPED_PROPERTIES, *OWN_PROPERTIES))


def classify(properties: Properties, sys_flag: int, reconsume_times: int) -> Row:
    """Return the row that decides about a single message: the first that applies, `PLAIN` if none does."""
    for row in ROWS:
        if row.applies(properties, sys_flag, reconsume_times):
            return row
    return PLAIN


def _compiled(words: Iterable[str | bytes]) -> Callable[[Any], bool]:
    """The test that none of these words stands in a text. One expression: a loop over them takes twice as long."""
    expression = " or ".join(f"{word!r} in text" for word in words)
    return cast(Callable[[Any], bool], eval(f"lambda text: not ({expression})", {}))


is_plain: Final[Callable[[str], bool]] = _compiled(_WORDS)
"""Whether a property text asks for nothing, and the broker's own properties can be appended to it. HOT."""
is_plain_batch: Final[Callable[[bytes], bool]] = _compiled(word.encode() for word in _BATCH_WORDS)
"""Whether none of the property texts of a batch's messages, joined, asks for anything. HOT."""


def refusal_in_batch(properties: Properties) -> Refusal | None:
    """Return the refusal of a message in a batch, or of the batch itself, by its properties; None if it is admitted."""
    half = properties.get(P.TRAN_MSG, "").lower() == "true"
    timed = has_time(properties) and P.TIMER_OUT_MS not in properties
    if half or timed or is_delayed(properties):
        return _MESSAGE_ILLEGAL, _IN_BATCH
    if P.INNER_NUM in properties or P.INNER_MULTI_DISPATCH in properties:
        return _MESSAGE_ILLEGAL, "inner batches and light queues are not supported"
    return None
