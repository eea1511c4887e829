"""`POST /api/v1/auth/token`: exchanges an agent's secret for a token with a limited lifetime (seed 001)."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from reasond_server.access import audit
from reasond_server.access.agent_secrets import MAX_SECRET_CHARACTERS
from reasond_server.access.permissions import Operation
from reasond_server.errors.access import TokenInvalidError
from reasond_server.errors.base import DEFAULT_RETRY_S, ReasondError
from reasond_server.errors.limits import LimitError
from reasond_server.http_api.body_reader import require_plain
from reasond_server.http_api.exchange import TRANSPORT, RefusalError, find_exchange, find_host, send_answer
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from reasond_server.access.agent_secrets import AgentTokens
    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import Receive, Scope, Send
    from reasond_server.telemetry.observers import CallObserver

TOKEN_PATH: Final = "/api/v1/auth/token"  # noqa: S105 - a path, not a password
_MAX_AGENT_ID_CHARACTERS = 256
_OPERATION: Final = Operation("IssueToken")
_HEADERS: Final = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))


class TokenBody(BaseModel):
    """The request body of an agent."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)

    agent_id: str = Field(min_length=1, max_length=_MAX_AGENT_ID_CHARACTERS)
    secret: str = Field(min_length=1, max_length=MAX_SECRET_CHARACTERS)


class TokenEndpoint:
    """Answers 200 with `access_token`, `token_type` and `expires_in`; 400, 401, 415, 429 or 503 with an `error`."""

    def __init__(self, *, issuer: AgentTokens, body_reader: BodyReader, observer: CallObserver = UNOBSERVED) -> None:
        self._issuer = issuer
        self._observer = observer
        self._body_reader = body_reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        exchange.methods.append("auth.token")
        if not exchange.headers.accepts_json():
            raise RefusalError(415, "send agent_id and secret as 'Content-Type: application/json'")
        require_plain(exchange.headers)
        host = find_host(scope)
        declared, has_arrived = exchange.headers.declared_bytes(), exchange.has_whole_body
        body = await self._body_reader.read(declared, receive, has_arrived=has_arrived, host=host)
        try:
            wanted = _read(body)
        finally:
            self._body_reader.release(body)
        try:
            issued = await self._issuer.issue(agent_id=wanted.agent_id, secret=wanted.secret, address=host)
        except (TokenInvalidError, LimitError) as error:
            exchange.reason = error.reason
            audit.log_denied(_OPERATION, error, call_id=exchange.call_id)
            self._observer.call_failed(TRANSPORT, error.reason)
            raise _refusal(error) from None
        exchange.subject = issued.principal.subject
        audit.log_allowed(_OPERATION, principal=issued.principal, call_id=exchange.call_id)
        answer = {"access_token": issued.token, "token_type": "Bearer", "expires_in": issued.lifetime_s}
        await send_answer(send, 200, to_json(answer), headers=_HEADERS)


async def refuse_agents(*_: object) -> NoReturn:
    """Answer in place of a `TokenEndpoint` if no agent has a secret.

    Raises:
        RefusalError: 404, always.
    """
    raise RefusalError(
        404,
        "no agent has a secret on this server; add a table [auth.agents.NAME] with a secret_hash (reasond secret-hash "
        "makes one), or send a token of your own, such as the one that reasond serve --dev prints",
    )


def _read(body: bytearray) -> TokenBody:
    """Parse the body of the agent; errors do not quote it."""
    try:
        found: Any = json.loads(body)
        return TokenBody.model_validate(found)
    except (ValidationError, ValueError, RecursionError):
        message = (
            f"send a JSON object with agent_id (1-{_MAX_AGENT_ID_CHARACTERS} characters) and secret "
            f"(1-{MAX_SECRET_CHARACTERS} characters), and nothing else"
        )
        raise RefusalError(400, message) from None


def _refusal(error: ReasondError) -> RefusalError:
    """Return the refusal for an agent that gets no token."""
    if isinstance(error, TokenInvalidError):
        return RefusalError(401, error.full_message, headers={"www-authenticate": "Bearer"})
    headers = {"retry-after": str(math.ceil(error.retry_after_s or DEFAULT_RETRY_S))}
    return RefusalError(429 if error.reason == "RATE_LIMITED" else 503, error.full_message, headers=headers)
