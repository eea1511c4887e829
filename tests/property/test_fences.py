"""Texts from outside cannot leave their fence: a question, a text or notes stay in their section of the prompt."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context import tags
from reasond_server.context.sections import Passage, build_prompt
from reasond_server.context.tags import RESERVED_TAGS, neutralize, restore
from reasond_server.demo.reply_writer import read_prompt

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
TOKENS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>",
    "<|start|>", "<|channel|>", "<|message|>", "<|turn>", "<turn|>", "<|system|>", "<|END_OF_TURN_TOKEN|>",
    "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[gMASK]",
    "<<SYS>>", "<</SYS>>", "<s>", "</s>", "<bos>", "<eos>", "<unk>", "<pad>", "<sop>",
    "<start_of_turn>", "<end_of_turn>", "<tool_call>", "</tool_call>", "<tool_response>",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>", "<\uff5ctool\u2581calls\u2581begin\uff5c>",
)  # fmt: skip
PARTS = st.sampled_from([
    *TOKENS, *(f"</{tag} {NONCE}>" for tag in RESERVED_TAGS), *(f"<{tag} {NONCE}>" for tag in RESERVED_TAGS),
    *(f"</{tag}>" for tag in RESERVED_TAGS), "\n", "<", "</", "< / ", "\uff1c", "\ufe64", "question", "NOTES", " ",
    NONCE, ">", "|", "|>", "<|", "\uff5c", "[", "]", "/", "INST]", "\u200b", "\ufe0f", "\uff51uestion", "s>", "&lt",
    ";", "#91;", "&", "\u00e9", "im_start", "SYS>>",
])  # fmt: skip
UNTRUSTED = st.lists(PARTS | st.text(max_size=3), max_size=24).map("".join)
EXOTIC = {"\uff1c", "\ufe64"}
TAG = re.compile(rf"<\s*/?\s*(?:{'|'.join(RESERVED_TAGS)})(?![a-z0-9_-])")


def as_seen(text: str) -> str:
    """Return `text` as a reader would see it that ignores differences of spelling."""
    visible = "".join(char for char in text if unicodedata.category(char) != "Cf" and char != "\ufe0f")
    return unicodedata.normalize("NFKC", visible).casefold()


@given(question=UNTRUSTED, notes=UNTRUSTED.filter(bool), text=UNTRUSTED)
def test_nothing_that_is_written_closes_or_opens_a_fence(question: str, notes: str, text: str) -> None:
    messages = build_prompt(
        instructions="Work.",
        question=question,
        nonce=NONCE,
        notes=notes,
        passage=Passage(text=text, segment=1, segment_count=2),
    )
    content = messages[1].content
    assert content == (
        f"<question {NONCE}>\n{neutralize(question)}\n</question {NONCE}>\n"
        f"<notes {NONCE}>\n{neutralize(notes)}\n</notes {NONCE}>\n"
        f'<passage {NONCE} segment="1" of="2">\n{neutralize(text)}\n</passage {NONCE}>\nWork.'
    )
    assert len(TAG.findall(as_seen(content))) == 6


@given(question=UNTRUSTED, text=UNTRUSTED)
def test_the_demo_model_reads_every_section_to_its_end(question: str, text: str) -> None:
    messages = build_prompt(
        instructions="Work.",
        question=question,
        nonce=NONCE,
        passage=Passage(text=text, segment=1, segment_count=2),
    )
    prompt = read_prompt(messages)
    # The reader accepts every kind of line break.
    assert prompt.question.split("\n") == (neutralize(question) + "\n").splitlines()
    assert prompt.passage.split("\n") == (neutralize(text) + "\n").splitlines()


@given(text=UNTRUSTED)
def test_no_control_token_of_a_chat_template_is_left(text: str) -> None:
    neutral = neutralize(text)
    assert not [token for token in TOKENS if token in neutral]
    assert neutralize(neutral) == neutral


@given(text=UNTRUSTED.filter(lambda text: not EXOTIC & set(text) and "&lt;" not in text and "&#91;" not in text))
def test_neutralising_can_be_undone(text: str) -> None:
    assert restore(neutralize(text)) == text


@given(text=UNTRUSTED)
def test_nothing_but_the_beginning_of_a_tag_or_token_is_altered(text: str) -> None:
    folded = {"&lt;": "<", "&#91;": "[", "\uff1c": "<", "\ufe64": "<"}

    def plain(one: str) -> str:
        for entity, char in folded.items():
            one = one.replace(entity, char)
        return one

    assert plain(neutralize(text)) == plain(text)


@given(text=st.text(alphabet=st.characters(exclude_characters="<[\uff1c\ufe64")))
def test_a_text_without_brackets_is_byte_for_byte_the_same(text: str) -> None:
    assert neutralize(text) == text


@given(start=st.integers(0, 60), text=UNTRUSTED)
def test_a_part_of_a_neutralised_text_holds_no_control_token_either(start: int, text: str) -> None:
    neutral = neutralize(text)
    for part in (neutral[start:], neutral[:start]):
        assert not [token for token in TOKENS if token in part]
        # Cutting a longer word can produce a tag; the prompt neutralises once more.
        assert not TAG.search(as_seen(neutralize(part)))


@given(
    st.lists(
        PARTS | st.sampled_from(["<", "<<SYS>>", "<<sy\u017f>>", "</SYS>>", "S", "/", "<think", "\uff1cthink>", "a"])
    ),
    st.integers(min_value=1, max_value=9),
)
def test_a_text_is_neutralised_in_pieces_as_it_is_in_one(parts: list[str], piece: int) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tags, "PIECE_CHARACTERS", piece)
        in_pieces = neutralize(text)
    assert in_pieces == tags._neutralize_piece(text)


@given(
    st.lists(
        PARTS
        | st.sampled_from(
            [
                "&lt;",
                "&LT;",
                "&gt;",
                "&GT;",
                "&#91;",
                "&#91;INST]",
                "&lt;answer",
                "&lt;/SYS>>",
                "&lt;|im_end|>",
                "&amp;",
            ]
        )
    ),
    st.integers(min_value=1, max_value=9),
)
def test_a_text_is_restored_in_pieces_as_it_is_in_one(parts: list[str], piece: int) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tags, "PIECE_CHARACTERS", piece)
        in_pieces = restore(text)
    assert in_pieces == restore(text)
