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


def test_an_answer_about_a_group_that_would_hold_up_the_loop_is_none() -> None:
    members = ",".join(f'{n}:"10.0.0.1:{n}"' for n in range(150))
    body = b'{"brokerMemberGroup":{"brokerAddrs":{%b}}}' % members.encode()
    assert len(group_addresses(body)) == 150
    assert group_addresses(body + b" " * 8000) == {}


def test_an_answer_about_a_thousand_brokers_is_read_and_one_of_many_megabytes_is_not() -> None:
    brokers = ",".join(
        f'"b{n}":{{"brokerAddrs":{{0:"10.0.0.1:{n}"}},"brokerName":"b{n}"}}' for n in range(1000)
    )
    body = b'{"brokerAddrTable":{%b}}' % brokers.encode()
    assert broker_addresses(body, "brokerAddrTable", "b999") == {"0": "10.0.0.1:999"}
    assert broker_addresses(body + b" " * (1 << 20), "brokerAddrTable", "b999") == {}
