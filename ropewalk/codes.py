"""Numbers of the remoting protocol: request and response codes, flags, permissions, languages.

They are plain `int` constants on classes that are never instantiated: a frame carries an `int`, a dictionary of
handlers is keyed by an `int`, and a code nobody has heard of is everyday traffic, which an enum would refuse.
The names are RocketMQ's, because its users meet them in logs and tools.

Codes 30000 to 30199 are Ropewalk's own. They fit the 16 bits of the binary header, and a stock RocketMQ peer
answers them with REQUEST_CODE_NOT_SUPPORTED, which is how a stock peer is recognised.
"""

from __future__ import annotations

from typing import Final


class RequestCode:
    """Request codes, each with its meaning; the comment of a block names the peer that answers.

    docs/compat/requests.md is made from these sentences and from the handlers of a broker and a name server.
    """

    # Messaging, answered by a broker.
    SEND_MESSAGE: Final = 10
    """Store one message."""
    PULL_MESSAGE: Final = 11
    """Read messages of one queue from an offset on, and wait for the next one if the client allows it."""
    QUERY_MESSAGE: Final = 12
    """Find messages by key, by unique key or by tag in the key index."""
    QUERY_BROKER_OFFSET: Final = 13
    """Unused: RocketMQ's brokers have no handler for this code."""
    QUERY_CONSUMER_OFFSET: Final = 14
    """Read a group's committed offset of one queue."""
    UPDATE_CONSUMER_OFFSET: Final = 15
    """Commit a group's offset of one queue."""
    SEARCH_OFFSET_BY_TIMESTAMP: Final = 29
    """Find the offset of a queue's message that was stored at a time."""
    GET_MAX_OFFSET: Final = 30
    """Read the offset behind a queue's last message."""
    GET_MIN_OFFSET: Final = 31
    """Read the offset of a queue's first message."""
    GET_EARLIEST_MSG_STORETIME: Final = 32
    """Read when a queue's first message was stored."""
    VIEW_MESSAGE_BY_ID: Final = 33
    """Read the message at an offset of the commit log."""
    HEART_BEAT: Final = 34
    """Announce a client with its groups and subscriptions."""
    UNREGISTER_CLIENT: Final = 35
    """Withdraw a client from its groups."""
    CONSUMER_SEND_MSG_BACK: Final = 36
    """Give a message back that a consumer could not handle: a retry later, or a dead letter."""
    END_TRANSACTION: Final = 37
    """Commit or roll back a half message."""
    GET_CONSUMER_LIST_BY_GROUP: Final = 38
    """List the clients of a consumer group."""
    LOCK_BATCH_MQ: Final = 41
    """Lock queues for one client, for orderly consumption."""
    UNLOCK_BATCH_MQ: Final = 42
    """Release the locks of queues."""
    CHECK_CLIENT_CONFIG: Final = 46
    """Check a subscription before a consumer starts with it."""
    GET_CLIENT_CONFIG: Final = 47
    """Unused: RocketMQ's brokers have no handler for this code."""
    SEND_MESSAGE_V2: Final = 310
    """Store one message; the header has names of one letter."""
    SEND_BATCH_MESSAGE: Final = 320
    """Store several messages of one topic and queue."""
    SEND_REPLY_MESSAGE: Final = 324
    """Send the answer of a request-reply call to the client that asked."""
    SEND_REPLY_MESSAGE_V2: Final = 325
    """Send the answer of a request-reply call; the header has names of one letter."""
    LITE_PULL_MESSAGE: Final = 361
    """Read messages as code 11 does, for lite pull consumers."""
    RECALL_MESSAGE: Final = 370
    """Take a timer message back before it is due."""
    QUERY_ASSIGNMENT: Final = 400
    """Read which queues a consumer is to read, where the broker divides them."""
    SET_MESSAGE_REQUEST_MODE: Final = 401
    """Set whether a group consumes a topic by pulling or by POP."""
    GET_ALL_MESSAGE_REQUEST_MODE: Final = 402
    """List the modes that code 401 has set."""

    # Sent by a broker to its clients, on the connection the client opened.
    CHECK_TRANSACTION_STATE: Final = 39
    """Ask a producer what became of its transaction."""
    NOTIFY_CONSUMER_IDS_CHANGED: Final = 40
    """Tell a consumer that its group's members changed."""
    RESET_CONSUMER_CLIENT_OFFSET: Final = 220
    """Tell a consumer to go on at other offsets."""
    GET_CONSUMER_STATUS_FROM_CLIENT: Final = 221
    """Ask a consumer for its offsets."""
    GET_CONSUMER_RUNNING_INFO: Final = 307
    """Read a consumer's queues, rates and stacks; a tool asks the broker, which asks the client."""
    CONSUME_MESSAGE_DIRECTLY: Final = 309
    """Have a consumer handle one message; a tool asks the broker, which asks the client."""
    PUSH_REPLY_MESSAGE_TO_CLIENT: Final = 326
    """Hand an answer to the producer that asked for it."""

    # Pop consumption. These do not fit the binary header's 16 bits and travel in JSON frames only.
    POP_MESSAGE: Final = 200050
    """Read messages under a broker-side lease (POP)."""
    ACK_MESSAGE: Final = 200051
    """Acknowledge one POP message."""
    PEEK_MESSAGE: Final = 200052
    """Read POP messages without a lease."""
    CHANGE_MESSAGE_INVISIBLETIME: Final = 200053
    """Extend or end a POP lease."""
    NOTIFICATION: Final = 200054
    """Wait until a POP read would find something."""
    POLLING_INFO: Final = 200055
    """Count the POP reads that wait."""
    POP_ROLLBACK: Final = 200056
    """Undo POP checkpoints, for administrators."""
    BATCH_ACK_MESSAGE: Final = 200151
    """Acknowledge several POP messages."""

    # Topics and groups, answered by a broker.
    UPDATE_AND_CREATE_TOPIC: Final = 17
    """Make or change a topic."""
    UPDATE_AND_CREATE_TOPIC_LIST: Final = 18
    """Make or change several topics."""
    GET_ALL_TOPIC_CONFIG: Final = 21
    """Read the configuration of all topics; slaves ask for it too."""
    GET_TOPIC_CONFIG_LIST: Final = 22
    """Unused: RocketMQ's brokers have no handler for this code."""
    GET_TOPIC_NAME_LIST: Final = 23
    """Unused: RocketMQ's brokers have no handler for this code."""
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Final = 200
    """Make or change a consumer group."""
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Final = 201
    """Read the configuration of all groups; slaves ask for it too."""
    DELETE_SUBSCRIPTIONGROUP: Final = 207
    """Delete a consumer group."""
    DELETE_TOPIC_IN_BROKER: Final = 215
    """Delete a topic on this broker."""
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Final = 225
    """Make or change several consumer groups."""
    GET_TOPIC_CONFIG: Final = 351
    """Read one topic's configuration."""
    GET_SUBSCRIPTIONGROUP_CONFIG: Final = 352
    """Read one group's configuration."""
    UPDATE_AND_GET_GROUP_FORBIDDEN: Final = 353
    """Forbid or allow a group to read a topic."""
    UPDATE_AND_CREATE_STATIC_TOPIC: Final = 513
    """Make or change a static topic, whose queues move between brokers."""

    # State, statistics and maintenance of a broker.
    UPDATE_BROKER_CONFIG: Final = 25
    """Change settings while the broker runs."""
    GET_BROKER_CONFIG: Final = 26
    """Read the broker's settings."""
    TRIGGER_DELETE_FILES: Final = 27
    """Unused: RocketMQ's brokers have no handler for this code."""
    GET_BROKER_RUNTIME_INFO: Final = 28
    """Read the broker's state as a table of texts."""
    GET_ALL_CONSUMER_OFFSET: Final = 43
    """Read all committed offsets; slaves ask for it too."""
    GET_ALL_DELAY_OFFSET: Final = 45
    """Read how far each delay level has been delivered; slaves ask for it too."""
    UPDATE_AND_CREATE_ACL_CONFIG: Final = 50
    """Change an access key (ACL 1.0)."""
    DELETE_ACL_CONFIG: Final = 51
    """Delete an access key (ACL 1.0)."""
    GET_BROKER_CLUSTER_ACL_INFO: Final = 52
    """Read the version of the ACL 1.0 tables."""
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Final = 53
    """Change the addresses that need no access key (ACL 1.0)."""
    GET_BROKER_CLUSTER_ACL_CONFIG: Final = 54
    """Read the ACL 1.0 tables."""
    GET_TIMER_CHECK_POINT: Final = 60
    """Read how far the timer wheel has come; slaves ask for it."""
    GET_TIMER_METRICS: Final = 61
    """Count timer messages by topic; slaves ask for it."""
    GET_TOPIC_STATS_INFO: Final = 202
    """Read the offsets and last store times of a topic's queues."""
    GET_CONSUMER_CONNECTION_LIST: Final = 203
    """List a consumer group's connections and subscriptions."""
    GET_PRODUCER_CONNECTION_LIST: Final = 204
    """List a producer group's connections."""
    GET_CONSUME_STATS: Final = 208
    """Read how far a group is behind, queue by queue."""
    INVOKE_BROKER_TO_RESET_OFFSET: Final = 222
    """Move a group's offsets, whether its consumers run or not."""
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Final = 223
    """Read the offsets that the consumers of a group hold."""
    QUERY_TOPIC_CONSUME_BY_WHO: Final = 300
    """List the groups that consume a topic."""
    QUERY_CONSUME_TIME_SPAN: Final = 303
    """Read the times between which a topic's messages lie, and where a group is."""
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Final = 305
    """List the broker's system topics."""
    CLEAN_EXPIRED_CONSUMEQUEUE: Final = 306
    """Remove queue files whose messages retention has removed."""
    QUERY_CORRECTION_OFFSET: Final = 308
    """Compare groups' offsets of a topic."""
    CLONE_GROUP_OFFSET: Final = 314
    """Copy one group's offsets to another group."""
    VIEW_BROKER_STATS_DATA: Final = 315
    """Read one statistic over the last minute, hour and day."""
    CLEAN_UNUSED_TOPIC: Final = 316
    """Remove the queues of topics that no longer exist."""
    GET_BROKER_CONSUME_STATS: Final = 317
    """Read how far all groups are behind."""
    QUERY_CONSUME_QUEUE: Final = 321
    """Read entries of a consume queue."""
    RESUME_CHECK_HALF_MESSAGE: Final = 323
    """Have a half message checked again."""
    GET_ALL_PRODUCER_INFO: Final = 328
    """List all producers."""
    DELETE_EXPIRED_COMMITLOG: Final = 329
    """Run retention over the commit log now."""
    QUERY_TOPICS_BY_CONSUMER: Final = 343
    """List the topics that a group has offsets in."""
    QUERY_SUBSCRIPTION_BY_CONSUMER: Final = 345
    """Read a group's subscription to a topic."""
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS: Final = 354
    """Compare consume queues in files with those in RocksDB."""
    EXPORT_ROCKSDB_CONFIG_TO_JSON: Final = 355
    """Export configuration from RocksDB."""
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Final = 2001
    """Limit how much cold data a group may read."""
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Final = 2002
    """Remove a group's limit of cold data."""
    GET_COLD_DATA_FLOW_CTR_INFO: Final = 2003
    """List the limits of cold data."""
    SET_COMMITLOG_READ_MODE: Final = 2004
    """Set how the kernel reads ahead in the commit log."""
    AUTH_CREATE_USER: Final = 3001
    """Make a user."""
    AUTH_UPDATE_USER: Final = 3002
    """Change a user."""
    AUTH_DELETE_USER: Final = 3003
    """Delete a user."""
    AUTH_GET_USER: Final = 3004
    """Read a user."""
    AUTH_LIST_USER: Final = 3005
    """List the users."""
    AUTH_CREATE_ACL: Final = 3006
    """Make an access rule."""
    AUTH_UPDATE_ACL: Final = 3007
    """Change an access rule."""
    AUTH_DELETE_ACL: Final = 3008
    """Delete an access rule."""
    AUTH_GET_ACL: Final = 3009
    """Read an access rule."""
    AUTH_LIST_ACL: Final = 3010
    """List the access rules."""

    # Name server.
    PUT_KV_CONFIG: Final = 100
    """Set a value in the name server's key-value table."""
    GET_KV_CONFIG: Final = 101
    """Read a value of the name server's key-value table."""
    DELETE_KV_CONFIG: Final = 102
    """Delete a value of the name server's key-value table."""
    REGISTER_BROKER: Final = 103
    """Register a broker with its topics."""
    UNREGISTER_BROKER: Final = 104
    """Withdraw a broker."""
    GET_ROUTEINFO_BY_TOPIC: Final = 105
    """Read which brokers serve a topic."""
    GET_BROKER_CLUSTER_INFO: Final = 106
    """List clusters and brokers."""
    WIPE_WRITE_PERM_OF_BROKER: Final = 205
    """Take the write permission from a broker's topics."""
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Final = 206
    """List all topics."""
    DELETE_TOPIC_IN_NAMESRV: Final = 216
    """Delete a topic at the name server."""
    REGISTER_TOPIC_IN_NAMESRV: Final = 217
    """Register one topic."""
    GET_KVLIST_BY_NAMESPACE: Final = 219
    """List the key-value pairs of one name space."""
    GET_TOPICS_BY_CLUSTER: Final = 224
    """List the topics of one cluster."""
    GET_SYSTEM_TOPIC_LIST_FROM_NS: Final = 304
    """List the system topics, among them the names of clusters and brokers."""
    GET_UNIT_TOPIC_LIST: Final = 311
    """List unit topics."""
    GET_HAS_UNIT_SUB_TOPIC_LIST: Final = 312
    """List topics with unit subscriptions."""
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Final = 313
    """List topics with unit subscriptions that are no unit topics."""
    UPDATE_NAMESRV_CONFIG: Final = 318
    """Change settings of the name server."""
    GET_NAMESRV_CONFIG: Final = 319
    """Read the name server's settings."""
    QUERY_DATA_VERSION: Final = 322
    """Compare the version of a broker's topics with the registered one."""
    ADD_WRITE_PERM_OF_BROKER: Final = 327
    """Give the write permission back to a broker's topics."""

    # Replication and membership, between brokers, name servers and tools.
    GET_BROKER_MEMBER_GROUP: Final = 901
    """List the members of a broker group."""
    ADD_BROKER: Final = 902
    """Start a broker inside a broker container."""
    REMOVE_BROKER: Final = 903
    """Stop a broker inside a broker container."""
    BROKER_HEARTBEAT: Final = 904
    """Keep a broker's registration alive."""
    NOTIFY_MIN_BROKER_ID_CHANGE: Final = 905
    """Tell brokers that the least id of their group changed, for slaves that act as masters."""
    EXCHANGE_BROKER_HA_INFO: Final = 906
    """Exchange replication addresses, for slaves that act as masters."""
    GET_BROKER_HA_STATUS: Final = 907
    """Read the state of replication."""
    RESET_MASTER_FLUSH_OFFSET: Final = 908
    """Set the flushed offset that a slave remembers of its master."""
    GET_BROKER_EPOCH_CACHE: Final = 1007
    """Read a broker's epochs (controller mode)."""
    NOTIFY_BROKER_ROLE_CHANGED: Final = 1008
    """Tell a broker its role (controller mode)."""

    # Controller.
    CONTROLLER_ALTER_SYNC_STATE_SET: Final = 1001
    """Change the set of slaves in sync."""
    CONTROLLER_ELECT_MASTER: Final = 1002
    """Elect a master."""
    CONTROLLER_REGISTER_BROKER: Final = 1003
    """Register a broker at the controller."""
    CONTROLLER_GET_REPLICA_INFO: Final = 1004
    """Read the members of a broker group."""
    CONTROLLER_GET_METADATA_INFO: Final = 1005
    """Read the controller's own group."""
    CONTROLLER_GET_SYNC_STATE_DATA: Final = 1006
    """Read the sets of slaves in sync."""
    UPDATE_CONTROLLER_CONFIG: Final = 1009
    """Change settings of the controller."""
    GET_CONTROLLER_CONFIG: Final = 1010
    """Read the controller's settings."""
    CLEAN_BROKER_DATA: Final = 1011
    """Forget a broker at the controller."""
    CONTROLLER_GET_NEXT_BROKER_ID: Final = 1012
    """Read the next free broker id."""
    CONTROLLER_APPLY_BROKER_ID: Final = 1013
    """Claim a broker id."""

    # Ropewalk only.
    ROPEWALK_CHALLENGE: Final = 30000
    """Begin the proof that a peer knows `ropewalkSecret`."""
    ROPEWALK_SLAVE_HELLO: Final = 30001
    """Announce a slave: its identity, its epochs, and the checksums of its log's end."""
    ROPEWALK_LOG_SUMS: Final = 30002
    """Read checksums of the master's log, to find where two logs part."""
    ROPEWALK_LOG_BYTES: Final = 30003
    """Read bytes of the master's log, to find the record at which two logs part."""
    ROPEWALK_SYNC: Final = 30004
    """Exchange topics, groups, offsets, delay progress and the log's end."""
    ROPEWALK_MEMBER_STATUS: Final = 30005
    """Read a member's role, epoch and log end."""
    ROPEWALK_ACCEPT_EPOCH: Final = 30006
    """Ask a member to promise itself to a new epoch."""
    ROPEWALK_RELEASE_EPOCH: Final = 30007
    """Release a member from its promise to an epoch."""
    ROPEWALK_PROMOTE: Final = 30008
    """Make a member the master of an epoch."""
    ROPEWALK_FOLLOW: Final = 30009
    """Make a member a slave of an epoch's master."""
    ROPEWALK_FORGET_SLAVE: Final = 30010
    """Strike a slave off that will not come back."""
    ROPEWALK_LOG_BLOCK: Final = 30011
    """Read one block of the log for a peer whose own copy is damaged."""
    ROPEWALK_BULK_PULL: Final = 30020
    """Read many messages of one queue in one answer, for pipelines."""
    ROPEWALK_SINK_INIT: Final = 30030
    """Begin an epoch of a sink that writes exactly once, and fence everything of earlier ones."""
    ROPEWALK_SINK_APPEND: Final = 30031
    """Append the rows of a sink's batch that are not stored yet."""
    ROPEWALK_SINK_COMMIT: Final = 30032
    """End a sink's batch: it is complete, and nothing is appended to it any more."""
    ROPEWALK_SINK_LIST: Final = 30033
    """List the sinks that write exactly once."""
    ROPEWALK_SINK_FORGET: Final = 30034
    """Forget a sink, and the rows of its open batch."""
    ROPEWALK_LEDGER_STATUS: Final = 30040
    """Show the status of a member of a DLedger group, as it sees itself and the others."""
    ROPEWALK_LEDGER_TRANSFER: Final = 30041
    """Have the leader of a DLedger group hand over to another member."""
    ROPEWALK_LEDGER_READMIT: Final = 30042
    """Have a member of a DLedger group let another one in that lost its log."""
    ROPEWALK_LEDGER_CHANGE: Final = 30043
    """Change the members of a DLedger group: take in one that learns, have a learner vote, remove one."""
    ROPEWALK_LEDGER_FORCE: Final = 30044
    """Have one member of a DLedger group that lost its majority go on alone."""
    ROPEWALK_LEDGER_SNAPSHOT: Final = 30045
    """Have the leader of a DLedger group log all its tables, which every member keeps as a snapshot."""
    ROPEWALK_LEDGER_TRUST: Final = 30046
    """Have one member of a DLedger group without a leader count its log as it is, although its end is in doubt."""
    ROPEWALK_KV_SESSION: Final = 30100
    """Open a session of the key-value store, in which a write that is sent again is applied once."""
    ROPEWALK_KV_GET: Final = 30101
    """Read the value of a key, the newest there is, at any member."""
    ROPEWALK_KV_MULTI_GET: Final = 30102
    """Read the values of several keys of one region."""
    ROPEWALK_KV_SCAN: Final = 30103
    """Read keys and values of a range of one region, in their order."""
    ROPEWALK_KV_WRITE: Final = 30104
    """Apply operations to one region, all of them or none, and once."""
    ROPEWALK_KV_REGIONS: Final = 30105
    """Show the regions of the key-value store, and where the leader of each is."""
    ROPEWALK_KV_SPLIT: Final = 30106
    """Cut a region in two at a key: the new region has the keys from there on, with their state."""
    ROPEWALK_KV_STATUS: Final = 30107
    """Show the regions as one member sees them: role, log, keys, memory."""


