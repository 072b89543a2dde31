import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Paths;

import org.apache.rocketmq.store.index.IndexFile;

/**
 * Fills index files with the original's own class, rolling as its IndexService does.
 *
 * Arguments: directory, slots, items. Standard input: a line for each key, "offset storeTime key" in hex of
 * UTF-8. Files are named 0000, 0001 and so on.
 */
public final class BuildIndex {
    public static void main(String[] args) throws Exception {
        int slots = Integer.parseInt(args[1]);
        int items = Integer.parseInt(args[2]);
        int made = 0;
        IndexFile file = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = decode(line).split(" ", 3);
            while (file == null || file.isWriteFull()
                || !file.putKey(fields[2], Long.parseLong(fields[0]), Long.parseLong(fields[1]))) {
                long endOffset = file == null ? 0 : file.getEndPhyOffset();
                long endTime = file == null ? 0 : file.getEndTimestamp();
                if (file != null) {
                    file.flush();
                }
                String name = Paths.get(args[0], String.format("%04d", made++)).toString();
                file = new IndexFile(name, slots, items, endOffset, endTime);
            }
        }
        if (file != null) {
            file.flush();
        }
        System.exit(0);
    }

    private static String decode(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
