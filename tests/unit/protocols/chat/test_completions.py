"""Chats with tools of the client: calls, their results, and what cannot be done in a turn."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from reasond_server.errors.model import ModelFailedError
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server
from reasond_server.types import TokenChance, ToolCall
from tests.faults.upstream import DONE, chunk, streaming, upstream
from tests.http_clients import make_http_client
from tests.unit.protocols.chat.chatting import QUESTION, ChatSite, chunks_of, deltas_of, serve_chats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatRequest
    from tests.faults.upstream import Conversation

FILE_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "open_file",
        "description": "Opens a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
ASKED = [{"role": "system", "content": "You are exact."}, {"role": "user", "content": "Read a.txt and b.txt."}]


def calling(*paths: str) -> Reply:
    calls = [
        ToolCall(call_id=f"p{place}", name="open_file", arguments_json=json.dumps({"path": path}))
        for place, path in enumerate(paths)
    ]
    return Reply(text="I look.", tool_calls=tuple(calls))


def model_of(*replies: str | Reply) -> ScriptedModel:
    return ScriptedModel(replies, has_native_tools=True)


async def ask(site: ChatSite, messages: Sequence[Any], **more: Any) -> dict[str, Any]:
    response = await site.ask(messages=list(messages), tools=[FILE_TOOL], **more)
    body: dict[str, Any] = response.json()
    assert response.status_code == 200, body
    return body


def settle(message: dict[str, Any], *texts: str) -> list[dict[str, Any]]:
    """Return the messages with which a client goes on: the answer as it came, and its results."""
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": text}
        for call, text in zip(message["tool_calls"], texts, strict=True)
    ]
    return [*ASKED, message, *results]


async def test_a_hand_off_is_an_answer_with_calls_and_their_results_go_on_with_the_turn() -> None:
    model = model_of(calling("a.txt", "b.txt"), "Both say 42.")
    async with serve_chats(model) as site:
        first = await ask(site, ASKED)
        choice = first["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        made = [(call["type"], call["function"]) for call in choice["message"]["tool_calls"]]
        assert made == [
            ("function", {"name": "open_file", "arguments": json.dumps({"path": path})}) for path in ("a.txt", "b.txt")
        ]
        assert "I look." in choice["message"]["reasoning_content"]
        second = await ask(site, settle(choice["message"], "42", '{"n": 42}'))
    ended = second["choices"][0]
    assert (ended["finish_reason"], ended["message"]["content"]) == ("stop", "Both say 42.")
    assert "tool_calls" not in ended["message"]
    assert first["id"] == second["id"]
    assert second["reasond"]["strategy"] == "turn"
    system = model.requests[0].messages[0].content
    assert system.startswith("You are exact.")
    shown = "\n".join(message.content for message in model.requests[1].messages)
    assert "42" in shown
    # Clients add up the usage of all answers.
    spent = [body["usage"]["total_tokens"] for body in (first, second)]
    assert all(spent)
    assert [body["reasond"]["model_calls"] for body in (first, second)] == [1, 1]


CHANGES: Final[dict[str, dict[str, Any]]] = {
    "": {},
    "tools": {"tools": [{**FILE_TOOL, "function": {**FILE_TOOL["function"], "description": "Opens any file."}}]},
    "system message": {"said": {"role": "system", "content": "You are vague."}},
    "earlier messages": {"said": {"role": "user", "content": "Read c.txt."}},
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("changed", CHANGES)
async def test_what_the_results_of_a_turn_change_in_vain_is_told(changed: str, *, is_streamed: bool) -> None:
    said, tools = CHANGES[changed].get("said"), CHANGES[changed].get("tools", [FILE_TOOL])
    before = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello!"}]
    asked = [ASKED[0], *before, ASKED[1]]
    async with serve_chats(model_of(calling("a.txt"), "It says 42.")) as site:
        first = await ask(site, asked)
        again = [said if said is not None and said["role"] == one["role"] else one for one in asked]
        messages = [*again, *settle(first["choices"][0]["message"], "42")[len(ASKED) :]]
        if is_streamed:
            told = chunks_of(await site.stream(messages=messages, tools=tools))[-1]["reasond"]
        else:
            told = (await site.ask(messages=messages, tools=tools)).json()["reasond"]
    assert told["execution_id"] == first["reasond"]["execution_id"]
    assert [text.partition(" of this request")[0] for text in told["warnings"]] == (
        [f"The {changed}"] if changed else []
    )


async def test_a_stream_tells_calls_and_the_answer_as_the_clients_read_them() -> None:
    async with serve_chats(model_of(calling("a.txt"), "It says 42.")) as site:
        options: dict[str, Any] = {"tools": [FILE_TOOL], "stream_options": {"include_usage": True}}
        first = chunks_of(await site.stream(messages=ASKED, **options))
        deltas = [chunk["choices"][0]["delta"] for chunk in first if chunk["choices"]]
        (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
        assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "open_file")]
        assert first[-2]["choices"][0]["finish_reason"] == "tool_calls"
        assert first[-1]["usage"]["total_tokens"] > 0
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        second = chunks_of(await site.stream(messages=settle(message, "42"), **options))
    assert deltas_of(second, "content") == "It says 42."
    assert second[-2]["choices"][0]["finish_reason"] == "stop"


async def test_text_that_was_told_while_it_was_written_is_not_told_again() -> None:
    async with serve_chats(model_of(calling("a.txt"))) as site:
        chunks = chunks_of(await site.stream(messages=ASKED, tools=[FILE_TOOL], reasond={"include_deltas": True}))
    assert deltas_of(chunks, "reasoning").strip() == "I look."
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


async def test_what_was_said_before_is_shown_with_its_calls() -> None:
    model = model_of("Nothing else.")
    call = {"id": "x", "type": "function", "function": {"name": "open_file", "arguments": "{}"}}
    earlier = [
        {"role": "user", "content": "Read c.txt."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "seventeen"},
        {"role": "assistant", "content": "It says seventeen."},
    ]
    async with serve_chats(model) as site:
        body = await ask(site, [*earlier, *ASKED])
    assert body["choices"][0]["message"]["content"] == "Nothing else."
    (request,) = model.requests
    said = [(message.role.value, message.content) for message in request.messages[1:]]
    assert [role for role, _ in said[:5]] == ["user", "assistant", "tool", "assistant", "user"]
    assert request.messages[2].tool_calls[0].name == "open_file"
    assert "seventeen" in said[2][1]
    assert "Read c.txt." in said[0][1]


async def test_results_that_are_sent_twice_run_nothing_twice() -> None:
    model = model_of(calling("a.txt"), "It says 42.")
    async with serve_chats(model) as site:
        first = await ask(site, ASKED)
        answered = settle(first["choices"][0]["message"], "42")
        ended = [await ask(site, answered) for _ in range(2)]
    assert [body["choices"][0]["message"]["content"] for body in ended] == ["It says 42."] * 2
    assert len(model.requests) == 2


async def test_a_key_makes_a_repeated_question_the_same_turn() -> None:
    model = model_of(calling("a.txt"))
    async with serve_chats(model) as site:
        headers = {"idempotency-key": "k1"}
        bodies = [await ask(site, ASKED, headers=headers) for _ in range(2)]
    assert bodies[0]["choices"] == bodies[1]["choices"]
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("change", "param", "part"),
    [
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "name a function that is offered",
        ),
        ({"tools": [{"type": "function", "function": {"name": "no blanks"}}]}, "tools.0.function.name", "1-128 of a-z"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
            "tools.0.function.parameters",
            "",
        ),
    ],
)
async def test_what_a_turn_cannot_do_is_refused_by_name(change: dict[str, Any], param: str, part: str) -> None:
    model = model_of()
    async with serve_chats(model) as site:
        body = {"messages": ASKED, "tools": [FILE_TOOL], **change}
        response = await site.ask(**body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert part in error["message"]
    assert not model.requests


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_custom_tool_is_called_with_its_text_and_one_that_others_would_run_is_not_offered(
    *, is_stream: bool
) -> None:
    model = model_of(Reply(tool_calls=(ToolCall(call_id="p0", name="shout", arguments_json='{"input": "Hi"}'),)), "HI")
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: WORD"}}
    tools = [{"type": "custom", "custom": {"name": "shout", "format": grammar}}, {"type": "retrieval"}]
    async with serve_chats(model) as site:
        asked: dict[str, Any] = {"messages": ASKED, "tools": tools}
        if is_stream:
            (delta,) = [
                chunk["choices"][0]["delta"]
                for chunk in chunks_of(await site.stream(**asked))
                if "tool_calls" in chunk["choices"][0]["delta"]
            ]
            (call,) = delta["tool_calls"]
        else:
            body = (await site.ask(**asked)).json()
            (call,) = body["choices"][0]["message"]["tool_calls"]
            warnings = " ".join(body["reasond"]["warnings"])
            assert "The format of the custom tool 'shout' is shown to the model, and not enforced" in warnings
            assert "'retrieval' is not supported and is not offered" in warnings
        assert (call["type"], call["custom"]) == ("custom", {"name": "shout", "input": "Hi"})
        result = {"role": "tool", "tool_call_id": call["id"], "content": "HI"}
        answered = await site.ask(
            messages=[*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, result], tools=tools
        )
    assert answered.json()["choices"][0]["message"]["content"] == "HI"
    assert [tool.name for tool in model.requests[0].tools] == ["shout"]
    assert "start: WORD" in str(model.requests[0].tools[0])
    (said,) = [call for message in model.requests[1].messages for call in message.tool_calls]
    assert json.loads(said.arguments_json) == {"input": "Hi"}


async def test_results_that_settle_nothing_here_are_history_of_a_new_turn() -> None:
    model = model_of(calling("a.txt"), "One.", "Two.", "Three.")
    async with serve_chats(model) as site:
        first = await ask(site, ASKED)
        call_id = first["choices"][0]["message"]["tool_calls"][0]["id"]
        for name in ("call_abc", f"{call_id}9", call_id.replace(call_id.split("_")[1], "no-such-turn")):
            body = await ask(site, [*ASKED, {"role": "tool", "tool_call_id": name, "content": "1"}])
            assert body["choices"][0]["message"]["content"] in {"One.", "Two.", "Three."}
    assert all(any(message.role == "tool" for message in request.messages) for request in model.requests[1:])


async def test_a_turn_takes_a_schema_stop_strings_a_forced_call_and_names_what_has_no_effect() -> None:
    model = model_of(calling("a.txt"), '{"n": 42} END')
    async with serve_chats(model) as site:
        options: dict[str, Any] = {
            "model": "reasond/react",
            "tools": [FILE_TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "response_format": {"type": "json_object"},
            "stop": ["END"],
            "temperature": 0,
            "seed": 3,
            "top_p": 0.5,
        }
        first = (await site.ask(messages=ASKED, **options)).json()
        answered = settle(first["choices"][0]["message"], "42")
        ended = (await site.ask(messages=answered, **options)).json()
    assert ended["choices"][0]["message"]["content"] == '{"n":42}'
    assert [(each.tool_choice, each.temperature, each.seed) for each in model.requests] == [
        ("required", 0, 3),
        ("auto", 0, 3),
    ]
    warnings = " ".join(first["reasond"]["warnings"])
    assert "top_p has no effect" in warnings
    assert "The strategy of 'reasond/react' has no effect" in warnings


async def test_a_client_that_leaves_cancels_its_turn() -> None:
    release = asyncio.Event()

    class Slow(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            await release.wait()
            async for event in super().stream(request):
                yield event

    async with serve_chats(Slow(["Late."], has_native_tools=True)) as site:
        body = {"model": "reasond", "messages": ASKED, "tools": [FILE_TOOL], "stream": True}
        async with site.client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    turn_id = json.loads(line.removeprefix("data: "))["id"].removeprefix("chatcmpl-")
                    break
        params = {"turn_id": turn_id, "auth_token": site.listening.token}
        request = {"jsonrpc": "2.0", "id": 1, "method": "turns.get", "params": params}
        state = ""
        for _ in range(600):
            state = (await site.client.post("/api/v1/jsonrpc", json=request)).json()["result"]["turn"]["state"]
            if state != "running":
                break
            await asyncio.sleep(0.05)
        release.set()
    assert state == "cancelled"


TOKENS = (
    TokenChance(text="Hm", logprob=-0.5),
    TokenChance(text="4", logprob=-0.25, top=(("4", -0.25), ("5", -1.5))),
    TokenChance(text="2", logprob=0.0, top=(("2", 0.0),)),
    TokenChance(text="\n", logprob=-0.1),
)


def sure_of_its_tokens() -> FunctionModel:
    model = FunctionModel(lambda _: Reply(text="42\n", reasoning="Hm", tokens=TOKENS))
    model.most_logprobs = 20
    return model


async def test_the_model_direct_tells_the_tokens_of_its_answer_whole_and_streamed() -> None:
    async with serve_chats(sure_of_its_tokens()) as site:
        asked: dict[str, Any] = {"model": "reasond/direct", "logprobs": True, "top_logprobs": 2}
        whole = (await site.ask(**asked)).json()["choices"][0]
        chunks = chunks_of(await site.stream(**asked))
        plain = (await site.ask(model="reasond/direct")).json()["choices"][0]
    said = whole["logprobs"]["content"]
    assert [each["token"] for each in said] == ["4", "2"]
    assert said[0] == {
        "token": "4",
        "logprob": -0.25,
        "bytes": [52],
        "top_logprobs": [
            {"token": "4", "logprob": -0.25, "bytes": [52]},
            {"token": "5", "logprob": -1.5, "bytes": [53]},
        ],
    }
    assert [each["choices"][0]["logprobs"] for each in chunks if each["choices"][0]["delta"].get("content")] == [
        whole["logprobs"]
    ]
    assert plain["logprobs"] is None


async def test_who_cannot_tell_log_probabilities_says_what_to_do() -> None:
    async with serve_chats(sure_of_its_tokens()) as site:
        strategy = await site.ask(logprobs=True)
    async with serve_chats() as site:
        server = await site.ask(model="reasond/direct", logprobs=True)
    assert (strategy.status_code, strategy.json()["error"]["param"]) == (400, "logprobs")
    assert "reasond/direct" in strategy.json()["error"]["message"]
    assert (server.status_code, server.json()["error"]["param"]) == (400, "top_logprobs")
    assert "tells no log probabilities" in server.json()["error"]["message"]


async def test_several_answers_are_several_executions_whose_usage_is_added_up() -> None:
    async with serve_chats() as site:
        one = (await site.ask()).json()
        several = (await site.ask(n=3, headers={"idempotency-key": "k"})).json()
        again = (await site.ask(n=3, headers={"idempotency-key": "k"})).json()
        refused = [
            await site.ask(n=2, **more)
            for more in ({"model": "reasond/react"}, {"tools": [{"function": {"name": "f"}}]})
        ]
    assert [each["index"] for each in several["choices"]] == [0, 1, 2]
    assert {each["message"]["content"] for each in several["choices"]} == {"42"}
    assert several["usage"]["total_tokens"] == 3 * one["usage"]["total_tokens"]
    assert again["id"] == several["id"]
    assert [(each.status_code, each.json()["error"]["param"]) for each in refused] == [(400, "n")] * 2


async def test_several_answers_are_streamed_each_by_its_index() -> None:
    async with serve_chats() as site:
        one = (await site.ask()).json()
        chunks = chunks_of(await site.stream(n=3, stream_options={"include_usage": True}))
        alone = chunks_of(await site.stream(n=1))
    *told, usage = chunks
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    runs = set()
    for place in range(3):
        own = [chunk for chunk in told if chunk["choices"][0]["index"] == place]
        assert own[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert deltas_of(own, "content") == "42"
        assert [chunk["choices"][0]["finish_reason"] for chunk in own[-2:]] == [None, "stop"]
        runs.add(own[-1]["reasond"]["execution_id"])
    assert len(runs) == 3
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 3 * one["usage"]["total_tokens"])
    assert {chunk["choices"][0]["index"] for chunk in alone} == {0}


async def test_an_answer_that_fails_ends_the_others() -> None:
    calls: list[ChatRequest] = []

    def reply(request: ChatRequest) -> str:
        calls.append(request)
        if len(calls) == 2:
            raise ModelFailedError("no")
        return "<answer>42</answer>"

    async with serve_chats(FunctionModel(reply)) as site:
        failed = await site.ask(n=2, headers={"idempotency-key": "k"})
        calls.clear()
        *_, last = await site.stream(n=2)
    assert failed.status_code >= 500
    assert "error" in json.loads(last.removeprefix("data: "))


async def test_a_tool_with_a_long_name_is_called_by_it_though_the_model_has_a_shorter_one_in_all_prompts() -> None:
    name = f"mcp__a_server__{'very_' * 16}long"
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]

    async def call_once(conversation: Conversation) -> None:
        own = json.loads(conversation.body)["tools"][0]["function"]["name"]
        call = {"index": 0, "id": "p1", "type": "function", "function": {"name": own, "arguments": "{}"}}
        asked = streaming(chunk(delta={"tool_calls": [call]}), chunk(finish="tool_calls"), DONE)
        answered = streaming(chunk("It is 42."), chunk(finish="stop"), DONE)
        await (answered if b'"tool_call_id"' in conversation.body else asked)(conversation)

    async with upstream(call_once) as server:
        environ = {
            "OPENAI_API_KEY": "none",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__LLM__MODEL": "fake",
        }
        async with running_server(environ=environ) as listening:
            headers = {"authorization": f"Bearer {listening.token}"}
            async with make_http_client(base_url=listening.http, headers=headers, timeout=180) as client:
                site = ChatSite(listening=listening, client=client)
                message = (await site.ask(tools=tools)).json()["choices"][0]["message"]
                (call,) = message["tool_calls"]
                said = [*QUESTION, message, {"role": "tool", "tool_call_id": call["id"], "content": "42"}]
                ended = (await site.ask(messages=said, tools=tools)).json()["choices"][0]
    assert call["function"]["name"] == name
    assert (ended["message"]["content"], ended["finish_reason"]) == ("It is 42.", "stop")
    offered, shown = set[str](), set[str]()
    for conversation in server.conversations:
        body = json.loads(conversation.body)
        offered |= {tool["function"]["name"] for tool in body["tools"]}
        shown |= {call["function"]["name"] for each in body["messages"] for call in each.get("tool_calls") or ()}
    assert offered == shown
    assert [len(each) for each in offered] == [64]
