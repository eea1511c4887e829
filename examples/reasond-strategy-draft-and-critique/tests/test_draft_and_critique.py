from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from reasond_draft_and_critique import DraftAndCritique

import reasond
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import ModelFinish
from reasond_server.testing import Reply, ScriptedModel, StrategyConformance, running_server
from reasond_server.types import FinishReason

if TYPE_CHECKING:
    from reasond_server.strategies.strategy import Outcome

DRAFT = "<answer>Paris is the capital of Italy.</answer>"
OBJECTION = "<answer>It is the capital of France.</answer>"
REVISION = "<answer>Paris is the capital of France.</answer>"
CONTENT = "<answer>OK</answer>"


@pytest.mark.parametrize("check", StrategyConformance.CHECKS)
async def test_the_strategy_conforms(check: str) -> None:
    """What the server promises its clients rests on these."""
    assert not await StrategyConformance(DraftAndCritique(), material="Paris is a city.").check(check)


async def ask_draft(replies: list[str | Reply], **config: object) -> Outcome:
    with ScriptedModel(replies) as model:
        return await DraftAndCritique().reason("What is Paris?", model=model, **config)


async def test_an_answer_that_the_critic_objects_to_is_revised_until_it_is_content() -> None:
    outcome = await ask_draft([DRAFT, OBJECTION, REVISION, CONTENT])
    assert (outcome.answer, outcome.finish_reason) == ("Paris is the capital of France.", FinishReason.ANSWERED)
    assert outcome.metrics.data == {"rounds": 2, "is_accepted": True}


async def test_the_critic_is_shown_the_draft_and_the_author_the_objections() -> None:
    model = ScriptedModel([DRAFT, OBJECTION, REVISION])
    await DraftAndCritique().reason("What is Paris?", model=model, max_rounds=1)
    critique, revision = (request.messages[-1].content for request in model.requests[1:])
    assert "capital of Italy" in critique
    assert "Objections:\nIt is the capital of France." in revision


async def test_a_critic_that_always_objects_ends_with_the_last_revision_and_a_warning() -> None:
    outcome = await ask_draft([DRAFT, OBJECTION, REVISION], max_rounds=1)
    assert (outcome.answer, outcome.finish_reason) == ("Paris is the capital of France.", FinishReason.MAX_ITERATIONS)
    assert outcome.warnings


async def test_without_rounds_the_draft_is_the_answer() -> None:
    assert (await ask_draft([REVISION], max_rounds=0)).finish_reason is FinishReason.ANSWERED


async def test_an_empty_draft_and_a_filtered_one_end_the_run_as_such() -> None:
    assert (await ask_draft([""])).finish_reason is FinishReason.TRUNCATED
    filtered = Reply(text="<answer>Pa", finish=ModelFinish.CONTENT_FILTER)
    assert (await ask_draft([filtered])).finish_reason is FinishReason.CONTENT_FILTERED


async def test_an_empty_revision_leaves_the_answer_as_it_was() -> None:
    assert (await ask_draft([DRAFT, OBJECTION, ""], max_rounds=1)).answer == "Paris is the capital of Italy."


async def test_what_cannot_fit_the_window_is_refused_with_the_figures() -> None:
    model = ScriptedModel([], context_window=2000)
    with pytest.raises(InvalidConfigError, match="below a third of the model's context window of 2000 tokens"):
        await DraftAndCritique().reason("What is Paris?", model=model)
    with pytest.raises(ContextExhaustedError, match="of the model's context window of 2000"):
        await DraftAndCritique().reason("Why? " * 1000, model=model, max_tokens=100)


async def test_it_serves_over_grpc_with_its_config_steps_metrics_and_errors() -> None:
    model = ScriptedModel([DRAFT, OBJECTION, REVISION])
    async with (
        running_server(model=model, strategies=[DraftAndCritique()]) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        stream = client.reason_iterations("What is Paris?", strategy="draft_and_critique", config={"max_rounds": 1})
        kinds = [event.iteration.custom["kind"] async for event in stream if event.WhichOneof("event") == "iteration"]
        assert kinds == ["draft", "critique", "revision"]
        assert stream.result is not None
        assert stream.result.metrics.custom["rounds"] == 1
        with pytest.raises(reasond.InvalidRequestError) as refused:
            await client.reason("What is Paris?", strategy="draft_and_critique", config={"max_rounds": 99})
    assert refused.value.violations[0].field == "task.custom.max_rounds"
