"""Define `ropewalk produce`, `consume` and `pull`: parse, carry out by one plain function each, print the outcome.

What sends and reads is imported by the command that needs it: `--help` and every other command start without it. Left
to others: reading messages from text (`input`), sending (`produce`), reading (`consume`, `consume_group`).
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from ropewalk.client.core.addresses import DEFAULT_NAME_SERVER
from tools.common.interrupts import Interrupts
from tools.common.options import Json, NameServers, Timeout, complete_group, complete_topic
from tools.common.output import (
    FAILED,
    INTERRUPTED,
    OK,
    ProgressLine,
    UsageError,
    counted,
    expected_errors,
    note,
    parse_pairs,
    print_json,
    print_line,
    print_table,
    report_error,
    telling,
)

if TYPE_CHECKING:
    from ropewalk.client.core.consume.received import TopicQueue

__all__ = ["consume", "produce", "pull"]

TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="The topic, for who is used to naming it so."),
]


def _named_topic(
    topic: str | None, option: str | None, messages: list[str] | None
) -> tuple[str, list[str] | None]:
    """Return the topic and the messages behind it; with `--topic`, the first word is a message. Raises `UsageError`."""
    if option is not None:
        return option, [topic, *(messages or ())] if topic is not None else messages
    if topic is None:
        raise UsageError("which topic? write it first, as in `ropewalk produce demo hello`")
    return topic, messages


def produce(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Created by its first message if need be.", autocompletion=complete_topic
        ),
    ] = None,
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
    tags: Annotated[str | None, typer.Option("--tags", help="A tag consumers can filter by.")] = None,
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
            help="Deliver later: any time up to three days, as in 10s, 90s, 1.5h, 2d, or a level (1 to 18).",
        ),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            "--deliver-at",
            metavar="TIME",
            help="Deliver at a time, as in 2026-01-31T08:00 (local without a zone), or milliseconds since 1970.",
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
    topic_option: TopicOption = None,
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

    Messages go to all queues in turn, several at a time, and keep their order within a queue; those of one
    `--message-group` keep it altogether. Each message is counted by what the broker answered.

    Exit codes: 0 every message was acknowledged, 1 some were not, 2 wrong use, 130 stopped by Ctrl-C.

    Examples:

        ropewalk produce demo "hello" "world"
        ropewalk produce demo --file orders.txt --tags new
        ropewalk produce demo "shipped" --keys order-7 --message-group order-7
        ropewalk produce demo "remind me" --delay 90s
        ropewalk produce demo "paid" --transaction commit
        tail -f app.log | ropewalk produce logs
    """
    from ropewalk.client.blocking.simple import Client
    from tools.messages.delay import parse_delay, parse_time, tables_of
    from tools.messages.input import (
        LineSource,
        Stamp,
        check_properties,
        parser,
        read_arguments,
    )
    from tools.messages.produce import (
        MessageSender,
        Report,
        Sender,
        note_of_new_topic,
        queues_to_write,
        result_rows,
        summary,
    )
    from tools.messages.produce import produce as send_all

    with expected_errors(as_json=as_json), Interrupts() as interrupts, ExitStack() as opened:
        topic, messages = _named_topic(topic, topic_option, messages)
        if messages and file is not None:
            raise UsageError("give messages or --file, not both")
        if delay is not None and deliver_at is not None:
            raise UsageError("give --delay or --deliver-at, not both")
        outcome = None
        if transaction is not None:
            from tools.messages import transactions  # an event loop, for those who ask

            outcome = transactions.parse_outcome(transaction)
        client = opened.enter_context(Client(name_server, timeout=timeout))

        def brokers() -> list[str]:
            chosen = queues_to_write(client, topic, queue, broker_name)
            return [each.broker_name for each in chosen]

        tables = tables_of(name_server, timeout, brokers)
        later = parse_delay(delay, tables) if delay is not None else {}
        if deliver_at is not None:
            later = parse_time(deliver_at)
        stamp = Stamp(
            keys,
            tags,
            check_properties(parse_pairs(properties or (), "--property")),
            message_group,
            later,
        )
        parse = parser(stamp, json_lines=json_lines, tables=tables)
        given = read_arguments(messages, parse) if messages else []
        lines = None if given else LineSource(_open_input(file, opened), parse, interrupts)
        # Who types the messages needs the terminal for that, and sees how many there are.
        typed = lines is not None and file is None and sys.stdin.isatty()
        bar = ProgressLine(f"to {topic}", lines.size if lines else None, enabled=not typed)
        progress = opened.enter_context(bar)

        def on_progress(so_far: Report) -> None:
            progress.update(lines.bytes_read if lines else 0, counted(so_far.acknowledged))

        queues = queues_to_write(client, topic, queue, broker_name)
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
        made = note_of_new_topic(client, topic) if report.acknowledged + report.reserved else None
        unread = lines.unread_lines() if lines is not None and report.given_up else 0
    if made is not None:
        note(made)
    for text, number in report.problems.items():
        report_error(f"{counted(number)}: {text}" if number > 1 else text, as_json=as_json)
    with telling(lambda: summary(report)):
        if as_json:
            about_input = {"skipped": lines.skipped if lines else 0, "unreadLines": unread}
            print_json(report.as_json() | about_input)
        else:
            for row in (row for result in report.results or () for row in result_rows(result)):
                print_line(
                    "{status} {broker} queue {queueId} offset {queueOffset} msgId {msgId}".format_map(row)
                )
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


