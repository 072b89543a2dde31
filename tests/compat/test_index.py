"""Our key index beside the one of Apache RocketMQ 5.5.0, over the same messages: equal to the byte.

The recorded stores (see make_stores.py) were written by a whole broker, so they show which keys it indexes and in
which order; they need no Java. The Java test drives the original's own IndexFile through full files and slots shared
by many keys, which no small store has.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from ropewalk.format.index import Geometry, IndexHeader
from ropewalk.format.properties import encode_properties
from store.config import StoreConfig
from store.index.builder import IndexBuilder
from store.index.file import IndexPlace, index_names, read_header
from store.index.search import search
from store.io.disk import Disk
from store.message_store import MessageStore
from tests.bench.peers.rocketmq.artifacts import JavaUnavailable, compiled, program
from tests.compat.conftest import unavailable
from tests.store.worlds import HOST
from tests.support.clocks import Clock
from tests.support.jvm import SHORT_LIVED
from tests.support.recorded_stores import unpack

SOURCE = Path(__file__).with_name("java") / "index" / "BuildIndex.java"
SEGMENT_SIZE = 64 << 10
RECORDED = Geometry(slots=100, items=400)
FOREVER = 1 << 62


def place_of(root: Path, geometry: Geometry, index: Path, segment_size: int = SEGMENT_SIZE) -> IndexPlace:
    return IndexPlace(index, root / "commitlog", segment_size, geometry, index / "lock")


@pytest.fixture(params=["clean", "killed"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(request.param, tmp_path / "store")


def log_end(root: Path) -> int:
    """Behind the last segment; what follows the last record there ends the building."""
    segments = sorted((root / "commitlog").iterdir())
    return int(segments[-1].name) + SEGMENT_SIZE


def test_the_index_of_a_recorded_store_comes_out_the_same(recorded: Path, tmp_path: Path) -> None:
    (name,) = index_names(Disk(), recorded / "index")
    original = (recorded / "index" / name).read_bytes()
    header = IndexHeader.decode(original)
    assert RECORDED.file_size == len(original) and header.next_item > 100
    builder = IndexBuilder(place_of(recorded, RECORDED, tmp_path / "index"), Disk(), Clock())
    builder.open(FOREVER, None)
    builder.advance(log_end(recorded), 0)
    (ours,) = index_names(Disk(), tmp_path / "index")
    assert (tmp_path / "index" / ours).read_bytes() == original


def test_a_recorded_index_is_gone_on_with(recorded: Path) -> None:
    place = place_of(recorded, RECORDED, recorded / "index")
    (name,) = index_names(Disk(), place.directory)
    before = (place.directory / name).read_bytes()
    builder = IndexBuilder(place, Disk(), Clock())
    builder.open(log_end(recorded), None)
    header = IndexHeader.decode(before)
    assert builder.position > header.end_offset, "its last message is known to be in it"
    builder.close()
    assert (place.directory / name).read_bytes() == before


# --- against the class itself ------------------------------------------------------------------------------


def messages(seed: int) -> list[tuple[int, dict[str, str]]]:
    """Store times, and properties; few keys for few slots, some seconds apart, and once backwards in a chain."""
    draw = random.Random(seed)
    now, result = 1_700_000_000_000, []
    for number in range(150):
        now += draw.choice((0, 1, 999, 1000, 12_345))
        properties = {"UNIQ_KEY": f"7F0000010BCC18B4AAC20A6B{number:08X}", "WAIT": "true"}
        if draw.random() < 0.5:
            properties["KEYS"] = " ".join(f"k{draw.randrange(5)}" for _ in range(draw.randrange(1, 4)))
        if draw.random() < 0.3:
            properties["KEYS"] = f"{properties.get('KEYS', 'x')}  é\U0001f680{number}"
        if draw.random() < 0.5:
            properties["TAGS"] = draw.choice(("TagA", "красный"))
        result.append((now, properties))
    return result


def lines_for_java(offsets: list[int], items: list[tuple[int, dict[str, str]]]) -> str:
    lines = []
    for offset, (stored, properties) in zip(offsets, items, strict=True):
        keys = [properties["UNIQ_KEY"], *(k for k in properties.get("KEYS", "").split(" ") if k)]
        keys += [f"T#{properties['TAGS']}"] if "TAGS" in properties else []
        lines += [f"{offset} {stored} Topic#{key}".encode().hex() for key in keys]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.compat
@pytest.mark.slow
@pytest.mark.parametrize("geometry", [Geometry(7, 20), Geometry(50, 101), Geometry(1000, 5000)], ids=str)
def test_our_files_equal_those_of_the_originals_class(
    tools_classpath: str, tmp_path: Path, geometry: Geometry
) -> None:
    clock = Clock()
    config = StoreConfig(
        root=tmp_path, log_directory=tmp_path / "commitlog", store_host=HOST, segment_size=SEGMENT_SIZE,
        index=geometry, index_in_process=False,
    )  # fmt: skip
    items = messages(geometry.slots)
    store = MessageStore(config, Disk(), clock, lambda: None)
    store.open()
    offsets = []
    for stored, properties in items:
        clock.ms = stored
        store.begin_turn()
        queue = store.queue("Topic", 0)
        ((offset, _number),) = store.put(
            [(queue, b"x", encode_properties(properties), 0, 0, stored, 0, 0, 0)], HOST
        )
        store.publish()
        offsets.append(offset)
    store.close()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    try:
        classes = compiled([SOURCE], tools_classpath)
        command = [program("java"), "-Xmx64m", *SHORT_LIVED, f"-Duser.home={tmp_path}"]
        command += ["-cp", f"{classes}:{tools_classpath}", "BuildIndex", str(theirs)]
    except JavaUnavailable as missing:
        unavailable(str(missing))
    command += [str(geometry.slots), str(geometry.items)]
    done = subprocess.run(
        command,
        input=lines_for_java(offsets, items),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours = index_names(Disk(), tmp_path / "index")
    made = sorted(path.name for path in theirs.iterdir())
    assert len(ours) == len(made)
    assert (len(made) > 5) == (geometry.items == 20)
    for mine, yours in zip(ours, made, strict=True):
        assert (tmp_path / "index" / mine).read_bytes() == (theirs / yours).read_bytes(), (mine, yours)
    place = place_of(tmp_path, geometry, tmp_path / "index")
    header = read_header(Disk(), place.directory / ours[-1], geometry)
    assert header is not None and header.end_offset == offsets[-1]
    assert offsets[3] in list(search(Disk(), place, "Topic", items[3][1]["UNIQ_KEY"], 0, FOREVER))
