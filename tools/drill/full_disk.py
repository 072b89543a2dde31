"""The drills in which a group's own traffic fills the disk of its master or leader: forced cleaning has to make room.

The member's store is on a small disk of its own, and no other file is. A broker removes nothing by itself in its first
minute, so an operator asks it for retention again and again, which changes neither what goes nor how much at once.

What went is judged by the disk and not by the broker's words: how full it was when it was emptiest behind the first
removal, and which messages were in the files that are gone. All others must be there.
"""

from __future__ import annotations

import http.client
import os
import re

import trio

from ropewalk.client.aio.connection import open_connection
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError
from ropewalk.format.remoting import Command
from store.offline.reader import UnreadableStore, find_log_files
from store.retention.forced import NEAR
from tools.drill.dledger import MODE
from tools.drill.load import SEND_TIMEOUT_S
from tools.drill.stage import SETTLE_S, Drill, Stage
from tools.drill.testbed.cluster import Node
from tools.drill.testbed.damage import DISK_BYTES

SEGMENT = 1024 * 1024
BODY = 8 * 1024
LEVEL = 0.85
"""How full a disk is when young segments go: `diskSpaceCleanForciblyRatio`."""
REMOVALS = 5
MAKE_ROOM_S = 30.0
"""How long a full disk may take to have room again."""
LET_GO_S = 5.0
"""How long the disk may take to get the room of a removed file."""
_SLACK = 0.01
"""The part of the disk that may come free beside a segment: the queue and index files of its messages."""
_LOOK_S = 0.1
_HTTP_S = 5.0
_METRIC = re.compile(r"^ropewalk_forced_cleaning_room_ratio\S* (\S+)$", re.MULTILINE)

SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "cleanResourceInterval": "500",
    "metricsExporterType": "PROM",
}


class _SmallDisk:
    """The disk of a member, looked at again and again, and what was seen of it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.removed: list[int] = []
        """Where the segments began that are gone, in the order in which they went."""
        self.room = 1.0
        """The lowest value of the alert's metric before the first of them went."""
        self.lowest = 1.0
        """The part of the disk that was taken when it was emptiest behind that."""
        self._present: set[int] = set()

    @property
    def used(self) -> float:
        """Return the part of the disk that is taken."""
        space = os.statvfs(self.node.store)
        return 1 - space.f_bavail / space.f_blocks

    @property
    def begin(self) -> int:
        """Return where the log begins, by its files."""
        return min(self._present, default=0)

    def look(self) -> None:
        """Note which segments are gone."""
        try:
            now = {file.base_offset for file in find_log_files(self.node.store)}
        except UnreadableStore:
            return  # a file went between the listing and the look at it
        self.removed += sorted(self._present - now)
        self._present = now

    async def watch(self) -> None:
        """Look at the disk and the metric, and ask for retention, until cancelled."""
        while True:
            found = _METRIC.search((await self._ask_page("/metrics"))[1])
            room = float(found[1]) if found else -1.0
            self.look()
            if self.removed:
                self.lowest = min(self.lowest, self.used)
            elif room >= 0:
                self.room = min(self.room, room)
            await self._ask_for_retention()
            await trio.sleep(_LOOK_S)

    async def why_not_ready(self) -> str:
        """Return the first reason that `/readyz` tells; empty where the member is ready."""
        status, text = await self._ask_page("/readyz")
        return "" if status == http.client.OK else text.partition("\n")[0] or "it does not answer"

    async def _ask_page(self, path: str) -> tuple[int, str]:
        return await trio.to_thread.run_sync(_ask_page, str(self.node.ready["metrics"]), path)

    async def _ask_for_retention(self) -> None:
        try:
            async with open_connection(self.node.own_address, timeout=SEND_TIMEOUT_S) as connection:
                await connection.call(Command(RequestCode.DELETE_EXPIRED_COMMITLOG))
        except (RopewalkError, OSError):
            pass  # the load tells whether the broker answers

    def lets_go(self) -> bool:
        """Return whether `df` and `du` agree: what is taken and in no file, a removed one has that is held open."""
        try:
            files = [path.stat() for path in self.node.store.rglob("*")]
        except FileNotFoundError:
            return False  # it went in this moment
        space = os.statvfs(self.node.store)
        taken = (space.f_blocks - space.f_bfree) * space.f_frsize
        return taken - sum(512 * file.st_blocks for file in files) < SEGMENT // 2


