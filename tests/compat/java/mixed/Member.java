import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * An orderly member of a group, told by its arguments NAMESRV GROUP TOPIC, until its standard input ends.
 *
 * <p>Prints a line for each message, {@code message QUEUE OFFSET}, and one whenever its queues change, {@code queues
 * N,N,...}.
 */
public final class Member {
    private Member() {
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[1]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setPullBatchSize(4);
        consumer.subscribe(arguments[2], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    Thread.sleep(3);
                } catch (InterruptedException e) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                say("message " + message.getQueueId() + " " + message.getQueueOffset());
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Thread watcher = new Thread(() -> {
            String last = "";
            while (true) {
                List<Integer> ids = new ArrayList<>();
                for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
                    .getProcessQueueTable().keySet()) {
                    if (queue.getTopic().equals(arguments[2])) {
                        ids.add(queue.getQueueId());
                    }
                }
                ids.sort(null);
                String now = ids.toString().replaceAll("[\\[\\] ]", "");
                if (!now.equals(last)) {
                    say("queues " + now);
                    last = now;
                }
                try {
                    Thread.sleep(20);
                } catch (InterruptedException e) {
                    return;
                }
            }
        });
        watcher.setDaemon(true);
        watcher.start();
        while (System.in.read() >= 0) {
            // Whoever started us says nothing; it only hangs up.
        }
        consumer.shutdown();
        System.exit(0);
    }
}
