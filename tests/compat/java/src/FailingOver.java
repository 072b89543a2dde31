import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.exception.RemotingConnectException;

/**
 * Three producers and three consumers that work while leaders come and go: plain messages, orderly ones, delayed ones.
 *
 * Message by message, each to the queue that its number tells, the same number again until it is acknowledged; the
 * client itself does not repeat, so that every attempt is told: "sent", or "failed" with whether the outcome is
 * unknown. Commands, one a line: "stop" ends the sending and is answered by "stopped"; "end" ends.
 */
final class FailingOver {
    private FailingOver() {
    }

    static void work(World world, Events events) throws Exception {
        consume(world, events, "plain", false);
        consume(world, events, "orderly", true);
        consume(world, events, "delayed", false);
        DefaultMQProducer producer = world.producer();
        producer.setSendMsgTimeout(3_000);
        List<Thread> senders = new ArrayList<>();
        for (String kind : new String[] {"plain", "orderly", "delayed"}) {
            Thread sender = new Thread(() -> send(world, events, producer, kind));
            sender.start();
            senders.add(sender);
        }
        events.emit("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("end"); line = in.readLine()) {
            stopping = true;
            for (Thread sender : senders) {
                sender.join();
            }
            events.emit("stopped");
        }
        stopping = true;
    }

    private static volatile boolean stopping;

    private static void send(World world, Events events, DefaultMQProducer producer, String kind) {
        for (int number = 0; !stopping; number++) {
            while (!attempt(world, events, producer, kind, number)) {
                pause(50);
            }
            pause(kind.equals("delayed") ? 100 : 20);
        }
    }

    private static boolean attempt(World world, Events events, DefaultMQProducer producer, String kind, int number) {
        Message message = new Message(
            world.topic + "-" + kind, Integer.toString(number).getBytes(StandardCharsets.UTF_8));
        if (kind.equals("delayed")) {
            message.setDelayTimeLevel(1 + number % 2);
        }
        long beforeMs = System.currentTimeMillis();
        try {
            producer.send(message, (queues, sent, arg) -> World.inOrder(queues).get(number % 4), number);
            events.emit("sent", "kind", kind, "number", number, "beforeMs", beforeMs);
            return true;
        } catch (Exception error) {
            events.emit("failed", "kind", kind, "number", number, "beforeMs", beforeMs,
                "unknown", !isUnsent(error), "error", error.toString());
            return false;
        }
    }

    /** Whether no broker has stored the message: none was reached, or it said so by code 14 or 2. */
    private static boolean isUnsent(Throwable error) {
        if (error instanceof MQBrokerException) {
            int code = ((MQBrokerException) error).getResponseCode();
            return code == 14 || code == 2;
        }
        if (error instanceof RemotingConnectException) {
            return true;
        }
        boolean told = error instanceof MQClientException || error instanceof IndexOutOfBoundsException;
        return told && (error.getCause() == null || isUnsent(error.getCause()));
    }

    private static void consume(World world, Events events, String kind, boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.setConsumerGroup(world.group + "-" + kind);
        consumer.subscribe(world.topic + "-" + kind, "*");
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                report(events, kind, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                report(events, kind, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
    }

    private static void report(Events events, String kind, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            events.emit("received", "kind", kind,
                "number", Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8)),
                "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(),
                "wallMs", System.currentTimeMillis());
        }
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }
}
