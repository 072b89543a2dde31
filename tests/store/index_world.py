"""A store directory with a key index, and what tests of it do with it."""

from dataclasses import dataclass, replace

from ropewalk.format.index import Geometry, IndexHeader
from ropewalk.format.properties import encode_properties
from store.config import StoreConfig
from store.index.builder import IndexBuilder
from store.index.file import IndexPlace, index_names, read_header
from store.index.helper import KeyIndex
from store.index.search import Query, find_messages
from store.io.disk import Disk
from store.message_store import MessageStore
from tests.store import worlds
from tests.store.worlds import HOST, wait_for

FOREVER = 1 << 62
SMALL = Geometry(slots=50, items=40)
SEGMENT_SIZE = 8192


@dataclass
class World(worlds.World):
    """A store directory with an index, built by a thread or (`process`) by the helper process."""

    geometry: Geometry = SMALL
    process: bool = False

    @property
    def place(self) -> IndexPlace:
        root = self.root
        return IndexPlace(
            root / "index", root / "commitlog", SEGMENT_SIZE, self.geometry, root / "ropewalk" / "index.lock"
        )

    @property
    def names(self) -> list[str]:
        return index_names(Disk(), self.place.directory)

    def forget_index(self) -> None:
        """Remove its files: the log is all that is left to build it from."""
        for path in self.place.directory.iterdir():
            path.unlink()

    def rebuilding(self, log_end: int) -> IndexBuilder:
        """A builder that has everything up to there before it."""
        self.forget_index()
        builder = IndexBuilder(self.place, Disk(), self.clock)
        builder.open(log_end, None)
        return builder

    def header(self, name: str) -> IndexHeader:
        header = read_header(Disk(), self.place.directory / name, self.geometry)
        assert header is not None
        return header

    @property
    def config(self) -> StoreConfig:
        return replace(super().config, index=self.geometry, index_in_process=self.process)


def index_of(store: MessageStore) -> KeyIndex:
    assert store.upkeep.index is not None
    return store.upkeep.index


def send(
    store: MessageStore, *messages: dict[str, str], topic: str = "T", body: bytes = b"body"
) -> list[int]:
    """Store messages with these properties; their log offsets."""
    store.begin_turn()
    queue = store.queue(topic, 0)
    done = store.put(
        [(queue, body, encode_properties(properties), 0, 0, store.now, 0, 0, 0) for properties in messages],
        HOST,
    )
    store.publish()
    return [offset for offset, _number in done]


def built(store: MessageStore) -> None:
    """Have the index catch up."""
    reached: list[int] = []
    index_of(store).when_built(store.readable_offset, lambda: reached.append(1))

    def happened() -> bool:
        return bool(reached)

    wait_for(store, happened)
    assert index_of(store).position >= store.readable_offset


def find(store: MessageStore, key: str, topic: str = "T", count: int = 64, **more: int | bool) -> list[int]:
    """The offsets of the messages found by a key."""
    query = Query(
        topic,
        key,
        count,
        int(more.get("begin", 0)),
        int(more.get("end", FOREVER)),
        by_tag=bool(more.get("by_tag")),
    )
    found = find_messages(Disk(), index_of(store).place, store.log, query)
    return [int.from_bytes(record[28:36], "big") for record in found.records]
