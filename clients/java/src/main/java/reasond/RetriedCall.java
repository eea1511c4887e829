package reasond;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import io.grpc.CallOptions;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.util.Iterator;
import java.util.Objects;
import java.util.Spliterators;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.Stream;
import reasond.v1.ExecutionCursor;

/**
 * The answers to one call, attempt by attempt: one answer, or the events of an execution. Where that goes on when the
 * connection is cut, the next attempt follows the last event.
 */
final class RetriedCall<AnswerT extends Message> extends Spliterators.AbstractSpliterator<AnswerT> {
    private static final int MAX_RETRIES = 6;
    private static final long FIRST_WAIT_MS = 200;
    private static final long MAX_WAIT_MS = 5_000;
    private static final long MAX_REQUESTED_WAIT_MS = 60_000;

    private final CountDownLatch closed = new CountDownLatch(1);
    private final Context.CancellableContext context = Context.current().withCancellation();
    private final ReasondClient client;
    private final MethodDescriptor<Message, AnswerT> method;
    private final Deadline deadline;
    private final FieldDescriptor placeField;
    private final boolean canResume;
    private Message request;
    private Iterator<AnswerT> answers;
    private String lastKind = "";
    private boolean isRenewed;
    private int failures;

    @SuppressWarnings("unchecked") // the requests that are sent are changed copies of the first
    RetriedCall(ReasondClient client, MethodDescriptor<? extends Message, AnswerT> method, Message request) {
        super(Long.MAX_VALUE, ORDERED | NONNULL);
        this.client = client;
        this.method = (MethodDescriptor<Message, AnswerT>) method;
        this.request = identified(request);
        deadline = Deadline.after(client.timeout.toNanos(), TimeUnit.NANOSECONDS);
        placeField = field(request, "resume", "attach");
        canResume = placeField != null && isOn(request, "keep_running"); // turns have no such switch and always go on
    }

    void close() {
        closed.countDown();
        context.cancel(null);
    }

    @Override
    public boolean tryAdvance(Consumer<? super AnswerT> action) {
        var answer = receive();
        if (answer == null) {
            return false;
        }
        if (canResume) {
            resumeAfter(answer);
        }
        action.accept(answer);
        return true;
    }

    /** Returns the next answer; null after the last one. */
    private AnswerT receive() {
        while (true) {
            try {
                if (answers == null) {
                    context.run(this::begin);
                }
                return answers.hasNext() ? answers.next() : null;
            } catch (StatusRuntimeException failure) {
                answers = null;
                if (!mayRetry(new ReasondException(failure))) {
                    return null;
                }
            }
        }
    }

    private void begin() {
        var options = CallOptions.DEFAULT.withDeadline(deadline);
        answers = ClientCalls.blockingServerStreamingCall(client.channel(), method, options, request);
    }

    private void resumeAfter(AnswerT event) {
        failures = 0;
        isRenewed = false;
        var kinds = event.getDescriptorForType().getOneofs().get(0);
        // A kind that is newer than this client has no name.
        lastKind = event.hasOneof(kinds) ? event.getOneofFieldDescriptor(kinds).getName() : "";
        var place = ExecutionCursor.newBuilder()
                .setExecutionId((String) event.getField(field(event, "execution_id", "turn_id")))
                .setAfterSequence((long) event.getField(field(event, "sequence")))
                .build();
        var next = request.toBuilder().clearField(field(request, "request_id"));
        request = next.setField(placeField, place).build();
    }

    /** Waits before the next attempt after a failure; returns false where no event is missing. */
    private boolean mayRetry(ReasondException error) {
        client.connection.resetConnectBackoff();
        boolean isExpired = error.info.getReason().equals("TOKEN_EXPIRED");
        if (isExpired && client.authorization.isRenewable() && !isRenewed) {
            isRenewed = true;
            return true;
        }
        if (lastKind.equals("handed_off") && !isOn(request, "follow") && error.isCut()) {
            return false;
        }
        long backoffMs = Math.min(MAX_WAIT_MS, FIRST_WAIT_MS << failures++);
        long requestedMs = Math.min(MAX_REQUESTED_WAIT_MS, error.retryAfter.toMillis());
        long waitMs = Math.max(requestedMs, ThreadLocalRandom.current().nextLong(backoffMs / 2, backoffMs));
        boolean isLate = failures > MAX_RETRIES || deadline.timeRemaining(TimeUnit.MILLISECONDS) <= waitMs;
        // Where the server tells it, it is how the execution failed. A lost status may be that, and is asked for.
        boolean isHowItFailed = lastKind.equals("completed") && error.isOfServer();
        if (!canResume || !error.isCut() || isHowItFailed || isLate || isClosedWithin(waitMs)) {
            throw error;
        }
        return true;
    }

    private boolean isClosedWithin(long milliseconds) {
        try {
            return closed.await(milliseconds, TimeUnit.MILLISECONDS);
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            return true;
        }
    }

    /** Gives a request that begins an execution a request id, so that another attempt finds the same execution. */
    private static Message identified(Message request) {
        var begins = field(request, "task", "start");
        var id = field(request, "request_id");
        boolean isStart = begins != null
                && request.hasField(begins)
                && request.getField(id).equals("");
        var randomId = UUID.randomUUID().toString();
        return isStart ? request.toBuilder().setField(id, randomId).build() : request;
    }

    /** Whether a switch is on, or messages of this type have none. */
    private static boolean isOn(Message request, String name) {
        var field = field(request, name);
        return field == null || (boolean) request.getField(field);
    }

    /** The first field of these names that messages of this type have; null if they have none. */
    private static FieldDescriptor field(Message message, String... names) {
        var found = Stream.of(names).map(message.getDescriptorForType()::findFieldByName);
        return found.filter(Objects::nonNull).findFirst().orElse(null);
    }
}
