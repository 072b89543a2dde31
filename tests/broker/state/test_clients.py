"""Who is connected: members, subscriptions, whom to tell, and what a stranger can make us keep."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.state import client_sizes, clients
from broker.state.clients import PRODUCER_GROUPS_MAX, ClientRegistry
from broker.state.heartbeat import (
    BROADCASTING,
    CLUSTERING,
    GROUPS_PER_CLIENT_MAX,
    ConsumerData,
    HeartbeatData,
    HeartbeatRefused,
)
from broker.state.subscription import SubscriptionData

JAVA_HEARTBEAT = (
    b'{"clientID":"10.0.0.1@12#345","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":'
    b'[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA",'
    b'"subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,'
    b'"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
)


def consumer(group: str = "g", *topics: str, version: int = 1, model: str = CLUSTERING) -> ConsumerData:
    wishes = tuple(
        SubscriptionData.parse(topic, expression, version=version)
        for topic, _, expression in (entry.partition(":") for entry in topics or ("T",))
    )
    return ConsumerData(group, message_model=model, subscriptions=wishes)


def beat(client_id: str = "c", *consumers: ConsumerData, producers: tuple[str, ...] = ()) -> HeartbeatData:
    return HeartbeatData(client_id, consumers, producers)


def told(registry: ClientRegistry, groups: list[str]) -> list[object]:
    return [peer for group in groups for peer in registry.members_of(group)]


class TestMembers:
    def test_every_member_is_told_of_a_new_one_and_so_is_the_newcomer(self) -> None:
        registry = ClientRegistry()
        assert told(registry, registry.heartbeat("p1", beat("c1", consumer()), 0)) == ["p1"]
        assert told(registry, registry.heartbeat("p2", beat("c2", consumer()), 0)) == ["p1", "p2"]
        assert registry.consumer_ids("g") == ["c1", "c2"]

    def test_a_heartbeat_that_changes_nothing_tells_nobody(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer()), 0)
        assert registry.heartbeat("p1", beat("c1", consumer()), 30_000) == []

    def test_another_set_of_topics_is_told_and_a_new_expression_is_not(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer("g", "T:TagA", version=1)), 0)
        assert registry.heartbeat("p1", beat("c1", consumer("g", "T:TagB", version=2)), 1) == []
        assert told(
            registry, registry.heartbeat("p1", beat("c1", consumer("g", "T", "U", version=3)), 2)
        ) == ["p1"]
        assert told(registry, registry.heartbeat("p1", beat("c1", consumer("g", "U", version=4)), 3)) == [
            "p1"
        ]

    def test_members_of_a_broadcasting_group_are_told_nothing(self) -> None:
        registry = ClientRegistry()
        for peer in ("p1", "p2"):
            assert registry.heartbeat(peer, beat(peer, consumer(model=BROADCASTING)), 0) == []
        assert registry.closed("p1") == []
        assert registry.consumer_ids("g") == ["p2"]

    def test_a_group_whose_configuration_forbids_it_is_told_nothing(self) -> None:
        registry = ClientRegistry(lambda group: group != "quiet")
        data = beat("c1", consumer("quiet"), consumer("loud"))
        assert registry.heartbeat("p1", data, 0) == ["loud"]

    def test_a_closed_connection_leaves_at_once_and_the_rest_is_told(self) -> None:
        registry = ClientRegistry()
        for n in (1, 2, 3):
            registry.heartbeat(f"p{n}", beat(f"c{n}", consumer(), producers=("pg",)), 0)
        assert told(registry, registry.closed("p2")) == ["p1", "p3"]
        assert registry.consumer_ids("g") == ["c1", "c3"]
        assert set(registry.producer_members("pg")) == {"p1", "p3"}
        assert registry.closed("p2") == []
        assert (registry.producer("c1"), registry.producer("c2")) == ("p1", None)
        registry.closed("p1")
        registry.closed("p3")
        assert registry.producer_groups() == [], "a group lasts as long as its producers"

    def test_a_closed_connection_is_never_told_about_its_other_groups(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer("g"), consumer("h")), 0)
        registry.heartbeat("p2", beat("c2", consumer("g"), consumer("h")), 0)
        assert registry.closed("p1") == ["g", "h"]

    def test_the_last_member_takes_the_group_and_its_subscriptions_along(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer()), 0)
        assert registry.subscription("g", "T") is not None
        assert registry.closed("p1") == []
        assert registry.consumer_ids("g") == []
        assert registry.consumer_group("g") is None
        assert registry.subscription("g", "T") is None
        assert registry.client_count == 0

    def test_unregistering_leaves_one_group_and_keeps_the_others(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer("g"), consumer("h"), producers=("pg", "qg")), 0)
        registry.heartbeat("p2", beat("c2", consumer("g")), 0)
        assert told(registry, registry.unregister("p1", consumer_group="g", producer_group="pg")) == ["p2"]
        assert registry.consumer_ids("g") == ["c2"] and registry.consumer_ids("h") == ["c1"]
        assert registry.producer_groups() == ["qg"]
        assert registry.unregister("p1", consumer_group="never") == []
        assert registry.unregister("stranger", consumer_group="g") == []
        registry.unregister("p1", consumer_group="h", producer_group="qg")
        assert registry.client_count == 1

    def test_a_connection_that_changes_its_client_id_replaces_its_entry_and_is_news(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("old", consumer()), 0)
        assert told(registry, registry.heartbeat("p1", beat("new", consumer()), 1)) == ["p1"]
        assert registry.consumer_ids("g") == ["new"]

    def test_one_client_id_on_two_connections_is_two_entries_listed_once_and_reported(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("same", consumer()), 0)
        registry.heartbeat("p2", beat("same", consumer()), 0)
        group = registry.consumer_group("g")
        assert group is not None and list(group.members) == ["p1", "p2"]
        assert registry.consumer_ids("g") == ["same"]
        (finding,) = registry.take_findings()
        assert "same" in finding and "two connections" in finding
        registry.closed("p1")
        assert registry.consumer_ids("g") == ["same"]

    def test_type_and_model_are_those_of_the_last_heartbeat(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer(model=CLUSTERING)), 0)
        registry.heartbeat("p2", beat("c2", consumer(model=BROADCASTING)), 0)
        group = registry.consumer_group("g")
        assert group is not None and group.message_model == BROADCASTING


class TestSubscriptions:
    def test_only_a_newer_version_replaces_what_a_member_says(self) -> None:
        registry = ClientRegistry()
        for peer, version, tag, kept in (
            ("p1", 5, "A", "A"), ("p2", 4, "B", "A"), ("p2", 5, "C", "A"), ("p2", 6, "D", "D"), ("p1", 5, "A", "D"),
        ):  # fmt: skip
            registry.heartbeat(peer, beat(peer, consumer("g", f"T:{tag}", version=version)), 0)
            wish = registry.subscription("g", "T")
            assert wish is not None and wish.expression == kept, (peer, version, tag)

    def test_what_nobody_says_any_more_is_replaced_by_whatever_comes(self) -> None:
        """A clock that is behind must not have its client filtered by the wish of one that has gone."""
        registry = ClientRegistry()

        def counts() -> str:
            wish = registry.subscription("g", "T")
            assert wish is not None
            return wish.expression

        registry.heartbeat("ahead", beat("ahead", consumer("g", "T:A", version=900)), 0)
        registry.heartbeat("behind", beat("behind", consumer("g", "T:B", version=5)), 0)
        assert counts() == "A"
        assert any("behind subscribes to T:B, ahead to T:A" in each for each in registry.take_findings())
        registry.closed("ahead")
        registry.heartbeat("behind", beat("behind", consumer("g", "T:B", version=5)), 0)
        assert counts() == "B"
        registry.heartbeat("behind", beat("behind", consumer("g", "T:C", version=4)), 0)
        assert counts() == "C", "a client whose clock was set back says something else"
        group = registry.consumer_group("g")
        assert group is not None and len(group.stated) == 1

    def test_versions_are_milliseconds_and_wider_than_32_bits(self) -> None:
        registry = ClientRegistry()
        for version, tag in ((1_700_000_000_000, "A"), (1_700_000_000_001, "B")):
            registry.heartbeat("p1", beat("c1", consumer("g", f"T:{tag}", version=version)), 0)
        wish = registry.subscription("g", "T")
        assert wish is not None and wish.expression == "B"

    def test_topics_that_are_no_longer_mentioned_are_removed(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer("g", "T", "U")), 0)
        registry.heartbeat("p1", beat("c1", consumer("g", "U", "V")), 1)
        group = registry.consumer_group("g")
        assert group is not None and sorted(group.subscriptions) == ["U", "V"]

    def test_the_short_heartbeat_leaves_subscriptions_alone(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer("g", "T")), 0)
        short = HeartbeatData("c1", (ConsumerData("g"),), without_sub=True)
        assert registry.heartbeat("p1", short, 100_000) == []
        assert registry.subscription("g", "T") is not None
        assert registry.expire(200_000) == ([], [])

    def test_members_that_subscribe_differently_are_reported_once_per_change(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer("g", "T:TagA")), 0)
        registry.heartbeat("p2", beat("c2", consumer("g", "T:TagB")), 0)
        (finding,) = registry.take_findings()
        assert "c2 subscribes to T:TagB, c1 to T:TagA" in finding
        for now_ms in (1, 2):
            registry.heartbeat("p1", beat("c1", consumer("g", "T:TagA")), now_ms)
            registry.heartbeat("p2", beat("c2", consumer("g", "T:TagB")), now_ms)
        assert registry.take_findings() == []
        group = registry.consumer_group("g")
        assert group is not None and len(group.conflicts()) == 1
        registry.heartbeat("p2", beat("c2", consumer("g", "T:TagA", version=2)), 3)
        assert registry.take_findings() == [] and group.conflicts() == []
        assert registry.conflicts == {"subscription": 1}

    def test_every_member_that_disagrees_with_another_is_told_with_its_own_heartbeat(self) -> None:
        registry = ClientRegistry()
        for name, wish in (("c1", "T:a"), ("c2", "T:a"), ("c3", "T:b")):
            registry.heartbeat(name, beat(name, consumer("g", wish)), 0)
        registry.heartbeat("c4", beat("c4", consumer("h", "T:a")), 0)
        assert registry.conflict_of("c4", ["h"]) is None and registry.conflict_of("c4", ["g", "x"]) is None
        for name, words in (
            ("c1", "c1 subscribes to T:a, c3 to T:b"),
            ("c2", "c2 subscribes to T:a, c3 to T:b"),
            ("c3", "c3 subscribes to T:b, c1 to T:a"),
        ):
            told = registry.conflict_of(name, ["x", "g"])
            assert told is not None and words in told and "until all members agree" in told
        registry.closed("c3")
        assert registry.conflict_of("c1", ["g"]) is None

    def test_two_connections_of_one_client_id_are_counted(self) -> None:
        registry = ClientRegistry()
        for peer in ("p1", "p2"):
            registry.heartbeat(peer, beat("c1", consumer("g", "T")), 0)
            registry.heartbeat(peer, beat("c1", consumer("g", "T")), 1)
        assert registry.conflicts == {"client_id": 1}

    def test_findings_are_bounded(self) -> None:
        registry = ClientRegistry()
        for n in range(500):
            registry.heartbeat(n, beat("same", consumer()), 0)
        assert 0 < len(registry.take_findings()) <= 100

    def test_the_groups_of_a_topic_are_those_that_subscribe_to_it_now(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer("g", "T"), consumer("h", "U")), 0)
        assert registry.groups_subscribed_to("T") == ["g"]
        assert registry.groups_subscribed_to("X") == []


class TestExpiry:
    def test_two_minutes_of_silence_end_a_registration_and_the_connection(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer(), producers=("pg",)), 0)
        registry.heartbeat("p2", beat("c2", consumer()), 60_000)
        assert registry.expire(120_000) == ([], [])
        dead, changed = registry.expire(120_001)
        assert dead == ["p1"] and told(registry, changed) == ["p2"]
        assert registry.consumer_ids("g") == ["c2"] and registry.producer_groups() == []
        assert registry.expire(120_002) == ([], [])

    def test_the_dead_are_told_nothing_when_all_die_at_once(self) -> None:
        registry = ClientRegistry()
        for n in range(3):
            registry.heartbeat(n, beat(f"c{n}", consumer()), 0)
        assert registry.expire(1_000_000) == ([0, 1, 2], [])
        assert registry.client_count == 0

    def test_a_client_that_stopped_naming_one_group_loses_that_group_and_stays_connected(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1", consumer("g"), consumer("h")), 0)
        registry.heartbeat("p2", beat("c2", consumer("h")), 100_000)
        registry.heartbeat("p1", beat("c1", consumer("g")), 100_000)
        dead, changed = registry.expire(150_000)
        assert (dead, changed) == ([], ["h"])
        assert registry.consumer_ids("g") == ["c1"] and registry.consumer_ids("h") == ["c2"]


class TestBounds:
    def test_one_connection_cannot_collect_groups_over_many_heartbeats(self) -> None:
        registry = ClientRegistry()
        producers = tuple(f"p{n}" for n in range(GROUPS_PER_CLIENT_MAX))
        registry.heartbeat("p1", beat("c1", producers=producers), 0)
        with pytest.raises(HeartbeatRefused, match="one connection"):
            registry.heartbeat("p1", beat("c1", consumer("g"), producers=("another",)), 1)
        assert registry.consumer_ids("g") == []
        assert len(registry.producer_groups()) == GROUPS_PER_CLIENT_MAX

    def test_many_connections_cannot_invent_producer_groups_without_end(self) -> None:
        registry = ClientRegistry()
        for peer in range(PRODUCER_GROUPS_MAX // GROUPS_PER_CLIENT_MAX):
            names = tuple(f"{peer}-{n}" for n in range(GROUPS_PER_CLIENT_MAX))
            registry.heartbeat(peer, beat("c", producers=names), 0)
        with pytest.raises(HeartbeatRefused, match="already knows"):
            registry.heartbeat("late", beat("c", producers=("one-more",)), 0)
        registry.heartbeat("late", beat("c", producers=("0-0",)), 0)

    def test_a_heartbeat_that_names_no_group_keeps_nothing(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c1"), 0)
        assert registry.client_count == 0


def from_heartbeat(topic: str, expression: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData.from_json({"subString": expression, "subVersion": version}, topic)


def tags(prefix: object, count: int = 1_000) -> str:
    return "||".join(f"{prefix}-{n}" for n in range(count))


class TestBytes:
    """A stranger's connections each announce thousands of tags, which were kept with no bound over all of them."""

    def test_equal_subscriptions_of_many_members_count_once(self) -> None:
        registry = ClientRegistry()
        for peer in range(100):
            wish = from_heartbeat("T", tags("a") + " " * (peer % 2))
            registry.heartbeat(peer, beat(f"c{peer}", ConsumerData("g", subscriptions=(wish,))), 0)
        group = registry.consumer_group("g")
        assert group is not None
        assert len({id(each.subscriptions[0].codes) for each in group.members.values()}) == 2
        assert registry.sizes.size < 100 * 2_000 + 2 * 500_000
        for peer in range(100):
            registry.closed(peer)
        assert registry.sizes.size == 0

    def test_a_heartbeat_that_is_repeated_keeps_nothing_new(self) -> None:
        registry = ClientRegistry()
        kept = []
        for at_ms in range(3):
            large = ConsumerData("g", subscriptions=(from_heartbeat("T", tags("a")),))
            registry.heartbeat("p1", beat("c", large, producers=("p",)), at_ms)
            group = registry.consumer_group("g")
            assert group is not None
            kept.append((id(group.members["p1"].subscriptions), registry.sizes.size))
        assert len(set(kept)) == 1
        small = ConsumerData("g", subscriptions=(from_heartbeat("T", "*", 2),))
        registry.heartbeat("p1", beat("c", small), 4)
        assert registry.sizes.size < 5_000
        wish = registry.subscription("g", "T")
        assert wish is not None and wish.expression == "*"

    def test_when_all_bytes_are_taken_the_connection_with_most_of_the_address_with_most_goes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_sizes, "SIZE_MAX", 4 << 20)
        registry = ClientRegistry()
        asked = []
        registry.pressed = lambda: asked.append(1)
        honest = [Peer("10.0.0.1", n) for n in range(200)] + [Peer("10.0.0.9", n) for n in range(20)]
        for peer in honest:
            registry.heartbeat(peer, beat(f"c{peer}", consumer("g", "T:A||B||C")), 0)
        strangers = [Peer("10.0.0.9", 1_000 + n) for n in range(10)]
        for peer in strangers:
            data = beat(f"s{peer}", ConsumerData("s", subscriptions=(from_heartbeat("T", tags(peer)),)))
            registry.heartbeat(peer, data, 0)
        assert asked, "room is wanted"
        closed = [peer for dead, _changed in registry.make_room() for peer in dead]
        assert closed and set(closed) < set(strangers)
        assert registry.sizes.size <= 4 << 20
        assert registry.consumer_ids("g") == [f"c{peer}" for peer in honest]

    def test_beyond_the_bound_a_heartbeat_is_refused_until_there_is_room(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry = ClientRegistry()
        registry.heartbeat("p1", beat("c", consumer("g", "T")), 0)
        monkeypatch.setattr(client_sizes, "SIZE_MAX", 500)
        with pytest.raises(HeartbeatRefused, match="try again in a moment"):
            registry.heartbeat("p2", beat("c", consumer("g", "T")), 0)

    def test_a_table_keeps_no_large_subscription_of_a_member_that_has_gone(self) -> None:
        """A stranger's second, small member kept what its first one had sent."""
        registry = ClientRegistry()
        large = ConsumerData("g", subscriptions=(from_heartbeat("T", tags("a"), 9),))
        registry.heartbeat("p1", beat("c1", large), 0)
        registry.heartbeat("p2", beat("c2", consumer("g", "T:B")), 0)
        registry.closed("p1")
        wish = registry.subscription("g", "T")
        assert wish is not None and wish.expression == "B"

    def test_one_group_has_a_thousand_subscriptions_and_no_more(self) -> None:
        entry = b'{"topic":"T%d","subString":"*"}'
        for count, is_read in ((1_000, True), (1_001, False)):
            topics = b",".join(entry % n for n in range(count))
            body = (
                b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[%b]}]}' % topics
            )
            if is_read:
                assert len(HeartbeatData.decode(body).consumers[0].subscriptions) == 1_000
            else:
                with pytest.raises(HeartbeatRefused, match="1001 subscriptions of one group"):
                    HeartbeatData.decode(body)


