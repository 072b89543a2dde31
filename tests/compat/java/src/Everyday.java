import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What applications do every day: wait, fail and try again, keep an order, ask and be answered. */
final class Everyday {
    private Everyday() {
    }

    static void delay(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.subscribe(world.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                events.received(message, "clockMs", System.currentTimeMillis());
                count.incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.send(world.message("plain"));
        consumer.start();
        World.await("the plain message arrives", () -> count.get() == 1);
        for (int level = 1; level <= 2; level++) {
            Message message = world.message("level " + level);
            message.setDelayTimeLevel(level);
            message.setTags("Tag" + level);
            long before = System.currentTimeMillis();
            events.sent(producer.send(message));
            events.emit("asked", "level", level, "beforeMs", before, "afterMs", System.currentTimeMillis());
        }
        World.await("both delayed messages arrive", () -> count.get() == 3);
        Thread.sleep(500);
    }

    /** A listener that never succeeds: once more in the retry topic, and then the dead letters. */
    static void retryDlq(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("the topic begins"));
        makeRetryTopic(world, producer);
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(world.topic, "TagA");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                events.received(message, "from", "listener");
            }
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        Message message = world.message("hopeless");
        message.setTags("TagA");
        message.setKeys("key-1");
        events.sent(producer.send(message));
        consumer.start();
        dead(world, events, producer);
    }

    /**
     * Have the broker create the group's retry topic. A client that starts before it exists finds it half a minute
     * later: it divides queues anew only every 20 s.
     */
    private static void makeRetryTopic(World world, DefaultMQProducer producer) throws Exception {
        DefaultMQPushConsumer first = world.pushConsumer();
        first.subscribe(world.topic, "none");
        first.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        first.start();
        World.await("the retry topic has a route", () -> {
            try {
                return !producer.fetchPublishMessageQueues("%RETRY%" + world.group).isEmpty();
            } catch (org.apache.rocketmq.client.exception.MQClientException unknown) {
                return false;
            }
        });
        first.shutdown();
    }

    /** Read the group's dead letters, when there is one. */
    private static void dead(World world, Events events, DefaultMQProducer producer) throws Exception {
        String topic = "%DLQ%" + world.group;
        List<MessageQueue> queues = new ArrayList<>();
        World.await("the topic of dead letters has a queue with a message", () -> {
            try {
                queues.clear();
                queues.addAll(producer.fetchPublishMessageQueues(topic));
                return producer.maxOffset(queues.get(0)) > 0;
            } catch (org.apache.rocketmq.client.exception.MQClientException unknown) {
                return false;
            }
        });
        events.emit("dlq", "queues", queues.size());
        DefaultMQPullConsumer reader = world.pullConsumer();
        PullResult result = reader.pull(queues.get(0), "*", 0, 32);
        for (MessageExt message : result.getMsgFoundList()) {
            events.received(message, "from", "dlq");
        }
    }

    /** Messages of a queue come in order, also when one of them is put off for a moment. */
    static void orderly(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("first 0"));
        World.await("the topic has its queues", () -> world.queues(producer).size() == 4);
        List<MessageQueue> queues = world.queues(producer);
        for (int i = 1; i <= 40; i++) {
            producer.send(world.message("m " + i), queues.get(i % 4));
        }
        AtomicInteger count = new AtomicInteger();
        Map<String, Integer> tries = new HashMap<>();
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.setSuspendCurrentQueueTimeMillis(200);
        consumer.subscribe(world.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8);
                int before;
                synchronized (tries) {
                    before = tries.merge(body, 1, Integer::sum);
                }
                events.received(message, "try", before);
                if (body.equals("m 7") && before == 1) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                count.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        World.await("all 41 messages are consumed", () -> count.get() == 41);
        events.emit("consumed", "count", count.get());
    }

    /** What an orderly consumer gives up is a dead letter at once: its group holds a lock. */
    static void orderlyDlq(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.setMaxReconsumeTimes(1);
        AtomicInteger good = new AtomicInteger();
        consumer.subscribe(world.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                events.received(message, "from", "listener");
                if (new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8).equals("hopeless")) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                good.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        producer.send(world.message("before"));
        MessageQueue queue = world.queues(producer).get(0);
        producer.send(world.message("hopeless"), queue);
        producer.send(world.message("after"), queue);
        consumer.start();
        World.await("the queue goes on behind the hopeless one", () -> good.get() == 2);
        dead(world, events, producer);
    }

    static void requestReply(World world, Events events) throws Exception {
        DefaultMQProducer asker = world.producer();
        DefaultMQProducer replier = world.producer();
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.subscribe(world.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String body = new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8);
                    if (body.startsWith("silence")) {
                        continue;
                    }
                    events.sent(replier.send(MessageUtil.createReplyMessage(message, Producing.bytes("re: " + body))));
                } catch (Exception error) {
                    events.emit("replyFailed", "error", error.toString());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        asker.send(world.message("silence, the topic begins"));
        consumer.start();
        // A broker knows a producer by its heartbeat, which comes once a second here: before it nobody can be answered.
        Thread.sleep(2_500);
        for (int i = 0; i < 3; i++) {
            long start = System.nanoTime();
            Message answer = asker.request(world.message("question " + i), 15_000);
            events.emit("answered", "body", new String(answer.getBody(), java.nio.charset.StandardCharsets.UTF_8),
                "ms", (System.nanoTime() - start) / 1_000_000);
        }
        try {
            asker.request(world.message("silence"), 1_000);
            events.emit("answered", "body", "nobody should have");
        } catch (org.apache.rocketmq.client.exception.RequestTimeoutException timeout) {
            events.emit("timedOut");
        }
    }
}
