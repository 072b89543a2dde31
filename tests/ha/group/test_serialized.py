"""Pin the spelling on disk and on the wire: stores and members of before are read whatever the code calls a field."""

from __future__ import annotations

import msgspec
import pytest

from ha.group.block_repair import BlockRequest, BlockResponse
from ha.group.hello import (
    EpochRequest,
    Hello,
    MemberStatusMessage,
    RangesRequest,
    SlaveView,
    Welcome,
)
from ha.group.metadata import Seen, SyncRequest, SyncResponse
from ha.group.roles import SLAVE, SYNC_MASTER, QuorumPolicy, RoleRecord
from ropewalk.member_proof import Challenge

POLICY = QuorumPolicy(SYNC_MASTER, 2, 3, {"1": "10.0.0.2:10911"}, {"1": 2}, 1)
POLICY_JSON = (
    '{"role":"SYNC_MASTER","inSyncReplicas":2,"version":3,"slaves":{"1":"10.0.0.2:10911"},'
    '"joined":{"1":2},"before":1}'
)
RECORD = RoleRecord(
    role=SLAVE,
    broker_id=1,
    promised_epoch=5,
    leader_epoch=4,
    promised_to="asker",
    master="10.0.0.1:10911",
    policy=POLICY,
    superseded=((3, "other"),),
)
ROLE_JSON = (
    '{"role":"SLAVE","brokerId":1,"epoch":5,"reign":4,"by":"asker","master":"10.0.0.1:10911","terms":'
    + POLICY_JSON
    + ',"overtaken":[[3,"other"]]}'
)
SEEN = Seen("run", 1, 2, 3, 4)
MESSAGES: list[tuple[msgspec.Struct, str]] = [
    (Challenge(b"n", "v"), '{"challenge":"bg==","version":"v"}'),
    (
        Hello("c", "b", 1, "a", "s", 5, 0, 9, 1024, [(1, 0)], [(0, 9)], [7, None], policy_version=3, policy_epoch=4),
        '{"cluster":"c","broker_name":"b","broker_id":1,"address":"a","socket":"s","epoch":5,"begin":0,"end":9,'
        '"segment_size":1024,"epochs":[[1,0]],"ranges":[[0,9]],"sums":[7,null],"terms_version":3,"terms_of":4}',
    ),
    (
        Welcome(leader_epoch=4, begin=0, end=9, epochs=[(1, 0)], sums=[7], policy=POLICY, flushes_first=True),
        '{"epoch":4,"begin":0,"end":9,"epochs":[[1,0]],"sums":[7],"terms":' + POLICY_JSON + ',"flushes_first":true'
        ',"ha_address":""}',
    ),
    (
        EpochRequest("c", "b", 5, operator="asker", broker_id=1, master="m", policy=POLICY),
        '{"cluster":"c","broker_name":"b","epoch":5,"by":"asker","broker_id":1,"master":"m","terms":'
        + POLICY_JSON
        + "}",
    ),
    (
        MemberStatusMessage(
            broker_name="b", broker_id=1, address="a", role=SLAVE, promised_epoch=5, leader_epoch=4, begin=0, end=9,
            log_epoch=1, waiting=2, policy=POLICY, master="m", master_end=9, master_age_ms=20, name_server="ns",
            ha_address="ha", cluster="c", flushed=8, readable=7, stored_ms=99, has_master=True, link="TRANSFER",
            slaves=[SlaveView("a", 1, 9, True, True, 5)], damaged=1, repaired=2, newest_open_promise=3,
            fence="f",
        ),
        '{"broker_name":"b","broker_id":1,"address":"a","role":"SLAVE","epoch":5,"reign":4,"begin":0,"end":9,'
        '"log_epoch":1,"waiting":2,"terms":' + POLICY_JSON + ',"master":"m","master_end":9,"master_age_ms":20,'
        '"name_server":"ns","ha_address":"ha","cluster":"c","flushed":8,"readable":7,"stored_ms":99,'
        '"has_master":true,"link":"TRANSFER","slaves":[{"address":"a","broker_id":1,"acknowledged":9,'
        '"in_sync":true,"counts":true,"bytes_per_second":5}],"damaged":1,"mended":2,"doubt":3,"fence":"f"}',
    ),
    (
        SyncRequest(
            broker_id=1, address="a", promised_epoch=5, seen=SEEN, end=9, flushed=8, policy_version=3, policy_epoch=4,
            commits=[("t", "g", 0, 1, 2)], topics_version=(1, 2, 3), groups_version=(4, 5, 6), topics={}, groups={},
        ),
        '{"broker_id":1,"address":"a","epoch":5,"seen":{"run":"run","topics":1,"groups":2,"offsets":3,"delays":4},'
        '"end":9,"flushed":8,"terms_version":3,"terms_of":4,"commits":[["t","g",0,1,2]],"topics_version":[1,2,3],'
        '"groups_version":[4,5,6],"topics":{},"groups":{},"takes_changes":false}',
    ),
    (
        SyncResponse(
            leader_epoch=4, seen=SEEN, end=9, readable=8, time_ms=99, policy=POLICY, topics={}, groups={},
            delays={"1": 2}, commits=[("t", "g", 0, 1, 2)], more=True, wants_tables=True,
        ),
        '{"epoch":4,"seen":{"run":"run","topics":1,"groups":2,"offsets":3,"delays":4},"end":9,"readable":8,'
        '"time_ms":99,"terms":' + POLICY_JSON + ',"topics":{},"groups":{},"delays":{"1":2},'
        '"commits":[["t","g",0,1,2]],"more":true,"wants_tables":true,"timers":null,"topic_changes":null,"group_changes":null}',
    ),
    (RangesRequest([(0, 9)]), '{"ranges":[[0,9]]}'),
    (
        BlockRequest("c", "b", "a", 1024, 0, 9, 7, 99, [(1, 0)]),
        '{"cluster":"c","broker_name":"b","address":"a","segment_size":1024,"start":0,"end":9,"wanted":7,'
        '"log_end":99,"epochs":[[1,0]]}',
    ),
    (BlockResponse(0, 7, b"x"), '{"start":0,"sum":7,"data":"eA=="}'),
]  # fmt: skip


def test_the_role_file_is_spelled_as_in_stores_of_before() -> None:
    assert msgspec.json.encode(RECORD).decode() == ROLE_JSON
    assert msgspec.json.decode(ROLE_JSON, type=RoleRecord) == RECORD


@pytest.mark.parametrize(("message", "spelled"), MESSAGES, ids=lambda each: type(each).__name__)
def test_members_of_before_read_every_message(message: msgspec.Struct, spelled: str) -> None:
    assert msgspec.json.encode(message).decode() == spelled
    assert msgspec.json.decode(spelled, type=type(message)) == message
    on_the_wire = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    assert list(on_the_wire) == list(msgspec.json.decode(spelled))
