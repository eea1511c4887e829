"""Make docs/api/errors.md: every reason with its meaning (errors.proto), its codes (wire.errors) and the remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.wire.errors import ERROR_ROWS
from scripts.pages import cell, page, table, write_or_check
from scripts.protos import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.wire.errors import ErrorRow
    from scripts.protos import ProtoFile

PATH = Path("docs") / "api" / "errors.md"
ENUM = "ErrorReason"
PREFIX = "ERROR_REASON_"
UNSET = "UNSPECIFIED"
JSONRPC_ONLY = {"PARSE_ERROR", "INVALID_JSONRPC", "METHOD_NOT_FOUND"}

REMEDIES = {
    "INVALID_REQUEST": "Mend the fields that the violations name; the same request will fail again.",
    "INVALID_CONFIG": "Mend the fields that the violations name. `ListStrategies` returns each strategy's schema with "
    "its ranges; a ceiling below the range was set by the operator.",
    "PARSE_ERROR": "Send JSON in UTF-8, without NaN and without lone surrogates.",
    "INVALID_JSONRPC": 'Send an object, or an array of at most 20, with `"jsonrpc": "2.0"` and a `method`.',
    "METHOD_NOT_FOUND": "Check the spelling against the list of methods.",
    "STRATEGY_NOT_FOUND": "Choose one of the strategies that the message lists, or have the operator enable it.",
    "STRATEGY_NOT_SUPPORTED": "Choose a strategy that the agent offers, or another agent.",
    "STRATEGY_REQUIRED": "Name a strategy in the request, or have the operator set `default_strategy`.",
    "TOKEN_MISSING": "Send `authorization: Bearer <token>` as metadata or header; JSON-RPC also takes `auth_token`.",
    "TOKEN_INVALID": "Get a token from this server's issuer; the message says which check failed.",
    "TOKEN_EXPIRED": "Get a fresh token and call again.",
    "PERMISSION_MISSING": "Ask the issuer for a token with the permission that the message names.",
    "RATE_LIMITED": "Wait as long as `RetryInfo` (`retry_after_ms`) says, then retry.",
    "TOKEN_BUDGET_EXHAUSTED": "Raise the budget or shorten the task. Waiting helps only where `RetryInfo` is present.",
    "OVERLOADED": "Retry after `RetryInfo`; nothing was spent.",
    "DRAINING": "Retry after `RetryInfo`, which reaches another server or the restarted one; nothing was spent.",
    "STORE_UNAVAILABLE": "Retry after `RetryInfo`; nothing was spent. If it lasts, the operator looks at the store.",
    "SLOW_CONSUMER": "Resume with the execution id and the last sequence that you handled, and read faster.",
    "STORE_FULL": "Delete executions that are no longer needed, or have the operator raise the limits under `[store]`.",
    "CONTEXT_EXHAUSTED": "Shorten the query, raise the window, or put the long text into `material`.",
    "MODEL_UNAVAILABLE": "Retry; nothing was spent. If it lasts, the operator checks `[llm]`.",
    "MODEL_RATE_LIMITED": "Wait as long as `RetryInfo` says, then retry; nothing was spent.",
    "MODEL_TIMEOUT": "Retry with a longer deadline; nothing was spent.",
    "MODEL_FAILED": "Read the partial result with `GetExecution`, then decide whether to pay for another attempt.",
    "MODEL_PROTOCOL": "Report it to the operator: the endpoint does not speak the protocol it claims.",
    "CONTENT_FILTERED": "Rephrase the task; the same one will be withheld again.",
    "REQUEST_ID_REUSED": "Use a new request id, or send the request that the id stands for.",
    "ETAG_MISMATCH": "Read the resource again, apply the change to it, and send its new etag.",
    "TURN_LEASED": "Wait for the other caller to finish, or follow the turn instead of starting it.",
    "TOOL_OUTCOME_UNKNOWN": "Find out whether the tool ran, then say so; it is never run again by itself.",
    "EXECUTION_NOT_FOUND": "Check the id and the token's subject; executions are forgotten when their retention ends.",
    "CURSOR_EXPIRED": "Start the task again; the events after the cursor are no longer kept.",
    "AGENT_NOT_FOUND": "Check the name against `ListAgents`; registrations end with their time to live.",
    "INTERNAL": "Give the operator the request id; the cause stands in the server's log under it.",
}

INTRODUCTION = """\
Every gRPC error carries `google.rpc.ErrorInfo` with the domain `reasond` and one of these reasons. JSON-RPC
carries the same word in `error.data.reason`, and the gRPC code in `error.data.grpc_code`. Fields that are wrong stand
in `google.rpc.BadRequest` and in `error.data.violations`; how long to wait stands in `google.rpc.RetryInfo` and in
`error.data.retry_after_ms`, only where waiting helps. Programs should branch on the reason: messages may change.

gRPC messages say what is wrong and what to do. So do JSON-RPC messages, except where the text column says "bare":
there the message is only what is wrong, in a fixed form, and what to do stands in `error.data.remedy`.
"""


def meanings(files: Sequence[ProtoFile]) -> dict[str, str]:
    """Return reason -> comment of errors.proto, in its order."""
    enum = next(enum for file in files for enum in file.enums if enum.name == ENUM)
    reasons = {value.name.removeprefix(PREFIX): value.comment for value in enum.values}
    return {reason: comment for reason, comment in reasons.items() if reason != UNSET}


def error_row(row: ErrorRow, meaning: str, remedy: str) -> list[str]:
    """Return the row of one reason."""
    grpc_status = "none" if row.reason in JSONRPC_ONLY else f"`{row.grpc_status}`"
    text = "bare" if row.is_bare else "full"
    return [f"`{row.reason}`", grpc_status, str(row.jsonrpc_code), text, cell(meaning), cell(remedy)]


def content(files: Sequence[ProtoFile], rows: Sequence[ErrorRow]) -> str:
    """Return the page.

    Raises:
        KeyError: a reason is missing in errors.proto, in the error table or among the remedies.
    """
    by_reason = {row.reason: row for row in rows}
    described = meanings(files)
    if unknown := (by_reason.keys() | REMEDIES.keys()) - described.keys():
        raise KeyError(*sorted(unknown))
    cells = [error_row(by_reason[reason], meaning, REMEDIES[reason]) for reason, meaning in described.items()]
    head = ["reason", "gRPC", "JSON-RPC", "text", "meaning", "what to do"]
    return page("Errors", "errors.proto and wire/errors.py", [*INTRODUCTION.splitlines(), "", *table(head, cells)])


if __name__ == "__main__":
    sys.exit(write_or_check({PATH: content(read(), ERROR_ROWS)}, description=__doc__ or ""))
