"""Pages of other origins in browsers: which may call, as the operator names them (CORS, WHATWG Fetch, section 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.http_api.exchange import RequestHeaders, send_answer

if TYPE_CHECKING:
    from collections.abc import Collection

    from reasond_server.http_api.exchange import ASGIApp, Message, Receive, Scope, Send

_METHODS: Final = b"GET, POST, DELETE"
_KEPT_S: Final = 600
_VARY: Final = (b"vary", b"origin")


class CrossOriginApp:
    """Lets pages of `origins` read the answers of `app`, and send it what browsers ask for first.

    Cookies are neither read nor allowed: a page sends its token in a header of its own.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode("ascii") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; that of another origin is served as any other, and its browser keeps the answer."""
        headers = RequestHeaders(scope["headers"])
        (origin, *others) = [value for name, value in scope["headers"] if name == b"origin"] or [b""]
        if others or origin not in self._origins:
            await self._app(scope, receive, send)
            return
        allowed = [(b"access-control-allow-origin", origin), _VARY]
        if scope["method"] == "OPTIONS" and headers.getlist(b"access-control-request-method"):
            asked = ", ".join(headers.getlist(b"access-control-request-headers")).encode("latin-1")
            allowed += [
                (b"access-control-allow-methods", _METHODS),
                (b"access-control-max-age", b"%d" % _KEPT_S),
                *([(b"access-control-allow-headers", asked)] if asked else []),
            ]
            await send_answer(send, 204, headers=allowed)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", ())
                # All that are sent, such as the id of the request and the time to retry.
                shown = b", ".join(sorted({bytes(name) for name, _ in own}))
                message = {**message, "headers": [*own, *allowed, (b"access-control-expose-headers", shown)]}
            await send(message)

        await self._app(scope, receive, answer)
