"""Replay transcripts, and write down what they lead to: `python -m tests.scenarios.rewrite [NAME...]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.ha.raft.script import Script

STORIES = Path(__file__).parent / "raft"


def replayed(text: str) -> str:
    """Return the transcript as the cores of today tell it. Raises `AssertionError` where a `!` line is not true."""
    script = Script(())
    told: list[str] = []
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            word, *rest = line[2:].split()
            told = []
            lines.append(line)
            if word == "group":
                at = rest.index("+") if "+" in rest else len(rest)
                script = Script(rest[:at], others=rest[at + 1 :])
            else:
                told = script.run(line[2:])
            lines += told
        elif line.startswith("! "):
            assert any(line[2:] in each for each in told), f"{line[2:]!r} did not come true: {told}"
            lines.append(line)
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    names = sys.argv[1:] or [path.stem for path in sorted(STORIES.glob("*.txt"))]
    for name in names:
        path = STORIES / f"{name}.txt"
        path.write_text(replayed(path.read_text()))


if __name__ == "__main__":
    main()
