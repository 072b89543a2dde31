package org.apache.rocketmq.test.base;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicAttributes;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Stands in for the class of this name that the original's integration tests start their servers with.
 *
 * <p>Theirs makes a name server and brokers in its own JVM. This one starts Ropewalk's as processes and hands out
 * controllers that ask those over the network. It comes first on the class path, and nothing else is replaced: the test
 * classes, their base BaseConf and all helpers are the ones that the original's makers compiled.
 *
 * <p>Properties: {@code ropewalk.command}, words separated by tabs; {@code ropewalk.home}, an empty folder.
 */
public class IntegrationTestBase {
    protected static final String BROKER_NAME_PREFIX = "TestBrokerName_";
    protected static final AtomicInteger BROKER_INDEX = new AtomicInteger();
    protected static int topicCreateTime = 30;
    public static volatile int commitLogSize = 100 << 20;

    private static final int INDEX_NUM = 1000;
    private static final int TIMEOUT_MS = 5000;
    private static final long STOP_S = 20;
    private static final Path HOME = Paths.get(System.getProperty("ropewalk.home"));
    private static final List<Process> PROCESSES = new CopyOnWriteArrayList<>();
    private static final AtomicInteger FILES = new AtomicInteger();
    private static DefaultMQAdminExt admin;

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> PROCESSES.forEach(IntegrationTestBase::stop)));
    }

    private static final class RemoteNamesrv extends NamesrvController {
        private RemoteNamesrv(int port) {
            super(new NamesrvConfig(), new NettyServerConfig());
            getNettyServerConfig().setListenPort(port);
        }

        @Override
        public void shutdown() {
        }
    }

    public static NamesrvController createAndStartNamesrv() {
        Started started = start("namesrv", Arrays.asList("namesrv", "-p", "0", "--json"));
        RemoteNamesrv namesrv = new RemoteNamesrv(started.port("namesrv"));
        admin = new DefaultMQAdminExt(TIMEOUT_MS);
        admin.setInstanceName("controllers");
        admin.setNamesrvAddr("127.0.0.1:" + namesrv.getNettyServerConfig().getListenPort());
        try {
            admin.start();
        } catch (MQClientException e) {
            throw new IllegalStateException(e);
        }
        return namesrv;
    }

    /** The configuration that the original gives its brokers, without what Ropewalk refuses (ConsumeQueueExt). */
    public static BrokerController createAndStartBroker(String namesrv) {
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName(BROKER_NAME_PREFIX + BROKER_INDEX.incrementAndGet());
        broker.setBrokerIP1("127.0.0.1");
        broker.setBrokerIP2("127.0.0.1");
        broker.setNamesrvAddr(namesrv);
        broker.setAppendAckAsync(true);
        broker.setAppendCkAsync(true);
        broker.setRecallMessageEnable(true);
        broker.setEnablePropertyFilter(true);
        broker.setLoadBalancePollNameServerInterval(500);
        MessageStoreConfig store = new MessageStoreConfig();
        Path root = HOME.resolve("store-" + broker.getBrokerName());
        store.setStorePathRootDir(root.toString());
        store.setStorePathCommitLog(root.resolve("commitlog").toString());
        store.setMappedFileSizeCommitLog(commitLogSize);
        store.setMaxIndexNum(INDEX_NUM);
        store.setMaxHashSlotNum(4 * INDEX_NUM);
        store.setMaxTransferCountOnMessageInMemory(1024);
        store.setMaxTransferCountOnMessageInDisk(1024);
        store.setDiskMaxUsedSpaceRatio(95);
        return createAndStartBroker(store, broker);
    }

    /** Also called by a test that stops a broker and starts it again with other settings. */
    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig broker) {
        Properties file = new Properties();
        addChanged(file, store, new MessageStoreConfig());
        addChanged(file, broker, new BrokerConfig());
        file.setProperty("bindAddress", "127.0.0.1");
        file.setProperty("listenPort", "0");
        file.setProperty("haListenPort", "0");
        file.setProperty("metricsExporterType", "DISABLE");
        List<String> lines = new ArrayList<>();
        file.stringPropertyNames().forEach(key -> lines.add(key + "=" + file.getProperty(key)));
        Path path = HOME.resolve("broker-" + FILES.incrementAndGet() + ".conf");
        try {
            Files.write(path, lines);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
        Started started = start(broker.getBrokerName(), Arrays.asList("broker", "-c", path.toString(), "--json"));
        return RemoteBroker.of(admin, broker, store, started.port("broker"), () -> stop(started.process));
    }

    private static void addChanged(Properties file, Object now, Object fresh) {
        Properties before = MixAll.object2Properties(fresh);
        MixAll.object2Properties(now).forEach((key, value) -> {
            if (!value.equals(before.get(key))) {
                file.put(key, value);
            }
        });
    }

    private static final class Started {
        private final Process process;
        private final Map<String, Object> ready;

        private Started(Process process, Map<String, Object> ready) {
            this.process = process;
            this.ready = ready;
        }

        private int port(String key) {
            String address = (String) ready.get(key);
            return Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
        }
    }

    private static Started start(String name, List<String> arguments) {
        List<String> command = new ArrayList<>();
        Collections.addAll(command, System.getProperty("ropewalk.command").split("\t"));
        command.addAll(arguments);
        Path errors = HOME.resolve(name + "-" + FILES.incrementAndGet() + ".err");
        try {
            Process process = new ProcessBuilder(command).redirectError(errors.toFile()).start();
            PROCESSES.add(process);
            BufferedReader output = new BufferedReader(new InputStreamReader(process.getInputStream()));
            String line = output.readLine();
            if (line == null) {
                throw new IllegalStateException(name + " did not start: " + Files.readAllLines(errors));
            }
            return new Started(process, com.alibaba.fastjson2.JSON.parseObject(line));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void stop(Process process) {
        process.destroy();
        try {
            if (!process.waitFor(STOP_S, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new IllegalStateException("a server did not stop within " + STOP_S + " s");
            }
        } catch (InterruptedException e) {
            process.destroyForcibly();
        }
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, CQType queueType) {
        return initTopic(topic, namesrv, cluster, BaseConf.QUEUE_NUMBERS, queueType);
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, TopicMessageType type) {
        return initTopic(topic, namesrv, cluster, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type);
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, int queues, CQType queueType) {
        return initTopic(topic, namesrv, cluster, queues, queueType, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(
        String topic, String namesrv, String cluster, int queues, CQType queueType, TopicMessageType type) {
        Map<String, String> attributes = new HashMap<>();
        if (queueType != CQType.SimpleCQ) {
            attributes.put("+" + TopicAttributes.QUEUE_TYPE_ATTRIBUTE.getName(), queueType.toString());
        }
        if (type != TopicMessageType.NORMAL) {
            attributes.put("+" + TopicAttributes.TOPIC_MESSAGE_TYPE_ATTRIBUTE.getName(), type.toString());
        }
        return MQAdminTestUtils.createTopic(namesrv, cluster, topic, queues, attributes, topicCreateTime);
    }

    public static void initMQAdmin(String namesrv) {
        try {
            MQAdminTestUtils.startAdmin(namesrv);
        } catch (MQClientException e) {
            throw new IllegalStateException(e);
        }
    }
}
