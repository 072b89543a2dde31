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
            this(world, events, name, expression, world.pushConsumer());
        }

        Member(World world, Events events, String name, String expression, DefaultMQPushConsumer consumer)
            throws Exception {
            this.consumer = consumer;
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

    /** Every member of a broadcasting group gets everything, and goes on by itself where it stopped. */
    static void broadcast(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("first"));
        World.await("the topic has its queues", () -> world.queues(producer).size() == 4);
        DefaultMQPushConsumer annsConsumer = broadcasting(world, "ann");
        Member ann = new Member(world, events, "ann", "*", annsConsumer);
        Member bob = new Member(world, events, "bob", "*", broadcasting(world, "bob"));
        send(world, producer, "all", 20);
        World.await("both have all 21", () -> ann.bodies.size() == 21 && bob.bodies.size() == 21);
        ann.settle();
        annsConsumer.shutdown();
        send(world, producer, "later", 8);
        Member again = new Member(world, events, "again", "*", broadcasting(world, "ann"));
        World.await("both have the 8 later ones", () -> again.bodies.size() >= 8 && bob.bodies.size() == 29);
        Thread.sleep(300);
    }

    /** A broadcasting consumer keeps its progress in a file under its name, which must be the same next time. */
    private static DefaultMQPushConsumer broadcasting(World world, String name) throws Exception {
        DefaultMQPushConsumer consumer = world.pushConsumer();
        // The package of MessageModel is not the same in both clients.
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                    }
                }
            }
        }
        consumer.setInstanceName(world.topic + "-" + name);
        return consumer;
    }

    /** Two groups of one topic know nothing of each other: each gets everything. */
    static void twoGroups(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("first"));
        World.await("the topic has its queues", () -> world.queues(producer).size() == 4);
        List<Member> members = new ArrayList<>();
        for (String group : new String[] {"one", "two"}) {
            DefaultMQPushConsumer consumer = world.pushConsumer();
            consumer.setConsumerGroup(world.group + "-" + group);
            members.add(new Member(world, events, group, "*", consumer));
        }
        send(world, producer, "both", 40);
        World.await("each group has all 41", () -> members.stream().allMatch(member -> member.bodies.size() == 41));
        members.get(0).settle();
        members.get(0).consumer.shutdown();
        send(world, producer, "later", 8);
        World.await("the other group goes on alone", () -> members.get(1).bodies.size() == 49);
        Thread.sleep(200);
    }

    /** Members that leave the division of queues to the broker. Client 4.9.8 cannot. */
    static void assigned(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("first"));
        World.await("the topic has its queues", () -> world.queues(producer).size() == 4);
        List<Member> members = new ArrayList<>();
        for (String name : new String[] {"ann", "bob"}) {
            DefaultMQPushConsumer consumer = world.pushConsumer();
            try {
                DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            } catch (NoSuchMethodException old) {
                events.emit("unsupported");
                return;
            }
            members.add(new Member(world, events, name, "*", consumer));
        }
        Member ann = members.get(0);
        Member bob = members.get(1);
        World.await("both hold two queues",
            () -> ann.queues(world.topic).size() == 2 && bob.queues(world.topic).size() == 2);
        send(world, producer, "together", 40);
        World.await("both together have 41 messages", () -> union(ann, bob) == 41);
        for (Member member : members) {
            Object rebalance = member.consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
            Object byClient = rebalance.getClass().getMethod("clientRebalance", String.class)
                .invoke(rebalance, world.topic);
            events.emit("assigned", "byBroker", byClient.equals(false), "queues", member.queues(world.topic));
        }
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
