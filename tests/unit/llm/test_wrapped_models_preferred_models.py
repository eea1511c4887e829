"""Models in an order of preference: when the next one is asked, and when it is not."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from reasond_server.errors.model import ModelFailedError, ModelUnavailableError
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import ChatRequest, Finished, Message, Role, Text
from reasond_server.llm.wrapped_models import PreferredModels
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


async def test_the_result_tells_which_model_answered() -> None:
    model = PreferredModels([ScriptedModel([Reply(error=ModelUnavailableError("away"))]), ScriptedModel(["second"])])
    async with aclosing(model.stream(REQUEST)) as events:
        finished = [event async for event in events if isinstance(event, Finished)]
    assert [event.warnings for event in finished] == [
        ("scripted refused a call (MODEL_UNAVAILABLE): scripted answered.",)
    ]
    assert [event.model for event in finished] == ["scripted"]


async def test_several_models_count_as_the_one_that_counts_most() -> None:
    class ByLetter(WordPieceCounter):
        def count_text(self, text: str) -> int:
            return len(text)

        def head(self, text: str, tokens: int) -> str:
            return text[:tokens]

        def tail(self, text: str, tokens: int) -> str:
            return text[-tokens:] if tokens else ""

    model = PreferredModels([ScriptedModel([]), ScriptedModel([], counter=ByLetter())])
    assert not model.counter.is_exact
    assert model.counter.count_text("twelve words") == 12
    assert model.counter.head("twelve words", 6) == "twelve"
    assert model.counter.tail("twelve words", 5) == "words"
    assert await model.count_exactly(REQUEST.messages) is None
    assert PreferredModels([ScriptedModel([])]).counter.is_exact


def test_without_models_there_is_none() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PreferredModels([])


@pytest.mark.parametrize(("others", "is_enforced"), [([True], True), ([True, False], False)])
def test_a_schema_is_enforced_where_every_model_does_it(others: list[bool], *, is_enforced: bool) -> None:
    models = [ScriptedModel([]) for _ in (True, *others)]
    for model, enforces in zip(models, (True, *others), strict=True):
        model.enforces_schema = enforces  # type: ignore[attr-defined] # an attribute that models may have
        model.most_logprobs = 20 if enforces else 0
    assert PreferredModels(models).enforces_schema is is_enforced
    assert PreferredModels(models).most_logprobs == (20 if is_enforced else 0)
