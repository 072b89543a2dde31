import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** The ways to send. Each scenario's topic springs from its first message. */
final class Producing {
    private Producing() {
    }

    static void sendSync(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        for (int i = 0; i < 8; i++) {
            events.sent(producer.send(world.message("sync " + i)));
        }
        events.emit("queues", "count", world.queues(producer).size());
    }

    static void sendAsync(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        int count = 32;
        // The route of a new topic is asked for by the first message; the others must not race it.
        events.sent(producer.send(world.message("first")));
        CountDownLatch answered = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            producer.send(world.message("async " + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    events.sent(result);
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    events.emit("refused", "error", error.toString());
                    answered.countDown();
                }
            });
        }
        boolean all = answered.await(World.PATIENCE_MS, TimeUnit.MILLISECONDS);
        events.emit("answered", "all", all);
    }

    static void sendOneway(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        for (int i = 0; i < 8; i++) {
            producer.sendOneway(world.message("oneway " + i));
        }
        World.await("the topic exists", () -> {
            try {
                return !producer.fetchPublishMessageQueues(world.topic).isEmpty();
            } catch (MQClientException unknownYet) {
                return false;
            }
        });
        List<MessageQueue> queues = world.queues(producer);
        World.awaitReadable(producer, queues, 8);
        Pulling.everything(world, events, queues);
    }

    static void sendBatch(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message message = new Message(world.topic, "tag" + i % 2, "key" + i, bytes("batch " + i));
            message.putUserProperty("index", String.valueOf(i));
            batch.add(message);
        }
        SendResult result = producer.send(batch);
        events.sent(result);
        World.awaitReadable(producer, world.queues(producer), batch.size());
        Pulling.everything(world, events, world.queues(producer));
    }

    static void sendSelected(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        for (int order = 0; order < 12; order++) {
            SendResult result = producer.send(
                world.message("order " + order),
                (queues, message, key) -> World.inOrder(queues).get((Integer) key % queues.size()),
                order);
            events.emit("selected", "order", order, "result", Events.describe(result));
        }
    }

    static void autoCreate(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.setDefaultTopicQueueNums(2);
        events.sent(producer.send(world.message("the first of its topic")));
        World.await("the producer knows the topic's own route", () -> world.queues(producer).size() == 2);
        events.emit("queues", "count", world.queues(producer).size());
    }

    static void bigBodies(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        byte[] compressible = new byte[100 * 1024];
        Arrays.fill(compressible, (byte) 'r');
        byte[] random = new byte[100 * 1024];
        new Random(42).nextBytes(random);
        for (byte[] body : Arrays.asList(compressible, random)) {
            events.emit("body", "length", body.length, "sha256", Events.sha256(body));
            events.sent(producer.send(new Message(world.topic, body)));
        }
        World.awaitReadable(producer, world.queues(producer), 2);
        Pulling.everything(world, events, world.queues(producer));
    }

    static void roundTrip(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        Message message = new Message(world.topic, "标签", bytes("Tauwerk für Zoë \ud83e\udea2 索具"));
        message.setKeys(Arrays.asList("ключ", "key-2", "κλειδί"));
        message.setFlag(-7);
        message.putUserProperty("ünïcode", "välue \ud83d\ude80");
        message.putUserProperty("with spaces", "a=b; c:d, \"quoted\" \\ and {braces}");
        message.setBuyerId("buyer-1");
        events.sent(producer.send(message));
        World.awaitReadable(producer, world.queues(producer), 1);
        Pulling.everything(world, events, world.queues(producer));
    }

    static void sendRefused(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.send(world.message("small enough"));
        producer.setMaxMessageSize(8 << 20);
        byte[] tooBig = new byte[5 << 20];
        new Random(7).nextBytes(tooBig);
        MessageQueue queue = world.queues(producer).get(0);
        try {
            events.sent(producer.send(new Message(world.topic, tooBig), queue));
        } catch (MQBrokerException refused) {
            events.emit("refused", "what", "body", "code", refused.getResponseCode());
        }
        try {
            MessageQueue beyond = new MessageQueue(world.topic, queue.getBrokerName(), 999);
            events.sent(producer.send(world.message("to a queue that does not exist"), beyond));
        } catch (MQBrokerException refused) {
            events.emit("refused", "what", "queue", "code", refused.getResponseCode());
        }
        events.sent(producer.send(world.message("and the connection lives on"), queue));
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
