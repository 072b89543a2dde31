"""Testing a program that sends: a real broker inside pytest, with names that no other test has.

    pytest examples/test_orders.py

The fixtures come with ropewalk; nothing has to be started or configured.
"""

from ropewalk import Message, Producer
from ropewalk.testing import RopewalkBroker


def announce(order: int, amount: int, *, name_server: str, topic: str) -> None:
    """The program under test."""
    with Producer(name_server, group="shop") as producer:
        producer.send(topic, Message(b"%d" % amount, keys=f"order-{order}", tags="paid"))


def test_a_paid_order_is_announced(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic("orders")
    announce(7, 250, name_server=ropewalk_broker.namesrv, topic=topic)
    (record,) = ropewalk_broker.messages(topic, 1)
    assert record.body == b"250" and record.properties["KEYS"] == "order-7"


def test_nothing_is_announced_without_an_order(ropewalk_broker: RopewalkBroker) -> None:
    assert ropewalk_broker.messages(ropewalk_broker.topic("orders")) == []
