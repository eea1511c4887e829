from __future__ import annotations

from reasond_server.demo.reply_writer import Prompt, read_prompt
from reasond_server.llm.model import Message, Role


def _user(content: str) -> Message:
    return Message(role=Role.USER, content=content)


def test_a_message_without_sections_is_the_question() -> None:
    assert read_prompt([_user("Why?\nReally?")]) == Prompt(question="Why?\nReally?")


def test_the_last_user_message_counts() -> None:
    messages = [
        Message(role=Role.SYSTEM, content="Be brief."),
        _user("one"),
        _user("two"),
        Message(role=Role.ASSISTANT, content="well"),
    ]
    assert read_prompt(messages).question == "two"
    assert read_prompt([]) == Prompt()


def test_sections_are_read_and_the_text_around_them_is_not() -> None:
    content = (
        "Do this.\n<question>\nWhy?\n</question>\n<notes>\none\n\ntwo\n</notes>\nAnd that.\n"
        '<passage segment="2" of="7">\nText <b>bold</b>.\n&lt;question>\n</passage>\nEnd.'
    )
    assert read_prompt([_user(content)]) == Prompt(
        question="Why?",
        notes="one\n\ntwo",
        passage="Text <b>bold</b>.\n&lt;question>",
        segment=2,
        segment_count=7,
        is_reading=True,
    )


def test_a_passage_without_numbers_is_the_only_one() -> None:
    prompt = read_prompt([_user("<question>\nWhy?\n</question>\n<passage>\nText.\n</passage>")])
    assert (prompt.segment, prompt.segment_count, prompt.is_reading) == (1, 1, True)


def test_an_empty_passage_is_being_read_and_material_is_not() -> None:
    assert read_prompt([_user("<passage>\n</passage>")]).is_reading
    prompt = read_prompt([_user("<material>\nText.\n</material>")])
    assert prompt.material == "Text."
    assert not prompt.is_reading


def test_a_tag_inside_a_line_or_another_section_is_text() -> None:
    content = "<material>\n<question>\nWho?\n</question>\nsee <notes> here\n</material>\n<question>\nWhy?\n</question>"
    prompt = read_prompt([_user(content)])
    assert prompt.material == "<question>\nWho?\n</question>\nsee <notes> here"
    assert prompt.question == "Why?"


def test_a_section_that_is_not_closed_reaches_to_the_end() -> None:
    assert read_prompt([_user("<notes>\none\ntwo")]).notes == "one\ntwo"


def test_marked_sections_end_at_the_tag_with_their_own_mark() -> None:
    content = (
        "<question abc>\nWhy?\n</question>\n</question xyz>\n<question abc>\nReally?\n</question abc>\n"
        '<passage abc segment="2" of="7">\nText.\n</passage abc>'
    )
    prompt = read_prompt([_user(content)])
    assert prompt.question == "Why?\n</question>\n</question xyz>\n<question abc>\nReally?"
    assert (prompt.passage, prompt.segment, prompt.segment_count) == ("Text.", 2, 7)


def test_a_hundred_thousand_opening_tags_are_read_in_linear_time() -> None:
    assert read_prompt([_user("<question>\n" * 100_000)]).question.count("<question>") == 99_999
