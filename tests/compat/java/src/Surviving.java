import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer with the retries that it has by default, which sends one message after the other while leaders come and
 * go, and a consumer that joins when all is over.
 *
 * Commands, one a line: "read" ends the sending and has the consumer join; "end" ends. Each message is answered by
 * "sent" or, where the client gave up, by "unsure".
 */
final class Surviving {
    private Surviving() {
    }

    static void produce(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        producer.setRetryTimesWhenSendFailed(2);
        producer.setSendMsgTimeout(3_000);
        Thread sender = new Thread(() -> send(world, producer, events));
        sender.start();
        events.emit("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("end"); line = in.readLine()) {
            sender.interrupt();
            sender.join();
            read(world, events);
        }
        sender.interrupt();
    }

    private static void send(World world, DefaultMQProducer producer, Events events) {
        for (int number = 0; !Thread.currentThread().isInterrupted(); number++) {
            try {
                Message message = world.message(Integer.toString(number));
                SendResult result = producer.send(message);
                events.emit("sent", "number", number, "status", result.getSendStatus().toString());
                Thread.sleep(5);
            } catch (InterruptedException interrupted) {
                return;
            } catch (Exception error) {
                events.emit("unsure", "number", number, "error", error.toString());
                if (error.getCause() instanceof InterruptedException) {
                    return;
                }
                try {
                    Thread.sleep(50);
                } catch (InterruptedException interrupted) {
                    return;
                }
            }
        }
    }

    private static void read(World world, Events events) throws Exception {
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.subscribe(world.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                events.emit("received", "number",
                    Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8)),
                    "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        events.emit("joined");
    }
}
