"""An administrator's conversations about brokers and name servers themselves: how they are, and their settings."""

from __future__ import annotations

from collections.abc import Mapping

from ropewalk.client.admin.cluster import document_in
from ropewalk.client.admin.ledger import LedgerSteps
from ropewalk.client.admin.results import (
    BrokerMember,
    BrokerStatus,
    SinkStatus,
    Statistics,
    read_sinks,
    read_statistics,
    read_table,
)
from ropewalk.client.core.steps import Steps, answer_header
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import LocalProtocolError
from ropewalk.format.headers import (
    AddPermResponseHeader,
    BrokerNameHeader,
    BrokerStatsHeader,
    SinkHeader,
    WipePermResponseHeader,
)
from ropewalk.format.remoting import Command


class AdminCore(LedgerSteps):
    """An administrator's conversations, all of them: carried by `Admin` and `AsyncAdmin`."""

    def broker_status(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> Steps[tuple[BrokerStatus, ...]]:
        """Return the status of each broker of a selection, slaves too. A broker that does not answer is left out."""
        members = yield from self.selected(cluster=cluster, broker=broker)
        answers = yield from self.query_all(members, RequestCode.GET_BROKER_RUNTIME_INFO)
        return tuple(
            BrokerStatus(
                member,
                {key: str(value) for key, value in read_table(document_in(answer), "table").items()},
            )
            for member, answer in answers
        )

    def broker_config(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> Steps[dict[BrokerMember, dict[str, str]]]:
        """Return the settings of each broker of a selection, as it reports them."""
        members = yield from self.selected(cluster=cluster, broker=broker)
        answers = yield from self.query_all(members, RequestCode.GET_BROKER_CONFIG)
        return {member: _settings(answer) for member, answer in answers}

    def set_broker_config(
        self,
        changes: Mapping[str, str],
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Steps[tuple[BrokerMember, ...]]:
        """Change settings of each broker of a selection, slaves too, as `broker_config` reports them; says where.

        Brokers decide what may be changed while they run and raise `Rejected` (16) for anything else.
        """
        for key, value in changes.items():
            if not key.strip() or set("=:#!\\\n\r ") & set(key):
                raise LocalProtocolError(f"{key!r} is not the name of a setting")
            if "\n" in value or "\r" in value:
                raise LocalProtocolError(f"the value of {key} has a line end in it")
        members = yield from self.selected(cluster=cluster, broker=broker)
        escaped = {key: value.replace("\\", "\\\\") for key, value in changes.items()}
        body = "".join(f"{key}={value}\n" for key, value in escaped.items()).encode()
        return (yield from self.change_at_all(members, RequestCode.UPDATE_BROKER_CONFIG, body=body))

    def broker_statistics(self, member: BrokerMember, name: str, key: str) -> Steps[Statistics | None]:
        """Return one of a broker's counters (`TOPIC_PUT_NUMS` of a topic, `GROUP_GET_NUMS` of topic@group, ...).

        None for what it never counted.
        """
        answer = yield from self.query(
            member.address,
            RequestCode.VIEW_BROKER_STATS_DATA,
            BrokerStatsHeader(name, key),
            none_for=(ResponseCode.SYSTEM_ERROR,),
        )
        return None if answer is None else read_statistics(document_in(answer))

    def wipe_write_permission(self, broker_name: str) -> Steps[dict[str, int]]:
        """Have every name server tell producers to leave a broker; says how many topics that was, by name server.

        What is there can still be read. A broker that registers again later, after a restart, is written to again.
        """
        answers = yield from self.change_name_servers(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name)
        )
        return {
            address: answer_header(WipePermResponseHeader, answer).wipe_topic_count
            for address, answer in answers.items()
        }

    def restore_write_permission(self, broker_name: str) -> Steps[dict[str, int]]:
        """Take `wipe_write_permission` back; says how many topics that was, by name server."""
        answers = yield from self.change_name_servers(
            RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name)
        )
        return {
            address: answer_header(AddPermResponseHeader, answer).add_topic_count
            for address, answer in answers.items()
        }

    def clean_unused_topics(self, *, cluster: str | None = None) -> Steps[tuple[BrokerMember, ...]]:
        """Have brokers remove the files of topics that they no longer know; says which brokers."""
        masters = yield from self.masters(cluster=cluster)
        return (yield from self.change_at_all(masters, RequestCode.CLEAN_UNUSED_TOPIC))

    def sinks(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> Steps[tuple[SinkStatus, ...]]:
        """Return the exactly-once sinks of each master; Apache RocketMQ's have none."""
        masters = yield from self.masters(cluster=cluster, broker=broker)
        answers = yield from self.query_all(
            masters, RequestCode.ROPEWALK_SINK_LIST, none_for=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,)
        )
        return tuple(sink for member, answer in answers for sink in read_sinks(member, document_in(answer)))

    def forget_sink(self, sink_id: str, *, cluster: str | None = None) -> Steps[tuple[BrokerMember, ...]]:
        """Have every master forget a sink and the rows of its open batch; says which brokers had it."""
        masters = yield from self.masters(cluster=cluster)
        answers = yield from self.query_all(
            masters,
            RequestCode.ROPEWALK_SINK_FORGET,
            SinkHeader(sink_id),
            none_for=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.QUERY_NOT_FOUND),
        )
        return tuple(member for member, _ in answers)

    def name_server_config(self) -> Steps[dict[str, dict[str, str]]]:
        """Return the settings of each name server."""
        answers = yield from self.look_at_name_servers(RequestCode.GET_NAMESRV_CONFIG)
        return {address: _settings(answer) for address, answer in answers.items()}


def _settings(answer: Command) -> dict[str, str]:
    """`key=value` lines. Brokers write them as they are, without the escapes that Java would read."""
    settings: dict[str, str] = {}
    for line in answer.body.decode(errors="replace").splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.startswith("#"):
            settings[key.strip()] = value
    return dict(sorted(settings.items()))
