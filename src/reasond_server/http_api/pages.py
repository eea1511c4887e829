"""Which address leads where, and what can be read without a token: the agent card, health and readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.http_api.exchange import RefusalError, exchange_of, send_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.agents.service import CardView
    from reasond_server.http_api.asgi import ASGIApp, Receive, Scope, Send

_HINT: Final = "JSON-RPC is at /api/v1/jsonrpc"
_CARD_AGE_S: Final = 300
_NO_STORE: Final = (b"cache-control", b"no-store")


class Addresses:
    """What is served where: `pages` to GET and HEAD, `endpoints` to POST, by their paths exactly as they are written.

    `hint` tells whoever asks for another path where there is something.
    """

    def __init__(self, *, pages: Mapping[str, ASGIApp], endpoints: Mapping[str, ASGIApp], hint: str = _HINT) -> None:
        self._hint = hint
        self._served: dict[str, tuple[ASGIApp, Sequence[str]]] = {
            **{path: (page, ("GET", "HEAD")) for path, page in pages.items()},
            **{path: (endpoint, ("POST",)) for path, endpoint in endpoints.items()},
        }

    def find(self, scope: Scope) -> ASGIApp:
        """Return what serves the request; its path is its route.

        Raises:
            RefusalError: 404 there is nothing at its path, 405 what is there takes other methods.
        """
        path = scope["path"]
        found = self._served.get(path)
        if found is None:
            raise RefusalError(404, f"there is nothing at this address; {self._hint}")
        exchange_of(scope).route = path
        app, methods = found
        if scope["method"] not in methods:
            allowed = ", ".join(methods)
            raise RefusalError(405, f"this address takes {allowed} only", headers={"allow": allowed})
        return app


class AgentCardPage:
    """This server's A2A card, with a strong ETag over its bytes; `card` returns the current one."""

    def __init__(self, card: Callable[[], CardView]) -> None:
        self._card = card

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the card, or say that the client has it."""
        del receive
        view = self._card()
        etag = f'"{view.etag}"'
        headers = [(b"etag", etag.encode("ascii")), (b"cache-control", b"public, max-age=%d" % _CARD_AGE_S)]
        if _matches(exchange_of(scope).headers.getlist(b"if-none-match"), etag):
            await send_answer(send, 304, headers=headers)
        else:
            await send_answer(send, 200, view.card_json.encode(), headers=headers)


class HealthPage:
    """Says 200 as long as the event loop lives."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send that all is well."""
        del scope, receive
        await send_answer(send, 200, b'{"status":"ok"}', headers=[_NO_STORE])


class ReadinessPage:
    """Says 200 while `is_ready` does, else 503, so that load balancers send nothing new."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send whether new work is welcome."""
        del scope, receive
        if self._is_ready():
            await send_answer(send, 200, b'{"status":"ready"}', headers=[_NO_STORE])
        else:
            await send_answer(send, 503, b'{"status":"not ready"}', headers=[_NO_STORE])


def _matches(if_none_match: list[str], etag: str) -> bool:
    """Return whether the client's copy is current (RFC 9110, section 13.1.2: weak comparison)."""
    tags = {tag.strip().removeprefix("W/") for value in if_none_match for tag in value.split(",")}
    return bool(tags & {"*", etag})
