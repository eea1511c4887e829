"""The files of the console: their budget, what they load, and how they are served."""

from __future__ import annotations

import gzip
import json
import re
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import reasond_server.console
from reasond_server.testing import running_server_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.base.addresses import Listening

WEB = Path(reasond_server.console.__file__).parent / "web"
FILES = sorted(WEB.iterdir())
VENDORED = {"preact.js", "htm.js", "LICENSES.txt"}
OWN = [path for path in FILES if path.name not in VENDORED]
MAX_BYTES = 80_000
MAX_LINES = 3_333
GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


def get(listening: Listening, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of a GET."""
    connection = HTTPConnection(listening.http.partition("://")[2], timeout=60)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def list_methods(listening: Listening) -> set[str]:
    """Return the methods that the refusal of an unknown one names."""
    connection = HTTPConnection(listening.http.partition("://")[2], timeout=60)
    try:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "no.such"})
        headers = {"Authorization": f"Bearer {listening.token}", "Content-Type": "application/json"}
        connection.request("POST", "/api/v1/jsonrpc", body, headers)
        message = json.load(connection.getresponse())["error"]["message"]
    finally:
        connection.close()
    return set(re.findall(r"'(\w+\.\w+)'", message)) - {"no.such"}


@pytest.fixture(scope="module")
def listening() -> Iterator[Listening]:
    with running_server_in_thread() as found:
        yield found


def test_all_files_together_are_within_their_budget() -> None:
    packed = sum(len(gzip.compress(path.read_bytes(), 9)) for path in FILES if path.suffix != ".txt")
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in OWN)
    assert packed <= MAX_BYTES, f"{packed} bytes packed"
    assert lines <= MAX_LINES, f"{lines} lines"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_nothing_writes_markup_or_loads_from_elsewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|dangerously|document\.write|\beval\(|new Function", text
    )
    foreign = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}
    assert not foreign
    for name in re.findall(r'from "\./([\w.]+)"', text):
        assert (WEB / name).exists(), name


def test_the_guide_shows_a_picture_of_each_screen() -> None:
    screens = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_console_*.py"))
    made = set(re.findall(r'examine\(page, "(\w+)"', screens))
    shown = set(re.findall(r"\]\(console_(\w+)\.webp\)", (GUIDES / "console.md").read_text("utf-8")))
    assert made == shown == {path.stem.removeprefix("console_") for path in GUIDES.glob("console_*.webp")}
    # A run is shown by its windows, its tree, its votes and more.
    assert set(re.findall(r'name === "(\w+)"', (WEB / "app.js").read_text("utf-8"))) - {"run"} <= shown


def test_only_public_methods_are_called_and_from_one_place(listening: Listening) -> None:
    sources = {path.name: path.read_text("utf-8") for path in OWN if path.suffix == ".js"}
    asking = r"\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon"
    assert {name: len(re.findall(asking, text)) for name, text in sources.items() if re.search(asking, text)} == {
        "rpc.js": 1
    }
    assert 'PLACE = "api/v1/jsonrpc"' in sources["rpc.js"]
    named = set(re.findall(r'(?:\bcall\(|\bevents\(|method = )"([\w.]+)"', "".join(sources.values())))
    assert len(named) >= 8
    assert named <= list_methods(listening)


def test_the_token_is_never_put_into_an_address() -> None:
    sources = "".join(path.read_text("utf-8") for path in OWN)
    assert "localStorage" not in sources
    assert "document.cookie" not in sources
    assert not re.search(r"[?&]token=", sources)


def test_the_page_may_load_and_run_nothing_but_the_files_of_the_server(listening: Listening) -> None:
    status, headers, body = get(listening, "/console")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    for rule in ("default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"):
        assert rule in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert b"<script>" not in body
    assert b"style=" not in body


def test_a_file_that_the_browser_has_is_not_sent_again(listening: Listening) -> None:
    status, headers, body = get(listening, "/console/app.js")
    assert status == 200
    assert headers["content-type"].startswith("text/javascript")
    assert body == (WEB / "app.js").read_bytes()
    status, headers, body = get(listening, "/console/app.js", {"If-None-Match": headers["etag"]})
    assert (status, body) == (304, b"")
    assert "content-security-policy" in headers


def test_the_path_with_a_slash_leads_to_the_page(listening: Listening) -> None:
    status, headers, _ = get(listening, "/console/")
    assert (status, headers["location"]) == (308, "../console")


@pytest.mark.parametrize(
    "path", ["/console/../app.py", "/console/console_pages.py", "/console/nothing.js", "/consoles"]
)
def test_nothing_else_is_served(listening: Listening, path: str) -> None:
    assert get(listening, path)[0] == 404


def test_the_console_can_be_switched_off() -> None:
    with running_server_in_thread(environ={"REASOND__SERVER__CONSOLE": "false"}) as without:
        assert without.console == without.console_link == ""
        assert get(without, "/console")[0] == 404
        assert get(without, "/console/app.js")[0] == 404


def test_the_link_is_short_and_carries_its_key_where_no_server_and_no_log_sees_it(listening: Listening) -> None:
    assert listening.console == f"{listening.http}/console"
    home, _, key = listening.console_link.partition("#token=")
    assert home == f"{listening.http}/"
    assert len(listening.console_link) <= 80
    assert key not in repr(listening)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "executions.list"})
    connection = HTTPConnection(listening.http.partition("://")[2], timeout=60)
    connection.request(
        "POST", "/api/v1/jsonrpc", body, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    )
    assert "executions" in json.load(connection.getresponse())["result"]
    connection.close()


@pytest.mark.parametrize(("path", "location"), [("/", "console"), ("/console/", "../console")])
def test_the_root_leads_to_the_console_by_an_address_that_holds_behind_a_proxy(
    listening: Listening, path: str, location: str
) -> None:
    status, headers, body = get(listening, path)
    assert (status, headers["location"], body) == (308, location, b"")


def test_without_a_console_nothing_is_at_the_root() -> None:
    with running_server_in_thread(environ={"REASOND__SERVER__CONSOLE": "false"}) as bare:
        assert get(bare, "/")[0] == 404
