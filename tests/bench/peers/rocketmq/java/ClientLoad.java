import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What one process gets through the official Java client: the same five loads as `ropewalk bench --client`.
 *
 * Arguments: name server, topic, mode (sync, async, batched, pull, push), body size, in flight, warm-up ms, duration ms,
 * backlog. Prints one line of JSON. What is counted lies between the warm-up's end and the end. A consumer that is through
 * with the backlog makes room for a new one of another group, and the time between the last message of one and the first
 * of the next belongs to nobody.
 */
public final class ClientLoad {
    private static final int PENDING_MAX = 10_000;
    private static final long PATIENCE = TimeUnit.SECONDS.toNanos(20);

    private static final AtomicLong COUNTED = new AtomicLong();
    private static final AtomicLong FAILED = new AtomicLong();
    private static final AtomicBoolean OPEN = new AtomicBoolean();
    /** The warm-up begins with the first message that came through: before that the client and its JVM start. */
    private static final CountDownLatch FIRST = new CountDownLatch(1);
    private static final AtomicLong IDLE = new AtomicLong();
    private static volatile boolean running = true;
    /** Since when a consumer has nothing left, by System.nanoTime; 0 while there is something. */
    private static volatile long idleSince;

    private ClientLoad() {
    }

    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        String topic = arguments[1];
        String mode = arguments[2];
        byte[] body = new byte[Integer.parseInt(arguments[3])];
        int inFlight = Integer.parseInt(arguments[4]);
        long warmUp = Long.parseLong(arguments[5]);
        long duration = Long.parseLong(arguments[6]);
        long backlog = Long.parseLong(arguments[7]);
        Thread load = new Thread(() -> {
            try {
                run(namesrv, topic, mode, body, inFlight, backlog);
            } catch (Exception failure) {
                failure.printStackTrace();
                FAILED.incrementAndGet();
                FIRST.countDown();
            }
        });
        load.start();
        FIRST.await(60, TimeUnit.SECONDS);
        Thread.sleep(warmUp);
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long began = System.nanoTime();
        long cpu = system.getProcessCpuTime();
        synchronized (IDLE) {
            IDLE.set(0);
            idleSince = idleSince == 0 ? 0 : began;
            OPEN.set(true);
        }
        load.join(duration);
        // All of it can have gone by while one consumer made room for another.
        while (load.isAlive() && COUNTED.get() + FAILED.get() == 0 && System.nanoTime() - began < PATIENCE) {
            load.join(1);
        }
        synchronized (IDLE) {
            OPEN.set(false);
            goOn();
        }
        double seconds = (System.nanoTime() - began - IDLE.get()) / 1e9;
        cpu = system.getProcessCpuTime() - cpu;
        running = false;
        System.out.println("{\"messages\":" + COUNTED + ",\"seconds\":" + seconds + ",\"cpu\":" + cpu / 1e9
            + ",\"failed\":" + FAILED + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void run(String namesrv, String topic, String mode, byte[] body, int inFlight, long backlog)
        throws Exception {
        switch (mode) {
            case "pull":
                pull(namesrv, topic, backlog);
                return;
            case "push":
                push(namesrv, topic, backlog);
                return;
            default:
                produce(namesrv, topic, mode, body, inFlight);
        }
    }

    private static void count(long messages) {
        FIRST.countDown();
        if (OPEN.get()) {
            COUNTED.addAndGet(messages);
        }
    }

    /** A message came: whoever had nothing left has something again. */
    private static void goOn() {
        if (idleSince != 0) {
            synchronized (IDLE) {
                if (idleSince != 0) {
                    IDLE.addAndGet(System.nanoTime() - idleSince);
                    idleSince = 0;
                }
            }
        }
    }

    private static void produce(String namesrv, String topic, String mode, byte[] body, int inFlight)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("client-load");
        producer.setNamesrvAddr(namesrv);
        producer.setAutoBatch(mode.equals("batched"));
        producer.start();
        if (mode.equals("sync")) {
            while (running) {
                settle(producer.send(new Message(topic, body)));
            }
            return;
        }
        Semaphore room = new Semaphore(mode.equals("batched") ? PENDING_MAX : inFlight);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                settle(result);
                room.release();
            }

            @Override
            public void onException(Throwable failure) {
                FAILED.incrementAndGet();
                room.release();
            }
        };
        while (running) {
            room.acquire();
            producer.send(new Message(topic, body), callback);
        }
    }

    private static void settle(SendResult result) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            count(1);
        } else {
            FAILED.incrementAndGet();
        }
    }

    private static void pull(String namesrv, String topic, long backlog) throws Exception {
        while (running) {
            // One for each time through: a seek interrupts the threads that pull, and the first that is interrupted
            // while it sends closes the connection that all of them share.
            DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("client-load-pull-" + System.nanoTime());
            consumer.setNamesrvAddr(namesrv);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setAutoCommit(false);
            consumer.setPullBatchSize(32);
            consumer.start();
            consumer.assign(consumer.fetchMessageQueues(topic));
            long left = backlog;
            while (running && left > 0) {
                List<MessageExt> messages = consumer.poll(1000);
                if (!messages.isEmpty()) {
                    goOn();
                }
                left -= messages.size();
                count(messages.size());
            }
            idleSince = System.nanoTime();
            consumer.shutdown();
        }
    }

    private static void push(String namesrv, String topic, long backlog) throws Exception {
        while (running) {
            AtomicLong handled = new AtomicLong();
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("client-load-push-" + System.nanoTime());
            consumer.setNamesrvAddr(namesrv);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                goOn();
                count(messages.size());
                if (handled.addAndGet(messages.size()) == backlog) {
                    idleSince = System.nanoTime();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            while (running && handled.get() < backlog) {
                Thread.sleep(1);
            }
            consumer.shutdown();
        }
    }
}
