"""The brokers of a cluster, and requests to them: the base of all of the admin's conversations.

An administrator speaks to masters, as RocketMQ's tools do; a slave follows its master. What is looked up at many
brokers is answered by those that can: one that is away is noted in `skipped`, and only if all are away is it an error.
What changes something raises at the first broker that does not take it, and names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from ropewalk.client.admin.results import BrokerMember, Document, read_members
from ropewalk.client.core.addresses import AddressRing, BadAddress, parse_address, parse_address_list
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.directory import Directory
from ropewalk.client.core.messages import command_of
from ropewalk.client.core.routes import MASTER_ID, TopicRoute
from ropewalk.client.core.steps import Steps, ask_twice, require_success
from ropewalk.client.core.steps import ask as ask_once
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RemoteProtocolError, RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from ropewalk.member_proof import Asker

ADMIN_TIMEOUT_S = 5.0
"""Seconds to wait for an answer, as RocketMQ's tools do."""


def document_in(answer: Command) -> Document:
    """Return the JSON object in a successful answer. Raises what the answer's code means, or `RemoteProtocolError`."""
    body = require_success(answer).body
    try:
        document = fastjson.loads(body) if body else {}
    except fastjson.FastjsonError as exc:
        raise RemoteProtocolError(f"an answer cannot be read: {exc}") from exc
    if not isinstance(document, dict):
        raise RemoteProtocolError(f"an answer is no JSON object, but {type(document).__name__}")
    return document


