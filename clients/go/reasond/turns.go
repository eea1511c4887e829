package reasond

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	reasondv1 "reasond/clients/go"
)

// Tool is a function of this program that a model may call during a turn: what the server and the model are told of it, and
// what runs.
type Tool struct {
	*reasondv1.ClientTool
	Run Run
}

// Run finds the result of a call, which becomes JSON; the model is told the error. The
// idempotency key of call is the same if a program that died before its result was sent makes the call again.
type Run func(ctx context.Context, call *reasondv1.PendingCall) (any, error)

// Toolset is what settles the pending calls of a turn.
type Toolset struct {
	// Tools are functions that the model may call.
	Tools []Tool
	// Approve decides on a call of a server's tool that needs approval; the model is told the reason of a refusal.
	Approve func(ctx context.Context, call *reasondv1.PendingCall) (isApproved bool, reason string)
	// Resolve finds out what came of a server's call whose outcome nobody knows.
	Resolve Run
}

// TurnAwaitsError says that a turn waits for a call that nothing in a toolset settles; ResumeTurn goes on with it.
type TurnAwaitsError struct {
	TurnID string
	Call   *reasondv1.PendingCall
}

func (e *TurnAwaitsError) Error() string {
	return fmt.Sprintf("reasond: turn %q waits for the call %q of %s (%s), which nothing here settles; give it to ResumeTurn",
		e.TurnID, e.Call.GetCall().GetCallId(), e.Call.GetCall().GetTool(), e.Call.GetKind())
}

// Turn runs a turn to its end: whenever it waits for this program, it settles all pending calls and goes on. The model may
// call the tools of the toolset and those in start.
//
// The default deadline bounds each leg, from one exit of the turn to the next. An error does not cancel the turn.
func (c *Client) Turn(ctx context.Context, start *reasondv1.TurnStart, tools Toolset) (*reasondv1.TurnResult, error) {
	offered := proto.Clone(start).(*reasondv1.TurnStart)
	for _, tool := range tools.Tools {
		offered.ClientTools = append(offered.ClientTools, tool.ClientTool)
	}
	return c.drive(ctx, &reasondv1.ExecuteTurnRequest{Source: &reasondv1.ExecuteTurnRequest_Start{Start: offered}}, nil, tools)
}

// ResumeTurn goes on with a turn to its end, from any process. One that has ended is not run again: its result is
// returned, also if it failed.
func (c *Client) ResumeTurn(ctx context.Context, turnID string, tools Toolset) (*reasondv1.TurnResult, error) {
	found, err := c.Turns.GetTurn(ctx, &reasondv1.GetTurnRequest{TurnId: turnID})
	if err != nil || found.GetResult() != nil {
		return found.GetResult(), err
	}
	cursor := &reasondv1.ExecutionCursor{ExecutionId: turnID, AfterSequence: found.GetTurn().GetLastSequence()}
	request := &reasondv1.ExecuteTurnRequest{Source: &reasondv1.ExecuteTurnRequest_Attach{Attach: cursor}}
	if handoff := found.GetTurn().GetHandoff(); handoff != nil {
		request, err = tools.Settle(ctx, turnID, handoff)
	}
	return c.drive(ctx, request, err, tools)
}

// drive follows a turn to its end, or to an error, and settles its hand-offs.
func (c *Client) drive(ctx context.Context, request *reasondv1.ExecuteTurnRequest, err error, tools Toolset) (*reasondv1.TurnResult, error) {
	for err == nil {
		var last *reasondv1.ExecuteTurnResponse
		for event, failure := range c.ExecuteTurn(ctx, request) {
			last, err = event, failure
		}
		if err != nil || last.GetHandedOff() == nil {
			return last.GetCompleted(), err
		}
		request, err = tools.Settle(ctx, last.GetTurnId(), last.GetHandedOff())
	}
	return nil, err
}

// Settle settles all pending calls of a hand-off, in their order, and returns what goes on with the turn; nothing is sent.
// If something is lacking it returns a *TurnAwaitsError, and nothing has run.
func (t Toolset) Settle(ctx context.Context, turnID string, handoff *reasondv1.HandedOff) (*reasondv1.ExecuteTurnRequest, error) {
	for _, pending := range handoff.GetCalls() {
		if isApproval(pending) && t.Approve == nil || !isApproval(pending) && t.find(pending) == nil {
			return nil, &TurnAwaitsError{TurnID: turnID, Call: pending}
		}
	}
	reentry := &reasondv1.TurnReentry{TurnId: turnID, Etag: handoff.GetEtag()}
	for _, pending := range handoff.GetCalls() {
		if ctx.Err() != nil {
			break
		}
		if id := pending.GetCall().GetCallId(); isApproval(pending) {
			isYes, reason := t.Approve(ctx, pending)
			reentry.Decisions = append(reentry.Decisions, &reasondv1.Decision{CallId: id, IsApproved: isYes, Reason: reason})
		} else {
			value, err := t.find(pending)(ctx, pending)
			reentry.Results = append(reentry.Results, resultOf(id, value, err))
		}
	}
	// What ctx cancels is no failure that the model should be told.
	return &reasondv1.ExecuteTurnRequest{Source: &reasondv1.ExecuteTurnRequest_Reentry{Reentry: reentry}}, ctx.Err()
}

func isApproval(call *reasondv1.PendingCall) bool {
	return call.GetKind() == reasondv1.CallKind_CALL_KIND_APPROVE
}

// find returns what finds the result of a call; nil if there is nothing.
func (t Toolset) find(pending *reasondv1.PendingCall) Run {
	if pending.GetKind() == reasondv1.CallKind_CALL_KIND_RESOLVE {
		return t.Resolve
	}
	for _, tool := range t.Tools {
		if tool.GetName() == pending.GetCall().GetTool() {
			return tool.Run
		}
	}
	return nil
}

func resultOf(id string, value any, failure error) *reasondv1.ToolResult {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	if failure = cmp.Or(failure, err); failure != nil {
		text.Reset()
		_ = encoder.Encode(map[string]string{"error": fmt.Sprintf("%.2000s", failure)}) // no error: it is a plain text
	}
	return &reasondv1.ToolResult{CallId: id, ResultJson: strings.TrimSpace(text.String()), IsError: failure != nil}
}
