"""All errors together: the class of each reason."""

from __future__ import annotations

from typing import Final

from reasond_server.errors import access, executions, limits, model, repairs, request, turns
from reasond_server.errors.base import InternalError, ReasondError

BRANCHES: Final = (request, access, limits, executions, model, turns, repairs)


def build_error(reason: str, message: str) -> ReasondError:
    """Return an error of the class of `reason`, for an error stored with an execution: waiting does not help."""
    error = list_error_classes().get(reason, InternalError)(message)
    error.retry_after_s = None
    return error


def list_error_classes() -> dict[str, type[ReasondError]]:
    """Return the class of each reason, branch by branch, in the order of their files."""
    declared: list[type[ReasondError]] = [
        kind
        for branch in BRANCHES
        for kind in vars(branch).values()
        if isinstance(kind, type) and issubclass(kind, ReasondError) and kind.__module__ == branch.__name__
    ]
    return {kind.reason: kind for kind in declared if "declaration" in vars(kind)} | {"INTERNAL": InternalError}
