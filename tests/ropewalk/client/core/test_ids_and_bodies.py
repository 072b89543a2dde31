import struct
import sys
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from ropewalk.client.core.ids import UniqueKeys, default_unique_keys, month_start_ms
from ropewalk.client.core.produce.bodies import decompress_body
from ropewalk.codes import MessageSysFlag

NOW_MS = 1_700_000_000_000
V4 = bytes((10, 0, 0, 1))


def test_a_unique_key_is_laid_out_as_the_java_client_lays_it_out() -> None:
    key = UniqueKeys(V4, 0x12345, 0xCAFEBABE, lambda: NOW_MS).next()
    assert key == key.upper()
    assert len(key) == 32
    ip, pid, salt, elapsed, counter = struct.unpack(">4sHIIH", bytes.fromhex(key))
    assert (ip, pid, salt, counter) == (V4, 0x2345, 0xCAFEBABE, 0)
    assert elapsed == NOW_MS - month_start_ms(NOW_MS)


def test_keys_of_one_millisecond_differ() -> None:
    keys = UniqueKeys(V4, 1, 2, lambda: NOW_MS)
    assert len({keys.next() for _ in range(10_000)}) == 10_000


def test_an_ipv6_host_makes_a_longer_key() -> None:
    assert len(UniqueKeys(bytes(16), 1, 2, lambda: NOW_MS).next()) == 56


def test_the_clock_of_the_key_starts_again_with_the_month() -> None:
    now = NOW_MS
    keys = UniqueKeys(V4, 1, 2, lambda: now)
    keys.next()
    now += 45 * 86_400_000
    assert struct.unpack(">4sHIIH", bytes.fromhex(keys.next()))[3] == now - month_start_ms(now)


def test_two_clients_on_one_machine_give_different_keys() -> None:
    assert default_unique_keys().next() != default_unique_keys().next()


def test_a_plain_body_is_left_alone() -> None:
    assert decompress_body(0, b"hello") == (b"hello", None)
    assert decompress_body(MessageSysFlag.COMPRESSION_ZLIB, b"hello") == (b"hello", None)


@pytest.mark.parametrize("kind", [0, MessageSysFlag.COMPRESSION_ZLIB])
def test_zlib_is_undone_whether_or_not_it_is_named(kind: int) -> None:
    packed = zlib.compress(b"hello" * 100, 5)
    assert decompress_body(MessageSysFlag.COMPRESSED | kind, packed) == (b"hello" * 100, None)


def zstd_stream(plain: bytes) -> bytes:
    """Pack as Java's stream does: the frame does not say how large its content is."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(plain) + packer.flush()


def lz4_stream(plain: bytes) -> bytes:
    with lz4.frame.LZ4FrameCompressor() as packer:
        return bytes(packer.begin() + packer.compress(plain) + packer.flush())


PACK: dict[int, Callable[[bytes], bytes]] = {
    0: zlib.compress,
    MessageSysFlag.COMPRESSION_ZLIB: zlib.compress,
    MessageSysFlag.COMPRESSION_LZ4: lz4_stream,
    MessageSysFlag.COMPRESSION_ZSTD: zstd_stream,
}


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("size", [0, 1, 500, 300_000])
def test_bodies_of_every_codec_are_unpacked(kind: int, size: int) -> None:
    plain = (b"hello" * size)[:size]
    assert decompress_body(MessageSysFlag.COMPRESSED | kind, PACK[kind](plain)) == (plain, None)


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b"\0" + b, lambda b: b""])
def test_a_damaged_body_is_shown_as_stored_with_a_note(damage: object, kind: int) -> None:
    assert callable(damage)
    packed = damage(PACK[kind](b"hello" * 100))
    body, trouble = decompress_body(MessageSysFlag.COMPRESSED | kind, packed)
    assert body == packed
    assert trouble is not None


@pytest.mark.parametrize(
    ("kind", "name"),
    [(MessageSysFlag.COMPRESSION_LZ4, "lz4"), (MessageSysFlag.COMPRESSION_ZSTD, "zstandard")],
)
def test_where_a_library_is_missing_the_note_names_the_extra(
    kind: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.frame", None)
    body, trouble = decompress_body(MessageSysFlag.COMPRESSED | kind, b"packed")
    assert body == b"packed"
    assert trouble is not None and "ropewalk[compression]" in trouble


@pytest.mark.parametrize("kind", PACK)
def test_a_body_that_unfolds_without_bound_is_not_unfolded(kind: int) -> None:
    packed = PACK[kind](bytes(1_000_000))
    body, trouble = decompress_body(MessageSysFlag.COMPRESSED | kind, packed, size_max=1000)
    assert len(body) < 5000
    assert trouble is not None
    assert "more than 1000 bytes" in trouble
