from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.llm.counting import ByteCounter, WordPieceCounter
from reasond_server.tools.previews import render_preview
from reasond_server.tools.results import to_json_text
from reasond_server.types.turns import Rendering

COUNTER = WordPieceCounter()
ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=60)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=8), st.dictionaries(st.text(max_size=12), inner, max_size=6)),
    max_leaves=40,
)


def make_rows(count: int = 300) -> list[dict[str, Any]]:
    return [
        {
            "id": f"ISS-{1000 + at}",
            "status": "failed" if at % 60 == 7 else "open",
            "error": f"E{at}: lost" if at % 60 == 7 else None,
            "repo": "a/b",
            "body": f"body {at} " + "word " * 80,
        }
        for at in range(count)
    ]


def preview(value: object, tokens: int, *, query: str = "", handle: str = "c3") -> str:
    shown = render_preview(to_json_text(value), tokens=tokens, count=COUNTER.count_text, query=query, handle=handle)
    assert COUNTER.count_text(shown.text) <= tokens
    return shown.text


def test_what_fits_is_shown_whole() -> None:
    shown = render_preview('{"a":1}', tokens=20, count=COUNTER.count_text, query="")
    assert (shown.text, shown.rendering) == ('{"a":1}', Rendering.FULL)


def test_a_small_preview_of_many_rows_has_counts_columns_statuses_failures_and_the_rows_asked_for() -> None:
    text = preview(make_rows(), 700, query="What is the matter with ISS-1123?")
    assert "read_tool_result with handle c3 reads the rest" in text
    assert "list: 300 rows of 5 columns" in text
    assert "columns: id, status, error, repo, body" in text
    assert "status: open 295, failed 5" in text
    assert "in every row: repo=a/b" in text
    for at in (7, 67, 127, 187, 247):
        assert f"{at}|ISS-{1000 + at}|failed|E{at}: lost|" in text
    assert "123|ISS-1123|open|null|body 123" in text
    assert text.count("a/b") == 1


def test_with_more_room_all_rows_are_named_and_with_still_more_their_texts_are_clipped_alike() -> None:
    named = preview(make_rows(), 3_000)
    assert all(f"ISS-{1000 + at}" in named for at in range(300))
    assert "body 8 " not in named
    clipped = preview(make_rows(), 16_000)
    assert all(f"ISS-{1000 + at}|" in clipped for at in range(300))
    assert all(f"body {at} word" in clipped for at in range(300))
    assert "word w…" in clipped


@pytest.mark.parametrize("tokens", [128, 256, 512, 1_024, 2_048, 4_096, 8_192])
def test_an_identifier_is_never_cut(tokens: int) -> None:
    rows = [{"url": f"https://example.org/{at:05d}/end", "text": "word " * 50} for at in range(400)]
    text = preview(rows, tokens)
    assert text.count("https://") == text.count("/end")


def test_a_list_inside_an_object_is_a_table_with_its_pointer_and_small_fields_come_first() -> None:
    text = preview({"items": make_rows(40), "a/b": [{"x": "y" * 300}, {"x": 1}], "next_cursor": "abc"}, 900)
    assert text.index('next_cursor: "abc"') < text.index("at /items, list: 40 rows")
    assert "at /a~1b, list: 2 rows of 1 columns" in text


def test_json_in_a_string_is_shown_by_its_shape() -> None:
    assert "list: 300 rows" in preview(json.dumps(make_rows()), 700)


def test_a_log_keeps_its_ends_its_failures_and_the_lines_asked_for_with_their_numbers() -> None:
    lines = [f"line {at} is fine" for at in range(1, 5_001)]
    lines[2_499] = "ERROR: disk full"
    lines[3_999] = "the frobnicator started"
    text = preview("\n".join(lines), 400, query="Did the frobnicator start?")
    for line in ("1: line 1 is fine", "2500: ERROR: disk full", "4000: the frobnicator started", "5000: line 5000 is"):
        assert line in text
    assert "2499: line 2499 is fine" in text
    assert "5000 lines" in text
    assert "left out]" in text


def test_a_text_of_one_line_is_shown_in_pieces_with_offsets() -> None:
    text = preview("x" * 40_000 + " frobnicator " + "y" * 40_000, 500, query="frobnicator")
    assert "80013 characters" in text
    assert "40000:  frobnicator" in text


def test_what_is_no_json_is_a_text() -> None:
    shown = render_preview("[1, 2" + "\nERROR: lost" * 900, tokens=200, count=COUNTER.count_text, query="")
    assert shown.rendering is Rendering.PREVIEW
    assert "ERROR: lost" in shown.text
    shown = render_preview(f'["{"word " * 900}",1e999]', tokens=200, count=COUNTER.count_text, query="")
    assert "no whole JSON" in shown.text


def test_invisible_characters_are_escaped_and_cells_cannot_pose_as_cells() -> None:
    rows = [{"id": f"a{at}|b\u202e\nc", "text": "word " * 50} for at in range(50)]
    text = preview(rows, 500)
    assert "\u202e" not in text
    assert '"a0|b\\u202e\\nc"' in text


@given(ANYTHING, st.integers(1, 300), st.text(max_size=30))
def test_no_preview_exceeds_its_tokens_by_any_counter(value: object, tokens: int, query: str) -> None:
    text = to_json_text(value)
    for counter in (COUNTER, ByteCounter()):
        shown = render_preview(text, tokens=tokens, count=counter.count_text, query=query, handle="c1")
        assert counter.count_text(shown.text) <= tokens
        assert (shown.rendering is Rendering.FULL) == (shown.text == text)
        assert shown == render_preview(text, tokens=tokens, count=counter.count_text, query=query, handle="c1")
