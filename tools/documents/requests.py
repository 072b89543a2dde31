"""The request codes: which a broker and a name server answer, in which file, and why the others are refused."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import ropewalk.codes
from broker.broker import Broker
from broker.namesrv.server import NameServer
from ropewalk.codes import ROPEWALK_CODES, RequestCode, names_of
from tools.documents.markdown import cell, head, table

__all__ = ["REASONS", "REFUSED_BY_HANDLER", "SENT_BY_BROKERS", "meanings", "page", "served"]

SENT_BY_BROKERS: Final = frozenset({39, 40, 220, 221, 326})
"""Requests of a broker to its clients; asked of a broker they are answered with 3."""

REFUSED_BY_HANDLER: Final = frozenset[int]()
"""Codes with a handler whose answer is always a refusal in words of its own."""

REASONS: Final[Mapping[str, tuple[int, ...]]] = {
    "POP is not built": (200050, 200051, 200052, 200053, 200054, 200055, 200056, 200151),
    "static topics are not built": (513,),
    "users and access rules are not built": (*range(3001, 3011), 50, 51, 52, 53, 54),
    "there is no RocksDB store": (354, 355),
    "flow control of cold data is not built": (2001, 2002, 2003, 2004),
    "there are no broker containers": (902, 903),
    "slaves that act as masters are not built": (905, 906, 908),
    "the controller mode is not built": (1007, 1008, *range(1001, 1007), *range(1009, 1014)),
    "no RocketMQ broker answers it either": (13, 22, 23, 27, 47),
}
"""Why a code is refused, and the codes that are refused for that reason."""

_INTRODUCTION: Final = """
A request is a number. What is not built is refused with RocketMQ's own answer codes and never half-served: a code
without a handler is answered 3, `REQUEST_CODE_NOT_SUPPORTED`, and so is every number that is not on this page.
[from-rocketmq.md](../operate/from-rocketmq.md) lists what is refused by other answers than 3.
""".strip()


def page(broker: Broker) -> str:
    """Return the page for the codes that this broker and a name server serve."""
    names, texts, by_broker = names_of(RequestCode), meanings(), served(broker)
    by_name_server = NameServer(lambda: 0).codes
    reasons = {code: reason for reason, codes in REASONS.items() for code in codes}

    def row(code: int, *more: str) -> tuple[str, ...]:
        return (str(code), names[code], cell(texts[code]), *more)

    def link(code: int) -> str:
        path = by_broker[code]
        return f"[{path}](../../{path})"

    clients = [row(code, link(code)) for code in sorted(by_broker) if code not in ROPEWALK_CODES]
    served_rows = [one for one in clients if int(one[0]) not in REFUSED_BY_HANDLER]
    own = [row(code, link(code)) for code in sorted(by_broker) if code in ROPEWALK_CODES]
    refused = [
        row(code, "1" if code in REFUSED_BY_HANDLER else "3", cell(reasons[code]))
        for code in sorted(names)
        if code in reasons
    ]
    parts = [
        head(
            "Request codes",
            "`ropewalk/codes.py` and the handlers of a broker and a name server",
            _INTRODUCTION,
        ),
        "## Answered by a broker\n",
        table(("code", "name", "what it does", "file"), served_rows),
        "The port `listenPort` - 2 serves the same codes without those that read messages, 11, 361 and 30020.\n",
        "## Answered by a name server\n",
        table(
            ("code", "name", "what it does"), [row(code) for code in sorted(by_name_server) if code in names]
        ),
        "All are in [broker/namesrv/server.py](../../broker/namesrv/server.py).\n",
        "## Sent by a broker to its clients\n",
        table(
            ("code", "name", "what it does"),
            [row(code) for code in sorted(SENT_BY_BROKERS) if code not in reasons],
        ),
        "## Refused\n",
        table(("code", "name", "what it would do", "answer", "why"), refused),
        "## Between Ropewalk's own processes\n",
        "Numbers from 30000 to 30199. A stock RocketMQ peer answers 3, which is how it is recognised.\n",
        table(("code", "name", "what it does", "file"), own),
    ]
    return "\n".join(parts)


def served(broker: Broker) -> dict[int, str]:
    """Return the file of the handler of every code that the broker answers."""
    handlers: dict[int, Callable[..., Any]] = {
        **broker.processors.handlers.hot,
        **broker.processors.handlers.cold,
    }
    return {int(code): _file_of(handler) for code, handler in handlers.items()}


def _file_of(handler: Callable[..., Any]) -> str:
    """Return the file that defines a handler, below the functions that wrap it."""
    function = inspect.unwrap(handler)
    while not inspect.ismethod(function):
        inner = [
            value for value in inspect.getclosurevars(function).nonlocals.values() if inspect.isroutine(value)
        ]
        if len(inner) != 1:
            break
        (function,) = inner
    return f"{function.__module__.replace('.', '/')}.py"


def meanings() -> dict[int, str]:
    """Return the sentence below each constant of `RequestCode`."""
    assert ropewalk.codes.__file__ is not None
    tree = ast.parse(Path(ropewalk.codes.__file__).read_text(encoding="utf-8"))
    (owner,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "RequestCode")
    found: dict[int, str] = {}
    for node, below in zip(owner.body, owner.body[1:], strict=False):
        match node, below:
            case (
                ast.AnnAssign(value=ast.Constant(value=int(code))),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[code] = text
    return found
