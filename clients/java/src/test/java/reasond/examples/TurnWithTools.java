package reasond.examples;

import java.io.IOException;
import java.util.Map;
import reasond.ClientFunction;
import reasond.ClientSettings;
import reasond.ReasondClient;
import reasond.Toolset;
import reasond.v1.Decision;
import reasond.v1.ExecuteTurnRequest;
import reasond.v1.TurnStart;

/** Runs a turn whose model may call a function of this program. */
public final class TurnWithTools {
    private static final String PARAMETERS =
            """
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
            """;

    private record Place(String city) {}

    private record Weather(String city, int celsius) {}

    private TurnWithTools() {}

    /**
     * Runs the example.
     *
     * @param arguments what the user says
     * @throws IOException the file of REASOND_CA_FILE cannot be read
     */
    public static void main(String[] arguments) throws IOException {
        var text = arguments.length > 0 ? arguments[0] : "Tell the weather in \"Lisbon\".";
        var weather = new ClientFunction<>(
                "weather",
                "Tells the weather of a city.",
                PARAMETERS,
                Place.class,
                (place, key) -> new Weather(place.city(), 21));
        var refusal =
                Decision.newBuilder().setReason("nobody is there to approve it").build();
        var tools = new Toolset(Map.of(weather.name(), weather), pending -> refusal, null);
        try (var client = new ReasondClient(ClientSettings.fromEnv())) {
            var start = TurnStart.newBuilder().setMessage(text);
            var result =
                    client.turn(ExecuteTurnRequest.newBuilder().setStart(start).build(), tools);
            System.out.println(result.getFinishReason() + " " + result.getAnswer());
        }
    }
}
