"""Bytes of RocketMQ 5.5.0: the units, slots and blanks that its own broker wrote."""

import pytest

from ropewalk.format.headers import RecallHandle
from ropewalk.format.properties import java_hash
from store.timer.layout import SLOT, UNIT, Checkpoint, Slot, Unit, blank_of, is_blank

FIRST_UNIT = bytes.fromhex(
    "00000034"
    + "ff" * 8
    + "00000001"
    + "0000018bcfe56800"
    + "000186a0"
    + "00" * 8
    + "000000c1"
    + "8e987641"
    + "00" * 8
)


def test_a_unit_is_that_of_the_original() -> None:
    unit = Unit(*UNIT.unpack(FIRST_UNIT))
    assert unit == Unit(52, -1, 1, 1_700_000_000_000, 100_000, 0, 193, java_hash("TopicTest"))
    assert unit.slot_ms == 1_700_000_100_000 and unit.is_sound
    assert UNIT.pack(*unit) == FIRST_UNIT


def test_a_slot_is_that_of_the_original() -> None:
    raw = bytes.fromhex("000000006553f164" + "00" * 8 + "000000000000009c" + "00000002" + "00000000")
    assert Slot(*SLOT.unpack(raw)) == Slot(1_700_000_100, 0, 156, 2)
    assert 1_700_000_100 % 1_209_600 == 512_100


def test_a_blank_is_that_of_the_original() -> None:
    blank = blank_of(20)
    assert blank == bytes.fromhex("00000014" + "00" * 8 + "cbd43194")
    assert is_blank(int.from_bytes(blank[12:], "big", signed=True))
    assert not Unit(0, 0, 0, 0, 0, 0, 0, 0).is_sound


def test_a_checkpoint_of_an_older_broker_has_no_data_version() -> None:
    whole = Checkpoint(1, 2, 3, 4, 5, 6, 7)
    assert len(whole.encode()) == 56
    assert Checkpoint.decode(whole.encode()) == whole
    assert Checkpoint.decode(whole.encode()[:32]) == Checkpoint(1, 2, 3, 4)
    assert Checkpoint.decode(None) == Checkpoint()
    with pytest.raises(ValueError, match="56 or 32 bytes, this one 5"):
        Checkpoint.decode(b"short")


def test_a_recall_handle_is_that_of_the_original() -> None:
    handle = RecallHandle("TopicA", "broker-a", 1_700_000_000_001, "7F0000010ABC")
    text = "djEgVG9waWNBIGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgN0YwMDAwMDEwQUJD"
    assert handle.encode() == text
    assert RecallHandle.decode(text) == handle


@pytest.mark.parametrize("text", ["", "ä", "!!", "djE=", "djIgYSBiIDEgYw==", "AAAA", "v1 a b 1 c"])
def test_what_is_no_recall_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        RecallHandle.decode(text)
