"""`ropewalk bench produce|pull`: parse, run, print.

Exit status 0 means that the printed rate counts; 1 that it is void, or that the load could not run; 2 wrong use;
130 that it was stopped by Ctrl-C.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from ropewalk.client.core.addresses import (
    DEFAULT_NAME_SERVER,
    NAME_SERVER_VARIABLES,
    Address,
    BadAddress,
    parse_address,
)
from ropewalk.client.core.produce.sendable import BODY_SIZE_MAX
from ropewalk.errors import RopewalkError
from tools.bench import prepare, report, runner, server
from tools.bench.link import LoadFailed
from tools.bench.spec import (
    CONSUMING,
    PRODUCING,
    ClientMode,
    ClientSpec,
    Outcome,
    ProduceSpec,
    PullSpec,
    Serialization,
    Spec,
)
from tools.common.interrupts import Interrupts
from tools.common.options import check_seconds
from tools.common.output import (
    INTERRUPTED,
    UsageError,
    counted,
    expected_errors,
    hint_for,
    note,
    report_error,
    telling,
)

DEFAULT_TOPIC = "ropewalk-bench"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Measure a broker, Ropewalk or Apache RocketMQ, with a raw sender in a process of its own; or what a Python "
    "program gets from it, with `--client`.",
)

NameServer = Annotated[
    str,
    typer.Option(
        "--name-server",
        "-n",
        envvar=list(NAME_SERVER_VARIABLES),
        metavar="HOST:PORT[;HOST:PORT]",
        help="The name servers to learn the broker from.",
    ),
]
Broker = Annotated[
    str | None, typer.Option(help="HOST:PORT of the broker itself; no name server is asked then.")
]
Topic = Annotated[str, typer.Option(help="Made by its first message if it does not exist.")]
Queues = Annotated[int, typer.Option(min=1, help="Queues to spread the messages over.")]
Connections = Annotated[int, typer.Option("--connections", "-c", min=1, help="TCP connections.")]
BodySize = Annotated[int, typer.Option(min=1, help="Bytes of a message body.")]
Binary = Annotated[bool, typer.Option("--binary", help="Headers in RocketMQ's binary form instead of JSON.")]
WarmUp = Annotated[
    float, typer.Option(min=0, callback=check_seconds, help="Seconds of load before measuring starts.")
]
Duration = Annotated[float, typer.Option(min=0.1, callback=check_seconds, help="Seconds to measure.")]
ReplyTimeout = Annotated[
    float, typer.Option(min=0.1, callback=check_seconds, help="Seconds of silence that end the load.")
]
ServerPid = Annotated[
    int | None,
    typer.Option(help="Process to take CPU and memory from; found by its port when on this machine."),
]
Label = Annotated[str, typer.Option(help="Printed with the result: the class of promise (A0 to A3), a name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
CONNECTIONS = 4


@app.command()
def produce(
    name_server: NameServer = DEFAULT_NAME_SERVER,
    broker: Broker = None,
    topic: Topic = DEFAULT_TOPIC,
    queues: Queues = 4,
    connections: Connections = CONNECTIONS,
    in_flight: Annotated[
        int, typer.Option("--in-flight", "-f", min=1, help="Unanswered requests per connection.")
    ] = 32,
    body_size: BodySize = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Messages per request; above 1 as code 320.")] = 1,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Fixed messages per second; latency counts from when each was due."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="sync|async|batched",
            help="Send with the client library instead of the raw sender: one message after the other, "
            "--in-flight at a time under trio, or gathered into batches.",
        ),
    ] = None,
    binary: Binary = False,
    warm_up: WarmUp = 2.0,
    duration: Duration = 10.0,
    reply_timeout: ReplyTimeout = 10.0,
    server_pid: ServerPid = None,
    label: Label = "",
    as_json: Json = False,
) -> None:
    """Send messages as fast as the broker answers, or at a fixed --rate.

    Every reply's code and opaque is checked. One reply that is not status 0, or that never comes, voids
    the rate: the row says so, and the exit status is 1.
    """

    def prepared() -> Spec:
        mode = _client_mode(
            client, PRODUCING, broker=broker, connections=connections, binary=binary, rate=rate, batch=batch
        )
        address = parse_address(broker) if broker else prepare.find_broker(name_server, topic)
        prepare.create_topic(address, topic, queues)
        if mode is not None:
            return ClientSpec(
                name_servers=name_server,
                topic=topic,
                mode=mode,
                body_size=body_size,
                in_flight=in_flight,
                warm_up_s=warm_up,
                duration_s=duration,
                reply_timeout_s=reply_timeout,
                server_pid=_server_pid(address, server_pid),
            )
        return ProduceSpec(
            host=address.host,
            port=address.port,
            topic=topic,
            queues=queues,
            connections=connections,
            in_flight=in_flight,
            body_size=body_size,
            batch=batch,
            serialization=_serialization(binary),
            warm_up_s=warm_up,
            duration_s=duration,
            rate=rate,
            reply_timeout_s=reply_timeout,
            server_pid=_server_pid(address, server_pid),
        )

    _run(prepared, body_size * batch, label, as_json=as_json)


@app.command()
def pull(
    name_server: NameServer = DEFAULT_NAME_SERVER,
    broker: Broker = None,
    topic: Topic = DEFAULT_TOPIC,
    queues: Queues = 4,
    connections: Connections = CONNECTIONS,
    max_messages: Annotated[int, typer.Option(min=1, help="Messages to ask for in one pull.")] = 32,
    backlog: Annotated[
        int,
        typer.Option(
            min=1,
            help="Messages the topic must hold; what is missing is stored first, one message to each queue in turn.",
        ),
    ] = 200_000,
    body_size: BodySize = 1024,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="pull|push",
            help="Read with the client library instead of the raw reader: a pull consumer, or a push consumer "
            "with a coroutine function as its handler.",
        ),
    ] = None,
    binary: Binary = False,
    warm_up: WarmUp = 2.0,
    duration: Duration = 10.0,
    reply_timeout: ReplyTimeout = 10.0,
    server_pid: ServerPid = None,
    label: Label = "",
    as_json: Json = False,
) -> None:
    """Pull a backlog over and over, without ever waiting for new messages.

    The backlog lies as producers lay it: round-robin over --queues, so that neighbours in the commit log belong to
    different queues. A topic that holds enough already is read as it was found, and the result says so.
    Records are counted by walking their sizes, and offsets must go on where the last reply ended.
    """

    def prepared() -> Spec:
        mode = _client_mode(client, CONSUMING, broker=broker, connections=connections, binary=binary)
        address = parse_address(broker) if broker else prepare.find_broker(name_server, topic)
        begin, end, is_new = prepare.lay_backlog(address, topic, queues, backlog, body_size)
        if mode is not None:
            return ClientSpec(
                name_servers=name_server,
                topic=topic,
                mode=mode,
                body_size=body_size,
                max_messages=max_messages,
                backlog=sum(end) - sum(begin),
                warm_up_s=warm_up,
                duration_s=duration,
                reply_timeout_s=reply_timeout,
                server_pid=_server_pid(address, server_pid),
            )
        return PullSpec(
            host=address.host,
            port=address.port,
            topic=topic,
            begin=begin,
            end=end,
            layout="laid round-robin" if is_new else "as it was found",
            connections=connections,
            max_messages=max_messages,
            serialization=_serialization(binary),
            warm_up_s=warm_up,
            duration_s=duration,
            reply_timeout_s=reply_timeout,
            server_pid=_server_pid(address, server_pid),
        )

    _run(prepared, body_size, label, as_json=as_json)


def _client_mode(
    text: str | None,
    modes: tuple[ClientMode, ...],
    *,
    broker: str | None,
    connections: int,
    binary: bool,
    rate: float | None = None,
    batch: int = 1,
) -> ClientMode | None:
    """Return the mode that `--client` names. Raises `UsageError` if it names none, or beside others' options."""
    if text is None:
        return None
    mode = next((mode for mode in modes if mode == text), None)
    if mode is None:
        raise UsageError(f"--client {text!r} is none of: {', '.join(modes)}")
    if broker or binary or rate is not None or batch != 1 or connections != CONNECTIONS:
        raise UsageError(
            "--broker, --binary, --rate, --batch and --connections are the raw sender's: --client does as clients do"
        )
    return mode


