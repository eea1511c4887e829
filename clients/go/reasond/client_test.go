package reasond_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	reasondv1 "reasond/clients/go"
	"reasond/clients/go/reasond"
)

// fakeServer answers by functions, over a real connection; what a test does not set is unimplemented.
type fakeServer struct {
	reasondv1.UnimplementedReasoningServiceServer
	reasondv1.UnimplementedTurnServiceServer
	reasondv1.UnimplementedRepairServiceServer
	reasondv1.UnimplementedExecutionServiceServer
	reason  func(context.Context, *reasondv1.ReasonRequest) error
	stream  func(*reasondv1.ReasonIterationsRequest, func(*reasondv1.ReasonIterationsResponse) error) error
	follow  func(*reasondv1.FollowExecutionRequest, func(*reasondv1.FollowExecutionResponse) error) error
	turn    func(*reasondv1.ExecuteTurnRequest, func(*reasondv1.ExecuteTurnResponse) error) error
	getTurn func(*reasondv1.GetTurnRequest) *reasondv1.GetTurnResponse
	left    chan struct{}
}

func (s *fakeServer) Reason(ctx context.Context, request *reasondv1.ReasonRequest) (*reasondv1.ReasonResponse, error) {
	return &reasondv1.ReasonResponse{Reasoning: &reasondv1.Reasoning{Answer: "42"}}, s.reason(ctx, request)
}

func (s *fakeServer) ReasonIterations(
	request *reasondv1.ReasonIterationsRequest, stream grpc.ServerStreamingServer[reasondv1.ReasonIterationsResponse],
) error {
	if s.left != nil {
		context.AfterFunc(stream.Context(), func() { close(s.left) })
	}
	return s.stream(request, stream.Send)
}

func (s *fakeServer) FollowExecution(
	request *reasondv1.FollowExecutionRequest, stream grpc.ServerStreamingServer[reasondv1.FollowExecutionResponse],
) error {
	return s.follow(request, stream.Send)
}

func (s *fakeServer) ExecuteTurn(
	request *reasondv1.ExecuteTurnRequest, stream grpc.ServerStreamingServer[reasondv1.ExecuteTurnResponse],
) error {
	return s.turn(request, stream.Send)
}

func (s *fakeServer) GetTurn(_ context.Context, request *reasondv1.GetTurnRequest) (*reasondv1.GetTurnResponse, error) {
	return s.getTurn(request), nil
}

