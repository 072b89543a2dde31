import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** One producer that sends a message for each line of standard input, and prints what its status was behind "= ". */
public final class Statuses {
    private Statuses() {
    }

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("statuses");
        producer.setNamesrvAddr(arguments[0]);
        producer.setClientIP("127.0.0.1");
        producer.setPollNameServerInterval(1_000);
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        System.out.println("= ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                Message message = new Message(arguments[1], line.getBytes(StandardCharsets.UTF_8));
                SendResult result = producer.send(message);
                System.out.println("= " + result.getSendStatus().name());
            } catch (Exception error) {
                System.out.println("= FAILED " + error.toString().replace('\n', ' '));
            }
        }
        producer.shutdown();
        System.exit(0);
    }
}
