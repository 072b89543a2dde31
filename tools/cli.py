"""The `ropewalk` command: every sub-command parses, calls one plain function and prints what it returned.

It starts fast because nothing heavy is imported before it is needed: the server, the load generator
and the store are imported by the command that uses them, and `--help` imports none of them.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from ropewalk import __version__
from ropewalk.client.core.addresses import BadAddress, parse_address_list
from tools.common.options import Json
from tools.common.output import (
    INTERRUPTED,
    OK,
    OutputFailed,
    UsageError,
    ended_by_output,
    expected_errors,
    open_output,
    parse_pairs,
    print_line,
    show_flags_bare,
)
from tools.common.usage import explain_usage
from tools.common.values import convert_plain_values
from tools.messages.commands import consume, produce, pull

CONTEXT = {"help_option_names": ["-h", "--help"]}

FAMILIES = {
    "admin": "tools.admin.cli",
    "bench": "tools.bench.cli",
    "drill": "tools.drill.cli",
    "kv": "tools.kv.cli",
    "pipeline": "tools.pipeline.cli",
    "store": "tools.storage.cli",
}
"""Command families that are handed over, and the module of each: it is imported when one of its commands is."""


class Families(typer.core.TyperGroup):
    """The top of the command tree, which loads a family of commands when a command of it is used or completed."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        show_flags_bare(self)
        explain_usage(self)
        convert_plain_values(self)
        return super().make_context(*args, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            self._refuse_inner_command(ctx, args[0])
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and name in FAMILIES:
            command = typer.main.get_group(importlib.import_module(FAMILIES[name]).app)
        return name, command, rest

    def _refuse_inner_command(self, ctx: Any, word: str) -> None:
        """Refuse a word that is a command of a family, with the family before it."""
        for name, module in FAMILIES.items():
            with suppress(ImportError):  # of a part that is not installed
                if word in typer.main.get_group(importlib.import_module(module).app).commands:
                    ctx.fail(f"No such command '{word}'. It is `ropewalk {name} {word}`.")


app = typer.Typer(
    cls=Families,
    name="ropewalk",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings=CONTEXT,
    help="A commitlog message broker that speaks Apache RocketMQ's protocol, and the tools around it.",
    epilog="Start with `ropewalk broker`, and in another shell `ropewalk produce demo hello`.",
)


LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="Log nothing below this: debug, info (the default), warning, error, critical.",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="text|json|auto",
        help="How a line of the log is written; auto is text on a terminal and JSON elsewhere.",
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        metavar="FILE",
        help="Append the log to this file, in place of standard error. Renaming it starts a new one.",
    ),
]


def _complete_setting(incomplete: str) -> list[str]:
    from broker.settings.keys import KEYS, Mark

    honoured = (key.name for key in KEYS.values() if key.mark is Mark.HONOURED)
    return sorted(f"{name}=" for name in honoured if name.startswith(incomplete))


def run(servers: Collection[str]) -> NoReturn:
    """Run the command this process was started for, and exit with its status.

    A server keeps the standard streams and the Ctrl-C it was born with: it has its own ways with both. Every other
    command meets a Ctrl-C before and after its own handling in silence, and an output that fails in a sentence.
    """
    words = sys.argv[1:]
    command = next((word for word in words if not word.startswith("-")), None)
    if command in servers:
        if not {"-h", "--help"} & set(words):  # now, while a Ctrl-C still ends the process silently
            _import_structlog_alone()
            importlib.import_module(
                "broker.process.main" if command == "broker" else "broker.process.namesrv"
            )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(app(prog_name="ropewalk"))
    signal.signal(signal.SIGINT, _leave)
    open_output()
    try:
        try:
            app(prog_name="ropewalk")
        except SystemExit:
            sys.stdout.flush()
            raise
    except OutputFailed as exc:
        sys.exit(ended_by_output(exc, as_json="--json" in words))
    sys.exit(OK)


def _import_structlog_alone() -> None:
    """Import structlog as if rich were not installed, with which it could draw tracebacks on a terminal.

    A server's log has none of these, and a tenth of its start went into rich.
    """
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        importlib.import_module("structlog")
        del sys.modules["rich"]


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(INTERRUPTED)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"ropewalk {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A commitlog message broker that speaks Apache RocketMQ's protocol, and the tools around it."""


