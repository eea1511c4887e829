package reasond.examples;

import com.google.protobuf.ByteString;
import java.io.IOException;
import java.time.Duration;
import reasond.ClientSettings;
import reasond.ReasondClient;
import reasond.v1.Check;
import reasond.v1.Fix;
import reasond.v1.RepairServiceGrpc;
import reasond.v1.RepairStepsRequest;
import reasond.v1.RepairTask;
import reasond.v1.ResultFormat;
import reasond.v1.SourceFile;
import reasond.v1.SourceFiles;

/** Has a faulty function mended and prints the patch. It needs a server with [repair] and an environment "python". */
public final class RepairCode {
    private RepairCode() {}

    /**
     * Runs the example.
     *
     * @param arguments none
     * @throws IOException the file of REASOND_CA_FILE cannot be read
     */
    public static void main(String[] arguments) throws IOException {
        var check = Check.newBuilder()
                .setName("sum")
                .addArgv("python3")
                .addArgv("test_calc.py")
                .setFormat(ResultFormat.RESULT_FORMAT_EXIT_CODE);
        var files = SourceFiles.newBuilder()
                .addFiles(file("calc.py", "def add(a, b):\n    return a - b\n"))
                .addFiles(file("test_calc.py", "from calc import add\n\nassert add(2, 3) == 5\n"));
        var task = RepairTask.newBuilder()
                .setDescription("The sum is wrong.")
                .setFix(Fix.getDefaultInstance())
                .setFiles(files)
                .setEnvironment("python")
                .addChecks(check);
        var settings = ClientSettings.fromEnv();
        settings.timeout = Duration.ofHours(1);
        var request = RepairStepsRequest.newBuilder().setTask(task).setKeepRunning(true);
        try (var client = new ReasondClient(settings);
                var events = client.stream(RepairServiceGrpc.getRepairStepsMethod(), request.build())) {
            events.forEach(event -> {
                System.out.println(event.getSequence() + " " + event.getEventCase());
                if (event.hasCompleted()) {
                    System.out.println(event.getCompleted().getFinishReason());
                    System.out.print(event.getCompleted().getPatch());
                }
            });
        }
    }

    private static SourceFile.Builder file(String path, String text) {
        return SourceFile.newBuilder().setPath(path).setContent(ByteString.copyFromUtf8(text));
    }
}
