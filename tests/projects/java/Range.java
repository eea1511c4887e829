/** Whole numbers from low to high, both included. */
final class Range {
    private final int low;
    private final int high;

    Range(int low, int high) {
        this.low = low;
        this.high = high;
    }

    boolean contains(int value) {
        return low <= value && value < high;
    }

    int size() {
        return high - low + 1;
    }
}
