from __future__ import annotations

import pytest

from reasond_server.cli.commands.ask import parse_history
from reasond_server.cli.options import parse_cursor, parse_setting
from reasond_server.cli.outcome import CommandError, ExitCode


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("chunk_size=4096", "chunk_size", 4096),
        ("temperature=0.5", "temperature", 0.5),
        ("show_reasoning=false", "show_reasoning", False),
        ("carryover_mode=tail", "carryover_mode", "tail"),
        ('name="12"', "name", "12"),
        ("name=a=b", "name", "a=b"),
        ("empty=", "empty", ""),
        ("list=[1]", "list", "[1]"),
        ("none=null", "none", "null"),
        ("nan=NaN", "nan", "NaN"),
        ("big=1e999", "big", "1e999"),
        (" spaced =1", "spaced", 1),
        ("deep=" + "[" * 100_000, "deep", "[" * 100_000),
    ],
)
def test_a_setting_is_a_json_scalar_or_else_text(text: str, key: str, value: object) -> None:
    found = parse_setting(text)
    assert found == (key, value)
    assert type(found[1]) is type(value)


@pytest.mark.parametrize("text", ["", "chunk_size", "=1", "  =1"])
def test_a_setting_without_key_or_value_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(CommandError, match="is no key=value") as caught:
        parse_setting(text)
    assert caught.value.code is ExitCode.BAD_REQUEST
    assert "chunk_size=4096" in caught.value.remedy


@pytest.mark.parametrize(("text", "cursor"), [("abc", ("abc", 0)), ("abc:0", ("abc", 0)), ("abc:17", ("abc", 17))])
def test_a_cursor_is_an_execution_and_a_sequence(text: str, cursor: tuple[str, int]) -> None:
    assert parse_cursor(text) == cursor


@pytest.mark.parametrize("text", ["", ":1", "abc:", "abc:x", "abc:-1", "abc:1.5", "abc:٣", f"abc:{2**63}"])
def test_a_cursor_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_cursor(text)
    assert caught.value.code is ExitCode.BAD_REQUEST


@pytest.mark.parametrize(
    "text",
    [
        '[{"role": "user", "text": "a"}, {"role": "assistant", "text": "b"}]',
        '{"role": "user", "text": "a"}\n\n{"role": "assistant", "text": "b"}\n',
        ' \n[\n{"text": "a", "role": "user"},\n{"role": "assistant", "text": "b"}\n]\n',
    ],
)
def test_a_history_is_a_json_list_or_json_lines(text: str) -> None:
    assert parse_history(text, "it") == [("user", "a"), ("assistant", "b")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no messages"),
        ("[]", "has no messages"),
        ("[1]", "Message 1 of it"),
        ('{"role": "user", "text": "a"}\n{"role": "user"}', "Message 2 of it"),
        ('{"role": "user", "text": "a"}\n{"role": "user", "content": "a"}', "Message 2 of it"),
        ('{"role": "user", "text": 5}', "Message 1 of it"),
        ('{"role": "system", "text": "a"}', "Message 1 of it"),
        ('{"role": "user", "text": "a", "name": "x"}', "Message 1 of it"),
        ("nonsense", "no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_history_of_another_form_is_refused_by_its_place(text: str, words: str) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        parse_history(text, "it")
    assert caught.value.code is ExitCode.BAD_REQUEST
    assert '"role"' in caught.value.remedy
