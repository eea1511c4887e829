"""Messages of Anthropic's clients over HTTP: blocks, stop reasons, usage, tools, errors, and what comes back."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.protocols.conversations import seal
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ToolCall
from tests.unit.protocols.chat.chatting import serve_chats

if TYPE_CHECKING:
    import httpx

    from reasond_server.llm.model import ChatRequest
    from tests.unit.protocols.chat.chatting import ChatSite

MESSAGES = "/v1/messages"
QUESTION = [{"role": "user", "content": "What is 6 times 7?"}]
THINKING = {"thinking": {"type": "adaptive"}}
SEARCH = {
    "name": "search",
    "description": "Searches.",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}


async def send(site: ChatSite, path: str = MESSAGES, **body: Any) -> httpx.Response:
    asked = {"model": "reasond", "max_tokens": 2000, "messages": QUESTION, **body}
    return await site.client.post(path, json=asked, headers={"anthropic-version": "2023-06-01"})


async def ask(site: ChatSite, **body: Any) -> dict[str, Any]:
    answer = await send(site, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def stream(site: ChatSite, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream; each is named as its type."""
    answer = await send(site, stream=True, **body)
    assert answer.status_code == 200, answer.text
    events = []
    for frame in answer.text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks as a client has them that adds up deltas."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"] | ({"input": ""} if "input" in event["content_block"] else {}))
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            for name, piece in event["delta"].items():
                if name != "type":
                    blocks[-1][{"partial_json": "input"}.get(name, name)] += piece
    return [block | ({"input": json.loads(block["input"])} if "input" in block else {}) for block in blocks]


def hear(seen: list[ChatRequest], *replies: Reply | str) -> FunctionModel:
    """Return a model that notes what it is asked, and gives the replies in order."""
    left = list(replies)

    def reply(request: ChatRequest) -> Reply | str:
        seen.append(request)
        return left.pop(0)

    return FunctionModel(reply, has_native_tools=True)


def call(name: str = "search", arguments: str = '{"q": "x"}') -> Reply:
    return Reply(tool_calls=(ToolCall(call_id="c1", name=name, arguments_json=arguments),))


async def test_the_first_block_is_the_answer_unless_thinking_is_asked_for() -> None:
    async with serve_chats() as site:
        plain = await ask(site)
        thought = await ask(site, **THINKING)
    assert plain["content"] == [{"type": "text", "text": "42"}]
    assert (plain["type"], plain["role"], plain["stop_reason"]) == ("message", "assistant", "end_turn")
    assert [block["type"] for block in thought["content"]] == ["thinking", "text"]
    assert thought["content"][0]["thinking"] == "6 times 7 is 42."
    usage = plain["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 0


async def test_a_stream_adds_up_to_the_message_with_its_signature() -> None:
    async with serve_chats() as site:
        events = await stream(site, **THINKING)
        plain = await stream(site)
    thinking, text = put_together(events)
    assert thinking["thinking"].startswith("6 times 7 is 42.")
    assert thinking["signature"] == seal(thinking["thinking"])
    assert text == {"type": "text", "text": "42"}
    assert [event["type"] for event in events][:1] + [event["type"] for event in events][-2:] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert put_together(plain) == [text]
    assert events[-2]["delta"]["stop_reason"] == "end_turn"


async def test_thinking_comes_back_byte_for_byte_through_a_history() -> None:
    seen: list[ChatRequest] = []
    thought = "An exact\n\nthought: with “signs”."
    block = {"type": "thinking", "thinking": "", "signature": seal(thought)}
    asked = {
        "role": "assistant",
        "content": [block, {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}}],
    }
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]}
    async with serve_chats(hear(seen, "It is 42.")) as site:
        answer = await ask(site, messages=[*QUESTION, asked, result], tools=[SEARCH])
    assert answer["content"][0]["text"] == "It is 42."
    told = json.dumps([str(message) for message in seen[0].messages], ensure_ascii=False)
    assert "An exact" in told
    assert "“signs”" in told
    calls = [one for message in seen[0].messages for one in message.tool_calls]
    assert [(one.name, one.arguments_json) for one in calls] == [("search", '{"q":"x"}')]


