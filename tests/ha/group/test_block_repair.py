"""Which bytes of another member are believed, whom they are asked of, and who is given any."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from ha.group.block_repair import (
    PIECES_MAX,
    RETRY_MAX_MS,
    BlockRequest,
    BlockResponse,
    RepairRefused,
    RepairSchedule,
    Span,
    block_untrusted,
    refusal_of,
    repair_bytes,
    repair_sources,
)
from ha.group.epochs import Epochs
from ha.group.hello import encode
from ha.group.roles import SLAVE, SYNC_MASTER, QuorumPolicy, RoleRecord
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.record import encode_blank, encode_host, encode_record
from ropewalk.format.sidecar import BLOCK_SIZE, block_sum
from store.integrity.checksums import Damaged

HOST = encode_host("127.0.0.1", 10911)
BASE = 1 << 20
SEGMENT_SIZE = 16 << 10
BLOCK = 1024


def segment_of(sizes: list[int]) -> bytes:
    """A sealed segment with a record of each of these body sizes."""
    data = b""
    for number, size in enumerate(sizes):
        body = random.Random(number).randbytes(size)
        data += encode_record(
            b"T", 0, 0, number, BASE + len(data), 0, 1, HOST, 2, HOST, 0, 0, body, b"TAGS\x01t\x02"
        )
    return data + encode_blank(SEGMENT_SIZE - len(data)) + bytes(SEGMENT_SIZE - len(data) - 8)


SIZES = [300, 2500, 10, 900, 900, 900, 3000, 20, 20]
SEGMENT = segment_of(SIZES)
RECORD_AT = [SEGMENT.index(random.Random(number).randbytes(size)) - 88 for number, size in enumerate(SIZES)]


# -- one answer -----------------------------------------------------------------------------------------------

DATA = SEGMENT[2048:3072]
SPAN = Span(BASE + 2048, BASE + 3072, block_sum(DATA))
BY_RECORDS = Span(SPAN.start, SPAN.end, None)
ANSWER = BlockResponse(SPAN.start, block_sum(DATA), DATA)


def answered(**changes: Any) -> bytes:
    return encode(msgspec.structs.replace(ANSWER, **changes))


def test_the_bytes_that_were_written_are_taken() -> None:
    assert block_untrusted(SPAN, encode(ANSWER)) == block_untrusted(BY_RECORDS, encode(ANSWER)) == DATA


@pytest.mark.parametrize("span", [SPAN, BY_RECORDS], ids=["checksum", "no checksum"])
def test_an_answer_that_is_cut_short_anywhere_is_none(span: Span) -> None:
    whole = encode(ANSWER)
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            block_untrusted(span, whole[:size])


@pytest.mark.parametrize("span", [SPAN, BY_RECORDS], ids=["checksum", "no checksum"])
def test_a_changed_byte_anywhere_is_noticed(span: Span) -> None:
    for at in range(len(DATA)):
        changed = DATA[:at] + bytes([DATA[at] ^ 4]) + DATA[at + 1 :]
        with pytest.raises(RemoteProtocolError, match="changed on their way"):
            block_untrusted(span, answered(data=changed))


HOSTILE = {
    "other offset": {"start": SPAN.start + 1},
    "offset before": {"start": SPAN.start - 1024},
    "too short": {"data": DATA[:-1], "sum": block_sum(DATA[:-1])},
    "too long": {"data": DATA + b"\0", "sum": block_sum(DATA + b"\0")},
    "empty": {"data": b"", "sum": 0},
    "wrong sum": {"sum": block_sum(DATA) ^ 1},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("span", [SPAN, BY_RECORDS], ids=["checksum", "no checksum"])
def test_a_hostile_answer_is_turned_down(span: Span, changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        block_untrusted(span, answered(**changes))


def test_other_bytes_with_a_sum_of_their_own_do_not_pass_for_those_that_were_written() -> None:
    other = SEGMENT[3072:4096]
    with pytest.raises(RemoteProtocolError, match="do not match the checksum kept here"):
        block_untrusted(SPAN, answered(data=other, sum=block_sum(other)))


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xc1", b"hello", encode(BlockResponse(0, 0, b""))])
def test_what_is_no_answer_at_all_is_turned_down(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        block_untrusted(SPAN, body)


# -- what is fetched, and what of it is believed --------------------------------------------------------------


def fetched(place: Damaged, peer: bytes, own: bytes = SEGMENT) -> tuple[bytes, list[Span]]:
    """What would be put there, with a peer whose segment this is, and what it was asked for."""
    before = own[place.start : place.record] if place.wanted is None else b""
    search = repair_bytes(place, before, SEGMENT_SIZE, BLOCK)
    asked: list[Span] = []
    try:
        span = next(search)
        while True:
            asked.append(span)
            assert 0 < span.end - span.start <= BLOCK
            span = search.send(peer[span.start - BASE : span.end - BASE])
    except StopIteration as end:
        found: bytes = end.value
        return found, asked


def unsummed(record: int, stop: int | None = None) -> Damaged:
    """The place as the scrubber names it: from the block in which a record begins that is not whole."""
    start = RECORD_AT[record] // BLOCK * BLOCK
    return Damaged(BASE, start, stop or start + BLOCK, None, RECORD_AT[record])


def test_a_block_with_a_checksum_is_one_question() -> None:
    place = Damaged(BASE, 1024, 2048, block_sum(SEGMENT[1024:2048]))
    assert fetched(place, SEGMENT) == (
        SEGMENT[1024:2048],
        [Span(BASE + 1024, BASE + 2048, place.wanted)],
    )


def test_the_last_block_of_a_segment_may_be_a_short_one() -> None:
    place = Damaged(BASE, 15 << 10, SEGMENT_SIZE - 24, 7)
    assert fetched(place, SEGMENT)[1] == [Span(BASE + (15 << 10), BASE + SEGMENT_SIZE - 24, 7)]


@pytest.mark.parametrize("record", range(len(SIZES)))
def test_without_checksums_so_much_is_fetched_that_the_damaged_record_ends_in_it(record: int) -> None:
    place = unsummed(record)
    data, asked = fetched(place, SEGMENT)
    assert data == SEGMENT[place.start : place.start + len(data)]
    assert place.start + len(data) >= RECORD_AT[record] + 91 + SIZES[record]
    assert len(asked) == len(data) // BLOCK and all(span.wanted is None for span in asked)


def test_without_checksums_records_that_are_damaged_at_the_other_one_too_are_not_taken() -> None:
    for record in range(len(SIZES)):
        changed = bytearray(SEGMENT)
        changed[RECORD_AT[record] + 90] ^= 1  # in the body
        with pytest.raises(RepairRefused, match="damaged, too"):
            fetched(unsummed(record), bytes(changed))


def test_without_checksums_another_log_is_not_a_copy_of_this_one() -> None:
    other = segment_of([301, *SIZES[1:]])
    with pytest.raises(RepairRefused, match="its log is another one"):
        fetched(unsummed(1), other)


def test_a_record_of_another_place_is_not_taken() -> None:
    moved = SEGMENT[: RECORD_AT[3]] + SEGMENT[RECORD_AT[4] : RECORD_AT[5]] + SEGMENT[RECORD_AT[4] :]
    with pytest.raises(RepairRefused, match="a record of offset"):
        fetched(unsummed(3), moved)


def test_a_record_that_never_ends_is_given_up_before_much_was_fetched() -> None:
    endless = bytearray(SEGMENT)
    at = RECORD_AT[0]
    endless[at : at + 4] = (SEGMENT_SIZE - at - 1).to_bytes(4, "big")
    with pytest.raises(RepairRefused, match=f"no record ends in the {PIECES_MAX * BLOCK} bytes"):
        fetched(unsummed(0), bytes(endless))


def test_a_place_of_many_blocks_is_left_to_a_person() -> None:
    with pytest.raises(RepairRefused, match="more than is fetched"):
        fetched(unsummed(0, (PIECES_MAX + 1) * BLOCK), SEGMENT)


# -- who gives, and what ----------------------------------------------------------------------------------------

ASK = BlockRequest(
    "c",
    "a",
    "b:10911",
    SEGMENT_SIZE,
    SEGMENT_SIZE + 1024,
    SEGMENT_SIZE + 2048,
    7,
    5 * SEGMENT_SIZE,
    [(3, 100)],
)
EPOCHS = Epochs.of([(3, 100)])


def refused(
    begin: int = 0, flushed: int = 5 * SEGMENT_SIZE, own: Epochs = EPOCHS, **changes: Any
) -> str | None:
    ask = msgspec.structs.replace(ASK, **changes)
    return refusal_of(ask, "c", "a", SEGMENT_SIZE, own, begin, flushed)


def test_a_member_of_the_group_is_given_a_block() -> None:
    assert refused() is None
    assert refused(begin=SEGMENT_SIZE, flushed=SEGMENT_SIZE + 2048) is None, (
        "exactly to its last flushed byte"
    )
    assert refused(wanted=None) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cluster": "other"}, "belongs to a of cluster c"),
        ({"broker_name": "z"}, "belongs to a of cluster c"),
        ({"segment_size": 5}, "mappedFileSizeCommitLog is 16384 here and 5 there"),
        ({"start": -1024, "end": 0}, "no part of one segment"),
        ({"start": SEGMENT_SIZE + 2048}, "no part of one segment"),
        ({"start": SEGMENT_SIZE - 8}, "no part of one segment"),
        ({"epochs": [(3, 100), (2, 200)]}, "makes no sense"),
        ({"epochs": [(3, 100), (4, SEGMENT_SIZE + 2000)]}, f"same writers up to {SEGMENT_SIZE + 2000} only"),
        ({"epochs": [(4, 100)]}, "same writers up to 100 only"),
        ({"log_end": SEGMENT_SIZE + 2047}, "same writers up to"),
    ],
)
def test_who_does_not_belong_or_asks_for_nonsense_is_told_why(changes: dict[str, Any], why: str) -> None:
    assert why in (refused(**changes) or "")


def test_nothing_is_given_that_is_not_there_or_not_final() -> None:
    assert "and not all of" in (refused(begin=2 * SEGMENT_SIZE) or "")
    assert "and not all of" in (refused(flushed=SEGMENT_SIZE + 2047) or "")


def test_no_more_than_a_block_is_given_at_a_time() -> None:
    size = 4 * BLOCK_SIZE
    ask = msgspec.structs.replace(
        ASK, segment_size=size, start=0, end=BLOCK_SIZE + 1, log_end=size, epochs=[]
    )
    assert "are given at a time" in (refusal_of(ask, "c", "a", size, Epochs(), 0, size) or "")


def test_a_part_that_diverged_is_not_given() -> None:
    """Both were masters for a while: from there on each copy is right, and neither is the other's."""
    mine = Epochs.of([(3, 100), (5, SEGMENT_SIZE)])
    assert "same writers" in (refused(own=mine) or "")
    assert refused(own=mine, start=0, end=1024) is None


