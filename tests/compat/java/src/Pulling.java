import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that ask: the old pull consumer, the lite one, offsets, and messages by id. */
final class Pulling {
    private Pulling() {
    }

    /** Pull every queue from its first offset to its end, and report each message. */
    static void everything(World world, Events events, List<MessageQueue> queues) throws Exception {
        DefaultMQPullConsumer consumer = world.pullConsumer();
        for (MessageQueue queue : queues) {
            long end = consumer.maxOffset(queue);
            long next = consumer.minOffset(queue);
            while (next < end) {
                PullResult result = consumer.pull(queue, "*", next, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        events.received(message);
                    }
                }
                next = result.getNextBeginOffset();
            }
        }
    }

    static void pullOld(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("first"));
        MessageQueue queue = world.queues(producer).get(0);
        SendResult last = null;
        for (int i = 0; i < 50; i++) {
            last = producer.send(world.message("pull " + i), queue);
        }
        World.awaitReadable(producer, last);
        DefaultMQPullConsumer consumer = world.pullConsumer();
        events.emit("queues", "count", consumer.fetchSubscribeMessageQueues(world.topic).size());
        long end = consumer.maxOffset(queue);
        long next = consumer.minOffset(queue);
        events.emit("bounds", "min", next, "max", end);
        while (next < end) {
            PullResult result = consumer.pull(queue, "*", next, 20);
            pulled(events, "forward", result);
            for (MessageExt message : result.getMsgFoundList()) {
                events.received(message);
            }
            next = result.getNextBeginOffset();
        }
        pulled(events, "at the end", consumer.pull(queue, "*", end, 20));
        pulled(events, "beyond the end", consumer.pull(queue, "*", end + 1_000, 20));
        events.emit("committed", "when", "before", "offset", consumer.fetchConsumeOffset(queue, true));
        consumer.updateConsumeOffset(queue, 17);
        OffsetStore offsets = consumer.getDefaultMQPullConsumerImpl().getOffsetStore();
        offsets.persistAll(Collections.singleton(queue));
        World.await("the committed offset can be read", () -> consumer.fetchConsumeOffset(queue, true) == 17);
        events.emit("committed", "when", "after", "offset", consumer.fetchConsumeOffset(queue, true));
        refused(events, "topic", consumer, new MessageQueue(world.topic + "-none", queue.getBrokerName(), 0));
        refused(events, "queue", consumer, new MessageQueue(world.topic, queue.getBrokerName(), 999));
    }

    private static void refused(Events events, String what, DefaultMQPullConsumer consumer, MessageQueue queue)
        throws Exception {
        try {
            pulled(events, what, consumer.pull(queue, "*", 0, 20));
        } catch (MQBrokerException refused) {
            events.emit("refused", "what", what, "code", refused.getResponseCode());
        }
    }

    private static void pulled(Events events, String where, PullResult result) {
        events.emit("pulled", "where", where, "status", result.getPullStatus().name(),
            "next", result.getNextBeginOffset(), "min", result.getMinOffset(), "max", result.getMaxOffset(),
            "count", result.getMsgFoundList() == null ? 0 : result.getMsgFoundList().size());
    }

    static void pullHeld(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("first"));
        World.awaitReadable(producer, world.queues(producer), 1);
        MessageQueue queue = world.queues(producer).get(0);
        DefaultMQPullConsumer consumer = world.pullConsumer();
        long end = consumer.maxOffset(queue);
        AtomicLong acknowledged = new AtomicLong();
        Thread sender = new Thread(() -> {
            try {
                Thread.sleep(1_500);
                producer.send(world.message("what the held pull waits for"), queue);
                acknowledged.set(System.nanoTime());
            } catch (Exception error) {
                events.emit("failed", "error", error.toString());
            }
        });
        sender.start();
        long asked = System.nanoTime();
        PullResult result = consumer.pullBlockIfNotFound(queue, "*", end, 32);
        long answered = System.nanoTime();
        sender.join();
        pulled(events, "held", result);
        for (MessageExt message : result.getMsgFoundList()) {
            events.received(message);
        }
        events.emit("held", "waitedMs", (answered - asked) / 1_000_000,
            "afterAckMs", (answered - acknowledged.get()) / 1_000_000);
    }

    static void tagFilter(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(new Message(world.topic, "A", Producing.bytes("A first")));
        MessageQueue queue = world.queues(producer).get(1);
        String[] tags = {"A", "B", "C", null, "A", "B"};
        SendResult last = null;
        for (int i = 0; i < tags.length; i++) {
            last = producer.send(new Message(world.topic, tags[i], Producing.bytes(tags[i] + " " + i)), queue);
        }
        World.awaitReadable(producer, last);
        DefaultMQPullConsumer consumer = world.pullConsumer();
        for (String expression : new String[] {"*", "A", "A || C", "B||nothing", "nothing"}) {
            List<String> bodies = new ArrayList<>();
            long end = consumer.maxOffset(queue);
            long next = consumer.minOffset(queue);
            List<String> statuses = new ArrayList<>();
            while (next < end) {
                PullResult result = consumer.pull(queue, expression, next, 32);
                statuses.add(result.getPullStatus().name());
                if (result.getMsgFoundList() != null) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        bodies.add(new String(message.getBody(), "UTF-8"));
                    }
                }
                next = result.getNextBeginOffset();
            }
            events.emit("filtered", "expression", expression, "bodies", bodies, "statuses", statuses);
        }
    }

    /** Two queues of a topic with about forty messages in them, for a lite consumer to be assigned. */
    private static List<MessageQueue> twoQueues(World world, DefaultMQProducer producer) throws Exception {
        producer.send(world.message("first"));
        List<MessageQueue> queues = world.queues(producer).subList(0, 2);
        SendResult last = null;
        for (int i = 0; i < 40; i++) {
            last = producer.send(world.message("lite " + i), queues.get(i % 2));
        }
        World.awaitReadable(producer, last);
        return queues;
    }

    static void liteAssign(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        List<MessageQueue> mine = twoQueues(world, producer);
        DefaultLitePullConsumer consumer = world.litePullConsumer();
        consumer.setAutoCommit(false);
        consumer.start();
        events.emit("queues", "count", consumer.fetchMessageQueues(world.topic).size());
        consumer.assign(mine);
        polled(events, consumer, producer.maxOffset(mine.get(0)) + producer.maxOffset(mine.get(1)));
        consumer.commitSync();
        consumer.shutdown();

        // Asked through the old consumer, because the lite one remembers the first answer it gets.
        DefaultMQPullConsumer later = world.pullConsumer();
        for (MessageQueue queue : mine) {
            long end = producer.maxOffset(queue);
            World.await("the commit to " + end + " of queue " + queue.getQueueId() + " arrives",
                () -> later.fetchConsumeOffset(queue, true) == end);
            events.emit("committed", "queue", queue, "offset", later.fetchConsumeOffset(queue, true), "end", end);
        }
    }

    static void liteSeek(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        List<MessageQueue> mine = twoQueues(world, producer);
        DefaultLitePullConsumer consumer = world.litePullConsumer();
        consumer.start();
        consumer.assign(mine);
        long all = producer.maxOffset(mine.get(0)) + producer.maxOffset(mine.get(1));
        polled(events, consumer, all);
        // The client can lose messages when a seek meets a pull that is being answered, so wait until the
        // server holds its pulls.
        Thread.sleep(500);
        events.emit("seek", "ends", List.of(producer.maxOffset(mine.get(0)), producer.maxOffset(mine.get(1))));
        for (MessageQueue queue : mine) {
            consumer.seek(queue, 5);
        }
        polled(events, consumer, all - 10);
    }

    static void liteSubscribe(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        for (int i = 0; i < 40; i++) {
            producer.send(new Message(world.topic, i % 2 == 0 ? "even" : "odd", Producing.bytes("lite " + i)));
        }
        DefaultLitePullConsumer consumer = world.litePullConsumer();
        consumer.subscribe(world.topic, "even");
        consumer.start();
        polled(events, consumer, 20);
    }

    private static void polled(Events events, DefaultLitePullConsumer consumer, long expected) throws Exception {
        AtomicLong seen = new AtomicLong();
        World.await("all " + expected + " messages are polled", () -> {
            for (MessageExt message : consumer.poll(200)) {
                events.received(message);
                seen.incrementAndGet();
            }
            return seen.get() >= expected;
        });
    }

    static void offsets(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("first"));
        MessageQueue queue = world.queues(producer).get(0);
        MessageQueue untouched = world.queues(producer).get(3);
        SendResult last = null;
        for (int i = 0; i < 10; i++) {
            last = producer.send(world.message("offset " + i), queue);
            Thread.sleep(15);
        }
        World.awaitReadable(producer, last);
        DefaultMQPullConsumer consumer = world.pullConsumer();
        PullResult all = consumer.pull(queue, "*", consumer.minOffset(queue), 32);
        MessageExt middle = all.getMsgFoundList().get(5);
        events.emit("bounds", "min", producer.minOffset(queue), "max", producer.maxOffset(queue),
            "count", all.getMsgFoundList().size());
        events.emit("searched", "for", "long ago", "offset", producer.searchOffset(queue, 0));
        events.emit("searched", "for", "exactly the sixth",
            "offset", producer.searchOffset(queue, middle.getStoreTimestamp()), "expected", middle.getQueueOffset());
        events.emit("searched", "for", "just after the sixth",
            "offset", producer.searchOffset(queue, middle.getStoreTimestamp() + 1), "expected",
            middle.getQueueOffset() + 1);
        events.emit("searched", "for", "the future",
            "offset", producer.searchOffset(queue, System.currentTimeMillis() + 3_600_000),
            "max", producer.maxOffset(queue));
        if (producer.maxOffset(untouched) == 0) {
            events.emit("bounds of an empty queue", "min", producer.minOffset(untouched), "max", 0);
        }
    }

    static void viewById(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        for (int i = 0; i < 3; i++) {
            Message message = new Message(world.topic, "tag", "key" + i, Producing.bytes("view " + i));
            SendResult result = producer.send(message);
            events.sent(result);
            events.received(producer.viewMessage(world.topic, result.getOffsetMsgId()));
        }
    }
}
