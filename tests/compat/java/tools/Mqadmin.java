import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingSendRequestException;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs many commands of the original's mqadmin in one JVM: a start for each would take longer than all of them.
 *
 * Reads one command a line, its words separated by tabs, and writes what it printed, then a line with END alone. Words
 * that begin with '@' are our own: a consumer or a producer that stays connected, messages to look at. Argument: the
 * name server.
 */
public final class Mqadmin {
    private static final String END = "\u0004";
    private static final List<DefaultMQPushConsumer> CONSUMERS = new CopyOnWriteArrayList<>();
    private static final List<DefaultMQProducer> PRODUCERS = new ArrayList<>();

    private Mqadmin() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        hurry();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, "UTF-8");
            System.setOut(capture);
            System.setErr(capture);
            try {
                run(arguments[0], line.split("\t", -1), capture);
            } catch (Throwable failure) {
                failure.printStackTrace(capture);
            }
            capture.flush();
            out.print(printed.toString("UTF-8"));
            out.println();
            out.println(END);
        }
        CONSUMERS.forEach(DefaultMQPushConsumer::shutdown);
        PRODUCERS.forEach(DefaultMQProducer::shutdown);
        System.exit(0);
    }

    private static void run(String namesrv, String[] words, PrintStream out) throws Exception {
        switch (words[0]) {
            case "@consume":
                consume(namesrv, words[1], words[2]);
                return;
            case "@stop":
                List<DefaultMQPushConsumer> running = List.copyOf(CONSUMERS);
                CONSUMERS.clear();
                running.forEach(DefaultMQPushConsumer::shutdown);
                return;
            case "@send":
                send(namesrv, words[1], words[2], Integer.parseInt(words[3]), out);
                return;
            default:
                List<String> all = new ArrayList<>(Arrays.asList(words));
                all.add("-n");
                all.add(namesrv);
                forgetCommands();
                MQAdminStartup.main0(all.toArray(new String[0]), null);
        }
    }

    /** Some commands keep the connection of their first run, closed since: mqadmin makes new ones for this run. */
    private static void forgetCommands() throws ReflectiveOperationException {
        Field commands = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        commands.setAccessible(true);
        ((List<?>) commands.get(null)).clear();
    }

    /**
     * A client that shuts down waits for a thread that looks up every three seconds only: wake that thread.
     *
     * Only the one that is waited for: the others' send a new connection's first heartbeat, and would hang up on
     * everybody who uses that connection if they were interrupted then.
     */
    private static void hurry() {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        Thread waker = new Thread(() -> {
            while (true) {
                Set<Integer> awaited = new HashSet<>();
                for (ThreadInfo info : threads.getThreadInfo(threads.getAllThreadIds())) {
                    if (info != null && info.getLockInfo() != null) {
                        awaited.add(info.getLockInfo().getIdentityHashCode()); // who joins a thread waits for its object
                    }
                }
                for (Thread thread : Thread.getAllStackTraces().keySet()) {
                    if (thread.getName().startsWith("NettyEventExecutor")
                        && awaited.contains(System.identityHashCode(thread))) {
                        thread.interrupt();
                    }
                }
                try {
                    Thread.sleep(100);
                } catch (InterruptedException ended) {
                    return;
                }
            }
        });
        waker.setDaemon(true);
        waker.start();
    }

    private static void consume(String namesrv, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        CONSUMERS.add(consumer);
        // A client records its progress for the first time after ten seconds: too long to wait for in a test.
        Thread recorder = new Thread(() -> {
            while (CONSUMERS.contains(consumer)) {
                consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
                try {
                    Thread.sleep(200);
                } catch (InterruptedException ended) {
                    return;
                }
            }
        });
        recorder.setDaemon(true);
        recorder.start();
    }

    private static void send(String namesrv, String group, String topic, int count, PrintStream out)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(group);
        producer.start();
        PRODUCERS.add(producer);
        for (int n = 0; n < count; n++) {
            Message message = new Message(topic, "tag", "key" + n, ("body " + n).getBytes(StandardCharsets.UTF_8));
            out.println(sendTo(producer, message, n));
        }
    }

    /** Message n goes to queue n, in turn: a producer's own choice begins at a queue of chance. */
    private static String sendTo(DefaultMQProducer producer, Message message, int place) throws Exception {
        for (int left = 3; ; left--) {
            try {
                return producer.send(message, (queues, sent, ignored) -> queues.get(place % queues.size()), null)
                    .getOffsetMsgId();
            } catch (RemotingSendRequestException notWritten) {
                // On a busy machine a first connection can be gone before it is used. Nothing has left then.
                if (left == 1) {
                    throw notWritten;
                }
                Thread.sleep(500);
            }
        }
    }
}
