"""Options are checked when a client is made, and a wrong one is told with the nearest right one."""

import inspect
import math
import pydoc
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from ropewalk import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    LocalProtocolError,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from ropewalk.client.aio.push.options import PushOptions
from ropewalk.client.core.options import make_options
from ropewalk.client.core.produce.options import ProducerOptions
from ropewalk.client.machine import subscriptions

REQUIRED: dict[Any, dict[str, Any]] = {
    PushConsumer: {"group": "g", "topics": {"T": "*"}, "handler": print},
    AsyncPushConsumer: {"group": "g", "topics": {"T": "*"}, "handler": print},
    PullConsumer: {"group": "g", "topics": {"T": "*"}},
    AsyncPullConsumer: {"group": "g", "topics": {"T": "*"}},
    TransactionProducer: {"on_check": print, "group": "g"},
    AsyncTransactionProducer: {"on_check": print, "group": "g"},
}


def make(kind: Any, **options: Any) -> Any:
    return kind(**REQUIRED.get(kind, {}) | options)


@pytest.mark.parametrize(
    "kind, options, said",
    [
        (Producer, {"retrys": 3}, "did you mean 'retries'"),
        (AsyncProducer, {"time_out": 3}, "did you mean 'timeout'"),
        (PushConsumer, {"max_reconsume_times": 3}, "no option 'max_reconsume_times'"),
        (AsyncPushConsumer, {"concurency": 3}, "did you mean 'concurrency'"),
        (Producer, {"timeout": 0}, "timeout must be more than 0"),
        (Producer, {"timeout": -1.5}, "timeout must be more than 0"),
        (Producer, {"timeout": math.nan}, "timeout must be more than 0"),
        (Producer, {"timeout": "3"}, "timeout is a number of seconds"),
        (Producer, {"retries": -1}, "retries must be at least 0"),
        (Producer, {"retries": 1.5}, "retries is a whole number"),
        (Producer, {"batch_count": 0}, "batch_count must be at least 1"),
        (Producer, {"retry_unless_ok": 1}, "retry_unless_ok is True or False"),
        (PushConsumer, {"concurrency": 0}, "concurrency must be at least 1"),
        (PushConsumer, {"max_retries": -2}, "max_retries must be at least -1"),
        (PushConsumer, {"orderly": "yes"}, "orderly is True or False"),
        (PushConsumer, {"topics": {"T": None}}, "are text, and not 'T' and None"),
        (PushConsumer, {"topics": {}}, "needs a topic"),
        (PushConsumer, {"topics": ["T"]}, "topics say what is wanted"),
        (PushConsumer, {"sql": "a > 3"}, "sql says what is wanted"),
        (PushConsumer, {"handler": "handle"}, "handler must be a function"),
        (PushConsumer, {"on_error": "log"}, "on_error is a function"),
        (AsyncPushConsumer, {"on_skipped": 1}, "on_skipped is a function"),
        (PushConsumer, {"offsets_folder": 3}, "offsets_folder is a path"),
        (PushConsumer, {"client_id": 3}, "client_id is text"),
        (PushConsumer, {"name_servers": 9876}, "name servers are text"),
        (PullConsumer, {"consume_form": "first"}, "did you mean 'consume_from'"),
        (AsyncPullConsumer, {"on_skiped": print}, "did you mean 'on_skipped'"),
        (Admin, {"timeot": 3}, "did you mean 'timeout'"),
        (Admin, {"timeout": -1}, "timeout must be"),
        (AsyncAdmin, {"timeout": "3"}, "timeout is a number of seconds"),
        (Producer, {"group": None}, "group is text"),
        (TransactionProducer, {"retrys": 3}, "did you mean 'retries'"),
        (TransactionProducer, {"topics": "orders"}, "topics are several"),
        (AsyncTransactionProducer, {"on_check": "check"}, "on_check is a function"),
        (AsyncTransactionProducer, {"group": ""}, "needs a group of its own"),
    ],
)
def test_a_wrong_option_is_told_with_what_is_right(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        make(kind, **options)


@pytest.mark.parametrize("kind", [Producer, AsyncProducer, *REQUIRED])
def test_the_names_of_groups_and_topics_are_checked_when_a_client_is_made(kind: Any) -> None:
    with pytest.raises(LocalProtocolError, match="the group name contains ' '"):
        make(kind, group="no blanks here")
    if "topics" in REQUIRED.get(kind, {}):
        with pytest.raises(LocalProtocolError, match="'no blanks': the topic name contains ' '"):
            make(kind, topics={"no blanks": "*"})


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"tags": ["a"]}, "tags is one tag"),
        ({"group": 7}, "group of a message is text"),
        ({"properties": {"amount": 1}}, "properties are text, and not 'amount': 1"),
        ({"properties": [1]}, "properties are names and values"),
        ({"delay_level": "3"}, "whole numbers"),
        ({"keys": 3}, "keys are a list"),
    ],
)
def test_a_field_of_a_message_is_checked_when_it_is_made(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Message(b"x", **fields)


@pytest.mark.parametrize(
    "kind, options",
    [
        (Producer, ProducerOptions),
        (AsyncProducer, ProducerOptions),
        (PushConsumer, PushOptions),
        (AsyncPushConsumer, PushOptions),
        (TransactionProducer, ProducerOptions),
        (AsyncTransactionProducer, ProducerOptions),
        (PullConsumer, None),
        (AsyncPullConsumer, None),
        (Admin, None),
        (AsyncAdmin, None),
    ],
)
def test_help_shows_every_option_with_its_type_its_default_and_what_it_is(kind: Any, options: Any) -> None:
    parameters = inspect.signature(kind).parameters
    types = get_type_hints(kind.__init__)
    wanted = get_type_hints(options) if options else {}
    own = (
        {"group": "", "retries": 0}
        if issubclass(kind, TransactionProducer | AsyncTransactionProducer)
        else {}
    )
    for field in fields(options) if options else ():
        assert parameters[field.name].default == own.get(field.name, field.default), field.name
        assert types[field.name] == wanted[field.name], field.name
    shown = pydoc.render_doc(kind)
    for name, parameter in parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            assert f" {name}: " in shown.partition("Make it without connecting")[2], name


@pytest.mark.parametrize("cls", [ProducerOptions, PushOptions])
def test_every_default_is_legal(cls: Any) -> None:
    defaults = {field.name: field.default for field in fields(cls)}
    assert make_options(cls, defaults) == cls()
    assert make_options(PushOptions, {"consume_timeout": math.inf}).consume_timeout == math.inf


@pytest.mark.parametrize("expression", ["paid | refunded", "paid |", "paid || ", "|| paid"])
def test_tags_that_no_message_can_have_are_refused_and_not_waited_for(expression: str) -> None:
    with pytest.raises(ValueError, match="tags are names"):
        subscriptions({"orders": expression}, None)


def test_a_delay_level_below_none_is_refused() -> None:
    with pytest.raises(ValueError, match="delay_level"):
        Message(b"x", delay_level=-1)
