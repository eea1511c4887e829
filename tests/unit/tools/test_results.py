from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.tools.results import (
    NotJsonError,
    ResultMemory,
    cut_to_bytes,
    parse_arguments,
    resolve_pointer,
    to_json_text,
    to_preview,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_a_result_keeps_its_value_and_shows_every_character(value: object) -> None:
    text = to_json_text(value)
    encodable = json.loads(json.dumps(value).encode("utf-8", "replace").decode())
    if "\\ud" not in json.dumps(value):
        assert json.loads(text) == encodable
    assert text.encode()
    assert not any(char in text for char in "\u202e\u200b\u2028\ufeff\u0000\u0085\U000e0041")


def test_characters_that_cannot_be_seen_stand_as_escapes() -> None:
    assert to_json_text("a\x7f") == '"a\\u007f"'
    assert to_json_text("a\u202eb\U000e0041\x00") == '"a\\u202eb\\udb40\\udc41\\u0000"'
    assert json.loads(to_json_text("a\u202eb\U000e0041")) == "a\u202eb\U000e0041"
    assert to_json_text("\ud800") == '"?"'


@pytest.mark.parametrize("value", [{1}, float("nan"), object(), {(1, 2): 3}])
def test_what_json_does_not_know_is_refused(value: object) -> None:
    with pytest.raises(NotJsonError):
        to_json_text(value)


@given(st.text(min_size=1), st.integers(512, 4_096))
def test_a_preview_is_valid_json_and_bounded(text: str, most: int) -> None:
    shown = to_preview(to_json_text(text * 200), handle="c1", most_bytes=most)
    json.loads(shown)
    assert len(shown.encode()) <= most * 4 + 400


def test_a_short_result_is_shown_whole_unless_it_is_only_a_part() -> None:
    assert to_preview('{"a":1}', handle="c1", most_bytes=512) == '{"a":1}'
    assert json.loads(to_preview('{"a":1', handle="c1", most_bytes=512, is_cut=True))["handle"] == "c1"


@given(st.text(), st.integers(0, 50))
def test_a_cut_never_splits_a_character(text: str, most: int) -> None:
    encodable = text.encode("utf-8", "replace").decode()
    kept, is_cut = cut_to_bytes(encodable, most)
    assert encodable.startswith(kept)
    assert len(kept.encode()) <= most
    assert is_cut == (kept != encodable)


def test_the_oldest_results_are_forgotten_first() -> None:
    memory = ResultMemory(most_bytes=10)
    memory.keep("c1", "12345")
    memory.keep("c2", "12345")
    memory.keep("c3", "1")
    assert memory.handles == ("c2", "c3")
    assert memory.find("c1") is None
    assert memory.is_forgotten("c1")
    assert not memory.is_forgotten("c9")
    memory.keep("c4", "x" * 11)
    assert not memory.handles


@pytest.mark.parametrize(
    ("pointer", "value"),
    [("", {"a": [1, {"b/c": "~"}]}), ("/a/0", 1), ("/a/1/b~1c", "~"), ("/a", [1, {"b/c": "~"}])],
)
def test_a_json_pointer_finds_its_place(pointer: str, value: object) -> None:
    assert resolve_pointer('{"a":[1,{"b/c":"~"}]}', pointer) == value


@pytest.mark.parametrize(
    ("pointer", "told"),
    [
        ("a", "begins with '/'"),
        ("/x", "there is no 'x'; there are 'a'"),
        ("/a/7", "has 1 entries, counted from 0"),
        ("/a/b", "there is an array of 1 entries"),
        ("/a/0/x", "there is only a number"),
        ("/a/\u0663", "there is no"),
        ("/a/" + "9" * 5000, "there is no"),
    ],
)
def test_a_json_pointer_that_leads_nowhere_says_how_far_it_went(pointer: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        resolve_pointer('{"a":[1]}', pointer)
    with pytest.raises(ValueError, match="no whole JSON"):
        resolve_pointer('{"a":', pointer)


@given(st.text())
def test_arguments_are_an_object_or_an_error_with_words_of_its_own(text: str) -> None:
    try:
        told = "" if isinstance(parse_arguments(text), dict) else "something else"
    except ValueError as error:
        told = str(error)
    assert told == "" or told.startswith("the arguments")
