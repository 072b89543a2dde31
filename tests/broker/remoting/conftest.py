"""Fixtures of tests with real sockets."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.broker.remoting.net import Net


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def net(stack: ExitStack) -> Net:
    return Net(stack)
