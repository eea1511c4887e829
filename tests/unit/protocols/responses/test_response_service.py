"""Responses over a whole server: items, events, numbers, retrieval, legs of turns, and any history."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.testing import FunctionModel, Reply, ScriptedModel
from reasond_server.types import TokenChance, ToolCall
from tests.unit.protocols.chat.chatting import serve_chats
from tests.unit.protocols.responses.responding import (
    RESPONSES,
    TOOL,
    cut_before,
    put_together,
    read_frames,
    respond,
    resume,
    stream_response,
)

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatRequest
    from tests.unit.protocols.chat.chatting import ChatSite

QUESTION = "What is 6 times 7?"
SETTLED_AT_ONCE = {"REASOND__STORE__REATTACH_S": "0"}
CALL = Reply(text="I look.", tool_calls=(ToolCall(call_id="x1", name="search", arguments_json='{"q": "öl 42"}'),))


def script(*replies: str | Reply) -> ScriptedModel:
    return ScriptedModel(replies, has_native_tools=True)


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] == "function_call"]


async def test_a_response_has_its_reasoning_its_answer_and_its_usage() -> None:
    async with serve_chats() as site:
        response = await respond(site, input=QUESTION, metadata={"run": "7"}, instructions="Be brief.")

    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert text_of(response) == "42"
    assert (response["status"], response["metadata"], response["instructions"]) == (
        "completed",
        {"run": "7"},
        "Be brief.",
    )
    assert response["usage"]["total_tokens"] > 0
    assert response["incomplete_details"] is response["error"] is None


async def test_a_stream_tells_each_item_in_order_and_ends_with_the_response_that_is_read_later() -> None:
    async with serve_chats() as site:
        events = await stream_response(site, input=QUESTION)
        whole = (await site.client.get(f"{RESPONSES}/{events[0]['response']['id']}")).json()

    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert kinds[-7:] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert events[-1]["response"] == whole
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == whole["output"]


async def check_every_cut(site: ChatSite, events: list[dict[str, Any]]) -> None:
    """Cut a stream at every number, and see that what a client then puts together is byte for byte the whole."""
    response_id = events[0]["response"]["id"]
    for number in range(-1, events[-1]["sequence_number"] + 1):
        had = cut_before(events, number)
        rest = await resume(site, response_id, after=None if number < 0 else number)
        assert put_together([*had, *rest]) == put_together(events), number
        assert [event for event in [*had, *rest] if "delta" not in event] == [
            event for event in events if "delta" not in event
        ], number


async def test_a_client_that_comes_back_after_any_number_has_the_whole_byte_for_byte() -> None:
    async with serve_chats() as site:
        await check_every_cut(site, await stream_response(site, input=QUESTION))


@pytest.mark.parametrize(
    "strategy",
    [
        "best_of_n",
        "bounded_context",
        "chain_of_verification",
        "direct",
        "plan_and_solve",
        "react",
        "self_consistency",
        "self_refine",
        "tree_of_thought",
    ],
)
async def test_the_numbers_of_other_strategies_replay_as_exactly(strategy: str) -> None:
    async with serve_chats(
        environ={"REASOND__REASONING__ENABLED_STRATEGIES": f'["chain_of_thought", "{strategy}"]'}
    ) as site:
        await check_every_cut(site, await stream_response(site, model=f"reasond/{strategy}", input=QUESTION))


async def test_the_numbers_of_each_leg_of_a_turn_replay_as_exactly() -> None:
    model = script(CALL, "It is 42 ☂.")
    async with serve_chats(model) as site:
        first = await stream_response(site, input=QUESTION, tools=[TOOL])
        result = result_for(calls_of(first[-1]["response"])[0])
        second = await stream_response(
            site, previous_response_id=first[0]["response"]["id"], input=[result], tools=[TOOL]
        )
        for events in (first, second):
            await check_every_cut(site, events)


@pytest.mark.parametrize("written", ["", "*** Begin Patch ☂"])
async def test_a_custom_tool_is_called_with_its_text_at_any_cut_and_its_result_goes_on_with_the_turn(
    written: str,
) -> None:
    arguments = json.dumps({"input": written})
    model = script(Reply(tool_calls=(ToolCall(call_id="x1", name="patch", arguments_json=arguments),)), "Done.")
    tool = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x: Y"}}
    async with serve_chats(model) as site:
        events = await stream_response(site, input=QUESTION, tools=[tool], store=False)
        await check_every_cut(site, events)
        first = events[-1]["response"]
        (call,) = first["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", written)
        kinds = [event["type"].removeprefix("response.") for event in events[2:-1]]
        deltas = ["custom_tool_call_input.delta"] if written else []
        assert kinds == ["output_item.added", *deltas, "custom_tool_call_input.done", "output_item.done"]
        result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "patched"}
        second = await respond(site, input=[{"role": "user", "content": QUESTION}, call, result], tools=[tool])
    assert text_of(second) == "Done."
    assert "x: Y" in str(model.requests[0].tools[0])
    assert any("patched" in message.content for message in model.requests[1].messages)


async def test_calls_are_handed_off_and_their_results_go_on_with_the_turn() -> None:
    model = script(CALL, "It is 42.")
    async with serve_chats(model) as site:
        events = await stream_response(site, input=QUESTION, tools=[TOOL])
        first = events[-1]["response"]
        (call,) = calls_of(first)
        again = await resume(site, first["id"])
        second = await respond(
            site,
            input=[{"role": "user", "content": QUESTION}, *first["output"], result_for(call)],
            tools=[TOOL],
        )
        kept = (await site.client.get(f"{RESPONSES}/{second['id']}")).json()

    assert (call["name"], call["arguments"]) == ("search", '{"q": "öl 42"}')
    assert again == events
    assert text_of(second) == "It is 42."
    assert kept == second
    assert second["id"].startswith(first["id"])
    assert len(model.requests) == 2
    assert first["usage"]["total_tokens"] != second["usage"]["total_tokens"]


def result_for(call: dict[str, Any], text: str = "found") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


@pytest.mark.parametrize("by_id", [True, False])
async def test_what_a_reentry_says_otherwise_than_its_turn_began_is_told_as_unused(*, by_id: bool) -> None:
    other = {**TOOL, "name": "find"}
    async with serve_chats(script(CALL, "It is 42.")) as site:
        first = await respond(site, input=QUESTION, tools=[TOOL], instructions="Be brief.")
        result = result_for(calls_of(first)[0])
        whole = [{"role": "user", "content": QUESTION}, *first["output"], result]
        sent = {"previous_response_id": first["id"], "input": [result]} if by_id else {"input": whole}
        second = await respond(site, tools=[TOOL, other], instructions="Be long.", **sent)
        kept = (await site.client.get(f"{RESPONSES}/{second['id']}")).json()

    assert text_of(second) == "It is 42."
    assert [text.partition(" of this request")[0] for text in second["reasond"]["warnings"]] == [
        "The tools",
        "The system message",
    ]
    assert kept == second


async def test_a_reentry_that_says_the_same_has_no_warning() -> None:
    async with serve_chats(script(CALL, "It is 42.")) as site:
        first = await respond(site, input=QUESTION, tools=[TOOL], instructions="Be brief.")
        sent = {"previous_response_id": first["id"], "input": [result_for(calls_of(first)[0])]}
        second = await respond(site, tools=[TOOL], instructions="Be brief.", **sent)

    assert second["reasond"]["warnings"] == []


async def test_results_that_come_twice_get_the_answer_of_their_leg_again() -> None:
    model = script(CALL, "It is 42.")
    async with serve_chats(model) as site:
        first = await respond(site, input=QUESTION, tools=[TOOL])
        items = [{"role": "user", "content": QUESTION}, *first["output"], result_for(calls_of(first)[0])]
        answers = [await respond(site, input=items, tools=[TOOL]) for _ in range(2)]

    assert answers[0] == answers[1]
    assert len(model.requests) == 2


@pytest.mark.parametrize("tools", [[TOOL], []])
async def test_calls_and_results_of_another_server_are_history(tools: list[dict[str, Any]]) -> None:
    model = script("It is 42.<answer>42</answer>")
    call = {"type": "function_call", "call_id": "call_abc", "name": "search", "arguments": "{}"}
    async with serve_chats(model) as site:
        response = await respond(
            site, input=[{"role": "user", "content": QUESTION}, call, result_for(call, "seven")], tools=tools
        )

    assert "42" in text_of(response)
    (request,) = model.requests
    caller = next(message for message in request.messages if message.tool_calls)
    assert caller.tool_calls[0].name == "search"
    assert any(message.role == "tool" and "seven" in message.content for message in request.messages)


async def test_a_turn_that_begins_because_its_results_settle_nothing_here_tells_of_its_request_later() -> None:
    call_id = f"call_{'0' * 32}_{'0' * 32}_c1"
    call = {"type": "function_call", "call_id": call_id, "name": "search", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": call_id, "output": "42"}
    async with serve_chats(script("It is 42.")) as site:
        items = [{"role": "user", "content": QUESTION}, call, output]
        made = await respond(site, input=items, tools=[TOOL], metadata={"run": "7"})
        later = (await site.client.get(f"{RESPONSES}/{made['id']}")).json()
    assert text_of(made) == "It is 42."
    assert made["metadata"] == later["metadata"] == {"run": "7"}


async def test_a_response_branches_from_any_earlier_one() -> None:
    model = script(CALL, "It is 42.", "Left.<answer>Left.</answer>", "Right.<answer>Right.</answer>")
    async with serve_chats(model) as site:
        first = await respond(site, input=QUESTION, tools=[TOOL])
        (call,) = calls_of(first)
        second = await respond(site, previous_response_id=first["id"], input=[result_for(call)], tools=[TOOL])
        for side in ("Left", "Right"):
            branch = await respond(site, previous_response_id=second["id"], input=f"{side}?")
            assert text_of(branch) == f"{side}."
            assert branch["previous_response_id"] == second["id"]
            items = (await site.client.get(f"{RESPONSES}/{branch['id']}/input_items?order=asc")).json()["data"]
            assert [item["type"] for item in items] == [
                "message",
                "message",
                "function_call",
                "function_call_output",
                "message",
                "message",
            ]
    sent = [message.content for message in model.requests[-1].messages]
    assert any("It is 42." in text for text in sent)
    assert not any("Left." in text for text in sent)


async def test_a_file_of_text_is_read_and_others_are_refused_by_name() -> None:
    model = script("It says 7.<answer>7</answer>")
    data = base64.b64encode("Siebzehn ☂".encode()).decode()
    part = {"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;base64,{data}"}
    image = {"type": "input_file", "filename": "a.png", "file_data": "data:image/png;base64,iVBORw0KGgo="}
    async with serve_chats(model) as site:
        await respond(
            site, input=[{"role": "user", "content": [{"type": "input_text", "text": "What is in it?"}, part]}]
        )
        refused = await site.client.post(RESPONSES, json={"input": [{"role": "user", "content": [image]}]})

    assert any("Siebzehn ☂" in message.content for message in model.requests[0].messages)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input.0.content.0.file_data")
    assert "which 'a.png' is not" in refused.json()["error"]["message"]
    assert "send their text" in refused.json()["error"]["message"]


async def test_an_item_of_an_earlier_response_is_what_its_reference_stands_for() -> None:
    model = script(CALL, "It is 42.")
    async with serve_chats(model) as site:
        first = await respond(site, input=QUESTION, tools=[TOOL])
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        items = [{"role": "user", "content": QUESTION}, *references, result_for(calls_of(first)[0])]
        second = await respond(site, input=items, tools=[TOOL])

    assert text_of(second) == "It is 42."


async def test_a_response_in_the_background_is_read_when_it_is_there_and_cancelled_twice_without_harm() -> None:
    async with serve_chats() as site:
        begun = await respond(site, input=QUESTION, background=True)
        assert begun["status"] in {"in_progress", "completed"}
        events = await resume(site, begun["id"])
        assert events[-1]["type"] == "response.completed"
        for _ in range(2):
            cancelled = (await site.client.post(f"{RESPONSES}/{begun['id']}/cancel")).json()
            assert cancelled["status"] == "completed"
        assert (await site.client.delete(f"{RESPONSES}/{begun['id']}")).json()["deleted"] is True
        assert (await site.client.get(f"{RESPONSES}/{begun['id']}")).status_code == 404


async def test_what_is_not_to_be_kept_is_gone_when_it_was_delivered() -> None:
    async with serve_chats(environ=SETTLED_AT_ONCE) as site:
        response = await respond(site, input=QUESTION, store=False)
        assert (await site.client.get(f"{RESPONSES}/{response['id']}")).status_code == 404


async def test_a_client_that_was_cut_off_reads_on_by_the_id_of_the_response_and_the_run_has_waited_for_it() -> None:
    gate = asyncio.Event()
    model = script(Reply(text="Part one.", hold=gate), "6 times 7 is 42.<answer>42</answer>")
    body = {"model": "reasond/plan_and_solve", "stream": True, "input": QUESTION}
    async with serve_chats(model) as site:
        async with site.client.stream("POST", RESPONSES, json=body) as cut:
            async for line in cut.aiter_lines():
                if line.startswith("data: "):
                    response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
                    break
        gate.set()
        events = await resume(site, response_id, after=1)

    assert text_of(events[-1]["response"]) == "42"
    assert len(model.requests) == 2


@pytest.mark.parametrize("tools", [[], [TOOL]])
async def test_five_cuts_in_one_session_are_one_payment_and_the_next_whole_request_is_a_new_one(
    tools: list[dict[str, Any]],
) -> None:
    gate = asyncio.Event()
    model = script(Reply(text="One.<answer>1</answer>", hold=gate), *(f"{n}.<answer>{n}</answer>" for n in (2, 3, 4)))
    session = {"session-id": "s1"}
    async with serve_chats(model, environ=SETTLED_AT_ONCE) as site:
        body = {"model": "reasond", "stream": True, "input": QUESTION, "tools": tools}
        for _ in range(5):
            async with site.client.stream("POST", RESPONSES, json=body, headers=session) as cut:
                assert "response.created" in await anext(cut.aiter_lines())
        gate.set()
        attached = await stream_response(site, input=QUESTION, headers=session, tools=tools)
        assert "1" in text_of(attached[-1]["response"])
        assert len(model.requests) == 1
        for other in ({"session-id": "s2"}, {}, session):
            assert "1" not in text_of(
                (await stream_response(site, input=QUESTION, headers=other, tools=tools))[-1]["response"]
            )
    assert len(model.requests) == 4


async def test_a_client_that_did_not_get_the_end_of_what_was_sent_whole_gets_it_when_it_asks_again() -> None:
    model = script("One.<answer>1</answer>", "Two.<answer>2</answer>")
    async with serve_chats(model) as site:
        answers = [
            (await stream_response(site, input=QUESTION, store=False, headers={"session-id": "s1"}))[-1]["response"]
            for _ in range(2)
        ]
    assert answers[0] == answers[1]
    assert len(model.requests) == 1


async def test_a_key_of_the_client_stands_for_its_response_for_good() -> None:
    model = script("1.<answer>1</answer>")
    async with serve_chats(model) as site:
        answers = [await respond(site, input=QUESTION, headers={"idempotency-key": "k1"}) for _ in range(2)]

    assert answers[0] == answers[1]
    assert len(model.requests) == 1


async def test_a_library_that_sends_a_request_again_attaches_and_equal_requests_of_others_do_not() -> None:
    gate = asyncio.Event()
    model = script(Reply(text="1.<answer>1</answer>", hold=gate), *(f"{n}.<answer>{n}</answer>" for n in (2, 3)))
    body = {"model": "reasond", "stream": True, "input": QUESTION}
    async with serve_chats(model) as site:
        first = {"x-stainless-retry-count": "0"}
        async with site.client.stream("POST", RESPONSES, json=body, headers=first) as cut:
            assert "response.created" in await anext(cut.aiter_lines())
            equal = await stream_response(site, input=QUESTION, headers=first)
            assert text_of(equal[-1]["response"]) == "2"
        gate.set()
        again = await stream_response(site, input=QUESTION, headers={"x-stainless-retry-count": "1"})
        assert text_of(again[-1]["response"]) == "1"
        assert text_of((await stream_response(site, input=QUESTION, headers=first))[-1]["response"]) == "3"
    assert len(model.requests) == 3


async def test_what_cannot_work_is_refused_so_that_no_client_repeats_it() -> None:
    async with serve_chats() as site:
        for body, code, param in (
            ({"input": QUESTION, "model": "nothing"}, "model_not_found", "model"),
            ({"input": QUESTION, "previous_response_id": "resp_x"}, "previous_response_not_found", None),
            ({"input": []}, "invalid_prompt", "input"),
            ({"input": QUESTION, "conversation": "conv_1"}, "invalid_prompt", "conversation"),
            ({"input": QUESTION, "resond": {}}, "invalid_prompt", None),
            (
                {"input": QUESTION, "tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}},
                "invalid_prompt",
                "tool_choice",
            ),
            ({"input": QUESTION, "tools": [{**TOOL, "name": "a b"}]}, "invalid_prompt", "tools.0.name"),
        ):
            answer = await site.client.post(RESPONSES, json={"model": "reasond", **body})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, code), error
            assert answer.headers["x-should-retry"] == "false"
            if param is not None:
                assert error["param"] == param


async def test_what_is_not_known_is_ignored_and_told() -> None:
    async with serve_chats() as site:
        response = await respond(
            site,
            input=QUESTION,
            client_metadata={"x": 1},
            tools=[{"type": "web_search", "external_web_access": False}],
            top_p=0.5,
        )

    warnings = " ".join(response["reasond"]["warnings"])
    assert "client_metadata is not known here" in warnings
    assert "'web_search' is not supported" in warnings


async def test_a_reasoning_comes_back_from_its_sealed_content_alone_and_one_of_another_server_is_told() -> None:
    model = script("6 times 7 is 42.<answer>42</answer>", "Again.<answer>42</answer>")
    include = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    async with serve_chats(model) as site:
        first = await respond(site, input=QUESTION, include=include, truncation="disabled")
        thought, message = first["output"]
        kept = {**thought, "summary": []}
        foreign = {"type": "reasoning", "id": "rs_9", "summary": [], "encrypted_content": "gAAAA"}
        history = [{"role": "user", "content": QUESTION}, kept, message, foreign, {"role": "user", "content": "Sure?"}]
        second = await respond(site, input=history)

    assert "6 times 7 is 42." in [one.reasoning for one in model.requests[1].messages]
    assert second["output"][0]["encrypted_content"] is None
    told = " ".join(first["reasond"]["warnings"])
    assert "top_logprobs has no effect: the strategy has no such parameter" in told
    assert "truncation" not in told
    assert "input.3 is sealed by another server" in " ".join(second["reasond"]["warnings"])


async def test_keys_are_taken_from_the_headers_that_clients_use() -> None:
    async with serve_chats() as site:
        for name in ("x-api-key", "api-key"):
            headers = {name: site.listening.token, "authorization": ""}
            async with site.client.__class__(base_url=site.listening.http) as bare:
                answer = await bare.post(RESPONSES, json={"input": QUESTION}, headers={name: headers[name]}, timeout=60)
            assert answer.status_code == 200, answer.text


async def test_the_tokens_of_a_request_are_counted_and_nothing_is_asked() -> None:
    model = script()
    async with serve_chats(model) as site:
        counts = [
            (await site.client.post(f"{RESPONSES}/input_tokens", json={"input": text})).json()["input_tokens"]
            for text in (QUESTION, QUESTION * 10)
        ]

    assert 0 < counts[0] < counts[1]
    assert not model.requests


async def test_a_schema_a_forced_call_and_one_call_at_a_time_reach_the_turn() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    two = Reply(
        tool_calls=tuple(
            ToolCall(call_id=f"x{n}", name="search", arguments_json=json.dumps({"q": str(n)})) for n in (1, 2)
        )
    )
    model = script(two, '{"n": 42}')
    async with serve_chats(model) as site:
        response = await respond(
            site,
            input=QUESTION,
            tools=[TOOL],
            tool_choice={"type": "function", "name": "search"},
            parallel_tool_calls=False,
            text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        )
        while calls := calls_of(response):
            assert len(calls) == 1
            response = await respond(site, previous_response_id=response["id"], input=[result_for(calls[0])])

    assert text_of(response) == '{"n":42}'
    assert [request.tool_choice for request in model.requests] == ["search", "auto"]


@pytest.mark.parametrize("tools", [[], [TOOL]])
@pytest.mark.parametrize("thinking", ["", " I count.\n"])
async def test_an_answer_is_told_while_it_is_written_and_any_cut_has_the_whole(
    tools: list[dict[str, Any]], thinking: str
) -> None:
    hold = asyncio.Event()
    pieces = ["\n 6 times 7 ", " is ☂ ", "42. \n"]
    model = script(Reply(reasoning=thinking, pieces=pieces, hold=hold, hold_after=2))
    body = {"model": "reasond/direct", "input": QUESTION, "stream": True, "tools": tools}
    text = ""
    async with serve_chats(model) as site, site.client.stream("POST", RESPONSES, json=body) as answer:
        async for line in answer.aiter_lines():
            text += f"{line}\n"
            if '"delta":" is ☂"' in line or '"delta":"6 times 7  is ☂"' in line:
                hold.set()
        events = read_frames(text)
        assert sum(event["type"] == "response.output_text.delta" for event in events) > 1
        assert text_of(events[-1]["response"]) == "6 times 7  is ☂ 42."
        kinds = ["reasoning"] * bool(thinking) + ["message"]
        assert [item["type"] for item in events[-1]["response"]["output"]] == kinds
        await check_every_cut(site, events)


async def test_an_answer_that_is_cancelled_while_it_is_told_is_an_incomplete_message() -> None:
    hold = asyncio.Event()
    model = script(Reply(pieces=["It is ", "certainly ", "42."], hold=hold, hold_after=2))
    body = {"model": "reasond/direct", "input": QUESTION, "stream": True}
    text = response_id = ""
    async with serve_chats(model) as site, site.client.stream("POST", RESPONSES, json=body) as answer:
        async for line in answer.aiter_lines():
            text += f"{line}\n"
            if line.startswith("data: {") and not response_id:
                response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
            if "output_text.delta" in line and "certainly" in line:
                await site.client.post(f"{RESPONSES}/{response_id}/cancel")
        events = read_frames(text)
        ended = events[-1]["response"]
        assert (ended["status"], text_of(ended)) == ("cancelled", "It is certainly")
        assert ended["output"][-1]["status"] == "incomplete"
        whole = (await site.client.get(f"{RESPONSES}/{response_id}")).json()
        assert (whole["status"], whole["output"][-1]["summary"][0]["text"]) == ("cancelled", "It is certainly")


async def test_text_that_turns_out_to_be_reasoning_ends_the_stream_and_the_response_is_right() -> None:
    model = script(Reply(pieces=["Let me see.", "It is 41, no.", "</think>", "It is 42."]))
    body = {"model": "reasond/direct", "input": QUESTION, "stream": True}
    async with serve_chats(model) as site:
        text = (await site.client.post(RESPONSES, json=body)).text
        first = json.loads(text.partition("data: ")[2].partition("\n")[0])["response"]["id"]
        whole = (await site.client.get(f"{RESPONSES}/{first}")).json()
        assert "event: error" in text
        assert "Read the response again from its start" in text
        assert text_of(whole) == "It is 42."
        assert put_together(await resume(site, first))[whole["output"][-1]["id"]] == "It is 42."


async def test_log_probabilities_are_included_where_they_are_asked_for() -> None:
    model = FunctionModel(
        lambda _: Reply(text="42", tokens=(TokenChance(text="42", logprob=-0.5, top=(("42", -0.5),)),))
    )
    model.most_logprobs = 20
    asked: dict[str, Any] = {
        "model": "reasond/direct",
        "input": QUESTION,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
    }
    async with serve_chats(model) as site:
        whole = await respond(site, **asked)
        again = (await site.client.get(f"{RESPONSES}/{whole['id']}")).json()
        plain = await respond(site, model="reasond/direct", input=QUESTION, top_logprobs=1)
    token = {"token": "42", "logprob": -0.5, "bytes": [52, 50]}
    assert whole["output"][-1]["content"][0]["logprobs"] == [{**token, "top_logprobs": [token]}]
    assert again["output"] == whole["output"]
    assert plain["output"][-1]["content"][0]["logprobs"] == []


READ = {"type": "function_call", "name": "read", "arguments": "{}", "status": "completed"}


def reading(call_id: str, words: int) -> list[dict[str, Any]]:
    text = json.dumps([{"row": number, "value": "word"} for number in range(words)])
    return [{**READ, "call_id": call_id}, {"type": "function_call_output", "call_id": call_id, "output": text}]


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}])
async def test_the_oldest_results_become_previews_where_truncation_is_auto(more: dict[str, Any]) -> None:
    asked: list[str] = []

    def reply(request: ChatRequest) -> str:
        asked.append("\n".join(message.content for message in request.messages))
        return "It is 42." if request.tools else "It is 42.<answer>42</answer>"

    model = FunctionModel(reply, context_window=8192, has_native_tools=True)
    items = [
        {"role": "user", "content": "Read."},
        *reading("c1", 800),
        *reading("c2", 10),
        {"role": "user", "content": QUESTION},
    ]
    async with serve_chats(model) as site:
        found = await respond(site, input=items, truncation="auto", **more)
        refused = await site.client.post(RESPONSES, json={"input": items, "truncation": "disabled", **more})
        short = await respond(site, input=QUESTION, truncation="disabled", **more)
    assert any("1 results of tools, the oldest" in told for told in found["reasond"]["warnings"])
    assert "[preview of" in asked[0]
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "truncation 'auto'" in refused.json()["error"]["message"]
    assert (short["truncation"], short["reasond"]["warnings"]) == ("disabled", [])
    assert len(asked) == 2


async def test_a_turn_whose_history_exceeds_its_share_is_refused_where_nothing_may_be_left_out() -> None:
    model = FunctionModel(lambda _: "It is 42.", context_window=8192, has_native_tools=True)
    said = [{"role": "user", "content": "word " * 1000}, {"role": "assistant", "content": "word " * 1000}]
    items = [*said, {"role": "user", "content": QUESTION}]
    async with serve_chats(model) as site:
        plain = await respond(site, input=items, truncation="disabled")
        refused = await site.client.post(RESPONSES, json={"input": items, "truncation": "disabled", "tools": [TOOL]})
        told = await respond(site, input=items, tools=[TOOL])
    assert plain["status"] == "completed"
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "The earlier messages of a turn have" in refused.json()["error"]["message"]
    assert any("oldest exchange" in warning for warning in told["reasond"]["warnings"])
