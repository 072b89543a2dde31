"""What a stranger can do that reaches the ports of brokers and of their name server: real brokers, a real stranger.

The stranger speaks every code, registers at the name server as a member of the group, and does not know the secret.
"""

from __future__ import annotations

import itertools
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from tests.broker.harness import send_ext
from tests.support.brokers import address_of, ask, broker, fails, name_server, stderr_of
from tests.support.ports import free_ports
from tests.support.processes import RunningBroker
from tests.support.strangers import Answers, Stranger, packed
from tests.support.waiting import until

SECRET = "a secret of more than sixteen characters"
CHALLENGE, STATUS = RequestCode.ROPEWALK_CHALLENGE, RequestCode.ROPEWALK_MEMBER_STATUS
HELLO, SYNC = RequestCode.ROPEWALK_SLAVE_HELLO, RequestCode.ROPEWALK_SYNC


@contextmanager
def member(
    folder: Path, names: str, number: int, *more: str, secret: str = "", port: int = 0
) -> Iterator[RunningBroker]:
    folder.mkdir(exist_ok=True)
    settings = {
        "listenPort": port,
        "registerNameServerPeriod": 10_000,
        "brokerRole": "SLAVE" if number else "ASYNC_MASTER",
        "brokerId": number,
        "mappedFileSizeCommitLog": 1 << 20,
        "ropewalkSecret": secret,
    }
    words = [f"--set={key}={value}" for key, value in settings.items() if value != ""]
    with broker(folder, "-n", names, *words, *more) as running:
        yield running


def send(master: str) -> Command:
    with Connection(master, 10.0) as connection:
        return ask(connection, RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"body")


def role_of(folder: Path) -> dict[str, Any]:
    path = next(folder.rglob("role.json"), None)
    return json.loads(path.read_text()) if path is not None else {}


def until_joined(slave: Path) -> None:
    until(lambda: "1" in role_of(slave).get("terms", {}).get("slaves", {}), lambda: stderr_of(slave))


def status_of(address: str, **changes: Any) -> dict[str, Any]:
    """What a master of a far newer epoch would say of itself."""
    return {
        "broker_name": "broker-a", "broker_id": 0, "address": address, "role": "ASYNC_MASTER", "epoch": 1000,
        "reign": 1000, "begin": 0, "end": 1 << 40, "ha_address": address, "cluster": "DefaultCluster", **changes,
    }  # fmt: skip


def false_master(challenge: Any, **changes: Any) -> tuple[Answers, list[str]]:
    """Return the answers of a stranger that says it leads; its address is put into the list."""
    where: list[str] = []

    def answers(request: Command) -> Command | None:
        if request.code == CHALLENGE:
            return request.reply(ResponseCode.SUCCESS, body=packed(challenge()))
        if request.code == STATUS:
            return request.reply(ResponseCode.SUCCESS, body=packed(status_of(where[0], **changes)))
        return None

    return answers, where


def sixteen() -> dict[str, Any]:
    return {"challenge": secrets.token_bytes(16), "version": "0.1.0"}


def version2() -> dict[str, Any]:
    """The challenge of a stranger that pretends to prove its answers."""
    return sixteen() | {
        "version2": secrets.token_bytes(32),
        "cluster": "DefaultCluster",
        "broker_name": "broker-a",
    }


@pytest.mark.parametrize(
    ("secret", "challenge"),
    [(SECRET, sixteen), (SECRET, version2), ("", dict)],
    ids=["of an older release", "without proofs", "no secret"],
)
def test_a_stranger_that_registers_at_the_name_server_becomes_nobodys_master(
    tmp_path: Path, secret: str, challenge: Any
) -> None:
    """It said that it led epoch 1000, and master and slave followed it, over restarts too, and took its log."""
    answers, where = false_master(challenge)
    with (
        name_server(tmp_path) as names,
        Stranger(answers) as stranger,
        member(tmp_path / "m", names, 0, secret=secret) as master,
        member(tmp_path / "s", names, 1, secret=secret),
    ):
        where.append(stranger.address)
        assert send(address_of(master)).code == ResponseCode.SUCCESS
        until_joined(tmp_path / "s")
        stranger.register(names, 7)
        until(lambda: stranger.count(CHALLENGE) >= 6)  # by both, again and again
        assert send(address_of(master)).code == ResponseCode.SUCCESS, "the master stood down"
        now = role_of(tmp_path / "m")
        assert (now["role"], now["epoch"], now["reign"]) == ("ASYNC_MASTER", 0, 0)
        assert role_of(tmp_path / "s")["role"] == "SLAVE" and role_of(tmp_path / "s")["reign"] == 0
        for folder in ("m", "s"):
            text = json.dumps(role_of(tmp_path / folder))
            assert stranger.address not in text, f"{folder} keeps the stranger over a restart: {text}"
        assert all("proof" not in each.ext for each in stranger.asked), (
            "a proof of version 1 can be passed on"
        )
        if not secret:
            claims = f"{stranger.address} (epoch 1000) claims to lead this group, and is not followed"
            until(lambda: claims in stderr_of(tmp_path / "m") and claims in stderr_of(tmp_path / "s"))
            assert "set ropewalkMasterAddress here" in stderr_of(tmp_path / "s")


