"""Somebody with a key of OpenAI: what `reasond init` asks, writes and says, and that two commands lead to an answer.

OpenAI's name leads, through a proxy of the environment and over TLS, to a server here that answers as OpenAI does.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.cli.outcome import ExitCode
from tests.forking import run_forked
from tests.integration.test_cli import address_of, caller, serving
from tests.unit.grpc_api.certificates import Authority, write
from tests.unit.llm.openai.odd_server import Manners, odd_server

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOST = "api.openai.com"
KEY = "sk-proj-a-key-of-the-test"
LISTED = ("gpt-5", "gpt-5-mini", "text-embedding-3-large", "gpt-4o-mini-tts", "whisper-1", "dall-e-3", "sora-2")
OPENAI = Manners(
    limits=("max_completion_tokens",),
    refuses=("max_tokens", "temperature", "stop"),
    starves=100,
    key=KEY,
    usage=True,
    schema="json_schema json_object",
    tools="forced",
    text="Three boxes with four pens each: <answer>12</answer>",
    members={"id": "chatcmpl-C9", "object": "chat.completion.chunk", "model": "gpt-5", "obfuscation": "kQ3v9"},
    told={"openai-organization": "org-1", "openai-processing-ms": "612", "x-ratelimit-remaining-requests": "4999"},
    documents={"/v1/models": {"object": "list", "data": [{"id": name, "owned_by": "system"} for name in LISTED]}},
)


class _Tunnel(StreamRequestHandler):
    """Answers CONNECT to any host with a connection to `port`."""

    port: int

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        with socket.create_connection(("127.0.0.1", self.port)) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pass_on, args=(there, self.connection))
            back.start()
            _pass_on(self.connection, there)
            back.join()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    try:
        while content := one.recv(65_536):
            other.sendall(content)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder to work in, and the environment of a machine from which OpenAI can be reached."""

    folder: Path
    environ: dict[str, str]

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_forked(*arguments, environ={**self.environ, **more}, folder=self.folder)


@contextmanager
def openai(folder: Path, **changed: Any) -> Iterator[Place]:
    authority = Authority("an authority")
    files = write(folder, authority.issue("openai", host=HOST))
    (folder / "authority.pem").write_bytes(authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["tls_certificate"], files["tls_private_key"])
    with odd_server(replace(OPENAI, **changed), context=context) as base_url:

        class Tunnel(_Tunnel):
            port = int(base_url.removesuffix("/v1").rpartition(":")[2])

        with ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as proxy:
            proxy.daemon_threads = True
            threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}).start()
            try:
                yield Place(
                    folder=folder,
                    environ={
                        "PATH": os.environ["PATH"],
                        "HOME": str(folder),
                        "HTTPS_PROXY": f"http://127.0.0.1:{proxy.server_address[1]}",
                        "SSL_CERT_FILE": str(folder / "authority.pem"),
                        "OPENAI_API_KEY": KEY,
                    },
                )
            finally:
                proxy.shutdown()


def test_two_commands_lead_to_a_streamed_answer(tmp_path: Path) -> None:
    with openai(tmp_path) as place:
        asked = place.run("init", "--url", f"https://{HOST}/v1")
        # Nobody can be asked here; what writes no text is not offered.
        assert asked.returncode == ExitCode.BAD_REQUEST
        assert "gpt-5, gpt-5-mini" in asked.stderr
        assert not any(name in asked.stderr for name in LISTED[2:])
        done = place.run("init", "--url", f"https://{HOST}", "--model", "gpt-5")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stderr
        written = (tmp_path / "config.toml").read_text("utf-8")
        assert KEY not in written
        told = tomllib.loads(written)["llm"]
        assert (told["base_url"], told["model"]) == (f"https://{HOST}/v1", "gpt-5")
        assert told["api_key_env"] == "OPENAI_API_KEY"
        # A limit that reasoning takes up is refused, which says nothing of the limits or of what else was asked.
        assert told.get("capabilities", {}) == {}
        with serving(tmp_path, "--dev", environ=place.environ):
            answer = place.run("ask", "How many pens?", **caller(address_of(tmp_path)))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "12" in answer.stdout


@pytest.mark.parametrize(
    ("environ", "changed", "code", "said"),
    [
        ({"OPENAI_API_KEY": ""}, {}, ExitCode.BAD_REQUEST, "export OPENAI_API_KEY="),
        ({"OPENAI_API_KEY": "sk-wrong"}, {}, ExitCode.NOT_ALLOWED, "does not accept the key"),
        ({"SSL_CERT_FILE": ""}, {}, ExitCode.UNREACHABLE, "SSL_CERT_FILE"),
        ({"HTTPS_PROXY": "http://127.0.0.1:9"}, {}, ExitCode.UNREACHABLE, "reaches the internet"),
        ({}, {"status": 429, "error": "You exceeded your current quota."}, ExitCode.MODEL, "credit of your account"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(
    tmp_path: Path, environ: dict[str, str], changed: dict[str, Any], code: ExitCode, said: str
) -> None:
    with openai(tmp_path, **changed) as place:
        named = ("--model", "gpt-5") if changed else ()
        done = place.run("init", "--url", f"https://{HOST}/v1", *named, **environ)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "config.toml").exists()
    assert KEY not in done.stdout + done.stderr
