"""RocketMQ's own mqadmin at Ropewalk and at the original, command by command: the same exit, columns and content.

Every step is typed at both servers in the same order, and what was printed is compared line by line. Masked are only
what no two servers can share (addresses, ids, times) and, where a step says so, figures that depend on the moment
(`rates`), or the values of settings and run-time tables (`names`), which are each server's own. A command that fails
has to fail in the same place, with the same exception and the same code; its words may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pytest

from tests.compat.conftest import Server
from tests.compat.mqadmin import Mqadmin
from tests.support.waiting import until

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC, SECOND, GROUP, PRODUCERS, CLONE = "besideT", "besideU", "besideG", "besideP", "besideClone"
CLUSTER, BROKER = "DefaultCluster", "broker-a"
PATIENCE_S = 30.0

Look = Literal["lines", "sorted", "rates", "names", "exact names"]


@dataclass(frozen=True)
class Step:
    """One command, and how its two outputs are compared."""

    line: str
    """Its words; {broker} and the like stand for what differs from server to server."""
    look: Look = "lines"
    only: str = ""
    """Compare only lines in which this is found: other tests share the server."""
    silent: bool = False
    """Nothing is printed, by either."""

    @property
    def name(self) -> str:
        return self.line


STEPS = (
    # topics
    Step(f"updateTopic -c {CLUSTER} -t {TOPIC} -r 4 -w 4"),
    Step(f"updateTopic -b {{broker}} -t {SECOND} -r 2 -w 2 -p 4"),
    Step("updateTopic -b {broker} -t TBW102"),
    Step("updateTopic -b {broker} -t bad/name"),
    Step("@send"),
    Step(f"topicRoute -t {TOPIC}"),
    Step(f"topicRoute -t {TOPIC} -l"),
    Step("topicRoute -t besideNone"),
    Step("topicList", "sorted", "^beside|^TBW102|^SELF_TEST|^broker-a"),
    Step("topicList -c", "sorted", "^#|beside"),
    Step(f"topicClusterList -t {TOPIC}"),
    Step(f"topicStatus -t {TOPIC}", "rates"),
    Step("topicStatus -t besideNone"),
    Step(f"updateTopicPerm -b {{broker}} -t {SECOND} -p 2"),
    Step(f"updateTopicPerm -c {CLUSTER} -t {SECOND} -p 6"),
    Step("updateTopicPerm -b {broker} -t besideNone -p 6"),
    # groups, with a member that has consumed everything
    Step(f"updateSubGroup -c {CLUSTER} -g {GROUP} -r 3"),
    Step("updateSubGroup -b {broker} -g bad/group"),
    Step("@consume", silent=True),
    Step("consumerProgress", "rates", f"^#|{GROUP}"),
    Step(f"consumerProgress -g {GROUP}", "rates"),
    Step(f"consumerProgress -g {GROUP} -s true", "rates"),
    Step(f"consumerProgress -g {GROUP} -t {TOPIC}", "rates"),
    Step("consumerProgress -g besideNone"),
    Step(f"consumerConnection -g {GROUP}", "sorted"),
    Step("consumerConnection -g besideNone"),
    Step(f"consumerStatus -g {GROUP}"),
    Step(f"consumerStatus -g {GROUP} -i {{client}}", "rates"),
    Step("consumerStatus -g besideNone"),
    Step(f"producerConnection -g {PRODUCERS} -t {TOPIC}"),
    Step(f"producerConnection -g besideNone -t {TOPIC}"),
    # the cluster and its broker
    Step("clusterList", "rates"),
    Step("clusterList -m", "rates"),
    Step("brokerStatus -b {broker}", "names"),
    Step(f"brokerStatus -c {CLUSTER}", "names"),
    Step("getBrokerConfig -b {broker}", "names"),
    Step("updateBrokerConfig -b {broker} -k maxMessageSize -v 4000000"),
    Step("updateBrokerConfig -b {broker} -k brokerConfigPath -v x"),
    Step("updateBrokerConfig -b {broker} -k maxMessageSize -v 4194304"),
    # messages
    Step(f"queryMsgById -i {{id}} -t {TOPIC}"),
    Step(f"queryMsgById -i {{id}} -t {TOPIC} -g {GROUP} -d {{client}}", "rates"),
    Step(f"queryMsgById -i {'F' * 32} -t {TOPIC}"),
    Step(f"queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 0"),
    Step(f"queryMsgByOffset -t {TOPIC} -b {BROKER} -i 0 -o 99", silent=True),
    Step(f"queryMsgByKey -t {TOPIC} -k key3"),
    Step(f"queryMsgByKey -t {TOPIC} -k noSuchKey"),
    Step(f"queryMsgByUniqueKey -t {TOPIC} -i {{key}}"),
    Step(f"queryMsgByUniqueKey -t {TOPIC} -i {{key}} -a"),
    Step(f"queryMsgByUniqueKey -t {TOPIC} -i {'A' * 32}"),
    Step(f"printMsg -t {TOPIC} -d true", "sorted"),
    Step("printMsg -t besideNone"),
    Step(f"sendMessage -t {SECOND} -p hello -b {BROKER} -i 1 -c tagged -k key"),
    Step(f"sendMessage -t {SECOND} -p hello -b noSuchBroker -i 1"),
    Step(f"consumeMessage -t {SECOND} -b {BROKER} -i 1 -o 0 -c 1 -g besideReader"),
    # statistics
    Step(f"statsAll -t {TOPIC}", "rates"),
    Step(
        f"statsAll -a -t {TOPIC}", "rates", "^#"
    ),  # what is active shows once the next ten seconds have begun
    # sending groups elsewhere
    Step("@stop", silent=True),
    Step(f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0", "sorted"),
    Step(f"consumerProgress -g {GROUP} -t {TOPIC}", "rates"),
    Step(f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s now -q 1 -b {{broker}} -o 1"),
    Step(f"resetOffsetByTime -g besideNone -t {TOPIC} -s 0"),
    Step(f"resetOffsetByTime -g {GROUP} -t besideNone -s 0"),
    Step(f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s garbage"),
    Step(f"skipAccumulatedMessage -g {GROUP} -t {TOPIC}", "sorted"),
    Step(f"skipAccumulatedMessage -g besideNone -t {TOPIC}"),
    Step(f"cloneGroupOffset -s {GROUP} -d {CLONE} -t {TOPIC}"),
    Step(f"updateSubGroup -c {CLUSTER} -g {CLONE}"),
    Step(f"cloneGroupOffset -s {GROUP} -d {CLONE} -t {TOPIC}"),
    Step(f"consumerProgress -g {CLONE} -t {TOPIC}"),
    # name servers
    Step(f"wipeWritePerm -b {BROKER}", "rates"),
    Step(f"topicRoute -t {TOPIC}"),
    Step(f"addWritePerm -b {BROKER}", "rates"),
    Step("wipeWritePerm -b noSuchBroker"),
    Step("getNamesrvConfig", "exact names"),
    # the end
    Step(f"deleteSubGroup -c {CLUSTER} -g {GROUP} -r true"),
    Step("deleteSubGroup -b {broker} -g besideNone"),
    Step(f"deleteTopic -c {CLUSTER} -t {TOPIC}"),
    Step(f"deleteTopic -c {CLUSTER} -t {SECOND}"),
    Step(f"deleteTopic -c {CLUSTER} -t besideNone"),
    Step(f"consumerProgress -g {GROUP}"),
    Step(f"topicStatus -t {TOPIC}"),
)

OPERATORS_COMMANDS = """
    topicList topicRoute topicStatus topicClusterList updateTopic updateTopicPerm deleteTopic updateSubGroup
    deleteSubGroup clusterList brokerStatus getBrokerConfig updateBrokerConfig consumerProgress consumerStatus
    producerConnection consumerConnection queryMsgById queryMsgByKey queryMsgByUniqueKey queryMsgByOffset printMsg
    sendMessage consumeMessage resetOffsetByTime skipAccumulatedMessage cloneGroupOffset statsAll wipeWritePerm
    getNamesrvConfig
