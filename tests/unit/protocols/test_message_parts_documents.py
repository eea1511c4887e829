"""PDF files in messages: one reader for all wires, in a process with bounds."""

from __future__ import annotations

import asyncio
import base64
import gc
from typing import Any

import pytest

from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.message_parts import DocumentTexts
from reasond_server.protocols.responses.response_params import ResponseParams
from reasond_server.testing import FunctionModel
from reasond_server.types import Principal
from tests.unit.documents.document_samples import build_deflated_pdf, build_endless_pdf, build_pdf
from tests.unit.protocols.chat.chatting import CHAT, serve_chats

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def in_chat(*files: bytes) -> tuple[str, dict[str, Any]]:
    parts = [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{encode(file)}"}}
        for file in files
    ]
    said = [{"type": "text", "text": "What is in it?"}, *parts]
    return CHAT, {"model": "reasond", "messages": [{"role": "user", "content": said}]}


def in_response(*files: bytes) -> tuple[str, dict[str, Any]]:
    parts = [{"type": "input_file", "filename": "a.pdf", "file_data": encode(file)} for file in files]
    return RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "What?"}, *parts]}]}


def in_message(*files: bytes) -> tuple[str, dict[str, Any]]:
    source = {"type": "base64", "media_type": "application/pdf"}
    parts = [{"type": "document", "title": "a.pdf", "source": {**source, "data": encode(file)}} for file in files]
    return MESSAGES, {"model": "reasond", "max_tokens": 1000, "messages": [{"role": "user", "content": parts}]}


WIRES = {
    "chat": (in_chat, "messages.0.content.1.file.file_data"),
    "responses": (in_response, "input.0.content.1.file_data"),
    "messages": (in_message, "messages.0.content.0.source"),
}


def listen() -> tuple[FunctionModel, list[str]]:
    """Return a model, and a list that gets all that it is asked."""
    asked: list[str] = []

    def reply(request: Any) -> str:
        asked.append("\n".join(message.content for message in request.messages))
        return "It is 42.<answer>42</answer>"

    return FunctionModel(reply), asked


@pytest.mark.parametrize("wire", WIRES)
async def test_the_text_of_a_pdf_reaches_the_model_on_every_wire_and_what_is_left_out_is_told(wire: str) -> None:
    build, _ = WIRES[wire]
    model, asked = listen()
    async with serve_chats(model) as site:
        path, body = build(build_pdf(["Light comes from the Sun", ""]))
        answer = await site.client.post(path, json=body)
        streamed = await site.client.post(path, json={**body, "stream": True})
    assert (answer.status_code, streamed.status_code) == (200, 200), answer.text
    assert all("File 'a.pdf':\nLight comes from the Sun" in text for text in asked)
    assert len(asked) == 2
    assert "1 of the 2 pages of 'a.pdf' have no text" in answer.json()["reasond"]["warnings"][0]


UNREADABLE = {
    "damaged": (b"%PDF-1.7\n" + b"\x00\xff" * 5000, "is damaged"),
    "scanned": (build_pdf([""]), "without text, as scanners make them"),
    "encrypted": (build_pdf(["x"], password="geheim"), "is encrypted"),
    "endless": (build_endless_pdf(), ""),
    "bomb": (build_deflated_pdf(100_000_000), "unpack to more than is safe"),
    "image": (b"\x89PNG\r\n\x1a\n\x00\x00", "must be a file of UTF-8 text or a PDF"),
}


# One file on every wire, and every file on one: what is told of a file does not depend on the wire.
@pytest.mark.parametrize(
    ("wire", "kind"), [*((wire, "damaged") for wire in WIRES), *((min(WIRES), kind) for kind in [*UNREADABLE][1:])]
)
async def test_a_file_that_cannot_be_read_is_refused_by_its_place_and_costs_no_call(wire: str, kind: str) -> None:
    (build, field), (file, told) = WIRES[wire], UNREADABLE[kind]
    model, asked = listen()
    async with serve_chats(model) as site:
        path, body = build(file)
        answer = await site.client.post(path, json=body)
    assert answer.status_code == 400
    assert (told in answer.text, field in answer.text) == (True, True), answer.text
    assert asked == []


async def test_more_files_than_the_operator_lets_in_are_refused_and_none_is_read_with_0() -> None:
    model, _ = listen()
    for most in (0, 1):
        async with serve_chats(model, environ={"REASOND__OPENAI__MAX_PDF_FILES": str(most)}) as site:
            path, body = in_response(*[build_pdf(["x"])] * (most + 1))
            answer = await site.client.post(path, json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == f"input.0.content.{most + 1}.file_data"
            assert "openai.max_pdf_files" in answer.json()["error"]["message"]


async def test_no_pdf_is_read_for_a_caller_whose_tokens_are_spent() -> None:
    model, _ = listen()
    path, body = in_chat(b"%PDF-1.7\n" + b"\x00\xff" * 5000)
    async with serve_chats(model, environ={"REASOND__LIMITS__TOKENS_PER_DAY": "1000"}) as site:
        before = await site.client.post(path, json=body)
        while (await site.ask()).status_code == 200:
            pass
        after = await site.client.post(path, json=body)
    assert (before.status_code, after.status_code) == (400, 429), after.text
    assert after.json()["error"]["code"] == "TOKEN_BUDGET_EXHAUSTED"


async def test_a_pdf_in_the_result_of_a_tool_is_read() -> None:
    model, asked = listen()
    source = {"type": "base64", "media_type": "application/pdf", "data": encode(build_pdf(["Seventeen"]))}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document", "source": source}]}
    call = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    said = [{"role": "user", "content": "Read."}, {"role": "assistant", "content": [call]}]
    async with serve_chats(model) as site:
        body = {"model": "reasond", "max_tokens": 1000, "messages": [*said, {"role": "user", "content": [result]}]}
        answer = await site.client.post(MESSAGES, json=body)
    assert answer.status_code == 200, answer.text
    assert "Seventeen" in asked[0]


async def test_a_file_that_cannot_be_read_is_let_go_of_at_once_and_not_when_garbage_is_collected() -> None:
    documents = DocumentTexts(most_files=1)
    _, body = in_response(b"%PDF-1.7\n" + b"\x00\xff" * 5000)
    params = ResponseParams.model_validate(body)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(InvalidRequestError, match="is damaged"):
            await documents.unfold(Principal(subject="s", tenant="t", permissions=frozenset()), params, "input")
        tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]
        assert "reading a document" not in {task.get_name() for task in tasks}
    finally:
        gc.enable()
