from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

from reasond import (
    AgentCard,
    BoundedContextConfig,
    Budget,
    CarryoverMode,
    ChainOfThoughtConfig,
    HistoryMessage,
    Image,
    ReasoningTask,
    Speaker,
    TreeSearch,
)
from reasond.requests import reasoning_task, register_request, request_id_or_new


def task(strategy: str | None = None, config: Any = None, **changes: Any) -> ReasoningTask:
    values: dict[str, Any] = {"material": "", "agent": "", "agent_capabilities": (), "budget": None}
    values |= {"system": "", "history": (), "model": None, "stop": (), "answer_schema": None, "images": ()}
    return reasoning_task("why?", strategy=strategy, config=config, **(values | changes))


def test_what_is_not_given_is_not_set() -> None:
    assert task() == ReasoningTask(query="why?")
    assert not task().HasField("strategy")
    assert not task().HasField("budget")


def test_every_field_of_a_task_is_carried() -> None:
    budget = Budget(max_total_tokens=9)
    full = task("react", material="long", agent="a1", agent_capabilities=["x", "y"], budget=budget)
    assert (full.strategy, full.material, full.agent) == ("react", "long", "a1")
    assert list(full.agent_capabilities) == ["x", "y"]
    assert full.budget == budget
    more = task(
        system="Be brief.",
        history=[("user", "hi"), HistoryMessage(role=Speaker.SPEAKER_ASSISTANT, text="hello")],
        model="fast",
        stop=["###"],
        answer_schema={"type": "integer"},
        images=[("image/gif", b"GIF89a"), Image(media_type="image/png", data=b"x")],
    )
    assert [(each.media_type, each.data) for each in more.images] == [("image/gif", b"GIF89a"), ("image/png", b"x")]
    assert (more.system, more.model, list(more.stop)) == ("Be brief.", "fast", ["###"])
    assert [(Speaker.Name(each.role), each.text) for each in more.history] == [
        ("SPEAKER_USER", "hi"),
        ("SPEAKER_ASSISTANT", "hello"),
    ]
    assert json.loads(more.answer_schema_json) == {"type": "integer"}


def test_an_author_that_no_message_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"role must be one of USER, ASSISTANT.*, not 'robot'"):
        task(history=[("robot", "42")])


def test_a_message_chooses_its_own_case() -> None:
    assert task(config=ChainOfThoughtConfig(max_tokens=200)).chain_of_thought.max_tokens == 200
    assert task(config=BoundedContextConfig()).WhichOneof("config") == "bounded_context"


def test_a_mapping_fills_the_message_of_a_built_in_strategy() -> None:
    config = task("bounded_context", {"chunk_size": 2048, "carryover_mode": "tail", "temperature": 0}).bounded_context
    assert (config.chunk_size, config.carryover_mode) == (2048, CarryoverMode.CARRYOVER_MODE_TAIL)
    assert config.HasField("temperature")
    assert not config.HasField("max_iterations")


def test_none_leaves_a_field_to_the_next_level() -> None:
    config = task("bounded_context", {"chunk_size": None}).bounded_context
    assert not config.HasField("chunk_size")


def test_an_empty_mapping_still_selects_the_message() -> None:
    assert task("react", {}).WhichOneof("config") == "react"


@pytest.mark.parametrize("value", ["BEAM", "beam", "TREE_SEARCH_BEAM", 1])
def test_an_enum_value_is_a_short_name_a_full_name_or_a_number(value: str | int) -> None:
    assert task("tree_of_thought", {"search": value}).tree_of_thought.search == TreeSearch.TREE_SEARCH_BEAM


def test_a_mapping_for_another_strategy_is_a_struct() -> None:
    custom = task("debate", {"rounds": 3, "judges": ["a", "b"], "deep": {"x": None}}).custom
    assert dict(custom) == {"rounds": 3.0, "judges": ["a", "b"], "deep": {"x": None}}


def test_a_struct_may_be_given_as_such() -> None:
    struct = Struct()
    struct.update({"rounds": 3})
    assert task("debate", struct).custom == struct


@pytest.mark.parametrize(
    ("strategy", "config", "message"),
    [
        ("bounded_context", {"chunksize": 1}, "has no field 'chunksize'; did you mean 'chunk_size'"),
        ("react", {"zzz": 1}, "has no field 'zzz'; did you mean"),
        ("react", {3: 1}, "has no field '3'"),
        ("react", {"max_iterations": "many"}, "max_iterations must be a whole number of 32 bits, not 'many'"),
        ("react", {"max_iterations": 2**40}, "max_iterations must be a whole number of 32 bits, not '1099511627776'"),
        ("react", {"temperature": "warm"}, "temperature must be a number, not 'warm'"),
        ("react", {"max_iterations": True}, "max_iterations must not be True or False"),
        ("react", {"allow_tool_use": 1}, "allow_tool_use must be True or False"),
        ("tree_of_thought", {"search": "deepest"}, "search must be one of BEAM, BEST_FIRST, not 'deepest'"),
        (None, {"max_tokens": 1}, "needs `strategy`"),
        ("debate", {"when": object()}, "only what JSON can say"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_before_anything_is_sent(
    strategy: str | None, config: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        task(strategy, config)


@pytest.mark.parametrize("config", [3, "max_tokens=1", Budget()])
def test_a_config_of_another_type_is_refused(config: Any) -> None:
    with pytest.raises(TypeError, match="must be a configuration message or a mapping"):
        task("react", config)


def test_a_request_id_is_made_up_once_per_call_and_kept_if_given() -> None:
    assert request_id_or_new("mine") == "mine"
    assert request_id_or_new("") == ""
    assert len({request_id_or_new(None) for _ in range(10)}) == 10


def test_a_card_is_a_message_a_text_or_a_mapping() -> None:
    text = '{ "id" : "a" }'
    assert register_request(AgentCard(name="n"), agent_id="a", ttl_s=None, etag="").card.name == "n"
    assert register_request(text, agent_id="", ttl_s=None, etag="").card_json == text
    assert json.loads(register_request({"id": "a"}, agent_id="", ttl_s=None, etag="").card_json) == {"id": "a"}


def test_a_time_to_live_is_kept_to_the_nanosecond() -> None:
    request = register_request("{}", agent_id="a", ttl_s=1.5, etag="e")
    assert (request.ttl.seconds, request.ttl.nanos, request.etag) == (1, 500_000_000, "e")
    assert not register_request("{}", agent_id="a", ttl_s=None, etag="").HasField("ttl")
