from collections.abc import Awaitable, Callable, Iterator

import anyio
import pytest

from tests.ropewalk.client.fake_cluster import FakeCluster

STORY_S = 40.0


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        yield fake


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a story under each of the two loops; one that does not end fails."""

    def run_story(story: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            with anyio.fail_after(STORY_S):
                await story()

        anyio.run(bounded, backend=request.param)

    return run_story
