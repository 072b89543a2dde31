import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Runs scenarios with the official Java client that is on the class path, many in one JVM.
 *
 * Arguments: name server address, a prefix for topics and groups, how many scenarios at a time, and the
 * scenarios' names (none: all of them but those played on request only). The same sources compile against 4.9.8 and
 * 5.5.0, so they touch only what both have. See Events for what comes out.
 */
public final class Driver {
    interface Scenario {
        void run(World world, Events events) throws Exception;
    }

    // Played on request only: one makes a store for others to read, two last until they are told to end.
    private static final String FILL_STORE = "fill_store";
    private static final String LASTING = "lasting";
    private static final String FAILING_OVER = "failing_over";
    private static final String TRANSACTING = "transacting";
    private static final String TIMING = "timing";

    // Those that wait most come first, so that the others fill their pauses.
    private static final Map<String, Scenario> SCENARIOS = new LinkedHashMap<>();

    static {
        SCENARIOS.put("delay", Everyday::delay);
        SCENARIOS.put("retry_dlq", Everyday::retryDlq);
        SCENARIOS.put("orderly_dlq", Everyday::orderlyDlq);
        SCENARIOS.put("orderly", Everyday::orderly);
        SCENARIOS.put("request_reply", Everyday::requestReply);
        SCENARIOS.put("sql_push", Filtering::sqlPush);
        SCENARIOS.put("sql_retry", Filtering::sqlRetry);
        SCENARIOS.put("sql_pull", Filtering::sqlPull);
        SCENARIOS.put("sql_refused", Filtering::sqlRefused);
        SCENARIOS.put("push_pair", Pushing::pushPair);
        SCENARIOS.put("assigned", Pushing::assigned);
        SCENARIOS.put("broadcast", Pushing::broadcast);
        SCENARIOS.put("two_groups", Pushing::twoGroups);
        SCENARIOS.put("push", Pushing::push);
        SCENARIOS.put("push_tags", Pushing::pushTags);
        SCENARIOS.put("pull_held", Pulling::pullHeld);
        SCENARIOS.put("lite_assign", Pulling::liteAssign);
        SCENARIOS.put("lite_seek", Pulling::liteSeek);
        SCENARIOS.put("lite_subscribe", Pulling::liteSubscribe);
        SCENARIOS.put("pull_old", Pulling::pullOld);
        SCENARIOS.put("tag_filter", Pulling::tagFilter);
        SCENARIOS.put("offsets", Pulling::offsets);
        SCENARIOS.put("view_by_id", Pulling::viewById);
        SCENARIOS.put("send_sync", Producing::sendSync);
        SCENARIOS.put("send_async", Producing::sendAsync);
        SCENARIOS.put("send_oneway", Producing::sendOneway);
        SCENARIOS.put("send_batch", Producing::sendBatch);
        SCENARIOS.put("send_selected", Producing::sendSelected);
        SCENARIOS.put("send_refused", Producing::sendRefused);
        SCENARIOS.put("auto_create", Producing::autoCreate);
        SCENARIOS.put("big_bodies", Producing::bigBodies);
        SCENARIOS.put("round_trip", Producing::roundTrip);
        SCENARIOS.put(FILL_STORE, Storing::fillStore);
        SCENARIOS.put(LASTING, Lasting::group);
        SCENARIOS.put(TRANSACTING, Transacting::produce);
        SCENARIOS.put(TIMING, Timing::produce);
        SCENARIOS.put(FAILING_OVER, FailingOver::work);
    }

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        Events.takeStandardOutput();
        String namesrv = arguments[0];
        String prefix = arguments[1];
        ExecutorService pool = Executors.newFixedThreadPool(Integer.parseInt(arguments[2]));
        List<String> names = new ArrayList<>(Arrays.asList(arguments).subList(3, arguments.length));
        if (names.isEmpty()) {
            names.addAll(SCENARIOS.keySet());
            names.remove(FILL_STORE);
            names.remove(LASTING);
            names.remove(TRANSACTING);
            names.remove(TIMING);
            names.remove(FAILING_OVER);
        }
        for (String name : names) {
            pool.submit(() -> play(name, namesrv, prefix));
        }
        pool.shutdown();
        pool.awaitTermination(1, TimeUnit.HOURS);
        System.exit(0);
    }

    private static void play(String name, String namesrv, String prefix) {
        Events events = new Events(name);
        try (World world = new World(namesrv, prefix, name)) {
            SCENARIOS.get(name).run(world, events);
            events.emit("done");
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            events.emit("failed", "error", error.toString(), "trace", trace.toString());
        }
    }
}
