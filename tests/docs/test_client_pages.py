"""Blocks of the pages that say from which file they come are parts of that file, which the tests of its client run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"^<!-- (?P<path>clients/\S+) -->\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(match["path"], match["text"], id=match["path"])
    for page in sorted((ROOT / "docs" / "guides").glob("*.md"))
    for match in MARKED.finditer(page.read_text("utf-8"))
]


def strip_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(("path", "text"), BLOCKS)
def test_a_block_of_a_client_is_part_of_its_example(path: str, text: str) -> None:
    block, lines = strip_lines(text), strip_lines((ROOT / path).read_text("utf-8"))
    assert block
    assert any(lines[start : start + len(block)] == block for start in range(len(lines)))


def test_every_client_has_its_block() -> None:
    languages = {path.name for path in (ROOT / "clients").iterdir() if path.is_dir()}
    assert languages == {str(block.values[0]).split("/")[1] for block in BLOCKS}
