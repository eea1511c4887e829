"""Make docs/api/errors.md: every reason with its meaning (errors.proto), its codes and the remedy (errors.py)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.errors.reasons import list_error_classes
from scripts.pages import cell, page, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.errors.base import Reason
    from scripts.protos import ProtoFile

PATH = Path("docs") / "api" / "errors.md"
ENUM = "ErrorReason"
PREFIX = "ERROR_REASON_"
UNSET = "UNSPECIFIED"
JSONRPC_ONLY = {"PARSE_ERROR", "INVALID_JSONRPC", "METHOD_NOT_FOUND"}

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


def error_row(reason: Reason, meaning: str) -> list[str]:
    """Return the row of one reason."""
    grpc_status = "none" if reason.name in JSONRPC_ONLY else f"`{reason.grpc_status}`"
    text = "bare" if reason.is_bare else ""
    return [f"`{reason.name}`", grpc_status, str(reason.jsonrpc_code), text, cell(meaning), cell(reason.remedy)]


def list_declared() -> list[Reason]:
    """Return the reasons that errors.py declares."""
    return [kind.declaration for kind in list_error_classes().values()]


def content(files: Sequence[ProtoFile], reasons: Sequence[Reason]) -> str:
    """Return the page.

    Raises:
      KeyError: a reason is missing in errors.proto or not declared in errors.py.
    """
    by_name = {reason.name: reason for reason in reasons}
    described = meanings(files)
    if unknown := by_name.keys() - described.keys():
        raise KeyError(*sorted(unknown))
    cells = [error_row(by_name[name], meaning) for name, meaning in described.items()]
    head = ["reason", "gRPC", "JSON-RPC", "text", "meaning", "what to do"]
    return page("Errors", "errors.proto and errors.py", [*INTRODUCTION.splitlines(), "", *table(head, cells)])
