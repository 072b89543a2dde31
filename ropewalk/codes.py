"""The numbers both ends of a connection agree on: requests, responses, flags, permissions, languages.

They are plain `int` constants on classes that are never instantiated: a frame carries an `int`, a dictionary of
handlers is keyed by an `int`, and a code nobody has heard of is everyday traffic, which an enum would refuse.
The names are RocketMQ's, because its users meet them in logs and tools.

Codes 30000 to 30199 are Ropewalk's own. They fit the 16 bits of the binary header, and a stock RocketMQ peer
answers them with REQUEST_CODE_NOT_SUPPORTED, which is how a stock peer is recognised.
"""

from __future__ import annotations

from typing import Final


class RequestCode:
    """What a peer can ask for. The comment of each block says who answers it."""

    # Messaging, answered by a broker.
    SEND_MESSAGE: Final = 10
    PULL_MESSAGE: Final = 11
    QUERY_MESSAGE: Final = 12
    QUERY_BROKER_OFFSET: Final = 13
    QUERY_CONSUMER_OFFSET: Final = 14
    UPDATE_CONSUMER_OFFSET: Final = 15
    SEARCH_OFFSET_BY_TIMESTAMP: Final = 29
    GET_MAX_OFFSET: Final = 30
    GET_MIN_OFFSET: Final = 31
    GET_EARLIEST_MSG_STORETIME: Final = 32
    VIEW_MESSAGE_BY_ID: Final = 33
    HEART_BEAT: Final = 34
    UNREGISTER_CLIENT: Final = 35
    CONSUMER_SEND_MSG_BACK: Final = 36
    END_TRANSACTION: Final = 37
    GET_CONSUMER_LIST_BY_GROUP: Final = 38
    LOCK_BATCH_MQ: Final = 41
    UNLOCK_BATCH_MQ: Final = 42
    CHECK_CLIENT_CONFIG: Final = 46
    GET_CLIENT_CONFIG: Final = 47
    SEND_MESSAGE_V2: Final = 310
    SEND_BATCH_MESSAGE: Final = 320
    SEND_REPLY_MESSAGE: Final = 324
    SEND_REPLY_MESSAGE_V2: Final = 325
    LITE_PULL_MESSAGE: Final = 361
    RECALL_MESSAGE: Final = 370
    QUERY_ASSIGNMENT: Final = 400
    SET_MESSAGE_REQUEST_MODE: Final = 401
    GET_ALL_MESSAGE_REQUEST_MODE: Final = 402

    # Sent by a broker to its clients, on the connection the client opened.
    CHECK_TRANSACTION_STATE: Final = 39
    NOTIFY_CONSUMER_IDS_CHANGED: Final = 40
    RESET_CONSUMER_CLIENT_OFFSET: Final = 220
    GET_CONSUMER_STATUS_FROM_CLIENT: Final = 221
    GET_CONSUMER_RUNNING_INFO: Final = 307
    CONSUME_MESSAGE_DIRECTLY: Final = 309
    PUSH_REPLY_MESSAGE_TO_CLIENT: Final = 326

    # Pop consumption. These do not fit the binary header's 16 bits and travel in JSON frames only.
    POP_MESSAGE: Final = 200050
    ACK_MESSAGE: Final = 200051
    PEEK_MESSAGE: Final = 200052
    CHANGE_MESSAGE_INVISIBLETIME: Final = 200053
    NOTIFICATION: Final = 200054
    POLLING_INFO: Final = 200055
    POP_ROLLBACK: Final = 200056
    BATCH_ACK_MESSAGE: Final = 200151

    # Topics and groups, answered by a broker.
    UPDATE_AND_CREATE_TOPIC: Final = 17
    UPDATE_AND_CREATE_TOPIC_LIST: Final = 18
    GET_ALL_TOPIC_CONFIG: Final = 21
    GET_TOPIC_CONFIG_LIST: Final = 22
    GET_TOPIC_NAME_LIST: Final = 23
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Final = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Final = 201
    DELETE_SUBSCRIPTIONGROUP: Final = 207
    DELETE_TOPIC_IN_BROKER: Final = 215
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Final = 225
    GET_TOPIC_CONFIG: Final = 351
    GET_SUBSCRIPTIONGROUP_CONFIG: Final = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN: Final = 353
    UPDATE_AND_CREATE_STATIC_TOPIC: Final = 513

    # State, statistics and maintenance of a broker.
    UPDATE_BROKER_CONFIG: Final = 25
    GET_BROKER_CONFIG: Final = 26
    TRIGGER_DELETE_FILES: Final = 27
    GET_BROKER_RUNTIME_INFO: Final = 28
    GET_ALL_CONSUMER_OFFSET: Final = 43
    GET_ALL_DELAY_OFFSET: Final = 45
    UPDATE_AND_CREATE_ACL_CONFIG: Final = 50
    DELETE_ACL_CONFIG: Final = 51
    GET_BROKER_CLUSTER_ACL_INFO: Final = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Final = 53
    GET_BROKER_CLUSTER_ACL_CONFIG: Final = 54
    GET_TIMER_CHECK_POINT: Final = 60
    GET_TIMER_METRICS: Final = 61
    GET_TOPIC_STATS_INFO: Final = 202
    GET_CONSUMER_CONNECTION_LIST: Final = 203
    GET_PRODUCER_CONNECTION_LIST: Final = 204
    GET_CONSUME_STATS: Final = 208
    INVOKE_BROKER_TO_RESET_OFFSET: Final = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Final = 223
    QUERY_TOPIC_CONSUME_BY_WHO: Final = 300
    QUERY_CONSUME_TIME_SPAN: Final = 303
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Final = 305
    CLEAN_EXPIRED_CONSUMEQUEUE: Final = 306
    QUERY_CORRECTION_OFFSET: Final = 308
    CLONE_GROUP_OFFSET: Final = 314
    VIEW_BROKER_STATS_DATA: Final = 315
    CLEAN_UNUSED_TOPIC: Final = 316
    GET_BROKER_CONSUME_STATS: Final = 317
    QUERY_CONSUME_QUEUE: Final = 321
    RESUME_CHECK_HALF_MESSAGE: Final = 323
    GET_ALL_PRODUCER_INFO: Final = 328
    DELETE_EXPIRED_COMMITLOG: Final = 329
    QUERY_TOPICS_BY_CONSUMER: Final = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER: Final = 345
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS: Final = 354
    EXPORT_ROCKSDB_CONFIG_TO_JSON: Final = 355
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Final = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Final = 2002
    GET_COLD_DATA_FLOW_CTR_INFO: Final = 2003
    SET_COMMITLOG_READ_MODE: Final = 2004
    AUTH_CREATE_USER: Final = 3001
    AUTH_UPDATE_USER: Final = 3002
    AUTH_DELETE_USER: Final = 3003
    AUTH_GET_USER: Final = 3004
    AUTH_LIST_USER: Final = 3005
    AUTH_CREATE_ACL: Final = 3006
    AUTH_UPDATE_ACL: Final = 3007
    AUTH_DELETE_ACL: Final = 3008
    AUTH_GET_ACL: Final = 3009
    AUTH_LIST_ACL: Final = 3010

    # Name server.
    PUT_KV_CONFIG: Final = 100
    GET_KV_CONFIG: Final = 101
    DELETE_KV_CONFIG: Final = 102
    REGISTER_BROKER: Final = 103
    UNREGISTER_BROKER: Final = 104
    GET_ROUTEINFO_BY_TOPIC: Final = 105
    GET_BROKER_CLUSTER_INFO: Final = 106
    WIPE_WRITE_PERM_OF_BROKER: Final = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Final = 206
    DELETE_TOPIC_IN_NAMESRV: Final = 216
    REGISTER_TOPIC_IN_NAMESRV: Final = 217
    GET_KVLIST_BY_NAMESPACE: Final = 219
    GET_TOPICS_BY_CLUSTER: Final = 224
    GET_SYSTEM_TOPIC_LIST_FROM_NS: Final = 304
    GET_UNIT_TOPIC_LIST: Final = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST: Final = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Final = 313
    UPDATE_NAMESRV_CONFIG: Final = 318
    GET_NAMESRV_CONFIG: Final = 319
    QUERY_DATA_VERSION: Final = 322
    ADD_WRITE_PERM_OF_BROKER: Final = 327

    # Replication and membership, between brokers, name servers and tools.
    GET_BROKER_MEMBER_GROUP: Final = 901
    ADD_BROKER: Final = 902
    REMOVE_BROKER: Final = 903
    BROKER_HEARTBEAT: Final = 904
    NOTIFY_MIN_BROKER_ID_CHANGE: Final = 905
    EXCHANGE_BROKER_HA_INFO: Final = 906
    GET_BROKER_HA_STATUS: Final = 907
    RESET_MASTER_FLUSH_OFFSET: Final = 908
    GET_BROKER_EPOCH_CACHE: Final = 1007
    NOTIFY_BROKER_ROLE_CHANGED: Final = 1008

    # Controller.
    CONTROLLER_ALTER_SYNC_STATE_SET: Final = 1001
    CONTROLLER_ELECT_MASTER: Final = 1002
    CONTROLLER_REGISTER_BROKER: Final = 1003
    CONTROLLER_GET_REPLICA_INFO: Final = 1004
    CONTROLLER_GET_METADATA_INFO: Final = 1005
    CONTROLLER_GET_SYNC_STATE_DATA: Final = 1006
    UPDATE_CONTROLLER_CONFIG: Final = 1009
    GET_CONTROLLER_CONFIG: Final = 1010
    CLEAN_BROKER_DATA: Final = 1011
    CONTROLLER_GET_NEXT_BROKER_ID: Final = 1012
    CONTROLLER_APPLY_BROKER_ID: Final = 1013

    # Ropewalk only.
    ROPEWALK_CHALLENGE: Final = 30000
    ROPEWALK_SLAVE_HELLO: Final = 30001
    ROPEWALK_LOG_SUMS: Final = 30002
    ROPEWALK_LOG_BYTES: Final = 30003
    ROPEWALK_SYNC: Final = 30004
    ROPEWALK_MEMBER_STATUS: Final = 30005
    ROPEWALK_ACCEPT_EPOCH: Final = 30006
    ROPEWALK_RELEASE_EPOCH: Final = 30007
    ROPEWALK_PROMOTE: Final = 30008
    ROPEWALK_FOLLOW: Final = 30009
    ROPEWALK_FORGET_SLAVE: Final = 30010
    ROPEWALK_LOG_BLOCK: Final = 30011
    ROPEWALK_BULK_PULL: Final = 30020


