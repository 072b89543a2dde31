"""`Kv` and `AsyncKv` against a member of their own: many calls at once, locks in a `with`, forks."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from functools import partial

import pytest
import trio
import trio.testing

from ropewalk import AsyncKv, Fenced, Kv, LocalProtocolError, OutcomeUnknown, TryLater
from ropewalk.client.blocking.links import BlockingLinks
from ropewalk.client.core.steps import Ask, Effect, Pause, Reply
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError
from ropewalk.testing import BrokerProcess
from tests.support.ports import free_ports
from tests.support.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    """A group of one member with a key-value store."""
    (port,) = free_ports(1)
    settings = {
        "enableDLegerCommitLog": "true",
        "dLegerPeers": f"n0-127.0.0.1:{port}",
        "dLegerSelfId": "n0",
        "ropewalkKvRegions": "1",
    }
    with BrokerProcess(settings) as process, Kv(process.namesrv) as kv:
        until(lambda: any(each.values["leads"] for each in kv.status()), "the member serves", pause_s=0.1)
        yield process.namesrv


async def count_in_tasks(namesrv: str, name: str) -> list[int]:
    """Take numbers of a sequence in many tasks at once, and put values meanwhile."""
    taken: list[int] = []
    async with AsyncKv(namesrv) as kv:

        async def take(number: int) -> None:
            await kv.put(f"{name}/{number}", str(number))
            taken.extend(await kv.sequence(name, 3))

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(take, number)
        pairs = await kv.scan(f"{name}/", f"{name}0")
    assert sorted(int(value) for _key, value in pairs) == list(range(30))
    return taken


async def requests_of(namesrv: str, *, batching: bool) -> int:
    """Return how many requests a hundred and fifty writes and as many reads of tasks are."""
    asked = 0
    async with AsyncKv(namesrv, batching=batching) as kv:
        await kv.put("warm", "1")
        assert kv._links is not None
        carry_out = kv._links._carry_out

        async def counting(effect: Effect) -> Reply:
            nonlocal asked
            asked += isinstance(effect, Ask)
            return await carry_out(effect)

        kv._links._carry_out = counting  # type: ignore[method-assign]

        async def use(number: int) -> None:
            key = f"gathered/{batching}/{number}"
            await kv.put(key, str(number))
            assert await kv.get(key) == str(number).encode()
            assert await kv.compare_and_put(key, str(number), "new")
            assert await kv.put_if_absent(key, "other") == b"new"
            assert await kv.sequence(f"{key}/s", 2) == range(2)
            assert await kv.delete(key) and await kv.get(key, unsafe=True) is None

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(use, number)
    return asked


def test_what_tasks_ask_in_one_turn_leaves_in_one_request(namesrv: str) -> None:
    alone, together = (trio.run(partial(requests_of, namesrv, batching=each)) for each in (False, True))
    assert alone == 210 and together < 70


async def fail_together(namesrv: str) -> tuple[list[str], bytes | None]:
    failures: list[str] = []
    async with AsyncKv(namesrv) as kv:

        async def wrong() -> None:
            try:
                await kv.put("", "no key")
            except LocalProtocolError as exc:
                failures.append(str(exc))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wrong)
            nursery.start_soon(kv.put, "beside", "x")
        return failures, await kv.get("beside")


def test_a_wrong_call_is_refused_alone(namesrv: str) -> None:
    failures, beside = trio.run(fail_together, namesrv)
    assert len(failures) == 1 and beside == b"x"


async def silence(effect: Effect) -> None:
    """Answer nothing, for ever."""
    await trio.sleep_forever()


async def close_meanwhile(namesrv: str) -> BaseException | None:
    failure: BaseException | None = None

    async def ask() -> None:
        nonlocal failure
        try:
            await kv.get("color")
        except RopewalkError as exc:
            failure = exc

    async with trio.open_nursery() as nursery, AsyncKv(namesrv) as kv:
        nursery.start_soon(ask)
        await trio.lowlevel.checkpoint()  # it has left, and no answer can be there yet
    return failure


def test_a_call_that_is_under_way_when_the_client_closes_is_told(namesrv: str) -> None:
    assert isinstance(trio.run(close_meanwhile, namesrv), RopewalkError)


def test_tasks_share_a_client_and_every_write_is_made_once(namesrv: str) -> None:
    assert sorted(trio.run(count_in_tasks, namesrv, "tasks")) == list(range(90))


async def write_across_a_cut(namesrv: str) -> list[bytes | None]:
    async with AsyncKv(namesrv) as kv:

        async def put(number: int) -> None:
            await kv.put(f"across/{number:02d}", str(number))

        for half in (range(20), range(20, 40)):
            async with trio.open_nursery() as nursery:
                for number in half:
                    nursery.start_soon(put, number)
                if half.start:
                    await kv.split("across/20")
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(put, number)
        found: list[bytes | None] = [None] * 40

        async def get(number: int) -> None:
            found[number] = await kv.get(f"across/{number:02d}")

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(get, number)
        return found


def test_tasks_write_to_both_sides_of_a_cut_while_it_is_made(namesrv: str) -> None:
    assert trio.run(write_across_a_cut, namesrv) == [b"%d" % number for number in range(40)]


def test_an_asyncio_program_holds_a_lock_and_its_guard(namesrv: str) -> None:
    async def main() -> bytes | None:
        async with AsyncKv(namesrv) as kv:
            async with kv.lock("async") as lock:
                await kv.put("guarded", "1", guard=lock)
                assert await kv.acquire("async") is None
            with pytest.raises(Fenced):
                await kv.put("guarded", "2", guard=lock)
            return await kv.get("guarded")

    assert asyncio.run(main()) == b"1"


def test_threads_share_a_client(namesrv: str) -> None:
    taken: list[int] = []
    with Kv(namesrv) as kv:

        def take() -> None:
            for _ in range(20):
                taken.extend(kv.sequence("threads"))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(taken) == list(range(80))


def test_a_lock_is_given_back_at_the_end_of_its_with_and_refused_to_others_within(namesrv: str) -> None:
    with Kv(namesrv) as one, Kv(namesrv) as other:
        with one.lock("job") as first:
            with pytest.raises(TryLater, match="job"), other.lock("job", wait=0.1):
                pass
            assert one.renew_lock(first)
        with other.lock("job") as second:
            assert second.token > first.token
            assert not one.renew_lock(first)
            assert not one.release(first)


def test_a_child_process_writes_in_a_session_of_its_own(namesrv: str) -> None:
    with Kv(namesrv) as kv:
        assert kv.sequence("fork") == range(1)
        child = os.fork()
        if not child:
            os._exit(0 if kv.sequence("fork") == range(1, 2) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert kv.sequence("fork") == range(2, 3)


class CutLinks(BlockingLinks):
    """Links of which many are cut as soon as a write has left; nobody waits between two attempts."""

    def __init__(self) -> None:
        super().__init__(timeout=10.0)
        self.cuts = 0
        self._chance = random.Random(32)

    def carry_out(self, effect: Effect) -> Reply:
        if isinstance(effect, Pause):
            return None
        is_write = isinstance(effect, Ask) and effect.command.code == RequestCode.ROPEWALK_KV_WRITE
        if isinstance(effect, Ask) and is_write and self._chance.random() < 0.6:
            connection, _opaque = self.start(effect)
            connection.close()
            self.cuts += 1
            raise OutcomeUnknown("the connection was cut")
        return super().carry_out(effect)


def test_a_thousand_cut_connections_have_no_write_applied_twice(namesrv: str) -> None:
    links = CutLinks()
    with Kv(namesrv) as kv:
        kv._links = links
        kv.put("chain", "0")
        number = 0
        while links.cuts < 1000:
            assert kv.compare_and_put("chain", str(number), str(number + 1)), (
                "it was applied by an attempt before"
            )
            assert kv.sequence("chain") == range(number, number + 1)
            number += 1
        assert kv.get("chain") == str(number).encode()


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(TypeError, match="did you mean 'timeout'"):
        Kv(timout=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        AsyncKv(timeout=0)