def _ask_page(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=_HTTP_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


async def fill_by_traffic(stage: Stage) -> None:
    """The disk fills up, and all messages are young: the oldest go, one segment at a time, and the sends go on."""
    node = stage.cluster.nodes[0]
    if not await stage.wait_for(lambda: stage.router.master == node.address, SETTLE_S):
        stage.cannot(f"the clients are not sent to {node.name}, which has the small disk")
    disk = _SmallDisk(node)
    stage.after_stop = lambda: _judge(stage, disk)
    stage.fault(f"the load fills the disk of {node.name}: {DISK_BYTES >> 20} MiB, and there is no other file")
    stage.background.start_soon(disk.watch)
    spec = stage.load.spec
    limit_s = 20 + 3 * DISK_BYTES / (spec.rate * spec.body_size)
    if not await stage.wait_for(lambda: bool(disk.removed) or disk.used > LEVEL, limit_s):
        stage.cannot(f"the load has filled {disk.used:.0%} of the disk in {limit_s:.0f} s: raise --rate")
    stage.hit(f"the disk was too full {stage.since_fault():.1f} s after the start")
    if not await stage.wait_for(lambda: len(disk.removed) >= REMOVALS, MAKE_ROOM_S):
        why = await disk.why_not_ready()
        stage.broken("no room made", f"{node.name} is {disk.used:.0%} full, and removes nothing more: {why}")
    await trio.sleep(max(0.0, stage.options.seconds - stage.timeline.now()))
    stage.saw(f"{len(disk.removed)} segments went, and the disk is {disk.used:.0%} full")
    if not await stage.wait_for(disk.lets_go, LET_GO_S):
        stage.broken("held open", "`df` tells more than `du`: something holds removed files open")
    if stage.findings:
        return  # without room nothing is acknowledged
    if not await stage.until_acknowledged():
        stage.broken("no way back", f"{node.name} has removed segments, and nothing is acknowledged")
    why = ""
    with trio.move_on_after(MAKE_ROOM_S):
        while why := await disk.why_not_ready():  # noqa: ASYNC110 - of a page, which has no event
            await trio.sleep(_LOOK_S)
    if why:
        stage.broken("not ready", f"`/readyz` of {node.name}: {why}")
    else:
        stage.saw(f"{node.name} is ready, and `df` and `du` agree")


async def _judge(stage: Stage, disk: _SmallDisk) -> None:
    """Hold what was seen until the load ended against what forced cleaning promises."""
    said = f"the alert's metric was {disk.room:.3f} before the first segment went"
    if disk.room < NEAR:
        stage.saw(said)
    else:
        stage.broken("not said before", f"{said}, and never below {NEAR:g}")
    least = LEVEL - SEGMENT / DISK_BYTES - _SLACK
    if disk.lowest < least:
        stage.broken(
            "more than needed",
            f"removals left the disk {disk.lowest:.1%} full: above {least:.1%} none is needed",
        )
    for attempt in (attempt for entry in stage.load.sent for attempt in entry.attempts):
        waited_s = (attempt.answered_at or 0.0) - attempt.sent_at
        if attempt.code is None and waited_s >= SEND_TIMEOUT_S:
            stage.broken("no answer", f"a send at {attempt.sent_at:.3f} s had none for {waited_s:.1f} s")
            break
        if attempt.outcome == "refused" and not attempt.remark:
            stage.broken(
                "no words",
                f"a send at {attempt.sent_at:.3f} s was refused with code {attempt.code} and no word",
            )
            break
    disk.look()
    stage.begins[disk.node.name] = disk.begin


EXPECTS = (
    "The alert's metric falls before the first segment goes. The oldest go, one at a time and only as needed; sends go "
    "on or are refused in words. Only messages in removed segments are missing, and no removed file is held open."
)

FULL_DISK_MASTER = Drill(
    name="full-disk-master",
    title="fill the master's small disk by the load, until young messages have to go",
    expects=EXPECTS,
    members=2,
    script=fill_by_traffic,
    settings=SETTINGS,
    body_size=BODY,
    small_disk=(0, DISK_BYTES),
)

FULL_DISK_LEADER = Drill(
    name="full-disk-leader",
    title="fill the leader's small disk by the load, until young messages have to go",
    expects=EXPECTS,
    members=3,
    mode=MODE,
    script=fill_by_traffic,
    settings={**SETTINGS, "preferredLeaderId": "n0"},
    body_size=BODY,
    small_disk=(0, DISK_BYTES),
)
