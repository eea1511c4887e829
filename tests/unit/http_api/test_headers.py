from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.http_api.headers import RequestHeaders

RAW = [(b"accept", b"a"), (b"authorization", b"one"), (b"accept", b"b"), (b"x-odd", b"\xff")]


def test_all_values_of_a_header_are_returned_in_order() -> None:
    headers = RequestHeaders(RAW)
    assert headers.getlist("accept") == ["a", "b"]
    assert headers.get("accept") == "a"
    assert headers.get("x-odd") == "\xff"
    assert "accept" in headers


def test_a_header_that_is_not_there_has_no_value() -> None:
    headers = RequestHeaders(RAW)
    assert headers.getlist("cookie") == []
    assert (headers.get("cookie"), headers.get("cookie", "none")) == ("", "none")
    assert "cookie" not in headers


def test_a_list_of_values_is_the_askers_own() -> None:
    headers = RequestHeaders(RAW)
    headers.getlist("accept").clear()
    assert headers.getlist("accept") == ["a", "b"]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.binary())))
def test_every_byte_of_every_value_is_kept(raw: list[tuple[bytes, bytes]]) -> None:
    headers = RequestHeaders(raw)
    for name in ("a", "b", "c"):
        assert [value.encode("latin-1") for value in headers.getlist(name)] == [
            value for key, value in raw if key == name.encode()
        ]
