"""Client ids, groups and remarks come from peers: whatever they hold, a terminal shows it and does not obey it."""

from __future__ import annotations

import json
import time

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from ropewalk.testing import RopewalkBroker
from tests.broker.harness import heartbeat_body
from tests.tools.conftest import RunCommand
from tools.common.output import ShortenedText, print_json, print_line, print_table, report_error

HOSTILE = "10.0.0.9@\x1b]52;c;ZXZpbA==\x07\x1b[8m\x9b2J\u202ex\nbroker-a  fine"
"""Fills the clipboard, hides what follows, clears the screen, turns the direction of writing, begins a line."""


def acts_on_a_terminal(text: str) -> bool:
    return any(not char.isprintable() and char not in "\n\t" for char in text)


@pytest.mark.parametrize("width", ["200", "40", "16"])
def test_no_cell_of_a_table_acts_on_a_terminal(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(
        ("client", "lag", "note"), [(HOSTILE, 3, ShortenedText(HOSTILE, HOSTILE[:30])), ("c2", None, "")]
    )
    out = capsys.readouterr().out.replace("\x1b[1m", "").replace("\x1b[0m", "")  # the headings are bold
    assert not acts_on_a_terminal(out)
    assert "\nbroker-a" not in out


def test_no_line_note_or_document_acts_on_a_terminal(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    print_line(f"{HOSTILE} is gone")
    print_json({"client": HOSTILE})
    report_error(HOSTILE, HOSTILE)
    report_error(HOSTILE, HOSTILE, as_json=True)
    out, errors = (text.decode() for text in capsysbinary.readouterr())
    assert not acts_on_a_terminal(out) and not acts_on_a_terminal(errors)
    assert "\nbroker-a" not in errors
    assert json.loads(out.splitlines()[-1]) == {"client": HOSTILE}
    assert json.loads(errors.splitlines()[-1]) == {"error": HOSTILE, "hint": HOSTILE}


def test_a_client_id_cannot_write_an_operators_screen(
    ropewalk: RunCommand, ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    with Connection(ropewalk_broker.broker, time.monotonic() + 10) as stranger:
        body = heartbeat_body(HOSTILE, group, {topic: "*"})
        assert stranger.call(Command(RequestCode.HEART_BEAT, body=body)).code == 0
        for words in (("group", "show", group), ("lag", group)):
            ended = ropewalk("admin", *words, name_server=ropewalk_broker.namesrv)
            shown = ended.out.decode() + ended.errors
            assert not acts_on_a_terminal(shown), words
            assert "\nbroker-a  fine" not in shown
        assert (
            "\\x1b]52"
            in ropewalk("admin", "group", "show", group, name_server=ropewalk_broker.namesrv).out.decode()
        )
