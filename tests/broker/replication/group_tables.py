"""The tables of a DLedger group's members: to change them, and to compare them."""

from __future__ import annotations

from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from ropewalk.format import names
from tests.support.ledger_brokers import LedgerBrokers, Member


def tables(member: Member) -> tuple[object, ...]:
    """Return the tables that a member would serve as the leader."""
    broker = member.broker
    return (
        {each.name: each for each in broker.topics if each.name not in names.HIDDEN_TOPICS},
        broker.groups.to_wrapper()["subscriptionGroupTable"],
        broker.groups.to_wrapper()["forbiddenTable"],
        {(topic, group): queues for topic, group, queues in broker.offsets.pairs(1 << 30) if queues},
    )


def until_equal(group: LedgerBrokers) -> None:
    def same() -> bool:
        first, *others = [tables(member) for member in group.members.values()]
        return all(each == first for each in others)

    group.until(same, lambda: "\n".join(str(tables(member)) for member in group.members.values()))


def change_all(leader: Member, number: int) -> None:
    """Change each table of the leader in one turn."""
    broker, now = leader.broker, leader.broker.context.now_ms()
    assert leader.connect().send("Wide", b"x", queueId=0, defaultTopicQueueNums=4).code == 0
    assert broker.topics.update(TopicConfig(f"Made{number}", 3, 3), now)
    broker.groups.update(SubscriptionGroupConfig(f"g{number}"), now)
    broker.groups.set_forbidden(f"g{number}", "Wide", 2, now)
    broker.offsets.commit(f"g{number}", "Wide", 0, number)
    broker.offsets.commit("g", "Wide", 0, number)