# -- whom to ask --------------------------------------------------------------------------------------------------

ROLL = QuorumPolicy(SYNC_MASTER, 2, 1, {"1": "b:1", "2": "c:1", "3": "d:1"})


def test_a_slave_asks_its_master_first_and_then_the_other_slaves() -> None:
    record = RoleRecord(SLAVE, 1, 3, 3, master="a:1", policy=ROLL)
    assert repair_sources(record, "b:1", "a:1", {}, 500) == ("a:1", "c:1", "d:1")


def test_a_master_asks_first_who_has_reported_those_bytes() -> None:
    record = RoleRecord(SYNC_MASTER, 0, 3, 3, policy=ROLL)
    assert repair_sources(record, "a:1", "", {"b:1": 499, "d:1": 500}, 500) == ("d:1", "b:1", "c:1")


def test_a_broker_on_its_own_has_nobody_to_ask() -> None:
    assert repair_sources(RoleRecord(SYNC_MASTER, 0), "a:1", "", {}, 500) == ()


# -- when ----------------------------------------------------------------------------------------------------------

FIRST, SECOND = Damaged(BASE, 0, 1024, 1), Damaged(BASE, 1024, 2048, 2)


def test_the_oldest_place_is_due_first_and_one_that_failed_lets_others_pass() -> None:
    mender = RepairSchedule()
    assert mender.due([], 0) is None
    assert mender.due([FIRST, SECOND], 0) == FIRST
    mender.failed(FIRST, ["no"], 0)
    assert mender.due([FIRST, SECOND], 0) == SECOND
    assert mender.due([FIRST], 999) is None
    assert mender.due([FIRST], 1_000) == FIRST


