import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A transactional producer and a consumer of what it commits, which outlive their brokers.
 *
 * Commands, one a line. "send NAME LOCAL CHECK" sends a half message of that body, whose local transaction ends in the
 * state LOCAL and whose checks are answered with CHECK, and is answered by "sent" or "refused". "answer NAME CHECK"
 * changes what its checks are answered with. States are COMMIT, ROLLBACK and UNKNOWN; LOCAL may be WAIT as well: the
 * local transaction tells that it has "begun", and ends in the state of the next "answer NAME". "end" ends.
 */
final class Transacting {
    private Transacting() {
    }

    static void produce(World world, Events events) throws Exception {
        Map<String, LocalTransactionState> checks = new ConcurrentHashMap<>();
        Map<String, CompletableFuture<LocalTransactionState>> waiting = new ConcurrentHashMap<>();
        TransactionMQProducer producer = world.transactionProducer();
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object local) {
                if (local != null) {
                    return (LocalTransactionState) local;
                }
                String name = new String(message.getBody(), StandardCharsets.UTF_8);
                CompletableFuture<LocalTransactionState> answer = waiting.get(name);
                events.emit("begun", "name", name);
                return answer.join();
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String name = new String(message.getBody(), StandardCharsets.UTF_8);
                LocalTransactionState state = checks.getOrDefault(name, LocalTransactionState.UNKNOW);
                events.emit("checked", "name", name, "state", state.toString(),
                    "times", message.getProperty("TRANSACTION_CHECK_TIMES"), "topic", message.getTopic(),
                    "queueId", message.getQueueId(), "keys", message.getKeys(),
                    "transactionId", message.getTransactionId());
                return state;
            }
        });
        producer.start();
        DefaultMQPushConsumer consumer = world.pushConsumer();
        consumer.subscribe(world.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                events.received(message, "prepared", message.getPreparedTransactionOffset());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        events.emit("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("end"); line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("answer")) {
                checks.put(words[1], state(words[2]));
                CompletableFuture<LocalTransactionState> answer = waiting.remove(words[1]);
                if (answer != null) {
                    answer.complete(state(words[2]));
                }
                continue;
            }
            checks.put(words[1], state(words[3]));
            if (words[2].equals("WAIT")) {
                waiting.put(words[1], new CompletableFuture<>());
                new Thread(() -> send(world, events, producer, words[1], null)).start();
            } else {
                send(world, events, producer, words[1], state(words[2]));
            }
        }
    }

    private static void send(
        World world, Events events, TransactionMQProducer producer, String name, LocalTransactionState local) {
        Message message = world.message(name);
        message.setKeys("key-" + name);
        message.setTags("tag");
        try {
            TransactionSendResult result = producer.sendMessageInTransaction(message, local);
            events.emit("sent", "name", name, "status", result.getSendStatus().toString(),
                "state", result.getLocalTransactionState().toString(),
                "transactionId", result.getTransactionId(), "msgId", result.getMsgId(),
                "queueId", result.getMessageQueue().getQueueId(), "queueOffset", result.getQueueOffset());
        } catch (Exception error) {
            events.emit("refused", "name", name, "error", error.toString());
        }
    }

    private static LocalTransactionState state(String word) {
        return word.equals("UNKNOWN") ? LocalTransactionState.UNKNOW
            : LocalTransactionState.valueOf(word + "_MESSAGE");
    }
}
