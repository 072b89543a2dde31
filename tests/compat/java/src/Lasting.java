import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A group of two that outlives its brokers. One member stays from beginning to end, with all it remembers; the other
 * leaves and comes back anew, remembering nothing, when standard input says so.
 *
 * Commands, one a line: "leave", "join", and "end" (or the end of input). Each is answered by an event.
 */
final class Lasting {
    private Lasting() {
    }

    static void group(World world, Events events) throws Exception {
        join(world, events, "stays");
        DefaultMQPushConsumer guest = join(world, events, "guest");
        events.emit("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("end"); line = in.readLine()) {
            if (line.equals("leave")) {
                guest.shutdown();
                events.emit("left");
            } else if (line.equals("join")) {
                guest = join(world, events, "guest");
                events.emit("joined");
            } else {
                throw new IllegalArgumentException(line);
            }
        }
    }

    private static DefaultMQPushConsumer join(World world, Events events, String name) throws Exception {
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.subscribe(world.topic, "*");
        consumer.subscribe(world.topic + "-later", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                events.emit("received", "member", name, "wallMs", System.currentTimeMillis(),
                    "topic", message.getTopic(), "queueId", message.getQueueId(),
                    "queueOffset", message.getQueueOffset(), "logOffset", message.getCommitLogOffset(),
                    "msgId", message.getMsgId(), "keys", message.getKeys(),
                    "storeTimestamp", message.getStoreTimestamp(),
                    "bodyLength", message.getBody().length, "bodySha256", Events.sha256(message.getBody()));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
