"""Every error that reasond raises on purpose, with the declaration of each reason.

    ReasondError
    ├── RequestError                  the caller can correct it
    │   ├── InvalidRequestError           INVALID_REQUEST
    │   ├── InvalidConfigError            INVALID_CONFIG
    │   ├── ParseError                    PARSE_ERROR
    │   ├── InvalidJsonRpcError           INVALID_JSONRPC
    │   ├── MethodNotFoundError           METHOD_NOT_FOUND
    │   ├── RequestIdReusedError          REQUEST_ID_REUSED
    │   ├── EtagMismatchError             ETAG_MISMATCH
    │   ├── TurnLeasedError               TURN_LEASED
    │   ├── ToolOutcomeUnknownError       TOOL_OUTCOME_UNKNOWN
    │   ├── ToolNotRegisteredError        TOOL_NOT_REGISTERED
    │   ├── ToolFailedInTurnError         TOOL_FAILED
    │   ├── ToolResultsMissingError       TOOL_RESULTS_MISSING
    │   ├── ToolResultsUnexpectedError    TOOL_RESULTS_UNEXPECTED
    │   ├── HandoffExpiredError           HANDOFF_EXPIRED
    │   ├── TurnNotAwaitingError          TURN_NOT_AWAITING
    │   ├── NotReproducedError            NOT_REPRODUCED
    │   ├── CheckUnusableError            CHECK_UNUSABLE
    │   └── SandboxUnavailableError       SANDBOX_UNAVAILABLE
    ├── StrategyError                 the choice of a strategy
    │   ├── StrategyNotFoundError         STRATEGY_NOT_FOUND
    │   ├── StrategyNotSupportedError     STRATEGY_NOT_SUPPORTED
    │   └── StrategyRequiredError         STRATEGY_REQUIRED
    ├── AccessError                   authentication and permissions
    │   ├── TokenMissingError             TOKEN_MISSING
    │   ├── TokenInvalidError             TOKEN_INVALID
    │   ├── TokenExpiredError             TOKEN_EXPIRED
    │   ├── IssuerUnavailableError        ISSUER_UNAVAILABLE
    │   └── PermissionMissingError        PERMISSION_MISSING
    ├── LimitError                    limits and capacity
    │   ├── RateLimitedError              RATE_LIMITED
    │   ├── TokenBudgetExhaustedError     TOKEN_BUDGET_EXHAUSTED
    │   ├── OverloadedError               OVERLOADED
    │   ├── DrainingError                 DRAINING
    │   ├── SlowConsumerError             SLOW_CONSUMER
    │   ├── StoreFullError                STORE_FULL
    │   └── StoreUnavailableError         STORE_UNAVAILABLE
    ├── LookupFailedError             missing resources
    │   ├── ExecutionNotFoundError        EXECUTION_NOT_FOUND
    │   ├── CursorExpiredError            CURSOR_EXPIRED
    │   ├── AgentNotFoundError            AGENT_NOT_FOUND
    │   ├── TurnNotFoundError             TURN_NOT_FOUND
    │   ├── SessionNotFoundError          SESSION_NOT_FOUND
    │   └── SnapshotNotFoundError         SNAPSHOT_NOT_FOUND
    ├── ModelError                    the language model
    │   ├── ContextExhaustedError         CONTEXT_EXHAUSTED
    │   ├── ModelUnavailableError         MODEL_UNAVAILABLE
    │   ├── ModelRateLimitedError         MODEL_RATE_LIMITED
    │   ├── ModelTimeoutError             MODEL_TIMEOUT
    │   ├── ModelFailedError              MODEL_FAILED
    │   ├── ModelProtocolError            MODEL_PROTOCOL
    │   ├── ContentFilteredError          CONTENT_FILTERED
    │   └── AnswerInvalidError            ANSWER_INVALID
    ├── NotResumableError             NOT_RESUMABLE
    ├── EngineUnavailableError        ENGINE_UNAVAILABLE
    ├── EngineFailedError             ENGINE_FAILED
    ├── InternalError                 INTERNAL
    └── SettingsError                 the operator's configuration; never sent to a caller

The class of a reason declares everything about it, as plain names and numbers. This module imports no transport.
"""

from __future__ import annotations

from typing import Final

from reasond_server import reasons, repair_errors, turn_errors
from reasond_server.reasons import SOON_S, Reason

