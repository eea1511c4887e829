package reasond;

import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/** The settings of a client. */
public final class ClientSettings {
    private static final int MAX_MESSAGE_BYTES = 4 * 1024 * 1024;
    private static final Map<String, Boolean> SWITCHES = Map.of(
            "1", true, "true", true, "yes", true, "on", true, "0", false, "false", false, "no", false, "off", false);
    private static final Pattern LOCAL = Pattern.compile(
            "unix:.*|(?:(?:dns|passthrough):(?://[^/]*/)?)?(?:localhost|127(?:\\.\\d{1,3}){3}|\\[::1])(?::\\d+)?",
            Pattern.CASE_INSENSITIVE);

    /** The server: {@code host:port}, or {@code dns:///host:port}, which spreads calls over all addresses. */
    public String target = "127.0.0.1:50051";

    /** The token that is sent with every call, without "Bearer"; empty for none. */
    public String token = "";

    /**
     * Asked for the token before each call, and once more when the server says that it has expired; null if the token is
     * fixed. What it throws, the call throws.
     */
    public Supplier<String> tokenProvider;

    /** Turns TLS on: {@link TlsChannelCredentials#create} for the root certificates of Java, or its builder's. */
    public ChannelCredentials credentials = InsecureChannelCredentials.create();

    /** The default deadline of each call, for a stream of the whole stream; at most a hundred years. */
    public Duration timeout = Duration.ofSeconds(120);

    /** Allows a token for another machine without TLS, for networks with encryption of their own. */
    public boolean allowsPlaintextToken;

    /**
     * Reads REASOND_TARGET, _TOKEN, _TLS, _CA_FILE, _TIMEOUT_S and _ALLOW_PLAINTEXT_TOKEN.
     *
     * @return the settings
     * @throws IllegalArgumentException a variable is invalid
     * @throws IOException the file of REASOND_CA_FILE cannot be read
     */
    public static ClientSettings fromEnv() throws IOException {
        var settings = new ClientSettings();
        settings.target = read("REASOND_TARGET", settings.target);
        settings.token = read("REASOND_TOKEN", "");
        var seconds = read("REASOND_TIMEOUT_S", "120").replaceFirst("(?i)^inf$", "Infinity");
        try {
            settings.timeout = Duration.ofNanos((long) (Double.parseDouble(seconds) * 1e9));
        } catch (IllegalArgumentException error) {
            throw new IllegalArgumentException("REASOND_TIMEOUT_S must be seconds above 0, not " + seconds, error);
        }
        settings.allowsPlaintextToken = isOn("REASOND_ALLOW_PLAINTEXT_TOKEN", "off");
        var file = read("REASOND_CA_FILE", "");
        if (isOn("REASOND_TLS", file.isEmpty() ? "off" : "on")) {
            var tls = TlsChannelCredentials.newBuilder();
            settings.credentials = (file.isEmpty() ? tls : tls.trustManager(new File(file))).build();
        } else if (!file.isEmpty()) {
            throw new IllegalArgumentException(
                    "REASOND_CA_FILE is set but REASOND_TLS turns TLS off; unset one of them");
        }
        return settings;
    }

    private static String read(String name, String otherwise) {
        var value = System.getenv().getOrDefault(name, "").strip();
        return value.isEmpty() ? otherwise : value;
    }

    private static boolean isOn(String name, String otherwise) {
        var isOn = SWITCHES.get(read(name, otherwise).toLowerCase(Locale.ROOT));
        if (isOn == null) {
            throw new IllegalArgumentException(name + " must be one of " + SWITCHES.keySet());
        }
        return isOn;
    }

    Authorization authorization() {
        return new Authorization(tokenProvider == null ? () -> token : tokenProvider, tokenProvider != null);
    }

    /** Makes the channel of a client: retries, keepalive and limits. */
    ManagedChannel open() {
        boolean isLocal = LOCAL.matcher(target).matches();
        boolean hasToken = tokenProvider != null || !token.isEmpty();
        boolean isPlaintext = credentials instanceof InsecureChannelCredentials && !isLocal && !allowsPlaintextToken;
        if (hasToken && isPlaintext) {
            throw new IllegalArgumentException(
                    "the token would cross the network in plain text to " + target
                            + ": set TLS credentials, or allowsPlaintextToken where something else encrypts (a mesh, a tunnel)");
        }
        var builder = Grpc.newChannelBuilder(target, credentials)
                .userAgent("reasond-java")
                .keepAliveTime(30, TimeUnit.SECONDS)
                .keepAliveTimeout(10, TimeUnit.SECONDS)
                .maxInboundMessageSize(MAX_MESSAGE_BYTES)
                // a request larger than this buffer (default 1 MiB) is never retried
                .perRpcBufferLimit(MAX_MESSAGE_BYTES)
                .enableRetry()
                .defaultServiceConfig(serviceConfig(target.startsWith("dns:")));
        return (isLocal ? builder.proxyDetector(address -> null) : builder).build();
    }

    /** Reads proto/reasond.service_config.json; only a target with many addresses is balanced and looks at health. */
    private static Map<String, Object> serviceConfig(boolean isBalanced) {
        try (var file = ClientSettings.class.getResourceAsStream("reasond.service_config.json")) {
            var text = new InputStreamReader(file, StandardCharsets.UTF_8);
            // Numbers become Double, which is what gRPC takes.
            var config = new Gson().fromJson(text, new TypeToken<Map<String, Object>>() {});
            if (!isBalanced) {
                config.keySet().removeAll(Set.of("loadBalancingConfig", "healthCheckConfig"));
            }
            return config;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
