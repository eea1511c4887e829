// Run by the tests: the Java client of OpenAI talks to a server, and tells what it saw.
import com.fasterxml.jackson.annotation.JsonTypeName;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.errors.OpenAIServiceException;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionToolMessageParam;
import com.openai.models.responses.Response;
import com.openai.models.responses.ResponseCreateParams;
import com.openai.models.responses.ResponseInputItem;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

public class Clients {
    static final String QUESTION = "What is 6 times 7?";
    static final String AS_JSON = "What is 6 times 7, as JSON?";
    static final String BY_TOOL = "What is 40 plus 2? Use the tool.";
    static final String EXACT = "You are exact.";

    public static class Number {
        public int n;
    }

    @JsonTypeName("add")
    public static class Add {
        public int a;
        public int b;
    }

    static void tell(String client, Map<String, Object> seen) throws Exception {
        var told = new LinkedHashMap<String, Object>(seen);
        told.put("client", client);
        System.out.println(new ObjectMapper().writeValueAsString(told));
    }

    static List<Object> errorOf(Runnable call) {
        try {
            call.run();
            return List.of();
        } catch (OpenAIServiceException error) {
            return List.of(error.statusCode(), error.code().orElse(""));
        }
    }

    static ChatCompletionCreateParams.Builder chat(String text) {
        return ChatCompletionCreateParams.builder().model("reasond").addSystemMessage(EXACT).addUserMessage(text);
    }

    static void runChat(OpenAIClient client) throws Exception {
        var completions = client.chat().completions();
        var whole = completions.create(chat(QUESTION).build()).choices().get(0).message();
        var streamed = new StringBuilder();
        try (var chunks = completions.createStreaming(chat(QUESTION).build())) {
            chunks.stream()
                    .flatMap(chunk -> chunk.choices().stream())
                    .forEach(choice -> choice.delta().content().ifPresent(streamed::append));
        }
        var parsed = completions.create(chat(AS_JSON).responseFormat(Number.class).build());
        var asked = chat(BY_TOOL).addTool(Add.class);
        var message = completions.create(asked.build()).choices().get(0).message();
        var call = message.toolCalls().get().get(0).asFunction();
        var add = call.function().arguments(Add.class);
        var result = ChatCompletionToolMessageParam.builder().toolCallId(call.id()).content("" + (add.a + add.b)).build();
        var used = completions.create(asked.addMessage(message).addMessage(result).build());
        tell("openai-java chat", Map.of(
                "answer", whole.content().get(),
                "streamed", streamed.toString(),
                "parsed", parsed.choices().get(0).message().content().get().n,
                "by_tool", used.choices().get(0).message().content().get(),
                "error", errorOf(() -> completions.create(chat(QUESTION).model("nothing").build()))));
    }

    static ResponseCreateParams.Builder response(String text) {
        return ResponseCreateParams.builder().model("reasond").instructions(EXACT).input(text);
    }

    static String textOf(Response response) {
        return response.output().stream()
                .flatMap(item -> item.message().stream())
                .flatMap(message -> message.content().stream())
                .flatMap(content -> content.outputText().stream())
                .map(text -> text.text())
                .collect(Collectors.joining());
    }

    static void runResponses(OpenAIClient client) throws Exception {
        var responses = client.responses();
        var whole = responses.create(response(QUESTION).build());
        var streamed = new StringBuilder();
        try (var events = responses.createStreaming(response(QUESTION).build())) {
            events.stream().forEach(event -> event.outputTextDelta().ifPresent(delta -> streamed.append(delta.delta())));
        }
        var parsed = responses.create(response(AS_JSON).text(Number.class).build()).output().stream()
                .flatMap(item -> item.message().stream())
                .flatMap(message -> message.content().stream())
                .flatMap(content -> content.outputText().stream())
                .findFirst();
        var asked = responses.create(response(BY_TOOL).addTool(Add.class).build());
        var results = new ArrayList<ResponseInputItem>();
        asked.output().forEach(item -> item.functionCall().ifPresent(call -> {
            var add = call.arguments(Add.class);
            results.add(ResponseInputItem.ofFunctionCallOutput(ResponseInputItem.FunctionCallOutput.builder()
                    .callId(call.callId())
                    .output("" + (add.a + add.b))
                    .build()));
        }));
        var again = response("").inputOfResponse(results).previousResponseId(asked.id()).addTool(Add.class);
        var used = responses.create(again.build());
        tell("openai-java responses", Map.of(
                "answer", textOf(whole),
                "streamed", streamed.toString(),
                "parsed", parsed.get().n,
                "by_tool", textOf(used),
                "error", errorOf(() -> responses.create(response(QUESTION).model("nothing").build()))));
    }

    public static void main(String[] arguments) throws Exception {
        var client = OpenAIOkHttpClient.builder().baseUrl(arguments[0]).apiKey(arguments[1]).maxRetries(0).build();
        runChat(client);
        runResponses(client);
        client.close();
    }
}
