from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.http_api.exchange import RequestHeaders

RAW = [(b"accept", b"a"), (b"authorization", b"one"), (b"accept", b"b"), (b"x-odd", b"\xff")]


def test_all_values_of_a_header_are_returned_in_order() -> None:
    headers = RequestHeaders(RAW)
    assert headers.getlist(b"accept") == ["a", "b"]
    assert headers.first(b"accept") == "a"
    assert headers.first(b"x-odd") == "\xff"


def test_a_header_that_is_not_there_has_no_value() -> None:
    headers = RequestHeaders(RAW)
    assert headers.getlist(b"cookie") == []
    assert headers.first(b"cookie") is None


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.binary())))
def test_every_byte_of_every_value_is_kept(raw: list[tuple[bytes, bytes]]) -> None:
    headers = RequestHeaders(raw)
    for name in (b"a", b"b", b"c"):
        assert [value.encode("latin-1") for value in headers.getlist(name)] == [
            value for key, value in raw if key == name
        ]


@pytest.mark.parametrize(
    ("length", "declared"), [("0", 0), ("12", 12), ("9" * 5000, 10**20 - 1), ("", None), ("-1", None), ("²", None)]
)
def test_a_length_is_what_content_length_says_if_that_is_a_number(length: str, declared: int | None) -> None:
    assert RequestHeaders([(b"content-length", length.encode("latin-1"))]).declared_bytes() == declared
    assert RequestHeaders().declared_bytes() is None


@pytest.mark.parametrize(
    ("types", "is_json"),
    [
        (["application/json"], True),
        (["Application/JSON ; charset=utf-8"], True),
        ([], False),
        ([""], False),
        (["text/plain"], False),
        (["application/jsonx"], False),
        (["application/json", "text/plain"], False),
        (["application/json", "application/json"], False),
    ],
)
def test_a_body_is_json_if_one_content_type_says_so(types: list[str], is_json: bool) -> None:  # noqa: FBT001 - a case of a table
    headers = RequestHeaders([(b"content-type", one.encode()) for one in types])
    assert headers.accepts_json() is is_json
