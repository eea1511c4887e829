import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.BooleanSupplier;

/** Checks Range without a library, and writes a report in the form of JUnit. */
final class RangeTest {
    private static final StringBuilder CASES = new StringBuilder();
    private static int failures;

    public static void main(String[] arguments) throws IOException {
        if (arguments.length > 1) {
            check("empty", () -> new Range(3, 2).size() == 0 && !new Range(3, 2).contains(2));
            check("single", () -> new Range(7, 7).contains(7));
        } else {
            check("low", () -> new Range(2, 5).contains(2));
            check("high", () -> new Range(2, 5).contains(5));
            check("size", () -> new Range(2, 5).size() == 4);
        }
        Files.writeString(Path.of(arguments[0]), "<testsuite name=\"Range\">" + CASES + "</testsuite>");
        System.exit(failures == 0 ? 0 : 1);
    }

    private static void check(String name, BooleanSupplier holds) {
        CASES.append("<testcase classname=\"RangeTest\" name=\"").append(name).append("\">");
        if (!holds.getAsBoolean()) {
            failures++;
            CASES.append("<failure message=\"").append(name).append(" does not hold\"/>");
        }
        CASES.append("</testcase>");
    }
}
