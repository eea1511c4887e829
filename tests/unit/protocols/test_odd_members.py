"""Every member of a request, at any depth, with a value of another type: answered or refused, and never a failure."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import pytest

from reasond_server.testing import FunctionModel
from tests.unit.protocols.chat.chatting import CHAT, serve_chats
from tests.unit.protocols.responses.responding import RESPONSES, respond

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTION: Final = {
    "name": "search",
    "description": "Searches.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    "strict": False,
}
CUSTOM: Final = {"name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x: Y"}}
SCHEMA: Final = {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}
OWN: Final = {"config": {"temperature": 1}, "budget": {"max_model_calls": 5}, "material": "m", "include_deltas": False}
CHAT_BODY: Final = {
    "model": "reasond",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "search", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        {"role": "user", "content": "What is 6 times 7?"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}, {"type": "custom", "custom": CUSTOM}],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "search"}}]},
    },
    "parallel_tool_calls": True,
    "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    "stop": ["END"],
    "max_tokens": 1000,
    "temperature": 1,
    "seed": 1,
    "stream_options": {"include_usage": True},
    "reasond": OWN,
}
RESPONSES_BODY: Final = {
    "model": "reasond",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "found", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
        {"type": "shell_call", "call_id": "e", "action": {"commands": ["ls"]}, "status": "completed"},
        {"type": "shell_call_output", "call_id": "e", "output": [{"stdout": "a", "outcome": {"type": "exit"}}]},
        {"type": "mcp_call", "id": "f", "name": "g", "arguments": "{}", "output": None, "error": {"type": "x"}},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Found."}]},
        {"type": "item_reference", "id": "msg_1"},
        {"role": "user", "content": "What is 6 times 7?"},
    ],
    "instructions": "Be brief.",
    "tools": [{"type": "function", **FUNCTION}, {"type": "custom", **CUSTOM}],
    "tool_choice": {"type": "function", "name": "search"},
    "text": {"format": SCHEMA, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "max_output_tokens": 1000,
    "stream_options": {"include_obfuscation": False},
    "reasond": OWN,
}
MESSAGES_BODY: Final = {
    "model": "reasond",
    "max_tokens": 1000,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "tool_use", "id": "c", "name": "search", "input": {"q": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "found"}]}],
        },
        {"role": "assistant", "content": "Found."},
        {
            "role": "user",
            "content": [
                {"type": "document", "title": "a", "source": {"type": "text", "data": "It is 42."}},
                {"type": "search_result", "title": "b", "source": "c", "content": [{"type": "text", "text": "So."}]},
                {"type": "text", "text": "What is 6 times 7?"},
            ],
        },
    ],
    "tools": [{"name": "search", "description": "Searches.", "input_schema": FUNCTION["parameters"]}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1000},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA["schema"]}},
    "stop_sequences": ["END"],
    "temperature": 1,
    "reasond": OWN,
}
ODD: Final[tuple[Any, ...]] = (5, "odd", ["odd", []], {"odd": []})


def list_odd(body: Any, *place: str | int) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each place in `body`, and the odd values that may stand there in place of what does."""
    members = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, member in members:
        for odd in ODD:
            yield (*place, name), odd
        yield from list_odd(member, *place, name)


def put(body: Any, place: tuple[str | int, ...], odd: object) -> Any:
    """Return `body` with `odd` at `place`."""
    changed = copy.deepcopy(body)
    inner = changed
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = odd
    return changed


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, CHAT_BODY),
        (RESPONSES, RESPONSES_BODY),
        (f"{RESPONSES}/input_tokens", RESPONSES_BODY),
        ("/v1/messages", MESSAGES_BODY),
    ],
)
async def test_no_member_of_another_type_is_a_failure_of_the_server(path: str, body: dict[str, Any]) -> None:
    failed: list[object] = []
    async with serve_chats(FunctionModel(lambda _: "42", has_native_tools=True)) as site:
        assert (await site.client.post(path, json=body)).status_code == 200
        for place, odd in list_odd(body):
            answer = await site.client.post(path, json=put(body, place, odd))
            told = answer.json().get("error") or {}
            # A model that does not exist is 404.
            if answer.status_code not in {200, 400, 404} or (told and not told["message"]):
                failed.append((place, odd, answer.text[:100]))
    assert failed == []


async def test_what_has_another_type_is_named() -> None:
    async with serve_chats() as site:
        for changed, param in (
            ({"input": [{"type": ["message"], "role": "user", "content": "q"}]}, "input.0.type"),
            ({"input": [{"role": ["user"], "content": "q"}]}, "input.0.role"),
            ({"text": {"format": "json"}}, "text.format"),
            ({"input": ["q"]}, "input.0"),
            ({"input": {"role": "user", "content": "q"}}, "input"),
        ):
            answer = await site.client.post(RESPONSES, json={"model": "reasond", "input": "q", **changed})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_a_query_that_says_nothing_readable_is_refused_by_its_name() -> None:
    async with serve_chats() as site:
        made = await respond(site, input="What is 6 times 7?")
        for below, query, param in (
            ("", "stream=true&starting_after=x", "starting_after"),
            ("", "stream=true&starting_after=1.5", "starting_after"),
            ("", f"stream=true&starting_after={'9' * 5000}", "starting_after"),
            ("", "stream=maybe", "stream"),
            ("/input_items", "limit=0", "limit"),
            ("/input_items", "limit=101", "limit"),
            ("/input_items", "limit=-5", "limit"),
            ("/input_items", "limit=many", "limit"),
            ("/input_items", "order=sideways", "order"),
        ):
            answer = await site.client.get(f"{RESPONSES}/{made['id']}{below}?{query}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (query, answer.text)
        for query in ("stream=true&starting_after=-1", "stream=false", "include=nothing"):
            assert (await site.client.get(f"{RESPONSES}/{made['id']}?{query}")).status_code == 200