ReasondError = reasons.ReasondError
RequestError = reasons.RequestError
LookupFailedError = reasons.LookupFailedError
Violation = reasons.Violation
show = reasons.show

EtagMismatchError = turn_errors.EtagMismatchError
TurnLeasedError = turn_errors.TurnLeasedError
ToolOutcomeUnknownError = turn_errors.ToolOutcomeUnknownError
ToolNotRegisteredError = turn_errors.ToolNotRegisteredError
ToolFailedInTurnError = turn_errors.ToolFailedInTurnError
ToolResultsMissingError = turn_errors.ToolResultsMissingError
ToolResultsUnexpectedError = turn_errors.ToolResultsUnexpectedError
HandoffExpiredError = turn_errors.HandoffExpiredError
TurnNotAwaitingError = turn_errors.TurnNotAwaitingError
TurnNotFoundError = turn_errors.TurnNotFoundError
SessionNotFoundError = turn_errors.SessionNotFoundError
SnapshotNotFoundError = repair_errors.SnapshotNotFoundError
NotReproducedError = repair_errors.NotReproducedError
CheckUnusableError = repair_errors.CheckUnusableError
SandboxUnavailableError = repair_errors.SandboxUnavailableError


class InvalidRequestError(RequestError):
    """A field of the request is missing or out of range."""

    declaration = Reason(
        "INVALID_REQUEST",
        "INVALID_ARGUMENT",
        -32602,
        is_bare=True,
        remedy="Mend the fields that the violations name; the same request will fail again.",
    )


class InvalidConfigError(RequestError):
    """The configuration of a strategy is invalid, or exceeds a ceiling of the operator."""

    declaration = Reason(
        "INVALID_CONFIG",
        "INVALID_ARGUMENT",
        -32602,
        is_bare=True,
        remedy="Mend the fields that the violations name. `ListStrategies` has the ranges; an operator can lower them.",
    )


class ParseError(RequestError):
    """The body is not JSON."""

    declaration = Reason(
        "PARSE_ERROR", "INVALID_ARGUMENT", -32700, remedy="Send JSON in UTF-8, without NaN and without lone surrogates."
    )


class InvalidJsonRpcError(RequestError):
    """The body is JSON but not a JSON-RPC request."""

    declaration = Reason(
        "INVALID_JSONRPC",
        "INVALID_ARGUMENT",
        -32600,
        remedy='Send an object, or an array of at most 20, with `"jsonrpc": "2.0"` and a `method`.',
    )


class MethodNotFoundError(RequestError):
    """There is no such JSON-RPC method."""

    declaration = Reason(
        "METHOD_NOT_FOUND", "UNIMPLEMENTED", -32601, remedy="Check the spelling against the list of methods."
    )


class RequestIdReusedError(RequestError):
    """The request id was already used for a different request."""

    declaration = Reason(
        "REQUEST_ID_REUSED",
        "ALREADY_EXISTS",
        remedy="Use a new request id, or send the request that the id stands for.",
    )


class StrategyError(ReasondError):
    """No strategy could be chosen."""


class StrategyNotFoundError(StrategyError):
    """The strategy is unknown or disabled here."""

    declaration = Reason(
        "STRATEGY_NOT_FOUND",
        "NOT_FOUND",
        -32001,
        is_bare=True,
        remedy="Choose one of the strategies that the message lists, or have the operator enable it.",
    )


class StrategyNotSupportedError(StrategyError):
    """The agent does not offer the strategy."""

    declaration = Reason(
        "STRATEGY_NOT_SUPPORTED",
        "FAILED_PRECONDITION",
        -32002,
        is_bare=True,
        remedy="Choose a strategy that the agent offers, or another agent.",
    )


class StrategyRequiredError(StrategyError):
    """No strategy is named at any level."""

    declaration = Reason(
        "STRATEGY_REQUIRED",
        "FAILED_PRECONDITION",
        -32602,
        remedy="Name a strategy in the request, or have the operator set `default_strategy`.",
    )


class AccessError(ReasondError):
    """The caller is not authenticated, or lacks a permission."""


class TokenMissingError(AccessError):
    """The call carries no token."""

    declaration = Reason(
        "TOKEN_MISSING",
        "UNAUTHENTICATED",
        is_bare=True,
        denial="authentication",
        remedy="Send `authorization: Bearer <token>` as metadata or header; JSON-RPC also takes `auth_token`.",
    )


