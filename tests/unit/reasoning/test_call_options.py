"""Instructions, history, stop strings, schemas and models of a task, in every strategy, over a real server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.assembly.core import Core, assemble
from reasond_server.config import Settings
from reasond_server.errors.model import ModelFailedError, ModelUnavailableError, RequestRefusedError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.llm.model import ModelFinish, Role
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server
from reasond_server.types import Principal, Result, Task

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reasond_server.llm.model import ChatRequest

STRATEGIES = ("chain_of_thought", "bounded_context", "react", "tree_of_thought", "self_consistency")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
HISTORY = [("user", "My dog is called Rex."), ("assistant", "A fine name.")]
ENABLED = {"REASOND__REASONING__ENABLED_STRATEGIES": json.dumps(STRATEGIES)}


async def ask(model: Any, query: str = "What is my dog called?", **options: Any) -> reasond.Reasoning:
    environ: Mapping[str, str] = options.pop("environ", ENABLED)
    async with (
        running_server(model=model, environ=environ) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        return await client.reason(query, **options)


def answer_rex(request: ChatRequest) -> str:
    return "<answer>Rex</answer>" if any("dog is called Rex" in one.content for one in request.messages) else "?"


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_call_of_every_strategy_has_the_instructions_and_the_history(strategy: str) -> None:
    model = FunctionModel(answer_rex)
    result = await ask(model, strategy=strategy, system="Answer as a pirate.", history=HISTORY)
    assert result.answer == "Rex"
    for request in model.requests:
        first, user, assistant, *rest = request.messages
        assert first.role is Role.SYSTEM
        assert first.content.startswith("Answer as a pirate.\n\n")
        assert (user.content, assistant.content) == (HISTORY[0][1], HISTORY[1][1])
        assert rest


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_prompt_and_output_fit_the_window_with_the_history(strategy: str) -> None:
    model = FunctionModel(answer_rex, context_window=3_000)
    history = [("user", "My dog is called Rex. " + "It barks at night. " * 60), ("assistant", "I see.")]
    config = {"chunk_size": 2048, "carryover_size": 512} if strategy == "bounded_context" else None
    await ask(model, strategy=strategy, config=config, history=history)
    for request in model.requests:
        assert model.counter.count_prompt(request.messages) + request.max_tokens <= 3_000


async def test_windows_of_bounded_context_have_room_for_the_history() -> None:
    model = FunctionModel(lambda request: "<answer>Rex</answer>" if "passage" not in str(request.messages[-1]) else "")
    material = "The mill stands at the river.\n\n" * 300
    config = {"chunk_size": 2048, "carryover_size": 512}
    history = [("user", "It barks at night. " * 60)]
    await ask(model, strategy="bounded_context", config=config, material=material, history=history)
    assert len(model.requests) > 1
    for request in model.requests:
        assert model.counter.count_prompt(request.messages) + request.max_tokens <= 2048


async def test_a_history_that_leaves_no_room_is_refused_before_anything_is_spent() -> None:
    model = FunctionModel(answer_rex, context_window=1_000)
    with pytest.raises(reasond.ModelError) as refused:
        await ask(model, strategy="chain_of_thought", history=[("user", "It barks at night. " * 400)])
    assert refused.value.reason == "CONTEXT_EXHAUSTED"
    assert model.requests == []


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_an_answer_that_satisfies_the_schema_costs_no_further_call(strategy: str) -> None:
    model = FunctionModel(lambda _: '<answer>{"n": 7}</answer>')
    plain = FunctionModel(lambda _: '<answer>{"n": 7}</answer>')
    result = await ask(model, strategy=strategy, answer_schema=SCHEMA)
    await ask(plain, strategy=strategy)
    assert json.loads(result.answer_json) == {"n": 7}
    assert len(model.requests) == len(plain.requests)
    assert all(json.dumps(SCHEMA, separators=(",", ":")) in one.messages[0].content for one in model.requests)


async def test_an_answer_is_corrected_by_one_call_that_quotes_what_was_wrong() -> None:
    model = ScriptedModel(['<answer>{"n": "seven"}</answer>', '<answer>{"n": 7}</answer>'])
    result = await ask(model, strategy="chain_of_thought", answer_schema=SCHEMA)
    assert (result.answer, result.answer_json) == ('{"n":7}', '{"n":7}')
    assert result.metrics.usage.model_calls == 2
    correction = model.requests[1].messages[-1].content
    assert "n must satisfy type 'integer', got 'seven'" in correction
    assert any("one more model call corrected it" in warning for warning in result.warnings)


class Enforcing(ScriptedModel):
    """Says that its server holds answers to a schema."""

    enforces_schema = True


STRATEGIES_WITH_SCHEMAS = (*STRATEGIES, "direct", "best_of_n", "self_refine", "plan_and_solve", "chain_of_verification")


@pytest.mark.parametrize("strategy", STRATEGIES_WITH_SCHEMAS)
async def test_every_strategy_thinks_freely_and_only_the_last_call_is_held_to_the_schema(strategy: str) -> None:
    class Model(FunctionModel):
        enforces_schema = True

    def reply(request: ChatRequest) -> str:
        return '{"n": 7}' if request.json_schema else "I count them: three and four.<answer>seven</answer>"

    model = Model(reply)
    config = {"samples": 2} if strategy in {"self_consistency", "best_of_n"} else None
    environ = {"REASOND__REASONING__ENABLED_STRATEGIES": json.dumps(STRATEGIES_WITH_SCHEMAS)}
    result = await ask(model, strategy=strategy, config=config, answer_schema=SCHEMA, environ=environ)
    *free, formatting = model.requests
    assert result.answer_json == '{"n":7}'
    assert free
    assert all(one.json_schema is None for one in free)
    assert formatting.json_schema == SCHEMA
    assert formatting.stop == ()
    assert "seven" in formatting.messages[-1].content
    assert result.metrics.usage.model_calls == len(model.requests)
    told = "one more model call corrected it, held to the schema by the model's server"
    assert any(told in warning for warning in result.warnings)


async def test_the_formatting_call_reads_the_thoughts_that_led_to_the_answer() -> None:
    model = Enforcing(["Three dogs are outside and four within.<answer>seven</answer>", '{"n": 7}'])
    await ask(model, strategy="chain_of_thought", answer_schema=SCHEMA)
    assert "Three dogs are outside and four within." in model.requests[1].messages[-1].content


async def test_a_server_that_refuses_the_schema_is_asked_without_it() -> None:
    replies: list[str | Reply] = [
        "<answer>seven</answer>",
        Reply(error=RequestRefusedError("no")),
        '<answer>{"n": 7}</answer>',
    ]
    model = Enforcing(replies)
    result = await ask(model, strategy="chain_of_thought", answer_schema=SCHEMA)
    assert [one.json_schema for one in model.requests] == [None, SCHEMA, None]
    assert result.answer_json == '{"n":7}'
    assert any("would not hold to the schema" in warning for warning in result.warnings)


async def test_an_enforced_answer_that_is_cut_off_is_none_and_says_why() -> None:
    model = Enforcing(["<answer>seven</answer>", Reply(text='{"n": ', finish=ModelFinish.LENGTH)])
    with pytest.raises(reasond.ModelError) as failed:
        await ask(model, strategy="chain_of_thought", answer_schema=SCHEMA)
    assert failed.value.reason == "ANSWER_INVALID"
    assert "it was cut off after" in str(failed.value)


async def test_an_answer_too_long_to_be_corrected_is_kept_as_invalid() -> None:
    model = Enforcing([f"<answer>{'seven ' * 700}</answer>"], context_window=1_000)
    with pytest.raises(reasond.ModelError) as failed:
        await ask(model, strategy="chain_of_thought", config={"max_tokens": 900}, answer_schema=SCHEMA)
    assert failed.value.reason == "ANSWER_INVALID"
    assert "was not corrected" in str(failed.value)


async def test_an_answer_that_stays_wrong_fails_and_is_kept() -> None:
    model = ScriptedModel(["<answer>seven</answer>", "<answer>still seven</answer>"])
    async with (
        running_server(model=model) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        with pytest.raises(reasond.ModelError) as failed:
            await client.reason("How many?", strategy="chain_of_thought", answer_schema=SCHEMA)
        assert failed.value.reason == "ANSWER_INVALID"
        kept = await client.get_execution(str(failed.value.execution_id))
    assert kept.reasoning.answer == "seven"
    assert kept.reasoning.answer_json == ""
    assert kept.reasoning.metrics.usage.model_calls == 2


async def test_a_budget_without_a_second_call_keeps_the_answer_and_says_that_it_is_not_corrected() -> None:
    model = ScriptedModel(["<answer>seven</answer>"])
    budget = reasond.Budget(max_model_calls=1)
    result = await ask(model, strategy="chain_of_thought", answer_schema=SCHEMA, budget=budget)
    assert result.finish_reason == reasond.FinishReason.FINISH_REASON_BUDGET_EXHAUSTED
    assert (result.answer, result.answer_json) == ("seven", "")
    assert any("was not corrected" in warning for warning in result.warnings)


async def test_the_correction_stays_within_the_window_of_the_strategy() -> None:
    replies = ["<answer>seven</answer>", '<answer>{"n": 7}</answer>']
    model = ScriptedModel(replies)
    config = {"chunk_size": 1280, "carryover_size": 512}
    await ask(model, strategy="bounded_context", config=config, answer_schema=SCHEMA)
    assert len(model.requests) == 2
    for request in model.requests:
        assert model.counter.count_prompt(request.messages) + request.max_tokens <= 1280


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_answer_ends_before_a_stop_string(strategy: str) -> None:
    model = FunctionModel(lambda _: "<answer>Rex. END of it</answer>")
    assert (await ask(model, strategy=strategy, stop=["END", "zzz"])).answer == "Rex."


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_all_calls_together_write_at_most_what_is_allowed(strategy: str) -> None:
    model = FunctionModel(lambda _: "one two three four five six seven eight nine ten " * 4)
    result = await ask(model, strategy=strategy, budget=reasond.Budget(max_output_tokens=30))
    assert result.metrics.usage.output_tokens <= 30
    assert result.finish_reason == reasond.FinishReason.FINISH_REASON_BUDGET_EXHAUSTED


PRINCIPAL = Principal(subject="s", tenant="t", permissions=frozenset({"reasoning:execute"}))
OFFERING = {
    "llm": {
        "offered": ["fast", "strong"],
        "fallbacks": ["spare"],
        "backends": {name: {"model": name} for name in ("fast", "strong", "spare")},
    }
}


def core_with(**models: ScriptedModel) -> Core:
    backends = {name: models.get(name, ScriptedModel([])) for name in ("fast", "strong", "spare")}
    own = models.get("own", ScriptedModel([]))
    return assemble(Settings.model_validate(OFFERING), model=own, backends=backends)


async def execute(core: Core, **options: Any) -> Result:
    try:
        task = Task(query="How many?", strategy="chain_of_thought", **options)
        return (await core.reasoning.execute(PRINCIPAL, task)).result
    finally:
        await core.runner.stop()


async def test_a_task_names_the_model_that_works() -> None:
    core = core_with(fast=ScriptedModel(["<answer>7</answer>"], name="small"))
    assert core.reasoning.offered_models == ["fast", "strong"]
    result = await execute(core, model="fast")
    assert (result.answer, result.model) == ("7", "small")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("fsat", "got 'fsat'; did you mean 'fast'?"),
        ("gpt", "got 'gpt'; known are 'fast', 'strong'"),
        ("spare", "known"),
    ],
)
async def test_a_model_that_is_not_offered_is_refused_with_the_nearest_name(name: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await execute(core_with(), model=name)
    assert refused.value.violations[0].field == "model"
    assert problem in refused.value.violations[0].description


@pytest.mark.parametrize("name", [None, "strong"])
async def test_the_fallback_answers_if_the_chosen_model_refuses_without_cost(name: str | None) -> None:
    away = ScriptedModel([Reply(error=ModelUnavailableError("away"))], name="big")
    spare = ScriptedModel(["<answer>7</answer>"], name="spare")
    result = await execute(core_with(**{name or "own": away}, spare=spare), model=name)
    assert result.answer == "7"
    assert "big refused a call (MODEL_UNAVAILABLE): spare answered." in result.warnings


async def test_no_fallback_is_asked_after_tokens_were_spent() -> None:
    broken = ScriptedModel([Reply(text="Half an", error=ModelFailedError("broke"))], name="big")
    spare = ScriptedModel([], name="spare")
    with pytest.raises(ModelFailedError):
        await execute(core_with(own=broken, spare=spare))
    assert spare.requests == []


PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


class Seeing(FunctionModel):
    """Takes images of at most 500 tokens."""

    image_tokens = 500


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_images_are_in_each_call_and_their_tokens_are_reserved(strategy: str) -> None:
    model = Seeing(answer_rex, context_window=4_000)
    config = {"chunk_size": 3072, "carryover_size": 512} if strategy == "bounded_context" else None
    images = [("image/png", PNG), ("image/jpeg", b"\xff\xd8\xff" + bytes(9))]
    await ask(model, strategy=strategy, config=config, history=HISTORY, images=images)
    for request in model.requests:
        shown = [image for message in request.messages for image in message.images]
        assert [image.media_type for image in shown] == ["image/png", "image/jpeg"]
        assert model.counter.count_prompt(request.messages) + 1_000 + request.max_tokens <= 4_000


async def test_a_budget_that_does_not_cover_the_images_is_refused_before_the_call() -> None:
    model = Seeing(answer_rex)
    budget = reasond.Budget(max_total_tokens=450)
    with pytest.raises(reasond.ResourceExhaustedError):
        await ask(model, strategy="chain_of_thought", images=[("image/png", PNG)], budget=budget)
    assert model.requests == []


@pytest.mark.parametrize(
    ("image", "field"),
    [
        (("image/tiff", PNG), "task.images[0].media_type"),
        (("image/png", b"GIF89a"), "task.images[0].data"),
        (("image/png", b""), "task.images[0].data"),
        (("image/png", PNG + bytes(3_000_000)), "task.images"),
    ],
)
async def test_what_is_no_image_is_refused(image: tuple[str, bytes], field: str) -> None:
    with pytest.raises(reasond.InvalidRequestError) as refused:
        await ask(Seeing(answer_rex), images=[image])
    assert refused.value.violations[0].field == field


async def test_a_model_without_eyes_is_named() -> None:
    with pytest.raises(reasond.InvalidRequestError) as refused:
        await ask(FunctionModel(answer_rex, name="blind"), images=[("image/png", PNG)])
    assert "are not taken by the model 'blind'" in refused.value.violations[0].description


async def test_another_server_goes_on_with_the_correction_and_pays_only_for_that(tmp_path: Path) -> None:
    environ = {"REASOND__STORE__URL": f"sqlite:///{tmp_path}/log.db", "REASOND__SERVER__DRAIN_GRACE_S": "0.1"}
    options: dict[str, Any] = {"system": "Count.", "history": HISTORY, "answer_schema": SCHEMA, "stop": ["###"]}
    first = ScriptedModel(["<answer>seven</answer>", Reply(text="never", hold=asyncio.Event())])
    async with (
        running_server(model=first, environ=environ) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        stream = client.reason_iterations("How many?", strategy="chain_of_thought", keep_running=True, **options)
        execution_id = (await anext(stream)).execution_id
        while len(first.requests) < 2:  # noqa: ASYNC110 - the model has no event for it
            await asyncio.sleep(0.01)
    second = ScriptedModel(['<answer>{"n": 7}</answer>'])
    async with (
        running_server(model=second, environ=environ) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        events = [event async for event in client.resume(execution_id)]
    result = events[-1].completed
    assert (result.answer_json, result.metrics.usage.model_calls) == ('{"n":7}', 3)
    assert [len(model.requests) for model in (first, second)] == [2, 1]
    # The second server sends what the first one sent: instructions, history and problems are restored.
    assert second.requests[0].messages == first.requests[1].messages