"""

NAMES_OF_ONE = {
    "isInBrokerContainer",  # a broker of ours is a process of its own
    "isBrokerContainer",
    "isScanAvailableNameSrv",  # a Java getter taken for a setting, beside scanAvailableNameSrv
    "commitLogDiskRatio_PATH",
}
"""What the original tells and Ropewalk does not, although the command is there."""


@dataclass
class Played:
    """What one server's steps printed, in their order."""

    server: Server
    printed: list[str]


class Play:
    """All steps at one server, in one JVM."""

    def __init__(self, admin: Mqadmin, server: Server) -> None:
        self._admin = admin
        self._server = server
        self._facts = {"broker": server.broker}

    def step(self, step: Step) -> str:
        match step.line:
            case "@send":
                printed = self._admin.run("@send", PRODUCERS, TOPIC, "8")
                ids = printed.split()
                assert len(ids) == 8, f"{self._server.name}: {printed}"
                self._facts["id"] = ids[0]
                shown = self._admin.run("queryMsgById", "-i", ids[3], "-t", TOPIC)
                key = self._facts["key"] = re.findall(r"UNIQ_KEY=(\w+)", shown)[0]
                by_key = ("queryMsgByKey", "-t", TOPIC, "-k", "key3")
                until(lambda: key in self._admin.run(*by_key), f"the key index of {self._server.name} has it")
                return "\n".join(ids)
            case "@consume":
                self._admin.run("@consume", GROUP, TOPIC)
                until(lambda: self._consumed() == 8)
                connected = self._admin.run("consumerConnection", "-g", GROUP)
                clients = re.findall(rf"(\S+@{GROUP})\s", connected)
                assert clients, f"{self._server.name}: {connected}"
                self._facts["client"] = clients[0]
                return ""
            case "@stop":
                self._admin.run("@stop")
                return ""
            case _:
                return self._admin.run(*(word.format(**self._facts) for word in step.line.split()))

    def _consumed(self) -> int:
        rows = self._admin.table("consumerProgress", "-g", GROUP, "-t", TOPIC)
        return sum(int(row[4]) for row in rows if row[0] == TOPIC)


