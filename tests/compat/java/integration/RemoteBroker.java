package org.apache.rocketmq.test.base;

import java.lang.reflect.Field;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.client.exception.OffsetNotFoundException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import sun.misc.Unsafe;

/**
 * A broker of another process as the tests look at their own: each question is a request to it.
 *
 * <p>The classes that are extended here would make half a broker in their constructors, so none of these is run. What a
 * test asks that has no request behind it fails in that test.
 */
final class RemoteBroker extends BrokerController {
    private static final int TIMEOUT_MS = 3000;

    private DefaultMQAdminExt admin;
    private BrokerConfig config;
    private MessageStoreConfig storeConfig;
    private NettyServerConfig serverConfig;
    private Runnable stop;
    private Store store;
    private Topics topics;
    private Offsets offsets;
    private Outer outer;

    private RemoteBroker() {
        super(null, null, null, null);
    }

    static RemoteBroker of(
        DefaultMQAdminExt admin, BrokerConfig config, MessageStoreConfig storeConfig, int port, Runnable stop) {
        RemoteBroker broker = unbuilt(RemoteBroker.class);
        broker.admin = admin;
        broker.config = config;
        broker.storeConfig = storeConfig;
        broker.serverConfig = new NettyServerConfig();
        broker.serverConfig.setListenPort(port);
        broker.stop = stop;
        broker.store = unbuilt(Store.class);
        broker.store.broker = broker;
        broker.topics = unbuilt(Topics.class);
        broker.topics.broker = broker;
        broker.offsets = unbuilt(Offsets.class);
        broker.offsets.broker = broker;
        broker.outer = unbuilt(Outer.class);
        return broker;
    }

    private static <T> T unbuilt(Class<T> type) {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return type.cast(((Unsafe) field.get(null)).allocateInstance(type));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public String getBrokerAddr() {
        return "127.0.0.1:" + serverConfig.getListenPort();
    }

    @Override
    public BrokerConfig getBrokerConfig() {
        return config;
    }

    @Override
    public MessageStoreConfig getMessageStoreConfig() {
        return storeConfig;
    }

    @Override
    public NettyServerConfig getNettyServerConfig() {
        return serverConfig;
    }

    @Override
    public MessageStore getMessageStore() {
        return store;
    }

    @Override
    public TopicConfigManager getTopicConfigManager() {
        return topics;
    }

    @Override
    public ConsumerOffsetManager getConsumerOffsetManager() {
        return offsets;
    }

    @Override
    public BrokerOuterAPI getBrokerOuterAPI() {
        return outer;
    }

    /** Ropewalk registers a changed topic by itself. */
    @Override
    public synchronized void registerBrokerAll(boolean checkOrder, boolean oneway, boolean force) {
    }

    /** A hook would have to run inside the broker; tests that need it are left out, others only set it up. */
    @Override
    public void registerServerRPCHook(RPCHook hook) {
    }

    @Override
    public void shutdown() {
        stop.run();
    }

    private static final class Outer extends BrokerOuterAPI {
        private Outer() {
            super(null, null);
        }

        @Override
        public void refreshMetadata() {
        }
    }

    private static final class Store extends DefaultMessageStore {
        private RemoteBroker broker;

        private Store() throws Exception {
            super(null, null, null, null, null);
        }

        private TopicOffset range(String topic, int queueId) {
            try {
                return broker.admin.examineTopicStats(broker.getBrokerAddr(), topic).getOffsetTable()
                    .get(new MessageQueue(topic, broker.config.getBrokerName(), queueId));
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public long getMinOffsetInQueue(String topic, int queueId) {
            return range(topic, queueId).getMinOffset();
        }

        @Override
        public long getMaxOffsetInQueue(String topic, int queueId) {
            return range(topic, queueId).getMaxOffset();
        }

        @Override
        public long dispatchBehindBytes() {
            try {
                return Long.parseLong(
                    broker.admin.fetchBrokerRuntimeStats(broker.getBrokerAddr()).getTable().get("dispatchBehindBytes"));
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
    }

    private static final class Topics extends TopicConfigManager {
        private RemoteBroker broker;

        @Override
        public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
            try {
                return broker.admin.getAllTopicConfig(broker.getBrokerAddr(), TIMEOUT_MS).getTopicConfigTable();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public void updateTopicConfig(TopicConfig topic) {
            try {
                broker.admin.createAndUpdateTopicConfig(broker.getBrokerAddr(), topic);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
    }

    private static final class Offsets extends ConsumerOffsetManager {
        private RemoteBroker broker;

        @Override
        public long queryOffset(String group, String topic, int queueId) {
            QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(topic);
            header.setQueueId(queueId);
            header.setSetZeroIfNotFound(false);
            try {
                return broker.admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl()
                    .queryConsumerOffset(broker.getBrokerAddr(), header, TIMEOUT_MS);
            } catch (OffsetNotFoundException e) {
                return -1;
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public long queryPullOffset(String group, String topic, int queueId) {
            try {
                return broker.admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl()
                    .getConsumeStats(broker.getBrokerAddr(), group, topic, TIMEOUT_MS).getOffsetTable()
                    .get(new MessageQueue(topic, broker.config.getBrokerName(), queueId)).getPullOffset();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
    }
}
