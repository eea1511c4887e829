package reasond;

import com.google.protobuf.Message;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import reasond.v1.ExecuteTurnRequest;
import reasond.v1.GetTurnRequest;
import reasond.v1.Turn;
import reasond.v1.TurnResult;
import reasond.v1.TurnServiceGrpc;

/**
 * Calls a reasond server and blocks until it answers; may be shared by threads.
 *
 * <p>Every method throws {@link ReasondException} where the call fails, and {@link IllegalArgumentException} where an
 * argument cannot be sent. An interrupt cancels the call on the server too.
 */
public final class ReasondClient implements AutoCloseable {
    final ManagedChannel connection;
    final Authorization authorization;
    final Duration timeout;

    /**
     * Makes a client; it connects with its first call.
     *
     * @param settings the settings; of later changes only that of a fixed token has an effect
     * @throws IllegalArgumentException a setting is invalid
     */
    public ReasondClient(ClientSettings settings) {
        this(settings.open(), settings.authorization(), settings.timeout);
    }

    private ReasondClient(ManagedChannel connection, Authorization authorization, Duration timeout) {
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException("the timeout must be above 0, not " + timeout);
        }
        this.connection = connection;
        this.authorization = authorization;
        this.timeout = timeout;
    }

    /**
     * Returns a client on the same connection whose calls have another deadline.
     *
     * @param timeout for a stream, of the whole stream; more than a hundred years are taken for a hundred
     * @return the client; closing it closes the connection of both
     */
    public ReasondClient withTimeout(Duration timeout) {
        return new ReasondClient(connection, authorization, timeout);
    }

    /**
     * The channel with the token of this client, for generated stubs of every kind. Calls with a stub have no default
     * deadline and throw {@link StatusRuntimeException}, which {@link ReasondException} reads.
     *
     * @return the channel
     */
    public Channel channel() {
        return ClientInterceptors.intercept(connection, authorization);
    }

    /**
     * Calls a method, such as {@code ReasoningServiceGrpc.getReasonMethod()}, and returns its last answer. A request that
     * begins an execution gets a request id if it has none.
     *
     * @param <RequestT> the message that is sent
     * @param <ResponseT> the message that is returned
     * @param method the method
     * @param request what to send
     * @return the response
     */
    public <RequestT extends Message, ResponseT extends Message> ResponseT call(
            MethodDescriptor<RequestT, ResponseT> method, RequestT request) {
        return stream(method, request).reduce((before, after) -> after).orElseThrow();
    }

    /**
     * Calls a method with many answers, such as {@code ReasoningServiceGrpc.getReasonIterationsMethod()}. The call begins
     * with the first event. It is cancelled by {@code close()}, best by try-with-resources and also from another thread,
     * and with it the execution, unless that is kept running or is a turn. Where the execution goes on, the stream is
     * resumed after a cut: logged events never come twice, deltas may.
     *
     * @param <RequestT> the message that is sent
     * @param <EventT> the message of an event
     * @param method the method
     * @param request what to send
     * @return the events
     */
    public <RequestT extends Message, EventT extends Message> Stream<EventT> stream(
            MethodDescriptor<RequestT, EventT> method, RequestT request) {
        var call = new RetriedCall<>(this, method, request);
        return StreamSupport.stream(call, false).onClose(call::close);
    }

    /**
     * Runs a turn to its end; what is handed off to this client is settled by {@code tools}.
     *
     * @param request the start, to which {@code tools} are added, or what goes on with a turn
     * @param tools the functions that are offered to the model
     * @return the result
     * @throws TurnAwaitsException nothing settles a call; {@link #resumeTurn} goes on with the turn
     */
    public TurnResult turn(ExecuteTurnRequest request, Toolset tools) {
        var next = request.toBuilder();
        if (request.hasStart()) {
            var start = next.getStartBuilder();
            tools.functions().values().forEach(each -> start.addClientTools(each.definition()));
        }
        while (true) {
            var exit = call(TurnServiceGrpc.getExecuteTurnMethod(), next.build());
            if (!exit.hasHandedOff()) {
                return exit.getCompleted();
            }
            var turn = Turn.newBuilder().setTurnId(exit.getTurnId()).setHandoff(exit.getHandedOff());
            next = ExecuteTurnRequest.newBuilder().setReentry(tools.settle(turn.build()));
        }
    }

    /**
     * Goes on with a turn to its end, from any process.
     *
     * @param turnId the turn; the result of one that has ended is returned
     * @param tools the functions that settle its pending calls
     * @return the result
     * @throws TurnAwaitsException nothing settles a call
     */
    public TurnResult resumeTurn(String turnId, Toolset tools) {
        var request = GetTurnRequest.newBuilder().setTurnId(turnId).build();
        var found = call(TurnServiceGrpc.getGetTurnMethod(), request);
        if (found.hasResult()) {
            return found.getResult();
        }
        var turn = found.getTurn();
        var next = ExecuteTurnRequest.newBuilder();
        next.getAttachBuilder().setExecutionId(turnId).setAfterSequence(turn.getLastSequence());
        return turn((turn.hasHandoff() ? next.setReentry(tools.settle(turn)) : next).build(), tools);
    }

    /** Cancels the calls that still run and closes the connection; closing twice does nothing. */
    @Override
    public void close() {
        connection.shutdownNow();
    }
}
