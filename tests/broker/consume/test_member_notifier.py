"""Members of changed groups: each is told once, and of each of its groups."""

from tests.broker.harness import InProcess, told


def test_a_thousand_that_join_together_are_each_told_once(running: InProcess) -> None:
    clients = [running.connect() for _ in range(1000)]
    for n, client in enumerate(clients):
        client.heartbeat(client_id=f"c{n}")
    for _ in range(4):  # some hundreds of them a tick
        running.tick(50)
    assert all(len(client.answers()) == 1 for client in clients)
    for client in clients[:999]:
        client.disconnect()
    found = [group for _ in range(5) for group in told(clients[999])]
    assert found == ["cg"]
    running.tick(50)
    assert all(client.answers() == [] for client in clients)


def test_news_about_several_groups_are_told_for_each(running: InProcess) -> None:
    client = running.connect()
    client.heartbeat(group="g1")
    client.heartbeat(group="g2")
    assert told(client) == ["g1", "g2"]
