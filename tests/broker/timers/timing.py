"""Timer messages of a broker of this process: send them, let time pass, and see what was delivered."""

from ropewalk.format.remoting import Command
from tests.broker.harness import Client, InProcess


def bodies(running: InProcess, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in running.stored(topic, queue_id)]


def timed(client: Client, body: bytes = b"x", topic: str = "T", **properties: object) -> Command:
    key = f"7F0000010ABC18B4AAC2{body.hex().upper():0>12}"
    answer = client.send(
        topic, body, properties={"UNIQ_KEY": key, **{name: str(value) for name, value in properties.items()}}
    )
    assert answer.code == 0, answer
    return answer


def pass_time(running: InProcess, ms: int, step_ms: int = 50) -> None:
    """Let time pass as the loop sees it, a tick and a turn for each step."""
    for _ in range(0, ms, step_ms):
        running.tick(step_ms)
        while running.broker.deliveries.timers_behind:
            running.turn()


def pass_time_with_disk(running: InProcess, ms: int) -> None:
    """Let time pass, for which no flush and no page takes longer than a tick."""
    timers, store = running.broker.timers, running.broker.store
    for _ in range(0, ms, 50):
        pass_time(running, 50)
        for worker in (timers._worker, timers._page_worker):
            assert worker is not None
            running.until(lambda worker=worker: not worker.pending)  # type: ignore[misc]
        if not store.config.sync_flush:
            store.request_flush()
        running.until(lambda: store.log.flushed_offset == store.log.end_offset)
