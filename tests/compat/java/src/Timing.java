import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of timer messages and a consumer of what is delivered, which outlive their brokers.
 *
 * Commands, one a line. "send NAME PROPERTY VALUE" sends a message of that body, due by TIMER_DELAY_SEC, TIMER_DELAY_MS
 * or TIMER_DELIVER_MS, and is answered by "sent" or "refused". "recall NAME" takes it back: "recalled" or "kept".
 * "end" ends. Client 5.5.0 has methods for all of it; 4.9.8 knows no timers, and sets the properties by hand.
 */
final class Timing {
    private Timing() {
    }

    static void produce(World world, Events events) throws Exception {
        Map<String, SendResult> results = new ConcurrentHashMap<>();
        DefaultMQProducer producer = world.producer();
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.subscribe(world.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                events.received(message, "wallMs", System.currentTimeMillis());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        events.emit("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("end"); line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("recall")) {
                recall(world, events, producer, words[1], results.get(words[1]));
                continue;
            }
            try {
                SendResult result = producer.send(timed(world.message(words[1]), words[2], Long.parseLong(words[3])));
                results.put(words[1], result);
                events.emit("sent", "name", words[1], "result", Events.describe(result), "handle", handle(result));
            } catch (Exception error) {
                events.emit("refused", "name", words[1], "error", error.toString());
            }
        }
    }

    private static Message timed(Message message, String property, long value) throws Exception {
        String method = property.equals("TIMER_DELAY_SEC") ? "setDelayTimeSec"
            : property.equals("TIMER_DELAY_MS") ? "setDelayTimeMs" : "setDeliverTimeMs";
        try {
            Message.class.getMethod(method, long.class).invoke(message, value);
        } catch (NoSuchMethodException old) {
            MessageAccessor.putProperty(message, property, Long.toString(value));
        }
        return message;
    }

    private static String handle(SendResult result) throws Exception {
        try {
            return (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (NoSuchMethodException old) {
            return null;
        }
    }

    private static void recall(
        World world, Events events, DefaultMQProducer producer, String name, SendResult result) throws Exception {
        try {
            Object key = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer, world.topic, handle(result));
            events.emit("recalled", "name", name, "msgId", key);
        } catch (java.lang.reflect.InvocationTargetException error) {
            events.emit("kept", "name", name, "error", error.getCause().toString());
        }
    }
}