def _run(prepared: Callable[[], Spec], request_size: int, label: str, *, as_json: bool) -> None:
    """Prepare, load, print. `request_size` is that of the bodies of one request."""
    with expected_errors(as_json=as_json), Interrupts() as interrupts:
        if request_size > BODY_SIZE_MAX:
            raise UsageError(
                f"the bodies of one request would be {request_size:,} bytes, and brokers take {BODY_SIZE_MAX:,}: "
                "choose a smaller --body-size (or --batch)"
            )
        try:
            with interrupts.while_waiting():
                spec = prepared()
            outcome = runner.run_load(spec, interrupts)
        except KeyboardInterrupt:
            note("stopped before the load began: 0 messages")
            raise typer.Exit(INTERRUPTED) from None
        except BadAddress as exc:
            raise UsageError(str(exc)) from exc
        except UsageError:
            raise
        except (RopewalkError, LoadFailed, ValueError) as exc:
            raise _failed(exc, as_json=as_json) from exc
    _show(spec, outcome, label, as_json=as_json, stopped=interrupts.requested)


def _serialization(binary: bool) -> Serialization:
    return "binary" if binary else "json"


def _server_pid(address: Address, given: int | None) -> int | None:
    return given if given is not None else server.find_listener(address.host, address.port)


def _failed(exc: Exception, *, as_json: bool) -> typer.Exit:
    if as_json:
        typer.echo(json.dumps({"valid": False, "void": str(exc)}))
    else:
        report_error(str(exc), hint_for(exc) if isinstance(exc, RopewalkError) else None)
    return typer.Exit(1)


def _show(spec: Spec, outcome: Outcome, label: str, *, as_json: bool, stopped: bool) -> None:
    handled = counted(outcome.messages + outcome.messages_in_warm_up)
    handled += " pulled" if report.is_pull(spec) else " acknowledged"
    with telling(lambda: f"{handled}, the warm-up's included"):
        if as_json:
            typer.echo(json.dumps(report.as_document(spec, outcome, label)))
        else:
            Console().print(report.as_table(spec, outcome, label))
    if stopped:
        note(f"stopped: {handled}, the warm-up's included")
        raise typer.Exit(INTERRUPTED)
    if not outcome.is_valid:
        raise typer.Exit(1)
