"""The requests of a key-value client: what it asks, whom, and how often, held with a script in place of a network."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ropewalk.client.core.connection import Unreachable
from ropewalk.client.kv.core import KvCore
from ropewalk.client.kv.results import Fenced, KvLock
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import LocalProtocolError, OutcomeUnknown, Rejected, RopewalkError, TryElsewhere
from ropewalk.format.kv.commands import Outcome, Status, decode_found, encode_found, encode_outcome
from ropewalk.format.kv.items import (
    RANGE_KEYS_MAX,
    Count,
    Guard,
    Put,
    Swapped,
    decode_operations,
    decode_values,
)
from ropewalk.format.remoting import Command
from tests.ropewalk.client.kv.cluster import CLUSTER
from tests.ropewalk.client.scripted import Script

NOT_LEADER = 14

Answer = Callable[[str, Command], Command | RopewalkError]


def outcome(request: Command, status: Status = Status.OK, *results: Count | Swapped) -> Command:
    return request.reply(ResponseCode.SUCCESS, body=encode_outcome(Outcome(status, results)))


class Store:
    """Three members; `writes` answers each write in turn, sessions are numbered from 7 on."""

    def __init__(self, *writes: Answer, leader: str = "a:1", epoch: int = 1) -> None:
        self.leader = leader
        self.epoch = epoch
        self.sessions = 6
        self.looks = 0
        self.without: tuple[str, ...] = ()
        """Members that serve no region."""
        self.configurations: dict[str, tuple[str, int, str]] = {}
        """Of each member that tells it: its id, and the members since which entry."""
        self.asked: list[tuple[str, Command]] = []
        self._writes = list(writes)
        self.script = Script(self.answer)
        self.core = KvCore("ns:9876", clock=self.script.clock, timeout_s=10.0, broker=None, start=0)

    def answer(self, address: str, request: Command) -> Command | RopewalkError:
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return request.reply(ResponseCode.SUCCESS, body=json.dumps(CLUSTER).encode())
            case RequestCode.ROPEWALK_KV_REGIONS if address in self.without:
                return request.reply(ResponseCode.ILLEGAL_OPERATION, "no region here")
            case RequestCode.ROPEWALK_KV_REGIONS:
                self.looks += 1
                region = {"id": 0, "start": "", "end": "", "epoch": self.epoch, "leader": self.leader}
                document: dict[str, object] = {"regions": [region]}
                if address in self.configurations:
                    id, index, members = self.configurations[address]
                    document |= {"member": id, "index": index, "members": members.split()}
                return request.reply(ResponseCode.SUCCESS, body=json.dumps(document).encode())
            case RequestCode.ROPEWALK_KV_SESSION:
                self.sessions += 1
                return outcome(request, Status.OK, Count(self.sessions))
        self.asked.append((address, request))
        answer = self._writes.pop(0) if len(self._writes) > 1 else self._writes[0]
        return answer(address, request)

    @property
    def numbers(self) -> list[tuple[str, str, str]]:
        return [(each.ext["session"], each.ext["seq"], each.ext["lowest"]) for _address, each in self.asked]


def ok(address: str, request: Command) -> Command:
    return outcome(request, Status.OK, Count(1))


def says(status: Status) -> Answer:
    return lambda address, request: outcome(request, status)


def refused(code: int, **ext: str) -> Answer:
    return lambda address, request: request.reply(code, "no", ext)


def lost(address: str, request: Command) -> RopewalkError:
    return OutcomeUnknown(f"no answer from {address}")


def away(address: str, request: Command) -> RopewalkError:
    return Unreachable(f"cannot connect to {address}")


def test_writes_go_to_the_leader_in_one_session_and_are_numbered() -> None:
    store = Store(ok, leader="b:1")
    for _ in range(3):
        store.script.hold(store.core.put("k", "v"))
    assert [address for address, _ in store.asked] == ["b:1"] * 3
    assert store.numbers == [("7", "1", "1"), ("7", "2", "2"), ("7", "3", "3")]
    assert decode_operations(store.asked[0][1].body) == (Put(b"k", b"v"),)


def test_a_write_whose_answer_was_lost_is_sent_again_under_its_number_to_another_member() -> None:
    store = Store(lost, away, ok)
    store.script.hold(store.core.put("k", "v"))
    assert [address for address, _ in store.asked] == ["a:1", "b:1", "c:1"]
    assert set(store.numbers) == {("7", "1", "1")}
    assert store.script.pauses == [0.02, 0.04], "each pause is twice as long"


def test_a_leader_that_leads_no_more_names_the_next_one() -> None:
    store = Store(refused(NOT_LEADER, leader="c:1"), refused(ResponseCode.SYSTEM_ERROR, leader="b:1"), ok)
    store.script.hold(store.core.put("k", "v"))
    assert [address for address, _ in store.asked] == ["a:1", "c:1", "b:1"]
    assert len(set(store.numbers)) == 1


def test_a_write_that_was_never_applied_ends_in_a_refusal_and_one_in_doubt_in_outcome_unknown() -> None:
    store = Store(refused(NOT_LEADER))
    with pytest.raises(TryElsewhere):
        store.script.hold(store.core.put("k", "v"))
    store = Store(lost, refused(NOT_LEADER))
    with pytest.raises(OutcomeUnknown, match="an attempt got no answer"):
        store.script.hold(store.core.put("k", "v"))
    assert sum(store.script.pauses) < 10.0


def test_a_number_that_was_given_up_is_not_waited_for_by_the_store() -> None:
    store = Store(lost)
    with pytest.raises(OutcomeUnknown):
        store.script.hold(store.core.put("k", "v"))
    store._writes = [ok]
    store.script.hold(store.core.put("k", "w"))
    assert store.numbers[-1] == ("7", "2", "2"), "a late copy of the first is refused by the store"


def test_a_session_that_has_expired_is_opened_anew_unless_the_write_is_in_doubt() -> None:
    store = Store(says(Status.SESSION_EXPIRED), ok)
    store.script.hold(store.core.put("k", "v"))
    assert store.numbers == [("7", "1", "1"), ("8", "1", "1")]
    store = Store(lost, says(Status.SESSION_EXPIRED))
    with pytest.raises(OutcomeUnknown, match="session"):
        store.script.hold(store.core.put("k", "v"))
    assert len(store.asked) == 2


def test_another_epoch_has_the_client_look_for_the_regions_and_send_the_same_write() -> None:
    def cut_anew(address: str, request: Command) -> Command:
        store.epoch = 2
        return outcome(request, Status.WRONG_EPOCH)

    store = Store(cut_anew, ok)
    store.script.hold(store.core.put("k", "v"))
    assert [each.ext["epoch"] for _address, each in store.asked] == ["1", "2"]
    assert len(set(store.numbers)) == 1


def test_a_write_in_doubt_stays_so_where_it_is_refused_by_a_cut_older_than_one_it_was_sent_by() -> None:
    """Members that are behind told of the older cut; that its epoch is over says nothing of the attempts before."""

    def fall_behind(address: str, request: Command) -> RopewalkError:
        store.epoch = 1
        return lost(address, request)

    def moved(address: str, request: Command) -> Command:
        region = {"id": 0, "start": "", "end": "", "epoch": 2, "leader": ""}
        answer = outcome(request, Status.WRONG_EPOCH)
        answer.ext["regions"] = json.dumps({"regions": [region]})
        return answer

    store = Store(fall_behind, lost, lost, moved, refused(NOT_LEADER), epoch=2)
    with pytest.raises(OutcomeUnknown):
        store.script.hold(store.core.put("k", "v"))
    assert [each.ext["epoch"] for _address, each in store.asked][:5] == ["2", "2", "2", "1", "2"]


def test_a_guarded_write_carries_the_token_and_is_fenced_without_another_attempt() -> None:
    store = Store(says(Status.FENCED))
    with pytest.raises(Fenced):
        store.script.hold(store.core.put("k", "v", guard=KvLock(b"job", b"me", 5, 1.0)))
    assert decode_operations(store.asked[0][1].body) == (Guard(b"job", 5), Put(b"k", b"v"))
    assert len(store.asked) == 1


def test_a_full_region_is_refused_without_another_attempt() -> None:
    store = Store(says(Status.FULL))
    with pytest.raises(Rejected, match="kvMemoryMax"):
        store.script.hold(store.core.put("k", "v"))
    assert len(store.asked) == 1


def test_what_no_region_takes_is_not_sent() -> None:
    store = Store(ok)
    for steps in (store.core.put("", "v"), store.core.put("k", "v" * (1 << 20) + "v"), store.core.batch()):
        with pytest.raises(LocalProtocolError):
            store.script.hold(steps)
    with pytest.raises(TypeError, match="value is text or bytes"):
        store.script.hold(store.core.put("k", 1))  # type: ignore[arg-type]
    assert store.asked == []


def test_a_read_that_fails_goes_to_the_next_member_which_is_asked_first_from_then_on() -> None:
    def found(address: str, request: Command) -> Command:
        return request.reply(ResponseCode.SUCCESS, body=encode_found(Status.OK, [b"v"]))

    store = Store(away, refused(NOT_LEADER), found)
    assert store.script.hold(store.core.get("k")) == b"v"
    assert store.script.hold(store.core.get("k")) == b"v"
    assert [address for address, _ in store.asked] == ["a:1", "b:1", "c:1", "c:1"]


def test_a_long_scan_is_read_in_pages_each_behind_the_last_key() -> None:
    rows = {b"%04d" % number: b"v" for number in range(2500)}

    def page(address: str, request: Command) -> Command:
        _status, (start, _end) = decode_found(b"\0" + request.body)
        keys = [key for key in rows if key >= (start or b"")][: int(request.ext["limit"])]
        return request.reply(
            ResponseCode.SUCCESS,
            body=encode_found(Status.OK, [each for key in keys for each in (key, rows[key])]),
        )

    store = Store(page)
    assert store.script.hold(store.core.scan()) == list(rows.items())
    assert [each.ext["limit"] for _address, each in store.asked] == ["1000"] * 4
    assert len(store.script.hold(store.core.scan("1000", limit=3))) == 3


def test_a_child_process_has_a_session_of_its_own() -> None:
    store = Store(ok)
    store.script.hold(store.core.put("k", "v"))
    store.core.renew()
    store.script.hold(store.core.put("k", "v"))
    assert store.numbers == [("7", "1", "1"), ("8", "1", "1")]


def test_a_long_range_is_deleted_until_less_than_the_most_was_deleted() -> None:
    def deleted(count: int) -> Answer:
        return lambda address, request: outcome(request, Status.OK, Count(count))

    store = Store(deleted(RANGE_KEYS_MAX), deleted(RANGE_KEYS_MAX), deleted(7))
    assert store.script.hold(store.core.delete_range("a", "b")) == 2 * RANGE_KEYS_MAX + 7
    assert [seq for _session, seq, _lowest in store.numbers] == ["1", "2", "3"]


def test_members_that_serve_no_region_are_not_asked() -> None:
    store = Store(away)
    store.without = ("b:1",)
    with pytest.raises(Unreachable):
        store.script.hold(store.core.get("k"))
    assert {address for address, _ in store.asked} == {"a:1", "c:1"}


def test_after_a_round_of_failures_members_are_looked_up_anew() -> None:
    store = Store(away, away, away, ok)
    store.script.hold(store.core.put("k", "v"))
    assert store.looks == 6, "three members, twice"


def test_members_that_were_known_are_asked_on_where_no_name_server_knows_any() -> None:
    store = Store(ok)
    store.script.hold(store.core.put("k", "v"))
    known = CLUSTER["brokerAddrTable"].pop("g")
    try:
        store._writes = [away, away, away, ok]
        store.script.hold(store.core.put("k", "w"))
    finally:
        CLUSTER["brokerAddrTable"]["g"] = known


def test_what_was_asked_apart_goes_together_and_a_refusal_is_of_those_alone_that_it_is_due_to() -> None:
    def full_for_large(address: str, request: Command) -> Command:
        operations = decode_operations(request.body)
        if any(isinstance(each, Put) and len(each.value) > 10 for each in operations):
            return outcome(request, Status.FULL)
        return outcome(request, Status.OK, *(Count(1) for _ in operations))

    store = Store(full_for_large)
    small = [Put(b"a", b"1"), Put(b"b", b"2")]
    assert store.script.hold(store.core.write_each(small)) == [Count(1), Count(1)]
    assert len(store.asked) == 1
    outcomes = store.script.hold(store.core.write_each([small[0], Put(b"c", b"x" * 11), small[1]]))
    assert outcomes[::2] == [Count(1), Count(1)] and isinstance(outcomes[1], Rejected)
    assert len(store.asked) == 1 + 1 + 3


def test_a_write_together_of_which_nobody_knows_the_outcome_is_unknown_to_each() -> None:
    store = Store(lost)
    outcomes = store.script.hold(store.core.write_each([Put(b"a", b"1"), Put(b"b", b"2")]))
    assert [type(each) for each in outcomes] == [OutcomeUnknown] * 2


def test_values_too_large_for_one_answer_are_read_one_by_one() -> None:
    def large(address: str, request: Command) -> Command:
        keys = decode_values(request.body)
        if len(keys) > 1:
            return request.reply(ResponseCode.SUCCESS, body=encode_found(Status.TOO_LARGE))
        return request.reply(ResponseCode.SUCCESS, body=encode_found(Status.OK, [b"v" + (keys[0] or b"")]))

    store = Store(large)
    assert store.script.hold(store.core.read_each([b"a", b"b", b"a"])) == [b"va", b"vb", b"va"]


def test_a_member_that_the_group_has_left_out_is_not_read_from_although_it_answers() -> None:
    store = Store(
        lambda address, request: request.reply(ResponseCode.SUCCESS, body=encode_found(Status.OK, [b"v"]))
    )
    store.configurations = {
        "a:1": ("n0", 9, "n0 n1"),
        "b:1": ("n1", 9, "n0 n1"),
        "c:1": ("n2", 4, "n0 n1 n2"),
    }
    store.core = KvCore("ns:9876", clock=store.script.clock, timeout_s=10.0, broker=None, start=2)
    for _ in range(3):
        assert store.script.hold(store.core.get("k", unsafe=True)) == b"v"
        store.core._reader += 1
    assert {address for address, _ in store.asked} == {"a:1", "b:1"}


def test_a_lease_that_no_store_grants_is_refused_with_a_number_that_can_be_read() -> None:
    store = Store(ok)
    with pytest.raises(LocalProtocolError, match=r"^a lease lasts at most 86400 s, and not 1e\+300$"):
        store.script.hold(store.core.acquire("lock", lease=1e300))
