"""Answers of name servers as brokers read them, good and bad."""

from __future__ import annotations

import pytest

from broker.namesrv.answers import broker_addresses, group_addresses


def test_the_members_of_a_group_are_read_by_their_ids() -> None:
    body = b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911","2":7}}}'
    assert group_addresses(body) == {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}
    table = b'{"brokerAddrTable":{"b":{"brokerAddrs":{"0":"10.0.0.3:10911"}}}}'
    assert broker_addresses(table, "brokerAddrTable", "b") == {"0": "10.0.0.3:10911"}


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[]", b"{}", b'{"brokerMemberGroup":7}', b'{"brokerMemberGroup":{"brokerAddrs":[]}}'],
)
def test_an_answer_that_cannot_be_read_names_nobody(body: bytes) -> None:
    assert group_addresses(body) == {}
