"""A transactional producer over the in-process broker: half messages, ends, and the checks that come to it."""

from collections.abc import Mapping

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.record import Record, decode_record, parse_message_id
from ropewalk.format.remoting import Command
from tests.broker.harness import UNIQ, Client, InProcess, heartbeat_body, request, send_ext

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OPS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
PREPARED = 4
FLAG_ONEWAY = 2


class Producer:
    """One producer of group `pg` on a connection of its own."""

    def __init__(self, running: InProcess, *, announced: bool = True, group: str = "pg") -> None:
        self.running = running
        self.client: Client = running.connect()
        self.group = group
        if announced:
            self.announce()

    def announce(self) -> None:
        body = heartbeat_body("p1", None, producers=[self.group])
        assert self.client.call(RequestCode.HEART_BEAT, body=body).code == 0

    def half(
        self, body: bytes = b"x", topic: str = "T", *, queue_id: int = 0, **properties: str
    ) -> dict[str, object]:
        """Send a half message, and return the header that ends it."""
        answer = self.half_answer(body, topic, queue_id=queue_id, **properties)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return self.end_header(answer)

    def half_answer(
        self, body: bytes = b"x", topic: str = "T", *, queue_id: int = 0, **properties: str
    ) -> Command:
        return self.client.call(
            RequestCode.SEND_MESSAGE_V2, self._half_ext(topic, queue_id, properties), body
        )

    def half_born(self, born_ms: int, body: bytes) -> dict[str, object]:
        """Send a half message under another time of the client, and return the header that ends it."""
        answer = self.client.call(
            RequestCode.SEND_MESSAGE_V2, {**self._half_ext("T", 0, {}), "g": born_ms}, body
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return self.end_header(answer)

    def half_frame(self, body: bytes, opaque: int, topic: str = "T", **properties: str) -> bytes:
        """Return the bytes of a half message's send."""
        return request(RequestCode.SEND_MESSAGE_V2, self._half_ext(topic, 0, properties), body, opaque=opaque)

    def _half_ext(self, topic: str, queue_id: int, properties: Mapping[str, str]) -> dict[str, object]:
        asked = {"UNIQ_KEY": UNIQ, "WAIT": "true", "TRAN_MSG": "true", "PGROUP": self.group, **properties}
        text = "".join(f"{name}\x01{value}\x02" for name, value in asked.items())
        return send_ext(topic, properties=text, sysFlag=PREPARED, producerGroup=self.group, queueId=queue_id)

    def end_header(self, answer: Command) -> dict[str, object]:
        return {
            "topic": "T",
            "producerGroup": self.group,
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": parse_message_id(answer.ext["msgId"])[2],
            "msgId": answer.ext["transactionId"],
            "transactionId": answer.ext["transactionId"],
        }

    def end(self, header: Mapping[str, object], decision: int, **changes: object) -> Command:
        """End a transaction, and wait for the answer."""
        return self.client.call(
            RequestCode.END_TRANSACTION, {**header, "commitOrRollback": decision, **changes}
        )

    def end_oneway(self, header: Mapping[str, object], decision: int, **changes: object) -> None:
        ext = {**header, "commitOrRollback": decision, **changes}
        self.client.ask(RequestCode.END_TRANSACTION, ext, flag=FLAG_ONEWAY)
        self.running.settle()

    def asked(self) -> list[tuple[dict[str, object], Record]]:
        """Return the checks that have come: the header that answers each, and the message."""
        found = []
        for command in self.client.answers():
            assert command.code == RequestCode.CHECK_TRANSACTION_STATE, command
            record = decode_record(command.body)
            found.append(
                (
                    {
                        "topic": record.topic,
                        "producerGroup": record.properties["PGROUP"],
                        "tranStateTableOffset": command.ext["tranStateTableOffset"],
                        "commitLogOffset": command.ext["commitLogOffset"],
                        "msgId": command.ext["msgId"],
                        "transactionId": command.ext["transactionId"],
                        "fromTransactionCheck": True,
                    },
                    record,
                )
            )
        return found


def round_of_checks(running: InProcess, *, later_ms: int = 30_000) -> None:
    """Let the next round of checks pass."""
    transactions = running.broker.transactions
    running.until(lambda: transactions.is_idle)
    running.tick(later_ms)
    running.until(lambda: transactions.is_idle)
    running.settle()


def progress(running: InProcess) -> tuple[int | None, int | None]:
    """Return the consumer offsets of half and operation queue, once all of it is flushed."""
    store = running.broker.store
    store.request_flush()
    running.until(lambda: store.log.flushed_offset == store.log.end_offset)
    running.tick()
    offsets = running.broker.offsets
    group = "CID_RMQ_SYS_TRANS"
    return offsets.query(group, HALF, 0), offsets.query(group, OPS, 0)
