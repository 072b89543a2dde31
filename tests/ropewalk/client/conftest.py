from collections.abc import Iterator

import pytest

from tests.ropewalk.client.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        yield fake
