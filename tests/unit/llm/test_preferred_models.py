"""Models in an order of preference: when the next one is asked, and when it is not."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from reasond_server.errors import ModelFailedError, ModelUnavailableError
from reasond_server.llm.model import ChatRequest, Message, Role, Text
from reasond_server.llm.preferred_models import PreferredModels
from reasond_server.testing import Reply, ScriptedModel

REQUEST = ChatRequest(messages=[Message(role=Role.USER, content="hello")], max_tokens=16)


async def read_text(model: PreferredModels) -> str:
    text = ""
    async with aclosing(model.stream(REQUEST)) as events:
        async for event in events:
            text += event.text if isinstance(event, Text) else ""
    return text


async def test_the_next_model_is_asked_after_an_error_that_spent_nothing() -> None:
    model = PreferredModels([ScriptedModel([Reply(error=ModelUnavailableError("away"))]), ScriptedModel(["second"])])
    assert await read_text(model) == "second"


async def test_an_error_that_spent_tokens_is_the_callers() -> None:
    model = PreferredModels(
        [ScriptedModel([Reply(text="half", error=ModelFailedError("broke"))]), ScriptedModel(["second"])]
    )
    with pytest.raises(ModelFailedError):
        await read_text(model)


async def test_an_error_after_text_is_the_callers_even_if_its_kind_spends_nothing() -> None:
    model = PreferredModels(
        [ScriptedModel([Reply(text="half", error=ModelUnavailableError("away"))]), ScriptedModel(["second"])]
    )
    with pytest.raises(ModelUnavailableError):
        await read_text(model)


async def test_the_error_of_the_last_model_is_the_callers() -> None:
    model = PreferredModels([ScriptedModel([Reply(error=ModelUnavailableError(name))]) for name in ("first", "second")])
    with pytest.raises(ModelUnavailableError, match="second"):
        await read_text(model)


def test_without_models_there_is_none() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PreferredModels([])
