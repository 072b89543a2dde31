"""The entrance of the command: find the rooms, refuse an unfit interpreter, and run the command line.

Installed, the rooms `tools`, `broker`, `ha` and `store` lie inside this package, in `_rooms`, because
names so general must not be scattered over a user's environment. In a checkout they are its top-level
folders. Either way their folder goes first on the path of this process alone, so that another
distribution's `tools` cannot stand in for ours.

This is the one file of `ropewalk` that knows of the rooms. It serves the console script and
`python -m ropewalk` alike.
"""

import atexit
import gc
import os
import signal
import sys
from pathlib import Path

SERVERS = ("broker", "namesrv")  # the commands that own state other programs rely on
INTERRUPTED = 130
COLLECT_AFTER = 200_000
"""So many objects more than before, and garbage is looked for; the modules of a broker make three quarters of them."""


def rooms_folder(package: Path) -> Path:
    """Return the folder that holds the rooms: the one inside an installed package, else the checkout.

    An installed package always carries `_rooms`; a checkout never does, and its rooms are neighbours.
    """
    installed = package / "_rooms"
    return installed if installed.is_dir() else package.parent


def refusal(arguments: list[str], *, optimized: bool, platform: str) -> str | None:
    """Return the reason why this interpreter cannot run this command, or None.

    Only the servers are refused: clients and readers keep no promise that an assertion guards.
    """
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command not in SERVERS or {"-h", "--help"} & set(arguments):
        return None
    if optimized:
        return (
            f"ropewalk {command} does not run under python -O (or PYTHONOPTIMIZE): it would strip the "
            "assertions that stop the process before damaged state reaches the disk."
        )
    if platform != "linux":
        return f"ropewalk {command} runs on Linux only; clients run anywhere. This is {platform}."
    return None


def main() -> None:
    """Run the `ropewalk` command with the arguments of this process, and exit with its status."""
    reason = refusal(sys.argv[1:], optimized=sys.flags.optimize > 0, platform=sys.platform)
    if reason is not None:
        sys.exit(f"error: {reason}")
    # What modules make stays for good: to look for garbage among it takes a fifth of a start, and another one of a
    # short command when the interpreter does so for the last time.
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)
    # While modules are imported nothing is worth finishing, and a KeyboardInterrupt would be a traceback.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    sys.path.insert(0, str(rooms_folder(Path(__file__).resolve().parent)))

    from tools.cli import run

    run(servers=SERVERS)


if __name__ == "__main__":
    main()
