package reasond;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.stub.MetadataUtils;
import java.util.function.Supplier;

/** Gives each call the token of its client; errors never show it. */
record Authorization(Supplier<String> token, boolean isRenewable) implements ClientInterceptor {
    private static final Metadata.Key<String> HEADER =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    @Override
    public <RequestT, AnswerT> ClientCall<RequestT, AnswerT> interceptCall(
            MethodDescriptor<RequestT, AnswerT> method, CallOptions options, Channel next) {
        var headers = new Metadata();
        var text = token.get().strip();
        if (!text.matches("[!-~]*")) {
            throw new IllegalArgumentException(
                    "the token must be printable ASCII without spaces, and without 'Bearer'");
        }
        if (!text.isEmpty()) {
            headers.put(HEADER, "Bearer " + text);
        }
        return MetadataUtils.newAttachHeadersInterceptor(headers).interceptCall(method, options, next);
    }
}
