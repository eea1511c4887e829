// Run by the tests: Go clients of OpenAI and Anthropic talk to a server, and each tells what it saw.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

const (
	question = "What is 6 times 7?"
	asJSON   = "What is 6 times 7, as JSON?"
	byTool   = "What is 40 plus 2? Use the tool."
	exact    = "You are exact."
)

var (
	ctx     = context.Background()
	numbers = map[string]any{
		"type":       "object",
		"properties": map[string]any{"a": map[string]any{"type": "integer"}, "b": map[string]any{"type": "integer"}},
		"required":   []string{"a", "b"},
	}
	number = map[string]any{
		"type":       "object",
		"properties": map[string]any{"n": map[string]any{"type": "integer"}},
		"required":   []string{"n"},
	}
)

// must returns a result, and ends the program with its error.
func must[T any](result T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return result
}

func tell(client string, seen map[string]any) {
	seen["client"] = client
	fmt.Println(string(must(json.Marshal(seen))))
}

func runChat(client openai.Client) {
	ask := func(text string) openai.ChatCompletionNewParams {
		messages := []openai.ChatCompletionMessageParamUnion{openai.SystemMessage(exact), openai.UserMessage(text)}
		return openai.ChatCompletionNewParams{Model: "reasond", Messages: messages}
	}
	whole := must(client.Chat.Completions.New(ctx, ask(question)))
	stream := client.Chat.Completions.NewStreaming(ctx, ask(question))
	all := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		all.AddChunk(stream.Current())
	}
	must(0, stream.Err())
	schema := ask(asJSON)
	schema.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "number", Schema: number},
	}
	parsed := must(client.Chat.Completions.New(ctx, schema))
	tools := ask(byTool)
	tools.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "add", Parameters: numbers}),
	}
	asked := must(client.Chat.Completions.New(ctx, tools)).Choices[0].Message
	call := asked.ToolCalls[0]
	tools.Messages = append(tools.Messages, asked.ToParam(), openai.ToolMessage("42", call.ID))
	used := must(client.Chat.Completions.New(ctx, tools))
	wrong := ask(question)
	wrong.Model = "nothing"
	_, err := client.Chat.Completions.New(ctx, wrong)
	var refused *openai.Error
	errors.As(err, &refused)
	tell("openai-go chat", map[string]any{
		"answer": whole.Choices[0].Message.Content, "streamed": all.Choices[0].Message.Content,
		"parsed": parsed.Choices[0].Message.Content, "arguments": call.Function.Arguments,
		"by_tool": used.Choices[0].Message.Content, "error": []any{refused.StatusCode, refused.Code},
	})
}

func runResponses(client openai.Client) {
	ask := func(text string) responses.ResponseNewParams {
		input := responses.ResponseNewParamsInputUnion{OfString: openai.String(text)}
		return responses.ResponseNewParams{Model: "reasond", Instructions: openai.String(exact), Input: input}
	}
	whole := must(client.Responses.New(ctx, ask(question)))
	stream := client.Responses.NewStreaming(ctx, ask(question))
	var streamed strings.Builder
	for stream.Next() {
		if event := stream.Current(); event.Type == "response.output_text.delta" {
			streamed.WriteString(event.Delta)
		}
	}
	must(0, stream.Err())
	schema := ask(asJSON)
	schema.Text.Format = responses.ResponseFormatTextConfigParamOfJSONSchema("number", number)
	parsed := must(client.Responses.New(ctx, schema))
	tools := ask(byTool)
	add := responses.FunctionToolParam{Name: "add", Parameters: numbers, Strict: openai.Bool(false)}
	tools.Tools = []responses.ToolUnionParam{{OfFunction: &add}}
	asked := must(client.Responses.New(ctx, tools))
	call := asked.Output[len(asked.Output)-1]
	output := responses.ResponseInputItemParamOfFunctionCallOutput("42")
	output.OfFunctionCallOutput.CallID = openai.String(call.CallID)
	tools.PreviousResponseID = openai.String(asked.ID)
	tools.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: []responses.ResponseInputItemUnionParam{output}}
	used := must(client.Responses.New(ctx, tools))
	wrong := ask(question)
	wrong.Model = "nothing"
	_, err := client.Responses.New(ctx, wrong)
	var refused *openai.Error
	errors.As(err, &refused)
	tell("openai-go responses", map[string]any{
		"answer": whole.OutputText(), "streamed": streamed.String(), "parsed": parsed.OutputText(),
		"by_tool": used.OutputText(), "error": []any{refused.StatusCode, refused.Code},
	})
}

func runMessages(client anthropic.Client) {
	ask := func(text string) anthropic.MessageNewParams {
		return anthropic.MessageNewParams{
			Model: "reasond", MaxTokens: 2000, System: []anthropic.TextBlockParam{{Text: exact}},
			Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(text))},
		}
	}
	whole := must(client.Messages.New(ctx, ask(question)))
	stream := client.Messages.NewStreaming(ctx, ask(question))
	streamed := anthropic.Message{}
	for stream.Next() {
		must(0, streamed.Accumulate(stream.Current()))
	}
	must(0, stream.Err())
	schema := ask(asJSON)
	schema.OutputConfig.Format = anthropic.JSONOutputFormatParam{Schema: number}
	parsed := must(client.Messages.New(ctx, schema))
	tools := ask(byTool)
	form := anthropic.ToolInputSchemaParam{Properties: numbers["properties"], Required: []string{"a", "b"}}
	tools.Tools = []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "add", InputSchema: form}}}
	asked := must(client.Messages.New(ctx, tools))
	call := asked.Content[len(asked.Content)-1]
	result := anthropic.NewUserMessage(anthropic.NewToolResultBlock(call.ID, "42", false))
	tools.Messages = append(tools.Messages, asked.ToParam(), result)
	used := must(client.Messages.New(ctx, tools))
	wrong := ask(question)
	wrong.Model = "nothing"
	_, err := client.Messages.New(ctx, wrong)
	var refused *anthropic.Error
	errors.As(err, &refused)
	tell("anthropic-go", map[string]any{
		"answer": whole.Content[0].Text, "streamed": streamed.Content[0].Text, "parsed": parsed.Content[0].Text,
		"arguments": call.Input, "by_tool": used.Content[0].Text, "error": []any{refused.StatusCode, refused.Type()},
	})
}

func main() {
	base, key := os.Args[1], os.Args[2]
	client := openai.NewClient(option.WithBaseURL(base), option.WithAPIKey(key), option.WithMaxRetries(0))
	runChat(client)
	runResponses(client)
	runMessages(anthropic.NewClient(
		anthropicoption.WithBaseURL(strings.TrimSuffix(base, "/v1")),
		anthropicoption.WithAPIKey(key), anthropicoption.WithMaxRetries(0),
	))
}
