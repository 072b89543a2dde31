"""Orders that are announced if, and only if, they are in the database.

    python examples/transactions.py [NAME_SERVER]

The message is stored first, where nobody reads it; then the order is written; then the message is let go. Whatever dies
in between, the broker asks, and the database knows.
"""

import sqlite3
import sys
import threading

from ropewalk import Message, Outcome, PushConsumer, ReceivedMessage, TransactionProducer

name_server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("create table orders (id text primary key, goods text)")
lock = threading.Lock()
announced: list[str] = []
done = threading.Event()


def order(number: str, goods: str) -> None:
    with lock, database:
        database.execute("insert into orders values (?, ?)", (number, goods))


def on_check(message: ReceivedMessage) -> Outcome:
    """Asked by the broker about an order of which it has not heard: in this process, or one started since."""
    with lock:
        found = database.execute("select 1 from orders where id = ?", (message.keys[0],)).fetchone()
    return Outcome.COMMIT if found else Outcome.ROLLBACK


def announce(message: ReceivedMessage) -> None:
    announced.append(message.body.decode())
    if len(announced) == 2:
        done.set()


with TransactionProducer(on_check, name_server, group="shop", topics=["new-orders"]) as producer:
    with producer.transaction("new-orders", Message(b"2 chairs", keys="7")):
        order("7", "2 chairs")

    try:
        with producer.transaction("new-orders", Message(b"1 unicorn", keys="8")):
            raise LookupError("we sell no unicorns")
    except LookupError as exc:
        print(f"order 8: {exc}")

    with producer.transaction("new-orders", Message(b"1 table", keys="9")) as transaction:
        order("9", "1 table")
        transaction.leave()  # as if this program had died here

    with PushConsumer("delivery", {"new-orders": "*"}, announce, name_server, consume_from="earliest"):
        done.wait(60)
print("announced:", ", ".join(announced))
