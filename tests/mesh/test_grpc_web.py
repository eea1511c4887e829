"""A page in a real browser calls the server over gRPC-Web, through Envoy with `deploy/envoy/grpc-web.yaml`."""

from __future__ import annotations

import functools
import shutil
import threading
from contextlib import AsyncExitStack, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browsing import new_page, running_browser
from tests.mesh.gated import digest_of, gated_server
from tests.mesh.proxies import ROOT, running_proxy
from tests.openai_clients.client_environments import leave, make, run_or_leave

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first run installs Connect's client.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HERE = Path(__file__).resolve().parent
FILES = (HERE / "page.html", HERE / "page.mjs", ROOT / "proto" / "reasond.binpb")


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        pass


def find_site() -> Path:
    """Return a folder with the page and Connect's client."""
    npm = shutil.which("npm")
    if npm is None:
        leave("npm is not installed here")

    def install(home: Path) -> None:
        shutil.copy(HERE / "package.json", home)
        run_or_leave([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"], home)

    home = make("grpc-web", (HERE / "package.json").read_bytes(), install)
    for each in FILES:
        shutil.copy(each, home)
    return home


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the files of a folder on a free port; yields the origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, name="site")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_a_page_streams_and_reads_reasons_and_other_pages_may_not_call(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        site = find_site()
        ours, theirs = (stack.enter_context(serving(site)) for _ in range(2))
        browser = await stack.enter_async_context(running_browser())
        server = await stack.enter_async_context(gated_server())
        allowed = {"https://app.example.org": ours}
        behind = running_proxy("envoy", tmp_path, server.backends, file="grpc-web.yaml", replacements=allowed)
        address = f"http://{(await stack.enter_async_context(behind)).http}"
        page, watch = await stack.enter_async_context(new_page(browser, ours))
        await page.expose_function("release", server.gated.releases.release)
        await page.goto(f"{ours}/page.html")
        await page.wait_for_function("globalThis.isReady")
        token = server.listening.token
        assert await page.evaluate("ask", [address, token, "0"]) == {"answer": digest_of("")}
        # Each step is made only after the page has seen the one before.
        assert await page.evaluate("follow", [address, token, "3"]) == [1, 2, 3, 4, 5]
        refused = await page.evaluate("ask", [address, token, ""])
        assert refused == {"code": "InvalidArgument", "reason": ["INVALID_REQUEST"], "fields": ["task.query"]}
        unknown = await page.evaluate("ask", [address, "nonsense", "0"])
        assert (unknown["code"], unknown["reason"]) == ("Unauthenticated", ["TOKEN_INVALID"])
        assert watch.complaints == []
        stranger, _ = await stack.enter_async_context(new_page(browser, theirs))
        await stranger.goto(f"{theirs}/page.html")
        await stranger.wait_for_function("globalThis.isReady")
        assert (await stranger.evaluate("ask", [address, token, "0"]))["code"] == "Unknown"
