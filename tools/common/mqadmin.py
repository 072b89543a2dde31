"""The commands of RocketMQ's `mqadmin`, and the ones of `ropewalk admin` that do the same.

Names only: a person who types one learns the other, in the error of an unknown command and on the page of all commands.
`mqadmin` itself works on Ropewalk's brokers; a command without a counterpart is not in the table.
"""

from __future__ import annotations

from typing import Any, Final

import typer.core

__all__ = ["COUNTERPARTS", "GroupKnowingMqadmin"]

COUNTERPARTS: Final = {
    "updateTopic": ("topic create", "topic update"),
    "updateTopicList": ("topic create",),
    "updateTopicPerm": ("topic perm",),
    "deleteTopic": ("topic delete",),
    "topicList": ("topic list",),
    "topicStatus": ("topic show",),
    "topicRoute": ("topic route",),
    "topicClusterList": ("topic route",),
    "statsAll": ("broker stats",),
    "updateSubGroup": ("group create", "group update"),
    "deleteSubGroup": ("group delete",),
    "getConsumerConfig": ("group show",),
    "consumerProgress": ("lag", "group lag"),
    "consumerStatus": ("group status",),
    "consumerConnection": ("connections",),
    "producerConnection": ("connections",),
    "producer": ("connections",),
    "resetOffsetByTime": ("group reset",),
    "skipAccumulatedMessage": ("group skip",),
    "cloneGroupOffset": ("group clone",),
    "queryMsgById": ("message by-id",),
    "queryMsgByUniqueKey": ("message by-unique-key",),
    "queryMsgByKey": ("message by-key",),
    "queryMsgByOffset": ("message by-offset",),
    "queryMsgTraceById": ("message show",),
    "printMsg": ("message by-time",),
    "printMsgByQueue": ("message by-time",),
    "sendMessage": ("message send",),
    "clusterList": ("broker list", "cluster list"),
    "brokerStatus": ("broker status",),
    "getBrokerConfig": ("broker config get",),
    "updateBrokerConfig": ("broker config set",),
    "wipeWritePerm": ("broker wipe-write-perm",),
    "addWritePerm": ("broker restore-write-perm",),
    "getNamesrvConfig": ("cluster name-servers",),
    "haStatus": ("ha status",),
    "getSyncStateSet": ("ha status",),
    "getBrokerEpoch": ("ha status",),
    "electMaster": ("ha switch", "ha failover"),
}
"""Command of mqadmin -> the words behind `ropewalk admin`."""


class GroupKnowingMqadmin(typer.core.TyperGroup):
    """A group of commands whose error for a command of mqadmin, or of one of its own groups, names the right words."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not args or args[0] in self.commands:
            return super().resolve_command(ctx, args)
        known = {name.lower(): words for name, words in COUNTERPARTS.items()}
        words = known.get(args[0].lower())
        if words is not None:
            ctx.fail(f"No such command '{args[0]}'. What mqadmin calls so is {_spelled(words)}.")
        words = tuple(
            f"{name} {args[0]}"
            for name, group in self.commands.items()
            if args[0] in getattr(group, "commands", {})
        )
        if words:
            ctx.fail(f"No such command '{args[0]}'. It is {_spelled(words)}.")
        return super().resolve_command(ctx, args)


def _spelled(commands: tuple[str, ...]) -> str:
    return " or ".join(f"`ropewalk admin {each}`" for each in commands)
