import pytest

from ropewalk.client.core.addresses import (
    Address,
    AddressRing,
    BadAddress,
    choose_name_servers,
    parse_address,
    parse_address_list,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9876", Address("127.0.0.1", 9876)),
        (" broker-a.example:1 ", Address("broker-a.example", 1)),
        ("[::1]:9876", Address("::1", 9876)),
        ("fe80::1:2:9876", Address("fe80::1:2", 9876)),
        ("localhost", Address("localhost", 1234)),
        ("[::1]", Address("::1", 1234)),
    ],
)
def test_an_address_is_read_as_people_and_rocketmq_write_it(text: str, address: Address) -> None:
    assert parse_address(text, 1234) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", ":9876", "host:", "host:0", "host:65536", "host:x", "host:-1", "[::1", "[::1]9876", "host:٣"]
)
def test_what_is_no_address_is_refused_with_the_form_it_should_have(text: str) -> None:
    with pytest.raises(BadAddress, match=r"host:port|\[host\]:port"):
        parse_address(text)


def test_a_list_is_separated_by_semicolons_and_forgives_commas_and_blanks() -> None:
    expected = (Address("a", 1), Address("b", 9876), Address("c", 3))
    assert parse_address_list("a:1;b:9876;c:3") == expected
    assert parse_address_list("a:1, b\n;;c:3;a:1") == expected


@pytest.mark.parametrize("text", ["", " ; ,"])
def test_an_empty_list_is_an_error(text: str) -> None:
    with pytest.raises(BadAddress, match="empty"):
        parse_address_list(text)


def test_a_ring_stays_with_the_current_one_and_goes_round_once_when_it_fails() -> None:
    ring = AddressRing(parse_address_list("a:1;b:1;c:1"))
    assert next(ring.one_round()).host == "a"
    assert ring.current.host == "a"
    assert [address.host for address in ring.one_round()] == ["a", "b", "c"]
    assert ring.current.host == "c"
    assert [address.host for address in ring.one_round()] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("given", "environ", "chosen"),
    [
        (None, {}, "127.0.0.1:9876"),
        (None, {"NAMESRV_ADDR": "a:1"}, "a:1"),
        (None, {"NAMESRV_ADDR": "a:1", "ROPEWALK_NAMESRV_ADDR": "b:2"}, "b:2"),
        (None, {"NAMESRV_ADDR": ""}, "127.0.0.1:9876"),
        ("c:3", {"NAMESRV_ADDR": "a:1", "ROPEWALK_NAMESRV_ADDR": "b:2"}, "c:3"),
    ],
)
def test_a_client_without_an_address_takes_the_environments(
    given: str | None, environ: dict[str, str], chosen: str
) -> None:
    assert choose_name_servers(given, environ) == chosen