def play(server: Server, classpath: str, home: pytest.TempPathFactory) -> Played:
    with Mqadmin(server.namesrv, classpath, home.mktemp(server.name)) as admin:
        one = Play(admin, server)
        return Played(server, [one.step(step) for step in STEPS])


@pytest.fixture(scope="module")
def both(
    ropewalk_server: Server,
    original_server: Server,
    tools_classpath: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Played, Played]]:
    """The steps at Ropewalk and at the original, one after the other."""
    yield (
        play(ropewalk_server, tools_classpath, tmp_path_factory),
        play(original_server, tools_classpath, tmp_path_factory),
    )


MASKS = (
    (r"\b7F000001[0-9A-F]{24}\b", "OFFSET_ID"),
    (r"\b[0-9A-F]{32}(?:[0-9A-F]{24})?\b", "KEY"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d{3})?", "TIME"),
    (r"\b1[67]\d{11}\b", "MS"),
    (r"commitLogDiskRatio_[^\s:]+", "commitLogDiskRatio_PATH"),
    # Other modules have written to the same two servers before, and not the same to both.
    (r"(?i)(commitLog ?Offset[=:]\s*)\d+", r"\1OFFSET"),
    (r"(@K@\w+@KEY)@[0-9a-f]+\b", r"\1@OFFSET"),
    (r"@[0-9a-f]{5,8}\b", "@HASH"),  # Java's way to print an object
    (r"\$\$Lambda[^\s,\]]*", "LAMBDA"),
    (r"CODE: (\d+)  DESC: .*", r"CODE: \1"),
    (r"-?\bDESC: .*", "DESC"),
)
_SKIPPED = re.compile(r"\s+at |\s*\.\.\. \d+ more|For more information|See https?://")


def masked(text: str, server: Server) -> list[str]:
    """The lines of an output without what is this server's alone, blanks between columns counted once."""
    text = text.replace(server.broker, "BROKER").replace(server.namesrv, "NAMESRV")
    for pattern, stands_for in MASKS:
        text = re.sub(pattern, stands_for, text)
    lines = (" ".join(line.split()) for line in text.splitlines() if not _SKIPPED.match(line))
    return [line for line in lines if line]


def seen(step: Step, text: str, server: Server) -> list[str]:
    """What is compared of an output."""
    lines = [line for line in masked(text, server) if re.search(step.only, line)]
    match step.look:
        case "sorted":
            return sorted(lines)
        case "rates":
            return [re.sub(r"(?<![\w.])-?\d+(?:\.\d+)?\b", "N", _when(line)) for line in lines]
        case "names" | "exact names":
            return sorted({re.split(r"\s*[:=](?:\s|$)", line)[0].removeprefix("BROKER ") for line in lines})
        case _:
            return lines


def _when(line: str) -> str:
    """A queue that was consumed a moment ago, or not at all yet: both are a moment."""
    return line.replace("N/A", "TIME")


@pytest.mark.parametrize(
    "number", range(len(STEPS)), ids=[f"{n:02} {step.name}" for n, step in enumerate(STEPS)]
)
def test_mqadmin_sees_no_difference(both: tuple[Played, Played], number: int) -> None:
    step = STEPS[number]
    ours, theirs = (seen(step, played.printed[number], played.server) for played in both)
    if step.look == "names":
        missing = set(theirs) - set(ours) - NAMES_OF_ONE
        assert not missing, f"the original tells {sorted(missing)} as well"
        assert len(set(theirs) & set(ours)) > 40
    elif step.look == "exact names":
        # Ropewalk's name server has the settings that change what clients see, and no thread pools to size.
        assert set(ours) <= set(theirs) and len(ours) >= 8
    else:
        assert ours == theirs
    assert ours or step.silent, "there was nothing to compare"


def test_the_list_is_complete() -> None:
    assert set(OPERATORS_COMMANDS.split()) <= {step.line.split()[0] for step in STEPS}
