"""The paths below /v1/ over a real socket."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ModelFailedError
from reasond_server.llm.model import ModelFinish
from reasond_server.testing import FunctionModel, Reply
from tests.unit.protocols.chat.chatting import CHAT, QUESTION, chunks_of, deltas_of, serve_chats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.llm.model import ChatRequest, ModelEvent


async def test_a_completion_has_openais_members_and_our_own() -> None:
    async with serve_chats() as site:
        response = await site.ask()
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    answer = response.json()
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage", "reasond"]
    assert answer["id"] == f"chatcmpl-{answer['reasond']['execution_id']}"
    assert (answer["object"], answer["model"]) == ("chat.completion", "reasond")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "42",
                "refusal": None,
                "reasoning_content": "6 times 7 is 42.",
                "reasoning": "6 times 7 is 42.",
            },
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    own = answer["reasond"]
    assert (own["strategy"], own["strategy_source"], own["finish_reason"]) == ("chain_of_thought", "system", "answered")
    assert (own["usage_source"], own["model_calls"], own["warnings"]) == ("reported", 1, [])


async def test_a_stream_tells_the_steps_as_reasoning_and_then_the_answer() -> None:
    async with serve_chats() as site:
        chunks = chunks_of(await site.stream(stream_options={"include_usage": True}, top_p=0.5))
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "6 times 7 is 42.", "reasoning": "6 times 7 is 42."},
        {"content": "42"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-2]["reasond"]["warnings"] == ["top_p has no effect: the strategy has no such parameter."]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4


async def test_usage_is_no_chunk_unless_it_is_asked_for() -> None:
    async with serve_chats() as site:
        chunks = chunks_of(await site.stream())
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


async def test_text_is_told_while_it_is_written_where_that_is_asked_for() -> None:
    model = FunctionModel(lambda _: Reply(pieces=["6 times ", "7 is 42.", "<answer>42</answer>"]))
    async with serve_chats(model) as site:
        chunks = chunks_of(await site.stream(reasond={"include_deltas": True}))
    assert deltas_of(chunks, "reasoning") == "6 times 7 is 42.42"
    assert deltas_of(chunks, "content") == "42"


@pytest.mark.parametrize("include_deltas", [False, True])
async def test_the_answer_of_direct_is_content_while_it_is_written(include_deltas: bool) -> None:  # noqa: FBT001 - the parameter of a test
    hold = asyncio.Event()
    model = FunctionModel(lambda _: Reply(pieces=["Six times", " seven is ", "42.\n"], hold=hold, hold_after=2))
    body = {"model": "reasond/direct", "messages": QUESTION, "stream": True}
    body["reasond"] = {"include_deltas": include_deltas}
    async with serve_chats(model) as site:
        async with site.client.stream("POST", CHAT, json=body) as response:
            lines: list[str] = []
            async for line in response.aiter_lines():
                lines.append(line)
                if "seven" in line:
                    hold.set()
        whole = await site.ask(model="reasond/direct")
    chunks = chunks_of([line for line in lines if line])
    assert deltas_of(chunks, "reasoning") == ""
    assert deltas_of(chunks, "content") == whole.json()["choices"][0]["message"]["content"] == "Six times seven is 42."


async def test_an_answer_that_a_schema_may_mend_is_told_at_its_end() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    model = FunctionModel(lambda _: Reply(pieces=["4", "2"]))
    async with serve_chats(model) as site:
        chunks = chunks_of(await site.stream(model="reasond/direct", response_format=form))
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "42", None]


async def test_a_silent_stream_has_heartbeats_as_comments() -> None:
    may_answer = asyncio.Event()
    model = FunctionModel(lambda _: Reply(text="<answer>42</answer>", hold=may_answer))
    environ = {"REASOND__SERVER__HEARTBEAT_INTERVAL_S": "1"}
    async with (
        serve_chats(model, environ=environ) as site,
        site.client.stream("POST", CHAT, json={"model": "reasond", "messages": QUESTION, "stream": True}) as response,
    ):
        lines = response.aiter_lines()
        async for line in lines:
            if line == ": heartbeat":
                break
        may_answer.set()
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"


async def test_the_first_step_comes_before_the_second_is_thought() -> None:
    may_go_on = asyncio.Event()
    replies = itertools.chain([Reply(text="Part one.", finish=ModelFinish.LENGTH)], itertools.repeat(None))
    model = FunctionModel(lambda _: next(replies) or Reply(text="<answer>42</answer>", hold=may_go_on))
    body = {
        "model": "reasond/bounded_context",
        "messages": QUESTION,
        "stream": True,
        "reasond": {"config": {"carryover_mode": "tail", "max_iterations": 2}},
    }
    async with asyncio.timeout(60), serve_chats(model) as site, site.client.stream("POST", CHAT, json=body) as response:
        async for line in response.aiter_lines():
            if "reasoning_content" in line:
                may_go_on.set()
    assert len(model.requests) == 2


class HeldModel(FunctionModel):
    """A model that never answers, and tells when it is asked and when its call is closed."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.is_asked, self.is_closed = asyncio.Event(), asyncio.Event()

    def _reply(self, _: ChatRequest) -> Reply:
        self.is_asked.set()
        return Reply(text="never", hold=asyncio.Event())

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        try:
            async for event in super().stream(request):
                yield event
        finally:
            self.is_closed.set()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_leaving_cancels_the_run(is_stream: bool) -> None:  # noqa: FBT001 - the parameter of a test
    model = HeldModel()
    async with serve_chats(model) as site:
        task = asyncio.create_task(site.stream() if is_stream else site.ask())
        await model.is_asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60):
            await model.is_closed.wait()


