"""The conformance checks for models, run for this package's models over a real engine, with both protocols."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import pytest

from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, ModelFinish, ReasoningText, Role, Text
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import ModelProfile
from reasond_server.types import UsageSource
from tests.engines.serving import Engine, running_engine
from tests.model_conformance import ModelConformance

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.openai.openai_model import OpenAIModel

MISSING = [name for name in ("xllamacpp", "gguf", "openai", "aiohttp") if find_spec(name) is None]
IS_CI = os.environ.get("CI") == "true"
pytestmark = pytest.mark.skipif(bool(MISSING) and not IS_CI, reason=f"not installed: {', '.join(MISSING)}")

Protocol = Literal["chat", "responses"]
PROTOCOLS: Sequence[Protocol] = ("chat", "responses")
WINDOW = 2048


@pytest.fixture(scope="module", params=["answer", "think", "endless"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with running_engine(request.param, folder=tmp_path_factory.mktemp("models"), window=WINDOW) as running:
        yield running


def model_on(engine: Engine, protocol: Protocol) -> OpenAIModel:
    profile = ModelProfile(name="llamacpp", context_window=WINDOW, count_path="/apply-template")
    options = BackendOptions(
        name="engine", model="any", base_url=engine.base_url, protocol=protocol, profile=profile, max_concurrency=8
    )
    return build_model(options)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("check", ModelConformance.CHECKS)
async def test_a_model_over_a_real_engine_conforms(engine: Engine, protocol: Protocol, check: str) -> None:
    async def busy_slots() -> int:
        return await asyncio.to_thread(engine.busy_slots)

    async with aclosing(model_on(engine, protocol)) as model:
        conformance = ModelConformance(
            model, max_tokens=48, ends_by_itself=engine.chain != "endless", open_calls=busy_slots
        )
        assert not await conformance.check(check)


async def ask_model(model: OpenAIModel, max_tokens: int, stop: Sequence[str] = ()) -> tuple[list[ModelEvent], Finished]:
    messages = (Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content="Six times seven?"))
    request = ChatRequest(messages=messages, max_tokens=max_tokens, temperature=0.0, stop=stop)
    async with aclosing(model.stream(request)) as events:
        *rest, end = [event async for event in events]
    assert isinstance(end, Finished)
    return rest, end


async def test_both_protocols_give_the_same_result(engine: Engine) -> None:
    told = []
    for protocol in PROTOCOLS:
        async with aclosing(model_on(engine, protocol)) as model:
            events, end = await ask_model(model, 20)
        texts = [event.text for event in events if isinstance(event, Text)]
        thoughts = [event.text for event in events if isinstance(event, ReasoningText)]
        assert end.usage.source is UsageSource.REPORTED
        told.append(("".join(texts), "".join(thoughts).strip(), end.reason, end.usage.output_tokens))
    assert told[0] == told[1]
    text, thought, reason, _ = told[0]
    assert bool(thought) is (engine.chain == "think")
    assert reason is (ModelFinish.LENGTH if engine.chain == "endless" else ModelFinish.STOP)
    assert text.endswith("<answer>42</answer>") is (engine.chain != "endless")


async def test_responses_has_no_stop_strings_and_is_stopped_on_our_side(engine: Engine) -> None:
    if engine.chain == "endless":
        pytest.skip("it writes no tag")
    async with aclosing(model_on(engine, "responses")) as model:
        events, end = await ask_model(model, 48, stop=("</answer>",))
    assert "".join(event.text for event in events if isinstance(event, Text)).endswith("<answer>42")
    assert (end.reason, end.matched_stop) == (ModelFinish.STOP, "</answer>")
    assert not end.warnings
