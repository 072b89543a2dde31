"""An operator's commands during a drill: what `ropewalk admin ha` does."""

from __future__ import annotations

import subprocess

import trio

from ropewalk.errors import RopewalkError
from tools.drill.cluster import child_environment, this_command
from tools.drill.group import Group


class Failed(RopewalkError):
    """The command ended with an error; the text is its own."""


async def run(group: Group, name: str) -> str:
    """Run `ropewalk admin ha NAME` for the group, and return what it printed. Raises `Failed`."""
    done = await trio.run_process(
        [
            *this_command(),
            "admin",
            "ha",
            name,
            group.broker_name,
            "--yes",
            "--name-server",
            group.name_server,
        ],
        stdin=b"",
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=child_environment(),
        process_group=0,
    )
    assert isinstance(done, subprocess.CompletedProcess)
    out = done.stdout.decode(errors="replace").strip()
    if done.returncode != 0:
        raise Failed(done.stderr.decode(errors="replace").strip() or out or f"status {done.returncode}")
    return out.splitlines()[0] if out else "done"