// serve runs a server while the test lasts and returns its address; services that are not healthy are named.
func serve(t *testing.T, server *fakeServer, unhealthy ...string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	running := grpc.NewServer()
	reasondv1.RegisterReasoningServiceServer(running, server)
	reasondv1.RegisterTurnServiceServer(running, server)
	reasondv1.RegisterRepairServiceServer(running, server)
	reasondv1.RegisterExecutionServiceServer(running, server)
	healths := health.NewServer()
	for _, name := range unhealthy {
		healths.SetServingStatus(name, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	healthpb.RegisterHealthServer(running, healths)
	go func() { _ = running.Serve(listener) }()
	t.Cleanup(running.Stop)
	return listener.Addr().String()
}

func connect(t *testing.T, target string, options ...reasond.Option) *reasond.Client {
	t.Helper()
	client, err := reasond.NewClient(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func failure(code codes.Code, reason string, details ...protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: "reasond", Metadata: map[string]string{"request_id": "r1"}}
	told, _ := status.New(code, "the message").WithDetails(append([]protoadapt.MessageV1{info}, details...)...)
	return told.Err()
}

func event(sequence int64) *reasondv1.ReasonIterationsResponse {
	return &reasondv1.ReasonIterationsResponse{
		ExecutionId: "e1", Sequence: sequence,
		Event: &reasondv1.ReasonIterationsResponse_Iteration{Iteration: &reasondv1.Iteration{}},
	}
}

func task(keep bool) *reasondv1.ReasonIterationsRequest {
	source := &reasondv1.ReasonIterationsRequest_Task{Task: &reasondv1.ReasoningTask{Query: "?"}}
	return &reasondv1.ReasonIterationsRequest{Source: source, KeepRunning: keep}
}

// collect returns the events of a stream, and the error that ended it.
func collect[Event any](events iter.Seq2[*Event, error]) (received []*Event, failure error) {
	for event, err := range events {
		if failure = err; err == nil {
			received = append(received, event)
		}
	}
	return received, failure
}

func TestEveryAttemptOfAStartHasOneRequestID(t *testing.T) {
	var ids []string
	server := &fakeServer{reason: func(_ context.Context, request *reasondv1.ReasonRequest) error {
		if ids = append(ids, request.GetRequestId()); len(ids) < 3 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return nil
	}}
	client := connect(t, serve(t, server))
	request := &reasondv1.ReasonRequest{Task: &reasondv1.ReasoningTask{Query: "?"}}
	if _, err := client.Reasoning.Reason(context.Background(), request); err != nil {
		t.Fatal(err)
	}
	if len(ids) != 3 || len(ids[0]) != 32 || len(slices.Compact(ids)) != 1 {
		t.Errorf("the attempts had the ids %q", ids)
	}
	if request.GetRequestId() != "" {
		t.Error("the caller's own request was changed")
	}
}

func TestAnErrorTellsReasonViolationsAndTimeToRetry(t *testing.T) {
	violations := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "query", Description: "is required"}}}
	wait := &errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)}
	server := &fakeServer{reason: func(context.Context, *reasondv1.ReasonRequest) error {
		return failure(codes.InvalidArgument, "INVALID_REQUEST", violations, wait)
	}}
	client := connect(t, serve(t, server))
	_, err := client.Reasoning.Reason(context.Background(), &reasondv1.ReasonRequest{})
	var found *reasond.Error
	if !errors.As(err, &found) {
		t.Fatalf("%T: %v", err, err)
	}
	if !found.HasReason(reasondv1.ErrorReason_ERROR_REASON_INVALID_REQUEST) || found.RetryAfter != 1500*time.Millisecond {
		t.Errorf("%+v", found)
	}
	if len(found.Violations) != 1 || found.Violations[0].GetField() != "query" {
		t.Errorf("violations %v", found.Violations)
	}
	if status.Code(err) != codes.InvalidArgument || err.Error() != "INVALID_REQUEST: the message" {
		t.Errorf("status %v, text %q", status.Code(err), err)
	}
}

func TestACallWithoutDeadlineHasTheDefaultOne(t *testing.T) {
	server := &fakeServer{reason: func(ctx context.Context, _ *reasondv1.ReasonRequest) error {
		<-ctx.Done()
		return nil
	}}
	client := connect(t, serve(t, server), reasond.WithTimeout(50*time.Millisecond))
	_, err := client.Reasoning.Reason(context.Background(), &reasondv1.ReasonRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v", err)
	}
}

func TestAnExpiredTokenIsAskedForOnceMore(t *testing.T) {
	var seen []string
	server := &fakeServer{reason: func(ctx context.Context, _ *reasondv1.ReasonRequest) error {
		headers, _ := metadata.FromIncomingContext(ctx)
		seen = append(seen, headers.Get("authorization")...)
		return failure(codes.Unauthenticated, "TOKEN_EXPIRED")
	}}
	target := serve(t, server)
	asked := 0
	source := reasond.WithTokenSource(func(context.Context) (string, error) {
		asked++
		return strings.Repeat("t", asked) + "\n", nil
	})
	for _, each := range []struct {
		option reasond.Option
		want   []string
	}{{source, []string{"Bearer t", "Bearer tt"}}, {reasond.WithToken("fixed"), []string{"Bearer fixed"}}} {
		seen = nil
		_, err := connect(t, target, each.option).Reasoning.Reason(context.Background(), &reasondv1.ReasonRequest{})
		if status.Code(err) != codes.Unauthenticated || !slices.Equal(seen, each.want) {
			t.Errorf("%v after %q", err, seen)
		}
	}
}

