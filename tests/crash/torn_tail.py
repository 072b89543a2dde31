"""kill -9, then one byte of the log's last record changed: what a crash in the middle of a copy leaves behind."""

from __future__ import annotations

from tests.crash.campaign import MIB, Campaign, Setup

SEGMENT_SIZE = 16 * MIB
SETUP = Setup("ASYNC_FLUSH", SEGMENT_SIZE)
SETTINGS: dict[str, str | int] = {"flushIntervalCommitLog": 600_000}
"""No flush of its own accord, so that nothing says that the last record was durable."""


def tear_and_look(campaign: Campaign) -> str:
    """Load, kill, tear the last acknowledged message, start, audit, kill. Returns the id of the torn one."""
    server = campaign.start()
    assert server is not None, campaign.verdict()
    with server:
        campaign.load_and_kill(server, seconds=0.3, quiet=0.05)
    sent = campaign.ledger.sent
    torn = max(
        (message_id for message_id, entry in sent.items() if entry.log_offset is not None),
        key=lambda message_id: sent[message_id].log_offset or 0,
    )
    offset = sent[torn].log_offset
    assert offset is not None and offset < SEGMENT_SIZE
    with (campaign.place.store / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(offset)
        record = log.read(400)
        at = offset + record.index(torn.encode() + b" ") + len(torn) + 1
        log.seek(at)
        byte = log.read(1)
        log.seek(at)
        log.write(bytes([byte[0] ^ 1]))
    campaign.audit.excused.add(torn)
    server = campaign.start()
    if server is not None:
        with server:
            campaign.look(server)
    return torn