class TestSteps:
    """A stranger's connection is in a thousand groups, and so are a hundred others."""

    def test_the_end_of_a_connection_in_a_thousand_groups_is_taken_in_steps(self) -> None:
        registry = ClientRegistry()
        consumers = [consumer(f"g{n}") for n in range(GROUPS_PER_CLIENT_MAX)]
        names = tuple(f"p{n}" for n in range(GROUPS_PER_CLIENT_MAX))
        for peer in ("stays", "goes"):
            registry.heartbeat(peer, beat(peer, *consumers, producers=names), 0)
        changed: list[str] = []
        left = []
        for _ in registry.closed_in_slices("goes", changed):
            left.append(sum(len(registry.members_of(f"g{n}")) for n in range(GROUPS_PER_CLIENT_MAX)))
        assert len(left) == 40
        assert max(before - after for before, after in pairwise([2_000, *left])) <= 50
        assert changed == [f"g{n}" for n in range(GROUPS_PER_CLIENT_MAX)]
        assert registry.client_count == 1

    def test_the_look_at_all_clients_is_taken_in_steps(self) -> None:
        registry = ClientRegistry()
        for peer in range(2_000):
            registry.heartbeat(peer, beat(f"c{peer}", consumer("g"), consumer("h")), 0)
        dead = [some for some, _changed in registry.expire_in_slices(1_000_000)]
        assert len(dead) > 10 and max(map(len, dead)) <= 200
        assert sum(map(len, dead)) == 2_000

    def test_members_of_a_thousand_groups_are_compared_some_thousand_times_and_no_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry = ClientRegistry()
        for peer in range(30):
            registry.heartbeat(peer, beat(f"c{peer}", *(consumer(f"g{n}") for n in range(200))), 0)
        compared = 0
        agree = clients._agree

        def counted(one: clients.Member, other: clients.Member) -> bool:
            nonlocal compared
            compared += 1
            return agree(one, other)

        monkeypatch.setattr(clients, "_agree", counted)
        assert registry.conflict_of(3, [f"g{n}" for n in range(200)]) is None
        assert 500 < compared <= 2_000


