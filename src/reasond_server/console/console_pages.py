"""The files of the console, as they are in `web/`, under `/console`.

They need no token: they hold no data. A browser may load nothing but them, run no inline code and call this server
only. Each has an ETag of its content and is asked for again each time, so that an upgrade is seen at once.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Final

from reasond_server.http_api.exchange import find_exchange
from reasond_server.http_api.http_app import is_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.http_api.exchange import ASGIApp, Receive, Scope, Send

CONSOLE_PATH: Final = "/console"

_INDEX: Final = "index.html"
_TYPES: Final = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
    "txt": b"text/plain; charset=utf-8",
}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)


def build_console_pages() -> Mapping[str, ASGIApp]:
    """Return the pages of the console by their paths."""
    names = [file.name for file in resources.files(__package__).joinpath("web").iterdir()]
    files = {f"{CONSOLE_PATH}/{name}": ConsoleFile(name) for name in names if name != _INDEX}
    # Addresses without the root of this server: a proxy may serve it below a path of its own.
    ways = {"/": ConsoleRedirect(b"console"), f"{CONSOLE_PATH}/": ConsoleRedirect(b"../console")}
    return {CONSOLE_PATH: ConsoleFile(_INDEX), **ways, **files}


class ConsoleFile:
    """One file of the console; it is read when it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._content: bytes | None = None
        self._etag = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or 304 if the client has it."""
        del receive
        if self._content is None:
            self._content = resources.files(__package__).joinpath("web", self._name).read_bytes()
            self._etag = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'
        headers = [(b"etag", self._etag.encode("ascii")), *_HEADERS]
        if is_known(find_exchange(scope).headers.getlist(b"if-none-match"), self._etag):
            await send({"type": "http.response.start", "status": 304, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        about = [
            (b"content-type", _TYPES[self._name.rpartition(".")[2]]),
            (b"content-length", b"%d" % len(self._content)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": [*about, *headers]})
        await send({"type": "http.response.body", "body": self._content})


class ConsoleRedirect:
    """Sends the browser to the path of the console, without a slash: the addresses of the files are relative to it."""

    def __init__(self, location: bytes) -> None:
        self._headers = [(b"location", location), (b"content-length", b"0"), *_HEADERS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send 308 with the address."""
        del scope, receive
        await send({"type": "http.response.start", "status": 308, "headers": self._headers})
        await send({"type": "http.response.body", "body": b""})
