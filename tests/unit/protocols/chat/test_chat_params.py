from __future__ import annotations

from typing import Any

import pytest

from reasond_server.assembly.core import assemble
from reasond_server.config import Settings
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.params import read_params
from reasond_server.protocols.chat.chat_params import ChatParams, read_chat
from reasond_server.protocols.model_catalogue import ModelBudget, ModelCatalogue, ModelPreset
from reasond_server.testing import FunctionModel
from reasond_server.types import Budget

PRESETS = {
    "careful": ModelPreset(
        strategy="self_consistency",
        config={"samples": 9, "temperature": 0.5},
        budget=ModelBudget(max_total_tokens=1000),
        include_deltas=True,
    ),
    "guided": ModelPreset(agent="guide"),
}


@pytest.fixture(scope="module")
def catalogue() -> ModelCatalogue:
    service = assemble(Settings(), model=FunctionModel(lambda _: "42")).reasoning
    return ModelCatalogue(strategies=service.strategies(), presets=PRESETS)


def read(catalogue: ModelCatalogue, **body: Any) -> Any:
    messages = [{"role": "user", "content": "What is 6 times 7?"}]
    return read_chat(read_params(ChatParams, {"model": "reasond", "messages": messages, **body}), catalogue)


def refuse(catalogue: ModelCatalogue, **body: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequestError) as caught:
        read(catalogue, **body)
    return [(one.field, one.description) for one in caught.value.violations]


def test_a_body_becomes_a_task(catalogue: ModelCatalogue) -> None:
    own = {
        "config": {"max_iterations": 3},
        "budget": {"max_model_calls": 5, "max_elapsed_ms": 1500},
        "agent": "guide",
        "material": "a text",
        "request_id": "r-1",
    }
    asked = read(catalogue, model="reasond/react", reasond=own)
    assert asked.request_id == "r-1"
    assert asked.source.query == "What is 6 times 7?"
    assert (asked.source.strategy, asked.source.agent, asked.source.material) == ("react", "guide", "a text")
    assert asked.source.config == {"max_iterations": 3}
    assert asked.source.budget == Budget(max_model_calls=5, max_elapsed_s=1.5)
    assert not asked.include_deltas
    assert asked.warnings == ()


def test_the_parameters_of_openai_have_their_places(catalogue: ModelCatalogue) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "What is 6 times 7?"},
    ]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    task = read(
        catalogue,
        messages=messages,
        stop="END",
        max_tokens=100,
        max_completion_tokens=80,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
        reasond={"budget": {"max_output_tokens": 90}, "model": "small"},
    ).source
    assert (task.query, task.system) == ("What is 6 times 7?", "Be brief.")
    assert [(line.role, line.text) for line in task.history] == [("user", "Hello"), ("assistant", "Hi")]
    assert (task.stop, task.model, task.answer_schema) == (("END",), "small", schema)
    assert task.budget == Budget(max_output_tokens=80)
    assert read(catalogue, stop=["a", "b"]).source.stop == ("a", "b")
    assert read(catalogue, response_format={"type": "json_object"}).source.answer_schema == {"type": "object"}
    assert read(catalogue, response_format={"type": "text"}).source.answer_schema is None


def test_text_inside_a_message_chooses_nothing(catalogue: ModelCatalogue) -> None:
    text = '<optillm_approach>tree_of_thought</optillm_approach> "model": "reasond/react" /strategy react'
    task = read(catalogue, messages=[{"role": "user", "content": text}]).source
    assert (task.strategy, task.config, task.agent) == (None, {}, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("n", 9),
        ("n", True),
        ("n", 0),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x", "format": "wav"}),
        ("web_search_options", {}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(catalogue: ModelCatalogue, name: str, value: object) -> None:
    ((field, description),) = refuse(catalogue, **{name: value})
    assert field == name
    assert "leave it out" in description


def test_what_asks_for_nothing_is_taken(catalogue: ModelCatalogue) -> None:
    nothing: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
        "functions": None,
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "modalities": ["text"],
        "store": False,
        "user": "u",
        "metadata": {"a": "b"},
        "stream_options": None,
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "temperature": None,
    }
    asked = read(catalogue, **nothing)
    assert (asked.source.config, asked.warnings) == ({}, ())


def test_members_of_other_servers_are_ignored_and_told(catalogue: ModelCatalogue) -> None:
    asked = read(catalogue, keep_alive="5m", think=False, repeat_penalty=1.1, max_tokens=-1)
    assert asked.source.budget.max_output_tokens is None
    assert asked.warnings == tuple(
        f"{name} is not known here and has no effect." for name in ("keep_alive", "repeat_penalty", "think")
    )


def test_a_sampling_value_goes_to_the_strategy_or_is_told_to_have_no_effect(catalogue: ModelCatalogue) -> None:
    asked = read(catalogue, temperature=0, top_p=0.9, seed=5)
    assert asked.source.config == {"temperature": 0}
    assert asked.warnings == (
        "top_p has no effect: the strategy has no such parameter.",
        "seed has no effect: the strategy has no such parameter.",
    )
    assert read(catalogue, model="reasond/tree_of_thought", seed=5).source.config == {"seed": 5}


def test_our_own_config_wins_over_a_sampling_value(catalogue: ModelCatalogue) -> None:
    asked = read(catalogue, temperature=0, reasond={"config": {"temperature": 1.5}})
    assert asked.source.config == {"temperature": 1.5}


def test_a_model_of_the_operator_fixes_what_it_says(catalogue: ModelCatalogue) -> None:
    asked = read(catalogue, model="careful", temperature=1, reasond={"budget": {"max_total_tokens": 5000}})
    assert asked.source.strategy == "self_consistency"
    assert asked.source.config == {"samples": 9, "temperature": 0.5}
    assert asked.source.budget == Budget(max_total_tokens=1000)
    assert asked.include_deltas
    assert asked.warnings == ("temperature has no effect: the model 'careful' fixes it.",)
    own = {"config": {"samples": 1}}
    assert refuse(catalogue, model="careful", reasond=own) == [
        ("reasond.config.samples", "is fixed by the model 'careful'; leave it out")
    ]
    assert read(catalogue, model="guided", reasond={"agent": "guide"}).source.agent == "guide"
    ((field, _),) = refuse(catalogue, model="guided", reasond={"agent": "other"})
    assert field == "reasond.agent"
    assert not read(catalogue, model="careful", reasond={"include_deltas": False}).include_deltas


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"model": None}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"reasond": {"strategy": "react"}}, "reasond.strategy"),
        ({"reasond": {"budget": {"max_total_tokens": "5"}}}, "reasond.budget.max_total_tokens"),
        ({"resond": {}}, ""),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_wrong_body_names_the_field(catalogue: ModelCatalogue, body: dict[str, Any], field: str) -> None:
    assert refuse(catalogue, **body)[0][0] == field
