"""The `ropewalk` command: every sub-command parses, calls one plain function and prints what it returned.

It starts fast because nothing heavy is imported before it is needed: the server, the load generator
and the store are imported by the command that uses them, and `--help` imports none of them.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn

import typer
import typer.core

from ropewalk import __version__
from ropewalk.client.core.addresses import DEFAULT_NAME_SERVER, BadAddress, parse_address_list
from tools.common.interrupts import Interrupts
from tools.common.output import (
    FAILED,
    INTERRUPTED,
    OK,
    OutputFailed,
    ProgressLine,
    UsageError,
    counted,
    ended_by_output,
    expected_errors,
    note,
    open_output,
    parse_pairs,
    print_json,
    print_table,
    report_error,
    show_flags_bare,
    telling,
)

CONTEXT = {"help_option_names": ["-h", "--help"]}

FAMILIES = {
    "admin": "tools.admin.cli",
    "bench": "tools.bench.cli",
    "drill": "tools.drill.cli",
    "pipeline": "tools.pipeline.cli",
    "store": "tools.storage.cli",
}
"""Command families that are handed over, and the module of each: it is imported when one of its commands is."""


class Families(typer.core.TyperGroup):
    """The top of the command tree, which loads a family of commands when a command of it is used or completed."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        show_flags_bare(self)
        return super().make_context(*args, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and name in FAMILIES:
            command = typer.main.get_group(importlib.import_module(FAMILIES[name]).app)
        return name, command, rest


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

NameServers = Annotated[
    str,
    typer.Option(
        "--name-server",
        "-n",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT[;HOST:PORT]",
        help="The name servers to ask; any one that answers will do.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.001, help="Seconds to wait for a connection or an answer.")
]


def _complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    from tools.admin.base import complete_topic

    return complete_topic(ctx, incomplete)


def _complete_setting(incomplete: str) -> list[str]:
    from broker.settings.keys import KEYS, Mark

    honoured = (key.name for key in KEYS.values() if key.mark is Mark.HONOURED)
    return sorted(f"{name}=" for name in honoured if name.startswith(incomplete))


def _complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    from tools.admin.base import complete_group

    return complete_group(ctx, incomplete)


def run(servers: Collection[str]) -> NoReturn:
    """Run the command this process was started for, and exit with its status.

    A server keeps the standard streams and the Ctrl-C it was born with: it has its own ways with both. Every other
    command meets a Ctrl-C before and after its own handling in silence, and an output that fails in a sentence.
    """
    words = sys.argv[1:]
    if next((word for word in words if not word.startswith("-")), None) in servers:
        if not {"-h", "--help"} & set(words):
            import broker.process  # noqa: F401 - now, while a Ctrl-C still ends the process silently
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


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(INTERRUPTED)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ropewalk {__version__}")
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
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every configuration value and its origin, and exit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a broker in the foreground; Ctrl-C stops it cleanly.

    Without options it listens on this machine only, brings its own name server (port 9876) and keeps
    its data in ./ropewalk-data.
    """
    from broker.options import BrokerOptions
    from broker.process import run_broker
    from broker.settings.config import ConfigError

    with expected_errors(as_json=as_json):
        parse_pairs(settings or (), "--set")
        if name_server:
            try:
                parse_address_list(name_server, default_port=None)
            except BadAddress as exc:
                raise UsageError(f"-n {name_server}: {exc}") from exc
        options = BrokerOptions(
            config, name_server or None, tuple(settings or ()), ephemeral, namesrv_port, print_config, as_json
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
    as_json: Json = False,
) -> None:
    """Start a name server in the foreground: it tells clients which broker serves which topic."""
    from broker.options import NamesrvOptions
    from broker.process import run_namesrv

    with expected_errors(as_json=as_json):
        run_namesrv(NamesrvOptions(port, host, as_json))


@app.command()
def produce(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help="Created by its first message if need be.", autocompletion=_complete_topic
        ),
    ],
    messages: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="Messages to send. Without any: --file or standard input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Send each line of a file as a message; - is standard input."
        ),
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help='Every line (or MESSAGE) is a JSON object with "body" and, if wanted, "keys", "tags", '
            '"properties", "messageGroup" and "delay". What `ropewalk consume --format json` prints can be sent '
            "again.",
        ),
    ] = False,
    keys: Annotated[
        str | None, typer.Option("--keys", "-k", help="Keys to find the message by, separated by blanks.")
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", "-t", help="A tag consumers can filter by.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; may be repeated."),
    ] = None,
    message_group: Annotated[
        str | None,
        typer.Option(
            "--message-group", "-g", help="Messages of one message group lie in one queue, in the order sent."
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay",
            "-d",
            metavar="LEVEL|TIME",
            help="Deliver later: a level (1 to 18), or its time, as in 10s, 5m, 2h.",
        ),
    ] = None,
    transaction: Annotated[
        str | None,
        typer.Option(
            "--transaction",
            metavar="commit|rollback|leave",
            help="Send each message in a transaction, and end it so; what is left the broker asks about.",
        ),
    ] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", "-q", min=0, help="Only this queue, instead of all in turn.")
    ] = None,
    broker_name: Annotated[
        str | None, typer.Option("--broker", help="Only queues of the broker of this name.")
    ] = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = 3.0,
    as_json: Json = False,
) -> None:
    """Send messages to a topic: from the arguments, a file, or standard input, one for each line.

    Each message is counted by what the broker answered. Exit codes: 0 every message was acknowledged,
    1 some were not, 2 wrong use, 130 stopped by Ctrl-C.

    Examples:

        ropewalk produce demo "hello" "world"

        ropewalk produce demo --file orders.txt --tags new

        ropewalk produce demo "shipped" --keys order-7 --message-group order-7

        ropewalk produce demo "remind me" --delay 10s

        ropewalk produce demo "paid" --transaction commit

        tail -f app.log | ropewalk produce logs
    """
    from ropewalk.client.blocking.simple import Client
    from tools.messages.input import (
        LineSource,
        Stamp,
        check_properties,
        parse_delay,
        parser,
        read_arguments,
    )
    from tools.messages.produce import (
        MessageSender,
        Report,
        Sender,
        choose_queues,
        result_rows,
        summary,
    )
    from tools.messages.produce import produce as send_all

    with expected_errors(as_json=as_json), Interrupts() as interrupts, ExitStack() as opened:
        if messages and file is not None:
            raise UsageError("give messages or --file, not both")
        outcome = None
        if transaction is not None:
            from tools.messages import transactions  # an event loop, for those who ask

            outcome = transactions.parse_outcome(transaction)
        stamp = Stamp(
            keys,
            tags,
            check_properties(parse_pairs(properties or (), "--property")),
            message_group,
            parse_delay(delay) if delay is not None else 0,
        )
        parse = parser(stamp, json_lines=json_lines)
        given = read_arguments(messages, parse) if messages else []
        lines = None if given else LineSource(_open_input(file, opened), parse, interrupts)
        # Who types the messages needs the terminal for that, and sees how many there are.
        typed = lines is not None and file is None and sys.stdin.isatty()
        bar = ProgressLine(f"to {topic}", lines.size if lines else None, enabled=not typed)
        progress = opened.enter_context(bar)
        client = opened.enter_context(Client(name_server, timeout=timeout))

        def on_progress(so_far: Report) -> None:
            progress.update(lines.bytes_read if lines else 0, counted(so_far.acknowledged))

        queues = choose_queues(client.write_queues(topic), topic, queue, broker_name)
        report = Report(topic, results=None if lines else [])
        sender: MessageSender = Sender(client, topic, queues, report)
        if outcome is not None:
            from ropewalk.client.blocking.transaction_producer import TransactionProducer

            producer = TransactionProducer(
                transactions.unknown, name_server, group=transactions.GROUP, timeout=timeout
            )
            opened.enter_context(producer)
            sender = transactions.TransactionSender(producer, topic, queues, report, outcome)
        send_all(sender, lines or [given], interrupts, on_progress)
        unread = lines.unread_lines() if lines is not None and report.given_up else 0
    for text, number in report.problems.items():
        report_error(f"{counted(number)}: {text}" if number > 1 else text, as_json=as_json)
    with telling(lambda: summary(report)):
        if as_json:
            about_input = {"skipped": lines.skipped if lines else 0, "unreadLines": unread}
            print_json(report.as_json() | about_input)
        else:
            for row in (row for result in report.results or () for row in result_rows(result)):
                print("{status} {broker} queue {queueId} offset {queueOffset} msgId {msgId}".format_map(row))
    if not as_json:
        if lines is not None or report.interrupted or not report.complete:
            note(summary(report))
        if report.given_up and lines is not None:
            rest = (
                "the rest of the input was" if unread is None else f"{counted(unread, 'line')} behind it were"
            )
            note(f"stopped at line {lines.lines_read}: {rest} not read")
        if lines is not None and lines.skipped:
            note(f"{counted(lines.skipped, 'empty line')} skipped: RocketMQ has no empty messages")
    raise typer.Exit(INTERRUPTED if report.interrupted else OK if report.complete else FAILED)


def _open_input(file: Path | None, opened: ExitStack) -> BinaryIO:
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            note("reading messages from the terminal, one for each line; Ctrl-D ends")
        return sys.stdin.buffer
    try:
        return opened.enter_context(file.open("rb"))
    except OSError as exc:
        raise UsageError(f"cannot read {file}: {exc.strerror or exc}") from exc


@app.command()
def consume(
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC",
            help="One or more, or patterns such as 'order*' (in quotes).",
            autocompletion=_complete_topic,
        ),
    ],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, offset:N, a time (2026-01-31T12:00:00, local unless it names a zone), "
            "or milliseconds since 1970. Without it: earliest, and latest with --follow. With --group it counts "
            "only where the group has read nothing yet.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=0, help="Stop after so many messages.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Do not stop at the end of the topic; wait for more.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Consume as a member of this group: share the queues with its others, and commit.",
            autocompletion=_complete_group,
        ),
    ] = None,
    orderly: Annotated[
        bool,
        typer.Option("--orderly", help="With --group: lock each queue, as consumers of ordered messages do."),
    ] = False,
    form: Annotated[
        str,
        typer.Option("--format", metavar="text|json|hex", help="How to print a message, one for each line."),
    ] = "text",
    tags: Annotated[
        str,
        typer.Option("--tags", "-t", metavar="EXPRESSION", help='Only these tags, as in "new || changed".'),
    ] = "*",
    queue: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="Only this queue.")] = None,
    broker_name: Annotated[
        str | None, typer.Option("--broker", help="Only queues of the broker of this name.")
    ] = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print the messages of topics, oldest first, and end at their end (unless --follow).

    Without --group nothing is committed, and other consumers notice nothing. With it, what is printed counts as
    consumed, and the command takes its share of the queues beside the group's other members. Several topics are
    told apart by their name at the beginning of each line. Exit codes: 0 done, 1 failed, 2 wrong use, 130 stopped
    by Ctrl-C.

    Examples:

        ropewalk consume demo

        ropewalk consume 'order*' --follow --format json

        ropewalk consume demo --group billing --follow
    """
    from ropewalk.client.blocking.simple import Client
    from tools.messages.consume import Form, Reading, check_tags, choose_sources, parse_form, parse_start
    from tools.messages.consume import consume as read_all

    with expected_errors(as_json=as_json), Interrupts() as interrupts:
        form = "json" if as_json else parse_form(form)
        check_tags(tags)
        if group is not None and (queue is not None or broker_name is not None):
            raise UsageError("--queue and --broker do not go with --group: its members share out all queues")
        if orderly and group is None:
            raise UsageError("--orderly is for --group; without a group every queue is read in order anyway")
        begin = parse_start(start if start is not None else "latest" if follow else "earliest")
        out = sys.stdout.buffer
        printed = 0

        def put(line: bytes) -> None:
            nonlocal printed
            out.write(line)
            printed += 1
            if follow:
                out.flush()

        with Client(name_server, timeout=timeout) as client:
            sources = choose_sources(client, topics, queue, broker_name)
            names = sorted({source.topic for source in sources})
            several = len(names) > 1 or names != sorted(topics)
            look = Form(form, sys.stdout.isatty(), with_topic=several)
            label = names[0] if not several else counted(len(names), "topic")
            with telling(
                lambda: f"{counted(printed)} from {label} handled, of which the last may be missing"
            ):
                if group is None:
                    reading = Reading(
                        sources,
                        begin,
                        tags,
                        follow,
                        count,
                        lambda: choose_sources(client, topics, queue, broker_name),
                    )
                    handled = read_all(
                        client,
                        reading,
                        lambda source, record: put(look.record(source, record)),
                        interrupts,
                    )
                else:
                    from tools.messages.consume_group import GroupReading, consume_as_group

                    as_member = GroupReading(group, names, begin, tags, orderly, follow, count)
                    handled = consume_as_group(
                        name_server, timeout, as_member, lambda one: put(look.received(one)), interrupts
                    )
                out.flush()
        stopped = "stopped: " if interrupts.requested else ""
        if interrupts.requested or sys.stderr.isatty():
            note(f"{stopped}{counted(handled)} from {label}")
    raise typer.Exit(INTERRUPTED if interrupts.requested else OK)


@app.command()
def pull(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=_complete_topic)],
    queue: Annotated[int, typer.Option("--queue", "-q", min=0, help="The queue to read.")] = 0,
    offset: Annotated[int, typer.Option("--offset", "-o", min=0, help="The first message wanted.")] = 0,
    count: Annotated[int, typer.Option("--max", "-m", min=1, help="At most so many messages.")] = 32,
    tags: Annotated[
        str,
        typer.Option("--tags", "-t", metavar="EXPRESSION", help='Only these tags, as in "new || changed".'),
    ] = "*",
    broker_name: Annotated[
        str | None, typer.Option("--broker", help="The broker's name, if several have this queue.")
    ] = None,
    name_server: NameServers = DEFAULT_NAME_SERVER,
    timeout: Timeout = 3.0,
    as_json: Json = False,
) -> None:
    """Read one queue once, and show the broker's answer: status, offsets and messages.

    Exit codes: 0 the broker answered, also when it found nothing; 1 failed, 2 wrong use, 130 stopped by Ctrl-C.
    """
    from ropewalk.client.blocking.simple import Client
    from tools.messages.consume import PULL_COLUMNS, check_tags, pull_json, pull_rows
    from tools.messages.produce import choose_queues

    with expected_errors(as_json=as_json), Client(name_server, timeout=timeout) as client:
        check_tags(tags)
        chosen = choose_queues(client.read_queues(topic), topic, queue, broker_name)
        if len(chosen) > 1:
            names = ", ".join(sorted(each.broker_name for each in chosen))
            raise UsageError(
                f"several brokers have queue {queue} of {topic}: choose one with --broker ({names})"
            )
        result = client.pull(topic, chosen[0], offset, count, subscription=tags)
        if as_json:
            print_json(pull_json(chosen[0], result))
            return
        held = (
            f"holds {result.min_offset} to {result.max_offset - 1}"
            if result.max_offset > result.min_offset
            else "is empty"
        )
        print(
            f"{result.status.name}: {counted(len(result.records))}, next offset {result.next_offset}; "
            f"{chosen[0].broker_name} queue {queue} {held}"
        )
        if result.records:
            print_table(PULL_COLUMNS, pull_rows(result))


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
    words = " ".join(filter(None, (context.info_name, family)))
    command.main(args=list(context.args[bool(family) :]), prog_name=f"ropewalk {words}")
