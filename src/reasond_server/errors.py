"""Every error that reasond raises on purpose; knows no status code of any wire.

    ReasondError
    ├── RequestError                  the caller can mend it
    │   ├── InvalidRequestError           INVALID_REQUEST
    │   ├── InvalidConfigError            INVALID_CONFIG
    │   ├── ParseError                    PARSE_ERROR
    │   ├── InvalidJsonRpcError           INVALID_JSONRPC
    │   ├── MethodNotFoundError           METHOD_NOT_FOUND
    │   ├── RequestIdReusedError          REQUEST_ID_REUSED
    │   ├── EtagMismatchError             ETAG_MISMATCH
    │   ├── TurnLeasedError               TURN_LEASED
    │   └── ToolOutcomeUnknownError       TOOL_OUTCOME_UNKNOWN
    ├── StrategyError                 the choice of a strategy
    │   ├── StrategyNotFoundError         STRATEGY_NOT_FOUND
    │   ├── StrategyNotSupportedError     STRATEGY_NOT_SUPPORTED
    │   └── StrategyRequiredError         STRATEGY_REQUIRED
    ├── AccessError                   who may
    │   ├── TokenMissingError             TOKEN_MISSING
    │   ├── TokenInvalidError             TOKEN_INVALID
    │   ├── TokenExpiredError             TOKEN_EXPIRED
    │   └── PermissionMissingError        PERMISSION_MISSING
    ├── LimitError                    how much
    │   ├── RateLimitedError              RATE_LIMITED
    │   ├── TokenBudgetExhaustedError     TOKEN_BUDGET_EXHAUSTED
    │   ├── OverloadedError               OVERLOADED
    │   ├── DrainingError                 DRAINING
    │   ├── SlowConsumerError             SLOW_CONSUMER
    │   ├── StoreFullError                STORE_FULL
    │   └── StoreUnavailableError         STORE_UNAVAILABLE
    ├── LookupFailedError             what is not there
    │   ├── ExecutionNotFoundError        EXECUTION_NOT_FOUND
    │   ├── CursorExpiredError            CURSOR_EXPIRED
    │   └── AgentNotFoundError            AGENT_NOT_FOUND
    ├── ModelError                    the language model
    │   ├── ContextExhaustedError         CONTEXT_EXHAUSTED
    │   ├── ModelUnavailableError         MODEL_UNAVAILABLE
    │   ├── ModelRateLimitedError         MODEL_RATE_LIMITED
    │   ├── ModelTimeoutError             MODEL_TIMEOUT
    │   ├── ModelFailedError              MODEL_FAILED
    │   ├── ModelProtocolError            MODEL_PROTOCOL
    │   └── ContentFilteredError          CONTENT_FILTERED
    ├── InternalError                 INTERNAL
    └── SettingsError                 the operator's configuration; never crosses a wire

`reason` is the name of a value of `ErrorReason` in proto/reasond/v1/errors.proto without its prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_MAX_SHOWN_CHARACTERS = 120


def _without_user(text: str) -> str:
    """Return `text` without user and password, where it is a URL that has them."""
    scheme, found, rest = text.partition("://")
    place = rest.rfind("@")
    return f"{scheme}://***{rest[place:]}" if found and place >= 0 and not any(map(str.isspace, rest[:place])) else text


def shown(value: object) -> str:
    """Return `value` as error messages show it: `repr`, at most 120 characters, no control characters.

    What stands before the host of a URL is left out: it may be a password.
    """
    if isinstance(value, str):
        value = _without_user(value)
    if isinstance(value, str) and len(value) > _MAX_SHOWN_CHARACTERS:
        value = value[:_MAX_SHOWN_CHARACTERS]
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that is wrong with a request: the path of the field and what would be right."""

    field: str
    description: str


class ReasondError(Exception):
    """Base of all errors; `message` says what is wrong, `remedy` what to do about it.

    `metadata` holds limits and names for programs. `retry_after_s` (seconds) is set only where waiting
    helps. `execution_id` names the execution whose partial result was kept.
    """

    reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        violations: Sequence[Violation] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s
        self.execution_id: str | None = None

    def again(self) -> Self:
        """Return an error that says the same and was never raised: one that was keeps alive what its frames hold."""
        error = type(self).__new__(type(self), *self.args)
        error.__dict__.update(self.__dict__)
        return error

    @property
    def full_message(self) -> str:
        """What is wrong and what to do, as one text."""
        return f"{self.message.rstrip('.')}. {self.remedy}" if self.remedy else self.message


class RequestError(ReasondError):
    """The request as such is wrong."""

    @classmethod
    def of(cls, *violations: Violation) -> Self:
        """Make the error that lists `violations`; programs match on how its message begins."""
        text = "; ".join(f"{violation.field} {violation.description}".strip() for violation in violations)
        return cls(f"Request validation failed: {text}", violations=violations)


class InvalidRequestError(RequestError):
    """A field of the request is missing or out of range."""

    reason = "INVALID_REQUEST"


class InvalidConfigError(RequestError):
    """The configuration of a strategy is not valid, or above a ceiling of the operator."""

    reason = "INVALID_CONFIG"


class ParseError(RequestError):
    """The body is not JSON."""

    reason = "PARSE_ERROR"


