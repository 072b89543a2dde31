"""Configurations in records: there and back, with and without what older records lack."""

from __future__ import annotations

import pytest

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.configuration import (
    Configuration,
    decode_configuration,
    encode_configuration,
)
from ropewalk.format.dledger.entry import configuration_in, encode_entries
from ropewalk.format.names import TERM_TOPIC
from ropewalk.format.record import encode_host, encode_record

FULL = Configuration(
    7, "n0", ("n0", "n1"), ("n0", "n1", "n2"), ("n3",), {"n0": "10.0.0.1:40911"}, {"n0": bytes(range(16))}
)
HOST = encode_host("127.0.0.1", 10911)


def test_a_configuration_comes_back_as_it_was() -> None:
    assert decode_configuration(encode_configuration(FULL)) == FULL


def test_a_configuration_is_read_out_of_its_entry() -> None:
    body = encode_configuration(FULL)
    record = encode_record(TERM_TOPIC.encode(), 0, 0, 4, 448, 0, 0, HOST, 0, HOST, 0, 0, body, b"")
    assert configuration_in(memoryview(encode_entries(4, 7, 400, [record]))) == FULL


def test_a_record_of_before_members_could_change_is_read() -> None:
    found = decode_configuration(b'{"term": 3, "leader": "n1", "voters": ["n0", "n1", "n2"]}')
    assert (found.term, found.voters, found.old, found.learners) == (3, ("n0", "n1", "n2"), (), ())


def test_terms_and_leaders_make_no_difference() -> None:
    other = Configuration(
        9, "n1", FULL.voters, FULL.old, FULL.learners, dict(FULL.addresses), dict(FULL.incarnations)
    )
    assert FULL.says_the_same(other)
    assert not FULL.says_the_same(Configuration(7, "n0", FULL.voters))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[]", b"{}", b'{"term": 1}', b'{"term": 1, "voters": []}', b"[" * 5000]
)
def test_a_body_without_a_configuration_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_configuration(body)
