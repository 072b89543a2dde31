"""The door of the codes between members and of operators: who is let in, and what answers carry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from broker.admin.proof import PROVEN_CODES
from broker.settings.config import ConfigError
from broker.settings.exposure import exposures
from ha.group.hello import EpochRequest, RangesRequest, encode
from ropewalk.codes import ROPEWALK_CODES, RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from ropewalk.member_proof import NONCE_SIZE, Asker, NotProven
from tests.broker.harness import Client, InProcess, config_of, without_fsync
from tests.support.ledger_brokers import LedgerBrokers

SECRET, OTHER = "a secret of many words", "another one of many words"
STATUS = RequestCode.ROPEWALK_MEMBER_STATUS
OF_CLIENTS = {
    RequestCode.ROPEWALK_CHALLENGE,  # the beginning of a proof
    RequestCode.ROPEWALK_BULK_PULL,  # reads messages, as a pull does
    RequestCode.ROPEWALK_SINK_INIT,  # sends messages, and keeps account of them
    RequestCode.ROPEWALK_SINK_APPEND,
    RequestCode.ROPEWALK_SINK_COMMIT,
    RequestCode.ROPEWALK_SINK_LIST,
    RequestCode.ROPEWALK_SINK_FORGET,  # as a consumer group is deleted
    RequestCode.ROPEWALK_KV_SESSION,  # the key-value store of clients
    RequestCode.ROPEWALK_KV_GET,
    RequestCode.ROPEWALK_KV_MULTI_GET,
    RequestCode.ROPEWALK_KV_SCAN,
    RequestCode.ROPEWALK_KV_WRITE,
    RequestCode.ROPEWALK_KV_REGIONS,
    RequestCode.ROPEWALK_KV_SPLIT,  # as a topic is given more queues
    RequestCode.ROPEWALK_KV_STATUS,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fsync(monkeypatch)


def asker(secret: str = SECRET, **changes: str) -> Asker:
    given = {"dialed": "127.0.0.1:10911", "socket": "127.0.0.1:10911"} | changes
    return Asker(secret, given["dialed"], given["socket"], bytes(NONCE_SIZE))


def call(client: Client, command: Command) -> Command:
    return client.call(command.code, command.ext, command.body)


def let_in(client: Client, one: Asker) -> Asker:
    one.challenged(call(client, one.question()).body)
    return one


def test_every_code_of_ropewalks_own_is_behind_the_door_or_is_one_of_clients() -> None:
    """A new code needs a decision: `PROVEN_CODES`, or the list above with a reason."""
    codes = {
        value
        for name, value in vars(RequestCode).items()
        if isinstance(value, int) and value in ROPEWALK_CODES
    }
    assert codes == PROVEN_CODES | OF_CLIENTS and not PROVEN_CODES & OF_CLIENTS


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SLAVE"])
def test_no_code_between_members_is_answered_without_a_proof(tmp_path: Path, role: str) -> None:
    settings = (
        {"brokerRole": role, "brokerId": 1, "haMasterAddress": "10.0.0.1:10912"} if role == "SLAVE" else {}
    )
    with InProcess(config_of(tmp_path, ropewalkSecret=SECRET, **settings)) as process:
        client = process.connect()
        for code in sorted(PROVEN_CODES):
            assert client.call(code).code == ResponseCode.NO_PERMISSION, code
            call(client, asker().question())
            for ext in ({}, {"proof": "0" * 64}, {"proof2": "0" * 64, "counter2": "1"}):
                assert client.call(code, ext).code == ResponseCode.NO_PERMISSION, code


def test_no_operators_code_of_a_dledger_group_is_answered_without_a_proof(tmp_path: Path) -> None:
    """Whoever reached the port removed voters, moved the lead, and had a member go on alone."""
    with LedgerBrokers(tmp_path, ropewalkSecret=SECRET) as group:
        leader = group.leader()
        client = leader.connect()
        remove = {"change": "remove", "id": "n2"}
        for code in range(RequestCode.ROPEWALK_LEDGER_STATUS, RequestCode.ROPEWALK_LEDGER_TRUST + 1):
            for ext in ({}, remove, {"id": leader.id}, {"to": "n2"}):
                assert client.call(code, ext).code == ResponseCode.NO_PERMISSION, (code, ext)
        assert len(leader.member.ledger.members.config.voters) == 3 and leader.leads
        one = let_in(client, asker())
        question = one.prove(Command(RequestCode.ROPEWALK_LEDGER_STATUS))
        answer = call(client, question)
        assert answer.code == ResponseCode.SUCCESS and one.check(question, answer)
        question = one.prove(Command(RequestCode.ROPEWALK_LEDGER_CHANGE, remove))
        opaque = client.ask(question.code, question.ext)
        group.until(lambda: bool(client.link.sent), "an answer")
        answer = client.answer(opaque)
        assert answer.code == ResponseCode.SUCCESS and one.check(question, answer)


def test_what_is_proven_is_answered_with_a_proof_also_where_the_answer_is_no(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, ropewalkSecret=SECRET)) as process:
        client = process.connect()
        one = let_in(client, asker())
        group = process.broker.config.broker_cluster_name, process.broker.config.broker_name
        for command, code in (
            (Command(STATUS, body=encode(RangesRequest([]))), ResponseCode.SUCCESS),
            (Command(RequestCode.ROPEWALK_ACCEPT_EPOCH, body=encode(EpochRequest(*group, 3, "me"))), 0),
            (Command(RequestCode.ROPEWALK_PROMOTE, body=encode(EpochRequest(*group, 9, "me"))), 29),
            (Command(RequestCode.ROPEWALK_PROMOTE, body=b"\xc1"), ResponseCode.INVALID_PARAMETER),
            (Command(RequestCode.ROPEWALK_LEDGER_STATUS), ResponseCode.ILLEGAL_OPERATION),
        ):
            question = one.prove(command)
            answer = call(client, question)
            assert answer.code == code or (code == 29 and answer.code == ResponseCode.ILLEGAL_OPERATION)
            assert one.check(question, answer), command.code
            with pytest.raises(NotProven):
                one.check(question, replace(answer, remark="something else"))


def test_a_question_that_is_said_again_is_refused_here_and_on_another_connection(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path, ropewalkSecret=SECRET)) as process:
        client, other = process.connect(), process.connect()
        question = let_in(client, asker()).prove(Command(STATUS, body=encode(RangesRequest([]))))
        let_in(other, asker())
        assert call(client, question).code == ResponseCode.SUCCESS
        for one in (client, other):
            assert call(one, question).code == ResponseCode.NO_PERMISSION


def test_a_member_that_is_dialed_elsewhere_is_told_so_and_an_alias_lets_it_in(tmp_path: Path) -> None:
    """A stranger that is dialed as the master cannot pass the questions on to the real one."""
    far = {"dialed": "10.9.9.9:777", "socket": "10.9.9.9:777"}
    with InProcess(config_of(tmp_path / "a", ropewalkSecret=SECRET)) as process:
        refused = call(process.connect(), asker(**far).question())
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "the asker dialed 10.9.9.9:777" in (refused.remark or "")
        assert "ropewalkAddressAliases" in (refused.remark or "")
    with InProcess(
        config_of(tmp_path / "b", ropewalkSecret=SECRET, ropewalkAddressAliases="10.9.9.9:777")
    ) as process:
        client = process.connect()
        one = let_in(client, asker(**far))
        assert call(client, one.prove(Command(STATUS, body=encode(RangesRequest([]))))).code == 0


def test_two_secrets_are_taken_and_version_1_is_switched_off(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path / "a", ropewalkSecret=SECRET, ropewalkSecretAlso=OTHER)) as process:
        for secret in (SECRET, OTHER):
            client = process.connect()
            one = let_in(client, asker(secret))
            question = one.prove(Command(STATUS, body=encode(RangesRequest([]))))
            assert one.check(question, call(client, question))
        assert "a secret of many" not in str(process.broker.config.describe(every_key=True))
    with InProcess(config_of(tmp_path / "b", ropewalkSecret=SECRET, ropewalkSecretV1=False)) as process:
        refused = process.connect().call(RequestCode.ROPEWALK_CHALLENGE)
        assert refused.code == ResponseCode.NO_PERMISSION and "ropewalkSecretV1" in (refused.remark or "")
    with pytest.raises(ConfigError, match="ropewalkSecretAlso needs ropewalkSecret"):
        config_of(tmp_path, ropewalkSecretAlso=OTHER)


def test_without_a_secret_the_door_is_open(tmp_path: Path) -> None:
    with InProcess(config_of(tmp_path)) as process:
        client = process.connect()
        one = let_in(client, Asker("", "", "", bytes(NONCE_SIZE)))
        assert one.version == 0
        assert call(client, Command(STATUS, body=msgspec.msgpack.encode({"ranges": []}))).code == 0


def test_a_short_secret_and_one_on_the_command_line_are_told(tmp_path: Path) -> None:
    found = exposures(config_of(tmp_path, ropewalkSecret="x", ropewalkSecretAlso="y" * 16), has_members=False)
    assert any("ropewalkSecret is too short: it has 1 characters" in each for each in found)
    assert any("ropewalkSecretAlso stands on the command line" in each for each in found)
    assert not any("ropewalkSecretAlso is too short" in each for each in found)
