import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that are told: alone, again after a restart, and two who share. */
final class Pushing {
    private Pushing() {
    }

    /** A started push consumer that reports under its name, and the bodies it has seen. */
    private static final class Member {
        final Set<String> bodies = ConcurrentHashMap.newKeySet();
        final AtomicLong lastNanos = new AtomicLong();
        final DefaultMQPushConsumer consumer;

        Member(World world, Events events, String name, String expression) throws Exception {
            consumer = world.pushConsumer();
            consumer.subscribe(world.topic, expression);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    lastNanos.set(System.nanoTime());
                    events.received(message, "member", name);
                    bodies.add(new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        /** Wait until all that was received is also processed: only that is committed by a shutdown. */
        void settle() throws Exception {
            World.await("what was received is processed", () -> consumer.getDefaultMQPushConsumerImpl()
                .getRebalanceImpl().getProcessQueueTable().values().stream()
                .allMatch(queue -> queue.getMsgCount().get() == 0));
            Thread.sleep(200);
        }

        /** The ids of the topic's queues this member holds, in order. */
        List<Integer> queues(String topic) {
            List<Integer> ids = new ArrayList<>();
            for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
                .getProcessQueueTable().keySet()) {
                if (queue.getTopic().equals(topic)) {
                    ids.add(queue.getQueueId());
                }
            }
            ids.sort(null);
            return ids;
        }
    }

    static void push(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        for (int i = 0; i < 40; i++) {
            producer.send(world.message("push " + i));
        }
        Member first = new Member(world, events, "first", "*");
        World.await("all 40 messages arrive", () -> first.bodies.size() == 40);

        // All queues are empty now, so what comes next ends a held pull.
        Thread.sleep(500);
        for (int i = 0; i < 5; i++) {
            String body = "held " + i;
            producer.send(world.message(body));
            long acknowledged = System.nanoTime();
            World.await(body + " arrives", () -> first.bodies.contains(body));
            events.emit("held", "afterAckMs", (first.lastNanos.get() - acknowledged) / 1_000_000);
        }
        first.settle();
        first.consumer.shutdown();

        for (int i = 0; i < 6; i++) {
            producer.send(world.message("later " + i));
        }
        Member second = new Member(world, events, "second", "*");
        World.await("the 6 messages sent meanwhile arrive", () -> second.bodies.size() >= 6);
        Thread.sleep(500);
        events.emit("resumed", "bodies", new java.util.TreeSet<>(second.bodies));
    }

    static void pushTags(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        Member member = null;
        for (int i = 0; i < 24; i++) {
            String tag = String.valueOf("ABC".charAt(i % 3));
            producer.send(new Message(world.topic, tag, Producing.bytes(tag + i)));
            if (i == 11) {
                member = new Member(world, events, "only", "A || C");
            }
        }
        Member only = member;
        World.await("the 16 messages with tag A or C arrive", () -> only.bodies.size() == 16);
        Thread.sleep(200);
        events.emit("filtered", "count", only.bodies.size());
    }

    static void pushPair(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("first"));
        World.await("the topic has its queues", () -> world.queues(producer).size() == 4);
        Member ann = new Member(world, events, "ann", "*");
        World.await("ann holds all four", () -> ann.queues(world.topic).size() == 4);
        Member bob = new Member(world, events, "bob", "*");
        long sharedMs = World.await("both hold two queues",
            () -> ann.queues(world.topic).size() == 2 && bob.queues(world.topic).size() == 2);
        events.emit("shared", "ms", sharedMs, "ann", ann.queues(world.topic), "bob", bob.queues(world.topic));
        send(world, producer, "together", 40);
        World.await("both together have 41 messages", () -> union(ann, bob) == 41);
        events.emit("together", "ann", ann.bodies.size(), "bob", bob.bodies.size());

        bob.settle();
        bob.consumer.shutdown();
        long leftMs = World.await("ann holds all four again", () -> ann.queues(world.topic).size() == 4);
        events.emit("left", "ms", leftMs, "ann", ann.queues(world.topic));
        send(world, producer, "alone", 40);
        World.await("ann has the 40 later ones",
            () -> ann.bodies.stream().filter(body -> body.startsWith("alone")).count() == 40);
    }

    private static void send(World world, DefaultMQProducer producer, String name, int count) throws Exception {
        List<MessageQueue> queues = world.queues(producer);
        for (int i = 0; i < count; i++) {
            producer.send(world.message(name + " " + i), queues.get(i % queues.size()));
        }
    }

    private static int union(Member one, Member other) {
        Set<String> all = ConcurrentHashMap.newKeySet();
        all.addAll(one.bodies);
        all.addAll(other.bodies);
        return all.size();
    }
}