@dataclass(frozen=True)
class Peer:
    """A connection from an address."""

    peer_host: str
    port: int


class TestWhatToolsAreTold:
    def test_the_consumer_connection_list(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat(
            "p1",
            HeartbeatData.decode(JAVA_HEARTBEAT),
            0,
            language="GO",
            version=317,
            address="10.0.0.1:5555",
        )
        group = registry.consumer_group("g")
        assert group is not None
        assert [member.to_json() for member in group.members.values()] == [
            {
                "clientAddr": "10.0.0.1:5555",
                "clientId": "10.0.0.1@12#345",
                "language": "GO",
                "version": 317,
            }
        ]
        assert group.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
        assert group.subscriptions["T"].to_json()["codeSet"] == [2598919]

    def test_a_producer_that_came_back_stays_known_when_its_old_connection_ends(self) -> None:
        registry = ClientRegistry()
        registry.heartbeat("old", beat("c", producers=("pg",)), 0)
        registry.heartbeat("new", beat("c", producers=("pg",)), 1)
        registry.closed("old")
        assert registry.producer("c") == "new"
        registry.unregister("new", producer_group="pg")
        assert registry.producer("c") is None


steps = st.lists(
    st.tuples(
        st.sampled_from(["beat", "unregister", "close", "expire"]),
        st.integers(0, 3),
        st.sets(st.sampled_from(["g", "h", "i"])),
        st.integers(0, 200_000),
    ),
    max_size=30,
)


@given(steps)
@example([("beat", 1, {"g"}, 0), ("beat", 0, {"g"}, 0), ("beat", 0, {"h"}, 120_001), ("expire", 0, set(), 0)])
def test_any_story_agrees_with_a_table_of_connection_group_and_time(
    story: list[tuple[str, int, set[str], int]],
) -> None:
    """The dumb registry: (peer, group) -> last time. Its pairs are the members, and only they are told."""
    registry, dumb, now_ms = ClientRegistry(), dict[tuple[int, str], int](), 0
    for action, peer, groups, wait_ms in story:
        now_ms += wait_ms
        changed: list[str] = []
        if action == "beat":
            data = beat(f"c{peer}", *(consumer(group) for group in sorted(groups)))
            changed = registry.heartbeat(peer, data, now_ms)
            dumb |= {(peer, group): now_ms for group in groups}
        elif action == "unregister":
            for group in sorted(groups):
                changed += registry.unregister(peer, consumer_group=group)
                dumb.pop((peer, group), None)
        elif action == "close":
            changed = registry.closed(peer)
            dumb = {pair: seen for pair, seen in dumb.items() if pair[0] != peer}
        else:
            before = {pair[0] for pair in dumb}
            dead, changed = registry.expire(now_ms)
            dumb = {pair: seen for pair, seen in dumb.items() if now_ms - seen <= 120_000}
            assert set(dead) == before - {pair[0] for pair in dumb}
        for group in ("g", "h", "i"):
            assert set(registry.consumer_ids(group)) == {f"c{p}" for p, g in dumb if g == group}
        assert registry.client_count == len({pair[0] for pair in dumb})
        assert all((peer, group) in dumb for group in changed for peer in registry.members_of(group))
        assert bool(registry.sizes.size) == bool(dumb)
