"""What `import ropewalk` gives, and what it costs."""

import subprocess
import sys

import pytest

import ropewalk


@pytest.mark.parametrize("name", ropewalk.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(ropewalk, name).__doc__
    assert name in dir(ropewalk)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(ropewalk, "nonsense")  # noqa: B009 - written as a name, the type checker would rightly object


@pytest.mark.parametrize(
    ("program", "forbidden"),
    [
        ("import ropewalk", ("anyio", "trio", "asyncio", "msgspec", "socket", "pytest")),
        ("from ropewalk import Message, RopewalkError", ("anyio", "trio", "asyncio", "socket")),
        ("from ropewalk import Producer, PullConsumer", ("anyio", "trio", "asyncio")),
        ("from ropewalk import AsyncProducer, AsyncPushConsumer", ("trio", "pytest")),
    ],
)
def test_nothing_is_imported_before_it_is_used(program: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys\n{program}\nprint(*sorted(set(sys.modules) & set({forbidden!r})))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []
