from __future__ import annotations

import pytest

from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.http_calls import read_cursor
from reasond_server.types import Cursor


@pytest.mark.parametrize(("text", "place"), [("e-1_A:0", 0), ("e-1_A:17", 17), (f"e-1_A:{10**17}", 10**17)])
def test_the_id_of_an_event_names_a_place(text: str, place: int) -> None:
    assert read_cursor(text) == Cursor(execution_id="e-1_A", after_sequence=place)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "e1",
        "e1:",
        ":1",
        "e1:-1",
        "e1:01",
        "e1:1.0",
        "e1:x",
        "e 1:1",
        "e1:1:1",
        f"e1:{10**19}",
        "x" * 129 + ":1",
        "é:1",
    ],
)
def test_anything_else_is_refused_by_the_name_of_the_header(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_cursor(text)
    assert [violation.field for violation in caught.value.violations] == ["Last-Event-ID"]
