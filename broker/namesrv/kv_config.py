"""Pairs of text by name space: what administrators leave at a name server for brokers and clients to find.

RocketMQ's own use is the name space ORDER_TOPIC_CONFIG, which says on how many queues of which brokers an
ordered topic lies. The whole is bounded, because anybody who reaches the port can write to it.
"""

from __future__ import annotations

from collections.abc import Mapping

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
KV_SIZE_MAX = 1 << 20
"""Bytes of all name spaces, keys and values together; the order of 10,000 topics takes half of them."""
VALUE_SIZE_MAX = 64 << 10
KV_PAIRS_MAX = 10_000


class KvConfig:
    """The pairs, and how much room they take."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, str]] = {}
        # Always the sum of `_pair_size` over all pairs, and their number.
        self._size = 0
        self._count = 0

    def put(self, namespace: str, key: str, value: str) -> str | None:
        """Store one pair. Return why it is refused, and nothing is changed; None if it is stored."""
        if _size_of(value) > VALUE_SIZE_MAX:
            return f"a value of {_size_of(value)} bytes; at most {VALUE_SIZE_MAX} are kept for one key"
        old = self.get(namespace, key)
        size = self._size - (0 if old is None else _pair_size(namespace, key, old))
        size += _pair_size(namespace, key, value)
        if size > KV_SIZE_MAX or (old is None and self._count >= KV_PAIRS_MAX):
            return (
                f"the KV configuration is full: {self._size} of {KV_SIZE_MAX} bytes and {self._count} of "
                f"{KV_PAIRS_MAX} keys are taken; delete some with code 102 (mqadmin deleteKvConfig)"
            )
        self._count += old is None
        self._tables.setdefault(namespace, {})[key] = value
        self._size = size
        return None

    def get(self, namespace: str, key: str) -> str | None:
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> Mapping[str, str]:
        """All pairs of one name space; empty if there are none."""
        return self._tables.get(namespace, {})

    def delete(self, namespace: str, key: str) -> None:
        """Forget one pair, if it is there."""
        old = self.get(namespace, key)
        if old is None:
            return
        self._size -= _pair_size(namespace, key, old)
        self._count -= 1
        del self._tables[namespace][key]
        if not self._tables[namespace]:
            del self._tables[namespace]
        assert self._size >= 0, self._size


def _pair_size(namespace: str, key: str, value: str) -> int:
    # The name space counts with every pair: a million name spaces of one pair each must not be free.
    return _size_of(namespace) + _size_of(key) + _size_of(value)


def _size_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
