import com.alibaba.fastjson2.JSON;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.Result;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs JUnit classes one after the other and prints a line of JSON for each of their methods: class, method, seconds,
 * and the stack trace if it failed.
 *
 * <p>Arguments: names of classes, and CLASS#METHOD for what is to be left out of one.
 */
public final class RunClasses {
    private RunClasses() {
    }

    public static void main(String[] arguments) throws Exception {
        Set<String> left = new TreeSet<>();
        for (String argument : arguments) {
            if (argument.contains("#")) {
                left.add(argument);
            }
        }
        for (String argument : arguments) {
            if (!argument.contains("#")) {
                run(Class.forName(argument), left);
            }
        }
        System.exit(0);
    }

    private static void run(Class<?> type, Set<String> left) {
        JUnitCore junit = new JUnitCore();
        junit.addListener(new Reporter(type));
        Result result = junit.run(Request.aClass(type).filterWith(new Filter() {
            @Override
            public boolean shouldRun(Description description) {
                return !left.contains(type.getName() + "#" + description.getMethodName());
            }

            @Override
            public String describe() {
                return "all but what is left out";
            }
        }));
        say(type, null, "ended", "run", result.getRunCount());
    }

    private static synchronized void say(Class<?> type, String method, String event, String key, Object value) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("class", type.getName());
        line.put("method", method);
        line.put(key, value);
        System.out.println(JSON.toJSONString(line));
        System.out.flush();
    }

    private static final class Reporter extends RunListener {
        private final Class<?> type;
        private final Map<String, Long> began = new ConcurrentHashMap<>();

        private Reporter(Class<?> type) {
            this.type = type;
        }

        @Override
        public void testStarted(Description description) {
            began.put(description.getMethodName(), System.nanoTime());
            say(type, description.getMethodName(), "started", "seconds", 0);
        }

        @Override
        public void testFinished(Description description) {
            double seconds = (System.nanoTime() - began.get(description.getMethodName())) / 1e9;
            say(type, description.getMethodName(), "finished", "seconds", seconds);
        }

        @Override
        public void testFailure(Failure failure) {
            StringWriter trace = new StringWriter();
            failure.getException().printStackTrace(new PrintWriter(trace));
            say(type, failure.getDescription().getMethodName(), "failed", "trace", trace.toString());
        }
    }
}
