"""Transactions over a failover: what the old master had open, the promoted slave checks, and decides once."""

from pathlib import Path

import pytest

from ropewalk import Message, Outcome, ReceivedMessage, TransactionProducer
from tests.ha.process_group import BROKER, Group, group_of


class Shop:
    """The outcomes that `on_check` answers with, and when it was asked."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.times: dict[str, list[int]] = {}

    def on_check(self, message: ReceivedMessage) -> Outcome:
        name = message.body.decode()
        self.times.setdefault(name, []).append(int(message.properties["TRANSACTION_CHECK_TIMES"]))
        return self.outcomes.get(name, Outcome.UNKNOWN)


def delivered(group: Group, names: set[str]) -> list[str]:
    """Return everything in the topic, once all of these are there."""
    group.until(lambda: names <= {body.decode() for body in group.consume("T")}, f"{names} delivered")
    return sorted(body.decode() for body in group.consume("T"))


@pytest.mark.slow
@pytest.mark.parametrize("kill", [True, False])
def test_a_promoted_slave_takes_the_checks_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    shop = Shop()
    monkeypatch.setenv("ROPEWALK_TRANSACTION_TIME_OUT", "500")
    monkeypatch.setenv("ROPEWALK_TRANSACTION_CHECK_INTERVAL", "500")
    monkeypatch.setenv("ROPEWALK_TRANSACTION_CHECK_MAX", "1000")
    with group_of(tmp_path, "b") as group:
        producer = TransactionProducer(shop.on_check, group.namesrv, group="shop", topics=["T"])
        with producer:
            for n in range(6):
                with producer.transaction("T", Message(b"held%d" % n)) as transaction:
                    transaction.leave()
            with producer.transaction("T", b"done"):
                pass
            with pytest.raises(ZeroDivisionError), producer.transaction("T", b"never"):
                raise ZeroDivisionError
            group.until(lambda: len(shop.times.get("held5", ())) >= 2, "checked twice")
            counted = shop.times["held5"][-1]
            if kill:
                group.kill("a")
                group.admin("failover", BROKER)
            else:
                group.admin("switch", BROKER)
            group.until(lambda: shop.times["held5"][-1] > counted, "checked by the promoted slave")
            for n in range(6):
                shop.outcomes[f"held{n}"] = Outcome.ROLLBACK if n % 2 else Outcome.COMMIT
            expected = {"done", "held0", "held2", "held4"}
            assert delivered(group, expected) == sorted(expected)
            if kill:
                group.start("a")
            group.until_followed("b")
            with producer.transaction("T", b"after") as transaction:
                pass
            assert transaction.confirmed
            assert delivered(group, {"after"}) == sorted(expected | {"after"})
        assert shop.times["held5"] == sorted(set(shop.times["held5"])), "a count fell back"
