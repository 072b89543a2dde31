"""Commands, outcomes and values of the key-value store as bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.configuration import Configuration, encode_configuration
from ropewalk.format.dledger.entry import UNREAD_AT, UNREAD_SIZE, configuration_in, encode_entries
from ropewalk.format.kv.commands import (
    Command,
    FoundRegions,
    OpenSession,
    OpenTerm,
    Outcome,
    ReserveRegion,
    SplitRegion,
    Status,
    Write,
    decode_command,
    decode_found,
    decode_outcome,
    encode_command,
    encode_found,
    encode_outcome,
    encode_write,
)
from ropewalk.format.kv.entry import encode_body, entry_size, read_entry
from ropewalk.format.kv.items import (
    KEY_SIZE_MAX,
    VALUE_SIZE_MAX,
    AcquireLock,
    ComparePut,
    Count,
    Delete,
    DeleteRange,
    Guard,
    Lease,
    NextSequence,
    Operation,
    Put,
    PutIfAbsent,
    ReleaseLock,
    RenewLock,
    Swapped,
    decode_operations,
    encode_items,
    refusal_of,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
BYTES = st.binary(max_size=20)
MAYBE = st.none() | BYTES
OPERATIONS = st.one_of(
    st.builds(Put, BYTES, BYTES),
    st.builds(PutIfAbsent, BYTES, BYTES),
    st.builds(ComparePut, BYTES, MAYBE, MAYBE),
    st.builds(Delete, BYTES),
    st.builds(DeleteRange, BYTES, BYTES),
    st.builds(NextSequence, BYTES, NUMBERS),
    st.builds(AcquireLock, BYTES, BYTES, NUMBERS),
    st.builds(RenewLock, BYTES, BYTES, NUMBERS, NUMBERS),
    st.builds(ReleaseLock, BYTES, BYTES, NUMBERS),
    st.builds(Guard, BYTES, NUMBERS),
)
COMMANDS = st.one_of(
    st.builds(OpenTerm, NUMBERS, st.text(max_size=20)),
    st.builds(OpenSession, NUMBERS, st.text(max_size=20)),
    st.builds(
        Write, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.lists(OPERATIONS, max_size=5).map(tuple)
    ),
    st.builds(FoundRegions, NUMBERS, st.lists(BYTES, max_size=5).map(tuple)),
    st.builds(ReserveRegion, NUMBERS, NUMBERS, NUMBERS),
    st.builds(SplitRegion, NUMBERS, NUMBERS, NUMBERS, BYTES),
)
RESULTS = st.one_of(
    st.builds(Count, NUMBERS),
    st.builds(Swapped, st.integers(0, 1), MAYBE),
    st.builds(Lease, st.integers(0, 1), BYTES, NUMBERS, NUMBERS),
)
WRITE = Write(7, 1, 2, 2, 1, (Put(b"key", b"value"), ComparePut(b"k", None, b"v"), Delete(b"k")))


@given(COMMANDS)
def test_a_command_is_read_as_it_was_written(command: Command) -> None:
    assert decode_command(encode_command(command)) == command
    assert decode_command(memoryview(encode_command(command))) == command


@given(st.sampled_from(Status), st.lists(RESULTS, max_size=5).map(tuple))
def test_an_outcome_is_read_as_it_was_written(status: Status, results: tuple[Count, ...]) -> None:
    assert decode_outcome(encode_outcome(Outcome(status, results))) == Outcome(status, results)


@given(st.sampled_from(Status), st.lists(MAYBE, max_size=5))
def test_values_are_read_as_they_were_written(status: Status, values: list[bytes | None]) -> None:
    assert decode_found(encode_found(status, values)) == (status, values)


def test_a_command_that_is_cut_off_anywhere_is_refused() -> None:
    data = encode_command(WRITE)
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode_command(data[:size])
    with pytest.raises(CorruptRecord, match="too many"):
        decode_command(data + b"\0")


@given(st.binary(max_size=80))
def test_bytes_of_anybody_raise_nothing_but_corrupt_record(data: bytes) -> None:
    for decode in (decode_command, decode_outcome, decode_found):
        with contextlib.suppress(CorruptRecord):
            decode(data)


def test_the_bytes_of_a_write_stay_what_they_are() -> None:
    """They are on disks: another layout needs another kind."""
    assert encode_command(WRITE).hex() == (
        "03" "0000000000000007" "0000000000000001" "0000000000000002" "0000000000000002" "0000000000000001"
        "0003" "01" "000000036b6579" "0000000576616c7565" "03" "000000016b" "ffffffff" "0000000176" "04" "000000016b"
    )  # fmt: skip


LOCK = AcquireLock(b"job", b"me", 1000)


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ((), "1 to 1000 operations"),
        ((Delete(b"k"),) * 1001, "1 to 1000 operations"),
        ((Put(b"", b"v"),), "a key has 1 to 4096 bytes"),
        ((Put(b"k" * (KEY_SIZE_MAX + 1), b"v"),), "a key has 1 to 4096 bytes"),
        ((Put(b"k", b"v" * (VALUE_SIZE_MAX + 1)),), "a value has"),
        ((Put(b"a", b"v" * VALUE_SIZE_MAX), Put(b"b", b"v" * VALUE_SIZE_MAX)), "the operations of a write have"),
        ((NextSequence(b"s", -1),), "goes up"),
        ((AcquireLock(b"job", b"me", 0),), "a lease lasts"),
        ((AcquireLock(b"job", b"", 1000),), "the owner of a lock"),
        ((LOCK, Put(b"k", b"v")), "a write of its own"),
    ],
)  # fmt: skip
def test_what_no_region_takes_is_refused_in_words(operations: tuple[Operation, ...], why: str) -> None:
    told = refusal_of(operations)
    assert told is not None and why in told


def test_what_regions_take_is_not_refused() -> None:
    for operations in (
        (Put(b"k", b""),),
        (DeleteRange(b"", b""),),
        (Guard(b"job", 3), Put(b"k", b"v"), Delete(b"j")),
        (LOCK,),
    ):
        assert refusal_of(operations) is None


# -- entries -----------------------------------------------------------------------------------------------


ENTRY = encode_entries(5, 2, 700, [encode_body(5, 700, encode_command(WRITE))])


def test_an_entry_of_a_command_is_read_as_it_was_written() -> None:
    assert len(ENTRY) == entry_size(encode_command(WRITE))
    found = read_entry(b"front" + ENTRY + b"behind", 5, 700)
    assert found == (5, 2, len(ENTRY), encode_command(WRITE))


def test_an_entry_that_is_cut_off_anywhere_is_none() -> None:
    assert not any(read_entry(ENTRY[:size], 0, 700) for size in range(len(ENTRY)))


def test_an_entry_at_another_place_of_the_log_is_none() -> None:
    assert read_entry(ENTRY, 0, 701) is None


def test_an_entry_with_a_flipped_bit_is_none_unless_nothing_reads_that_byte() -> None:
    """Index and term are in no checksum; channel and chain CRC are DLedger's, and always 0."""
    for at in range(len(ENTRY)):
        data = bytearray(ENTRY)
        data[at] ^= 1
        found = read_entry(bytes(data), 0, 700)
        if UNREAD_AT <= at < UNREAD_AT + UNREAD_SIZE:
            assert found is not None, at
        elif 16 <= at < 24:
            assert found is not None and found[1] != 2, at
        else:
            assert found is None, at