@app.command()
def broker(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="A configuration file, key=value as RocketMQ's."),
    ] = None,
    name_server: Annotated[
        str | None,
        typer.Option(
            "--name-server",
            "-n",
            metavar="HOST:PORT[;HOST:PORT]",
            help="Register with these name servers. Without it the broker brings its own.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override one configuration key; may be repeated.",
            autocompletion=_complete_setting,
        ),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Keep data in a temporary directory that is removed at exit.")
    ] = False,
    namesrv_port: Annotated[
        int | None,
        typer.Option(
            "--namesrv-port",
            min=0,
            max=65535,
            help="Port of the broker's own name server; 0 is any free one.",
        ),
    ] = None,
    take_place: Annotated[
        bool,
        typer.Option(
            "--take-place",
            help="Register although another broker answers in this one's place: it is a stranger, or not meant to be.",
        ),
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every configuration value and its origin, and exit.")
    ] = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Start a broker in the foreground; Ctrl-C stops it cleanly.

    Without options it listens on this machine only, brings its own name server (port 9876) and keeps
    its data in ./ropewalk-data.
    """
    from broker.process.main import run_broker
    from broker.process.options import BrokerOptions
    from broker.settings.config import ConfigError

    with expected_errors(as_json=as_json):
        parse_pairs(settings or (), "--set")
        if name_server:
            try:
                parse_address_list(name_server, default_port=None)
            except BadAddress as exc:
                raise UsageError(f"-n {name_server}: {exc}") from exc
        options = BrokerOptions(
            config,
            name_server or None,
            tuple(settings or ()),
            ephemeral,
            namesrv_port,
            take_place,
            print_config,
            as_json,
            log_level,
            log_format,
            log_file,
        )
        try:
            run_broker(options)
        except ConfigError as exc:
            raise UsageError(str(exc)) from exc


@app.command()
def namesrv(
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0 is any free one.")
    ] = 9876,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every network of this machine.")
    ] = "127.0.0.1",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    log_file: LogFile = None,
    as_json: Json = False,
) -> None:
    """Start a name server in the foreground: it tells clients which broker serves which topic.

    Its log is set as a broker's is, by option or by ROPEWALK_LOG_LEVEL, ROPEWALK_LOG_FORMAT and ROPEWALK_LOG_FILE.
    """
    from broker.process.logs import FORMATS, LEVELS
    from broker.process.namesrv import run_namesrv
    from broker.process.options import NamesrvOptions

    with expected_errors(as_json=as_json):
        environ = os.environ
        path = str(log_file or environ.get("ROPEWALK_LOG_FILE", ""))
        options = NamesrvOptions(
            port,
            host,
            as_json,
            log_level or environ.get("ROPEWALK_LOG_LEVEL") or "info",
            log_format or environ.get("ROPEWALK_LOG_FORMAT") or "auto",
            Path(path) if path else None,
        )
        for flag, word, words in (
            ("--log-level", options.log_level, LEVELS),
            ("--log-format", options.log_format, FORMATS),
        ):
            if word not in words:
                raise UsageError(f"{flag} {word}: must be one of {', '.join(words)}")
        run_namesrv(options)


app.command()(produce)
app.command()(consume)
app.command()(pull)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def bench(context: typer.Context) -> None:
    """Measure a broker, Ropewalk or Apache RocketMQ: `ropewalk bench produce`, `ropewalk bench pull`."""
    from tools.bench.cli import app as bench_app

    _hand_over(bench_app, context)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def drill(context: typer.Context) -> None:
    """Break a throw-away cluster on purpose, and read the cost: `ropewalk drill list`, `ropewalk drill run`."""
    from tools.drill.cli import app as drill_app

    _hand_over(drill_app, context)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def kv(context: typer.Context) -> None:
    """Use a DLedger group's key-value store: `ropewalk kv get | put | cas | delete | scan | lock | split | status`."""
    from tools.kv.cli import app as kv_app

    _hand_over(kv_app, context)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def store(context: typer.Context) -> None:
    """Look into a store's files and mend them: `ropewalk store dump | verify | info | recover | repair`."""
    from tools.storage.cli import app as store_app

    _hand_over(store_app, context)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def admin(context: typer.Context) -> None:
    """Look after a running cluster: `ropewalk admin topic | group | message | broker | cluster …`."""
    if context.args[:1] == ["ha"]:  # a group without a master waits for no module that it does not need
        from tools.admin.ha import app as ha_app

        _hand_over(ha_app, context, family="ha")
        return
    from tools.admin.cli import app as admin_app

    _hand_over(admin_app, context)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def pipeline(context: typer.Context) -> None:
    """Run jobs over stores and topics on Spark: `ropewalk pipeline audit | rebuild | export | stats …`."""
    from tools.pipeline.cli import app as pipeline_app

    _hand_over(pipeline_app, context)


def _hand_over(sub_app: typer.Typer, context: typer.Context, *, family: str = "") -> None:
    """Run a command family that was imported only now, under our name and with the arguments left.

    `family`: it is one within this command's, and the first argument is its name.
    """
    command = typer.main.get_group(sub_app)
    command.context_settings.setdefault("help_option_names", CONTEXT["help_option_names"])
    show_flags_bare(command)
    explain_usage(command)
    convert_plain_values(command)
    words = " ".join(filter(None, (context.info_name, family)))
    command.main(args=list(context.args[bool(family) :]), prog_name=f"ropewalk {words}")