@pytest.mark.parametrize("reminder", ["", "<system-reminder>Be brief.</system-reminder>"])
async def test_results_settle_the_turn_that_waits_and_its_tool_runs_once(reminder: str) -> None:
    seen: list[ChatRequest] = []
    async with serve_chats(hear(seen, call(), "Found: 42.")) as site:
        first = await ask(site, tools=[SEARCH])
        used = first["content"][-1]
        assert (first["stop_reason"], used["name"], used["input"]) == ("tool_use", "search", {"q": "x"})
        said = [{"type": "tool_result", "tool_use_id": used["id"], "content": [{"type": "text", "text": "42"}]}]
        said += [{"type": "text", "text": reminder}] if reminder else []
        history = [*QUESTION, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": said}]
        second = await ask(site, tools=[SEARCH], messages=history)
        # A request that is sent again gets what the first one got: no further model call.
        again = await ask(site, tools=[SEARCH], messages=history)
    assert second["id"] == again["id"] == first["id"]
    assert second["content"] == again["content"] == [{"type": "text", "text": "Found: 42."}]
    assert len(seen) == 2
    results = [message.content for message in seen[1].messages if message.role == "tool"]
    assert len(results) == 1
    assert "42" in results[0]
    assert reminder in results[0]


async def test_a_line_of_accounting_is_cut_so_that_prefixes_stay_equal() -> None:
    seen: list[ChatRequest] = []
    async with serve_chats(hear(seen, *["<answer>1</answer>"] * 3)) as site:
        for number in range(2):
            block = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={number};"}
            await ask(
                site, system=[block, {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
            )
        await ask(site, system="x-anthropic-billing-header: cch=7;\nBe brief.")
    first, second, third = [request.messages[0].content for request in seen]
    assert first == second == third
    assert "Be brief." in first
    assert "billing" not in first


async def test_choices_schemas_and_stops_are_kept() -> None:
    seen: list[ChatRequest] = []
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with serve_chats(hear(seen, call(), '<answer>{"n": 42}</answer>', "<answer>one END two</answer>")) as site:
        forced = {"type": "tool", "name": "search", "disable_parallel_tool_use": True}
        await ask(site, tools=[SEARCH], tool_choice=forced)
        parsed = await ask(site, output_config={"format": {"type": "json_schema", "schema": schema}})
        stopped = await ask(site, stop_sequences=["END"])
    assert seen[0].tool_choice == "search"
    assert json.loads(parsed["content"][0]["text"]) == {"n": 42}
    assert stopped["content"][0]["text"] == "one"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "END")
    assert (parsed["stop_reason"], parsed["stop_sequence"]) == ("end_turn", None)


async def test_a_turn_names_the_stop_sequence_too_whole_and_streamed() -> None:
    async with serve_chats(hear([], "one END two", "one END two")) as site:
        asked = {"tools": [SEARCH], "stop_sequences": ["never", "END"]}
        whole = await ask(site, **asked)
        delta = (await stream(site, **asked))[-2]["delta"]
    assert whole["content"] == [{"type": "text", "text": "one"}]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "END")
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


@pytest.mark.parametrize("more", [{"model": "reasond/direct"}, {"tools": [SEARCH]}])
async def test_text_comes_while_it_is_written_and_is_the_text_of_the_whole_message(more: dict[str, Any]) -> None:
    hold = asyncio.Event()
    said = ("The gate ", "has ", "four bars.")
    replies = [Reply(pieces=said, hold=hold, hold_after=2, reasoning="Hm."), Reply(text="".join(said), reasoning="Hm.")]
    asked = {"model": "reasond", "max_tokens": 2000, "messages": QUESTION, **THINKING, **more}
    async with serve_chats(hear([], *replies)) as site:
        lines: list[str] = []
        async with site.client.stream("POST", MESSAGES, json={**asked, "stream": True}) as streamed:
            async for line in streamed.aiter_lines():
                lines.append(line)
                if "text_delta" in line:
                    hold.set()
        whole = await ask(site, **asked)
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    texts = [event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"]
    assert len(texts) > 1
    assert put_together(events) == whole["content"]


async def test_what_is_said_before_a_call_is_text_whole_and_streamed() -> None:
    before = Reply(text="I look.", tool_calls=(ToolCall(call_id="p", name="search", arguments_json='{"q": "x"}'),))
    async with serve_chats(hear([], before, before)) as site:
        whole = (await ask(site, tools=[SEARCH], **THINKING))["content"]
        streamed = put_together(await stream(site, tools=[SEARCH], **THINKING))
    assert [block["type"] for block in whole] == [block["type"] for block in streamed] == ["text", "tool_use"]
    assert whole[0] == streamed[0] == {"type": "text", "text": "I look."}


async def test_twenty_turns_share_a_prefix_byte_for_byte() -> None:
    """What a prompt has up to its question is the beginning of the next one, though the line of accounting changes."""
    seen: list[ChatRequest] = []
    said: list[dict[str, Any]] = []
    async with serve_chats(hear(seen, *["It is so."] * 20)) as site:
        for number in range(20):
            said.append({"role": "user", "content": f"Question {number}?"})
            system = [
                {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
                {"type": "text", "text": "Be brief."},
            ]
            answer = await ask(site, system=system, messages=said, tools=[SEARCH], **THINKING)
            said.append({"role": "assistant", "content": answer["content"]})
    prompts = ["\n".join(f"{message.role}: {message.content}" for message in request.messages) for request in seen]
    assert len(prompts) == 20
    for number, (one, other) in enumerate(itertools.pairwise(prompts)):
        assert other.startswith(one[: one.index(f"Question {number}?")])


async def test_tokens_are_counted_and_models_are_listed_in_both_shapes() -> None:
    async with serve_chats() as site:
        few = (await send(site, f"{MESSAGES}/count_tokens")).json()["input_tokens"]
        many = (await send(site, f"{MESSAGES}/count_tokens", system="word " * 500, tools=[SEARCH])).json()[
            "input_tokens"
        ]
        own = (await site.client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
        other = (await site.client.get("/v1/models")).json()
        one = (await site.client.get("/v1/models/reasond", headers={"anthropic-version": "2023-06-01"})).json()
    assert 0 < few < many - 400
    assert own["data"][0]["type"] == "model"
    assert [each["id"] for each in own["data"]] == [each["id"] for each in other["data"]]
    assert (one["id"], own["has_more"], other["object"]) == ("reasond", False, "list")


BROKEN: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "nothing"}, 404, "not_found_error", "model"),
    ({"messages": []}, 400, "invalid_request_error", "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error", "messages.0.role"),
    ({"messages": [{"role": "user", "content": 7}]}, 400, "invalid_request_error", "messages.0.content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, 400, "invalid_request_error", "messages.0.content"),
    ({"tool_choice": {"type": "some"}}, 400, "invalid_request_error", "tool_choice.type"),
    ({"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error", "tool_choice"),
    ({"output_config": {"format": {"type": "yaml"}}}, 400, "invalid_request_error", "output_config.format.type"),
    ({"reasonds": {}}, 400, "invalid_request_error", "reasond"),
    ({"max_tokens": "many"}, 400, "invalid_request_error", "max_tokens"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y"}}]}
            ]
        },
        400,
        "invalid_request_error",
        "messages.0.content.0.source",
    ),
]


async def test_errors_have_the_shape_that_clients_read_and_name_the_field() -> None:
    async with serve_chats() as site:
        for body, status, kind, named in BROKEN:
            answer = await send(site, **body)
            told = answer.json()
            assert (answer.status_code, told["type"], told["error"]["type"]) == (status, "error", kind), body
            assert told["request_id"] == answer.headers["request-id"]
            assert named in answer.text, answer.text
        refused = await site.client.get(MESSAGES)
        strange = await site.client.post(MESSAGES, json={}, headers={"authorization": "Bearer wrong"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (405, "invalid_request_error")
    assert (strange.status_code, strange.json()["error"]["type"]) == (401, "authentication_error")


async def test_a_failure_in_a_stream_is_an_event_and_what_is_passed_over_is_told() -> None:
    def fail(_: ChatRequest) -> str:
        raise RuntimeError("the model is broken")

    async with serve_chats(FunctionModel(fail)) as site:
        events = await stream(site)
    assert events[-1]["type"] == "error"
    async with serve_chats() as site:
        odd = [{"type": "text", "text": "What is 6 times 7?"}, {"type": "container_upload", "file_id": "f"}]
        told = await ask(
            site,
            messages=[{"role": "user", "content": odd}],
            tools=[{"type": "web_search_20250305", "name": "web_search"}],
            thinking={"type": "enabled", "budget_tokens": 1024},
            context_management={"edits": []},
            vendor_field=1,
        )
    warnings = " ".join(told["reasond"]["warnings"])
    for name in ("container_upload", "web_search", "budget_tokens", "context_management", "vendor_field"):
        assert name in warnings


async def test_documents_are_read_and_keys_come_in_any_header() -> None:
    seen: list[ChatRequest] = []
    said = [
        {"type": "document", "title": "a.txt", "source": {"type": "text", "media_type": "text/plain", "data": "alpha"}},
        {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "YmV0YQ=="}},
        {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "gamma"}]},
        {"type": "text", "text": "Sum up."},
    ]
    async with serve_chats(hear(seen, "<answer>1</answer>")) as site:
        key = site.client.headers.pop("authorization").removeprefix("Bearer ")
        site.client.headers["x-api-key"] = key
        await ask(site, messages=[{"role": "user", "content": said}])
    told = "\n".join(message.content for message in seen[0].messages)
    assert all(word in told for word in ("alpha", "beta", "gamma", "Sum up."))