func TestATokenDoesNotLeaveTheMachineInPlainText(t *testing.T) {
	for _, target := range []string{"reasond.example:443", "dns:///10.0.0.1:50051", "unix.example:1", "127.0.0.1.example:1", "dns://127.0.0.1/far.example:1", "dns:///localhost.example:1"} {
		if _, err := reasond.NewClient(target, reasond.WithToken("secret")); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", target, err)
		}
		connect(t, target, reasond.WithToken("secret"), reasond.WithPlaintextToken())
		connect(t, target)
	}
	for _, target := range []string{"localhost:1", "127.0.0.2:1", "[::1]:1", "LOCALHOST", "dns:127.0.0.1:1", "dns:///localhost:1", "unix:/run/reasond"} {
		connect(t, target, reasond.WithToken("secret"))
	}
}

func TestAStreamThatIsKeptResumesAfterTheLastLoggedEvent(t *testing.T) {
	var cursors []int64
	server := &fakeServer{stream: func(request *reasondv1.ReasonIterationsRequest, send func(*reasondv1.ReasonIterationsResponse) error) error {
		after := request.GetResume().GetAfterSequence()
		cursors = append(cursors, after)
		_ = send(event(after + 1))
		beat := &reasondv1.ReasonIterationsResponse_Heartbeat{Heartbeat: &reasondv1.Heartbeat{}}
		_ = send(&reasondv1.ReasonIterationsResponse{ExecutionId: "e1", Sequence: after + 9, Event: beat})
		if len(cursors) < 3 {
			return status.Error(codes.Unavailable, "cut")
		}
		return nil
	}}
	client := connect(t, serve(t, server))
	var sequences []int64
	for event, err := range client.ReasonIterations(context.Background(), task(true)) {
		if err != nil {
			t.Fatal(err)
		}
		if event.GetHeartbeat() == nil {
			sequences = append(sequences, event.GetSequence())
		}
	}
	if !slices.Equal(sequences, []int64{1, 2, 3}) || !slices.Equal(cursors, []int64{0, 1, 2}) {
		t.Errorf("events %v after the cursors %v", sequences, cursors)
	}
}

func TestAStreamThatIsNotKeptIsNotResumed(t *testing.T) {
	calls := 0
	server := &fakeServer{stream: func(_ *reasondv1.ReasonIterationsRequest, send func(*reasondv1.ReasonIterationsResponse) error) error {
		calls++
		_ = send(event(1))
		return status.Error(codes.Unavailable, "cut")
	}}
	client := connect(t, serve(t, server))
	received, err := collect(client.ReasonIterations(context.Background(), task(false)))
	var found *reasond.Error
	if !errors.As(err, &found) || found.Code != codes.Unavailable || found.ExecutionID != "e1" || len(received) != 1 || calls != 1 {
		t.Errorf("%v after %d events and %d calls", err, len(received), calls)
	}
}

func TestWhatTheServerSaysOfItselfIsNoCut(t *testing.T) {
	calls := 0
	server := &fakeServer{stream: func(*reasondv1.ReasonIterationsRequest, func(*reasondv1.ReasonIterationsResponse) error) error {
		calls++
		return failure(codes.Internal, "INTERNAL")
	}}
	client := connect(t, serve(t, server))
	_, err := collect(client.ReasonIterations(context.Background(), task(true)))
	if status.Code(err) != codes.Internal || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestLeavingALoopCancelsTheCall(t *testing.T) {
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	server := &fakeServer{left: make(chan struct{})}
	server.stream = func(_ *reasondv1.ReasonIterationsRequest, send func(*reasondv1.ReasonIterationsResponse) error) error {
		_ = send(event(1))
		select {
		case <-server.left:
		case <-forever:
		}
		return nil
	}
	client := connect(t, serve(t, server))
	for range client.ReasonIterations(context.Background(), task(false)) {
		break
	}
	<-server.left
}

func TestACancelledContextEndsTheWaitToResume(t *testing.T) {
	wait := &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Minute)}
	ctx, cancel := context.WithCancel(context.Background())
	server := &fakeServer{stream: func(_ *reasondv1.ReasonIterationsRequest, send func(*reasondv1.ReasonIterationsResponse) error) error {
		_ = send(event(1))
		return failure(codes.Unavailable, "DRAINING", wait)
	}}
	client := connect(t, serve(t, server), reasond.WithTimeout(0))
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := collect(client.ReasonIterations(ctx, task(true))); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
}

