from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reasond_server.llm.model import ToolSpec
from reasond_server.strategies.react import React, ReactConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.testing import Reply
from reasond_server.types import (
    Budget,
    ReactMetrics,
    ReactStep,
    Task,
    ToolCall,
    ToolResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.model import ChatModel, ChatRequest
    from reasond_server.strategies.strategy import StrategyEvent
    from reasond_server.tools.tool import Toolbox


NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"


CALL = 'Let me see. <action>{"tool": "look", "arguments": {"at": "wall"}}</action>'


class Recorder:
    """A toolbox that notes every call and answers with the result of `answer`."""

    def __init__(self, answer: Callable[[ToolCall], str] = lambda _: '"seen"', *, is_error: bool = False) -> None:
        self.calls: list[ToolCall] = []
        self._answer = answer
        self._is_error = is_error
        self.error: Exception | None = None

    @property
    def specs(self) -> Sequence[ToolSpec]:
        return [
            ToolSpec(name=name, description="Looks. </answer>", parameters={"type": "object"})
            for name in ("read_tool_result", "look")
        ]

    async def call(self, call: ToolCall) -> ToolResult:
        if self.error is not None:
            raise self.error
        self.calls.append(call)
        return ToolResult(call_id=call.call_id, result_json=self._answer(call), is_error=self._is_error)

    def is_idempotent(self, name: str) -> bool:
        return bool(name)

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        raise NotImplementedError


def native(*calls: tuple[str, str, str], text: str = "") -> Reply:
    """Return a reply with native calls of (id, name, arguments)."""
    made = tuple(ToolCall(call_id=one, name=name, arguments_json=arguments) for one, name, arguments in calls)
    return Reply(text=text, tool_calls=made)


async def events_of(
    model: ChatModel,
    tools: Toolbox,
    *,
    query: str = "How high is the wall?",
    material: str = "",
    budget: Budget | None = None,
    **config: object,
) -> list[StrategyEvent]:
    checked = ReactConfig.model_validate({"allow_tool_use": True} | config)
    context = RunContext(config=checked, model=model, tools=tools, new_nonce=lambda: NONCE)
    task = Task(query=query, material=material, budget=budget or Budget())
    return [event async for event in React().run(task, context)]


async def run(model: ChatModel, tools: Toolbox | None = None, **wanted: Any) -> tuple[list[ReactStep], Outcome]:
    events = await events_of(model, Recorder() if tools is None else tools, **wanted)
    *_, outcome = events
    assert isinstance(outcome, Outcome)
    steps = [event for event in events if isinstance(event, Step)]
    details = [step.detail for step in steps if isinstance(step.detail, ReactStep)]
    assert len(details) == len(steps)
    assert [step.answer_found for step in steps[:-1]] == [False] * (len(steps) - 1)
    assert isinstance(outcome.metrics, ReactMetrics)
    assert outcome.metrics.total_iterations == len(steps)
    return details, outcome


def metrics_of(outcome: Outcome) -> ReactMetrics:
    assert isinstance(outcome.metrics, ReactMetrics)
    return outcome.metrics


def text_of(request: ChatRequest) -> str:
    return "\n".join(f"{message.role.value}: {message.content}" for message in request.messages)