@pytest.mark.parametrize("secret", [SECRET, ""], ids=["secret", "no secret"])
def test_a_stranger_that_takes_the_masters_place_at_the_name_server_gives_no_slave_another_log(
    tmp_path: Path, secret: str
) -> None:
    """The name server tells slaves the address of whoever registered last as id 0."""
    answers, where = false_master(sixteen if secret else dict)
    with (
        name_server(tmp_path) as names,
        Stranger(answers) as stranger,
        member(tmp_path / "m", names, 0, secret=secret) as master,
        member(tmp_path / "s", names, 1, secret=secret) as slave,
    ):
        where.append(stranger.address)
        send(address_of(master))
        until_joined(tmp_path / "s")
        stranger.register(names, 0)
        until(lambda: stranger.count(CHALLENGE) >= 4)
        assert send(address_of(master)).code == ResponseCode.SUCCESS
        ends = [end_of(address_of(each)) for each in (master, slave)]
        until(lambda: end_of(address_of(slave)) == end_of(address_of(master)), lambda: f"{ends}")
        assert stranger.address not in json.dumps(role_of(tmp_path / "s"))


def end_of(address: str) -> str:
    with Connection(address, 10.0) as connection:
        return ask(connection, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}).ext.get("offset", "")


@pytest.mark.parametrize("size", [0, 15, 100, 1000])
def test_no_member_signs_words_of_a_strangers_choice(tmp_path: Path, size: int) -> None:
    """A challenge of another length had a member sign the front of any request to any other member."""
    words = b"\x00" * size
    answers, where = false_master(lambda: {"challenge": words, "version": "0.1.0"})
    with (
        name_server(tmp_path) as names,
        Stranger(answers) as stranger,
        member(tmp_path / "m", names, 0, secret=SECRET) as master,
        member(tmp_path / "s", names, 1, secret=SECRET),
    ):
        where.append(stranger.address)
        until_joined(tmp_path / "s")
        stranger.register(names, 7)
        until(lambda: stranger.count(CHALLENGE) >= 4)
        assert not [each.code for each in stranger.asked if each.ext.keys() & {"proof", "proof2"}]
        assert send(address_of(master)).code == ResponseCode.SUCCESS


def odd_bodies(address: str) -> dict[int, list[bytes]]:
    """Answers that are none, by the code of the question."""
    full = {str(n): "" for n in range(1, 1 << 16)}
    for n in range(1, 1 << 16):
        full[str(n)] = "a:1"
    odd = [b"", b"\xc1", b"\x00" * 100, packed([1, 2]), packed({"epoch": "x"}), b"\x91" * 5000]
    welcome = {"epoch": 0, "begin": 0, "end": 0, "epochs": [], "sums": []}
    sync = {"epoch": 0, "seen": {}, "end": 0, "readable": 0, "time_ms": 0, "terms": {}}
    return {
        CHALLENGE: [b"\xc1", packed({"challenge": 5})],
        STATUS: [
            *odd,
            packed(status_of(address, terms={"role": "SYNC_MASTER", "slaves": full})),
            packed(status_of(address, terms={"role": "nobody"})),
            packed(status_of(address, terms={"slaves": {"x": "a:1"}})),
            packed(status_of(address, terms={"slaves": {"-1": "a:1"}})),
            packed(status_of(address, role="SLAVE", master="no address", reign=-5, epoch=-5)),
            packed(status_of(address, role="SLAVE", master="\N{SNOWMAN}:1", reign=0, epoch=0)),
            packed(status_of(address, role="SLAVE", master="a:99999999999999", reign=0, epoch=0)),
        ],
        HELLO: [
            *odd,
            packed(welcome | {"epochs": [(5, 1), (4, 0)]}),
            packed(welcome | {"epochs": [(-1, -1)], "end": -7}),
            packed(welcome | {"terms": {"role": "SYNC_MASTER", "inSyncReplicas": -3}}),
            packed(welcome | {"sums": [None] * 100, "end": (1 << 63) - 1}),
            packed(welcome | {"ha_address": "nowhere"}),
        ],
        SYNC: [
            *odd,
            packed(sync | {"topics": {"topicConfigTable": 5}}),
            packed(sync | {"topics": {"topicConfigTable": {"T": []}, "dataVersion": 7}}),
            packed(sync | {"groups": {"subscriptionGroupTable": {"g": "x"}, "dataVersion": {}}}),
            packed(sync | {"delays": {"x": -1, "99": 1 << 62}}),
            packed(sync | {"commits": [["", "", -1, -5, -9], ["T", "g", 1 << 40, 1 << 62, 1 << 62]]}),
            packed(sync | {"timers": [-1, -1, -1]}),
        ],
        RequestCode.GET_TIMER_METRICS: [
            b"[",
            b'{"timingCount": 5}',
            b'{"timingCount": {"T": {"count": "x"}}}',
        ],
    }


