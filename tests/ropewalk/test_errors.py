from __future__ import annotations

import pytest

from ropewalk import errors
from ropewalk.codes import ResponseCode, names_of
from ropewalk.errors import (
    LocalProtocolError,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    Rejected,
    RemoteProtocolError,
    RopewalkError,
    TryElsewhere,
    TryLater,
    class_for,
    error_for,
)

CODES = names_of(ResponseCode)


@pytest.mark.parametrize("code", sorted(set(CODES) - {ResponseCode.SUCCESS}))
def test_every_response_code_makes_an_error_that_says_what_the_peer_said(code: int) -> None:
    error = error_for(code, "the remark")
    assert type(error) is class_for(code)
    assert isinstance(error, (Refused, OutcomeUnknown))
    assert (error.code, error.remark) == (code, "the remark")
    assert CODES[code] in str(error)
    assert "the remark" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ResponseCode.SYSTEM_ERROR, Refused),
        (ResponseCode.SYSTEM_BUSY, TryLater),
        (ResponseCode.FLOW_CONTROL, TryLater),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, Rejected),
        (ResponseCode.MESSAGE_ILLEGAL, Rejected),
        (ResponseCode.NO_PERMISSION, Rejected),
        (ResponseCode.TOPIC_NOT_EXIST, Rejected),
        (ResponseCode.SERVICE_NOT_AVAILABLE, TryElsewhere),
        (ResponseCode.NOT_LEADER_FOR_QUEUE, TryElsewhere),
        (ResponseCode.GO_AWAY, TryElsewhere),
        (ResponseCode.FLUSH_DISK_TIMEOUT, OutcomeUnknown),
        (ResponseCode.SLAVE_NOT_AVAILABLE, OutcomeUnknown),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, OutcomeUnknown),
    ],
)
def test_the_class_says_what_to_do_next(code: int, kind: type[RopewalkError]) -> None:
    assert class_for(code) is kind


def test_an_unheard_of_code_is_a_refusal() -> None:
    assert type(error_for(4711)) is Refused
    assert error_for(4711).remark is None


def test_a_stored_message_is_never_called_refused() -> None:
    for code in (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ):
        assert not isinstance(error_for(code), Refused)


def test_success_is_not_an_error() -> None:
    with pytest.raises(AssertionError):
        error_for(ResponseCode.SUCCESS)


def test_all_errors_are_caught_by_one_name_and_protocol_errors_by_another() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert all(issubclass(error, RopewalkError) for error in classes)
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(Refused, ProtocolError)
    assert not issubclass(OutcomeUnknown, Refused)
