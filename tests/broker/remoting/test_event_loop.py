"""The event loop: no wake is lost, turns go on while they are wanted, and time without work is counted."""

import os
import select
import socket
import threading
import time
from collections import deque
from contextlib import ExitStack

import pytest
import trio
import trio.testing

from broker.remoting import event_loop
from broker.remoting.event_loop import EventLoop, Events
from tests.broker.remoting.net import PATIENCE_S, HandSet, Net, Turns


def test_a_wake_from_another_thread_becomes_a_turn(net: Net) -> None:
    net.shell.loop.wake()
    net.shell.loop.wake()
    net.until(lambda: net.turns.woken > 0)
    net.idle()
    assert net.turns.woken == 1


@pytest.mark.trio
@pytest.mark.parametrize("chatty", [False, True])
async def test_no_wake_is_lost_whatever_the_loop_does_meanwhile(
    net: Net, monkeypatch: pytest.MonkeyPatch, chatty: bool
) -> None:
    """The thread waits until each wake has been heard: if that gets lost, no later one makes up for it."""
    left: deque[threading.Event] = deque()
    over = threading.Event()

    def on_wakeup() -> None:
        while left:
            left.popleft().set()

    def chat(client: socket.socket) -> None:
        while chatty and not over.is_set():
            client.sendall(b"x")
            client.recv(1)

    def wake_again_and_again() -> int:
        try:
            for n in range(600):
                left.append(threading.Event())
                heard = left[-1]
                net.shell.loop.wake()
                if not heard.wait(PATIENCE_S):
                    return n
                time.sleep((0, 0.0001, 0.002)[n % 3])  # at work, looking, and asleep
            return 600
        finally:
            over.set()

    monkeypatch.setattr(net.turns, "on_wakeup", on_wakeup)
    client = net.connect()
    client.settimeout(PATIENCE_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(net.shell.run)
        nursery.start_soon(trio.to_thread.run_sync, chat, client)
        assert await trio.to_thread.run_sync(wake_again_and_again) == 600
        await trio.sleep(0.05)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_wake_during_the_last_turn_before_others_have_theirs_is_heard(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = net.connect()
    monkeypatch.setattr(event_loop, "_HOLD_MAX_S", 0.0)
    heard = trio.Event()
    monkeypatch.setattr(net.turns, "on_wakeup", heard.set)
    monkeypatch.setattr(net.turns, "end_turn", lambda: None if heard.is_set() else net.shell.loop.wake())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(net.shell.run)
        client.sendall(b"x")
        with trio.fail_after(PATIENCE_S):
            await heard.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("wait_s", [0.0, 0.0001])
async def test_turns_go_on_without_events_while_they_are_wanted_and_others_are_heard_meanwhile(
    net: Net, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """Also beyond the time for which the loop is held at once."""
    monkeypatch.setattr(event_loop, "_HOLD_MAX_S", 0.002)
    echoed, over = trio.Event(), trio.Event()

    def end_turn() -> None:
        net.turns.ended += 1
        if net.sessions and net.sessions[0].seen:
            echoed.set()
        if net.turns.ended == 500:
            net.turns.next_turn_s = None
            over.set()

    monkeypatch.setattr(net.turns, "end_turn", end_turn)
    net.turns.next_turn_s = wait_s
    client = net.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(net.shell.run)
        client.sendall(b"x")
        with trio.fail_after(PATIENCE_S):
            await echoed.wait()
            await over.wait()
        await trio.testing.wait_all_tasks_blocked()
        ended = net.turns.ended
        await trio.sleep(0.01)
        assert net.turns.ended == ended, "and they end when none is wanted any more"
        nursery.cancel_scope.cancel()
    assert net.shell.loop.idle_s >= wait_s * 100, "time without an event is not time of work"


def test_the_time_without_anything_to_do_is_counted(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandSet(monkeypatch)
    loop = EventLoop(Turns())
    stack.callback(loop.close)
    within: list[float] = []

    def turn(events: Events, now: float) -> None:
        assert events == [(loop.wake_fd, select.EPOLLIN)]
        assert now == clock.now
        os.eventfd_read(loop.wake_fd)
        loop.has_news = False
        clock.now += 5.0
        within.append(loop.idle_until(clock.now))

    for idle_s in (2.0, 3.0):
        clock.now += idle_s
        loop.wake()
        loop.hold(turn)
    assert within == [2.0, 5.0], "a turn takes its time"
    assert loop.idle_s == 5.0
    clock.now += 4.0
    assert loop.idle_until(clock.now) == 9.0
