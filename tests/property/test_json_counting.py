"""The values of a JSON text are counted before they are built; the count equals that of the parsed value."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.http_api.jsonrpc import holds_more_values

SCALARS = st.none() | st.booleans() | st.integers() | st.text(alphabet=st.sampled_from('a,[{]}"\\: \u00e9'), max_size=8)
VALUES: Any = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


def values_in(node: object) -> int:
    if isinstance(node, dict):
        return len(node) + sum(map(values_in, node.values()))
    return len(node) + sum(map(values_in, node)) if isinstance(node, list) else 0


@given(value=VALUES, indent=st.sampled_from([None, 0, 2]), is_ascii=st.booleans())
def test_every_json_text_holds_as_many_values_as_what_it_says(
    *, value: object, indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode()
    values = values_in(value)
    assert not holds_more_values(text, values)
    assert values == 0 or holds_more_values(text, values - 1)
