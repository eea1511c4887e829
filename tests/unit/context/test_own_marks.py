"""Fences, doubled tags and placeholders of ours are no part of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.context.answers import is_placeholder
from reasond_server.context.carryover import NOTES_EXAMPLE
from reasond_server.context.own_marks import TagCutter, cut_own_words, find_own_names, find_own_words, settle_reply
from reasond_server.context.replies import TagParser
from reasond_server.context.sections import FENCE_RULE
from reasond_server.context.tags import TagKind
from reasond_server.context.text_calls import ACTION_RULE
from reasond_server.llm.model import Message, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
PROMPT = [Message(role=Role.USER, content=f"<question {NONCE}>\nWhat?\n</question {NONCE}>")]


def settle(text: str, asked: Sequence[Message] = PROMPT) -> tuple[str, str]:
    """Return the text and the answer of a reply to `asked` that the model ended by itself."""
    parser = TagParser(kinds=(TagKind.ANSWER,))
    parser.feed(text)
    parser.close(is_stop=True)
    settled = settle_reply(parser.result, asked, behind=parser.behind)
    return settled.text.strip(), settled.content.strip()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>42<answer>", "42"),
        ("<answer>41<answer>42", "42"),
        ("<answer>41</answer> No: <answer>42</answer>", "42"),
        ("<answer>42</answer> Is it <answer>so", "42"),
        ("<answer>42<answer> I hope that this helps.", "42"),
        ("<answer>42</answer> <answer>the final answer</answer>", "42"),
        ("<answer>the final answer</answer> <answer>42</answer>", "42"),
        (f"<answer>42</answer {NONCE}> and more", "42"),
        (f"<answer>\n<notes {NONCE}>\n42\n</notes {NONCE}></answer>", "42"),
        (f"<answer {NONCE}>42</answer {NONCE}>", "42"),
        (f"<answer>42 {NONCE}</answer>", "42"),
        ("<answer>Write:\n```xml\n<answer>\n```</answer>", "Write:\n```xml\n<answer>\n```"),
        (f"<answer></answer><answer><question {NONCE}><answer></answer>", ""),
        (f"<answer></answer><answer><question {NONCE}><answer>42</answer>", "42"),
        ("<answer>the final answer</answer>", ""),
        ("<answer>...</answer>", ""),
        ("<answer>{}</answer>", "{}"),
        ("<answer>[]</answer>", "[]"),
    ],
)
def test_the_answer_is_what_the_model_says_last(text: str, answer: str) -> None:
    assert settle(text)[1] == answer


def test_an_earlier_answer_becomes_reasoning() -> None:
    text, answer = settle("So <answer>41</answer> No: <answer>42</answer>")
    assert answer == "42"
    assert text.split() == ["So", "41", "No:"]


def test_a_repeated_question_is_cut_out_of_a_text() -> None:
    assert settle(f"<question {NONCE}>\nWhat?\n</question {NONCE}>\nIt is 42.") == ("It is 42.", "")
    assert settle(f"It is 42.\n</question {NONCE}>") == ("It is 42.", "")
    assert settle(f"Tags marked {NONCE} bound it.") == ("Tags marked  bound it.", "")


def test_long_words_that_are_no_nonce_stay() -> None:
    word = "donaudampfschifffahrtsgesellschaft"
    assert settle(f"<answer>{word}</answer>") == ("", word)


@pytest.mark.parametrize(
    "text", ["your answer", '"The final answer."', "**the final answer**", "[the final answer]", "…"]
)
def test_what_only_repeats_the_prompt_is_no_answer(text: str) -> None:
    assert is_placeholder(text)


@pytest.mark.parametrize("text", ["", "42", "the final answer is 42", "{}", "()", "result", "N"])
def test_what_says_something_is_an_answer(text: str) -> None:
    assert not is_placeholder(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (ACTION_RULE, ""),
        (ACTION_RULE.partition(", one call")[0], ""),
        ('"NAME", "arguments": {...}}</action>', ""),
        (f"{ACTION_RULE}42", "42"),
        (f"{ACTION_RULE}Tom has 12 pens.", "Tom has 12 pens."),
        ("NAME", "NAME"),
    ],
)
def test_nothing_is_left_of_a_rule_of_ours_that_is_repeated(text: str, left: str) -> None:
    asked = Message(role=Role.USER, content=f"{PROMPT[0].content}\n{ACTION_RULE}")
    words = find_own_words([Message(role=Role.SYSTEM, content=FENCE_RULE.strip()), asked])
    assert cut_own_words(text, words).strip() == left


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # As Qwen2.5-Coder-1.5B ends a judgement: it repeats the solution and what stands behind it.
        (
            "So it was 20.\n\nEnd with your score from 0 (wrong) to 10 (right), for example: <answer>7",
            "",
        ),
        ("Right. End with your score from 0 (wrong) to 10 (right), for example:  <answer>7</answer>", ""),
        ("End with your score from 0 (wrong) to 10 (right), for example: <answer>3</answer>", "3"),
        ("The steps are right, and it is what was asked for: <answer>7</answer>", "7"),
        ("<answer>7</answer>", "7"),
    ],
)
def test_the_example_of_a_rule_that_is_copied_with_its_rule_is_no_answer(text: str, answer: str) -> None:
    rule = "End with your score from 0 (wrong) to 10 (right), for example: <answer>7</answer>"
    asked = [Message(role=Role.USER, content=f"{PROMPT[0].content}\n{rule}")]
    assert settle(text, asked)[1] == answer


def test_an_answer_that_the_model_repeats_in_a_second_reply_is_one() -> None:
    reply = "So all of them together make 7 euros: <answer>7</answer>"
    asked = [*PROMPT, Message(role=Role.ASSISTANT, content=reply), Message(role=Role.USER, content="Say it again.")]
    assert settle(reply, asked)[1] == "7"


def test_the_example_of_notes_is_cut_out_of_notes() -> None:
    """As Qwen2.5-Coder-1.5B wrote them: it told the length of our wall as a fact of the passage."""
    asked = Message(role=Role.USER, content=f"{PROMPT[0].content}\nWrite notes, for example:\n{NOTES_EXAMPLE}")
    words = find_own_words([Message(role=Role.SYSTEM, content=FENCE_RULE.strip()), asked])
    notes = "The dock is 4,731 cm deep. The wall is 12 m long."
    assert cut_own_words(notes, words).strip() == "The dock is 4,731 cm deep."


def settle_turn(text: str, kinds: Sequence[TagKind] = ()) -> str:
    """Return the text of a reply to a prompt with a result, which is asked for none of our tags but `kinds`."""
    shown = f'<observation {NONCE} call="c1">\n{{"price":4.35}}\n</observation {NONCE}>'
    asked = [*PROMPT, Message(role=Role.USER, content=shown)]
    parser = TagParser(kinds=kinds)
    parser.feed(text)
    parser.close(is_stop=True)
    cutter = TagCutter(lambda: find_own_names(asked, kinds))
    return settle_reply(parser.result, asked, cutter=cutter, kinds=kinds).text.strip()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"<answer {NONCE}>\n4.35\n</answer {NONCE}>", "4.35"),
        (f'<answer {NONCE} call="c1">\n4.35\n</answer {NONCE}>', "4.35"),
        (f"It costs this.\n<answer {NONCE}>4.35</answer {NONCE}>", "It costs this.\n4.35"),
        (f'<observation {NONCE} call="c1">\n{{"price":4.35}}\n</observation {NONCE}>', '{"price":4.35}'),
        (f'<observation {NONCE} call="c1">\n4.35 euros\n</observation {NONCE}>', "4.35 euros"),
        (f"<question {NONCE}>\nWhat?\n</question {NONCE}>", ""),
        ("<observation>kept</observation>", "<observation>kept</observation>"),
        ('<Observation status="final">kept</Observation>', '<Observation status="final">kept</Observation>'),
    ],
)
def test_what_tags_of_ours_hold_is_text_where_none_was_asked_for(text: str, left: str) -> None:
    assert settle_turn(text) == left


def test_who_asks_for_actions_sees_an_invented_observation() -> None:
    text = f'<observation {NONCE} call="c1">\n1\n</observation {NONCE}>'
    assert "<observation" in settle_turn(text, (TagKind.ACTION,))
