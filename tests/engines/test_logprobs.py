"""Log probabilities over a real engine whose probabilities are known: those of tokens, of a judge and of votes."""

from __future__ import annotations

import os
from contextlib import aclosing
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from reasond_server.context.scores import expect_score
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ChatRequest, Finished, Message, Role
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import find_profile
from reasond_server.strategies.self_consistency import SelfConsistency, SelfConsistencyConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.types import Budget, Sample, Task
from tests.engines.serving import Engine, running_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.llm.openai.openai_model import OpenAIModel

MISSING = [name for name in ("xllamacpp", "gguf", "openai", "aiohttp") if find_spec(name) is None]
IS_CI = os.environ.get("CI") == "true"
pytestmark = pytest.mark.skipif(bool(MISSING) and not IS_CI, reason=f"not installed: {', '.join(MISSING)}")
CHANCES = {"7": 0.6, "3": 0.3, "9": 0.1}
EXPECTED = sum(int(digit) * chance for digit, chance in CHANCES.items()) / 9


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with running_engine("score", folder=tmp_path_factory.mktemp("models"), slots=4) as running:
        yield running


def model_on(engine: Engine, profile: str) -> OpenAIModel:
    found = find_profile("any", engine.base_url, profile)
    return build_model(BackendOptions(name="engine", model="any", base_url=engine.base_url, profile=found))


async def ask(model: OpenAIModel) -> Finished:
    request = ChatRequest(
        messages=(Message(role=Role.USER, content="Score it."),), max_tokens=20, temperature=0.0, top_logprobs=20
    )
    async with aclosing(model.stream(request)) as events:
        *_, end = [event async for event in events]
    assert isinstance(end, Finished)
    return end


async def test_the_probabilities_of_tokens_and_the_expected_score_are_those_of_the_chain(engine: Engine) -> None:
    async with aclosing(model_on(engine, "llamacpp")) as model:
        end = await ask(model)
    (digit,) = [token for token in end.tokens if token.text == "7"]
    told = {text: pytest.approx(CHANCES[text], abs=1e-4) for text, _ in digit.top if text in CHANCES}
    assert {text: 2.718281828459045**logprob for text, logprob in digit.top if text in CHANCES} == told
    assert len(told) == len(CHANCES)
    assert expect_score(end.tokens, "7") == pytest.approx(EXPECTED, abs=1e-4)


async def test_a_profile_without_logprobs_is_not_asked_for_any(engine: Engine) -> None:
    async with aclosing(model_on(engine, "generic")) as model:
        end = await ask(model)
    assert (list(end.tokens), end.warnings) == ([], ())


async def test_votes_weigh_what_the_chain_makes_its_samples(engine: Engine) -> None:
    """A sample has one uncertain token of all; its weight is the geometric mean of all its probabilities."""
    async with aclosing(model_on(engine, "llamacpp")) as model:
        config = SelfConsistencyConfig(samples=8, temperature=1.0, max_tokens=100, weigh_votes=True)
        context = RunContext(config=config, model=MeteredModel(model=model, budget=Budget()))
        events = [event async for event in SelfConsistency().run(Task(query="Which?"), context)]
    samples = [each.detail for each in events if isinstance(each, Step)]
    assert samples
    for sample in samples:
        assert isinstance(sample, Sample)
        sizes = [CHANCES[sample.answer] ** (1 / tokens) for tokens in (2, 3, 4, 5)]
        assert any(sample.weight == pytest.approx(size, abs=1e-3) for size in sizes), (sample, sizes)
    assert isinstance(events[-1], Outcome)