func TestAnObserverResumesByTheEventsOfAnyKind(t *testing.T) {
	var cursors []int64
	server := &fakeServer{follow: func(request *reasondv1.FollowExecutionRequest, send func(*reasondv1.FollowExecutionResponse) error) error {
		cursors = append(cursors, request.GetAfterSequence())
		turn := &reasondv1.ExecuteTurnResponse{
			TurnId: request.GetExecutionId(), Sequence: request.GetAfterSequence() + 1,
			Event: &reasondv1.ExecuteTurnResponse_Tool{Tool: &reasondv1.ToolStep{}},
		}
		_ = send(&reasondv1.FollowExecutionResponse{Event: &reasondv1.FollowExecutionResponse_Turn{Turn: turn}})
		if len(cursors) < 2 {
			return status.Error(codes.Unavailable, "cut")
		}
		return nil
	}}
	client := connect(t, serve(t, server))
	request := &reasondv1.FollowExecutionRequest{ExecutionId: "t1", AfterSequence: 4}
	events, err := collect(client.FollowExecution(context.Background(), request))
	if err != nil || !slices.Equal(cursors, []int64{4, 5}) || events[1].GetTurn().GetSequence() != 6 {
		t.Errorf("%v: %v after the cursors %v", err, events, cursors)
	}
}

func TestCallsToANameGoOnlyToHealthyServers(t *testing.T) {
	server := &fakeServer{reason: func(context.Context, *reasondv1.ReasonRequest) error { return nil }}
	target := serve(t, server, "reasond.v1.ReasoningService")
	for prefix, want := range map[string]codes.Code{"": codes.OK, "dns:///": codes.Unavailable} {
		_, err := connect(t, prefix+target).Reasoning.Reason(context.Background(), &reasondv1.ReasonRequest{})
		if status.Code(err) != want {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}

func TestTheEnvironmentSetsUpAClient(t *testing.T) {
	var mutex sync.Mutex
	var tokens []string
	server := &fakeServer{reason: func(ctx context.Context, _ *reasondv1.ReasonRequest) error {
		headers, _ := metadata.FromIncomingContext(ctx)
		mutex.Lock()
		defer mutex.Unlock()
		tokens = headers.Get("authorization")
		return nil
	}}
	t.Setenv("REASOND_TARGET", serve(t, server))
	t.Setenv("REASOND_TOKEN", " secret ")
	client, err := reasond.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Reasoning.Reason(context.Background(), &reasondv1.ReasonRequest{}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tokens, []string{"Bearer secret"}) {
		t.Errorf("%q", tokens)
	}
	for name, value := range map[string]string{
		"REASOND_TIMEOUT_S": "-1", "REASOND_TLS": "maybe", "REASOND_CA_FILE": "/nowhere", "REASOND_TARGET": "http://here",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if _, err := reasond.FromEnv(); err == nil {
				t.Error("it was taken")
			}
		})
	}
}

func handedOff(kinds ...reasondv1.CallKind) *reasondv1.HandedOff {
	told := &reasondv1.HandedOff{Etag: "v1"}
	for index, kind := range kinds {
		call := &reasondv1.ToolCall{CallId: "c" + string(rune('1'+index)), Tool: "add", ArgumentsJson: `{"a": 2, "b": 3}`}
		told.Calls = append(told.Calls, &reasondv1.PendingCall{Call: call, Kind: kind, IdempotencyKey: "k1"})
	}
	return told
}

func toolOf(run reasond.Run) []reasond.Tool {
	return []reasond.Tool{{ClientTool: &reasondv1.ClientTool{Name: "add"}, Run: run}}
}

func TestNoToolRunsWhereSomethingIsLacking(t *testing.T) {
	execute, approve := reasondv1.CallKind_CALL_KIND_EXECUTE, reasondv1.CallKind_CALL_KIND_APPROVE
	tools := reasond.Toolset{Tools: toolOf(func(context.Context, *reasondv1.PendingCall) (any, error) {
		t.Error("a tool ran")
		return nil, nil
	})}
	_, err := tools.Settle(context.Background(), "t1", handedOff(execute, approve))
	var awaits *reasond.TurnAwaitsError
	if !errors.As(err, &awaits) || awaits.TurnID != "t1" || awaits.Call.GetCall().GetCallId() != "c2" {
		t.Errorf("%v", err)
	}
}

