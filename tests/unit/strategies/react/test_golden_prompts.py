"""The requests of ReAct to its model equal the recorded ones byte for byte.

`golden/*.json` hold every request of a run. `python -m tests.unit.strategies.react.test_golden_prompts` writes them
again. Do that only for a change that models are meant to see.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.llm.model import ModelFinish
from reasond_server.testing import FunctionModel, Reply
from tests.unit.strategies.react.parts import Recorder, events_of, native

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatRequest

GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, dict[str, Any]] = {
    "text": {"config": {}},
    "native": {"is_native": True, "config": {}},
    "without_tools": {"config": {"allow_tool_use": False, "max_iterations": 6}},
    "small_window": {"window": 3000, "config": {"max_tokens_per_step": 300}},
    "small_window_native": {"is_native": True, "window": 3000, "config": {"max_tokens_per_step": 300}},
}


def replies(*, is_native: bool, has_tools: bool) -> list[str | Reply]:
    """Return replies that call, repeat themselves, break the protocol and finally answer."""

    def call(place: int) -> str | Reply:
        arguments = f'{{"at": "wall {place}"}}'
        if is_native:
            return native((f"id{place % 2}", "look", arguments), text=f"I look {place} <b>.")
        return f'I look {place}. <action>{{"tool": "look", "arguments": {arguments}}}</action>'

    cut = Reply(text="This was cut", finish=ModelFinish.LENGTH)
    if not has_tools:
        return [cut, "<continue>so far </notes></continue>", "", cut, cut, "It is high."]
    return [
        call(1),
        cut,
        call(2),
        "Observation: it is high. So it is.",
        call(2),
        "<continue>so far</continue>",
        call(3),
        "",
        call(4),
        "<answer>3 m</answer>",
    ]


def describe(request: ChatRequest) -> dict[str, object]:
    """Return the whole content of a request in a form that does not depend on names inside the server."""
    return {
        "messages": [
            [
                str(message.role),
                message.content,
                message.reasoning,
                message.tool_call_id,
                [[call.call_id, call.name, call.arguments_json] for call in message.tool_calls],
            ]
            for message in request.messages
        ],
        "settings": [request.max_tokens, request.temperature, list(request.stop), request.tool_choice, request.label],
        "tools": [[spec.name, spec.description, spec.parameters] for spec in request.tools],
    }


async def requests(case: str) -> str:
    """Return the requests of a case: new messages in full, and a digest of the earlier ones."""
    wanted = CASES[case]
    is_native = wanted.get("is_native", False)
    has_tools = wanted["config"].get("allow_tool_use", True)
    script = iter(replies(is_native=is_native, has_tools=has_tools))
    model = FunctionModel(lambda _: next(script), context_window=wanted.get("window"), has_native_tools=is_native)
    tools = Recorder(lambda call: json.dumps({"seen": call.arguments_json, "long": "stone " * 400}))
    error = ""
    try:
        await events_of(model, tools, material="The wall. </material>", **wanted["config"])
    except ReasondError as raised:
        error = f"{raised.reason}: {raised.message}"
    lines: list[object] = [error]
    before: list[object] = []
    for request in model.requests:
        one = describe(request)
        messages = one["messages"]
        assert isinstance(messages, list)
        known = [message for message in messages if message in before]
        one["messages"] = [message for message in messages if message not in before]
        one["known"] = [len(known), hashlib.sha256(json.dumps(messages).encode()).hexdigest()]
        before = messages
        lines.append(one)
    return "[\n" + ",\n".join(json.dumps(each) for each in lines) + "\n]\n"


@pytest.mark.parametrize("case", CASES)
async def test_prompts_are_those_of_before(case: str) -> None:
    assert await requests(case) == (GOLDEN / f"{case}.json").read_text(encoding="utf-8")


if __name__ == "__main__":
    for name in CASES:
        (GOLDEN / f"{name}.json").write_text(asyncio.run(requests(name)), encoding="utf-8")
