"""A name server in this process, and brokers' registrations for it, told shortly or to the byte."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Hashable, Mapping
from typing import Any

from broker.namesrv.server import NameServer
from broker.namesrv.settings import NamesrvSettings
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from tests.support.clocks import Clock

A1, A2, A3 = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


class World:
    """A name server, its clock, and the shortest way to ask it something."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.server = NameServer(self.clock, NamesrvSettings(**settings))

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", peer: Hashable = "client"
    ) -> Command:
        answer = self.server.handle(Command(code, dict(ext or {}), body, opaque=7), peer)
        assert answer is not None
        assert answer.opaque == 7
        assert answer.is_response
        return answer

    def register(
        self,
        address: str = A1,
        *,
        name: str = "broker-a",
        cluster: str = "c",
        broker_id: int = 0,
        topics: Mapping[str, Mapping[str, Any]] | None = None,
        counter: int = 1,
        epoch: int = 0,
        acting: bool | None = None,
        timeout_ms: int | None = None,
        peer: Hashable | None = None,
        **more: str,
    ) -> Command:
        ext = {
            "brokerName": name,
            "brokerAddr": address,
            "clusterName": cluster,
            "haServerAddr": address.replace("10911", "10912"),
            "brokerId": str(broker_id),
            **more,
        }
        if acting is not None:
            ext["enableActingMaster"] = str(acting).lower()
        if timeout_ms is not None:
            ext["heartbeatTimeoutMillis"] = str(timeout_ms)
        body = registration_json(TWO if topics is None else topics, counter=counter, epoch=epoch)
        return self.ask(RequestCode.REGISTER_BROKER, ext, body, peer or address)

    def route(self, topic: str = "T1", **ext: str) -> dict[str, Any] | None:
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == ResponseCode.SUCCESS
        route: dict[str, Any] = parse(answer)
        return route

    def addresses(self, topic: str = "T1", name: str = "broker-a") -> dict[str, str]:
        route = self.route(topic)
        assert route is not None
        return next(data["brokerAddrs"] for data in route["brokerDatas"] if data["brokerName"] == name)

    def perm(self, topic: str = "T1", name: str = "broker-a") -> int:
        route = self.route(topic)
        assert route is not None
        return next(int(data["perm"]) for data in route["queueDatas"] if data["brokerName"] == name)


def parse(answer: Command) -> Any:
    return json.loads(answer.body)


def topic(name: str, *, perm: int = 6, queues: int = 4, flags: int = 0) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": flags,
        "writeQueueNums": queues,
    }


TWO = {"T1": topic("T1"), "T2": topic("T2")}


def registration_json(topics: Mapping[str, Mapping[str, Any]], *, counter: int = 1, epoch: int = 0) -> bytes:
    version = {"counter": counter, "stateVersion": epoch, "timestamp": 1_700_000_000_000}
    wrapper = {
        "dataVersion": version,
        "mappingDataVersion": version,
        "topicConfigTable": topics,
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    text = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}, separators=(",", ":"))
    return text.encode()


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed(topics: list[str], *, counter: int = 1, tail: bytes = b"") -> bytes:
    version = b'{"counter":%d,"stateVersion":0,"timestamp":1}' % counter
    lines = b"".join(sized(line.encode()) for line in topics)
    return zlib.compress(sized(version) + struct.pack(">i", len(topics)) + lines + sized(b"[]") + tail)


def identity(address: str, broker_id: int = 0) -> dict[str, str]:
    return {
        "brokerName": "broker-a",
        "brokerAddr": address,
        "clusterName": "c",
        "haServerAddr": "",
        "brokerId": str(broker_id),
    }


def register_body(world: World, body: bytes, **ext: str) -> Command:
    return world.ask(RequestCode.REGISTER_BROKER, identity(A1) | ext, body)
