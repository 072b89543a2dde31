"""Every configuration key that a RocketMQ 5.5.0 broker file may hold, and its effect here.

One flat name space, as in RocketMQ: the keys of its BrokerConfig, MessageStoreConfig, NettyServerConfig,
NettyClientConfig and AuthConfig, and its `tls.*` properties. Each key carries one mark:

    HONOURED    it does here what it does there
    NO_EFFECT   known, checked for its type, and then without effect; one warning lists those that were set
    REFUSED     without effect as long as it keeps its default; the values of `refused` would promise
                something that is not built, so they stop the start

Ropewalk's own keys are HONOURED too and say so in their section. A key that is not in this table is a
mistake. The long table at the end of the file is plain text, one key a line, because there is nothing to
say about these keys but their type and the original's default; `-` stands for a default that is empty or
that the original derives from the machine it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Final


class Kind(Enum):
    """The type of a key's text. `int` and `long` are Java's, 32 and 64 bits."""

    BOOL = "bool"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    TEXT = "text"


class Mark(Enum):
    """The effect of a key here; see the head of this file."""

    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


Value = bool | int | float | str

ANY = "*"
"""In `Key.refused`: whatever is set."""

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Key:
    """A row: what may be written behind the key, and what it means."""

    name: str
    kind: Kind
    default: Value | None
    """None: empty, or derived from other keys or from the machine when the configuration is loaded."""
    mark: Mark
    low: int = LONG_MIN
    high: int = LONG_MAX
    """Bounds of a number, both allowed."""
    choices: tuple[str, ...] = ()
    """The words a text may be; empty: any."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Value as it would be written in a file, or ANY -> why it stops the start."""

    @property
    def attribute(self) -> str:
        """The name in Python: flushDiskType -> flush_disk_type, brokerIP1 -> broker_ip1."""
        return _attribute(self.name)

    @property
    def variable(self) -> str:
        """The environment variable: flushDiskType -> ROPEWALK_FLUSH_DISK_TYPE, ropewalkSecret -> ROPEWALK_SECRET."""
        return f"ROPEWALK_{self.attribute.upper().removeprefix('ROPEWALK_')}"

    @property
    def variables(self) -> tuple[str, ...]:
        """All names of the environment variable: of a key that begins with `ropewalk` the doubled word too."""
        return tuple(dict.fromkeys((self.variable, f"ROPEWALK_{self.attribute.upper()}")))


@cache  # every load of a configuration asks for all of them, some twice
def _attribute(name: str) -> str:
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name.replace(".", "_"))
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words).lower()


def _text(name: str, default: str | None, *choices: str, refused: Mapping[str, str] | None = None) -> Key:
    return Key(name, Kind.TEXT, default, Mark.HONOURED, choices=choices, refused=refused or {})


def _bool(name: str, default: bool) -> Key:
    return Key(name, Kind.BOOL, default, Mark.HONOURED)


def _int(name: str, default: int | None, low: int, high: int = INT_MAX) -> Key:
    return Key(name, Kind.INT, default, Mark.HONOURED, low, high)


def _long(name: str, default: int, low: int, high: int = LONG_MAX) -> Key:
    return Key(name, Kind.LONG, default, Mark.HONOURED, low, high)


def _refused(name: str, kind: Kind, default: Value | None, refused: Mapping[str, str], *choices: str) -> Key:
    return Key(name, kind, default, Mark.REFUSED, choices=choices, refused=refused)


_SCRAPED = "metrics are served as Prometheus text and pushed to nobody; PROM serves them, DISABLE does not"

