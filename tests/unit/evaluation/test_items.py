"""Sets in our form and in those of known libraries, and lines that are refused by their number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.evaluation.items import Grader, Item, read_items

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, *lines: object, **more: Any) -> list[Item]:
    file = path / "set.jsonl"
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines), encoding="utf-8")
    return list(read_items(file, **more))


def test_an_item_of_ours_is_graded_by_what_it_has(tmp_path: Path) -> None:
    items = read(
        tmp_path,
        {"question": "6 * 7?", "answer": "42"},
        {"question": "6 * 7?", "answer": 42, "id": "b"},
        {"question": "Capital of France?", "answer": "Paris"},
        {"question": "A year?", "pattern": r"\b19\d\d\b"},
        {"question": "As JSON?", "schema": {"type": "object"}},
        {"question": "Write f.", "tests": "assert f(1) == 2"},
        {"question": "Why?", "answer": "Because.", "grader": "judge"},
        {"question": "Which?", "choices": ["red", "blue"], "answer": "blue"},
    )
    assert [item.grader for item in items] == [
        Grader.NUMBER,
        Grader.NUMBER,
        Grader.TEXT,
        Grader.PATTERN,
        Grader.JSON,
        Grader.PYTHON,
        Grader.JUDGE,
        Grader.CHOICE,
    ]
    assert [item.item_id for item in items] == ["1", "b", "3", "4", "5", "6", "7", "8"]
    assert items[-1].right == "B"
    assert items[-1].asked == "Which?\nA) red\nB) blue\nAnswer with the letter of the right choice."


@pytest.mark.parametrize(
    ("line", "right", "grader"),
    [
        ({"question": "q", "answer": "First 6.\nThen 7.\n#### 1,042"}, "1,042", Grader.NUMBER),
        ({"input": "q", "target": "Paris"}, "Paris", Grader.TEXT),
        ({"input": "q", "target": "B", "choices": ["x", "y"], "id": 7}, "B", Grader.CHOICE),
        ({"input": "q", "target": ["Paris"]}, "Paris", Grader.TEXT),
        ({"question": "q", "choices": ["x", "y", "z"], "answer": 2}, "C", Grader.CHOICE),
        ({"question": "q", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "B"}, "B", Grader.CHOICE),
    ],
)
def test_the_forms_of_known_libraries_are_read(tmp_path: Path, line: object, right: str, grader: Grader) -> None:
    (item,) = read(tmp_path, line)
    assert (item.right, item.grader) == (right, grader)


def test_the_command_may_name_the_grader(tmp_path: Path) -> None:
    (item,) = read(tmp_path, {"question": "q", "answer": "42"}, grader=Grader.TEXT)
    assert item.grader is Grader.TEXT


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 1 of the set is no JSON"),
        ("[1]", "is no JSON object"),
        ({"answer": "42"}, "it has no question"),
        ({"question": "q"}, "nothing that the grader 'text' can compare"),
        ({"question": "q", "answer": "1", "grader": "vibes"}, "there is no grader 'vibes'; there are number,"),
        ({"question": "q", "pattern": "("}, "no regular expression"),
        ({"question": "q", "choices": ["x"], "answer": 0}, "no list of 2 to 26"),
        ({"question": "q", "choices": ["x", "y"], "answer": 2}, "'2' names none of its 2 choices"),
        ({"question": 5, "answer": "1"}, "its question is no text"),
        ({"question": "q", "schema": 5}, "its schema is no JSON object"),
    ],
)
def test_a_line_that_is_no_item_is_named(tmp_path: Path, line: object, told: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(tmp_path, line)
    assert told in error.value.message


def test_a_set_without_items_and_one_with_equal_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has no items"):
        read(tmp_path, "", " ")
    with pytest.raises(SettingsError, match="the items 1 and 2 have the same id 'a'"):
        read(tmp_path, {"question": "q", "answer": "1", "id": "a"}, {"question": "r", "answer": "1", "id": "a"})
    with pytest.raises(SettingsError, match="cannot be read"):
        read_items(tmp_path / "none.jsonl")
