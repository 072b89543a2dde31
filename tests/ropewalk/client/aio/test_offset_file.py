"""The progress file of a broadcasting consumer: what is broken is kept aside, and said."""

from pathlib import Path

import pytest

from ropewalk.client.admin.results import QueueProgress
from ropewalk.client.aio.offset_file import load_offsets, save_offsets
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.routes import Queue

SOURCE = TopicQueue("orders", Queue("broker-a", 0))


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "g.json"
    assert load_offsets(path) == {}
    save_offsets(path, {SOURCE: 17})
    assert load_offsets(path) == {SOURCE: 17}


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b'{"orders": 3}', b'{"a|b|c": 3}', b'{"a|b|1": null}', b"\xff\xfe"]
)
def test_a_broken_file_is_kept_aside_and_said(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "g.json"
    path.write_bytes(text)
    assert load_offsets(path) == {}
    assert not path.exists() and (tmp_path / "g.json.broken").read_bytes() == text
    assert "progress file broken" in caplog.text and str(path) in caplog.text


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "g.json"
    path.mkdir()
    assert load_offsets(path) == {}
    assert "progress not read" in caplog.text


def test_lag_is_never_negative() -> None:
    assert QueueProgress(SOURCE, 3, 50, 0, 0).lag == 0
    assert QueueProgress(SOURCE, 50, 3, 0, 0).lag == 47
