import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** One push consumer that takes its time over each message, and prints what it got behind "= ", until input ends. */
public final class Receiving {
    private Receiving() {
    }

    public static void main(String[] arguments) throws Exception {
        int pauseMs = Integer.parseInt(arguments[2]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("receiving");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setClientIP("127.0.0.1");
        consumer.setPollNameServerInterval(1_000);
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setPersistConsumerOffsetInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setPullThresholdForQueue(20);
        consumer.setPullBatchSize(5);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                System.out.println("= " + message.getQueueId() + " " + message.getQueueOffset() + " " + body);
                try {
                    Thread.sleep(pauseMs);
                } catch (InterruptedException interrupted) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("= ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (lines.readLine() != null) {
            // Only the end of the input says something.
        }
        consumer.shutdown();
        System.exit(0);
    }
}
