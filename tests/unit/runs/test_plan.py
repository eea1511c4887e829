import re
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.runs.plan import (
    Plan,
    PlanError,
    decode_plan,
    encode_obstacle,
    encode_plan,
    encode_unresumable,
    make_nonces,
    read_work,
)

TEXTS = st.text(max_size=50)
JSON = st.dictionaries(TEXTS, st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, st.lists, max_leaves=5))
PLANS = st.builds(
    Plan,
    work=st.fixed_dictionaries({"task": JSON, "config": JSON}),
    nonce=st.text("abc", min_size=16, max_size=28),
    limit_s=st.none() | st.floats(0, 1e6),
    keep_running=st.booleans(),
    has_request_id=st.booleans(),
    calibration=JSON,
)


@pytest.mark.slow
@given(PLANS)
def test_a_plan_is_read_as_it_was_written(plan: Plan) -> None:
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize("text", ["", '{"v": 2}', "{}", '{"v": 1}', '{"v": 1, "task": 7}'])
def test_a_plan_of_another_version_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="another version"):
        decode_plan(text)


def test_without_a_plan_there_is_a_reason() -> None:
    with pytest.raises(PlanError, match="nobody asked"):
        decode_plan(encode_obstacle("nobody asked"))


def test_the_marks_of_a_run_are_the_same_again_and_all_differ() -> None:
    one, other = make_nonces("m" * 28), make_nonces("m" * 28)
    drawn = [one() for _ in range(20)]
    assert drawn == [other() for _ in range(20)]
    assert drawn[0] == "m" * 28
    assert len(set(drawn)) == 20
    assert all(re.fullmatch("[a-z]{28}", mark) for mark in drawn)
    assert make_nonces("n" * 28)() != drawn[0]


@pytest.mark.parametrize("query", ["six times seven", "ä\x00\u2028", "\ud800 alone"])
def test_a_plan_that_nobody_can_follow_still_tells_what_was_asked(query: str) -> None:
    work = {"task": {"query": query, "budget": {"max_elapsed_s": 1.5}}, "config": MappingProxyType({"n": 1})}
    text = encode_unresumable("the store is gone", work)
    text.encode("utf-8")
    assert "\x00" not in text
    assert read_work(text) == {**work, "config": {"n": 1}}
    with pytest.raises(PlanError, match="the store is gone"):
        decode_plan(text)


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"v":99,"task":{}}', '{"task":{}}'])
def test_a_plan_of_another_version_tells_nothing(text: str) -> None:
    assert read_work(text) == {}


def test_what_belongs_to_the_run_is_not_told_with_the_work() -> None:
    text = encode_plan(Plan(nonce="n", work={"task": {"query": "q"}}, subject="ann", trace="t", keep_running=True))
    assert read_work(text) == {"task": {"query": "q"}}
