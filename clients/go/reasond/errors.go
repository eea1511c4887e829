package reasond

import (
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reasondv1 "reasond/clients/go"
)

// Error is why a call failed; errors.As finds it in every error of a call, and package status reads it too.
type Error struct {
	// Code is the status of gRPC.
	Code codes.Code
	// Reason is the name of an ErrorReason without its prefix, such as "STRATEGY_NOT_FOUND"; the name of the status code
	// if the response did not come from reasond.
	Reason string
	// Message is the problem and the remedy, as the server describes them.
	Message string
	// Violations are the invalid fields, each with a description of valid values.
	Violations []*errdetails.BadRequest_FieldViolation
	// RetryAfter is the time to wait before a retry; 0 if waiting does not help.
	RetryAfter time.Duration
	// Metadata has limits and names for programs.
	Metadata map[string]string
	// ExecutionID is the execution whose partial result GetExecution returns; empty if there is none.
	ExecutionID string

	status *status.Status
}

func (e *Error) Error() string { return strings.TrimSuffix(e.Reason+": "+e.Message, ": ") }

// GRPCStatus returns the status with all its details.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// HasReason returns whether the call failed for this reason.
func (e *Error) HasReason(reason reasondv1.ErrorReason) bool {
	return "ERROR_REASON_"+e.Reason == reason.String()
}

// errorOf returns the error of a call as an *Error.
func errorOf(err error) *Error {
	from := status.Convert(err)
	failure := &Error{Code: from.Code(), Reason: code.Code(from.Code()).String(), Message: from.Message(), status: from}
	for _, detail := range from.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == "reasond" { // a proxy may add its own, with reasons of another meaning
				failure.Reason, failure.Metadata = detail.GetReason(), detail.GetMetadata()
			}
		case *errdetails.BadRequest:
			failure.Violations = detail.GetFieldViolations()
		case *errdetails.RetryInfo:
			failure.RetryAfter = detail.GetRetryDelay().AsDuration()
		}
	}
	failure.ExecutionID = failure.Metadata["execution_id"]
	return failure
}

// isOfServer returns whether the server itself ended the call: its errors have the id of the request.
func (e *Error) isOfServer() bool { return e.Metadata["request_id"] != "" }

// isCut returns whether a stream was cut, so that its execution may go on. A proxy that loses its server ends the stream
// with CANCELLED, INTERNAL or UNKNOWN.
func (e *Error) isCut() bool {
	mayBeOfProxy := e.Code == codes.Canceled || e.Code == codes.Internal || e.Code == codes.Unknown
	return e.Code == codes.Unavailable || e.Reason == "SLOW_CONSUMER" || mayBeOfProxy && !e.isOfServer()
}
