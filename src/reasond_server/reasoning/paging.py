"""Page tokens of lists of executions: opaque to clients, bound to their filter, checked when they return."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from pydantic_core import from_json, to_json

from reasond_server.errors import InvalidRequestError, Violation

if TYPE_CHECKING:
    from reasond_server.logs.store import ExecutionFilter
    from reasond_server.types import Execution


def token_after(execution: Execution, wanted: ExecutionFilter) -> str:
    """Return the token of the page that begins after `execution`."""
    place = [execution.create_time.timestamp(), execution.execution_id, wanted.strategy, wanted.finish_reason]
    return base64.urlsafe_b64encode(to_json(place)).decode()


def place_of(token: str, wanted: ExecutionFilter) -> tuple[float, str]:
    """Return the place (create time, id) that `token` stands for.

    Raises:
        InvalidRequestError: it is not a token of ours, or it was made for another filter.
    """
    try:
        match from_json(base64.b64decode(token, altchars=b"-_", validate=True)):
            case [float(time), str(execution_id), strategy, finish_reason] if (
                strategy == wanted.strategy and finish_reason == wanted.finish_reason
            ):
                return time, execution_id
    except (ValueError, binascii.Error):
        pass
    text = "must be the next_page_token of the page before, with the same filters"
    raise InvalidRequestError.of(Violation(field="page_token", description=text))
