"""Damage of every kind to a store at rest: what a start then serves is right and whole, or the start is refused.

A small store is written once, ended in one of three ways, and kept in memory. Each case changes one thing in a copy of
it, starts the shipped store on that and reads everything through the shipped reader. Either every acknowledged record
comes back, byte for byte, or the start says which file, which log offset and which command. Nothing else is allowed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ropewalk.errors import CorruptRecord
from ropewalk.format.properties import tags_code
from ropewalk.format.record import decode_records, encode_host
from ropewalk.format.sidecar import Sidecar
from store.config import StoreConfig
from store.log.commitlog import StoreDamaged
from store.message_store import MessageStore
from store.read.reader import Reader
from store.read.results import GetStatus, ReadLimits
from tests.sim.disk import SimDisk, SimFile
from tests.sim.world import SteppedHelpers
from tests.support.long_run import LONG

ROOT = Path("/store")
LOG = ROOT / "commitlog"
CHECKSUMS = ROOT / "ropewalk" / "checksums"
HOST = encode_host("127.0.0.1", 10911)
SEGMENT_SIZE = 2048
NOW_MS = 1_700_000_000_000
FLIPS = 2500 if LONG else 500
COLD = ReadLimits(memory_window=1 << 40, warm_window=0)

Place = tuple[str, int, int]
"""Topic, queue, number."""


@dataclass(frozen=True)
class Pristine:
    """A store at rest: its files, what it holds, and how far that was flushed."""

    files: dict[Path, bytes]
    config: StoreConfig
    records: dict[Place, tuple[bytes, bytes]]
    durable: int
    end: int

    def disk(self) -> SimDisk:
        disk = SimDisk(random.Random(1))
        for path, data in self.files.items():
            disk.files[path] = disk.named[path] = SimFile(data)
            disk.folders.update(path.parents)
        return disk

    @property
    def segments(self) -> list[Path]:
        return sorted(path for path in self.files if path.parent == LOG)

    def covered(self, segment: Path) -> int:
        """How many bytes of a segment are under checksums."""
        sidecar = Sidecar.decode(self.files.get(CHECKSUMS / segment.name))
        return sidecar.covered if sidecar is not None else 0


def open_store(config: StoreConfig, disk: SimDisk) -> tuple[MessageStore, SteppedHelpers]:
    helpers = SteppedHelpers()
    store = MessageStore(config, disk, lambda: NOW_MS, lambda: None, helpers)
    store.open()
    return store, helpers


def rest(store: MessageStore, helpers: SteppedHelpers) -> None:
    """Have every helper do what it was given."""
    for _ in range(200):
        helpers.pause()
        store.run_completions()


def write(*, sync_flush: bool, ending: str, check_at_start: int = 1 << 30) -> Pristine:
    config = StoreConfig(
        root=ROOT, log_directory=LOG, store_host=HOST, segment_size=SEGMENT_SIZE, queue_file_size=200,
        sync_flush=sync_flush, warm_window=1 << 20, fill_window=4096, fill_idle=4096,
        checksum_block=256, check_at_start=check_at_start,
    )  # fmt: skip
    disk = SimDisk(random.Random(7))
    store, helpers = open_store(config, disk)
    chance = random.Random(11)
    expected: dict[Place, tuple[bytes, bytes]] = {}
    for number in range(60):
        store.begin_turn()
        queue = store.queue(chance.choice(("orders", "audit")), chance.randrange(2))
        body = f"message {number} ".encode() + chance.randbytes(chance.choice((0, 8, 100, 300)))
        tag = chance.choice(("a", "b"))
        properties = f"TAGS\x01{tag}\x02KEYS\x01k{number}\x02".encode()
        ((_, queue_offset),) = store.put(
            [(queue, body, properties, 0, 0, NOW_MS, 0, 0, tags_code(tag))], HOST
        )
        expected[queue.topic, queue.queue_id, queue_offset] = (body, properties)
        store.publish()
        if number % 7 == 0:
            store.tick()
            rest(store, helpers)
    store.request_flush()
    rest(store, helpers)
    end = store.log.end_offset
    if ending == "stopped":
        store.close()
    else:
        if ending == "killed at rest":
            store._write_back.write_queues(store.readable_offset)
            rest(store, helpers)
        store.tick()
        store._write_back.write_bound(clean=False)
        rest(store, helpers)
        disk = disk.killed()
    files = {path: bytes(file.data) for path, file in disk.files.items() if ROOT in path.parents}
    return Pristine(files, config, expected, store.log.flushed_offset, end)


ENDINGS = ("stopped", "killed", "killed at rest")


@pytest.fixture(scope="module", params=[(e, s) for e in ENDINGS for s in (False, True)], ids=str)
def pristine(request: pytest.FixtureRequest) -> Pristine:
    ending, sync_flush = request.param
    return write(sync_flush=sync_flush, ending=ending)


@pytest.fixture(scope="module")
def stopped() -> Pristine:
    return write(sync_flush=False, ending="stopped")


def served(
    store: MessageStore, helpers: SteppedHelpers, limits: ReadLimits, *, refused: list[str] | None = None
) -> dict[Place, tuple[bytes, bytes]]:
    """All that consumers can get, through the shipped reader; places in `refused` are passed over, one by one."""
    found: dict[Place, tuple[bytes, bytes]] = {}
    reader = Reader(store.log, limits, store.completions, threads=1, helpers=helpers)
    for topic, queues in store.queues.items():
        for queue_id, queue in queues.items():
            at = queue.min_offset
            while at < queue.readable:
                answers: list[object] = []
                reader.get(queue, at, 1 if refused is not None else 32, 1 << 20, None, answers.append)
                while not answers:
                    helpers.pause()
                    store.run_completions()
                result = answers[0]
                if result is None:
                    assert refused is not None, f"{topic}-{queue_id}: message {at} cannot be read"
                    refused.append(f"{topic}-{queue_id}-{at}")
                    at += 1
                    continue
                if refused is not None and result.status is not GetStatus.FOUND:  # type: ignore[attr-defined]
                    refused.append(f"{topic}-{queue_id}-{at}")
                    at = max(at + 1, result.next_offset)  # type: ignore[attr-defined]
                    continue
                try:
                    records = decode_records(b"".join(result.records))  # type: ignore[attr-defined]
                except CorruptRecord as exc:
                    raise AssertionError(f"{topic}-{queue_id}: damaged bytes at message {at}") from exc
                assert records, f"{topic}-{queue_id}: reading message {at} ends with {result.status}"  # type: ignore[attr-defined]
                for record in records:
                    found[record.topic, record.queue_id, record.queue_offset] = (
                        record.body,
                        record.raw_properties,
                    )
                    assert (record.topic, record.queue_id) == (topic, queue_id)
                at = result.next_offset  # type: ignore[attr-defined]
    return found


def judge(pristine: Pristine, disk: SimDisk, case: str, *, may_lose_from: int | None = None) -> str:
    """Start on a damaged disk: "refused" or "served"; anything else fails. Reads both ways, warm and cold."""
    before = {path: bytes(file.data) for path, file in disk.files.items()}
    try:
        store, helpers = open_store(pristine.config, disk)
    except StoreDamaged as exc:
        text = str(exc)
        assert str(ROOT) in text and "`ropewalk store " in text, (case, text)
        assert re.search(r"log offset \d+|offset \d+", text), (case, text)
        after = {path: bytes(file.data) for path, file in disk.files.items()}
        after.pop(ROOT / "lock", None)
        before.pop(ROOT / "lock", None)
        # What a crash left of a file that was being created is no content.
        before = {
            path: data for path, data in before.items() if path.parent != LOG or path in after or any(data)
        }
        assert after == before, f"{case}: a refused start changed something"
        return "refused"
    for limits in (ReadLimits(), COLD):
        found = served(store, helpers, limits)
        wrong = [place for place, value in found.items() if pristine.records.get(place) != value]
        assert not wrong, f"{case}: {wrong} is not what was written"
        lost = sorted(set(pristine.records) - set(found))
        if may_lose_from is None:
            assert not lost, f"{case}: {lost} was acknowledged and is gone"
        else:
            assert store.log.end_offset >= may_lose_from, f"{case}: the log ends at {store.log.end_offset}"
    return "served"


# -- the log -----------------------------------------------------------------------------------------


def test_the_store_as_it_was_left_is_served_whole(pristine: Pristine) -> None:
    assert judge(pristine, pristine.disk(), "undamaged") == "served"
    assert len(pristine.segments) >= 5
    if pristine.config.sync_flush:
        assert pristine.durable == pristine.end


def test_a_segment_cut_at_any_byte(stopped: Pristine) -> None:
    """Every length of the last segments, and every third of the others; outside the long run a third of these."""
    verdicts = []
    apart = 1 if LONG else 3
    for path in stopped.segments:
        data = stopped.files[path]
        last = path in stopped.segments[-3:]
        for size in range(0, SEGMENT_SIZE, apart if last else 3 * apart):
            disk = stopped.disk()
            disk.files[path] = SimFile(data[:size])
            verdicts.append(judge(stopped, disk, f"{path.name} cut to {size} bytes"))
    assert len(verdicts) > 8000 // apart
    assert verdicts.count("refused") > 6000 // apart


def test_a_segment_of_another_size_or_gone(pristine: Pristine) -> None:
    for number, path in enumerate(pristine.segments):
        longer = pristine.disk()
        longer.files[path].data += bytes(1)
        assert judge(pristine, longer, f"{path.name} with a byte more") == "refused"
        if number and any(pristine.files[path]):
            gone = pristine.disk()
            del gone.files[path], gone.named[path]
            assert judge(pristine, gone, f"{path.name} gone") == "refused"


def test_the_first_segment_taken_from_a_stopped_store_is_missed(stopped: Pristine) -> None:
    disk = stopped.disk()
    del disk.files[stopped.segments[0]], disk.named[stopped.segments[0]]
    assert judge(stopped, disk, "first segment gone") == "refused"


def test_the_first_segment_removed_by_a_program_that_went_on_writing_is_its_retention(
    stopped: Pristine,
) -> None:
    disk = stopped.disk()
    del disk.files[stopped.segments[0]], disk.named[stopped.segments[0]]
    other, helpers = open_store(replace(stopped.config, checksum_block=0, check_at_start=0), disk)
    other.begin_turn()
    other.put([(other.queue("orders", 0), b"by another program", b"", 0, 0, NOW_MS, 0, 0, 0)], HOST)
    other.publish()
    rest(other, helpers)
    other.close()
    bound = ROOT / "ropewalk" / "bound"
    disk.files[bound] = SimFile(stopped.files[bound])  # RocketMQ knows of none
    store, _helpers = open_store(stopped.config, disk)
    assert store.log.min_offset == SEGMENT_SIZE
    assert any("another program's retention" in text for text in store.upkeep.take_findings())


def test_what_is_under_a_checksum_is_never_cut_whatever_else_is_forgotten(stopped: Pristine) -> None:
    """Under ASYNC_FLUSH, without bound and checkpoint: a checksum says that these bytes had survived a flush."""
    unchecked = replace(stopped, config=replace(stopped.config, check_at_start=0))
    last = max(path for path in stopped.segments if stopped.covered(path))
    assert stopped.covered(last) > 300
    disk = stopped.disk()
    for path in (ROOT / "ropewalk" / "bound", ROOT / "checkpoint"):
        del disk.files[path], disk.named[path]
    disk.files[last].data[90] ^= 1
    assert judge(unchecked, disk, "a body in the last segment") == "refused"


def is_without_checksum(pristine: Pristine, path: Path, position: int) -> bool:
    """Whether no checksum of ours or of the format covers a byte: the head and properties of the newest records."""
    return position >= pristine.covered(path)


def flips(pristine: Pristine, count: int, seed: int) -> Iterator[tuple[Path, int, int]]:
    chance = random.Random(seed)
    for _ in range(count):
        path = chance.choice(pristine.segments)
        yield path, chance.randrange(SEGMENT_SIZE), chance.randrange(8)


def test_any_bit_of_the_log_flipped(pristine: Pristine) -> None:
    """Header, body, properties, filler, or behind the end: wherever a checksum reaches, nothing wrong comes out."""
    verdicts = {"served": 0, "refused": 0, "beyond": 0}
    for path, position, bit in flips(pristine, FLIPS // 5, seed=3):
        offset = int(path.name) + position
        if is_without_checksum(pristine, path, position) and offset < pristine.end:
            verdicts["beyond"] += 1
            continue
        disk = pristine.disk()
        disk.files[path].data[position] ^= 1 << bit
        verdicts[judge(pristine, disk, f"bit {bit} of byte {position} of {path.name}")] += 1
    assert verdicts["refused"] > verdicts["served"] > 0, verdicts


def test_every_nth_byte_of_a_stopped_log_flipped_in_turn(stopped: Pristine) -> None:
    step = 5 if LONG else 23
    for path in stopped.segments:
        for position in range(int(path.name) % step, SEGMENT_SIZE, step):
            disk = stopped.disk()
            disk.files[path].data[position] ^= 1 << (position % 8)
            verdict = judge(stopped, disk, f"byte {position} of {path.name}")
            if int(path.name) + position < stopped.end:
                assert verdict == "refused"


def test_a_damaged_body_where_no_checksum_of_ours_reaches(pristine: Pristine) -> None:
    """RocketMQ's own checksum finds it: refused below the durable bound, else cut or refused as the table says."""
    disk = pristine.disk()
    for path in [p for p in disk.files if p.parent == CHECKSUMS]:
        del disk.files[path], disk.named[path]
    stripped = replace(
        pristine, files={path: bytes(file.data) for path, file in disk.files.items() if ROOT in path.parents}
    )
    for path in stripped.segments:
        data = stripped.files[path]
        at = data.find(b"message ")
        while at >= 0:
            disk = stripped.disk()
            disk.files[path].data[at + 2] ^= 4
            case = f"body at {at} of {path.name}"
            assert judge(stripped, disk, case, may_lose_from=stripped.durable) == "refused", case
            at = data.find(b"message ", at + 1)


