package reasond.driver;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.util.JsonFormat;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import reasond.ClientFunction;
import reasond.ClientSettings;
import reasond.ReasondClient;
import reasond.ReasondException;
import reasond.Toolset;
import reasond.v1.ExecuteTurnRequest;
import reasond.v1.ListStrategiesRequest;
import reasond.v1.ReasonIterationsRequest;
import reasond.v1.ReasonIterationsResponse;
import reasond.v1.ReasonRequest;
import reasond.v1.Reasoning;
import reasond.v1.ReasoningServiceGrpc;
import reasond.v1.ReasoningTask;
import reasond.v1.Strategy;

/** The scenario driver of this client; clients/README.md describes what it reads and writes. */
public final class ScenarioDriver {
    private static final Gson GSON =
            new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final String INTEGERS =
            """
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
             "required": ["a", "b"], "additionalProperties": false}
            """;

    private record Sum(int a, int b) {}

    private final JsonObject request;
    private final JsonObject options;
    private final JsonObject answer = new JsonObject();
    private final AtomicInteger tokenReads = new AtomicInteger();

    private ScenarioDriver(JsonObject request) {
        this.request = request;
        this.options = request.getAsJsonObject("options");
        answer.add("name", request.get("name"));
        answer.addProperty("outcome", "ok");
        for (var each : new String[] {"answer", "finish_reason", "execution_id", "code", "reason"}) {
            answer.addProperty(each, "");
        }
        for (var each : new String[] {"sequences", "violations", "tool_calls", "tool_results"}) {
            answer.add(each, new JsonArray());
        }
        answer.add("retry_after_s", null);
    }

    /**
     * Works all requests out side by side.
     *
     * @param arguments none
     * @throws IOException the requests cannot be read
     * @throws InterruptedException the driver is stopped
     */
    public static void main(String[] arguments) throws IOException, InterruptedException {
        var workers = Executors.newCachedThreadPool();
        var output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (var line = input.readLine(); line != null; line = input.readLine()) {
                var driver = new ScenarioDriver(GSON.fromJson(line, JsonObject.class));
                workers.execute(() -> output.println(GSON.toJson(driver.workOut())));
            }
        }
        workers.shutdown();
        workers.awaitTermination(1, TimeUnit.HOURS);
    }

    private JsonObject workOut() {
        try (var client = connect()) {
            switch (request.get("action").getAsString()) {
                case "execute" -> execute(client);
                case "stream" -> stream(client, Long.MAX_VALUE);
                case "cancel" ->
                    stream(client, options.get("cancel_after_sequence").getAsLong());
                case "strategies" -> listStrategies(client);
                case "turn" -> takeTurn(client);
                default -> throw new IllegalArgumentException("an unknown action: " + request);
            }
        } catch (ReasondException error) {
            takeError(error);
        } catch (InvalidProtocolBufferException error) {
            throw new UncheckedIOException(error);
        }
        answer.addProperty("token_reads", tokenReads.get());
        return answer;
    }

    private ReasondClient connect() {
        var settings = new ClientSettings();
        settings.target = request.get("target").getAsString();
        if (!request.get("token_file").isJsonNull()) {
            var file = Path.of(request.get("token_file").getAsString());
            settings.tokenProvider = () -> readToken(file);
        } else if (!request.get("token").isJsonNull()) {
            settings.token = request.get("token").getAsString();
        }
        if (options.has("deadline_s")) {
            settings.timeout =
                    Duration.ofMillis((long) (options.get("deadline_s").getAsDouble() * 1000));
        }
        return new ReasondClient(settings);
    }

    private String readToken(Path file) {
        tokenReads.incrementAndGet();
        try {
            return Files.readString(file);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private String readRequestId() {
        return options.has("request_id") ? options.get("request_id").getAsString() : "";
    }

    private ReasoningTask readTask() throws InvalidProtocolBufferException {
        var task = ReasoningTask.newBuilder();
        JsonFormat.parser().merge(request.get("task").toString(), task);
        return task.build();
    }

    private void execute(ReasondClient client) throws InvalidProtocolBufferException {
        var asked = ReasonRequest.newBuilder().setTask(readTask()).setRequestId(readRequestId());
        takeResult(client.call(ReasoningServiceGrpc.getReasonMethod(), asked.build())
                .getReasoning());
    }

    private void stream(ReasondClient client, long last) throws InvalidProtocolBufferException {
        var start = ReasonIterationsRequest.newBuilder()
                .setTask(readTask())
                .setRequestId(readRequestId())
                .setKeepRunning(last == Long.MAX_VALUE)
                .build();
        try (var events = client.stream(ReasoningServiceGrpc.getReasonIterationsMethod(), start)) {
            events.peek(this::takeEvent).anyMatch(event -> event.getSequence() >= last);
        }
    }

    private void takeEvent(ReasonIterationsResponse event) {
        answer.addProperty("execution_id", event.getExecutionId());
        if (event.hasStarted() || event.hasIteration() || event.hasCompleted()) {
            answer.getAsJsonArray("sequences").add(event.getSequence());
        }
        if (event.hasCompleted()) {
            takeResult(event.getCompleted());
        }
    }

    private void listStrategies(ReasondClient client) {
        var listed =
                client.call(ReasoningServiceGrpc.getListStrategiesMethod(), ListStrategiesRequest.getDefaultInstance());
        answer.addProperty(
                "answer",
                listed.getStrategiesList().stream()
                        .map(Strategy::getName)
                        .sorted()
                        .collect(Collectors.joining(",")));
    }

    private void takeTurn(ReasondClient client) throws InvalidProtocolBufferException {
        var add = new ClientFunction<>("add", "Adds two numbers.", INTEGERS, Sum.class, (sum, key) -> {
            answer.getAsJsonArray("tool_calls").add("add");
            answer.getAsJsonArray("tool_results").add(Integer.toString(sum.a() + sum.b()));
            return sum.a() + sum.b();
        });
        var turn = ExecuteTurnRequest.newBuilder().setRequestId(readRequestId());
        turn.getStartBuilder().setMessage(readTask().getQuery());
        var result = client.turn(turn.build(), Toolset.of(add));
        answer.addProperty("answer", result.getAnswer());
        answer.addProperty("finish_reason", result.getFinishReason().name());
        answer.addProperty("execution_id", result.getTurnId());
    }

    private void takeResult(Reasoning result) {
        answer.addProperty("answer", result.getAnswer());
        answer.addProperty("finish_reason", result.getFinishReason().name());
        answer.addProperty("execution_id", result.getExecutionId());
    }

    private void takeError(ReasondException error) {
        answer.addProperty("outcome", "error");
        answer.addProperty("code", error.getStatus().getCode().name());
        answer.addProperty("reason", error.info.getReason());
        error.violations.forEach(each -> {
            var told = new JsonObject();
            told.addProperty("field", each.getField());
            told.addProperty("description", each.getDescription());
            answer.getAsJsonArray("violations").add(told);
        });
        if (!error.retryAfter.isZero()) {
            answer.addProperty("retry_after_s", error.retryAfter.toMillis() / 1e3);
        }
        if (error.info.containsMetadata("execution_id")) {
            answer.addProperty("execution_id", error.info.getMetadataOrThrow("execution_id"));
        }
    }
}
