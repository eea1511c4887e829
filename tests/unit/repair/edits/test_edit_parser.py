from __future__ import annotations

import pytest

from reasond_server.repair.edits.edit_application import (
    Edit,
    EditError,
    list_candidates,
    parse_candidates,
    read_reply,
    split_candidates,
    write_edit_format,
)

BLOCK = "src/a.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n"
EDIT = Edit(path="src/a.py", anchor="x = 1\n", text="x = 2\n")


def read_edits(text: str) -> list[Edit]:
    """Return the edits of a reply without what is only known of their form."""
    return [Edit(path=edit.path, anchor=edit.anchor, text=edit.text) for edit in read_reply(text).edits]


def test_candidate_parsing() -> None:
    """Seed 004, unit test 2: two delimited sections become two candidates with ids."""
    reply = (
        "Here are two candidates.\n\n"
        "Candidate 1:\nThe check for null is missing.\n```python\nCandidate 9: this is code\n```\n\n"
        "**Candidate 2:** Guard the caller.\nguard()\n"
    )
    first, second = parse_candidates(reply)
    assert [first.candidate_id, second.candidate_id] == ["cand-1", "cand-2"]
    assert first.code_or_plan.startswith("The check for null")
    assert "Candidate 9" in first.code_or_plan
    assert second.code_or_plan == "Guard the caller.\nguard()"


@pytest.mark.parametrize(
    "heading", ["Candidate 1:", "### Candidate 1", "**Candidate 1**", "candidate 12: why", "__Candidate 1:__"]
)
def test_headings_of_candidates_are_found(heading: str) -> None:
    assert len(split_candidates(f"{heading}\na\nCandidate 2:\nb")) == 2


@pytest.mark.parametrize("text", ["Candidate 1 is better than candidate 2.", "all of it", "x\n```\nCandidate 1:\n```"])
def test_without_headings_the_whole_reply_is_one_candidate(text: str) -> None:
    assert split_candidates(text) == [text]
    assert [each.candidate_id for each in parse_candidates(text, first_number=7)] == ["cand-7"]


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        BLOCK.replace("\n", "\r\n"),
        f"I mend it.\n\n```python\n{BLOCK}```\nDone.",
        "### `src/a.py`\n\n```\n" + BLOCK.partition("\n")[2] + "```",
        "File: src/a.py\n```python\n" + BLOCK.partition("\n")[2] + "```",
        "```python src/a.py\n" + BLOCK.partition("\n")[2] + "```",
        "**src/a.py**:\n" + BLOCK.partition("\n")[2],
        "1. ./src/a.py\n" + BLOCK.partition("\n")[2],
        BLOCK.replace("<<<<<<< SEARCH", "<<<<<< search").replace(">>>>>>> REPLACE", ">>>>>REPLACE "),
    ],
)
def test_a_block_is_read_however_it_is_dressed(text: str) -> None:
    assert read_edits(text) == [EDIT]


@pytest.mark.parametrize(
    "edit",
    [
        BLOCK,
        "**src/a.py**:\n\n" + BLOCK.partition("\n")[2],
        "File: src/a.py\n```python\nx = 2\n```\n",
        "src/a.py\n<<<<<<< DELETE\n",
        f"```\n{BLOCK}```",
    ],
)
def test_the_line_that_names_a_file_is_no_part_of_the_reasoning(edit: str) -> None:
    assert read_reply(f"It is wrong.\n\n{edit}\nDone.").thought.split() == ["It", "is", "wrong.", "Done."]


def test_prose_above_a_block_without_a_path_stays_in_the_reasoning() -> None:
    text = f"{BLOCK}And the end of it:\n{BLOCK.partition(chr(10))[2]}"
    assert read_reply(text).thought == "And the end of it:"


def test_of_several_candidates_the_first_is_read() -> None:
    other = BLOCK.replace("x = 2", "x = 3")
    assert read_edits(f"I have two ideas.\n\n### Candidate 1:\n{BLOCK}\n### Candidate 2:\n{other}") == [EDIT]


