import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * Evaluates expressions with the original's own parser and evaluator.
 *
 * Standard input: a line for each, hex of UTF-8, fields separated by 0x01: the expression, then names and values of
 * properties. Standard output: true, false, null, abort (the evaluation throws) or refused (the parser does).
 */
public final class Evaluate {
    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] bytes = new byte[line.length() / 2];
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = (byte) Integer.parseInt(line.substring(2 * i, 2 * i + 2), 16);
            }
            String[] fields = new String(bytes, StandardCharsets.UTF_8).split("\u0001", -1);
            Map<String, String> properties = new HashMap<>();
            for (int i = 1; i + 1 < fields.length; i += 2) {
                properties.put(fields[i], fields[i + 1]);
            }
            out.println(result(fields[0], properties));
        }
    }

    private static String result(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (Throwable refused) {
            return "refused";
        }
        try {
            return String.valueOf(expression.evaluate(new MessageEvaluationContext(properties)));
        } catch (Throwable abort) {
            return "abort";
        }
    }
}