_HONOURED: Final = (
    # Who this broker is, and where it is reached.
    _text("brokerClusterName", "DefaultCluster"),
    _text("brokerName", None),
    _long("brokerId", 0, 0),
    _text("brokerRole", "ASYNC_MASTER", "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    _text("brokerIP1", None),  # what clients are told to connect to
    _text("brokerIP2", None),  # what slaves are told to connect to
    _text("bindAddress", None),
    _int("listenPort", 10911, 0, 65534),
    _int("haListenPort", None, 0, 65535),
    _text("namesrvAddr", None),
    _text("regionId", "DefaultRegion"),
    # Registration at the name servers, milliseconds.
    _int("registerNameServerPeriod", 30_000, 1),
    _int("registerBrokerTimeoutMills", 24_000, 1),
    # Files.
    _text("storePathRootDir", None),
    _text("storePathCommitLog", None),
    _int("mappedFileSizeCommitLog", GIB, 64 * KIB),
    _int("mappedFileSizeConsumeQueue", 6_000_000, 20, INT_MAX // 20 * 20),
    # The key index; slots and items of each of its files. How many messages one query by key may give, and one by
    # unique key.
    _bool("messageIndexEnable", True),
    _int("maxHashSlotNum", 5_000_000, 1),
    _int("maxIndexNum", 20_000_000, 2),
    _int("maxMsgsNumBatch", 64, 1),
    _int("defaultQueryMaxNum", 32, 1),
    # How long messages are kept: hours; hours of the day, separated by ';'; percent of a disk; milliseconds.
    _int("fileReservedTime", 72, 0),
    _text("deleteWhen", "04"),
    _int("diskMaxUsedSpaceRatio", 75, 0, 100),
    _int("diskSpaceCleanForciblyRatio", 85, 0, 100),
    _int("diskSpaceWarningLevelRatio", 90, 0, 100),
    _bool("cleanFileForciblyEnable", True),
    _int("cleanResourceInterval", 10_000, 1),
    _int("deleteFileBatchMax", 10, 1),
    _int("deleteCommitLogFilesInterval", 100, 0),
    _int("deleteConsumeQueueFilesInterval", 100, 0),
    # How long an append may take before what waited behind it is answered "busy", milliseconds.
    _int("osPageCacheBusyTimeOutMills", 1_000, 1),
    # Replication. Where the master is, if no name server shall say; copies of a message, the master's among them,
    # before it is acknowledged (2 for a SYNC_MASTER, else 1) and below which none is taken; milliseconds and bytes.
    _text("haMasterAddress", None),
    _int("inSyncReplicas", None, 1, 64),
    _int("minInSyncReplicas", 1, 1, 64),
    _int("slaveTimeout", 3_000, 1),
    _int("haSendHeartbeatInterval", 5_000, 1),
    _int("haHousekeepingInterval", 20_000, 1),
    _int("haTransferBatchSize", 32 * KIB, 1, 4 * MIB - 12),
    _int("haMaxGapNotInSync", 256 * MIB, 1),
    _bool("haFlowControlEnable", False),
    _long("maxHaTransferByteInSecond", 100 * MIB, 1),
    _bool("slaveReadEnable", False),
    # When bytes reach the disk; intervals in milliseconds, pages of 4 KiB.
    _text("flushDiskType", "ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"),
    _int("flushIntervalCommitLog", 500, 1),
    _int("syncFlushTimeout", 5_000, 1),
    _int("flushConsumerOffsetInterval", 5_000, 1),
    # Topics and groups.
    _bool("autoCreateTopicEnable", True),
    _bool("autoCreateSubscriptionGroup", True),
    # How many topics and groups clients make by using them, how many of these one address makes in a minute once half
    # of them are made, and of how many pairs of topic and group offsets are kept.
    _int("autoCreateTopicsMax", 20_000, 100, 20_000),
    _int("autoCreateGroupsMax", 10_000, 20, 10_000),
    _int("newNamesPerMinute", 100, 1),
    _int("offsetPairsMax", 200_000, 100, 10_000_000),
    _int("defaultTopicQueueNums", 8, 1, 1_024),
    _bool("clusterTopicEnable", True),
    _bool("brokerTopicEnable", True),
    _int("brokerPermission", 6, 0, 7),
    _bool("traceOn", True),
    _bool("traceTopicEnable", False),
    _text("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC"),
    _text("messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
    # Timer messages: seconds ahead, milliseconds and slots; and taking one back before it is due.
    _bool("timerWheelEnable", True),
    _int("timerMaxDelaySec", 259_200, 1),
    _int("timerPrecisionMs", 1_000, 1, 60_000),
    _int("timerRollWindowSlot", 172_800, INT_MIN),
    _int("timerCongestNumEachSlot", INT_MAX, 1),
    _int("mappedFileSizeTimerLog", 100 * MIB, 4 * KIB),
    _bool("recallMessageEnable", False),
    _bool("appendTopicForTimerDeleteKey", False),
    _bool("storeReplyMessageEnable", True),
    # A body must fit into a frame of 16 MiB together with its header.
    _int("maxMessageSize", 4 * MIB, 1, 15 * MIB),
    # Transactions; milliseconds, checks, bytes.
    _bool("rejectTransactionMessage", False),
    _long("transactionTimeOut", 6_000, 0),
    _long("transactionCheckInterval", 30_000, 10),
    _int("transactionCheckMax", 15, 1),
    _int("transactionOpMsgMaxSize", 4_096, 1, MIB),
    # Pulls.
    _bool("longPollingEnable", True),
    _bool("litePullMessageEnable", True),
    _long("shortPollingTimeMills", 1_000, 1, 60_000),
    _int("maxTransferBytesOnMessageInMemory", 256 * KIB, 1, 15 * MIB),
    _int("maxTransferCountOnMessageInMemory", 32, 1),
    _int("maxTransferBytesOnMessageInDisk", 64 * KIB, 1, 15 * MIB),
    _int("maxTransferCountOnMessageInDisk", 8, 1),
    _int("accessMessageInMemoryMaxRatio", 40, 0, 100),
    # Filters by properties. How long the expression of a group without members is kept, milliseconds; the geometry of
    # RocketMQ's Bloom filter, which stands in its file; Ropewalk's own: whether text behind an expression is ignored.
    _bool("enablePropertyFilter", False),
    _bool("filterSupportRetry", False),
    _long("filterDataCleanTimeSpan", 86_400_000, 0),
    _int("maxErrorRateOfBloomFilter", 20, 1, 99),
    _int("expectConsumerNumUseFilter", 32, 1, 1_000_000),
    _bool("filterIgnoreTrailingText", False),
    # Connections.
    _long("channelExpiredTimeout", 120_000, 1),
    _int("serverChannelMaxIdleTimeSeconds", 120, 1),
    _int("firstRequestTimeoutSeconds", 10, 1),
    # Ropewalk's own. How much of the log's end is read from the map and not by the reader thread; the share of a busy
    # loop for pulls from further behind; how much may wait for one slow reader, and for all of them, before requests
    # are left unread; how much of unfinished requests is kept; how much one answer to a pipeline may hold; the embedded
    # name server's port.
    _long("warmWindowBytes", 256 * MIB, MIB),
    _int("catchUpReadRatio", 5, 1, 100),
    _long("outgoingBytesMax", 8 * MIB, 64 * KIB, GIB),
    _long("outgoingBytesTotalMax", 256 * MIB, MIB, 1024 * GIB),
    _long("incomingBytesTotalMax", 256 * MIB, 32 * MIB, 1024 * GIB),
    _int("bulkReadMaxBytes", 4 * MIB, 64 * KIB, 15 * MIB),
    _int("sinkExpiryHours", 168, 1, 87_600),
    _int("sinkWindowRowsMax", 5_000_000, 1),
    _bool("fastPathEnable", True),
    # How much of the log's end a start checks in full; what the scrubber may read in a second, 0 for none.
    _long("checkAtStartBytes", 16 * MIB, 0),
    _long("scrubBytesPerSecond", 4 * MIB, 0),
    _int("namesrvPort", 9876, 0, 65535),
    # Whether a slave reports what is flushed, and not what is written; whether an empty slave gets the newest segment
    # only, as from RocketMQ, and not all there is.
    _bool("ackAfterFlush", False),
    _bool("haSyncFromLastFile", False),
    # DLedger mode: a group of brokers that elects its leader. Members as `n0-host:port;n1-host:port`, this one among
    # them; Ropewalk's own: milliseconds between heartbeats, and the bounds of an election timeout.
    _bool("enableDLegerCommitLog", False),
    _text("dLegerGroup", None),
    _text("dLegerPeers", None),
    _text("dLegerSelfId", None),
    _text("preferredLeaderId", None),
    _text("storePathDLedgerCommitLog", None),
    _int("raftHeartbeatMs", 100, 5, 60_000),
    _text("raftElectionMs", "500-900"),
    _bool("raftLeaseReads", False),
    # The key-value store of such a group: how many regions a new one is cut into, or the keys at which (0: no store),
    # and what one may hold in memory.
    _text("ropewalkKvRegions", "0"),
    _long("kvMemoryMax", 256 * MIB, MIB),
    # What every member of a group has to know; and where a slave that has only haMasterAddress says hello.
    _text("ropewalkSecret", None),
    _text("ropewalkSecretAlso", None),
    _bool("ropewalkSecretV1", True),
    _text("ropewalkAddressAliases", None),
    _bool("ropewalkOpenGroup", False),
    _text("ropewalkMasterAddress", None),
    # Metrics, from a port of their own (5557; any free one where listenPort is 0); DISABLE is no port at all.
    _text(
        "metricsExporterType", "PROM", "PROM", "DISABLE", "OTLP_GRPC", "LOG",
        refused={"OTLP_GRPC": _SCRAPED, "LOG": _SCRAPED},
    ),
    _text("metricsPromExporterHost", None),
    _int("metricsPromExporterPort", None, 0, 65535),
    _text("metricsLabel", None),
    # The log of the process, beside which RocketMQ has a file of logback's.
    _text("logLevel", "info", "debug", "info", "warning", "error", "critical"),
    _text("logFormat", "auto", "auto", "text", "json"),
    _text("logFile", None),
    # The permissions that files of this process do not have: other users of the machine have none.
    _text("ropewalkUmask", "077"),
)  # fmt: skip

_NO_AUTH = "authentication is not built yet, and without it everybody would be let in"
_NO_TLS = "TLS is not built yet, and connections would be in the clear"
_NO_CERTIFICATES = "TLS is not built yet, and nobody would be asked for a certificate"
SEVERAL_DIRECTORIES = "several log directories are not supported; name one"

_REFUSED: Final = (
    _refused(
        "transientStorePoolEnable", Kind.BOOL, False,
        {"true": "records in a pool of their own would be lost by kill -9 although they were acknowledged"},
    ),
    _refused("enableControllerMode", Kind.BOOL, False, {"true": "the controller mode is not built yet"}),
    _refused(
        "allAckInSyncStateSet", Kind.BOOL, False,
        {"true": "it belongs to the controller mode, which is not built yet"},
    ),
    _refused(
        "storeType", Kind.TEXT, "default", {"defaultRocksDB": "the RocksDB store is not supported"},
        "default", "defaultRocksDB",
    ),
    _refused("readOnlyCommitLogStorePaths", Kind.TEXT, None, {ANY: SEVERAL_DIRECTORIES}),
    _refused("authenticationEnabled", Kind.BOOL, False, {"true": _NO_AUTH}),
    _refused("authorizationEnabled", Kind.BOOL, False, {"true": _NO_AUTH}),
    _refused("aclEnable", Kind.BOOL, False, {"true": _NO_AUTH}),
    _refused("migrateAuthFromV1Enabled", Kind.BOOL, False, {"true": _NO_AUTH}),
    _refused("useTLS", Kind.BOOL, False, {"true": _NO_TLS}),
    _refused("tls.enable", Kind.BOOL, False, {"true": _NO_TLS}),
    _refused("tls.server.authClient", Kind.BOOL, False, {"true": _NO_CERTIFICATES}),
    _refused("tls.client.authServer", Kind.BOOL, False, {"true": _NO_CERTIFICATES}),
    _refused(
        "tls.server.need.client.auth", Kind.TEXT, "none",
        {"require": _NO_CERTIFICATES, "optional": _NO_CERTIFICATES}, "none", "optional", "require",
    ),
    _refused(
        "duplicationEnable", Kind.BOOL, False,
        {"true": "dispatching behind a confirmed offset is not built yet"},
    ),
    _refused("enableSlaveActingMaster", Kind.BOOL, False, {"true": "acting masters are not built yet"}),
    _refused(
        "tls.server.mode", Kind.TEXT, "permissive",
        {"enforcing": "TLS is not built yet, and clients would be served in the clear"},
        "disabled", "permissive", "enforcing",
    ),
)  # fmt: skip

_WITHOUT_EFFECT: Final = """
# BrokerConfig
accountStatsEnable bool true
accountStatsPrintZeroValues bool true
ackMessageThreadPoolNums int 16
ackThreadPoolQueueCapacity int 100000
adminBrokerThreadPoolNums int 16
adminBrokerThreadPoolQueueCapacity int 10000
allowRecallWhenBrokerNotWriteable bool true
appendAckAsync bool false
appendCkAsync bool false
asyncSendEnable bool true
autoDeleteUnusedStats bool true
broadcastOffsetExpireMaxSecond long 300
broadcastOffsetExpireSecond long 120
brokerConfigPath text -
brokerElectionPriority int 2147483647
brokerFastFailureEnable bool true
brokerHeartbeatInterval int 1000
brokerNotActiveTimeoutMillis long 10000
cgColdReadThreshold long 3145728
checkSyncStateSetPeriod long 5000
cleanOfflineBrokerInterval int 30000
clearRetryTopicWhenDeleteTopic bool true
clientManageThreadPoolNums int 32
clientManagerThreadPoolQueueCapacity int 1000000
coldCtrStrategyEnable bool false
commercialBaseCount int 1
commercialSizePerMsg int 4096
compatibleWithOldNameSrv bool true
compressedRegister bool false
configBlackList text configBlackList;brokerConfigPath
configManagerVersion text v1
consumerFallbehindThreshold long 17179869184
consumerManageThreadPoolNums int 32
consumerManagerThreadPoolQueueCapacity int 1000000
consumerOffsetUpdateVersionStep long 500
controllerAddr text -
controllerHeartBeatTimeoutMills long 10000
defaultMessageRequestMode text PULL
defaultPopShareQueueNum int -1
delayOffsetUpdateVersionStep long 200
disableConsumeIfConsumerReadSlowly bool false
enableBroadcastOffsetStore bool true
enableCalcFilterBitMap bool false
enableConnectionMetrics bool true
enableCreateSysGroup bool true
enableDetailStat bool true
enableFastChannelEventProcess bool false
enableLagAndDlqMetrics bool true
enableLiteEventMode bool true
enableLitePopLog bool false
enableLmqStats bool false
enableMessageStoreMetrics bool true
enableMixedMessageType bool false
enableNetWorkFlowControl bool false
enableNotifyAfterPopOrderLockRelease bool true
enableNotifyBeforePopCalculateLag bool true
enablePopBatchAck bool false
enablePopBufferMerge bool false
enablePopLog bool false
enablePopMessageThreshold bool false
enablePopMetrics bool true
enableRegisterProducer bool true
enableRemoteEscape bool false
enableRemotingMetrics bool true
enableRequestMetrics bool true
enableRetryTopicV2 bool false
enableSingleTopicRegister bool false
enableSkipLongAwaitingAck bool false
enableSplitMetadata bool true
enableSplitRegistration bool false
enableStatsMetrics bool true
enableTransactionMetrics bool true
endTransactionPoolQueueCapacity int 100000
endTransactionThreadPoolNums int -
estimateAccumulation bool true
fetchControllerAddrByDnsLookup bool false
fetchNameSrvAddrByDnsLookup bool false
fetchNamesrvAddrByAddressServer bool false
fetchNamesrvAddrInterval long 10000
flushConsumerOffsetHistoryInterval int 60000
forceRegister bool true
forwardTimeout long 3000
globalColdReadThreshold long 104857600
heartbeatThreadPoolNums int -
heartbeatThreadPoolQueueCapacity int 50000
highSpeedMode bool false
inBrokerContainer bool false
initPopOffsetByCheckMsgInMem bool true
isolateLogEnable bool false
liteEventCheckInterval long 10000
liteEventFullDispatchDelayTime long 10000
liteEventFullDispatchDelayTimeForWildcardGroup long 10000
liteLagCountMetricsEnable bool false
liteLagLatencyCollectEnable bool false
liteLagLatencyMetricsEnable bool false
liteLagLatencyTopK int 50
litePullMessageThreadPoolNums int -
litePullThreadPoolQueueCapacity int 100000
liteSubscriptionCheckInterval long 120000
liteSubscriptionCheckTimeoutMills long 180000
liteTtlCheckInterval long 120000
loadBalancePollNameServerInterval long 30000
loadBalanceProcessorThreadPoolNums int 32
loadBalanceThreadPoolQueueCapacity int 100000
lockInStrictMode bool false
maxClientEventCount int 100
maxLiteSubscriptionCount long 100000
maxMessageFilterNumForNotification int 64
maxPopPollingSize long 100000
maxStatsIdleTimeInMinutes int -1
messageStorePlugIn text -
metricGrpcExporterIntervalInMills long 60000
metricGrpcExporterTimeOutInMills long 3000
metricLoggingExporterIntervalInMills long 10000
metricsExportBatchMaxDataPoints int 1000
metricsGrpcExporterHeader text -
metricsGrpcExporterTarget text -
metricsInDelta bool false
metricsOtelCardinalityLimit int 50000
minLiteTTl long 900000
notifyConsumerIdsChangedEnable bool true
persistConsumerOffsetIncrementally bool false
popCkMaxBufferSize int 200000
popCkOffsetMaxQueueSize int 20000
popCkStayBufferTime int 10000
popCkStayBufferTimeOut int 3000
popConsumerFSServiceInit bool true
popConsumerKVServiceEnable bool false
popConsumerKVServiceInit bool false
popConsumerKVServiceLog bool false
popFromRetryProbability int 20
popFromRetryProbabilityForPriority int 0
popInflightMessageThreshold long 10000
popLongPollingForceNotifyInterval long 800
popPollingMapExpireTimeSeconds int 600
popPollingMapSize int 100000
popPollingSize int 1024
popResponseReturnActualRetryTopic bool false
popReviveConcurrency int 32
popReviveMaxAttemptTimes int 16
popReviveMaxReturnSizePerRead int 16384
popReviveSkipIfGroupAbsent bool true
printChannelGroups bool false
printChannelGroupsMinNum int 5
priorityOrderAsc bool true
processReplyMessageThreadPoolNums int -
pullMessageThreadPoolNums int -
pullThreadPoolQueueCapacity int 100000
putMessageFutureThreadPoolNums int -
putThreadPoolQueueCapacity int 10000
queryMessageThreadPoolNums int -
queryThreadPoolQueueCapacity int 20000
realTimeNotifyConsumerChange bool true
recoverConcurrently bool false
recoverThreadPoolNums int 32
rejectPullConsumerEnable bool false
replyThreadPoolQueueCapacity int 10000
retrieveMessageFromPopRetryTopicV1 bool true
reviveAckWaitMs long 180000
reviveInterval long 1000
reviveMaxSlow long 3
reviveQueueNum int 8
reviveScanTime long 10000
rocketmqHome text -
sendHeartbeatTimeoutMillis int 1000
sendMessageThreadPoolNums int -
sendThreadPoolQueueCapacity int 10000
serverLoadBalancerEnable bool true
skipPreOnline bool false
skipWhenCKRePutReachMaxTimes bool false
splitMetadataSize int 2000
splitRegistrationSize int 800
startAcceptSendRequestTimeStamp long 0
subscriptionExpiredTimeout long 600000
syncBrokerMemberGroupPeriod int 1000
syncBrokerMetadataPeriod long 5000
syncControllerMetadataPeriod long 10000
transactionCheckRocksdbCoreThreads int 2
transactionCheckRocksdbMaxThreads int 5
transactionCheckRocksdbQueueCapacity int 2000
transactionMetricFlushInterval long 10000
transactionOpBatchInterval int 3000
transferMsgByHeap bool true
updateNameServerAddrPeriod int 120000
useMessageFilterForNotification bool true
usePIDColdCtrStrategy bool true
useSeparateRetryQueue bool false
useServerSideResetOffset bool true
useSingleRocksDBForAllConfigs bool false
useStaticSubscription bool false
validateSystemTopicWhenUpdateTopic bool true
waitTimeMillsInAckQueue long 3000
waitTimeMillsInAdminBrokerQueue long 5000
waitTimeMillsInHeartbeatQueue long 31000
waitTimeMillsInLitePullQueue long 5000
waitTimeMillsInPullQueue long 5000
waitTimeMillsInSendQueue long 200
waitTimeMillsInTransactionQueue long 3000
# MessageStoreConfig
accessMessageInMemoryHotRatio int 26
asyncLearner bool false
autoMessageVersionOnTopicLen bool true
batchDispatchRequestThreadPoolNums int 16
bitMapLengthConsumeQueueExt int 64
bottomMostCompressionTypeForConsumeQueueStore text zstd
checkCRCOnRecover bool true
checkCommitLogOffsetOnRecover bool false
cleanRocksDBDirtyCQIntervalMin long 60
cleanSwapedMapInterval long 300000
coldDataFlowControlEnable bool false
coldDataScanEnable bool false
combineAssignOffsetCQType text default
combineCQEnableCheckSelf bool false
combineCQLoadingCQTypes text default;defaultRocksDB
combineCQMaxExtraSearchCommitLogFiles int 3
combineCQPreferCQType text default
combineCQUseRocksdbForLmq bool false
commitCommitLogLeastPages int 4
commitCommitLogThoroughInterval int 200
commitIntervalCommitLog int 200
commitLogForceSwapMapInterval long 43200000
commitLogRecoverMaxNum int 10
commitLogSwapMapInterval long 3600000
commitLogSwapMapReserveFileNum int 100
compactionCqMappedFileSize int 10485760
compactionMappedFileSize int 104857600
compactionScheduleInternal int 900000
compactionThreadNum int 6
correctLogicMinOffsetForceInterval int 300000
correctLogicMinOffsetSleepInterval int 1
dataReadAheadEnable bool true
debugLockEnable bool false
destroyMapedFileIntervalForcibly int 120000
disappearTimeAfterStart int -1
diskFallRecorded bool true
dispatchCqCacheNum int 4096
dispatchCqThreads int 10
dispatchFromSenderThread bool false
enableAcceleratedRecovery bool false
enableAsyncReput bool true
enableAutoInSyncReplicas bool false
enableBatchPush bool false
enableBuildConsumeQueueConcurrently bool false
enableCleanExpiredOffset bool false
enableCompaction bool true
enableConsumeQueueExt bool false
enableLmq bool false
enableLmqQuota bool false
enableLogConsumeQueueRepeatedlyBuildWhenRecover bool false
enableMultiDispatch bool false
enableRocksDBLog bool false
enableRunningFlagsInFlush bool false
enableScheduleAsyncDeliver bool false
enableScheduleMessageStats bool true
enabledAppendPropCRC bool false
fastFailIfNoBufferInStorePool bool false
flushCommitLogLeastPages int 4
flushCommitLogThoroughInterval int 10000
flushCommitLogTimed bool true
flushConsumeQueueLeastPages int 2
flushConsumeQueueThoroughInterval int 60000
flushDelayOffsetInterval long 10000
flushIntervalConsumeQueue int 1000
flushLeastPagesWhenWarmMapedFile int 4096
forceVerifyPropCRC bool false
haMaxTimeSlaveNotCatchup long 15000
indexFileReadEnable bool true
indexFileWriteEnable bool true
indexRocksDBEnable bool false
iteratorWhenUseRocksdbConsumeQueue bool true
logicQueueForceSwapMapInterval long 43200000
logicQueueSwapMapInterval long 3600000
logicQueueSwapMapReserveFileNum int 20
logicalDiskSpaceCleanForciblyThreshold double 0.8
mappedFileSizeConsumeQueueExt int 50331648
mappedFileSwapEnable bool true
mapperFileSizeBatchConsumeQueue int 13800000
maxAsyncPutMessageRequests int 5000
maxBatchDeleteFilesNum int 50
maxChecksumRange long 1073741824
maxConsumeQueueScan int 20000
maxFilterMessageSize int 16000
maxLmqConsumeQueueNum int 20000
maxOffsetMapSize int 104857600
maxRecoveryCommitlogFiles int 30
maxRocksDBIndexQueryDays int 7
maxSlaveResendLength long 268435456
maxTopicLength int 127
memTableFlushIntervalMs long 3600000
messageIndexSafe bool false
offsetCheckInSlave bool false
pullBatchMaxMessageCount int 160
putConsumeQueueDataByFileChannel bool true
putMessageTimeout int 8000
putMsgIndexHightWater int 600000
readUnCommitted bool false
realTimePersistRocksDBConfig bool true
recheckReputOffsetFromCq bool false
redeleteHangedFileInterval int 120000
replicasPerDiskPartition int 1
rocksdbCQDoubleWriteEnable bool false
rocksdbCompressionType text lz4
rocksdbFlushWalFrequency int 1024
rocksdbWalFileRollingThreshold long 1073741824
sampleCountThreshold int 5000
sampleSteps int 32
scheduleAsyncDeliverMaxPendingLimit int 2000
scheduleAsyncDeliverMaxResendNum2Blocked int 3
searchBcqByCacheEnable bool true
sharedByteBufferNum int 16
spinLockCollisionRetreatOptimalDegree int 1000
statRocksDBCQIntervalSec long 10
storePathBrokerIdentity text -
storePathEpochFile text -
syncFromLastFile bool false
syncMasterFlushOffsetWhenStartup bool false
timerColdDataCheckIntervalMs int 60000
timerEnableCheckMetrics bool true
timerEnableRetryUntilSuccess bool false
timerFlushIntervalMs int 1000
timerGetMessageThreadNum int 3
timerInterceptDelayLevel bool false
timerMetricSmallThreshold int 1000000
timerProgressLogIntervalMs int 10000
timerPutMessageThreadNum int 3
timerRecallToTimeWheelEnable bool true
timerRecallToTimelineEnable bool true
timerReputServiceCorePoolSize int 6
timerReputServiceMaxPoolSize int 6
timerReputServiceQueueCapacity int 10000
timerRocksDBEnable bool false
timerRocksDBPrecisionMs long 1000
timerRocksDBRollIntervalHours int 1
timerRocksDBRollMaxTps double 8000.0
timerRocksDBRollRangeHours int 2
timerRocksDBStopScan bool false
timerRocksDBTimeExpiredMaxTps double 200000.0
timerSkipUnknownError bool false
timerStopEnqueue bool false
timerWheelSnapshotFlush bool false
timerWheelSnapshotIntervalMs int 10000
topicQueueLockNum int 32
totalReplicas int 1
transRocksDBEnable bool false
transWriteOriginTransHalfEnable bool true
transientStorePoolSize int 5
travelCqFileNumWhenGetMessage int 1
useABSLock bool false
useReentrantLockWhenPutMessage bool true
useSeparateStorePathForRocksdbCQ bool false
wakeCommitWhenPutMessage bool true
wakeFlushWhenPutMessage bool false
warmMapedFileEnable bool false
writeWithoutMmap bool false
# MessageStoreConfig, without a setter: they have no effect in the original either
timerCheckMetricsWhen text 05
timerEnableDisruptor bool false
timerStopDequeue bool false
timerWarmEnable bool false
# NettyServerConfig
enableShutdownGracefully bool false
serverAsyncSemaphoreValue int 64
serverCallbackExecutorThreads int 0
serverNettyWorkerGroupEnable bool true
serverOnewaySemaphoreValue int 256
serverPooledByteBufAllocatorEnable bool true
serverSelectorThreads int 3
serverSocketBacklog int 1024
serverSocketRcvBufSize int 0
serverSocketSndBufSize int 0
serverWorkerThreads int 8
shutdownWaitTimeSeconds int 30
useEpollNativeSelector bool false
writeBufferHighWaterMark int 0
writeBufferLowWaterMark int 0
# NettyClientConfig
channelNotActiveInterval long 60000
clientAsyncSemaphoreValue int 65535
clientCallbackExecutorThreads int -
clientChannelMaxIdleTimeSeconds int 120
clientCloseSocketIfTimeout bool true
clientOnewaySemaphoreValue int 65535
clientPooledByteBufAllocatorEnable bool false
clientSocketRcvBufSize int 0
clientSocketSndBufSize int 0
clientWorkerThreads int 4
connectTimeoutMillis int 3000
disableCallbackExecutor bool false
disableNettyWorkerGroup bool false
enableReconnectForGoAway bool true
maxReconnectIntervalTimeSeconds long 60
scanAvailableNameSrv bool true
socksProxyConfig text {}
# AuthConfig
aclCacheExpiredSecond int 600
aclCacheMaxNum int 1000
aclCacheRefreshSecond int 60
authConfigPath text -
authenticationMetadataProvider text -
authenticationProvider text -
authenticationStrategy text -
authenticationWhitelist text -
authorizationMetadataProvider text -
authorizationProvider text -
authorizationStrategy text -
authorizationWhitelist text -
initAuthenticationUser text -
innerClientAuthenticationCredentials text -
statefulAuthenticationCacheExpiredSecond int 60
statefulAuthenticationCacheMaxNum int 10000
statefulAuthorizationCacheExpiredSecond int 60
statefulAuthorizationCacheMaxNum int 10000
userCacheExpiredSecond int 600
userCacheMaxNum int 1000
userCacheRefreshSecond int 60
# TLS
tls.config.file text /etc/rocketmq/tls.properties
tls.test.mode.enable bool true
tls.server.keyPath text -
tls.server.keyPassword text -
tls.server.certPath text -
tls.server.trustCertPath text -
tls.client.keyPath text -
tls.client.keyPassword text -
tls.client.certPath text -
tls.client.trustCertPath text -
tls.ciphers text -
tls.protocols text -
"""


def _without_effect() -> list[Key]:
    keys = []
    for line in _WITHOUT_EFFECT.splitlines():
        if line and not line.startswith("#"):
            name, kind_name, default = line.split(" ")
            kind = Kind(kind_name)
            keys.append(Key(name, kind, None if default == "-" else _plain(kind, default), Mark.NO_EFFECT))
    return keys


def _plain(kind: Kind, text: str) -> Value:
    match kind:
        case Kind.BOOL:
            return text == "true"
        case Kind.INT | Kind.LONG:
            return int(text)
        case Kind.DOUBLE:
            return float(text)
        case Kind.TEXT:
            return text


_INDEXED = "the consume queues and the index lie below storePathRootDir"
_MARKED = "checkpoint and abort lie in storePathRootDir"

DEAD: Final[Mapping[str, str]] = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog is the one that counts",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue is the one that counts",
    "mapedFileSizeIndex": "maxHashSlotNum and maxIndexNum give the size of an index file",
    "storePathConsumeQueue": _INDEXED,
    "storePathConsumerQueue": _INDEXED,
    "storePathIndex": _INDEXED,
    "storeCheckpoint": _MARKED,
    "storePathCheckPoint": _MARKED,
    "abortFile": _MARKED,
    "storePathAbort": _MARKED,
    "brokerIP": "brokerIP1 is the one that counts",
    "checkTransactionMessageEnable": "",
    "defaultReadQueueNums": "defaultTopicQueueNums is the one that counts",
    "defaultWriteQueueNums": "defaultTopicQueueNums is the one that counts",
    "deleteConsumerQueueFilesInterval": "deleteConsumeQueueFilesInterval is the one that counts",
    "filterServerNums": "",
    "haSlaveFallbehindMax": "haMaxGapNotInSync is the one that counts",
}
"""Keys of the cluster files in every tutorial, which no RocketMQ since 4 reads -> what to use. A warning, as there."""

KEYS: Final[Mapping[str, Key]] = {key.name: key for key in (*_HONOURED, *_REFUSED, *_without_effect())}
"""Every known key by its name, the honoured ones first."""