async def test_an_idempotency_key_pays_once() -> None:
    model = FunctionModel(lambda _: "<answer>42</answer>")
    async with serve_chats(model) as site:
        key = {"idempotency-key": "k-1"}
        first, second = await site.ask(headers=key), await site.ask(reasond={"request_id": "k-1"})
        chunks = chunks_of(await site.stream(headers=key))
        other = await site.ask(headers=key, messages=[{"role": "user", "content": "Another question"}])
        differing = await site.ask(headers=key, reasond={"request_id": "k-2"})
        wrong = await site.ask(headers={"idempotency-key": "a b"})
    assert first.json()["id"] == second.json()["id"] == chunks[0]["id"]
    assert len(model.requests) == 1
    assert (other.status_code, other.json()["error"]["code"]) == (409, "REQUEST_ID_REUSED")
    assert other.headers["x-should-retry"] == "false"
    assert (differing.status_code, differing.json()["error"]["param"]) == (400, "reasond.request_id")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "reasond.request_id")


async def test_an_error_before_the_first_chunk_is_a_status_and_afterwards_an_event() -> None:
    model = FunctionModel(lambda _: Reply(text="half", error=ModelFailedError("the model broke"), error_after=2))
    async with serve_chats(model) as site:
        refused = await site.ask(stream=True, model="nothing")
        blocks = await site.stream()
        whole = await site.ask()
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "STRATEGY_NOT_FOUND")
    assert blocks[-1].startswith('data: {"error":')
    error = json.loads(blocks[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("MODEL_FAILED", "server_error")
    assert error["reasond"]["execution_id"]
    assert not any("[DONE]" in block for block in blocks)
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "MODEL_FAILED")
    assert whole.headers["x-should-retry"] == "false"


async def test_a_limit_tells_when_to_come_back() -> None:
    async with serve_chats(environ={"REASOND__LIMITS__REQUESTS_PER_MINUTE": "1"}) as site:
        assert (await site.ask()).status_code == 200
        for response in (await site.ask(), await site.ask(stream=True)):
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["type"]) == (429, "RATE_LIMITED", "rate_limit_error")
            assert 1 <= int(response.headers["retry-after"]) <= 60
            assert int(response.headers["retry-after-ms"]) > 0
            assert response.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("finish", "reply"),
    [
        ("stop", Reply(text="42")),
        ("length", Reply(text="6 times 7 is for" + "ty " * 500)),
        ("content_filter", Reply(text="6 times", finish=ModelFinish.CONTENT_FILTER)),
    ],
)
async def test_finish_reasons(finish: str, reply: Reply) -> None:
    async with serve_chats(FunctionModel(lambda _: reply)) as site:
        answer = (await site.ask(reasond={"config": {"max_tokens": 100}})).json()
    assert answer["choices"][0]["finish_reason"] == finish, answer


