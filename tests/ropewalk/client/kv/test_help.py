"""The help of the clients whose methods hold conversations: the types that come back, and nothing of the machinery."""

from __future__ import annotations

import inspect
import pydoc
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import get_type_hints

import pytest

from ropewalk import Admin, AsyncAdmin, AsyncKv, Kv, KvLock


@pytest.mark.parametrize("kind", [Kv, AsyncKv, Admin, AsyncAdmin])
def test_help_tells_the_results_of_methods_and_none_of_the_machinery(kind: type) -> None:
    told = pydoc.plain(pydoc.render_doc(kind))
    assert "Steps" not in told and "Generator" not in told and "'Text'" not in told
    assert not hasattr(kind, "renew")


@pytest.mark.parametrize("kind", [Kv, AsyncKv])
def test_methods_of_the_key_value_clients_tell_the_types_that_come_back(kind: type[Kv | AsyncKv]) -> None:
    def returned(method: object) -> object:
        assert callable(method)
        return inspect.signature(method, eval_str=True).return_annotation

    assert returned(kind.get) == bytes | None and get_type_hints(kind.get)["key"] == str | bytes
    assert returned(kind.put) is None
    assert returned(kind.delete_range) is int
    assert returned(kind.lock) in (AbstractContextManager[KvLock], AbstractAsyncContextManager[KvLock])
    assert kind.__doc__ is not None and "bytes" in kind.__doc__ and "OutcomeUnknown" in kind.__doc__