ROPEWALK_CODES: Final = range(30000, 30200)
"""Requests that only Ropewalk peers understand; their bodies are msgpack."""

ROPEWALK_KV_CODES: Final = range(30100, 30120)
"""The part of `ROPEWALK_CODES` kept for the replicated key-value service."""


class ResponseCode:
    """What an answer says. 10, 11 and 12 mean *stored*, with a reservation; they are statuses and not failures."""

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
    """The language a peer says it is written in: a name in JSON headers, its position in binary ones."""

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
        """The number of a language name; an unknown one travels as OTHER."""
        return _LANGUAGE_CODES.get(name, cls.NAMES.index("OTHER"))

    @classmethod
    def name_of(cls, code: int) -> str:
        """The name behind a number; numbers of languages yet to come are OTHER."""
        return cls.NAMES[code] if 0 <= code < len(cls.NAMES) else "OTHER"


def request_name(code: int) -> str:
    """A request code for people: its RocketMQ name, or the number itself when it has none."""
    return _REQUEST_NAMES.get(code) or str(code)


def response_name(code: int) -> str:
    """A response code for people: its RocketMQ name, or the number itself when it has none."""
    return _RESPONSE_NAMES.get(code) or str(code)


def names_of(codes: type) -> dict[int, str]:
    """Every constant of one of the classes above, as number -> name."""
    return {value: name for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)}


_REQUEST_NAMES: Final = names_of(RequestCode)
_RESPONSE_NAMES: Final = names_of(ResponseCode)
_LANGUAGE_CODES: Final = {name: code for code, name in enumerate(Language.NAMES)}