async def test_models_are_listed_and_found() -> None:
    environ = {"REASOND__OPENAI__MODELS__CAREFUL__STRATEGY": "self_consistency"}
    async with serve_chats(environ=environ) as site:
        listed = (await site.client.get("/v1/models")).json()
        one = (await site.client.get("/v1/models/reasond%2Freact")).json()
        missing = await site.client.get("/v1/models/reasond/reakt")
    assert listed["object"] == "list"
    assert {model["id"] for model in listed["data"]} >= {"reasond", "reasond/chain_of_thought", "careful"}
    assert one == next(model for model in listed["data"] if model["id"] == "reasond/react")
    assert set(one) >= {"id", "object", "created", "owned_by", "context_window", "input_modalities", "supports"}
    assert missing.status_code == 404
    assert "did you mean 'reasond/react'" in missing.json()["error"]["message"]


ELSEWHERE = (
    ("POST", "/v1/responses/compact", 404, "send truncation 'auto'"),
    ("POST", "/v1/conversations", 404, "send previous_response_id"),
    ("POST", "/v1/responses/resp_1", 405, "GET, DELETE only"),
    ("GET", "/v1/responses/resp_1/elsewhere", 404, "POST /v1/responses"),
    ("POST", "/v1/embeddings", 404, "embeddings are not made here"),
    ("POST", "/v1/completions", 404, "POST /v1/chat/completions with it"),
    ("POST", "/v1/moderations", 404, "POST /v1/messages and GET /v1/models are here"),
    ("GET", "/v1/chat/completions", 405, "POST only"),
    ("POST", "/v1/models", 405, "GET, HEAD only"),
)


async def test_other_addresses_say_what_to_use() -> None:
    async with serve_chats() as site:
        for method, path, status, part in ELSEWHERE:
            response = await site.client.request(method, path, json={})
            assert response.status_code == status
            error = response.json()["error"]
            assert part in error["message"]
            assert error["code"] == "METHOD_NOT_FOUND"
            assert error["reasond"]["request_id"] == response.headers["x-request-id"]


async def test_switched_off_nothing_is_there() -> None:
    async with serve_chats(environ={"REASOND__OPENAI__ENABLED": "false"}) as site:
        response = await site.ask()
    assert response.status_code == 404
    assert "JSON-RPC is at" in response.json()["error"]


async def test_nobody_chats_without_a_token() -> None:
    async with serve_chats() as site:
        for authorization, code in (
            ("", "TOKEN_INVALID"),
            ("Bearer nonsense", "TOKEN_INVALID"),
            (None, "TOKEN_MISSING"),
        ):
            site.client.headers.pop("authorization")
            if authorization is not None:
                site.client.headers["authorization"] = authorization
            for response in (await site.ask(), await site.ask(stream=True), await site.client.get("/v1/models")):
                error = response.json()["error"]
                assert (response.status_code, error["code"], error["type"]) == (401, code, "authentication_error")
                assert response.headers["www-authenticate"] == "Bearer"
            assert (await site.ask(reasond={"material": "x" * 100_000})).status_code == 401
    assert "api_key" in error["message"]


HOSTILE = (
    (b"", 400, "PARSE_ERROR"),
    (b"{", 400, "PARSE_ERROR"),
    (b'{"model": NaN}', 400, "PARSE_ERROR"),
    (b"\xff\xfe", 400, "PARSE_ERROR"),
    (b'{"model": "\\ud800"}', 400, "PARSE_ERROR"),
    (b"[" * 100 + b"]" * 100, 400, "PARSE_ERROR"),
    (b"[" + b"1," * 200_000 + b"1]", 400, "PARSE_ERROR"),
    (b"[]", 400, "INVALID_REQUEST"),
    (b'"text"', 400, "INVALID_REQUEST"),
    (b"{}", 400, "INVALID_REQUEST"),
    (b'{"stream": true}', 400, "INVALID_REQUEST"),
    (b'{"model": "reasond", "messages": [{"role": "user", "content": ""}]}', 400, "INVALID_REQUEST"),
    (b'{"model": "reasond", "messages": [{"role": "user", "content": "a\\u0000"}]}', 400, "INVALID_REQUEST"),
    (b'{"model": "reasond", "reasond": 5, "messages": []}', 400, "INVALID_REQUEST"),
    (
        b'{"model": "' + b"x" * 100_000 + b'", "messages": [{"role": "user", "content": "q"}]}',
        404,
        "STRATEGY_NOT_FOUND",
    ),
)