# -- everything else ---------------------------------------------------------------------------------


def others(pristine: Pristine) -> list[Path]:
    """Queue files, checkpoint, bound, checksums."""
    return sorted(
        path for path in pristine.files if path.parent != LOG and path.name not in ("lock", "abort")
    )


def test_any_other_file_gone_or_emptied(pristine: Pristine) -> None:
    for path in others(pristine):
        gone = pristine.disk()
        del gone.files[path], gone.named[path]
        assert judge(pristine, gone, f"{path} gone") == "served"
        emptied = pristine.disk()
        emptied.files[path] = SimFile(b"")
        assert judge(pristine, emptied, f"{path} emptied") == "served"


def test_all_queue_files_gone(pristine: Pristine) -> None:
    disk = pristine.disk()
    for path in [p for p in disk.files if "consumequeue" in p.parts]:
        del disk.files[path], disk.named[path]
    assert judge(pristine, disk, "no queue files") == "served"


@pytest.mark.parametrize("kind", ["bit", "cut", "zeros", "noise"])
def test_any_other_file_damaged(pristine: Pristine, kind: str) -> None:
    chance = random.Random(5)
    changes: dict[str, Callable[[bytearray], None]] = {"bit": _flip(chance), "cut": _cut(chance)}
    changes |= {"zeros": _fill(chance, zeros=True), "noise": _fill(chance, zeros=False)}
    refused = 0
    for path in others(pristine):
        for _ in range(FLIPS // 250):
            disk = pristine.disk()
            changes[kind](disk.files[path].data)
            case = f"{kind} in {path}"
            refused += judge(pristine, disk, case) == "refused"
    assert refused == 0 or kind == "cut", "what can be built again from the log is no reason to stop"


def _flip(chance: random.Random) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)

    return change


