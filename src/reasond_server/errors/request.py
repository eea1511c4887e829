"""The caller can correct the request: its form, its strategy, what it names."""

from __future__ import annotations

from reasond_server.errors.base import LookupFailedError, Reason, ReasondError, RequestError


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


class AgentNotFoundError(LookupFailedError):
    """There is no such agent for this caller."""

    declaration = Reason(
        "AGENT_NOT_FOUND",
        "NOT_FOUND",
        remedy="Check the name against `ListAgents`; registrations end with their time to live.",
    )
