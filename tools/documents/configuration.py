"""The configuration reference: every key of `broker.settings.keys` with its default, bounds and meaning."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

from broker.admin.broker import CHANGEABLE
from broker.settings.key_help import key_help
from broker.settings.keys import ANY, INT_MAX, KEYS, LONG_MAX, Key, Kind, Mark
from tools.documents.markdown import cell, code, head, table

__all__ = ["page"]

_HOW_IT_WORKS: Final = """
A broker takes RocketMQ's own configuration file: `ropewalk broker -c FILE`. In order of precedence a value comes from

1. a flag: `--set key=value`, or one of the named flags;
2. the environment: `ROPEWALK_FLUSH_DISK_TYPE` is `flushDiskType`. A key that begins with `ropewalk` does not need the
   word twice: `ROPEWALK_SECRET` is `ropewalkSecret`, and so is `ROPEWALK_ROPEWALK_SECRET`;
3. the file;
4. the default.

`ropewalk broker --print-config` shows every value and where it came from. Every key of RocketMQ's broker, store and
network settings is known: it is honoured, or it has no effect here and one warning lists those you set, or it is
refused. A key in none of these lists is an error that names the nearest known one; in the environment, where other
programs have their say too, it is a warning.
""".strip()

_WITHOUT_FILE: Final = """
With a file the broker listens on all addresses, as RocketMQ does, unless `bindAddress` says otherwise. Without a file
everything binds to the loopback interface, and data lies in `ropewalk-data/<broker name>` under the current folder.
`--ephemeral` takes a temporary folder instead and removes it at exit; after a `kill -9` it stays behind. `-n HOST:PORT`
registers the broker with name servers that run elsewhere (`ropewalk namesrv -p PORT`), in place of the one inside it.
""".strip()

_PORTS: Final = """
## Ports

| port | key | who connects |
|---|---|---|
| 9876 | `namesrvPort` | clients and brokers, to the name server inside the broker |
| 10911 | `listenPort` | clients |
| 10909 | always `listenPort` - 2 | RocketMQ's clients, where they are told to send on the second port |
| 10912 | `haListenPort` | slaves |
| 5557, or the next free one | `metricsPromExporterPort` | Prometheus, and probes of `/livez` and `/readyz` |

Port 0 means any free port, and the ready line tells which it became. Where the usual ones are taken, start with
`ROPEWALK_LISTEN_PORT=0 ROPEWALK_NAMESRV_PORT=0 make run`, or `ropewalk broker --set listenPort=0 --namesrv-port 0`, and
give clients the name server of the ready line.

## Disk space

Files of the commit log are allocated ahead, as RocketMQ's are: the first message takes 1 GiB of disk, and the next GiB
is taken before the first is full. `--set mappedFileSizeCommitLog=67108864` makes the files of a new store 64 MiB each.

## Changing settings while the broker runs

`ropewalk admin broker config set` (code 25, so `mqadmin updateBrokerConfig` too) changes some of the keys at once, at
every running replica of the brokers that it is told: `-b NAME` is a broker with its slaves, `-b HOST:PORT` one. Each
keeps the change in its configuration file; one that was started without such a file forgets it when it stops. These may
be changed, and all others are refused in words:
""".strip()


def page() -> str:
    """Return the whole reference."""
    parts = [
        head(
            "Configuration",
            "`broker/settings/keys.py` and `broker/settings/key_help.py`",
            _HOW_IT_WORKS,
            _WITHOUT_FILE,
        ),
        f"{_PORTS}\n\n{_wrapped(sorted(CHANGEABLE))}",
        "## Keys that are honoured\n\nThey do here what they do in RocketMQ, or what is told. Sizes are in bytes. "
        "Underscores in numbers\nare for the eye and not for the file.\n",
    ]
    help_of = key_help()
    sections = dict.fromkeys(one.section for one in help_of.values())
    for section in sections:
        rows = [
            (code(name), _default(KEYS[name]), cell(f"{one.text}{_bounds(KEYS[name])}"))
            for name, one in help_of.items()
            if one.section == section
        ]
        parts.append(f"### {section}\n\n{table(('key', 'default', 'what it does'), rows)}")
    refused = [
        (code(key.name), "any value" if value == ANY else code(value), cell(reason))
        for key in KEYS.values()
        for value, reason in key.refused.items()
    ]
    parts.append(
        "## Values that are refused\n\nThe broker does not start, and says why: each of them would promise something "
        f"that is not built.\n\n{table(('key', 'value', 'why'), refused)}"
    )
    idle = sorted(key.name for key in KEYS.values() if key.mark is Mark.NO_EFFECT)
    parts.append(
        f"## Keys without effect\n\nThese {len(idle)} keys are known and their values are checked for their type; "
        f"one warning at start lists those that were set.\n\n{_wrapped(idle)}"
    )
    return "\n".join(parts)


def _default(key: Key) -> str:
    match key.default:
        case None:
            return "-"
        case bool():
            return code(str(key.default).lower())
        case int():
            return f"{key.default:_}" if key.default >= 10_000 else str(key.default)
        case _:
            return code(str(key.default))


def _bounds(key: Key) -> str:
    """Return the words that may be set, or the bounds of a number where they are narrower than its type."""
    if key.choices:
        allowed = [choice for choice in key.choices if choice not in key.refused]
        return f" One of {', '.join(f'`{choice}`' for choice in allowed)}."
    if key.kind not in (Kind.INT, Kind.LONG):
        return ""
    if key.high in (INT_MAX, LONG_MAX):
        return f" At least {key.low:_}." if key.low > 1 else ""
    return f" From {key.low:_} to {key.high:_}."


def _wrapped(names: Iterable[str]) -> str:
    text = ", ".join(code(name) for name in names)
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False) + "\n"
