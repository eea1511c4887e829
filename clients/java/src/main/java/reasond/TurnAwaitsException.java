package reasond;

import reasond.v1.Turn;

/** A turn waits for calls that nothing here settles; {@link ReasondClient#resumeTurn} goes on with it. */
public final class TurnAwaitsException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** The turn that waits, with its pending calls. */
    public final transient Turn turn;

    TurnAwaitsException(Turn turn) {
        super("turn " + turn.getTurnId() + " waits for calls that are not all settled here; "
                + "give what settles them to resumeTurn");
        this.turn = turn;
    }
}
