"""Which address leads where; what is served there is tested through the whole application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.http_api.exchange import Exchange, attach
from reasond_server.http_api.headers import RequestHeaders
from reasond_server.http_api.pages import Addresses

if TYPE_CHECKING:
    from reasond_server.http_api.asgi import Receive, Scope, Send


class Place:
    """Notes which paths led to it."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        self.paths.append(scope["path"])


async def led(path: str, served: Place, otherwise: Place) -> str:
    """Ask for `path`; return the route that is noted for the trace."""
    exchange = Exchange(request_id="r", headers=RequestHeaders())
    scope: Scope = {"type": "http", "path": path}
    attach(scope, exchange)
    nothing: Receive = _never
    await Addresses({"/a": served}, otherwise=otherwise)(scope, nothing, _nowhere)
    return exchange.route


async def _never() -> dict[str, object]:
    raise AssertionError


async def _nowhere(_message: object) -> None:
    raise AssertionError


async def test_a_path_leads_to_what_is_served_there_and_is_its_route() -> None:
    served, otherwise = Place(), Place()
    assert await led("/a", served, otherwise) == "/a"
    assert (served.paths, otherwise.paths) == (["/a"], [])


@pytest.mark.parametrize("path", ["/", "/a/", "/A", "/ab", "a", "", "/a?b", "//a"])
async def test_any_other_path_leads_nowhere_and_is_no_route(path: str) -> None:
    served, otherwise = Place(), Place()
    assert await led(path, served, otherwise) == ""
    assert (served.paths, otherwise.paths) == ([], [path])
