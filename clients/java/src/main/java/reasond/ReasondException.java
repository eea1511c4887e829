package reasond;

import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import com.google.rpc.BadRequest.FieldViolation;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.stream.Stream;
import reasond.v1.ErrorReason;

/** A call that failed, with what the server says of it; {@code getStatus()} has gRPC's code. */
public final class ReasondException extends StatusRuntimeException {
    private static final long serialVersionUID = 1L;

    /** The reason without its prefix, or the name of the status code, and limits and names for programs. */
    public final transient ErrorInfo info;

    /** The invalid fields of the request. */
    public final transient List<FieldViolation> violations;

    /** The time to wait before a retry; zero if waiting does not help. */
    public final Duration retryAfter;

    /**
     * Reads the failure of a call that was made with a stub.
     *
     * @param failure what the stub threw; it becomes the cause
     */
    public ReasondException(StatusRuntimeException failure) {
        super(failure.getStatus().withCause(failure), failure.getTrailers());
        // A proxy may add its own details, with reasons of another meaning.
        var infos = details(ErrorInfo.class).filter(each -> each.getDomain().equals("reasond"));
        var none = ErrorInfo.newBuilder().setReason(getStatus().getCode().name());
        info = infos.findFirst().orElse(none.build());
        var lists = details(BadRequest.class).map(BadRequest::getFieldViolationsList);
        violations = lists.findFirst().orElse(List.of());
        var delays = details(RetryInfo.class).map(RetryInfo::getRetryDelay);
        var delay = delays.findFirst().orElse(com.google.protobuf.Duration.getDefaultInstance());
        retryAfter = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
    }

    /** The reason and the problem with its remedy, as the server describes them. */
    @Override
    public String getMessage() {
        var description = getStatus().getDescription();
        return description == null ? info.getReason() : info.getReason() + ": " + description;
    }

    /**
     * The reason; unspecified if the answer did not come from reasond, or the server is newer than this client.
     *
     * @return the reason
     */
    public ErrorReason reason() {
        var known = ErrorReason.getDescriptor().findValueByName("ERROR_REASON_" + info.getReason());
        return known == null ? ErrorReason.ERROR_REASON_UNSPECIFIED : ErrorReason.valueOf(known);
    }

    /** Whether the server itself ended the call: its errors have the id of the request. */
    boolean isOfServer() {
        return info.containsMetadata("request_id");
    }

    /** Whether the connection was cut, so that the execution may go on. */
    boolean isCut() {
        return switch (getStatus().getCode()) {
            case UNAVAILABLE -> true;
            // A proxy that loses its server ends the call so.
            case INTERNAL, UNKNOWN -> !isOfServer();
            default -> reason() == ErrorReason.ERROR_REASON_SLOW_CONSUMER;
        };
    }

    private <DetailT extends Message> Stream<DetailT> details(Class<DetailT> type) {
        try {
            var found = Stream.<DetailT>builder();
            for (var each : StatusProto.fromThrowable(this).getDetailsList()) {
                if (each.is(type)) {
                    found.add(each.unpack(type));
                }
            }
            return found.build();
        } catch (InvalidProtocolBufferException | IllegalArgumentException damaged) {
            return Stream.empty();
        }
    }
}