class InvalidJsonRpcError(RequestError):
    """The body is JSON but not a JSON-RPC request."""

    reason = "INVALID_JSONRPC"


class MethodNotFoundError(RequestError):
    """There is no such JSON-RPC method."""

    reason = "METHOD_NOT_FOUND"


class RequestIdReusedError(RequestError):
    """The request id stands for another request already."""

    reason = "REQUEST_ID_REUSED"


class EtagMismatchError(RequestError):
    """The resource changed since its etag was read."""

    reason = "ETAG_MISMATCH"


class TurnLeasedError(RequestError):
    """Another caller is working on the turn."""

    reason = "TURN_LEASED"


class ToolOutcomeUnknownError(RequestError):
    """It is not known whether a tool ran; a person has to decide."""

    reason = "TOOL_OUTCOME_UNKNOWN"


class StrategyError(ReasondError):
    """No strategy could be chosen."""


class StrategyNotFoundError(StrategyError):
    """The strategy is unknown or disabled here."""

    reason = "STRATEGY_NOT_FOUND"


class StrategyNotSupportedError(StrategyError):
    """The agent does not offer the strategy."""

    reason = "STRATEGY_NOT_SUPPORTED"


class StrategyRequiredError(StrategyError):
    """No strategy is named at any level."""

    reason = "STRATEGY_REQUIRED"


class AccessError(ReasondError):
    """The caller may not."""


class TokenMissingError(AccessError):
    """The call carries no token."""

    reason = "TOKEN_MISSING"


class TokenInvalidError(AccessError):
    """The token is malformed, forged or not meant for this server."""

    reason = "TOKEN_INVALID"


class TokenExpiredError(AccessError):
    """The token has expired."""

    reason = "TOKEN_EXPIRED"


class PermissionMissingError(AccessError):
    """The token lacks a permission."""

    reason = "PERMISSION_MISSING"


class LimitError(ReasondError):
    """A limit was reached."""


class RateLimitedError(LimitError):
    """Too many requests."""

    reason = "RATE_LIMITED"


class TokenBudgetExhaustedError(LimitError):
    """The budget does not cover the next model call."""

    reason = "TOKEN_BUDGET_EXHAUSTED"


class OverloadedError(LimitError):
    """As many executions run as may; nothing was spent."""

    reason = "OVERLOADED"


class DrainingError(LimitError):
    """The server is shutting down; nothing was spent."""

    reason = "DRAINING"


class SlowConsumerError(LimitError):
    """The client read its stream too slowly."""

    reason = "SLOW_CONSUMER"


class StoreFullError(LimitError):
    """The store has no room for another execution."""

    reason = "STORE_FULL"


class StoreUnavailableError(LimitError):
    """The store cannot be reached; nothing was spent."""

    reason = "STORE_UNAVAILABLE"


class LookupFailedError(ReasondError):
    """Something that was asked for is not there."""


class ExecutionNotFoundError(LookupFailedError):
    """There is no such execution for this caller."""

    reason = "EXECUTION_NOT_FOUND"


class CursorExpiredError(LookupFailedError):
    """The log of the execution is no longer kept."""

    reason = "CURSOR_EXPIRED"


class AgentNotFoundError(LookupFailedError):
    """There is no such agent for this caller."""

    reason = "AGENT_NOT_FOUND"


class ModelError(ReasondError):
    """The language model did not do its part."""


class ContextExhaustedError(ModelError):
    """The task does not fit the model's context."""

    reason = "CONTEXT_EXHAUSTED"


class ModelUnavailableError(ModelError):
    """The model cannot be reached; nothing was spent."""

    reason = "MODEL_UNAVAILABLE"


class ModelRateLimitedError(ModelError):
    """The model's provider refused for now; nothing was spent."""

    reason = "MODEL_RATE_LIMITED"


class ModelTimeoutError(ModelError):
    """The model did not begin to answer in time; nothing was spent."""

    reason = "MODEL_TIMEOUT"


UNSPENT: Final = (ModelUnavailableError, ModelRateLimitedError, ModelTimeoutError, ContextExhaustedError)
"""What a model raises in place of its first text: the call was refused, and nothing is owed for it."""


class ModelFailedError(ModelError):
    """The model failed after tokens were spent."""

    reason = "MODEL_FAILED"


class ModelProtocolError(ModelError):
    """The model's provider broke its own protocol."""

    reason = "MODEL_PROTOCOL"


class ContentFilteredError(ModelError):
    """The model's provider withheld the text."""

    reason = "CONTENT_FILTERED"


class InternalError(ReasondError):
    """A fault of the server; its cause is in the log under the request id."""

    reason = "INTERNAL"


class SettingsError(ReasondError):
    """The operator's configuration is wrong; raised at start-up and by `reasond config`."""

    reason = "INVALID_CONFIG"


def error_of(reason: str, message: str) -> ReasondError:
    """Return an error of the class that `reason` names, as it was kept with an execution."""
    classes = {one.reason: one for one in _leaves(ReasondError) if one is not SettingsError}
    return classes.get(reason, InternalError)(message)


def _leaves(base: type[ReasondError]) -> list[type[ReasondError]]:
    """Return the classes of this module below `base` that have none below themselves."""
    below = [one for one in base.__subclasses__() if one.__module__ == __name__]
    return [leaf for one in below for leaf in _leaves(one)] if below else [base]
