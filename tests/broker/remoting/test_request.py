"""Requests: their answers in their own serialisation."""

from __future__ import annotations

import pytest

from broker.remoting.request import Request
from ropewalk.codes import FrameFlag, ResponseCode
from ropewalk.format.remoting import JSON, ROCKETMQ, Command, JsonHeader, encode_frame


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])
@pytest.mark.parametrize("remark", [None, "why"])
@pytest.mark.parametrize("ext", [None, {}, {"leader": "127.0.0.1:10911"}])
@pytest.mark.parametrize("body", [b"", b"values"])
def test_an_answer_is_the_frame_of_its_command(
    kind: int, remark: str | None, ext: dict[str, str] | None, body: bytes
) -> None:
    header = (
        Command(30104, opaque=7, serialize_type=kind) if kind == ROCKETMQ else JsonHeader(30104, opaque=7)
    )
    told = Command(
        ResponseCode.SYSTEM_BUSY, ext or {}, body, 7, FrameFlag.RESPONSE, remark, serialize_type=kind
    )
    assert Request(header, b"").reply(told.code, remark, ext, body) == encode_frame(told)