def test_a_block_right_below_another_belongs_to_its_file_and_one_below_prose_does_not() -> None:
    rest = BLOCK.partition("\n")[2]
    assert [edit.path for edit in read_edits(f"{BLOCK}\n{rest}")] == ["src/a.py", "src/a.py"]
    assert [edit.path for edit in read_edits(f"```\n{BLOCK}```\n\n```\n{rest}```")] == ["src/a.py", "src/a.py"]
    second = read_reply(f"{BLOCK}\nand also this:\n\n{rest}").edits[1]
    assert (second.path, second.mention) == ("", "and also this:")
    assert [edit.path for edit in read_edits(f"{BLOCK}\nMakefile\n{rest}\nsrc/b.py\n{rest}")] == [
        "src/a.py",
        "Makefile",
        "src/b.py",
    ]


@pytest.mark.parametrize(
    "fence",
    [
        "```python src/a.py",
        "```src/a.py",
        "``` python:src/a.py",
        '~~~python title="src/a.py"',
        "src/a.py\n```python",
        "`src/a.py`:\n\n````",
    ],
)
def test_a_fence_with_a_path_is_a_whole_file(fence: str) -> None:
    mark = "~~~" if "~" in fence else "````" if "````" in fence else "```"
    assert read_edits(f"{fence}\nx = 2\n\n{mark}\n") == [Edit(path="src/a.py", text="x = 2\n\n")]


def test_a_longer_fence_holds_shorter_ones_and_an_empty_fence_is_an_empty_file() -> None:
    assert read_edits("````md docs/a.md\n```\ncode\n```\n````") == [Edit(path="docs/a.md", text="```\ncode\n```\n")]
    assert read_edits("```a/__init__.py\n```") == [Edit(path="a/__init__.py", text="")]


def test_fences_without_a_path_are_edits_of_a_file_that_is_not_known_yet() -> None:
    reply = read_reply(f"The fault is here:\n```python\nx = 1\n```\nas in src/a.py\n```\nshown\n```\n{BLOCK}")
    assert [(edit.path, edit.mention) for edit in reply.edits] == [
        ("", "The fault is here:"),
        ("", "as in src/a.py"),
        ("src/a.py", ""),
    ]
    assert "x = 1" in reply.thought
    assert "The fault" in reply.thought


def test_a_file_is_deleted() -> None:
    assert read_edits("src/old.py\n<<<<<<< DELETE\n") == [Edit(path="src/old.py")]


def test_blocks_whose_lines_look_like_marks_have_longer_marks() -> None:
    text = "a.rst\n<<<<<<<< SEARCH\nTitle\n=======\n========\nTopic\n=======\n>>>>>>> REPLACE\n>>>>>>>> REPLACE\n"
    assert read_edits(text) == [Edit(path="a.rst", anchor="Title\n=======\n", text="Topic\n=======\n>>>>>>> REPLACE\n")]
    with pytest.raises(EditError, match=r"2 lines of ======= .* one character longer"):
        read_reply("a.rst\n<<<<<<< SEARCH\nTitle\n=======\n=======\nTopic\n>>>>>>> REPLACE\n")
    with pytest.raises(EditError, match="0 lines of ======="):
        read_reply("a.rst\n<<<<<<< SEARCH\nTitle\n>>>>>>> REPLACE\n")


@pytest.mark.parametrize(
    "text",
    [
        BLOCK.removesuffix(">>>>>>> REPLACE\n"),
        "src/a.py\n<<<<<<< SEARCH\nx",
        f"src/a.py\n<<<<<<< SEARCH\nx = 1\n{BLOCK}",
        "<think>I wonder",
    ],
)
def test_a_reply_that_was_cut_is_unusable(text: str) -> None:
    with pytest.raises(EditError, match=r"The reply (was cut|ends within)"):
        read_reply(text)


