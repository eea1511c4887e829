"""Untrusted text keeps its characters, but none of its tags can be confused with ours."""

from __future__ import annotations

import pytest

from reasond_server.context import tags
from reasond_server.context.tags import RESERVED_TAGS, TagKind, neutralize, restore
from reasond_server.llm.model import PIECE_CHARACTERS
from tests.watched_patterns import watch_patterns


@pytest.mark.parametrize("name", RESERVED_TAGS)
def test_opening_and_closing_tags_of_every_reserved_name_are_neutralised(name: str) -> None:
    assert neutralize(f"a<{name}>b</{name}>c") == f"a&lt;{name}>b&lt;/{name}>c"


@pytest.mark.parametrize(
    ("text", "neutral"),
    [
        ("</ANSWER>", "&lt;/ANSWER>"),
        ("< answer >", "&lt; answer >"),
        ("< / answer>", "&lt; / answer>"),
        ("<\n/\tanswer\n>", "&lt;\n/\tanswer\n>"),
        ('<passage segment="1" of="2">', '&lt;passage segment="1" of="2">'),
        ("<answer", "&lt;answer"),
        ("<\u200banswer>", "&lt;\u200banswer>"),
        ("<an\u200d\u2060\ufeffswer>", "&lt;an\u200d\u2060\ufeffswer>"),
        ("<a\ufe0fnswer>", "&lt;a\ufe0fnswer>"),
        ("\uff1canswer\uff1e", "&lt;answer\uff1e"),
        ("\ufe64/answer>", "&lt;/answer>"),
        ("<\uff41\uff4e\uff53\uff57\uff45\uff52>", "&lt;\uff41\uff4e\uff53\uff57\uff45\uff52>"),
        ("<\uff0fanswer>", "&lt;\uff0fanswer>"),
        ("<\u00a0answer\u00a0>", "&lt;\u00a0answer\u00a0>"),
        ("<\u24d0nswer>", "&lt;\u24d0nswer>"),
        ("<pa\u00dfage>", "&lt;pa\u00dfage>"),
        ("\u00e9<answer>", "\u00e9&lt;answer>"),
        ("<<answer>", "<&lt;answer>"),
        ("\u00e9<<answer>", "\u00e9<&lt;answer>"),
    ],
)
def test_no_spelling_hides_a_tag(text: str, neutral: str) -> None:
    assert neutralize(text) == neutral
    assert neutralize(neutral) == neutral


@pytest.mark.parametrize(
    ("text", "neutral"),
    [
        ("<|im_start|>system", "&lt;|im_start|>system"),
        ("<|IM_END|>", "&lt;|IM_END|>"),
        ("<|start_header_id|>a<|eot_id|>", "&lt;|start_header_id|>a&lt;|eot_id|>"),
        ("<|START_OF_TURN_TOKEN|>", "&lt;|START_OF_TURN_TOKEN|>"),
        ("<|turn>user<turn|>", "&lt;|turn>user&lt;turn|>"),
        ("[INST] x [/INST]", "&#91;INST] x &#91;/INST]"),
        ("[SYSTEM_PROMPT][gMASK]", "&#91;SYSTEM_PROMPT]&#91;gMASK]"),
        ("<<SYS>>x<</SYS>>", "&lt;<SYS>>x&lt;</SYS>>"),
        ("<start_of_turn>user<end_of_turn>", "&lt;start_of_turn>user&lt;end_of_turn>"),
        ("<s>x</s>", "&lt;s>x&lt;/s>"),
        ("<bos><eos><pad><unk><BOS_TOKEN>", "&lt;bos>&lt;eos>&lt;pad>&lt;unk>&lt;BOS_TOKEN>"),
        ("<tool_call></tool_response>", "&lt;tool_call>&lt;/tool_response>"),
        ("<\uff5cUser\uff5c>", "&lt;\uff5cUser\uff5c>"),
        ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "&lt;\uff5cbegin\u2581of\u2581sentence\uff5c>"),
        ("<|<|a|>|>", "<|&lt;|a|>|>"),
        ("<|<s>", "<|&lt;s>"),
        ("<|im_start|><answer>[INST]", "&lt;|im_start|>&lt;answer>&#91;INST]"),
    ],
)
def test_control_tokens_of_chat_templates_are_neutralised_and_can_be_restored(text: str, neutral: str) -> None:
    assert neutralize(text) == neutral
    assert neutralize(neutral) == neutral
    assert restore(neutral) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x <| f |> y",
        "a <|> b",
        "if a < |b| > c",
        "<span>",
        "<s class='x'>",
        "< s>",
        "[inst]",
        "[INST",
        "[args] [ARGS]",
        "<<sys",
        "<|a b|>",
        "a[0] < s[1]",
        "<answers>",
        "<answer-key>",
        "<answer_1>",
        "<answer2>",
        "<html><body>",
        "x < y and y > z",
        "answer>",
        "&lt;answer>",
        "<//answer>",
        "<an swer>",
        "<\u00e9answer>",
        "\uff1c\u200b",
        "\uff1chtml\uff1e and \u00e9",
        "<\u200b<b>",
        "<answers>\u00e9",
        "\U0001f600 < 3",
    ],
)
def test_everything_else_stays_as_it_is(text: str) -> None:
    assert neutralize(text) == text


@pytest.mark.parametrize("text", ["<answer>42</answer>", "a < continue", "\u00e9<think> <b> &lt;i>", "< / notes>"])
def test_plain_spellings_can_be_restored(text: str) -> None:
    assert neutralize(text) != text
    assert restore(neutralize(text)) == text


def test_the_closing_tags_are_the_stop_strings() -> None:
    assert [kind.closing for kind in TagKind] == ["</answer>", "</continue>", "</action>"]


@pytest.mark.parametrize("text", ["&lt;answer&gt;42&lt;/answer&gt;", "&lt; /continue &gt;", "\u00e4 &lt;answer&gt;"])
def test_a_tag_that_is_escaped_at_both_ends_is_not_ours_and_stays(text: str) -> None:
    assert restore(text) == text


@pytest.mark.parametrize("end", ["", "\u00e9"])
@pytest.mark.parametrize(
    "unit", ["<", "</", "<a", "<answer>", "<|im_start|>", "<<SYS>>", "[INST]", "\uff1c", "<\u200b", "</answer>"]
)
def test_no_expression_reads_more_than_a_piece_of_a_long_text(
    unit: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = watch_patterns(monkeypatch, tags)
    neutralize(unit * PIECE_CHARACTERS + end)
    # A piece ends at the first place where nothing can continue behind it, and neutralising makes it longer.
    assert max(reading.calls) <= 4 * (PIECE_CHARACTERS + len(unit))


@pytest.mark.parametrize("end", ["", "\u00e9"])
@pytest.mark.parametrize("unit", ["&lt;", "&lt;answer>", "&lt;answer&gt;", "&lt;|im_start|>&lt;", "&#91;INST]&#91;"])
def test_no_expression_reads_more_than_a_piece_of_a_long_neutral_text(
    unit: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = watch_patterns(monkeypatch, tags)
    restore(unit * PIECE_CHARACTERS + end)
    assert max(reading.calls) <= PIECE_CHARACTERS + len(unit)
