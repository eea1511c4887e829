"""The page of the architecture names every room, and every module of the largest ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    for room in ("assembly", "errors", "eventlog", "runs"):
        table = PAGE.partition(f"| for | modules of `{room}/` |")[2].partition("\n\n")[0]
        rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
        named = [name for row in rows for name in re.findall(r"`(\w+)/?`", row)]
        assert sorted(named) == sorted(names_in(SOURCE / room)), room


def test_the_map_of_repairs_has_every_module_in_its_folder() -> None:
    table = PAGE.partition("| folder of `repair/` |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    named = {folder.split("`")[1].strip("/"): sorted(re.findall(r"`(\w+)`", modules)) for folder, modules in rows}
    assert named == {folder: sorted(names_in(SOURCE / "repair" / folder)) for folder in names_in(SOURCE / "repair")}


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


TOKEN = re.compile(r"`([^`]+)`")
PLACE = re.compile(r"[\w.-]*/[\w./-]*|[\w-]+\.(?:js|json|md|proto|py|toml)|\.importlinter")
LIMITS = {"a built-in strategy": 6, "an RPC": 8, "an error reason": 2, "a configuration key": 2}
"""The most files that are touched by hand, those of the clients of an RPC not counted."""
FOREIGN_WORDS = {"__init__", "config"}
"""The name of a module, and of a oneof of a proto."""


def find_places(token: str) -> list[Path]:
    """Return the files and folders that `token` names from the root, from the server's package or by their end."""
    pattern = token.rstrip("/").replace("NAME", "*")
    found = [each for folder in (ROOT, SOURCE) for each in folder.glob(pattern)]
    return found or [each for room in ("src", "proto", "clients/python/src") for each in (ROOT / room).rglob(pattern)]


def places_in(cell: str) -> list[str]:
    return [token for token in TOKEN.findall(cell) if PLACE.fullmatch(token)]


@pytest.mark.parametrize("row", rows_of("Where to add what"), ids=lambda row: row[0])
def test_each_row_names_files_tests_and_names_that_are_there(row: list[str]) -> None:
    _, touched, told = row
    places = {token: find_places(token) for token in [*places_in(touched), *places_in(told)]}
    assert [token for token, found in places.items() if not found] == []
    texts = [each.read_text(encoding="utf-8") for found in places.values() for each in found if each.is_file()]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    contracts = (ROOT / ".importlinter").read_text(encoding="utf-8")
    for token in TOKEN.findall(f"{touched} {told}"):
        if token.startswith("make "):
            assert f"\n{token.removeprefix('make ')}:" in makefile
        elif token.isidentifier() and token not in FOREIGN_WORDS:
            assert any(re.search(rf"\b{token}\b", text) for text in texts), token
    for contract in re.findall(r'import contract "([^"]+)"', told):
        assert contract in contracts
    for test in places_in(told):
        assert test.startswith("tests/")


@pytest.mark.parametrize(("added", "most"), LIMITS.items())
def test_what_is_added_often_touches_few_files(added: str, most: int) -> None:
    (touched,) = [row[1] for row in rows_of("Where to add what") if row[0] == added]
    by_hand = touched.partition("; then `make")[0]
    # Of alternatives one is touched, and a step to a later row is counted there.
    by_hand = re.sub(r"`[^`]+`(?:,[^`]*)? or [^`;]*`[^`]+`", "`one/of`", by_hand)
    assert 1 <= len(set(places_in(by_hand))) <= most