def test_the_last_fence_need_not_be_closed() -> None:
    assert read_edits("```python src/a.py\nx = 2\n") == [Edit(path="src/a.py", text="x = 2\n")]
    assert read_edits(f"```\n{BLOCK}") == [EDIT]
    assert read_edits(f"```\n{BLOCK.removesuffix('>>>>>>> REPLACE' + chr(10))}```\n") == [EDIT]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("no edit", "is prose alone"),
        ("<think>x</think>", "is empty"),
        (write_edit_format("src/a.py"), "repeats the example"),
    ],
)
def test_a_reply_without_edits_is_told_what_it_is_instead(text: str, why: str) -> None:
    with pytest.raises(EditError, match=why):
        read_reply(text)


def test_a_block_without_a_path_names_the_line_above_and_a_reply_without_end_is_refused() -> None:
    (edit,) = read_reply("Now this:\n" + BLOCK.partition("\n")[2]).edits
    assert (edit.path, edit.mention) == ("", "Now this:")
    with pytest.raises(EditError, match="2000001 characters"):
        read_reply("x" * 2_000_001)


def test_reasoning_is_no_edit() -> None:
    draft = BLOCK.replace("x = 2", "x = 3")
    reply = read_reply(f"<think>\nperhaps\n{draft}</think>\nMended.\n{BLOCK}")
    assert reply.edits == [EDIT]
    assert "perhaps" in reply.thought
    assert "Mended." in reply.thought
    assert read_edits(f"perhaps {draft}</think>\n{BLOCK}")[-1] == EDIT
    assert read_reply(f"perhaps</think>\n{BLOCK}").thought.startswith("perhaps")


def test_tags_of_reasoning_in_a_change_are_its_text() -> None:
    text = "a.py\n<<<<<<< SEARCH\nTAG = '<think>'\nEND = '</think>'\n=======\nTAG = ''\n>>>>>>> REPLACE"
    assert read_edits(text) == [Edit(path="a.py", anchor="TAG = '<think>'\nEND = '</think>'\n", text="TAG = ''\n")]


def test_the_example_of_the_format_is_in_that_format_and_never_an_edit() -> None:
    example = write_edit_format("src/a.py")
    assert read_edits(example.replace("total_of_example", "total"))[0].path == "src/a.py"
    assert read_edits(f"{example}\n{BLOCK}") == [EDIT]
    assert read_edits(f"{write_edit_format('src/a.py', is_whole=True)}\n{BLOCK}") == [EDIT]


def test_fences_of_prompts_are_no_part_of_an_edit() -> None:
    tag = "material qzkvhwbnmcjtrxplaoysdgeufiqh"
    assert read_edits(f"```python src/a.py\n<{tag}>\nx = 2\n</{tag}>\n```") == [Edit(path="src/a.py", text="x = 2\n")]


def test_each_candidate_of_a_reply_is_a_text_of_its_own() -> None:
    other = BLOCK.replace("x = 2", "x = 3")
    first, second = list_candidates(f"Two ideas.\n\nOption 1: so\n{BLOCK}\n**Option 2:**\n{other}")
    assert (read_edits(first)[0].text, read_edits(second)[0].text) == ("x = 2\n", "x = 3\n")
    assert list_candidates(BLOCK) == [BLOCK]


def test_a_hostile_reply_is_read_in_linear_time() -> None:
    for part in (
        "`" * 9 + "\n",
        "<<<<<<< DELETE\n",
        "a.py\n",
        "=======\n",
        " " * 30 + "\n",
        "Candidate 1\n",
        "```a.py\n```\n",
        "@@ -1 +1 @@\n-a\n",
        "--- a\n+++ b\n",
    ):
        text = part * (400_000 // len(part))
        split_candidates(text)
        try:
            read_reply(text)
        except EditError as error:
            assert len(str(error)) < 2000  # noqa: PT017 - most of these are refused, some are not
