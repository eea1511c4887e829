"""The reply of a model is split into reasoning, answer and notes while it streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.replies import Fragment, ParsedReply, TagParser
from reasond_server.context.tags import TagKind


def parse(text: str, *, is_stop: bool = True, kinds: tuple[TagKind, ...] = tuple(TagKind)) -> ParsedReply:
    parser = TagParser(kinds=kinds)
    parser.feed(text)
    parser.close(is_stop=is_stop)
    return parser.result


@pytest.mark.parametrize(
    ("text", "before", "kind", "content"),
    [
        ("6 times 7.<answer>42</answer> Bye.", "6 times 7.", TagKind.ANSWER, "42"),
        ("<continue>half way</continue><answer>42</answer>", "", TagKind.CONTINUE, "half way"),
        ("<Answer>42</ANSWER>", "", TagKind.ANSWER, "42"),
        ("< answer >42</ answer >", "", TagKind.ANSWER, "42"),
        ("no tag", "no tag", None, ""),
        ("a </answer> b", "a </answer> b", None, ""),
        ("<answer>a<continue>b</continue>c</answer>", "", TagKind.ANSWER, "a<continue>b</continue>c"),
        ("<answer>a<answer>b</answer>", "", TagKind.ANSWER, "a<answer>b"),
        ("<answer>x <think> y</answer>", "", TagKind.ANSWER, "x <think> y"),
        ("1 < 2 <b>", "1 < 2 <b>", None, ""),
        ("<     answer>x", "<     answer>x", None, ""),
        ("<an\u017fwer>x</an\u017fwer>", "<an\u017fwer>x</an\u017fwer>", None, ""),
        ("<answer/>x", "<answer/>x", None, ""),
    ],
)
def test_the_first_complete_pair_decides(text: str, before: str, kind: TagKind | None, content: str) -> None:
    parsed = parse(text)
    assert (parsed.text, parsed.kind, parsed.content) == (before, kind, content)


@pytest.mark.parametrize(
    "fenced",
    [
        "```\n<answer>1</answer>\n```\n",
        "~~~\n<answer>1</answer>\n~~~\n",
        "   ```xml\n<answer>1</answer>\n   ```\n",
        "````\n```\n<answer>1</answer>\n````\n",
        "```\n~~~\n<answer>1</answer>\n```\n",
        "~~~ a `b` <answer>1</answer>\n~~~\n",
        "```\n```x\n<answer>1</answer>\n```  \n",
    ],
)
def test_tags_in_code_fences_do_not_count(fenced: str) -> None:
    parsed = parse(f"See:\n{fenced}<answer>2</answer>")
    assert (parsed.text, parsed.content) == (f"See:\n{fenced}", "2")


@pytest.mark.parametrize(
    "text",
    [
        "```code``` <answer>2</answer>",
        "    ```\n<answer>2</answer>",
        "a ```\n<answer>2</answer>",
        "``\n<answer>2</answer>",
        "```" + "x" * 300 + "\n<answer>2</answer>",
    ],
)
def test_what_only_looks_like_a_fence_hides_nothing(text: str) -> None:
    assert parse(text).content == "2"


def test_a_fence_in_the_answer_keeps_a_closing_tag_in_it() -> None:
    parsed = parse("<answer>```\n</answer>\n```</answer>tail")
    assert parsed.content == "```\n</answer>\n```"
    assert parsed.is_closed


def test_a_fence_that_is_never_closed_hides_the_rest() -> None:
    assert parse("So:\n```\n<answer>2</answer>").kind is None
    assert parse("```").text == "```"


def test_tags_in_thinking_do_not_count() -> None:
    parsed = parse("<think>```\n<answer>1</answer></think>Well:<answer>2</answer>")
    assert (parsed.thinking, parsed.text, parsed.content) == ("```\n<answer>1</answer>", "Well:", "2")


def test_thinking_that_never_ends_hides_the_rest() -> None:
    parsed = parse("<think>a<think>b<answer>1</answer>")
    assert (parsed.thinking, parsed.kind) == ("a<think>b<answer>1</answer>", None)
    assert parsed.written == parsed.thinking


def test_a_lone_end_of_thinking_makes_reasoning_of_what_stands_before_it() -> None:
    parsed = parse("a</think>b<answer>1")
    assert (parsed.thinking, parsed.text, parsed.content) == ("a", "b", "1")
    parsed = parse("so <answer>1</think><answer>2")
    assert (parsed.thinking, parsed.text, parsed.content) == ("so 1", "", "2")


def test_a_tag_of_thinking_that_a_sentence_speaks_of_is_text() -> None:
    assert parse("Use the </think> tag.").text == "Use the </think> tag."
    assert parse("Use `<think>` for it.").text == "Use `<think>` for it."


def test_the_providers_reasoning_channel_is_thinking() -> None:
    parser = TagParser()
    assert parser.feed_reasoning("<answer>1</answer>") == (Fragment(text="<answer>1</answer>", is_thinking=True),)
    assert not parser.feed_reasoning("")
    parser.feed("<answer>2</answer>")
    assert not parser.feed_reasoning("more")
    parsed = parser.result
    assert (parsed.thinking, parsed.content) == ("<answer>1</answer>", "2")


def test_an_open_tag_is_complete_where_the_model_stopped() -> None:
    assert parse("<answer>42", is_stop=True).is_closed
    assert not parse("<answer>42", is_stop=False).is_closed
    assert not parse("42", is_stop=True).is_closed


FENCE_CUT = {
    "quoted pair": "<answer>Write:\n```xml\n<answer>\n",
    "quoted pair, closed once": "<answer>```\n<answer>1</answer>\n<answer>",
    "middle of a line": '<answer>```py\ntext.split("',
    "tildes": "<answer>~~~\nif tag == '",
}


@pytest.mark.parametrize("cut", FENCE_CUT.values(), ids=FENCE_CUT)
def test_an_answer_cut_at_a_tag_that_its_code_quotes_is_not_complete(cut: str) -> None:
    parsed = parse(cut)
    assert (parsed.kind, parsed.is_closed) == (TagKind.ANSWER, False)
    assert parsed.content == cut.removeprefix("<answer>")


@pytest.mark.parametrize("tag", ["", "</answer>", "</ANSWER>\n"])
def test_a_fence_that_was_only_forgotten_does_not_keep_the_answer_open(tag: str) -> None:
    for text in ("<answer>Run:\n```py\nprint(1)\n", "<answer>```\n<answer>1</answer>\n"):
        parsed = parse(text + tag)
        assert parsed.is_closed
        assert parsed.content == text.removeprefix("<answer>")
        assert not parse(text + tag, is_stop=False).is_closed


def test_a_fence_that_was_closed_does_not_matter_to_the_end() -> None:
    assert parse("<answer>```\n<answer>\n```\nas above").is_closed


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "```\n", "\n", "x", " ", "~~~"])), st.data())
def test_how_the_text_is_cut_into_deltas_does_not_change_how_it_ends(pieces: list[str], data: st.DataObject) -> None:
    text = "<answer>" + "".join(pieces)
    parser = TagParser()
    while text:
        size = data.draw(st.integers(1, len(text)))
        parser.feed(text[:size])
        text = text[size:]
    parser.close(is_stop=True)
    assert parser.result == parse("<answer>" + "".join(pieces), kinds=(TagKind.ANSWER, TagKind.CONTINUE))


@pytest.mark.parametrize("cut", ["</a", "</answer", "</ANS", "< / answer"])
def test_a_closing_tag_that_was_cut_off_is_not_part_of_the_answer(cut: str) -> None:
    assert parse(f"<answer>42{cut}", is_stop=False).content == "42"


@pytest.mark.parametrize("end", ["<", "</", "<a", "</c", "<answer"])
def test_other_ends_that_could_have_become_tags_are_kept(end: str) -> None:
    assert parse(f"<answer>42{end}", is_stop=False).content == f"42{end}"


def test_what_could_become_a_tag_is_held_back_and_the_rest_is_not() -> None:
    parser = TagParser()
    assert [one.text for one in parser.feed("Six <answ")] == ["Six "]
    assert [one.text for one in parser.feed("ers> or <answer>4")] == ["<", "answers> or ", "4"]
    assert [(one.text, one.kind) for one in parser.feed("2</an")] == [("2", TagKind.ANSWER)]
    assert not parser.is_done
    assert not parser.feed("swer>")
    assert parser.is_done
    assert not parser.feed("more")
    assert not parser.close(is_stop=True)


def test_only_the_kinds_that_were_asked_for_are_tags() -> None:
    parsed = parse("<continue>a</continue><answer>b</answer>", kinds=(TagKind.ANSWER,))
    assert (parsed.text, parsed.content) == ("<continue>a</continue>", "b")


def test_a_reply_longer_than_the_cap_is_cut_there() -> None:
    parser = TagParser(max_characters=12)
    parser.feed_reasoning("1234")
    parser.feed("<answer>5")
    assert parser.is_done
    parser.close(is_stop=True)
    parsed = parser.result
    assert (parsed.thinking, parsed.kind, parsed.is_cut, parsed.is_closed) == ("1234", TagKind.ANSWER, True, False)


@pytest.mark.slow
@pytest.mark.parametrize("delta", ["\n", "<", "`", "<think>", "a\n```"])
def test_long_hostile_replies_are_parsed_in_one_delta_and_in_many(delta: str) -> None:
    text = delta * (200_000 // len(delta))
    parse(text)
    many = TagParser()
    for start in range(0, len(text), 7):
        many.feed(text[start : start + 7])
    many.close(is_stop=True)
    assert len(many.result.text) + len(many.result.thinking) > 100_000


@pytest.mark.parametrize(
    "reply",
    [
        "```\n<answer>42</answer>\n```",
        "~~~text\nSo it is.\n<answer>42</answer>\n~~~\n",
        "\n```xml\n<answer>42",
        "<answer><answer>42</answer></answer>",
        "<answer> <Answer>\n42</answer>",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_in_a_fence_around_the_whole_reply_or_in_two_tags_is_found(reply: str, size: int) -> None:
    parser = TagParser()
    for start in range(0, len(reply), size):
        parser.feed(reply[start : start + size])
    parser.close(is_stop=True)
    assert (parser.result.kind, parser.result.content.strip()) == (TagKind.ANSWER, "42")
    assert parser.result.is_closed


def test_thinking_in_a_fence_around_the_whole_reply_is_kept() -> None:
    parsed = parse("```\n<think>Half of 84.</think><answer>42</answer>\n```")
    assert (parsed.thinking, parsed.text, parsed.content) == ("Half of 84.", "", "42")


@pytest.mark.parametrize(
    "reply",
    ["See:\n```\n<answer>42</answer>\n```", "```\n<answer>42</answer>\n```\nis the form.", "```\n42\n```"],
)
def test_a_fence_around_part_of_a_reply_quotes_its_tags(reply: str) -> None:
    parser = TagParser()
    parser.feed(reply)
    parser.close(is_stop=True)
    assert (parser.result.kind, parser.result.text) == (None, reply)