ROPEWALK_CODES: Final = range(30000, 30200)
"""Requests that only Ropewalk peers understand."""

ROPEWALK_KV_CODES: Final = range(30100, 30120)
"""The part of `ROPEWALK_CODES` kept for the replicated key-value service."""


class ResponseCode:
    """Response codes. 10, 11 and 12 mean *stored*, with a reservation; they are statuses and not failures."""

    SUCCESS: Final = 0
    SYSTEM_ERROR: Final = 1
    SYSTEM_BUSY: Final = 2
    REQUEST_CODE_NOT_SUPPORTED: Final = 3
    TRANSACTION_FAILED: Final = 4
    FLUSH_DISK_TIMEOUT: Final = 10
    SLAVE_NOT_AVAILABLE: Final = 11
    FLUSH_SLAVE_TIMEOUT: Final = 12
    MESSAGE_ILLEGAL: Final = 13
    SERVICE_NOT_AVAILABLE: Final = 14
    VERSION_NOT_SUPPORTED: Final = 15
    NO_PERMISSION: Final = 16
    TOPIC_NOT_EXIST: Final = 17
    TOPIC_EXIST_ALREADY: Final = 18
    PULL_NOT_FOUND: Final = 19
    PULL_RETRY_IMMEDIATELY: Final = 20
    PULL_OFFSET_MOVED: Final = 21
    QUERY_NOT_FOUND: Final = 22
    SUBSCRIPTION_PARSE_FAILED: Final = 23
    SUBSCRIPTION_NOT_EXIST: Final = 24
    SUBSCRIPTION_NOT_LATEST: Final = 25
    SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
    FILTER_DATA_NOT_EXIST: Final = 27
    FILTER_DATA_NOT_LATEST: Final = 28
    INVALID_PARAMETER: Final = 29
    TRANSACTION_SHOULD_COMMIT: Final = 200
    TRANSACTION_SHOULD_ROLLBACK: Final = 201
    TRANSACTION_STATE_UNKNOW: Final = 202
    TRANSACTION_STATE_GROUP_WRONG: Final = 203
    NO_BUYER_ID: Final = 204
    NOT_IN_CURRENT_UNIT: Final = 205
    CONSUMER_NOT_ONLINE: Final = 206
    CONSUME_MSG_TIMEOUT: Final = 207
    NO_MESSAGE: Final = 208
    POLLING_FULL: Final = 209
    POLLING_TIMEOUT: Final = 210
    BROKER_NOT_EXIST: Final = 211
    BROKER_DISPATCH_NOT_COMPLETE: Final = 212
    BROADCAST_CONSUMPTION: Final = 213
    FLOW_CONTROL: Final = 215
    NOT_LEADER_FOR_QUEUE: Final = 501
    ILLEGAL_OPERATION: Final = 604
    GO_AWAY: Final = 1500
    CONTROLLER_FENCED_MASTER_EPOCH: Final = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH: Final = 2001
    CONTROLLER_INVALID_MASTER: Final = 2002
    CONTROLLER_INVALID_REPLICAS: Final = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE: Final = 2004
    CONTROLLER_INVALID_REQUEST: Final = 2005
    CONTROLLER_BROKER_NOT_ALIVE: Final = 2006
    CONTROLLER_NOT_LEADER: Final = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST: Final = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA: Final = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: Final = 2010
    CONTROLLER_MASTER_STILL_EXIST: Final = 2011
    CONTROLLER_ELECT_MASTER_FAILED: Final = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED: Final = 2013
    CONTROLLER_BROKER_ID_INVALID: Final = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR: Final = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS: Final = 2016
    USER_NOT_EXIST: Final = 3001
    POLICY_NOT_EXIST: Final = 3002
    # These four exist only inside a RocketMQ process and never travel.
    RPC_UNKNOWN: Final = -1000
    RPC_ADDR_IS_NULL: Final = -1002
    RPC_SEND_TO_CHANNEL_FAILED: Final = -1004
    RPC_TIME_OUT: Final = -1006