def test_an_entry_without_a_checksum_is_held_against_that_of_its_command() -> None:
    """As DLedger writes its entries."""
    data = bytearray(ENTRY)
    data[40:44] = bytes(4)
    assert read_entry(bytes(data), 0, 700) == (5, 2, len(ENTRY), encode_command(WRITE))
    data[-30] ^= 1
    assert read_entry(bytes(data), 0, 700) is None


@given(st.lists(OPERATIONS, max_size=4), st.integers(0, 200), st.integers(0, 255))
def test_operations_that_can_be_read_have_no_other_bytes(
    operations: list[Operation], at: int, value: int
) -> None:
    """A leader writes the operations of a request as they came: all members have to read the same of them."""
    data = bytearray(encode_items(operations))
    data[at % len(data)] = value
    with contextlib.suppress(CorruptRecord):
        assert encode_items(decode_operations(bytes(data))) == data


def test_a_write_is_the_same_with_its_operations_as_they_came() -> None:
    assert encode_write(WRITE, encode_items(WRITE.operations)) == encode_command(WRITE)


def test_the_entry_of_a_configuration_opens_a_term_for_the_machine() -> None:
    found = Configuration(2, "n0", ("n0",), follows=7, serves="h:1", stamp_ms=9)
    body = encode_configuration(found)
    entry = encode_entries(5, 2, 700, [encode_body(5, 700, body, configures=True)])
    assert len(entry) == entry_size(body, configures=True)
    assert read_entry(entry, 0, 700) == (5, 2, len(entry), body) and configuration_in(entry) == found
    assert decode_command(body) == OpenTerm(9, "h:1")
    with pytest.raises(CorruptRecord, match="no configuration"):
        decode_command(b"{no")