class ClusterSteps:
    """The cluster as name servers describe it, and questions to its members."""

    def __init__(
        self,
        name_servers: str,
        *,
        clock: Callable[[], float],
        timeout_s: float = ADMIN_TIMEOUT_S,
        asker: Callable[[str], Asker] | None = None,
    ) -> None:
        """`asker` makes this end of the proof for a connection to an address; None: nothing is proven."""
        self._name_servers = AddressRing(parse_address_list(name_servers))
        self._directory = Directory(self._name_servers, clock, timeout_s)
        self._timeout_s = timeout_s
        self._skipped: dict[str, str] = {}
        self._asker = asker

    @property
    def skipped(self) -> dict[str, str]:
        """Brokers that did not answer although they were asked, by address, with the reason; since `forget_skipped`."""
        return dict(self._skipped)

    def forget_skipped(self) -> None:
        self._skipped.clear()

    def note_away(self, member: BrokerMember, exc: RopewalkError) -> None:
        self._skipped[member.address] = str(exc)

    # The cluster

    def members(self) -> Steps[tuple[BrokerMember, ...]]:
        """Return every broker that is registered, slaves too; sorted by cluster, name and id."""
        answer = yield from self._directory.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        return read_members(document_in(answer))

    def masters(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> Steps[tuple[BrokerMember, ...]]:
        """Return the masters of a cluster, of one broker set (its name or the address of a member), or all there are.

        Raises `Rejected` when that is none.
        """
        found = yield from self.selected(cluster=cluster, broker=broker)
        if broker is not None and ":" in broker:
            return found
        masters = tuple(member for member in found if member.is_master)
        if not masters:
            what = f"broker {broker}" if broker else f"cluster {cluster}" if cluster else "the cluster"
            raise Rejected(f"{what} has no master at the moment; the name server knows only slaves")
        return masters

    def selected(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> Steps[tuple[BrokerMember, ...]]:
        """Return the members of a cluster, of one broker set, or at one address.

        Raises `Rejected` when that is none.
        """
        members = yield from self.members()
        if broker is not None and ":" in broker:
            address = _address(broker)
            found = tuple(member for member in members if member.address == address)
            # A broker that no name server knows can still be asked, by whoever knows where it is.
            return found or (BrokerMember(cluster or "", "", MASTER_ID, address),)
        found = tuple(
            member
            for member in members
            if cluster in (None, member.cluster) and broker in (None, member.broker_name)
        )
        if not found:
            raise Rejected(_nobody(members, cluster, broker))
        return found

    def topic_masters(self, topic: str, cluster: str | None = None) -> Steps[tuple[BrokerMember, ...]]:
        """Return the masters that serve a topic. Raises `Rejected` (17) when there is no such topic."""
        route: TopicRoute = yield from self._directory.route(topic, fresh=True)
        found = tuple(
            BrokerMember(broker.cluster, broker.name, MASTER_ID, broker.master)
            for broker in sorted(route.brokers.values(), key=lambda broker: broker.name)
            if broker.master is not None and cluster in (None, broker.cluster)
        )
        if not found:
            raise Unreachable(
                f"no master of topic {topic} is known{f' in cluster {cluster}' if cluster else ''}"
            )
        return found

    # Asking

    def ask(
        self, address: str, code: int, header: msgspec.Struct | None = None, body: bytes = b""
    ) -> Steps[Command]:
        """Send a request that changes something; its answer must be a success."""
        command = command_of(code, header, body) if header is not None else Command(code, body=body)
        answer = yield from ask_once(address, command, self._timeout_s)
        return require_success(answer)

    def query(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        *,
        none_for: Sequence[int] = (),
    ) -> Steps[Command | None]:
        """Send a request that only reads, twice if need be; return None if the answer has one of these codes."""
        command = command_of(code, header) if header is not None else Command(code)
        answer = yield from ask_twice(address, command, self._timeout_s)
        return None if answer.code in none_for else require_success(answer)

    def ask_group(self, address: str, code: int, header: msgspec.Struct | None = None) -> Steps[Command]:
        """Send a member of a group a request that changes something; its answer must be a success."""
        return require_success((yield from self.ask_member(address, code, header)))

    def query_members(
        self, members: Iterable[BrokerMember], code: int, *, none_for: Sequence[int] = ()
    ) -> Steps[list[tuple[BrokerMember, Command]]]:
        """Send a request that only reads to members of groups; leave out those that are away, or that refuse it.

        Raises the reason of the first of these, where it is all of them.
        """
        answers: list[tuple[BrokerMember, Command]] = []
        away: list[RopewalkError] = []
        asked = 0
        for member in members:
            asked += 1
            try:
                try:
                    answer = yield from self.ask_member(member.address, code)
                except (Unreachable, OutcomeUnknown):
                    answer = yield from self.ask_member(member.address, code)
                if answer.code not in none_for:
                    answers.append((member, require_success(answer)))
            except (Unreachable, OutcomeUnknown, RemoteProtocolError, Rejected) as exc:
                self.note_away(member, exc)
                away.append(exc)
        if away and len(away) == asked:
            raise away[0]
        return answers

    def ask_member(self, address: str, code: int, header: msgspec.Struct | None = None) -> Steps[Command]:
        """Send a request that a member wants proven where its group has a secret; return its answer with any code.

        Raises `NotProven` for an answer that proves nothing, where this end knows a secret.
        """
        command = command_of(code, header) if header is not None else Command(code)
        if self._asker is None:
            return (yield from ask_once(address, command, self._timeout_s))
        asker = self._asker(address)
        found = yield from ask_once(address, asker.question(), self._timeout_s)
        if found.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return found
        asker.challenged(require_success(found).body)
        question = asker.prove(command)
        answer = yield from ask_once(address, question, self._timeout_s)
        asker.check(question, answer)
        return answer

    def query_all(
        self,
        members: Iterable[BrokerMember],
        code: int,
        header: msgspec.Struct | None = None,
        *,
        none_for: Sequence[int] = (),
    ) -> Steps[list[tuple[BrokerMember, Command]]]:
        """Send a request that only reads to several brokers. Brokers that are away are left out, unless all are."""
        answers: list[tuple[BrokerMember, Command]] = []
        away: list[RopewalkError] = []
        asked = 0
        for member in members:
            asked += 1
            try:
                answer = yield from self.query(member.address, code, header, none_for=none_for)
            except (Unreachable, OutcomeUnknown) as exc:
                self.note_away(member, exc)
                away.append(exc)
                continue
            if answer is not None:
                answers.append((member, answer))
        if away and len(away) == asked:
            raise away[0]
        return answers

    def change_at_all(
        self,
        members: Iterable[BrokerMember],
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
    ) -> Steps[tuple[BrokerMember, ...]]:
        """Send a change to several brokers and return them. Raises at the first that does not take it."""
        done: list[BrokerMember] = []
        for member in members:
            try:
                yield from self.ask(member.address, code, header, body)
            except RopewalkError as exc:
                before = f"; done at {', '.join(map(_place, done))}" if done else ""
                raise _like(exc, f"{_place(member)}: {exc}{before}") from exc
            done.append(member)
        return tuple(done)

    def change_name_servers(
        self, code: int, header: msgspec.Struct | None = None
    ) -> Steps[dict[str, Command]]:
        """Send a change to every name server of the list, since they do not tell each other; return their answers."""
        answers: dict[str, Command] = {}
        for address in list(self._name_servers.one_round()):
            answers[str(address)] = yield from self.ask(str(address), code, header)
        return answers

    def look_at_name_servers(self, code: int) -> Steps[dict[str, Command]]:
        """Send a request that only reads to every name server of the list."""
        answers: dict[str, Command] = {}
        for address in list(self._name_servers.one_round()):
            answer = yield from self.query(str(address), code)
            assert answer is not None
            answers[str(address)] = answer
        return answers


def _place(member: BrokerMember) -> str:
    return f"{member.broker_name} ({member.address})" if member.broker_name else member.address


def _like(exc: RopewalkError, text: str) -> RopewalkError:
    """Return the same kind of error, in other words."""
    error = type(exc)(text)
    error.code, error.remark = exc.code, exc.remark
    return error


def _address(text: str) -> str:
    try:
        return str(parse_address(text))
    except BadAddress as exc:
        raise Rejected(str(exc)) from exc


def _nobody(members: Sequence[BrokerMember], cluster: str | None, broker: str | None) -> str:
    if not members:
        return "no broker is registered at the name server"
    clusters = ", ".join(sorted({member.cluster for member in members}))
    names = ", ".join(sorted({member.broker_name for member in members}))
    if cluster is not None and cluster not in {member.cluster for member in members}:
        return f"there is no cluster {cluster}; the name server knows {clusters}"
    return f"there is no broker {broker}; the name server knows {names}"
