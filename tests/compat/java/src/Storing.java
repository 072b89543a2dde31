import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Fills a store with one of everything that an ordinary producer can put there, and reads it all back. */
final class Storing {
    private static final String DELAYED = "SCHEDULE_TOPIC_XXXX";

    private Storing() {
    }

    static void fillStore(World world, Events events) throws Exception {
        DefaultMQProducer producer = world.producer();
        String other = world.topic + "-other";
        producer.send(world.message("first"));
        List<MessageQueue> queues = World.inOrder(producer.fetchPublishMessageQueues(world.topic));

        // Enough records of a kilobyte to roll over several small segments, in all queues.
        char[] filling = new char[1_000];
        for (int i = 0; i < 120; i++) {
            Arrays.fill(filling, (char) ('a' + i % 26));
            Message message = world.message(i + " " + new String(filling));
            message.setTags("tag" + i % 3);
            message.setKeys("key" + i);
            producer.send(message, queues.get(i % queues.size()));
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            batch.add(new Message(other, "batch", "batch" + i, Producing.bytes("batch " + i)));
        }
        producer.send(batch);
        byte[] big = new byte[20 * 1_024];
        Arrays.fill(big, (byte) 'z');
        producer.send(new Message(other, big));
        producer.send(new Message(other, new byte[] {0}));
        Message foreign = new Message(other, "Тэг", Producing.bytes("Grüße, 世界 \ud83e\udea2"));
        foreign.setKeys(Arrays.asList("ключ", "key"));
        foreign.setFlag(Integer.MIN_VALUE);
        foreign.putUserProperty("näme", "välue");
        producer.send(foreign);
        Message delayed = new Message(other, "late", Producing.bytes("a second late"));
        delayed.setDelayTimeLevel(1);
        producer.send(delayed);

        DefaultMQPullConsumer consumer = world.pullConsumer();
        List<MessageQueue> all = new ArrayList<>(queues);
        all.addAll(World.inOrder(producer.fetchPublishMessageQueues(other)));
        World.await("the delayed message is delivered", () -> count(consumer, all) == 1 + 120 + 5 + 4);
        all.add(new MessageQueue(DELAYED, queues.get(0).getBrokerName(), 0));
        for (MessageQueue queue : all) {
            long next = 0;
            while (next < consumer.maxOffset(queue)) {
                PullResult result = consumer.pull(queue, "*", next, 32);
                for (MessageExt message : result.getMsgFoundList()) {
                    events.received(message);
                }
                next = result.getNextBeginOffset();
            }
            consumer.updateConsumeOffset(queue, next);
        }
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persistAll(new java.util.HashSet<>(all));
    }

    private static long count(DefaultMQPullConsumer consumer, List<MessageQueue> queues) throws Exception {
        long count = 0;
        for (MessageQueue queue : queues) {
            count += consumer.maxOffset(queue);
        }
        return count;
    }
}