class FrameFlag:
    """Bits of a frame's `flag`."""

    RESPONSE: Final = 1
    ONEWAY: Final = 2


class Permission:
    """Bits of a topic's or broker's `perm`; 6 is the usual read and write, 0 hides a topic from clients."""

    INHERIT: Final = 1
    WRITE: Final = 2
    READ: Final = 4
    PRIORITY: Final = 8


class MessageSysFlag:
    """Bits of a message's `sysFlag`, in send headers and in stored records alike."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_MASK: Final = 0xC
    TRANSACTION_NONE: Final = 0x0
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    TRANSACTION_ROLLBACK: Final = 0xC
    BORN_HOST_V6: Final = 0x10
    STORE_HOST_V6: Final = 0x20
    NEED_UNWRAP: Final = 0x40
    INNER_BATCH: Final = 0x80
    COMPRESSION_MASK: Final = 0x700
    COMPRESSION_LZ4: Final = 0x100
    COMPRESSION_ZSTD: Final = 0x200
    # Old clients set COMPRESSED and leave the type bits 0; that is zlib as well.
    COMPRESSION_ZLIB: Final = 0x300


class PullSysFlag:
    """Bits of a pull request's `sysFlag`."""

    COMMIT_OFFSET: Final = 1
    SUSPEND: Final = 2
    SUBSCRIPTION: Final = 4
    CLASS_FILTER: Final = 8
    LITE_PULL: Final = 16


