"""The page of the architecture names every room, and every module of the largest ones."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src/reasond_server"


def names_in(folder: Path) -> set[str]:
    """Return the modules and packages in `folder`, by their names."""
    return {each.stem for each in folder.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()} - {
        "__init__",
        "__main__",
    }


def test_every_room_stands_in_the_picture() -> None:
    picture = PAGE.partition("## The rooms")[2].partition("```text")[2].partition("```")[0]
    named = set(re.findall(r"^  (\w+)(?:/|\.py)", picture, flags=re.MULTILINE))
    assert names_in(SOURCE) == named - {"data"}


def test_the_maps_of_the_largest_rooms_have_every_module_once() -> None:
    for room in ("logs", "runs", "repair"):
        table = PAGE.partition(f"| for | modules of `{room}/` |")[2].partition("\n\n")[0]
        rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
        named = [name for row in rows for name in re.findall(r"`(\w+)/?`", row)]
        assert sorted(named) == sorted(names_in(SOURCE / room)), room


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the table below `heading`, without its header row."""
    text = PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_behaviour_takes_five_files_at_most_and_stands_where_the_page_says() -> None:
    rows = rows_of("Where a behaviour stands")
    assert len(rows) == 13
    for behaviour, files in rows:
        named = re.findall(r"`([\w/]+\.py)` \(`(\w+)`\)", files)
        assert 1 <= len(named) == files.count(".py") <= 5, behaviour
        for path, symbol in named:
            code = (SOURCE / path).read_text(encoding="utf-8")
            assert re.search(rf"\b{symbol}\b", code), f"{behaviour}: {symbol} is not in {path}"


def test_the_glossary_has_forty_words_at_most() -> None:
    words = [word for word, _ in rows_of("Words used in the code")]
    assert len(words) == len(set(words)) <= 40
