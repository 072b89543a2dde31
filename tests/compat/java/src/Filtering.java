import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that filter by SQL92 expressions over properties. */
final class Filtering {
    private Filtering() {
    }

    private static Message numbered(World world, String name, int number) {
        Message message = world.message(name + " " + number);
        message.putUserProperty("n", String.valueOf(number));
        message.putUserProperty("parity", number % 2 == 0 ? "even" : "odd");
        return message;
    }

    /** A push consumer of a group of its own, and the bodies it has seen. */
    private static Set<String> member(World world, Events events, String name, String expression, boolean fails)
        throws Exception {
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.setConsumerGroup(world.group + "-" + name);
        consumer.subscribe(world.topic, MessageSelector.bySql(expression));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                events.received(message, "member", name);
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8) + "/" + message.getReconsumeTimes());
                if (fails && message.getReconsumeTimes() == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return bodies;
    }

    /** Two groups with different expressions on one topic, over a backlog and over what comes later. */
    static void sqlPush(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        for (int i = 0; i < 40; i++) {
            producer.send(numbered(world, "early", i));
        }
        Set<String> large = member(world, events, "large", "n >= 30 AND n IS NOT NULL", false);
        Set<String> odd = member(world, events, "odd", "parity = 'odd' AND n BETWEEN 0 AND 9", false);
        World.await("the backlog is filtered", () -> large.size() == 10 && odd.size() == 5);
        for (int i = 0; i < 40; i++) {
            producer.send(numbered(world, "late", i));
        }
        World.await("what comes later is filtered", () -> large.size() == 20 && odd.size() == 10);
        Thread.sleep(500);
        events.emit("counted", "large", large.size(), "odd", odd.size());
    }

    /** The retry topic of an SQL group is not filtered. */
    static void sqlRetry(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(numbered(world, "first", 0));
        DefaultMQPushConsumer first = world.pushConsumer();
        first.setConsumerGroup(world.group + "-failing");
        first.subscribe(world.topic, MessageSelector.bySql("n = 1000"));
        first.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        first.start();
        World.await("the retry topic has a route", () -> {
            try {
                return !producer.fetchPublishMessageQueues("%RETRY%" + world.group + "-failing").isEmpty();
            } catch (MQClientException unknown) {
                return false;
            }
        });
        first.shutdown();
        Set<String> bodies = member(world, events, "failing", "n = 7", true);
        for (int i = 5; i < 10; i++) {
            producer.send(numbered(world, "m", i));
        }
        World.await("it comes again", () -> bodies.contains("m 7/1"));
        events.emit("seen", "bodies", new java.util.TreeSet<>(bodies));
    }

    /** The old pull consumer and the lite one. */
    static void sqlPull(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(numbered(world, "pull", 0));
        MessageQueue queue = world.queues(producer).get(0);
        SendResult last = null;
        for (int i = 1; i < 50; i++) {
            last = producer.send(numbered(world, "pull", i), queue);
        }
        World.awaitReadable(producer, last);
        DefaultMQPullConsumer consumer = world.pullConsumer();
        // Before its first heartbeat is answered this client takes the broker for one that is too old.
        World.await("the client knows the broker's version", () -> {
            try {
                consumer.pull(queue, MessageSelector.bySql("n > 1000"), 0, 32);
                return true;
            } catch (MQClientException unknown) {
                return false;
            }
        });
        long end = consumer.maxOffset(queue);
        long next = 0;
        while (next < end) {
            PullResult result = consumer.pull(queue, MessageSelector.bySql("n > 40 AND parity = 'even'"), next, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    events.received(message, "member", "old");
                }
            }
            next = result.getNextBeginOffset();
        }
        PullResult none = consumer.pull(queue, MessageSelector.bySql("n > 1000"), 0, 32);
        events.emit("none", "status", none.getPullStatus().name(), "next", none.getNextBeginOffset(), "end", end);

        DefaultLitePullConsumer lite = world.litePullConsumer();
        lite.setConsumerGroup(world.group + "-lite");
        lite.subscribe(world.topic, MessageSelector.bySql("n IN ('3', '33')"));
        lite.start();
        int[] seen = {0};
        World.await("the lite consumer has both", () -> {
            List<MessageExt> found = lite.poll(200);
            for (MessageExt message : found) {
                events.received(message, "member", "lite");
            }
            seen[0] += found.size();
            return seen[0] == 2;
        });
    }

    /** A consumer whose expression is none does not start. */
    static void sqlRefused(World world, Events events) throws Exception {
        world.producer().send(numbered(world, "m", 0));
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.subscribe(world.topic, MessageSelector.bySql("n > 'x'"));
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            consumer.start();
            events.emit("started");
        } catch (MQClientException refused) {
            events.emit("refused", "code", refused.getResponseCode());
        }
    }
}