def test_it_is_tried_ever_more_rarely_but_never_given_up() -> None:
    mender, now, waits = RepairSchedule(), 0, []
    for _ in range(12):
        assert mender.due([FIRST], now) == FIRST
        mender.failed(FIRST, ["no"], now)
        began = now
        while mender.due([FIRST], now) is None:
            now += 500
        waits.append(now - began)
    assert waits == sorted(waits) and waits[0] == 1_000 and waits[-1] == RETRY_MAX_MS


def test_people_are_told_once_and_again_when_the_reason_changes() -> None:
    mender = RepairSchedule()
    assert mender.failed(FIRST, [], 0) == "there is no other member to ask"
    assert mender.failed(FIRST, [], 1) is None
    assert (
        mender.failed(FIRST, ["a:1 is away", "b:1 is damaged, too"], 2) == "a:1 is away; b:1 is damaged, too"
    )
    assert mender.failed(FIRST, ["a:1 is away", "b:1 is damaged, too"], 3) is None


def test_a_place_that_is_damaged_a_second_time_is_new() -> None:
    mender = RepairSchedule()
    mender.failed(FIRST, ["no"], 0)
    assert mender.due([], 1) is None
    assert mender.due([FIRST], 2) == FIRST


def test_what_was_written_and_not_synced_is_written_again_until_it_is_known_to_last() -> None:
    mender = RepairSchedule()
    assert not mender.is_uncertain(FIRST)
    mender.not_durable(FIRST)
    mender.failed(FIRST, ["not synced"], 0)
    assert (
        mender.due([FIRST], 1_000) == FIRST and mender.is_uncertain(FIRST) and not mender.is_uncertain(SECOND)
    )
    assert mender.due([], 1_001) is None
    assert not mender.is_uncertain(FIRST), "it was mended"
