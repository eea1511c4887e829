"""The texts of custom tools within the arguments of functions."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.protocols.conversations import describe_text, find_custom_names, read_text, write_arguments


@pytest.mark.parametrize("text", ["", "a", 'say "no"', "*** Begin Patch\n☂", '{"input": "b"}'])
def test_a_text_comes_back_from_its_arguments(text: str) -> None:
    assert read_text(write_arguments(text)) == text


@pytest.mark.parametrize("arguments", ["", "not JSON", "[]", '"a"', '{"input": 5}', '{"other": "a"}'])
def test_arguments_of_another_form_are_the_text(arguments: str) -> None:
    assert read_text(arguments) == arguments


def test_a_grammar_is_shown_whichever_wire_it_came_over() -> None:
    grammar = {"syntax": "lark", "definition": "x: Y"}
    grammars: list[dict[str, Any]] = [{"type": "grammar", **grammar}, {"type": "grammar", "grammar": grammar}]
    for form in grammars:
        assert "lark grammar allows:\nx: Y" in describe_text({"format": form})["properties"]["input"]["description"]
    texts: list[Any] = [{"type": "text"}, {}, "odd", None]
    for form in texts:
        assert describe_text({"format": form})["properties"] == {"input": {"type": "string"}}


def test_custom_tools_are_found_by_their_type_on_both_wires() -> None:
    nested = {"type": "custom", "custom": {"name": "a"}}
    flat = {"type": "custom", "name": "b"}
    odd: list[Any] = [
        {"type": "function", "name": "c"},
        {"type": ["custom"], "name": "d"},
        {"type": "custom", "custom": "e"},
    ]
    assert find_custom_names([nested, flat, *odd]) == {"a", "b"}