class TokenInvalidError(AccessError):
    """The token is malformed, forged or not meant for this server."""

    declaration = Reason(
        "TOKEN_INVALID",
        "UNAUTHENTICATED",
        is_bare=True,
        denial="authentication",
        remedy="Get a token from this server's issuer; the message says which check failed.",
    )


class TokenExpiredError(AccessError):
    """The token has expired."""

    declaration = Reason(
        "TOKEN_EXPIRED",
        "UNAUTHENTICATED",
        is_bare=True,
        denial="authentication",
        remedy="Get a fresh token and call again.",
    )


class IssuerUnavailableError(AccessError):
    """The keys of the issuer cannot be fetched, so the token cannot be verified; nothing was spent."""

    declaration = Reason(
        "ISSUER_UNAVAILABLE",
        "UNAVAILABLE",
        is_fault=True,
        denial="issuer",
        retry_after_s=SOON_S,
        remedy="Retry after `RetryInfo` with the same token. If it lasts, the operator looks at `[auth] jwks_url`.",
    )


class PermissionMissingError(AccessError):
    """The token lacks a permission."""

    declaration = Reason(
        "PERMISSION_MISSING",
        "PERMISSION_DENIED",
        is_bare=True,
        denial="permission",
        remedy="Ask the issuer for a token with the permission that the message names.",
    )


class LimitError(ReasondError):
    """A limit was reached."""


class RateLimitedError(LimitError):
    """Too many requests."""

    declaration = Reason(
        "RATE_LIMITED",
        "RESOURCE_EXHAUSTED",
        is_quota=True,
        remedy="Wait as long as `RetryInfo` (`retry_after_ms`) says, then retry.",
    )


class TokenBudgetExhaustedError(LimitError):
    """The budget does not cover the next model call."""

    declaration = Reason(
        "TOKEN_BUDGET_EXHAUSTED",
        "RESOURCE_EXHAUSTED",
        is_quota=True,
        remedy="Raise the budget or shorten the task. Waiting helps only where `RetryInfo` is present.",
    )


class OverloadedError(LimitError):
    """The maximum number of executions is running; nothing was spent."""

    declaration = Reason(
        "OVERLOADED",
        "UNAVAILABLE",
        is_fault=True,
        denial="overload",
        retry_after_s=SOON_S,
        remedy="Retry after `RetryInfo`; nothing was spent.",
    )


class DrainingError(LimitError):
    """The server is shutting down; nothing was spent."""

    declaration = Reason(
        "DRAINING",
        "UNAVAILABLE",
        is_fault=True,
        denial="draining",
        retry_after_s=SOON_S,
        remedy="Retry after `RetryInfo`, which reaches another server or the restarted one; nothing was spent.",
    )


class SlowConsumerError(LimitError):
    """The client read its stream too slowly."""

    declaration = Reason(
        "SLOW_CONSUMER",
        "RESOURCE_EXHAUSTED",
        remedy="Resume with the execution id and the last sequence that you handled, and read faster.",
    )


class StoreFullError(LimitError):
    """The store has no room for another execution."""

    declaration = Reason(
        "STORE_FULL",
        "RESOURCE_EXHAUSTED",
        denial="store",
        remedy="Delete executions that are no longer needed, or have the operator raise the limits under `[store]`.",
    )


class StoreUnavailableError(LimitError):
    """The store cannot be reached; nothing was spent."""

    declaration = Reason(
        "STORE_UNAVAILABLE",
        "UNAVAILABLE",
        is_fault=True,
        denial="store",
        retry_after_s=SOON_S,
        remedy="Retry after `RetryInfo`; nothing was spent. If it lasts, the operator looks at the store.",
    )


class ExecutionNotFoundError(LookupFailedError):
    """There is no such execution for this caller."""

    declaration = Reason(
        "EXECUTION_NOT_FOUND",
        "NOT_FOUND",
        remedy="Check the id and the token's subject; executions are forgotten when their retention ends.",
    )


class CursorExpiredError(LookupFailedError):
    """The log of the execution is no longer stored."""

    declaration = Reason(
        "CURSOR_EXPIRED", "OUT_OF_RANGE", remedy="Start the task again; the events after the cursor are no longer kept."
    )


