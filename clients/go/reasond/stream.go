package reasond

import (
	"cmp"
	"context"
	"io"
	"iter"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	reasondv1 "reasond/clients/go"
)

// A stream is resumed six times in a row without an event between, and no later than a minute after a server asked for a
// longer wait.
const maxResumes, firstWait, longestWait, longestAskedWait = 6, 200 * time.Millisecond, 5 * time.Second, time.Minute

// progress is how far a call has come, from attempt to attempt; a unary call has neither events nor a cursor.
type progress struct {
	client   *Client
	cursor   *reasondv1.ExecutionCursor // nil until there is something to resume
	last     protoreflect.Name          // the kind of the last event
	failures int

	canResume, exitsAtHandoff, isRenewed bool
}

// ReasonIterations runs a task, or resumes an execution, and streams its events. With KeepRunning the stream resumes
// after a broken connection; without, an execution ends with its stream.
//
// This holds for all streams: the call begins with the loop over it, and is cancelled however the loop is left. A loop
// that resumes has logged events once and in order; deltas may come twice. An error comes last.
func (c *Client) ReasonIterations(ctx context.Context, request *reasondv1.ReasonIterationsRequest) iter.Seq2[*reasondv1.ReasonIterationsResponse, error] {
	p := progress{client: c, cursor: request.GetResume(), canResume: request.GetKeepRunning()}
	return eventsOf(ctx, p, c.Reasoning.ReasonIterations, request)
}

// RepairSteps works a repair out, or resumes one, and streams its events; it resumes as ReasonIterations does. Repairs
// take minutes: give the context a deadline.
func (c *Client) RepairSteps(ctx context.Context, request *reasondv1.RepairStepsRequest) iter.Seq2[*reasondv1.RepairStepsResponse, error] {
	p := progress{client: c, cursor: request.GetResume(), canResume: request.GetKeepRunning()}
	return eventsOf(ctx, p, c.Repairs.RepairSteps, request)
}

// FollowExecution observes an execution of any kind and always resumes. It neither keeps the execution running nor
// cancels it.
func (c *Client) FollowExecution(ctx context.Context, request *reasondv1.FollowExecutionRequest) iter.Seq2[*reasondv1.FollowExecutionResponse, error] {
	cursor := &reasondv1.ExecutionCursor{ExecutionId: request.GetExecutionId(), AfterSequence: request.GetAfterSequence()}
	return eventsOf(ctx, progress{client: c, cursor: cursor, canResume: true}, c.Executions.FollowExecution, request)
}

// ExecuteTurn starts a turn, goes on with one, or attaches to one, and streams its events to its next exit: its end, or a
// hand-off to this program. It always resumes, and leaving never cancels a turn.
func (c *Client) ExecuteTurn(ctx context.Context, request *reasondv1.ExecuteTurnRequest) iter.Seq2[*reasondv1.ExecuteTurnResponse, error] {
	p := progress{client: c, cursor: request.GetAttach(), canResume: true, exitsAtHandoff: !request.GetFollow()}
	return eventsOf(ctx, p, c.Turns.ExecuteTurn, request)
}

func eventsOf[Request, Event any](ctx context.Context, begin progress,
	call func(context.Context, *Request, ...grpc.CallOption) (grpc.ServerStreamingClient[Event], error),
	request *Request) iter.Seq2[*Event, error] {
	start := identify(request).(proto.Message) // attempts before the first event are one request, by its id
	return func(yield func(*Event, error) bool) {
		p := begin
		ctx, cancel := p.client.bound(ctx)
		defer cancel()
		for {
			events, err := call(ctx, requestAfter(p.cursor, start).(*Request))
			var event *Event
			for err == nil {
				if event, err = events.Recv(); err == nil {
					p.note(any(event).(proto.Message).ProtoReflect())
					if !yield(event, nil) {
						return
					}
				}
			}
			if err = p.waitToRetry(ctx, err); err != nil {
				if err != io.EOF {
					yield(nil, err)
				}
				return
			}
		}
	}
}

// requestAfter returns the request that goes on after cursor with what start began; start itself if cursor is nil.
func requestAfter(cursor *reasondv1.ExecutionCursor, start proto.Message) any {
	if cursor == nil {
		return start
	}
	request := proto.Clone(start).ProtoReflect()
	if source := fieldOf(request, "resume", "attach"); source != nil {
		request.Clear(fieldOf(request, "request_id", ""))
		request.Set(source, protoreflect.ValueOfMessage(cursor.ProtoReflect()))
	} else {
		request.Set(fieldOf(request, "after_sequence", ""), protoreflect.ValueOfInt64(cursor.GetAfterSequence()))
	}
	return request.Interface()
}

// note moves the cursor on. A delta or a heartbeat has the number of a logged event that came before, and does not.
func (p *progress) note(response protoreflect.Message) {
	p.failures, p.isRenewed = 0, false
	kind := response.WhichOneof(response.Descriptor().Oneofs().ByName("event"))
	if kind != nil && fieldOf(response, "sequence", "") == nil {
		p.note(response.Get(kind).Message()) // FollowExecution wraps the events of the other services
		return
	}
	if p.last = ""; kind != nil { // nil: a kind of event that is newer than this client
		p.last = kind.Name()
	}
	id, sequence := response.Get(fieldOf(response, "execution_id", "turn_id")), p.cursor.GetAfterSequence()
	if p.last != "delta" && p.last != "heartbeat" {
		sequence = max(sequence, response.Get(fieldOf(response, "sequence", "")).Int())
	}
	p.cursor = &reasondv1.ExecutionCursor{ExecutionId: id.String(), AfterSequence: sequence}
}

// waitToRetry returns nil, after a pause, if another attempt follows err, and otherwise what ends it. An error has the id
// of the execution, which leads to its partial result.
func (p *progress) waitToRetry(ctx context.Context, err error) error {
	failure := errorOf(err)
	if err == io.EOF || p.last == "handed_off" && p.exitsAtHandoff && failure.isCut() {
		return io.EOF
	}
	failure.ExecutionID = cmp.Or(failure.ExecutionID, p.cursor.GetExecutionId())
	if failure.Reason == "TOKEN_EXPIRED" && p.client.isRenewable && !p.isRenewed {
		p.isRenewed = true
		return nil
	}
	wait := min(longestWait, firstWait<<p.failures)
	wait = max(wait-rand.N(wait/2), min(failure.RetryAfter, longestAskedWait))
	deadline, isBounded := ctx.Deadline()
	// Where the server tells it, it is how the execution failed. A status that was lost may be that, and is asked for.
	isHowItFailed := p.last == "completed" && failure.isOfServer()
	if !p.canResume || !failure.isCut() || isHowItFailed || p.failures == maxResumes || isBounded && time.Until(deadline) <= wait {
		return failure
	}
	p.failures++
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return errorOf(status.FromContextError(ctx.Err()).Err())
	}
}
