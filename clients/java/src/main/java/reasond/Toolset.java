package reasond;

import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import reasond.v1.Decision;
import reasond.v1.PendingCall;
import reasond.v1.Turn;
import reasond.v1.TurnReentry;

/**
 * What settles the pending calls of a turn.
 *
 * @param functions the functions that the model may call, by name
 * @param approve decides on calls of the server's tools that wait for an approval; the id of the call is filled in. Null
 *     if there is nothing to approve
 * @param resolve says what a call returned whose outcome was lost, as a value that is written as JSON; may be null
 */
public record Toolset(
        Map<String, ClientFunction<?>> functions,
        Function<PendingCall, Decision> approve,
        Function<PendingCall, ?> resolve) {

    /**
     * Makes a toolset of functions.
     *
     * @param functions the functions, with different names
     * @return the toolset
     */
    public static Toolset of(ClientFunction<?>... functions) {
        return new Toolset(
                Stream.of(functions).collect(Collectors.toMap(ClientFunction::name, each -> each)), null, null);
    }

    /**
     * Settles all pending calls of a turn that waits, in their order. Nothing is sent.
     *
     * @param turn the turn
     * @return what goes on with the turn
     * @throws TurnAwaitsException nothing settles a call; no function has run then
     */
    public TurnReentry settle(Turn turn) {
        var handoff = turn.getHandoff();
        if (!handoff.getCallsList().stream().allMatch(this::canSettle)) {
            throw new TurnAwaitsException(turn);
        }
        var reentry = TurnReentry.newBuilder().setTurnId(turn.getTurnId()).setEtag(handoff.getEtag());
        for (var pending : handoff.getCallsList()) {
            var call = pending.getCall();
            switch (pending.getKind()) {
                case CALL_KIND_APPROVE ->
                    reentry.addDecisions(approve.apply(pending).toBuilder().setCallId(call.getCallId()));
                case CALL_KIND_RESOLVE -> reentry.addResults(ClientFunction.result(pending, resolve.apply(pending)));
                default -> reentry.addResults(functions.get(call.getTool()).run(pending));
            }
        }
        return reentry.build();
    }

    private boolean canSettle(PendingCall pending) {
        return switch (pending.getKind()) {
            case CALL_KIND_APPROVE -> approve != null;
            case CALL_KIND_RESOLVE -> resolve != null;
            default -> functions.containsKey(pending.getCall().getTool());
        };
    }
}
