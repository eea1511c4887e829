"""The routing of paths; the tests of the whole application cover the pages themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.http_api.exchange import Exchange, RefusalError, RequestHeaders, attach
from reasond_server.http_api.request_middleware import Addresses

if TYPE_CHECKING:
    from reasond_server.http_api.exchange import ASGIApp, Receive, Scope, Send


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError((scope, receive, send))


async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError((scope, receive, send))


def find(method: str, path: str) -> tuple[ASGIApp | RefusalError, str]:
    """Return the app that serves a request, or the refusal, and the route for the trace."""
    exchange = Exchange(call_id="r", headers=RequestHeaders())
    scope: Scope = {"type": "http", "method": method, "path": path}
    attach(scope, exchange)
    addresses = Addresses(pages={"/a": page}, endpoints={"/b": endpoint}, hint="look at /a")
    try:
        return addresses.find(scope), exchange.route
    except RefusalError as error:
        return error, exchange.route


@pytest.mark.parametrize(
    ("method", "path", "serves"), [("GET", "/a", page), ("HEAD", "/a", page), ("POST", "/b", endpoint)]
)
def test_a_path_leads_to_what_is_served_there_and_is_its_route(method: str, path: str, serves: ASGIApp) -> None:
    assert find(method, path) == (serves, path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("POST", "/a", "GET, HEAD"), ("get", "/a", "GET, HEAD"), ("GET", "/b", "POST"), ("PUT", "/b", "POST")],
)
def test_other_methods_are_told_which_there_are(method: str, path: str, allowed: str) -> None:
    refusal, route = find(method, path)
    assert isinstance(refusal, RefusalError)
    assert (refusal.status, refusal.headers, route) == (405, {"allow": allowed}, path)


@pytest.mark.parametrize("path", ["/", "/a/", "/A", "/ab", "a", "", "/a?b", "//a"])
def test_any_other_path_leads_nowhere_and_is_no_route(path: str) -> None:
    refusal, route = find("GET", path)
    assert isinstance(refusal, RefusalError)
    assert (refusal.status, route) == (404, "")
    assert refusal.message == "there is nothing at this address; look at /a"
