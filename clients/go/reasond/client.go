// Package reasond calls a reasond server: the generated stubs with a token, deadlines, request ids, retries and typed
// errors, streams that resume after a broken connection, and turns that use tools of this program.
//
// Requests and results are the messages of package reasondv1. Unary calls are methods of the stubs in Client; streams
// and turns are methods of Client itself. A Client may be used by many goroutines at once.
package reasond

import (
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // without it, the health of servers is not looked at
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	reasondv1 "reasond/clients/go"
)

// DefaultTarget is the address of a development server.
const DefaultTarget = "127.0.0.1:50051"

// DefaultTimeout bounds calls whose context has no deadline.
const DefaultTimeout = 2 * time.Minute

//go:embed service_config.json
var serviceConfig string

// TokenSource returns a token, without "Bearer". It is asked for every attempt of a call, and must be safe for concurrent
// use.
type TokenSource func(ctx context.Context) (string, error)

// Option sets up a Client.
type Option func(*Client)

// WithToken sends this token with every call.
func WithToken(token string) Option {
	return func(c *Client) { c.token = func(context.Context) (string, error) { return token, nil } }
}

// WithTokenSource asks for a token before every call, and once more if the server says that the token has expired.
func WithTokenSource(source TokenSource) Option {
	return func(c *Client) { c.token, c.isRenewable = source, true }
}

// WithTLS encrypts the connection; an empty configuration trusts the roots of the system.
func WithTLS(config *tls.Config) Option {
	return func(c *Client) { c.transport = credentials.NewTLS(config) }
}

// WithTimeout bounds calls whose context has no deadline, and streams as a whole; 0 sets no bound.
func WithTimeout(timeout time.Duration) Option { return func(c *Client) { c.timeout = timeout } }

// WithPlaintextToken lets a token leave this machine without TLS, where a mesh or a tunnel encrypts.
func WithPlaintextToken() Option { return func(c *Client) { c.allowPlaintext = true } }

// WithDialOptions adds options of gRPC, which win over those of the client.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(c *Client) { c.dialOptions = append(c.dialOptions, options...) }
}

// Client calls one server, or all servers behind a name such as "dns:///reasond.example:443".
type Client struct {
	// The stubs of the services, for unary calls. Their streams are methods of Client, which resume.
	Reasoning  reasondv1.ReasoningServiceClient
	Turns      reasondv1.TurnServiceClient
	Repairs    reasondv1.RepairServiceClient
	Executions reasondv1.ExecutionServiceClient
	Agents     reasondv1.AgentServiceClient

	connection                  *grpc.ClientConn
	token                       TokenSource
	transport                   credentials.TransportCredentials
	timeout                     time.Duration
	isRenewable, allowPlaintext bool
	dialOptions                 []grpc.DialOption
}

// NewClient makes a client of the server at target, "host:port", "unix:/path" or "dns:///host:port". It connects with the
// first call.
func NewClient(target string, options ...Option) (*Client, error) {
	c := &Client{timeout: DefaultTimeout, transport: insecure.NewCredentials()}
	for _, option := range options {
		option(c)
	}
	if target == "" || strings.Contains(target, "http://") || strings.Contains(target, "https://") {
		return nil, fmt.Errorf("reasond: the target must be a host and a port such as %q, not %q", DefaultTarget, target)
	}
	if c.token != nil && c.transport.Info().SecurityProtocol == "insecure" && !c.allowPlaintext && !local.MatchString(target) {
		return nil, fmt.Errorf("reasond: the token would cross the network in plain text to %q: use WithTLS, "+
			"or WithPlaintextToken where something else encrypts (a mesh, a tunnel)", target)
	}
	connection, err := grpc.NewClient(target, append(c.channelOptions(target), c.dialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("reasond: the target %q cannot be used: %w", target, err)
	}
	c.connection, c.Executions = connection, reasondv1.NewExecutionServiceClient(connection)
	c.Reasoning, c.Turns = reasondv1.NewReasoningServiceClient(connection), reasondv1.NewTurnServiceClient(connection)
	c.Repairs, c.Agents = reasondv1.NewRepairServiceClient(connection), reasondv1.NewAgentServiceClient(connection)
	return c, nil
}

// Close cancels the calls that still run and closes the connection.
func (c *Client) Close() error { return c.connection.Close() }

func (c *Client) channelOptions(target string) []grpc.DialOption {
	// In a rolling restart, waits of 2 s reconnect to a restarted server before the next one has drained (drain_delay_s, 5).
	reconnects := backoff.Config{BaseDelay: 250 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(c.transport),
		grpc.WithUserAgent("reasond-go"),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnects, MinConnectTimeout: 20 * time.Second}),
		// A request larger than this buffer (256 KiB by default) is never retried.
		grpc.WithDefaultCallOptions(grpc.MaxRetryRPCBufferSize(4 << 20)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithChainUnaryInterceptor(c.interceptUnary),
	}
	if c.token != nil {
		options = append(options, grpc.WithPerRPCCredentials(c.token))
	}
	if !strings.HasPrefix(target, "dns:") {
		// Behind one address there may be several processes, and one of them that drains would make all unhealthy.
		options = append(options, grpc.WithDisableHealthCheck())
	}
	return options
}

// GetRequestMetadata is for gRPC: a TokenSource is credentials.PerRPCCredentials.
func (t TokenSource) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := t(ctx)
	if err != nil || token == "" {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(token)}, nil
}

// RequireTransportSecurity is for gRPC; NewClient has checked where a token may go.
func (t TokenSource) RequireTransportSecurity() bool { return false }

func (c *Client) interceptUnary(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	request = identify(request)
	for p := (progress{client: c}); ; {
		err := invoke(ctx, method, request, reply, connection, options...)
		if err == nil {
			return nil
		}
		if err = p.waitToRetry(ctx, err); err != nil {
			return err
		}
	}
}

// bound returns ctx with the default deadline, unless it has one.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, hasDeadline := ctx.Deadline(); hasDeadline || c.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.timeout)
}

// identify returns a request that begins something with a request id; the caller's own message is not changed.
func identify(request any) any {
	message := request.(proto.Message).ProtoReflect()
	id, begins := fieldOf(message, "request_id", ""), fieldOf(message, "task", "start")
	if id == nil || message.Has(id) || begins == nil || !message.Has(begins) {
		return request
	}
	message = proto.Clone(message.Interface()).ProtoReflect()
	message.Set(id, protoreflect.ValueOfString(fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())))
	return message.Interface()
}

// fieldOf returns the field of one of two names that messages of this type have, nil if they have none.
func fieldOf(message protoreflect.Message, name, other protoreflect.Name) protoreflect.FieldDescriptor {
	fields := message.Descriptor().Fields()
	return cmp.Or(fields.ByName(name), fields.ByName(other))
}
