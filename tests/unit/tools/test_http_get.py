"""Requests to real servers on loopback, which the policy of these tests allows by name."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.base.http_responses import MAX_INTERIM
from reasond_server.tools.address_checks import AddressPolicy
from reasond_server.tools.http_get import FetchLimits, HttpGet, HttpGetArguments
from reasond_server.tools.tool import ToolContext, ToolFailedError
from tests.accepting import accepting
from tests.unit.grpc_api.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

CONTEXT = ToolContext(call_id="c1", timeout_s=5)
PLAIN = "Content-Type: text/plain; charset=utf-8"


class Upstream:
    """Answers every request with the next of `replies`; `requests` holds the heads of the received requests."""

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self.requests: list[str] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            reply = self.replies.pop(0)
            writer.write(reply)
            await writer.drain()
            if not reply:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def answer(body: bytes = b"hello", *headers: str, status: str = "200 OK") -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", *(headers or (PLAIN,)), f"Content-Length: {len(body)}"))
    return head.encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def running(encrypted: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    upstream = Upstream()
    async with accepting(upstream.handle, ssl=encrypted) as upstream.port:
        yield upstream


class Names:
    """A name server that gives its answers in order and repeats the last one."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, _: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def fetcher(
    *answers: Sequence[str],
    allow: Sequence[str] = ("inside.test",),
    private: Sequence[str] = ("inside.test",),
    **limits: Any,
) -> tuple[HttpGet, Names]:
    names = Names(*(answers or [("127.0.0.1",)]))
    policy = AddressPolicy(allow_hosts=allow, allow_private_hosts=private, allow_http=True)
    return HttpGet(policy=policy, limits=FetchLimits(**limits), resolve=names), names


async def fetch(tool: HttpGet, url: str) -> dict[str, Any]:
    document = await tool.call(HttpGetArguments(url=url), CONTEXT)
    assert isinstance(document, dict)
    return document


async def test_a_document_comes_from_the_address_that_was_looked_at_under_its_own_name() -> None:
    async with running() as upstream:
        upstream.replies = [answer("grüße".encode())]
        tool, names = fetcher()
        url = f"http://inside.test:{upstream.port}/path%2Fx?q=a%20b"
        assert await fetch(tool, url) == {"status": 200, "url": url, "content_type": "text/plain", "text": "grüße"}
    head = upstream.requests[0]
    assert head.startswith("GET /path%2Fx?q=a%20b HTTP/1.1\r\n")
    assert f"Host: inside.test:{upstream.port}\r\n" in head
    assert "Accept-Encoding: identity" in head
    assert "Cookie" not in head
    assert "Authorization" not in head
    assert names.asked == ["inside.test"]


async def test_a_name_that_changes_its_answer_is_asked_for_only_once() -> None:
    async with running() as upstream:
        tool, names = fetcher(("8.8.8.8", "127.0.0.1"), ("127.0.0.1",), private=())
        with pytest.raises(ToolFailedError, match="may not be connected to"):
            await fetch(tool, f"http://inside.test:{upstream.port}/")
        assert names.asked == ["inside.test"]
        upstream.replies = [answer()]
        rebinding, names = fetcher(("127.0.0.1",), ("127.9.9.9",))
        assert (await fetch(rebinding, f"http://inside.test:{upstream.port}/"))["text"] == "hello"
        assert names.asked == ["inside.test"]


async def test_loopback_is_refused_although_something_answers_there() -> None:
    async with running() as upstream:
        upstream.replies = [answer(b"secret")]
        for url in (f"http://127.0.0.1:{upstream.port}/", f"http://[::ffff:127.0.0.1]:{upstream.port}/"):
            tool, _ = fetcher(allow=("127.0.0.1", "::ffff:7f00:1", "::ffff:127.0.0.1"), private=())
            with pytest.raises(ToolFailedError):
                await fetch(tool, url)
        tool, _ = fetcher(("127.0.0.1",), private=())
        with pytest.raises(ToolFailedError, match="may not be connected to"):
            await fetch(tool, f"http://inside.test:{upstream.port}/")
    assert upstream.requests == []


async def test_a_redirect_is_looked_at_like_the_first_url() -> None:
    async with running() as upstream:
        tool, names = fetcher()
        base = f"http://inside.test:{upstream.port}"
        upstream.replies = [answer(b"", "Location: /moved", status="302 Found"), answer(b"there")]
        assert (await fetch(tool, base))["url"] == f"{base}/moved"
        assert names.asked == ["inside.test", "inside.test"]
        for location in (
            f"http://127.0.0.1:{upstream.port}/",
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
        ):
            upstream.replies = [answer(b"", f"Location: {location}", status="301 Moved")]
            with pytest.raises(ToolFailedError, match=r"not allowed|must begin with"):
                await fetch(tool, base)
        upstream.requests.clear()
        upstream.replies = [answer(b"", "Location: /again", status="307 Again")] * 9
        with pytest.raises(ToolFailedError, match="redirected more than 3 times"):
            await fetch(tool, base)
        assert len(upstream.requests) == 4


async def test_a_redirect_to_a_name_that_has_become_private_is_refused() -> None:
    async with running() as upstream:
        tool, _ = fetcher(("127.0.0.1",), ("10.0.0.1",), allow=("inside.test", "other.test"))
        upstream.replies = [answer(b"", "Location: http://other.test/", status="302 Found")]
        with pytest.raises(ToolFailedError, match=r"'other\.test' has an address that may not"):
            await fetch(tool, f"http://inside.test:{upstream.port}/")


