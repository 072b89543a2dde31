import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What one scenario saw, as one JSON object a line on standard output.
 *
 * The driver observes and never judges: whether an observation is right is decided in Python, where a
 * failed assertion can be read. Every object has "scenario", "event" and "atMs" (milliseconds since
 * the scenario began); a scenario's last one is "done" or "failed".
 */
final class Events {
    private static final int SHORT_BODY = 512;
    private static PrintStream out;

    private final String scenario;
    private final long start = System.nanoTime();

    Events(String scenario) {
        this.scenario = scenario;
    }

    /** Keep standard output for events: whatever else the client library prints goes to standard error. */
    static void takeStandardOutput() throws Exception {
        out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
    }

    void emit(String event, Object... keysAndValues) {
        Map<String, Object> object = new LinkedHashMap<>();
        object.put("scenario", scenario);
        object.put("event", event);
        object.put("atMs", (System.nanoTime() - start) / 1_000_000);
        for (int i = 0; i < keysAndValues.length; i += 2) {
            object.put((String) keysAndValues[i], keysAndValues[i + 1]);
        }
        String line = json(object);
        synchronized (Events.class) {
            out.println(line);
        }
    }

    void sent(SendResult result) {
        emit("sent", "result", describe(result));
    }

    void received(MessageExt message, Object... more) {
        Object[] pairs = new Object[more.length + 2];
        pairs[0] = "message";
        pairs[1] = describe(message);
        System.arraycopy(more, 0, pairs, 2, more.length);
        emit("received", pairs);
    }

    static Map<String, Object> describe(SendResult result) {
        Map<String, Object> object = new LinkedHashMap<>();
        object.put("status", result.getSendStatus().name());
        object.put("msgId", result.getMsgId());
        object.put("offsetMsgId", result.getOffsetMsgId());
        object.put("topic", result.getMessageQueue().getTopic());
        object.put("brokerName", result.getMessageQueue().getBrokerName());
        object.put("queueId", result.getMessageQueue().getQueueId());
        object.put("queueOffset", result.getQueueOffset());
        return object;
    }

    static Map<String, Object> describe(MessageExt message) {
        byte[] body = message.getBody();
        Map<String, Object> object = new LinkedHashMap<>();
        object.put("topic", message.getTopic());
        object.put("queueId", message.getQueueId());
        object.put("queueOffset", message.getQueueOffset());
        object.put("commitLogOffset", message.getCommitLogOffset());
        object.put("storeSize", message.getStoreSize());
        object.put("msgId", message.getMsgId());
        if (message instanceof MessageClientExt) {
            object.put("offsetMsgId", ((MessageClientExt) message).getOffsetMsgId());
        }
        object.put("flag", message.getFlag());
        object.put("sysFlag", message.getSysFlag());
        object.put("bodyCrc", message.getBodyCRC());
        object.put("bornTimestamp", message.getBornTimestamp());
        object.put("storeTimestamp", message.getStoreTimestamp());
        object.put("bornHost", String.valueOf(message.getBornHost()));
        object.put("storeHost", String.valueOf(message.getStoreHost()));
        object.put("reconsumeTimes", message.getReconsumeTimes());
        object.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        object.put("tags", message.getTags());
        object.put("keys", message.getKeys());
        object.put("properties", new TreeMap<>(message.getProperties()));
        object.put("bodyLength", body.length);
        object.put("bodySha256", sha256(body));
        if (body.length <= SHORT_BODY) {
            object.put("body", new String(body, StandardCharsets.UTF_8));
        }
        return object;
    }

    static String sha256(byte[] body) {
        try {
            return hex(MessageDigest.getInstance("SHA-256").digest(body));
        } catch (Exception impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(bytes.length * 2);
        for (byte b : bytes) {
            text.append(Character.forDigit((b >> 4) & 15, 16)).append(Character.forDigit(b & 15, 16));
        }
        return text.toString();
    }

    static String json(Object value) {
        StringBuilder text = new StringBuilder();
        write(text, value);
        return text.toString();
    }

    private static void write(StringBuilder text, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            text.append(value);
        } else if (value instanceof Map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                text.append(separator);
                quote(text, String.valueOf(entry.getKey()));
                text.append(':');
                write(text, entry.getValue());
                separator = ",";
            }
            text.append(separator.equals("{") ? "{}" : "}");
        } else if (value instanceof Collection) {
            String separator = "[";
            for (Object item : (Collection<?>) value) {
                text.append(separator);
                write(text, item);
                separator = ",";
            }
            text.append(separator.equals("[") ? "[]" : "]");
        } else if (value instanceof MessageQueue) {
            write(text, ((MessageQueue) value).getQueueId());
        } else {
            quote(text, value.toString());
        }
    }

    private static void quote(StringBuilder text, String value) {
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        text.append('"');
    }
}