async def test_hostile_bodies() -> None:
    async with serve_chats() as site:
        for content, status, code in HOSTILE:
            response = await site.client.post(CHAT, content=content, headers={"content-type": "application/json"})
            assert response.status_code == status, content[:100]
            error = response.json()["error"]
            assert error["code"] == code
            assert len(response.content) < 10_000


async def test_media_types_and_sizes_are_refused_in_openais_way() -> None:
    async with serve_chats(environ={"REASOND__SERVER__MAX_HTTP_BODY_BYTES": "1048576"}) as site:
        form = await site.client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
        packed = await site.client.post(
            CHAT, content=b"{}", headers={"content-type": "application/json", "content-encoding": "gzip"}
        )
        large = await site.ask(reasond={"material": "x" * 2_000_000})
    assert (form.status_code, packed.status_code, large.status_code) == (415, 415, 413)
    for response in (form, packed, large):
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert "max_http_body_bytes" in large.json()["error"]["message"]


async def test_instructions_that_are_too_long_are_told_by_openais_name() -> None:
    async with serve_chats() as site:
        response = await site.ask(messages=[{"role": "system", "content": "x" * 100_001}, *QUESTION])
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
        sent = {"model": "reasond", "input": "q", "instructions": "x" * 100_001}
        response = await site.client.post("/v1/responses", json=sent)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "instructions")


async def test_system_history_stop_and_limits_reach_the_model() -> None:
    model = FunctionModel(lambda _: "It is 42 END or more.")
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "My number is 6."},
        {"role": "assistant", "content": "Aye, six."},
        {"role": "user", "content": "And times 7?"},
    ]
    async with serve_chats(model) as site:
        answer = (await site.ask(messages=messages, stop=["END"])).json()
        short = (await site.ask(messages=[{"role": "user", "content": "Count."}], max_tokens=2)).json()
    (first, *_) = model.requests
    prompt = "\n".join(f"{message.role.value}: {message.content}" for message in first.messages)
    assert "You are a pirate." in prompt
    assert "user: My number is 6." in prompt
    assert "assistant: Aye, six." in prompt
    assert "And times 7?" in first.messages[-1].content
    assert answer["choices"][0]["message"]["content"] == "It is 42"
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] <= 2


async def test_an_answer_by_a_schema_is_its_json() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema, "strict": True}}
    async with serve_chats(FunctionModel(lambda _: '<answer>{"n": 42}</answer>')) as site:
        whole = (await site.ask(response_format=wanted)).json()
        chunks = chunks_of(await site.stream(response_format=wanted))
        broken = await site.ask(response_format={"type": "json_schema", "json_schema": {"schema": {"type": 5}}})
    assert json.loads(whole["choices"][0]["message"]["content"]) == {"n": 42}
    assert json.loads(deltas_of(chunks, "content")) == {"n": 42}
    assert broken.status_code == 400
    assert broken.json()["error"]["param"].startswith("response_format.json_schema.schema")
    async with serve_chats(FunctionModel(lambda _: "<answer>never JSON</answer>")) as site:
        wrong = await site.ask(response_format=wanted)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "ANSWER_INVALID")


async def test_the_rule_auto_is_a_model() -> None:
    async with serve_chats(environ={"REASOND__REASONING__AUTO": "true"}) as site:
        answer = (await site.ask(model="reasond/auto", temperature=0.1)).json()
    assert answer["reasond"]["strategy_source"] == "auto"
    assert "temperature has no effect: the strategy has no such parameter." in answer["reasond"]["warnings"]