func TestAHandOffIsSettledInItsOrder(t *testing.T) {
	execute, approve, resolve := reasondv1.CallKind_CALL_KIND_EXECUTE, reasondv1.CallKind_CALL_KIND_APPROVE, reasondv1.CallKind_CALL_KIND_RESOLVE
	values := []any{"<3>", make(chan int), errors.New("no such number")}
	tools := reasond.Toolset{
		Tools: toolOf(func(context.Context, *reasondv1.PendingCall) (any, error) {
			value := values[0]
			values = values[1:]
			err, _ := value.(error)
			return value, err
		}),
		Approve: func(context.Context, *reasondv1.PendingCall) (bool, string) { return false, "not today" },
		Resolve: func(_ context.Context, call *reasondv1.PendingCall) (any, error) {
			return call.GetIdempotencyKey(), nil
		},
	}
	request, err := tools.Settle(context.Background(), "t1", handedOff(execute, approve, execute, resolve, execute))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, each := range request.GetReentry().GetResults() {
		var value any
		if err := json.Unmarshal([]byte(each.GetResultJson()), &value); err != nil {
			t.Error(err)
		}
		told = append(told, each.GetCallId()+each.GetResultJson())
	}
	want := []string{`c1"<3>"`, `c3{"error":"json: unsupported type: chan int"}`, `c4"k1"`, `c5{"error":"no such number"}`}
	if !slices.Equal(told, want) {
		t.Errorf("%q", told)
	}
	decision := request.GetReentry().GetDecisions()[0]
	if decision.GetIsApproved() || decision.GetReason() != "not today" || request.GetReentry().GetEtag() != "v1" {
		t.Errorf("%v", request)
	}
}

func TestWhatACancelledProgramReturnsIsNoResult(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	runs := 0
	tools := reasond.Toolset{Tools: toolOf(func(ctx context.Context, _ *reasondv1.PendingCall) (any, error) {
		runs++
		cancel()
		return nil, ctx.Err()
	})}
	execute := reasondv1.CallKind_CALL_KIND_EXECUTE
	if _, err := tools.Settle(ctx, "t1", handedOff(execute, execute)); !errors.Is(err, context.Canceled) || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
}

func TestATurnThatWaitsIsResumedAndOneThatHasEndedIsNotRunAgain(t *testing.T) {
	done := &reasondv1.TurnResult{TurnId: "t1", Answer: "5"}
	var sources []string
	server := &fakeServer{turn: func(request *reasondv1.ExecuteTurnRequest, send func(*reasondv1.ExecuteTurnResponse) error) error {
		sources = append(sources, request.GetReentry().GetResults()[0].GetResultJson())
		return send(&reasondv1.ExecuteTurnResponse{TurnId: "t1", Sequence: 5, Event: &reasondv1.ExecuteTurnResponse_Completed{Completed: done}})
	}}
	server.getTurn = func(*reasondv1.GetTurnRequest) *reasondv1.GetTurnResponse {
		if len(sources) > 0 {
			return &reasondv1.GetTurnResponse{Turn: &reasondv1.Turn{TurnId: "t1"}, Result: done}
		}
		return &reasondv1.GetTurnResponse{Turn: &reasondv1.Turn{
			TurnId: "t1", LastSequence: 3, Handoff: handedOff(reasondv1.CallKind_CALL_KIND_EXECUTE),
		}}
	}
	client := connect(t, serve(t, server))
	tools := reasond.Toolset{Tools: toolOf(func(context.Context, *reasondv1.PendingCall) (any, error) { return 5, nil })}
	for range 2 {
		result, err := client.ResumeTurn(context.Background(), "t1", tools)
		if err != nil || result.GetAnswer() != "5" {
			t.Errorf("%v, %v", result, err)
		}
	}
	if !slices.Equal(sources, []string{"5"}) {
		t.Errorf("re-entries %q", sources)
	}
}
