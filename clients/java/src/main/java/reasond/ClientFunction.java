package reasond;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.util.Map;
import reasond.v1.ClientTool;
import reasond.v1.PendingCall;
import reasond.v1.ToolResult;

/**
 * A function of this program that a model may call during a turn.
 *
 * @param <ArgumentsT> the type of the arguments
 * @param name 1-128 of a-z, A-Z, 0-9, _ and -
 * @param description what the model is told of it
 * @param parametersJson the JSON Schema of the arguments, an object
 * @param type what the JSON of the arguments is read as, such as a record with the same names
 * @param body what runs
 */
public record ClientFunction<ArgumentsT>(
        String name, String description, String parametersJson, Class<ArgumentsT> type, Body<ArgumentsT> body) {
    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();
    private static final int MAX_ERROR_LENGTH = 2000;

    /**
     * What runs.
     *
     * @param <ArgumentsT> the type of the arguments
     */
    @FunctionalInterface
    public interface Body<ArgumentsT> {
        /**
         * Runs the function. What it throws is told to the model.
         *
         * @param arguments the arguments that the model chose
         * @param idempotencyKey the same if the call is run again because its result was lost
         * @return the result, written as JSON
         * @throws Exception the function failed
         */
        Object run(ArgumentsT arguments, String idempotencyKey) throws Exception;
    }

    ClientTool definition() {
        var tool = ClientTool.newBuilder().setName(name).setDescription(description);
        return tool.setParametersJson(parametersJson).build();
    }

    ToolResult run(PendingCall pending) {
        try {
            var arguments = GSON.fromJson(pending.getCall().getArgumentsJson(), type);
            return result(pending, body.run(arguments, pending.getIdempotencyKey()));
        } catch (Exception error) {
            if (error instanceof InterruptedException) {
                Thread.currentThread().interrupt();
            }
            var text = error.getClass().getSimpleName() + ": " + error.getMessage();
            var told = Map.of("error", text.substring(0, Math.min(text.length(), MAX_ERROR_LENGTH)));
            return result(pending, told).toBuilder().setIsError(true).build();
        }
    }

    static ToolResult result(PendingCall pending, Object value) {
        var result = ToolResult.newBuilder().setCallId(pending.getCall().getCallId());
        return result.setResultJson(GSON.toJson(value)).build();
    }
}
