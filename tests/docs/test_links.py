"""Links on the pages have a target, tests that pages name exist, and short pages stay short."""

from __future__ import annotations

import ast
import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from scripts.pages import FENCED, links

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "clients").glob("*/README.md"),
        *(ROOT / "src").rglob("*.md"),
        *(ROOT / "examples").glob("*/README.md"),
    }
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
README_LINES = 80
DECISION_LINES = 40
STATUS = re.compile(r"\n\nStatus: (?P<status>holds|superseded by (?P<successor>\d{4}))\n\n")
NAMED_PATH = re.compile(
    r"`(?P<path>(?:[a-z][\w.-]*/)+(?:[a-z][\w.-]*)?|[a-z][\w-]*\.(?:go|js|md|proto|py|toml|ts|yml))(?:::\w+)?`"
)
UNTRACKED = {"build", "dist", "node_modules", "target", "__pycache__"}

HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *$", re.MULTILINE)
NAMED_TEST = re.compile(r"`(?P<path>tests/[\w./-]+\.py)(?:::(?P<name>\w+))?`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def targets(page: Path) -> list[str]:
    return [target for _, target in links(page.read_text(encoding="utf-8"))]


@cache  # most links lead to few pages
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    found: dict[str, int] = {}
    made = set()
    for match in HEADING.finditer(FENCED.sub("", page.read_text(encoding="utf-8"))):
        slug = slug_of(match["title"])
        count = found.get(slug, 0)
        found[slug] = count + 1
        made.add(f"{slug}-{count}" if count else slug)
    return made


def slug_of(title: str) -> str:
    """Return the anchor of one heading: letters, digits, "_" and "-" in lower case, blanks as "-"."""
    kept = (sign for sign in title.lower() if sign in " -_" or unicodedata.category(sign)[0] in "LN")
    return "".join(kept).strip().replace(" ", "-")


def find_broken(page: Path, target: str) -> str:
    """Return the fault of a link; empty if it is correct."""
    path, _, anchor = target.partition("#")
    place = (page.parent / path).resolve() if path else page
    if not place.is_relative_to(ROOT):
        return "leads out of the repository"
    if not place.exists():
        return "leads nowhere"
    if anchor and anchor not in anchors(place):
        return "names a heading that is not there"
    return ""


@cache  # pages name the same tests again and again
def functions(path: Path) -> set[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    problems = {target: problem for target in targets(page) if (problem := find_broken(page, target))}
    assert problems == {}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = {(match["path"], match["name"]) for match in NAMED_TEST.finditer(page.read_text(encoding="utf-8"))}
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named, key=str)
        if not (ROOT / path).is_file() or (name and name not in functions(ROOT / path))
    ]
    assert missing == []


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_has_its_four_parts_on_at_most_forty_lines(page: Path) -> None:
    text = STATUS.sub("\n\n", page.read_text(encoding="utf-8"))
    assert len(text.splitlines()) <= DECISION_LINES
    assert text.startswith(f"# {page.name[:4]}: ")
    for part in ("Context", "Choice", "Refused", "Evidence"):
        assert f"**{part}.**" in text, f"{part} is missing"


@cache
def list_places() -> frozenset[str]:
    """Return the path of every file and folder of the tree, and each end of it that a page may name it by."""
    found = []
    pending = [ROOT]
    while pending:
        for each in pending.pop().iterdir():
            if each.name in UNTRACKED or each.name.startswith("."):
                continue
            found.append(each.relative_to(ROOT).parts)
            if each.is_dir() and not each.is_symlink():
                pending.append(each)
    return frozenset("/".join(parts[start:]) for parts in found for start in range(len(parts)))


def find_dead_paths(text: str) -> list[str]:
    """Return the paths in `text` that lead to nothing in the tree."""
    named = {match["path"] for match in NAMED_PATH.finditer(text)}
    return sorted(path for path in named if path.rstrip("/") not in list_places())


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_says_whether_it_holds_and_then_names_only_what_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    stated = STATUS.search(text)
    assert stated is not None, "has no line `Status: holds` or `Status: superseded by NNNN` below its title"
    if stated["successor"] is None:
        assert find_dead_paths(text) == []
    else:
        assert stated["successor"] in {other.name[:4] for other in DECISIONS} - {page.name[:4]}


def test_a_path_that_is_gone_is_found() -> None:
    gone, kept = "`runs/gone.py`, `gone.py::test_it`, `gone/`", "`errors/`, `runs/`, `scripts/check.py`, `wait.now`"
    assert find_dead_paths(f"{gone} and {kept}") == ["gone.py", "gone/", "runs/gone.py"]


def test_every_decision_has_a_number_of_its_own() -> None:
    # There may be gaps: numbers are given to changes that are made side by side, and one of them may never come.
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert len(set(numbers)) == len(numbers)


def test_the_readme_fits_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / target.partition("#")[0]).resolve() for target in targets(index)}
    pages = {*(ROOT / "docs").rglob("*.md")} - {*DECISIONS, index}
    assert {name_of(page) for page in pages - listed} == set()


def test_the_list_of_decisions_leads_to_each() -> None:
    listed = set(targets(ROOT / "docs" / "decisions" / "README.md"))
    assert listed == {page.name for page in DECISIONS}


@pytest.mark.parametrize(
    ("title", "slug"),
    [
        ("`[reasoning.performance]`", "reasoningperformance"),
        ("What is there, and what is not", "what-is-there-and-what-is-not"),
    ],
)
def test_anchors_are_made_as_github_makes_them(title: str, slug: str) -> None:
    assert slug_of(title) == slug


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    assert find_broken(ROOT / "README.md", "docs/nothing.md") == "leads nowhere"
    assert find_broken(ROOT / "README.md", "docs/index.md#nothing") == "names a heading that is not there"
    assert find_broken(ROOT / "README.md", f"../{tmp_path.name}") == "leads out of the repository"
    assert find_broken(ROOT / "README.md", "docs/index.md#guides") == ""
