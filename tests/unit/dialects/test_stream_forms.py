"""Streams beside the standard: what the data of an event, a body and an error report hold."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.dialects.stream_forms import is_end, is_error_report, is_whole, split_body, split_data


@pytest.mark.parametrize("data", [b"[DONE]", b" [done] ", b'"[DONE]"', b"DONE"])
def test_the_end_of_a_stream_has_several_spellings(data: bytes) -> None:
    assert is_end(data)
    assert is_whole(data)


@pytest.mark.parametrize("data", [b"", b"{}", b"[DONE] or not", b"null"])
def test_nothing_else_ends_a_stream(data: bytes) -> None:
    assert not is_end(data)


@pytest.mark.parametrize(
    ("data", "chunks"),
    [
        (b'{"a": 1}', [b'{"a": 1}']),
        (b'{"a": 1}\n{"a": 2}', [b'{"a": 1}', b'{"a": 2}']),
        (b'{"a":\n 1}', [b'{"a":\n 1}']),
        (b'data: {"a": 1}', [b'{"a": 1}']),
        (b'{"a": 1}\ndata: {"a": 2}', [b'{"a": 1}', b'{"a": 2}']),
    ],
)
def test_the_lines_of_an_event_are_chunks_where_they_are_json_each(data: bytes, chunks: list[bytes]) -> None:
    assert list(split_data(data)) == chunks


def test_a_body_is_one_value_or_one_for_each_line() -> None:
    assert list(split_body(b'\xef\xbb\xbf {"a":\n1} ')) == [b'{"a":\n1}']
    assert list(split_body(b'{"a": 1}\n{"a": 2}\n')) == [b'{"a": 1}', b'{"a": 2}']
    assert list(split_body(b'{"a": 1}\n{"a"')) == [b'{"a": 1}\n{"a"']


@pytest.mark.parametrize(
    "chunk",
    [
        {"object": "error", "message": "no"},
        {"detail": "no"},
        {"errors": [{"message": "no"}]},
        {"type": "error"},
        {"message": "no", "code": 500},
    ],
)
def test_errors_have_several_names(chunk: dict[str, Any]) -> None:
    assert is_error_report(chunk)


@pytest.mark.parametrize(
    "chunk", [{}, {"message": {"content": "so"}}, {"usage": {}}, {"object": "chat.completion.chunk"}]
)
def test_other_chunks_are_no_errors(chunk: dict[str, Any]) -> None:
    assert not is_error_report(chunk)
