"""A program that records the bytes of a real llama.cpp server, for the tests that cut its replies.

`python -m tests.faults.record_replies` writes `tests/faults/recorded/PROTOCOL-CHAIN.http` again; it needs xllamacpp.
"""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from reasond_server.llm.model import ChatRequest, Message, Role, ToolSpec
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.chat import ChatCompletions
from reasond_server.llm.openai.responses import ResponsesProtocol
from reasond_server.llm.openai.transport import encode_body
from reasond_server.llm.profiles import find_profile
from tests.engines.serving import running_engine

if TYPE_CHECKING:
    from reasond_server.llm.openai.protocol import WireProtocol

FOLDER = Path(__file__).with_name("recorded")
CHAINS = ("answer", "think", "calls")
PROTOCOLS: dict[str, WireProtocol] = {"chat": ChatCompletions(), "responses": ResponsesProtocol()}
NUMBERS = {"type": "object", "properties": {name: {"type": "integer"} for name in "abc"}}
TOOLS = tuple(ToolSpec(name=name, description="", parameters=NUMBERS) for name in ("add", "halve"))


def main() -> None:
    """Record every chain in both protocols."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for chain in CHAINS:
            with running_engine(chain, folder=Path(folder)) as engine:
                for name, protocol in PROTOCOLS.items():
                    (FOLDER / f"{name}-{chain}.http").write_bytes(_reply(engine.base_url, protocol, chain))


def _reply(base_url: str, protocol: WireProtocol, chain: str) -> bytes:
    """Return all bytes that the server sends, from its first line to the end of the connection."""
    options = BackendOptions(name="b", model="m", base_url=base_url, profile=find_profile("m", "", "llamacpp"))
    asked = ChatRequest(
        messages=(Message(role=Role.USER, content="Six times seven?"),),
        max_tokens=100,
        temperature=0.0,
        tools=TOOLS if chain == "calls" else (),
    )
    made = protocol.build_body(asked, options)
    body = encode_body(options, made.data, messages=made.messages)
    parts = urlsplit(base_url)
    head = (
        f"POST {parts.path}/{protocol.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=180) as connection:
        connection.sendall(head.encode() + body)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


if __name__ == "__main__":
    main()
