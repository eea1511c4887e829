"""Write generated files or compare them with the committed ones; helpers for the Markdown of pages."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKED_TABLE = re.compile(r"(?P<start><!-- table: (?P<name>[A-Za-z0-9_. ]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
CODE_SPAN = re.compile(r"(`[^`]*`)")
FENCED = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?^[ \t]*(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)", re.DOTALL)
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")


def cell(text: str) -> str:
    """Return `text` as one cell of a table: one line, no bar, and no tag outside code spans."""
    parts = CODE_SPAN.split(" ".join(text.split()))
    prose = (part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
    return "".join(prose).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; the caller passes a text through `cell` if it may contain a bar or a tag."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def page(title: str, source: str, lines: Sequence[str]) -> str:
    """Return a whole page that names its source."""
    return "\n".join([f"<!-- Made by `make docs` from {source}. Do not edit. -->", "", f"# {title}", "", *lines, ""])


def fill_tables(text: str, tables: Mapping[str, Sequence[str]]) -> str:
    """Return a page written by hand with its tables made again; each stands below its marker `<!-- table: NAME -->`.

    Raises:
      ValueError: a table has no marker in the page, or a marker names no table.
    """
    places = [match["name"] for match in MARKED_TABLE.finditer(text)]
    if sorted(places) != sorted(tables):
        raise ValueError(f"the page has markers for the tables {sorted(places)}, and {sorted(tables)} are made")
    return MARKED_TABLE.sub(lambda match: "\n".join([match["start"], *tables[match["name"]], "", match["end"]]), text)


def fill_page(path: Path, tables: Mapping[str, Sequence[str]]) -> dict[Path, str]:
    """Return the page at `path`, from the root, with its tables made again."""
    return {path: fill_tables((ROOT / path).read_text(encoding="utf-8"), tables)}


def write_or_check(
    pages: Mapping[Path, str], *, description: str, command: str = "make docs", known: Iterable[Path] = ()
) -> int:
    """Write `pages` (path from the root -> content), or with `--check` print those that differ and return 1.

    `command` is the command that the message about a differing page tells the reader to run. Of the `known` files,
    which are all generated, those that are not among `pages` are removed.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page is out of date")
    return bring_up_to_date(pages, is_check=parser.parse_args().check, command=command, known=known)


def bring_up_to_date(
    pages: Mapping[Path, str], *, is_check: bool, command: str = "make docs", known: Iterable[Path] = ()
) -> int:
    """Do what `write_or_check` does, without looking at the arguments of the program."""
    gone = sorted(set(known) - set(pages))
    stale = [path for path, content in pages.items() if current(ROOT / path) != content]
    if is_check:
        lines = [f"{path}: no longer generated, run: {command}" for path in gone]
        lines += [f"{path}: out of date, run: {command}" for path in stale]
        print("\n".join(lines) or f"{len(pages)} files up to date")
        return 1 if lines else 0
    for path in gone:
        (ROOT / path).unlink()
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(pages[path], encoding="utf-8")
    print(f"wrote {len(stale)} of {len(pages)} files")
    return 0


def current(path: Path) -> str | None:
    """Return the content of `path`, None if there is no such file."""
    return path.read_text(encoding="utf-8") if path.exists() else None


def prose(markdown: str) -> str:
    """Return the text of a page without its code."""
    return CODE.sub("", FENCED.sub("", markdown))


def links(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield text and target of the links and pictures of a page that do not lead to other hosts."""
    # Code is removed first, because it may look like a link; code in the text of a link leaves an empty text.
    for match in LINK.finditer(prose(markdown)):
        if not re.match(r"[a-z]+:", match["target"]):
            yield match["text"], match["target"]
