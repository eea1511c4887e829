from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from scripts.snippets import Snippet, commands, pattern_of, snippets, treatment

if TYPE_CHECKING:
    from pathlib import Path


def find_blocks(tmp_path: Path, markdown: str) -> list[Snippet]:
    path = tmp_path / "page.md"
    path.write_text(textwrap.dedent(markdown), encoding="utf-8")
    return list(snippets(path))


def test_blocks_are_found_with_their_lines(tmp_path: Path) -> None:
    blocks = find_blocks(
        tmp_path,
        """\
        # Title

        ```bash
        echo one
        ```

        ```text
        nothing to run
        ```

        ~~~python
        print("```")
        ~~~
        """,
    )
    assert [(block.line, block.language, block.text) for block in blocks] == [
        (3, "bash", "echo one\n"),
        (11, "python", 'print("```")\n'),
    ]


def test_a_block_within_a_list_loses_its_indentation(tmp_path: Path) -> None:
    [block] = find_blocks(tmp_path, "1. First\n\n   ```bash\n   echo one\n     two\n   ```\n")
    assert block.text == "echo one\n  two\n"


def test_a_longer_fence_may_hold_shorter_ones(tmp_path: Path) -> None:
    [block] = find_blocks(tmp_path, "````text\n```bash\nfalse\n```\n````\n\n```json\n{}\n```\n")
    assert block.language == "json"


def test_a_block_that_continues_starts_with_those_before_it_in_its_language(tmp_path: Path) -> None:
    markdown = "```python\na = 1\n```\n```bash\ntrue\n```\n```python continues\nprint(a)\n```\n"
    assert find_blocks(tmp_path, markdown)[-1].text == "a = 1\nprint(a)\n"


def test_a_skipped_block_carries_its_reason(tmp_path: Path) -> None:
    [block] = find_blocks(tmp_path, '```bash skip="needs a hosted model"\nfalse\n```\n')
    assert block.skip == "needs a hosted model"


@pytest.mark.parametrize("info", ["bash skip", "bash skip=", 'bash skip=" "', "toml parsed", "json title=x"])
def test_a_flag_without_meaning_or_reason_is_refused(info: str) -> None:
    with pytest.raises(ValueError, match="is no flag"):
        treatment(info)


def test_the_refusal_names_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:3: 'skip'"):
        find_blocks(tmp_path, "# Title\n\n```bash skip\nfalse\n```\n")


def test_fences_of_other_languages_may_say_what_they_like() -> None:
    assert treatment("mermaid theme=dark") == ("mermaid", "", frozenset())
    assert treatment("") == ("", "", frozenset())


def test_only_what_was_typed_is_run_of_a_console_block() -> None:
    assert commands("$ echo one \\\n>   two\none two\n$ true\n") == "echo one \\\n  two\ntrue"


def test_a_block_with_output_knows_the_next_block(tmp_path: Path) -> None:
    blocks = find_blocks(tmp_path, "```bash output\necho one\n```\n\n```text\none\n```\n\n```bash\ntrue\n```\n")
    assert [block.output for block in blocks] == ["one\n", ""]


def test_dots_in_an_output_stand_for_any_text() -> None:
    pattern = pattern_of('{"id": "...", "n": 1.0,\n...}\n')
    assert pattern.fullmatch('{"id": "a", "n": 1.0,\n"b":\n2}')
    assert not pattern.fullmatch('{"id": "a", "n": 1x0,\n}')
