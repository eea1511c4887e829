import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from reasond_server.errors.model import ModelProtocolError, ModelUnavailableError
from reasond_server.llm.counting.tokenizers import Ranks, fetch_ranks

CONTENT = b"YQ== 0\nYg== 1\n"
RANKS = Ranks(name="tiny", sha256=hashlib.sha256(CONTENT).hexdigest(), pattern=".")


class Publisher(BaseHTTPRequestHandler):
    """Serves the file at /tiny, status 404 at /missing, and other content elsewhere."""

    def do_GET(self) -> None:
        is_here = self.path != "/missing"
        self.send_response(200 if is_here else 404)
        self.end_headers()
        self.wfile.write(CONTENT if self.path == "/tiny" else b"<html>something else</html>")

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture
def site() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Publisher) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_ranks_come_over_http_or_from_a_file(site: str, tmp_path: Path) -> None:
    fetched = fetch_ranks(RANKS, source=f"{site}/tiny", folder=tmp_path / "new" / "folder")
    assert fetched == tmp_path / "new" / "folder" / "tiny.tiktoken"
    copied = fetch_ranks(RANKS, source=str(fetched), folder=tmp_path)
    assert copied.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["tiny.tiktoken"]


def test_something_else_is_not_kept(site: str, tmp_path: Path) -> None:
    with pytest.raises(ModelProtocolError, match="its checksum is another") as refused:
        fetch_ranks(RANKS, source=f"{site}/other", folder=tmp_path)
    assert RANKS.sha256 in refused.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["http://127.0.0.1:9/x", "/nonexistent/tiny", "ftp://127.0.0.1/x", "http://[", "\0"])
def test_a_source_that_cannot_be_read_is_named(source: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="cannot be read from"):
        fetch_ranks(RANKS, source=source, folder=tmp_path)


def test_a_missing_page_is_no_file(site: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="cannot be read from"):
        fetch_ranks(RANKS, source=f"{site}/missing", folder=tmp_path)


def test_a_folder_that_cannot_be_written_is_named(site: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelUnavailableError, match="cannot be written to"):
        fetch_ranks(RANKS, source=f"{site}/tiny", folder=tmp_path / "file" / "below")