async def test_a_long_body_is_read_as_far_as_allowed_and_says_so() -> None:
    async with running() as upstream:
        upstream.replies = [answer(b"x" * 500_000)]
        tool, _ = fetcher(max_bytes=1_024)
        document = await fetch(tool, f"http://inside.test:{upstream.port}/")
        assert document["text"] == "x" * 1_024
        assert document["is_cut"]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (answer(b"\x89PNG", "Content-Type: image/png"), "'image/png', which is not fetched"),
        (answer(b"x", PLAIN, "Content-Encoding: gzip"), "compressed"),
        (b"garbage\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + PLAIN.encode() + b"\r\nContent-Length: 99\r\n\r\nshort", "could not be fetched"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "not valid HTTP"),
        (answer(b"", "Location: http://[", status="302 Found"), "could not be fetched|is no URL"),
    ],
)
async def test_what_cannot_be_used_is_told_in_our_own_words(reply: bytes, told: str) -> None:
    async with running() as upstream:
        upstream.replies = [reply]
        tool, _ = fetcher()
        with pytest.raises(ToolFailedError, match=told):
            await fetch(tool, f"http://inside.test:{upstream.port}/")


async def test_a_server_that_never_answers_takes_the_time_that_is_allowed_and_no_more() -> None:
    async with running() as upstream:
        upstream.replies = [b""]
        tool, _ = fetcher(timeout_s=0.05)
        with pytest.raises(ToolFailedError, match="it took too long"):
            await fetch(tool, f"http://inside.test:{upstream.port}/")


async def test_a_closed_port_an_unknown_host_and_a_wrong_certificate_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    tool, _ = fetcher()
    with pytest.raises(ToolFailedError, match="the connection failed"):
        await fetch(tool, f"http://inside.test:{port}/")
    async with running() as upstream:
        with pytest.raises(ToolFailedError, match="could not be fetched"):
            await fetch(tool, f"https://inside.test:{upstream.port}/")

    async def resolve_nothing(_: str, __: int) -> Sequence[str]:
        raise socket.gaierror(-2, "secret words of the resolver")

    policy = AddressPolicy(allow_hosts=("inside.test",))
    with pytest.raises(ToolFailedError, match=r"its host is not known$"):
        await fetch(HttpGet(policy=policy, limits=FetchLimits(), resolve=resolve_nothing), "https://inside.test/")


async def test_over_tls_the_certificate_must_be_of_the_name_and_of_a_trusted_authority(tmp_path: Path) -> None:
    authority = Authority("one")
    identity = authority.issue("upstream")
    (tmp_path / "both.pem").write_bytes(identity.certificate + identity.private_key)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "both.pem")
    trusted = ssl.create_default_context(cadata=authority.certificate.decode())
    stranger = ssl.create_default_context(cadata=Authority("two").certificate.decode())
    names = ("localhost", "inside.test")
    policy = AddressPolicy(allow_hosts=names, allow_private_hosts=names)

    def tool(accepted: ssl.SSLContext | None) -> HttpGet:
        return HttpGet(policy=policy, limits=FetchLimits(), resolve=Names(("127.0.0.1",)), trusted=accepted)

    async with running(served) as upstream:
        upstream.replies = [answer(b"over TLS")]
        url = f"https://localhost:{upstream.port}/"
        assert (await fetch(tool(trusted), url))["text"] == "over TLS"
        for accepted, wrong in ((stranger, url), (None, url), (trusted, f"https://inside.test:{upstream.port}/")):
            with pytest.raises(ToolFailedError, match="its certificate cannot be trusted"):
                await fetch(tool(accepted), wrong)
        assert len(upstream.requests) == 1


async def test_a_charset_that_is_no_charset_of_text_is_not_used() -> None:
    async with running() as upstream:
        upstream.replies = [
            answer(b"a\xff", "Content-Type: text/plain; charset=zlib_codec"),
            answer(b"gr\xfc\xdfe", "Content-Type: text/plain; charset=ISO-8859-1"),
        ]
        tool, _ = fetcher()
        url = f"http://inside.test:{upstream.port}/"
        assert (await fetch(tool, url))["text"] == "a\ufffd"
        assert (await fetch(tool, url))["text"] == "grüße"


async def test_without_a_name_server_of_its_own_it_asks_the_system() -> None:
    async with running() as upstream:
        upstream.replies = [answer()]
        policy = AddressPolicy(allow_hosts=("localhost",), allow_private_hosts=("localhost",), allow_http=True)
        tool = HttpGet(policy=policy, limits=FetchLimits())
        assert (await fetch(tool, f"http://localhost:{upstream.port}/"))["text"] == "hello"


async def test_interim_responses_without_end_are_not_followed() -> None:
    async with running() as upstream:
        hints = b"HTTP/1.1 103 Early Hints\r\n\r\n"
        upstream.replies = [hints * MAX_INTERIM + answer(), hints * (MAX_INTERIM + 1) + answer()]
        tool, _ = fetcher()
        url = f"http://inside.test:{upstream.port}/"
        assert (await fetch(tool, url))["text"] == "hello"
        with pytest.raises(ToolFailedError, match="not valid HTTP"):
            await fetch(tool, url)
