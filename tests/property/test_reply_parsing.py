"""A reply is parsed the same however it is cut into deltas; no spelling of a text gets a tag through."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from reasond_server.context.replies import ParsedReply, TagParser
from reasond_server.context.tags import TagKind, neutralize, restore

PARTS = st.sampled_from([
    "<answer>", "</answer>", "<continue>", "</continue>", "<think>", "</think>", "< Answer >", "</ ANSWER>",
    "<", "</", "<ans", "```", "```py", "~~~~", "\n", "\n```\n", "\n~~~\n", " ", "`", "42", "x < y", "\r\n", "&lt;",
])  # fmt: skip
REPLIES = st.lists(PARTS | st.text(max_size=6), max_size=24).map("".join)
SPELLINGS = st.sampled_from([
    "<", "</", "< / ", "\uff1c", "\ufe64", "answer", "ANSWER", "Think", "note", "s", "\u200b", "\ufe0f", "\u00df",
    "\uff41nswer", "passage", ">", " ", "\n", "-", "1", "\u00e9", "&lt;", "/", "pa", "age",
])  # fmt: skip
UNTRUSTED = st.lists(SPELLINGS | st.text(max_size=3), max_size=20).map("".join)


def parse(deltas: list[str], *, is_stop: bool, cap: int) -> tuple[ParsedReply, str]:
    parser = TagParser(max_characters=cap)
    fragments = [fragment for delta in deltas for fragment in parser.feed(delta)]
    fragments += parser.close(is_stop=is_stop)
    shown = {"text": "", "thinking": "", "content": ""}
    for fragment in fragments:
        shown["thinking" if fragment.is_thinking else "content" if fragment.kind else "text"] += fragment.text
    parsed = parser.result
    # A fence around the whole reply is only known at its end, after its text was shown.
    is_unwrapped = parsed.kind is not None and not any(fragment.kind for fragment in fragments)
    # A lone closing tag makes reasoning of text that was shown before.
    is_taken_back = len(parsed.thinking) > len(shown["thinking"])
    if not (is_unwrapped or is_taken_back):
        assert (parsed.text, parsed.thinking) == (shown["text"], shown["thinking"])
        # A closing tag behind a fence that was never closed is only known for one at the end.
        rest = shown["content"].removeprefix(parsed.content)
        assert parsed.content + rest == shown["content"]
        assert not rest or rest.lstrip().startswith(("<", "&"))
    return parsed, "".join(fragment.text for fragment in fragments)


@example(text="<answer>\n<answer>", cuts=[], is_stop=False, cap=17)
@example(text="\n```\n<answer>", cuts=[], is_stop=False, cap=13)
@given(text=REPLIES, cuts=st.lists(st.integers(0, 200), max_size=40), is_stop=st.booleans(), cap=st.integers(1, 200))
def test_any_chunking_of_a_reply_gives_the_same_parse(*, text: str, cuts: list[int], is_stop: bool, cap: int) -> None:
    whole = parse([text], is_stop=is_stop, cap=cap)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    deltas = [text[start:end] for start, end in pairwise(places)]
    assert "".join(deltas) == text
    assert parse(deltas, is_stop=is_stop, cap=cap) == whole
    assert parse(list(text), is_stop=is_stop, cap=cap) == whole


@given(text=st.text(alphabet=st.characters(exclude_characters="<`~")))
def test_text_without_tags_and_fences_is_passed_on_unchanged(text: str) -> None:
    parsed, shown = parse([text], is_stop=True, cap=10_000)
    assert parsed.text == shown == text
    assert parsed.kind is None


@given(before=st.text(alphabet=st.characters(exclude_characters="<`~")), answer=st.text(alphabet="abc <>\n.42"))
def test_a_marked_answer_is_found_behind_any_text(before: str, answer: str) -> None:
    parsed, _ = parse([f"{before}<answer>{answer}</answer>"], is_stop=False, cap=10_000)
    assert (parsed.text, parsed.kind, parsed.content, parsed.is_closed) == (before, TagKind.ANSWER, answer, True)


@given(text=UNTRUSTED)
def test_neutralised_text_opens_no_tag_and_says_the_same(text: str) -> None:
    neutral = neutralize(text)
    assert neutralize(neutral) == neutral
    assert neutral.replace("&lt;", "<") == "".join(
        "<" if old != new else old
        for old, new in zip(text.replace("&lt;", "<"), neutral.replace("&lt;", "<"), strict=True)
    )
    parser = TagParser()
    parser.feed(neutral)
    parser.close(is_stop=True)
    assert parser.result.kind is None
    assert not parser.result.thinking


@given(text=UNTRUSTED)
def test_ascii_and_other_text_are_treated_alike(text: str) -> None:
    ascii_text = text.encode("ascii", "ignore").decode()
    assert neutralize(f"{ascii_text}\n\u00e9") == neutralize(f"{ascii_text}\n") + "\u00e9"


@given(text=UNTRUSTED.filter(lambda text: "&lt;" not in text and not {"\uff1c", "\ufe64"} & set(text)))
def test_neutralising_can_be_undone(text: str) -> None:
    assert restore(neutralize(text)) == text