class UnitSysFlag:
    """Bits of a topic's or group's `sysFlag`."""

    UNIT: Final = 1
    UNIT_SUB: Final = 2


class Language:
    """Names of client languages: a text in JSON headers, its position in binary ones."""

    NAMES: Final = (
        "JAVA",
        "CPP",
        "DOTNET",
        "PYTHON",
        "DELPHI",
        "ERLANG",
        "RUBY",
        "OTHER",
        "HTTP",
        "GO",
        "PHP",
        "OMS",
        "RUST",
        "NODE_JS",
    )

    @classmethod
    def code_of(cls, name: str) -> int:
        """Return the number of a language name; an unknown name travels as OTHER."""
        return _LANGUAGE_CODES.get(name, cls.NAMES.index("OTHER"))

    @classmethod
    def name_of(cls, code: int) -> str:
        """Return the name behind a language number; an unknown number is OTHER."""
        return cls.NAMES[code] if 0 <= code < len(cls.NAMES) else "OTHER"


def request_name(code: int) -> str:
    """Return RocketMQ's name of a request code, or the number itself as text when the code has none."""
    return _REQUEST_NAMES.get(code) or str(code)


def response_name(code: int) -> str:
    """Return RocketMQ's name of a response code, or the number itself as text when the code has none."""
    return _RESPONSE_NAMES.get(code) or str(code)


def names_of(codes: type) -> dict[int, str]:
    """Return the constants of a class of codes as number -> name."""
    return {value: name for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)}


_REQUEST_NAMES: Final = names_of(RequestCode)
_RESPONSE_NAMES: Final = names_of(ResponseCode)
_LANGUAGE_CODES: Final = {name: code for code, name in enumerate(Language.NAMES)}