class AgentNotFoundError(LookupFailedError):
    """There is no such agent for this caller."""

    declaration = Reason(
        "AGENT_NOT_FOUND",
        "NOT_FOUND",
        remedy="Check the name against `ListAgents`; registrations end with their time to live.",
    )


class ModelError(ReasondError):
    """The language model failed."""


class ContextExhaustedError(ModelError):
    """The task does not fit the model's context."""

    declaration = Reason(
        "CONTEXT_EXHAUSTED",
        "FAILED_PRECONDITION",
        remedy="Shorten the query, raise the window, or put the long text into `material`.",
    )


class ModelUnavailableError(ModelError):
    """The model cannot be reached; nothing was spent."""

    declaration = Reason(
        "MODEL_UNAVAILABLE",
        "UNAVAILABLE",
        is_fault=True,
        remedy="Retry; nothing was spent. If it lasts, the operator checks `[llm]`.",
    )


class ModelRateLimitedError(ModelError):
    """The model's provider refused the call for now; nothing was spent."""

    declaration = Reason(
        "MODEL_RATE_LIMITED",
        "RESOURCE_EXHAUSTED",
        is_quota=True,
        remedy="Wait as long as `RetryInfo` says, then retry; nothing was spent.",
    )


class ModelTimeoutError(ModelError):
    """The model did not begin to answer in time; nothing was spent."""

    declaration = Reason(
        "MODEL_TIMEOUT", "DEADLINE_EXCEEDED", is_fault=True, remedy="Retry with a longer deadline; nothing was spent."
    )


UNSPENT: Final = (ModelUnavailableError, ModelRateLimitedError, ModelTimeoutError, ContextExhaustedError)
"""The errors that a model raises before its first text: the call was refused, and costs nothing."""


class ModelFailedError(ModelError):
    """The model failed after tokens were spent."""

    declaration = Reason(
        "MODEL_FAILED",
        "ABORTED",
        is_fault=True,
        remedy="Read the partial result with `GetExecution`, then decide whether to pay for another attempt.",
    )


class ModelProtocolError(ModelError):
    """The model's provider broke its own protocol."""

    declaration = Reason(
        "MODEL_PROTOCOL",
        "INTERNAL",
        is_fault=True,
        remedy="Report it to the operator: the endpoint does not speak the protocol it claims.",
    )


class ContentFilteredError(ModelError):
    """The model's provider withheld the text."""

    declaration = Reason(
        "CONTENT_FILTERED", "FAILED_PRECONDITION", remedy="Rephrase the task; the same one will be withheld again."
    )


class AnswerInvalidError(ModelError):
    """The answer does not satisfy the schema of the task, not even after a correction."""

    declaration = Reason(
        "ANSWER_INVALID", "FAILED_PRECONDITION", remedy="Simplify the schema, or take a stronger model."
    )


class NotResumableError(ReasondError):
    """The server that ran the execution stopped, and no other server can resume it."""

    declaration = Reason(
        "NOT_RESUMABLE",
        "ABORTED",
        is_fault=True,
        remedy="Read what was done (`GetExecution`), then start the task again, with another request id if it had one.",
    )


class InternalError(ReasondError):
    """A fault of the server; its cause is in the log under the request id."""


class SettingsError(ReasondError):
    """The operator's configuration is invalid; raised at start-up and by `reasond config`."""

    reason = "INVALID_CONFIG"


_MODULES: Final = frozenset({__name__, reasons.__name__, repair_errors.__name__, turn_errors.__name__})


def error_of(reason: str, message: str) -> ReasondError:
    """Return an error of the class of `reason`, for an error stored with an execution: waiting does not help."""
    error = error_classes().get(reason, InternalError)(message)
    error.retry_after_s = None
    return error


def error_classes() -> dict[str, type[ReasondError]]:
    """Return the class of each reason, in the order of the tree above."""
    return {kind.reason: kind for kind in _leaves(ReasondError) if kind is not SettingsError}


def _leaves(base: type[ReasondError]) -> list[type[ReasondError]]:
    """Return the declared subclasses of `base` that have no subclasses."""
    below = [one for one in base.__subclasses__() if one.__module__ in _MODULES]
    return [leaf for one in below for leaf in _leaves(one)] if below else [base]
