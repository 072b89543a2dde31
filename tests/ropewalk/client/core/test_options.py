"""Options are checked when a client is made, and a wrong one is told with the nearest right one."""

import inspect
import math
import pydoc
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from ropewalk import AsyncProducer, AsyncPushConsumer, LocalProtocolError, Producer, PushConsumer
from ropewalk.client.aio.push.options import PushOptions
from ropewalk.client.core.options import make_options
from ropewalk.client.core.produce.sending import ProducerOptions


def make(kind: Any, **options: Any) -> Any:
    consumer = ("g", {"T": "*"}, print) if kind in (PushConsumer, AsyncPushConsumer) else ()
    return kind(*consumer, **options)


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
    ],
)
def test_a_wrong_option_is_told_with_what_is_right(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        make(kind, **options)


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_a_producers_group_is_checked_when_it_is_made(kind: Any) -> None:
    with pytest.raises(LocalProtocolError):
        make(kind, group="no blanks here")


@pytest.mark.parametrize(
    "kind, options",
    [
        (Producer, ProducerOptions),
        (AsyncProducer, ProducerOptions),
        (PushConsumer, PushOptions),
        (AsyncPushConsumer, PushOptions),
    ],
)
def test_help_shows_every_option_with_its_type_its_default_and_what_it_is(kind: Any, options: Any) -> None:
    parameters = inspect.signature(kind).parameters
    types = get_type_hints(kind.__init__)
    wanted = get_type_hints(options)
    for field in fields(options):
        assert parameters[field.name].default == field.default, field.name
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
