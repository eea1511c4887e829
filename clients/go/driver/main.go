// Command driver works out the scenarios of clients/scenarios.json; clients/README.md describes what it reads and writes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/encoding/protojson"

	reasondv1 "reasond/clients/go"
	"reasond/clients/go/reasond"
)

const longestLine = 16 << 20

type request struct {
	Name      string          `json:"name"`
	Action    string          `json:"action"`
	Target    string          `json:"target"`
	Token     string          `json:"token"`
	TokenFile string          `json:"token_file"`
	Task      json.RawMessage `json:"task"`
	Options   struct {
		RequestID           string  `json:"request_id"`
		DeadlineS           float64 `json:"deadline_s"`
		CancelAfterSequence int64   `json:"cancel_after_sequence"`
	} `json:"options"`
}

type violation struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

type answer struct {
	Name         string      `json:"name"`
	Outcome      string      `json:"outcome"`
	Sequences    []int64     `json:"sequences"`
	Answer       string      `json:"answer"`
	FinishReason string      `json:"finish_reason"`
	ExecutionID  string      `json:"execution_id"`
	Code         string      `json:"code"`
	Reason       string      `json:"reason"`
	Violations   []violation `json:"violations"`
	RetryAfterS  *float64    `json:"retry_after_s"`
	ToolCalls    []string    `json:"tool_calls"`
	ToolResults  []string    `json:"tool_results"`
	TokenReads   int64       `json:"token_reads"`
}

func main() {
	var running sync.WaitGroup
	var output sync.Mutex
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			log.Fatal(err)
		}
		running.Add(1)
		go func() {
			defer running.Done()
			told := workOut(asked)
			output.Lock()
			defer output.Unlock()
			if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
				log.Fatal(err)
			}
		}()
	}
	running.Wait()
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

func workOut(asked request) *answer {
	told := &answer{
		Name: asked.Name, Outcome: "ok", Sequences: []int64{}, Violations: []violation{}, ToolCalls: []string{},
		ToolResults: []string{},
	}
	var reads atomic.Int64
	var options []reasond.Option
	if asked.Token != "" {
		options = append(options, reasond.WithToken(asked.Token))
	}
	if asked.TokenFile != "" {
		options = append(options, reasond.WithTokenSource(func(context.Context) (string, error) {
			reads.Add(1)
			text, err := os.ReadFile(asked.TokenFile)
			return string(text), err
		}))
	}
	client, err := reasond.NewClient(asked.Target, options...)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	if asked.Options.DeadlineS > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(asked.Options.DeadlineS*float64(time.Second)))
		defer cancel()
	}
	actions := map[string]func(context.Context, *reasond.Client, request, *answer) error{
		"execute": execute, "stream": stream, "cancel": stream, "strategies": listStrategies, "turn": takeTurn,
	}
	if err := actions[asked.Action](ctx, client, asked, told); err != nil {
		told.fail(err)
	}
	told.TokenReads = reads.Load()
	return told
}

func (a *answer) fail(err error) {
	a.Outcome = "error"
	var failure *reasond.Error
	if !errors.As(err, &failure) {
		a.Reason = err.Error()
		return
	}
	a.Code, a.Reason = code.Code(failure.Code).String(), failure.Reason
	for _, each := range failure.Violations {
		a.Violations = append(a.Violations, violation{each.GetField(), each.GetDescription()})
	}
	if failure.RetryAfter > 0 {
		seconds := failure.RetryAfter.Seconds()
		a.RetryAfterS = &seconds
	}
	if failure.ExecutionID != "" {
		a.ExecutionID = failure.ExecutionID
	}
}

func (a *answer) take(result *reasondv1.Reasoning) {
	a.Answer, a.FinishReason, a.ExecutionID = result.GetAnswer(), result.GetFinishReason().String(), result.GetExecutionId()
}

func taskOf(asked request) (*reasondv1.ReasoningTask, error) {
	task := &reasondv1.ReasoningTask{}
	return task, protojson.Unmarshal(asked.Task, task)
}

func execute(ctx context.Context, client *reasond.Client, asked request, told *answer) error {
	task, err := taskOf(asked)
	if err != nil {
		return err
	}
	response, err := client.Reasoning.Reason(ctx, &reasondv1.ReasonRequest{Task: task, RequestId: asked.Options.RequestID})
	if err == nil {
		told.take(response.GetReasoning())
	}
	return err
}

func stream(ctx context.Context, client *reasond.Client, asked request, told *answer) error {
	task, err := taskOf(asked)
	if err != nil {
		return err
	}
	isLeft := asked.Action == "cancel"
	events := client.ReasonIterations(ctx, &reasondv1.ReasonIterationsRequest{
		Source:      &reasondv1.ReasonIterationsRequest_Task{Task: task},
		RequestId:   asked.Options.RequestID,
		KeepRunning: !isLeft,
	})
	for event, err := range events {
		if err != nil {
			return err
		}
		told.ExecutionID = event.GetExecutionId()
		if event.GetDelta() == nil && event.GetHeartbeat() == nil {
			told.Sequences = append(told.Sequences, event.GetSequence())
		}
		if event.GetCompleted() != nil {
			told.take(event.GetCompleted())
		}
		if isLeft && event.GetSequence() >= asked.Options.CancelAfterSequence {
			break
		}
	}
	return nil
}

func listStrategies(ctx context.Context, client *reasond.Client, _ request, told *answer) error {
	listed, err := client.Reasoning.ListStrategies(ctx, &reasondv1.ListStrategiesRequest{})
	var names []string
	for _, each := range listed.GetStrategies() {
		names = append(names, each.GetName())
	}
	slices.Sort(names)
	told.Answer = strings.Join(names, ",")
	return err
}

func takeTurn(ctx context.Context, client *reasond.Client, asked request, told *answer) error {
	task, err := taskOf(asked)
	if err != nil {
		return err
	}
	add := reasond.Tool{
		ClientTool: &reasondv1.ClientTool{
			Name:        "add",
			Description: "Adds two numbers.",
			ParametersJson: `{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
				"required": ["a", "b"], "additionalProperties": false}`,
		},
		Run: func(_ context.Context, call *reasondv1.PendingCall) (any, error) {
			var given struct{ A, B int }
			if err := json.Unmarshal([]byte(call.GetCall().GetArgumentsJson()), &given); err != nil {
				return nil, err
			}
			sum, err := json.Marshal(given.A + given.B)
			told.ToolCalls = append(told.ToolCalls, "add")
			told.ToolResults = append(told.ToolResults, string(sum))
			return given.A + given.B, err
		},
	}
	start := &reasondv1.TurnStart{Message: task.GetQuery()}
	result, err := client.Turn(ctx, start, reasond.Toolset{Tools: []reasond.Tool{add}})
	told.Answer, told.FinishReason, told.ExecutionID = result.GetAnswer(), result.GetFinishReason().String(), result.GetTurnId()
	return err
}