def consume(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="One or more, or patterns such as 'order*' (in quotes).",
            autocompletion=complete_topic,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest (or first), latest (or last), offset:N, a time (2026-01-31T12:00:00, local unless it "
            "names a zone), or milliseconds since 1970. Without it: earliest, and latest with --follow. With "
            "--group it counts only where the group has read nothing yet, and with latest a young topic, whose first "
            "message is still at hand, is read from its beginning.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=0, help="Stop after so many messages.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Do not stop at the end of the topic; wait for more, or for the topic."
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Consume as a member of this group: share the queues with its others, and commit.",
            autocompletion=complete_group,
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
        typer.Option("--tags", metavar="EXPRESSION", help='Only these tags, as in "new || changed".'),
    ] = "*",
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="EXPRESSION",
            help="Only messages with such properties, as in \"amount > 3 AND region = 'eu'\".",
        ),
    ] = None,
    topic_option: TopicOption = None,
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
        ropewalk consume orders --sql "amount > 3 AND region = 'eu'"
    """
    from ropewalk.client.blocking.simple import Client
    from tools.messages.consume import (
        Form,
        Reading,
        check_sql,
        check_tags,
        choose_sources,
        parse_form,
        parse_start,
        wait_for_sources,
    )
    from tools.messages.consume import consume as read_all

    with expected_errors(as_json=as_json), Interrupts() as interrupts:
        topics = [*filter(None, (topic_option,)), *(topics or ())]
        if not topics:
            raise UsageError("which topic? name one or more, as in `ropewalk consume demo`")
        form = "json" if as_json else parse_form(form)
        check_tags(tags)
        check_sql(sql, tags)
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

            def choose() -> list[TopicQueue]:
                return choose_sources(client, topics, queue, broker_name)

            if follow:
                sources, waited = wait_for_sources(choose, client.forget_routes, interrupts)
                if waited and start is None:
                    begin = parse_start("earliest")  # all of it is newer than this command
            else:
                sources = choose()
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
                        choose,
                        sql,
                    )
                    handled = read_all(
                        client,
                        reading,
                        lambda source, record: put(look.record(source, record)),
                        interrupts,
                    )
                else:
                    from tools.messages.consume_group import GroupReading, consume_as_group

                    as_member = GroupReading(group, names, begin, tags, orderly, follow, count, sql)
                    handled = consume_as_group(
                        name_server, timeout, as_member, lambda one: put(look.received(one)), interrupts
                    )
                out.flush()
        stopped = "stopped: " if interrupts.requested else ""
        if interrupts.requested or sys.stderr.isatty():
            note(f"{stopped}{counted(handled)} from {label}")
    raise typer.Exit(INTERRUPTED if interrupts.requested else OK)


def pull(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)] = None,
    topic_option: TopicOption = None,
    queue: Annotated[int, typer.Option("--queue", "-q", min=0, help="The queue to read.")] = 0,
    offset: Annotated[int, typer.Option("--offset", "-o", min=0, help="The first message wanted.")] = 0,
    count: Annotated[int, typer.Option("--max", "-m", min=1, help="At most so many messages.")] = 32,
    tags: Annotated[
        str,
        typer.Option("--tags", metavar="EXPRESSION", help='Only these tags, as in "new || changed".'),
    ] = "*",
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="EXPRESSION",
            help="Only messages with such properties, as in \"amount > 3 AND region = 'eu'\".",
        ),
    ] = None,
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
    from tools.messages.consume import PULL_COLUMNS, check_sql, check_tags, pull_json, pull_rows
    from tools.messages.produce import choose_queues

    with expected_errors(as_json=as_json), Client(name_server, timeout=timeout) as client:
        if topic is not None and topic_option is not None:
            raise UsageError("the topic is given twice")
        topic, _ = _named_topic(topic or topic_option, None, None)
        check_tags(tags)
        check_sql(sql, tags)
        chosen = choose_queues(client.read_queues(topic), topic, queue, broker_name)
        if len(chosen) > 1:
            names = ", ".join(sorted(each.broker_name for each in chosen))
            raise UsageError(
                f"several brokers have queue {queue} of {topic}: choose one with --broker ({names})"
            )
        result = client.pull(topic, chosen[0], offset, count, subscription=tags, sql=sql)
        if as_json:
            print_json(pull_json(chosen[0], result))
            return
        held = (
            f"holds {result.min_offset} to {result.max_offset - 1}"
            if result.max_offset > result.min_offset
            else "is empty"
        )
        print_line(
            f"{result.status.name}: {counted(len(result.records))}, next offset {result.next_offset}; "
            f"{chosen[0].broker_name} queue {queue} {held}"
        )
        if result.records:
            print_table(PULL_COLUMNS, pull_rows(result))
