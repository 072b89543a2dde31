import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.TreeMap;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Says how the official client reads a frame: hex lines (the bytes after the length field) on standard
 * input, one event per line. Recorded frames get their expectations from here and not from us.
 */
public final class Frames {
    private Frames() {
    }

    public static void main(String[] arguments) throws Exception {
        Events.takeStandardOutput();
        Events events = new Events("frames");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] bytes = new byte[line.length() / 2];
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = (byte) Integer.parseInt(line.substring(2 * i, 2 * i + 2), 16);
            }
            RemotingCommand command = RemotingCommand.decode(ByteBuffer.wrap(bytes));
            byte[] body = command.getBody();
            events.emit("decoded",
                "code", command.getCode(),
                "language", command.getLanguage().name(),
                "version", command.getVersion(),
                "opaque", command.getOpaque(),
                "flag", command.getFlag(),
                "remark", command.getRemark(),
                "serializeType", (int) command.getSerializeTypeCurrentRPC().getCode(),
                "ext", command.getExtFields() == null ? new TreeMap<>() : new TreeMap<>(command.getExtFields()),
                "bodySha256", Events.sha256(body == null ? new byte[0] : body));
        }
    }
}
