"""Long stories of Raft, as transcripts: what was done, what became of it. A change of them is read as a diff.

A line that begins with `>` is done by `tests.ha.raft.script.Script.run`; the indented lines behind it are what it led
to, and `python -m tests.scenarios.rewrite` writes them anew. A line that begins with `!` is never rewritten: it must
occur among what the command in front of it led to, so that no transcript loses its point. `group` begins a story.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.rewrite import STORIES, replayed


@pytest.mark.parametrize("path", sorted(STORIES.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_goes_as_it_is_written(path: Path) -> None:
    text = path.read_text()
    assert replayed(text) == text


def test_a_line_that_was_expected_and_did_not_come_is_noticed() -> None:
    with pytest.raises(AssertionError, match="n0 is LEADER"):
        replayed("> group n0 n1 n2\n> tick n0\n! n0 is LEADER in term 1\n")
