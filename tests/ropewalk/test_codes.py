from __future__ import annotations

import pytest

from ropewalk.codes import (
    ROPEWALK_CODES,
    ROPEWALK_KV_CODES,
    Language,
    RequestCode,
    ResponseCode,
    names_of,
    request_name,
    response_name,
)


@pytest.mark.parametrize("codes", [RequestCode, ResponseCode])
def test_no_number_has_two_names(codes: type) -> None:
    constants = [name for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)]
    assert len(names_of(codes)) == len(constants)


def test_codes_read_as_their_names_and_strangers_as_numbers() -> None:
    assert request_name(310) == "SEND_MESSAGE_V2"
    assert request_name(9999) == "9999"
    assert response_name(0) == "SUCCESS"
    assert response_name(-1000) == "RPC_UNKNOWN"
    assert response_name(77) == "77"


def test_our_own_codes_stay_in_the_range_kept_for_them_and_fit_the_binary_header() -> None:
    own = {code for code, name in names_of(RequestCode).items() if name.startswith("ROPEWALK_")}
    assert own
    assert own == {code for code in names_of(RequestCode) if code in ROPEWALK_CODES}
    assert max(ROPEWALK_CODES) < 2**15
    assert set(ROPEWALK_KV_CODES) < set(ROPEWALK_CODES)


@pytest.mark.parametrize(("code", "name"), list(enumerate(Language.NAMES)))
def test_languages_are_numbered_as_in_the_original(code: int, name: str) -> None:
    assert Language.code_of(name) == code
    assert Language.name_of(code) == name
    assert Language.NAMES[3] == "PYTHON"
    assert Language.NAMES[9] == "GO"


def test_an_unknown_language_is_other() -> None:
    assert Language.code_of("KLINGON") == 7
    assert Language.name_of(14) == "OTHER"
    assert Language.name_of(-1) == "OTHER"
