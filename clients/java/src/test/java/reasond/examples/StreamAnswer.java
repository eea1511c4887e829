package reasond.examples;

import java.io.IOException;
import reasond.ClientSettings;
import reasond.ReasondClient;
import reasond.v1.ReasonIterationsRequest;
import reasond.v1.ReasoningServiceGrpc;
import reasond.v1.ReasoningTask;

/** Streams the steps of a task, and goes on after the last one if the connection is cut. */
public final class StreamAnswer {
    private StreamAnswer() {}

    /**
     * Runs the example.
     *
     * @param arguments the question
     * @throws IOException the file of REASOND_CA_FILE cannot be read
     */
    public static void main(String[] arguments) throws IOException {
        var query = arguments.length > 0 ? arguments[0] : "What is 15% of 240?";
        var request = ReasonIterationsRequest.newBuilder()
                .setTask(ReasoningTask.newBuilder().setQuery(query))
                .setKeepRunning(true)
                .build();
        try (var client = new ReasondClient(ClientSettings.fromEnv());
                var events = client.stream(ReasoningServiceGrpc.getReasonIterationsMethod(), request)) {
            events.forEach(event -> {
                System.out.println(event.getSequence() + " " + event.getEventCase());
                if (event.hasCompleted()) {
                    System.out.println(event.getCompleted().getAnswer());
                }
            });
        }
    }
}