def test_no_answer_of_a_master_however_odd_ends_its_slave(tmp_path: Path) -> None:
    bodies: dict[int, Iterator[bytes]] = {}
    served: dict[int, int] = {}
    lock = threading.Lock()

    def answers(request: Command) -> Command | None:
        with lock:
            served[request.code] = served.get(request.code, 0) + 1
            if request.code == CHALLENGE and served[CHALLENGE] % 8:
                return request.reply(ResponseCode.SUCCESS, body=packed({}))
            chosen = bodies.get(request.code)
            return None if chosen is None else request.reply(ResponseCode.SUCCESS, body=next(chosen))

    with (
        name_server(tmp_path) as names,
        Stranger(answers) as stranger,
        Stranger(lambda request: None) as silent,
    ):
        found = odd_bodies(stranger.address)
        bodies |= {code: itertools.cycle(each) for code, each in found.items()}
        known = (
            "--set",
            f"ropewalkMasterAddress={stranger.address}",
            "--set",
            f"haMasterAddress={silent.address}",
        )
        with member(tmp_path / "s", names, 1, *known) as slave:
            stranger.register(names, 7)
            wanted = {code: len(each) for code, each in found.items() if code in (STATUS, HELLO, SYNC)}
            until(
                lambda: (
                    all(served.get(code, 0) >= count for code, count in wanted.items())
                    or slave.process.poll() is not None
                ),
                lambda: f"{served} of {wanted}",
            )
            assert slave.process.poll() is None, stderr_of(tmp_path / "s")
            with Connection(address_of(slave), 10.0) as connection:
                assert ask(connection, RequestCode.GET_BROKER_CONFIG).code == ResponseCode.SUCCESS
            assert role_of(tmp_path / "s").get("role", "SLAVE") == "SLAVE"


def test_no_answer_of_a_member_however_odd_ends_a_master(tmp_path: Path) -> None:
    """One with a slave under each of 65,535 ids ended the process, and again at each of its starts."""
    bodies: Iterator[bytes] = iter(())

    def answers(request: Command) -> Command | None:
        if request.code == CHALLENGE:
            return request.reply(ResponseCode.SUCCESS, body=packed({}))
        return request.reply(ResponseCode.SUCCESS, body=next(bodies)) if request.code == STATUS else None

    with name_server(tmp_path) as names, Stranger(answers) as stranger:
        found = odd_bodies(stranger.address)[STATUS]
        bodies = itertools.cycle(found)
        known = ("--set", f"ropewalkMasterAddress={stranger.address}")
        with member(tmp_path / "m", names, 0, *known) as master, member(tmp_path / "s", names, 1):
            until_joined(tmp_path / "s")
            stranger.register(names, 7)
            until(
                lambda: stranger.count(STATUS) >= len(found) or master.process.poll() is not None,
                lambda: stderr_of(tmp_path / "m"),
            )
            assert master.process.poll() is None, stderr_of(tmp_path / "m")
            assert send(address_of(master)).code == ResponseCode.SUCCESS


def impostor(request: Command) -> Command | None:
    """Answer as a broker that is called as the real one."""
    if request.code == RequestCode.GET_BROKER_CONFIG:
        return request.reply(
            ResponseCode.SUCCESS, body=b"brokerClusterName=DefaultCluster\nbrokerName=broker-a\n"
        )
    return None


def test_a_stranger_in_a_brokers_place_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    with name_server(tmp_path) as names, Stranger(impostor) as stranger:
        stranger.register(names, 0)
        with member(tmp_path / "secret", names, 0, secret=SECRET) as real:
            assert send(address_of(real)).code == ResponseCode.SUCCESS
        stranger.register(names, 0)
        (tmp_path / "none").mkdir()
        code, said = fails(tmp_path / "none", "-n", names, "--set", "listenPort=0")
        assert code == 1 and "--take-place, or a ropewalkSecret" in said
        with member(tmp_path / "flag", names, 0, "--take-place") as real:
            assert send(address_of(real)).code == ResponseCode.SUCCESS


def test_a_slave_that_moves_to_a_master_at_another_port_needs_a_secret_or_a_setting(tmp_path: Path) -> None:
    """Without a secret it says what to do; with one it finds the master by itself."""
    first, second = free_ports(2)
    for secret in (SECRET, ""):
        folder = tmp_path / (secret[:1] or "none")
        folder.mkdir()
        with name_server(folder) as names, member(folder / "s", names, 1, secret=secret) as slave:
            with member(folder / "m", names, 0, secret=secret, port=first) as master:
                send(address_of(master))
                until_joined(folder / "s")
                until(lambda: end_of(address_of(slave)) == "1")
            with member(folder / "m", names, 0, secret=secret, port=second) as master:
                send(address_of(master))
                errors = partial(stderr_of, folder / "s")
                if secret:
                    until_ends(slave, "2", errors)
                    continue
                until_said(errors, "set ropewalkMasterAddress here")
                assert end_of(address_of(slave)) == "1"


def until_ends(slave: RunningBroker, end: str, errors: Callable[[], str]) -> None:
    until(lambda: end_of(address_of(slave)) == end, errors)


def until_said(errors: Callable[[], str], words: str) -> None:
    until(lambda: words in errors(), errors)
