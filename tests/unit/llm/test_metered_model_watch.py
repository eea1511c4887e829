"""Each model call is reported once, with the time of its first content and its outcome."""

from __future__ import annotations

from contextlib import aclosing
from itertools import count

import pytest

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelTimeoutError
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ChatRequest, Message, Role
from reasond_server.telemetry.observers import Observer
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.types import Budget


class Told(Observer):
    """Keeps the reports that it receives."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []

    def first_content(self, model: str, after_s: float) -> None:
        self.lines.append(("first", model, f"{after_s:g}"))

    def model_call_ended(self, model: str, outcome: str, duration_s: float) -> None:
        self.lines.append((outcome, model, f"{duration_s:g}"))


REQUEST = ChatRequest(messages=[Message(role=Role.USER, content="?")], max_tokens=50)


def build_observed(*replies: str | Reply | Exception) -> tuple[MeteredModel, Told]:
    told, seconds = Told(), count()
    model = ScriptedModel(list(replies))  # type: ignore[arg-type]  # replies of every type
    return MeteredModel(
        model=model, budget=Budget(max_model_calls=1), observer=told, monotonic=lambda: float(next(seconds))
    ), told


async def test_a_call_that_ends_tells_its_first_content_and_its_finish() -> None:
    model, told = build_observed("four")
    assert [event async for event in model.stream(REQUEST)]
    assert told.lines == [("first", model.name, "1"), ("stop", model.name, "2")]


async def test_a_call_that_is_left_is_closed() -> None:
    model, told = build_observed("four and five")
    async with aclosing(model.stream(REQUEST)) as events:
        async for _ in events:
            break
    assert [line[0] for line in told.lines] == ["first", "closed"]


async def test_a_call_that_fails_tells_the_reason() -> None:
    model, told = build_observed(Reply(error=ModelTimeoutError("late")))
    with pytest.raises(ModelTimeoutError):
        _ = [event async for event in model.stream(REQUEST)]
    assert [line[0] for line in told.lines] == ["MODEL_TIMEOUT"]


async def test_a_fault_of_a_model_is_internal() -> None:
    model, told = build_observed(Reply(error=ValueError("boom")))  # type: ignore[arg-type]  # no model should raise it
    with pytest.raises(ValueError, match="boom"):
        _ = [event async for event in model.stream(REQUEST)]
    assert [line[0] for line in told.lines] == ["INTERNAL"]


async def test_a_call_that_the_budget_refuses_is_not_told() -> None:
    model, told = build_observed("four", "never")
    _ = [event async for event in model.stream(REQUEST)]
    with pytest.raises(TokenBudgetExhaustedError):
        _ = [event async for event in model.stream(REQUEST)]
    assert [line[0] for line in told.lines] == ["first", "stop"]
