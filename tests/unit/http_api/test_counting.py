from __future__ import annotations

import pytest

from reasond_server.http_api.jsonrpc import MAX_VALUES, holds_more_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"0", 0),
        (b"[]", 0),
        (b"[ \n]", 0),
        (b"[0]", 1),
        (b"[[],[],[]]", 3),
        (b'{"a":{"b":[1,2]}}', 4),
        (b'{"a":1,"a":2}', 2),
        (b'[",,,[[[{{{"]', 1),
        (rb'["\",[{\\",0]', 2),
    ],
)
def test_members_and_items_are_counted_and_what_stands_in_strings_is_not(text: bytes, values: int) -> None:
    assert not holds_more_values(text, values)
    assert values == 0 or holds_more_values(text, values - 1)


@pytest.mark.parametrize("text", [b'["', b'["' + b",[{" * 1000, b'"\\', b'"' + b'\\"' * 1000])
def test_a_string_that_is_broken_off_is_passed_over_to_its_end(text: bytes) -> None:
    assert not holds_more_values(text, 1)


def test_a_large_text_of_commas_is_no_large_number_of_values() -> None:
    assert not holds_more_values(b'["' + b"," * (MAX_VALUES * 3) + b'"]', 1)
