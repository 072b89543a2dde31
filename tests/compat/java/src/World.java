import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The surroundings of one scenario: where the name server is, and names nobody else uses.
 *
 * Clients of one JVM that bear the same instance name share connections and registrations, so each gets a
 * name of its own. What a scenario opens through this object is closed when it ends, in reverse order.
 */
final class World implements AutoCloseable {
    static final long PATIENCE_MS = 60_000;

    final String namesrv;
    final String topic;
    final String group;
    private final List<Runnable> closers = new ArrayList<>();
    private int instances;

    World(String namesrv, String prefix, String scenario) {
        this.namesrv = namesrv;
        this.topic = prefix + "-" + scenario;
        this.group = prefix + "-" + scenario + "-group";
    }

    private <C extends ClientConfig> C placed(C client) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(topic + "-" + instances++);
        client.setClientIP("127.0.0.1");
        client.setPollNameServerInterval(1_000);
        // On a busy machine the first answers are late, and a timeout closes the connection under other requests.
        client.setMqClientApiTimeout(20_000);
        // Client 5.5.0 gives up a heartbeat when another of its threads is sending one, and then pulls under
        // a subscription its broker has not heard of; the next regular heartbeat mends it.
        client.setHeartbeatBrokerInterval(1_000);
        client.setPersistConsumerOffsetInterval(1_000);
        return client;
    }

    DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = placed(new DefaultMQProducer(group + "-producer"));
        producer.setSendMsgTimeout(10_000);
        // A repeated send would hide a refused one, and spoil the dense offsets that are asserted.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        closers.add(producer::shutdown);
        return producer;
    }

    TransactionMQProducer transactionProducer() {
        TransactionMQProducer producer = placed(new TransactionMQProducer(group + "-producer"));
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        closers.add(producer::shutdown);
        return producer;
    }

    DefaultMQPushConsumer pushConsumer() {
        DefaultMQPushConsumer consumer = placed(new DefaultMQPushConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        closers.add(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer litePullConsumer() {
        DefaultLitePullConsumer consumer = placed(new DefaultLitePullConsumer(group));
        // One for each queue: a pull that the broker holds keeps its thread for up to twenty seconds, and with
        // fewer threads than queues two that have nothing more keep the others from being asked even once.
        consumer.setPullThreadNums(4);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        closers.add(consumer::shutdown);
        return consumer;
    }

    DefaultMQPullConsumer pullConsumer() throws Exception {
        DefaultMQPullConsumer consumer = placed(new DefaultMQPullConsumer(group));
        consumer.start();
        closers.add(consumer::shutdown);
        return consumer;
    }

    Message message(String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    /** The topic's queues in order, once the name server knows the topic. */
    List<MessageQueue> queues(DefaultMQProducer producer) throws Exception {
        return inOrder(producer.fetchPublishMessageQueues(topic));
    }

    static List<MessageQueue> inOrder(Iterable<MessageQueue> queues) {
        List<MessageQueue> sorted = new ArrayList<>();
        queues.forEach(sorted::add);
        sorted.sort(Comparator.comparingInt(MessageQueue::getQueueId));
        return sorted;
    }

    static List<MessageQueue> inOrder(Set<MessageQueue> queues) {
        return inOrder((Iterable<MessageQueue>) queues);
    }

    /**
     * Wait until all the topic's messages, or all of these queues', can be read. An answer to a send says
     * that a message is stored; RocketMQ puts it into its queue a moment later.
     */
    static void awaitReadable(DefaultMQProducer producer, List<MessageQueue> queues, long count) throws Exception {
        await(count + " messages can be read", () -> {
            long total = 0;
            for (MessageQueue queue : queues) {
                total += producer.maxOffset(queue);
            }
            return total >= count;
        });
    }

    /** Wait until the message of a SendResult, and so all before it in its queue, can be read. */
    static void awaitReadable(DefaultMQProducer producer, SendResult last) throws Exception {
        await("the last message can be read",
            () -> producer.maxOffset(last.getMessageQueue()) > last.getQueueOffset());
    }

    /** Wait for a condition; the exception says what never came true. Returns the milliseconds it took. */
    static long await(String what, Callable<Boolean> condition) throws Exception {
        long start = System.nanoTime();
        while (!condition.call()) {
            if ((System.nanoTime() - start) / 1_000_000 > PATIENCE_MS) {
                throw new IllegalStateException("not within " + PATIENCE_MS + " ms: " + what);
            }
            Thread.sleep(20);
        }
        return (System.nanoTime() - start) / 1_000_000;
    }

    @Override
    public void close() {
        for (int i = closers.size() - 1; i >= 0; i--) {
            closers.get(i).run();
        }
    }
}
