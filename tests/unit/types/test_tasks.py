from __future__ import annotations

from typing import Any

import pytest

from reasond_server.types import HistoryMessage, Image, Speaker, Task


@pytest.mark.parametrize(
    ("changes", "characters"),
    [
        ({}, 3),
        ({"material": "1234", "strategy": "react", "agent": "one"}, 7),
        ({"images": (Image(media_type="image/png", base64="x" * 1000),)}, None),
        ({"history": (HistoryMessage(role=Speaker.USER, text="x"),)}, None),
        ({"answer_schema": {}}, None),
        ({"stop": ("x",)}, None),
        ({"config": {"data": "x" * 1000}}, None),
        ({"agent_capabilities": ("x",)}, None),
    ],
)
def test_a_task_tells_its_length_only_if_it_is_nothing_but_question_and_text(
    changes: dict[str, Any], characters: int | None
) -> None:
    assert Task(query="abc", **changes).plain_characters == characters
