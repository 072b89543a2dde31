"""The help text of each honoured configuration key, in a sentence or two: the text of docs/operate/configuration.md.

One key a line behind its name, under the heading of its part. Apart from `broker.settings.keys`, because a broker needs
none of it to start. A test holds the keys against that table: each honoured key stands here once, and no other does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["KeyHelp", "key_help"]


class KeyHelp(NamedTuple):
    """A key's heading and text."""

    section: str
    text: str


def key_help() -> dict[str, KeyHelp]:
    """Return heading and text by key, in the order of the page."""
    found: dict[str, KeyHelp] = {}
    section = ""
    for line in _HELP.splitlines():
        if line.startswith("# "):
            section = line.removeprefix("# ")
        elif line.startswith(" "):
            name, known = found.popitem()
            found[name] = KeyHelp(known.section, f"{known.text} {line.strip()}")
        elif line:
            name, _, text = line.partition(" ")
            assert name not in found, name
            found[name] = KeyHelp(section, text)
    return found


_HELP: Final = """
# This broker and its addresses
brokerClusterName The cluster that this broker belongs to.
brokerName The name of its group: master and slaves have the same one. Default: `broker-a` without a
    configuration file, else the machine's name.
brokerId 0 for the first master of a group; slaves have an id above 0, each its own.
brokerRole What this broker is at its first start. A handover changes the role later, and the changed role
    outlives restarts (`ropewalk/role.json`).
brokerIP1 The address that clients are told to connect to; a host name may stand here. Default: this machine's
    address.
brokerIP2 The address that slaves are told to connect to. Default: `brokerIP1`.
bindAddress The address to listen on; `::` listens on both families. Default: all addresses with a configuration
    file, the loopback interface without.
listenPort The port for clients; 0 is any free one. `listenPort` - 2 is opened too: RocketMQ's clients may send
    there.
haListenPort The port for slaves. Default: `listenPort` + 1.
namesrvAddr Name servers to register at, `HOST:PORT;HOST:PORT`. Without any, the broker brings one of its own.
regionId Told to producers in every answer.
# Registration at name servers
registerNameServerPeriod Milliseconds between two registrations.
registerBrokerTimeoutMills How long one registration may take, ms.
# Files
storePathRootDir The store's folder. Default: `ropewalk-data/<brokerName>` below the current folder without a
    configuration file, `~/store` with one.
storePathCommitLog The folder of the commit log. Default: `commitlog` in the store's folder.
mappedFileSizeCommitLog Bytes of one commit-log file. No file says it: on an existing store it must be what it
    was.
mappedFileSizeConsumeQueue Bytes of one consume-queue file, rounded up to whole entries of 20. The same holds.
# Key index
messageIndexEnable Whether messages can be found by key.
maxHashSlotNum Hash slots of one index file. No file says it.
maxIndexNum Items of one index file. No file says it.
maxMsgsNumBatch How many messages one query by key may give.
defaultQueryMaxNum How many messages one query by unique key may give.
# Retention
fileReservedTime Hours after which a commit-log file may be removed.
deleteWhen Hours of the day in which expired files are removed, separated by `;`, local time.
diskMaxUsedSpaceRatio Percent of the disk from which expired files are removed at any hour.
diskSpaceCleanForciblyRatio Percent of the disk from which files are removed before they expire.
diskSpaceWarningLevelRatio Percent of the disk from which sends are refused (14, SERVICE_NOT_AVAILABLE).
cleanFileForciblyEnable Whether files may be removed before they expire.
cleanResourceInterval Milliseconds between two looks at files and disk.
deleteFileBatchMax Commit-log files that one look removes at most.
deleteCommitLogFilesInterval Milliseconds between the removal of two commit-log files.
deleteConsumeQueueFilesInterval Milliseconds between the removal of two consume-queue files.
# Slow disks
osPageCacheBusyTimeOutMills How long an append may take, ms, before what waited behind it is answered "busy"
    (2).
# Replication
haMasterAddress Where the master is, `HOST:PORT` of its `haListenPort`, if no name server is to tell.
inSyncReplicas Copies of a message, the master's among them, before SEND_OK. Default: 2 for a SYNC_MASTER, else
    1.
minInSyncReplicas Copies below which no message is taken (1, nothing stored).
slaveTimeout How long an answer waits for slaves, ms, before it is FLUSH_SLAVE_TIMEOUT (12).
haSendHeartbeatInterval Milliseconds between two heartbeats on an idle replication connection.
haHousekeepingInterval Silence after which a replication connection is closed, ms.
haTransferBatchSize Bytes of one replication frame at most.
haMaxGapNotInSync Bytes that a slave may be behind and still count as in sync.
haFlowControlEnable Whether `maxHaTransferByteInSecond` holds.
maxHaTransferByteInSecond Bytes a second to all slaves together.
slaveReadEnable Whether consumers that read far behind are sent to a slave.
ackAfterFlush Whether a slave reports what is flushed, and not what is written. Ropewalk's own; class A3 needs
    it on master and slaves.
haSyncFromLastFile Whether an empty slave gets the newest commit-log file only, as from RocketMQ, and not all
    there is. Ropewalk's own.
ropewalkSecret A secret that members of a group prove to each other. Unknown peers are then refused on the
    replication port. Ropewalk's own.
ropewalkSecretAlso A second secret that this broker takes and never sends, while the secret of a group is changed.
    Ropewalk's own.
ropewalkSecretV1 Whether members of the release before are spoken to, which prove their questions and not their answers.
    Set it to `false` when all members are of this release. Ropewalk's own.
ropewalkAddressAliases Further addresses at which members and operators dial this broker, `HOST:PORT;HOST:PORT`: a
    proxy's, or a mapped port. With `ropewalkSecret` a question to any other address is refused. Ropewalk's own.
ropewalkOpenGroup Whether a group without `ropewalkSecret` is meant, because only its members reach it: the start and
    `/readyz` say nothing of it then. Ropewalk's own.
ropewalkMasterAddress The master's `HOST:listenPort`, for a slave that has only `haMasterAddress`. Default: that
    port - 1. Ropewalk's own.
# DLedger mode
enableDLegerCommitLog Whether this broker is a member of a group that elects its leader and acknowledges what most
    members have on disk.
dLegerGroup The name of that group; members of another one are refused. Default: `brokerName`.
dLegerPeers The members with which the group begins, this one too: `n0-HOST:PORT;n1-HOST:PORT;n2-HOST:PORT`. The port
    is one of its own. Members have one `brokerName`. Afterwards the log names the members, and this is where a new one
    finds its group: those that there are, and itself.
dLegerSelfId The member that this broker is, a letter and a number: `n0`. A follower is registered under that number
    + 1.
preferredLeaderId Members that campaign before the others, and that the lead is handed to, separated by `;`.
storePathDLedgerCommitLog The folder of the log's files. Default: `dledger-<dLegerSelfId>/data` in the store's folder.
raftHeartbeatMs Milliseconds between two heartbeats of a leader. Ropewalk's own.
raftElectionMs The shortest and the longest election timeout in milliseconds; each is drawn between them. Ropewalk's
    own.
raftLeaseReads A leader answers reads of newest values without asking the others first, for nine tenths of the shortest
    election timeout after most of them heard it. The same on all members, whose clocks may differ in rate by a tenth
    at most; a killed leader is then followed after an election timeout, and not at once. Ropewalk's own.
ropewalkKvRegions The regions that a new key-value store of the group is cut into, up to 16: their number, cut so that
    keys with small letters and digits in front are spread evenly, or the keys to cut at, each with a `;` behind it
    (`g;n;t;`). 0: there is no store. A store that was ever cut keeps its regions (`ropewalk kv split`). The same on all
    members. Ropewalk's own.
kvMemoryMax What a region of the key-value store holds in memory at most, key + value + 200 bytes for each item; writes
    that would pass it are refused. Ropewalk's own.
# When bytes reach the disk
flushDiskType SYNC_FLUSH answers a send after the fsync that covers it.
flushIntervalCommitLog Milliseconds between two flushes under ASYNC_FLUSH.
syncFlushTimeout How long an answer waits for a flush, ms, before it is FLUSH_DISK_TIMEOUT (10).
flushConsumerOffsetInterval Milliseconds between two writes of committed offsets to the disk.
# Topics and groups
autoCreateTopicEnable Whether the first message to a topic makes it.
autoCreateSubscriptionGroup Whether the first heartbeat or pull of a group makes it.
autoCreateTopicsMax The number of topics from which on no message makes another one; retry and dead-letter topics are
    not counted, and administrators make more. Ropewalk's own.
autoCreateGroupsMax The number of groups from which on no client makes another one; groups that clients made and that
    were never used are removed for new ones. Ropewalk's own.
newNamesPerMinute How many topics, and how many groups, the clients of one address make in a minute while half of
    `autoCreateTopicsMax` or `autoCreateGroupsMax` is taken. They never make more than three times as many as are
    free. Ropewalk's own.
offsetPairsMax The number of pairs of topic and group of which offsets are kept. While half of them are taken, the
    clients of one address may not have made more of them than are free. Ropewalk's own.
defaultTopicQueueNums Queues of a topic that is made so, at most: producers ask for 4.
clusterTopicEnable Whether there is a topic named after the cluster.
brokerTopicEnable Whether there is a topic named after the broker.
brokerPermission 4 read, 2 write, 6 both: for all topics of this broker.
traceOn Told to producers in every answer: whether traces are wanted.
traceTopicEnable Whether the topic for message traces is made at start.
msgTraceTopicName The topic for message traces.
messageDelayLevel The delays of levels 1, 2, 3 …; units are s, m, h, d.
timerWheelEnable Whether timer messages (`TIMER_DELAY_SEC`, `TIMER_DELAY_MS`, `TIMER_DELIVER_MS`) are taken; without it
    they are refused, and those that wait go on waiting.
timerMaxDelaySec How many seconds ahead a timer message may be due.
timerPrecisionMs Milliseconds of one slot of the timer wheel: a message is delivered up to so much after its time.
    It may not change while messages wait.
timerRollWindowSlot Slots after which a timer message is stored again, half-way to its time; below 2 and above 604740
    it is 604740.
timerCongestNumEachSlot Timer messages of one slot beyond which further ones are refused.
mappedFileSizeTimerLog Bytes of one file of the timer log. It may not change once there is one.
recallMessageEnable Whether a timer message can be recalled before it is due, by code 370 or TIMER_DEL_UNIQKEY.
appendTopicForTimerDeleteKey Whether recalls are stored with the topic in their key, as some versions of RocketMQ read
    them; both kinds are understood.
storeReplyMessageEnable Whether the answers of request-reply calls are stored too.
maxMessageSize Bytes of a message's body at most, and of a batch. A batch has at most 10,000 messages, 5,000 in DLedger
  mode.
# Transactions
rejectTransactionMessage Whether half messages are refused.
transactionTimeOut Milliseconds after which an undecided half message is checked: its producer group is asked. A
    message may ask for longer with `CHECK_IMMUNITY_TIME_IN_SECONDS`.
transactionCheckInterval Milliseconds between two rounds of checks.
transactionCheckMax How often a producer is asked before a half message is given up, into
    `TRANS_CHECK_MAX_TIME_TOPIC`. Rounds in which no producer of the group was connected do not count.
transactionOpMsgMaxSize Bytes of the half offsets in one operation record, about.
# Pulls
longPollingEnable Whether a pull that finds nothing waits for the next message.
litePullMessageEnable Whether code 361 is served.
shortPollingTimeMills How long a pull waits where long polling is off, ms.
maxTransferBytesOnMessageInMemory Bytes of one answer from the end of the log.
maxTransferCountOnMessageInMemory Messages of one answer from the end of the log.
maxTransferBytesOnMessageInDisk Bytes of one answer from further behind.
maxTransferCountOnMessageInDisk Messages of one answer from further behind.
accessMessageInMemoryMaxRatio Percent of this machine's memory that counts as "the end of the log".
fastPathEnable Whether requests that come again and again are recognised by their bytes; off, each is handled by itself.
warmWindowBytes How much of the log's end is read from the map by the loop; what lies behind is read by threads.
    Ropewalk's own.
catchUpReadRatio Percent of a busy broker's time for pulls from further behind the log's end than that while producers
    send; 100 puts none off. Ropewalk's own.
bulkReadMaxBytes Bytes of one answer to a pipeline (code 30020). Ropewalk's own.
sinkExpiryHours Hours after which an idle sink that writes exactly once is forgotten. Ropewalk's own.
sinkWindowRowsMax Rows that an open batch of such a sink may have, at some 90 bytes of memory each. Ropewalk's own.
# Filters
enablePropertyFilter Whether consumers may filter by SQL92 expressions over properties; the broker evaluates them.
filterSupportRetry Whether SQL92 subscriptions of retry topics go by the expression for the topic that a message came
    from. Clients subscribe to retry topics with `*`, to which this means nothing.
filterDataCleanTimeSpan How long the expression of a group without members is kept, ms.
maxErrorRateOfBloomFilter With `expectConsumerNumUseFilter` the geometry of RocketMQ's Bloom filter, which
    `consumerFilter.json` has to agree with where RocketMQ is to read it. Percent.
expectConsumerNumUseFilter See `maxErrorRateOfBloomFilter`.
filterIgnoreTrailingText Whether text behind a complete expression is ignored, as by RocketMQ: `s LIKE 'h%'` then means
    `s`. Otherwise it is an error.
# Connections
channelExpiredTimeout Silence after which a client is taken out of its groups, ms.
serverChannelMaxIdleTimeSeconds Silence after which a connection is closed, s.
firstRequestTimeoutSeconds Time in which something must arrive over a new connection of a client, s. A name server
    closes silent connections so early only while half of the places for connections are taken. Ropewalk's own.
outgoingBytesMax Bytes that may wait for one slow reader before its requests are left unread. Ropewalk's own.
outgoingBytesTotalMax Bytes that may wait for all slow readers together before those that have not taken their last
    answer are left unread, too. Ropewalk's own.
incomingBytesTotalMax Bytes of requests that have begun to arrive and are not complete, over all connections. At the
    bound the address that holds most loses the connections whose requests are unfinished for longest. A request
    must be complete after 30 s and a second for each 64 KiB of its size. Ropewalk's own.
namesrvPort The port of the name server inside the broker; 0 is any free one. Ropewalk's own.
# Checksums
checkAtStartBytes How much of the log's end a start checks in full. Ropewalk's own.
scrubBytesPerSecond What the background check may read in a second; 0 for none. Ropewalk's own.
# Metrics
metricsExporterType PROM serves `/metrics`, `/livez` and `/readyz`; DISABLE opens no port.
metricsPromExporterHost The address of the metrics port. Default: `bindAddress`.
metricsPromExporterPort The port. Default: the first free one of 5557 to 5572, else any; any where `listenPort` is 0.
metricsLabel Labels for every series, `name:value,name:value`.
# The log
logLevel The least serious events that are logged. Ropewalk's own; also `--log-level`.
logFormat Text, JSON, or `auto`: text on a terminal, JSON elsewhere. Ropewalk's own; also `--log-format`.
logFile A file that lines are appended to, in place of standard error; renaming it starts a new one. Ropewalk's own;
    also `--log-file`.
# Files
ropewalkUmask The permissions that files and folders made by the broker do not have, in octal: 077 leaves them to their
    owner, 027 lets the group read them. Ropewalk's own; `ropewalk namesrv` and `ropewalk store` take ROPEWALK_UMASK.
"""
