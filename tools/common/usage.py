"""The right form of a command, told with the error of a wrong one.

    No such option: --group; GROUP is written without it: `ropewalk admin lag [GROUP]`
    Got unexpected extra argument(s) (0123); the form is `ropewalk admin message show ID`, with options as --topic TOPIC

The command line's library names the option, argument or command that it did not understand, and the nearest option.
What is added here is the form of the command that was meant. A wrong value is told by whoever checks it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final, cast

import typer

from tools.common.output import USAGE, fail

__all__ = ["explain_usage", "form_of"]

SYNONYMS: Final = {
    "count": ("limit", "max", "max_messages", "number", "maxnum"),
    "max": ("limit", "count", "max_messages"),
    "limit": ("count", "max"),
    "from": ("start", "since", "offset", "from_beginning", "from_earliest", "begin"),
    "name_server": (
        "namesrv",
        "namesrv_addr",
        "bootstrap_server",
        "bootstrap_servers",
        "broker_list",
        "server",
    ),
    "group": ("consumer_group", "group_id", "groupname"),
    "tags": ("subexpression", "subscription", "filter"),
    "keys": ("key",),
    "property": ("properties", "header", "headers"),
    "message_group": ("sharding_key", "order_key"),
    "yes": ("force", "assume_yes"),
}
"""Option -> names that other tools, RocketMQ's and Kafka's among them, have for it."""

_UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
_SHARED: Final = {"name_server", "timeout", "as_json", "help"}
"""Parameters that nearly every command has: they would hide its own."""
_SHOWN_MAX: Final = 5


def explain_usage(command: Any) -> None:
    """Have the usage errors of all commands below a group tell the right form; as JSON where `--json` is a word."""
    invoke = command.invoke

    def explaining(context: typer.Context) -> Any:
        try:
            return invoke(context)
        except _UsageError as exc:
            _explain(exc)
            if "--json" in sys.argv:
                fail(cast(Any, exc).format_message(), exit_code=USAGE, as_json=True)
            raise

    command.invoke = explaining


def form_of(context: typer.Context) -> str:
    """Return the words of a command with the names of its arguments, the optional ones in brackets."""
    words = [_shown(each) for each in _arguments(context)]
    return " ".join((context.command_path, *words))


def _explain(exc: Any) -> None:
    context = getattr(exc, "ctx", None)
    if context is None or getattr(context.command, "commands", None) or getattr(exc, "is_explained", False):
        return
    exc.is_explained = True
    form = f"`{form_of(context)}`"
    option = getattr(exc, "option_name", None)
    if option is not None and hasattr(exc, "possibilities"):  # an unknown option, and no wrong value
        told = _of_an_option(option, context, bool(exc.possibilities), form)
        exc.message += told
        if told:
            exc.possibilities = []
    elif "extra argument" in exc.message:
        exc.message += f"; the form is {form}{_with_options(context)}"
    elif getattr(getattr(exc, "param", None), "param_type_name", "") == "argument" and not exc.message:
        exc.message = f"The form is {form}"


def _of_an_option(option: str, context: typer.Context, has_near: bool, form: str) -> str:
    wanted = _plain(option)
    for argument in _arguments(context):
        known = _plain(argument.name), _plain(argument.metavar or "")
        if wanted in known or (len(wanted) == 1 and any(name.startswith(wanted) for name in known)):
            return f"; {_name(argument)} is written without it: {form}"
    for each in _options(context):
        own = _longest(each.opts)
        if wanted in map(_plain, SYNONYMS.get(own.strip("-").replace("-", "_"), ())):
            return f"; here it is {own}"
    if has_near:
        return ""
    names = [name for each in _options(context) for name in each.opts if name.startswith("--")]
    if near := get_close_matches(option, names, 1, 0.5):
        return f"; did you mean {near[0]}?"
    return f"; the form is {form}{_with_options(context)}"


def _with_options(context: typer.Context) -> str:
    """Return the command's own options that take a value, as words for the end of a sentence."""
    own = [each for each in _options(context) if each.name not in _SHARED and not each.is_flag]
    shown = [f"{_longest(each.opts)} {_name(each)}" for each in own[:_SHOWN_MAX]]
    more = ", …" if len(own) > _SHOWN_MAX else ""
    return f", with options as {', '.join(shown)}{more}" if shown else ""


def _arguments(context: typer.Context) -> list[Any]:
    return [each for each in context.command.params if each.param_type_name == "argument"]


def _options(context: typer.Context) -> list[Any]:
    return [each for each in context.command.params if each.param_type_name == "option"]


def _shown(argument: Any) -> str:
    name = _name(argument) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _longest(names: Iterable[str]) -> str:
    return max(names, key=len)


def _plain(name: str) -> str:
    """Return a name as it is compared: without dashes, in small letters, in the singular."""
    return name.strip("-{}[]. ").replace("-", "_").lower().rstrip("s")