def _cut(chance: random.Random) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        del data[chance.randrange(len(data)) :]

    return change


def _fill(chance: random.Random, *, zeros: bool) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        start = chance.randrange(len(data))
        end = min(len(data), start + chance.randint(1, 64))
        data[start:end] = bytes(end - start) if zeros else chance.randbytes(end - start)

    return change


# -- where a start does not look ---------------------------------------------------------------------


def test_what_a_start_does_not_look_at_is_looked_at_when_it_is_read() -> None:
    """With `checkAtStartBytes` near nothing: what is damaged is never served, but named; everything else is served."""
    pristine = write(sync_flush=False, ending="stopped", check_at_start=1)
    refusals = 0
    for path, position, bit in flips(pristine, FLIPS // 5, seed=9):
        disk = pristine.disk()
        disk.files[path].data[position] ^= 1 << bit
        case = f"bit {bit} of byte {position} of {path.name}"
        try:
            store, helpers = open_store(pristine.config, disk)
        except StoreDamaged:
            continue
        refused: list[str] = []
        found = served(store, helpers, ReadLimits(), refused=refused)
        assert all(pristine.records.get(place) == value for place, value in found.items()), case
        assert len(found) + len(refused) == len(pristine.records), case
        findings = store.upkeep.take_findings()
        # A read looks at all of the block that its records stand in: it can find damage where no record is.
        assert findings or not refused, (case, refused, findings)
        for text in findings:
            assert str(path) in text and "log offset" in text and "`ropewalk store " in text
        refusals += bool(refused)
    assert refusals > 50


def test_a_damaged_queue_entry_that_a_start_did_not_look_at_leads_to_no_foreign_message() -> None:
    pristine = write(sync_flush=False, ending="stopped", check_at_start=1)
    chance = random.Random(13)
    skipped = 0
    for path in [path for path in others(pristine) if "consumequeue" in path.parts]:
        for _ in range(40):
            disk = pristine.disk()
            _flip(chance)(disk.files[path].data)
            store, helpers = open_store(pristine.config, disk)
            for limits in (ReadLimits(), COLD):
                refused: list[str] = []
                found = served(store, helpers, limits, refused=refused)
                assert all(pristine.records.get(place) == value for place, value in found.items())
                assert len(found) + len(refused) == len(pristine.records)
                skipped += len(refused)
    assert skipped
